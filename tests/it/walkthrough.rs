//! Types every command of README.md and of the walked pages in `docs/` into a terminal: each ends well and shows the
//! documented output.
//!
//! A fence `sh` is typed and waited for; `sh server NAME` stays in the foreground of a terminal of its own, until an
//! `<!-- end NAME -->` in the document or its end. A `text` right behind a fence is the expected output. Ports, `/tmp` and the
//! third-party APIs are replaced, so that nothing here meets what runs on the machine or leaves it (the demo looks for free
//! ports itself). Nothing is built: `cargo run` stands for the tested weir, and commands that install weir or run these tests
//! are left out.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use regex::Regex;
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;
use tokio::time::timeout;

use crate::support::{Upstream, closed_port, eventually, lane};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The beginnings of commands that install weir or run its tests.
const BUILDS: [&str; 2] = ["cargo install ", "scripts/test"];

/// The longest time for a command.
const COMMAND_MAX: Duration = Duration::from_secs(60);

/// A step of a document.
enum Step {
    /// Commands, and the documented output, if any.
    Type(String, Option<String>),
    /// A command that stays in the foreground, by its name.
    Serve(String, String),
    /// Ctrl-C for the command of this name.
    End(String),
}

fn steps(document: &str) -> Vec<Step> {
    let pattern = Regex::new(r"(?ms)^```([^\n]*)\n(.*?)^```$|^<!-- end (\w+) -->$").expect("a pattern");
    let mut steps = Vec::new();
    // The end of the last fence of commands.
    let mut typed_until = None;
    for found in pattern.captures_iter(document) {
        if let Some(name) = found.get(3) {
            steps.push(Step::End(name.as_str().to_owned()));
            continue;
        }
        let text = found[2].to_owned();
        let whole = found.get(0).expect("a match");
        let was_typed = typed_until.take().is_some_and(|end| document[end..whole.start()].trim().is_empty());
        match (&found[1], steps.last_mut()) {
            ("sh", _) => {
                let kept = text.lines().filter(|line| !BUILDS.iter().any(|builds| line.starts_with(builds)));
                let kept: Vec<&str> = kept.collect();
                if !kept.is_empty() {
                    typed_until = Some(whole.end());
                    steps.push(Step::Type(kept.join("\n"), None));
                }
            }
            ("text", Some(Step::Type(_, shown))) if was_typed => *shown = Some(text),
            (info, _) => {
                if let Some(name) = info.strip_prefix("sh server ") {
                    steps.push(Step::Serve(name.to_owned(), text));
                } else {
                    assert!(!info.starts_with("sh"), "what is {info:?}?");
                }
            }
        }
    }
    steps
}

/// A reader's workplace: a directory, free ports, and the servers in other terminals.
struct Desk {
    directory: TempDir,
    /// The stand-in for the third-party APIs.
    _upstream: Upstream,
    /// The texts of the documents that are replaced here, with their replacements.
    meant: Vec<(&'static str, String)>,
    servers: BTreeMap<String, Child>,
}

impl Desk {
    fn new() -> Desk {
        let directory = TempDir::with_prefix("weir-walk").expect("a directory");
        let path = directory.path().display().to_string();
        let [weirs, admins, provider, redis] = free_ports();
        let upstream = Upstream::start();
        let meant = vec![
            ("https://api.openai.com", upstream.url()),
            ("https://api.github.com", upstream.url()),
            ("808", weirs),
            ("909", admins),
            ("9900", provider + "0"),
            ("6379", redis + "0"),
            ("/tmp/", path + "/"),
            ("cargo run --release --", "weir".to_owned()),
            ("scripts/", format!("{ROOT}/scripts/")),
        ];
        let desk = Desk { directory, _upstream: upstream, meant, servers: BTreeMap::new() };
        let config = desk.directory.path().join("config");
        fs::create_dir(&config).expect("a directory");
        for entry in fs::read_dir(Path::new(ROOT).join("config")).expect("config/") {
            let entry = entry.expect("an entry");
            let text = fs::read_to_string(entry.path()).expect("a file");
            fs::write(config.join(entry.file_name()), desk.meant(&text)).expect("a file");
        }
        desk
    }

    /// Replaces all of those texts at once, because a replacement may look like another text.
    fn meant(&self, text: &str) -> String {
        let shown: Vec<String> = self.meant.iter().map(|(shown, _)| regex::escape(shown)).collect();
        let shown = Regex::new(&shown.join("|")).expect("a pattern");
        let meant = |found: &regex::Captures<'_>| {
            self.meant
                .iter()
                .find(|(shown, _)| *shown == &found[0])
                .map_or_else(String::new, |(_, meant)| meant.clone())
        };
        shown.replace_all(text, meant).into_owned()
    }

    fn shell(&self, commands: &str) -> Command {
        let binary = Path::new(env!("CARGO_BIN_EXE_weir")).parent().expect("it lies in a directory");
        let path = std::env::var("PATH").unwrap_or_default();
        let mut shell = Command::new("sh");
        shell.args(["-euc", &self.meant(commands)]).current_dir(self.directory.path());
        shell.env("PATH", format!("{}:{path}", binary.display())).stdin(Stdio::null());
        shell.env("WEIR_ADMIN_URL", self.meant("http://127.0.0.1:9090"));
        shell
    }

    async fn take(&mut self, step: &Step) {
        match step {
            Step::Type(commands, shown) => self.enter(commands, shown.as_deref()).await,
            Step::Serve(name, commands) => self.serve(name, commands).await,
            Step::End(name) => self.end(name).await,
        }
    }

    async fn enter(&self, commands: &str, shown: Option<&str>) {
        let mut shell = tokio::process::Command::from(self.shell(commands));
        let output = timeout(COMMAND_MAX, shell.kill_on_drop(true).output()).await;
        let output = output.unwrap_or_else(|_| panic!("does not end: {commands}")).expect("a shell");
        let (seen, error) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{commands}\n{seen}\n{error}");
        assert!(!seen.is_empty() || commands.contains(" > "), "{commands}\nshows nothing");
        if let Some(shown) = shown {
            compare(commands, shown, &seen);
        }
    }

    /// Starts a command and waits until it answers on its port, or, if it has none, has printed something.
    async fn serve(&mut self, name: &str, commands: &str) {
        let said = self.directory.path().join(format!("{name}.out"));
        let output = File::create(&said).expect("a file");
        let errors = File::create(said.with_extension("err")).expect("a file");
        let server = self.shell(commands).stdout(output).stderr(errors).process_group(0).spawn();
        let before = self.servers.insert(name.to_owned(), server.expect("a shell"));
        assert!(before.is_none(), "{name} runs already");
        let port = Regex::new(r"(?:WEIR_LISTEN=127\.0\.0\.1:|scripts/provider |redis-server --port )(\d+)")
            .expect("a pattern");
        let port = port.captures(commands).map(|found| found[1].to_owned());
        let port = port.or_else(|| commands.contains("weir serve").then(|| "8080".to_owned()));
        let address = port.map(|port| self.meant(&format!("127.0.0.1:{port}")));
        eventually(&format!("{name} to run: {commands}"), async || match &address {
            Some(address) => TcpStream::connect(address).is_ok(),
            None => fs::metadata(&said).is_ok_and(|said| said.len() > 0),
        })
        .await;
    }

    async fn end(&mut self, name: &str) {
        let mut server = self.servers.remove(name).unwrap_or_else(|| panic!("{name} does not run"));
        signal(&server, Signal::INT);
        eventually(&format!("{name} to end"), async || server.try_wait().expect("a child").is_some()).await;
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        for (name, server) in &mut self.servers {
            signal(server, Signal::KILL);
            server.wait().ok();
            if std::thread::panicking() {
                let said = fs::read_to_string(self.directory.path().join(format!("{name}.err")));
                let said = said.unwrap_or_default();
                let lines: Vec<&str> = said.lines().collect();
                println!(
                    "--- the last of {name} ---\n{}",
                    lines[lines.len().saturating_sub(10)..].join("\n")
                );
            }
        }
    }
}

fn signal(server: &Child, signal: Signal) {
    let group = i32::try_from(server.id()).ok().and_then(Pid::from_raw).expect("a process");
    // The process may have ended.
    kill_process_group(group, signal).ok();
}

/// Finds four groups of four ports in a row on which nobody listens. Returns the digits before the last one of each
/// group.
fn free_ports() -> [String; 4] {
    let mut found = std::iter::repeat_with(closed_port)
        .take(1000)
        .filter(|first| first % 10 == 0 && (1..4).all(|more| closed_port() == first + more))
        .map(|first| (first / 10).to_string());
    std::array::from_fn(|_| found.next().expect("four ports in a row are free"))
}

/// Compares the output with the documented one: of an HTTP answer the status and the names of weir's headers, otherwise
/// each documented line in order and no other, where `...` stands for anything and counts may differ by a fifth or by ten,
/// because a machine that is held up makes permits late.
fn compare(commands: &str, shown: &str, seen: &str) {
    if shown.starts_with("HTTP/") {
        assert_eq!(seen.lines().next(), shown.lines().next(), "{commands}");
        assert_eq!(own_headers(seen), own_headers(shown), "{commands}");
        return;
    }
    if !shown.lines().any(|line| line == "...") {
        assert_eq!(seen.lines().count(), shown.lines().count(), "{commands}\n{seen}");
    }
    let mut lines = seen.lines();
    for line in shown.lines().filter(|line| *line != "...") {
        assert!(lines.any(|seen| is_like(line, seen)), "{commands}\nshows no {line:?}:\n{seen}");
    }
}

fn is_like(shown: &str, seen: &str) -> bool {
    let (shown, seen): (Vec<_>, Vec<_>) =
        (shown.split_whitespace().collect(), seen.split_whitespace().collect());
    let number = |text: &str| text.parse::<f64>().ok();
    let word = |(shown, seen): (&&str, &&str)| match (number(shown), number(seen)) {
        _ if *shown == "..." || shown == seen => true,
        (Some(shown), Some(seen)) => (shown - seen).abs() <= (shown / 5.0).max(10.0),
        _ => false,
    };
    shown.len() == seen.len() && shown.iter().zip(&seen).all(word)
}

/// Returns the names of the headers that weir adds to an answer.
fn own_headers(answer: &str) -> Vec<&str> {
    let head = answer.lines().take_while(|line| !line.is_empty());
    let names = head.filter_map(|line| Some(line.split_once(": ")?.0));
    let mut own: Vec<&str> = names
        .filter(|name| ["weir-", "ratelimit", "retry-after"].iter().any(|own| name.starts_with(own)))
        .collect();
    own.sort_unstable();
    own
}

/// Walks through a document with at least this many commands and outputs to compare.
async fn walk(path: &str, commands_min: usize, shown_min: usize) {
    let document = fs::read_to_string(Path::new(ROOT).join(path)).expect("a document");
    let steps = steps(&document);
    let commands = steps.iter().filter(|step| !matches!(step, Step::End(_))).count();
    let shown = steps.iter().filter(|step| matches!(step, Step::Type(_, Some(_)))).count();
    assert!(commands >= commands_min && shown >= shown_min, "{commands} commands, {shown} outputs");
    lane::calm(async || {
        let mut desk = Desk::new();
        for step in &steps {
            desk.take(step).await;
        }
    })
    .await;
}

#[tokio::test]
async fn the_readme_works_as_written() {
    walk("README.md", 4, 2).await;
}

#[tokio::test]
async fn the_quickstart_works_as_written() {
    walk("docs/quickstart.md", 14, 3).await;
}

#[tokio::test]
async fn the_page_on_calls_works_as_written() {
    walk("docs/calls.md", 7, 4).await;
}

#[tokio::test]
async fn the_page_on_limits_works_as_written() {
    walk("docs/limits.md", 3, 0).await;
}

#[tokio::test]
async fn the_page_on_redis_works_as_written() {
    walk("docs/redis.md", 7, 1).await;
}

#[tokio::test]
async fn the_page_on_admin_works_as_written() {
    walk("docs/admin.md", 7, 1).await;
}

#[test]
fn documents_are_parsed_into_steps() {
    let document = "```sh\ncargo install --path .\n```\n```text\nbuilds\n```\n```sh server weir\nweir serve\n```\n\
                    ```sh\necho 7\n```\n```text\n7\n```\n```sh\ntrue\n```\nelse\n```text\nelse\n```\n<!-- end weir -->\n";
    let steps = steps(document);
    let [Step::Serve(name, _), Step::Type(typed, Some(shown)), Step::Type(_, None), Step::End(ended)] =
        &steps[..]
    else {
        panic!("{} steps", steps.len());
    };
    assert_eq!(
        (name.as_str(), typed.as_str(), shown.as_str(), ended.as_str()),
        ("weir", "echo 7", "7\n", "weir")
    );
    assert!(is_like("  50 200", "52 200") && is_like("10 429", "8 429") && is_like("a ... b", "a 9 b"));
    assert!(!is_like("50 200", "39 200") && !is_like("50 200", "50 429") && !is_like("a", "b"));
}
