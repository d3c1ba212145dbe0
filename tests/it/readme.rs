//! What the README shows is true: its configurations pass the check, its names exist, its commands run.
//!
//! A fenced block says by its words what it is: `yaml` is a whole configuration; `sh run` needs nothing but the
//! binary; `sh quickstart` needs `config/quickstart.yaml` served. Other `sh` blocks build, serve or need three terminals.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use regex::Regex;
use tempfile::TempDir;

use crate::support::weir::run;
use crate::support::{Upstream, Weir, lane};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// A fenced block.
struct Block {
    /// What stands behind its fence, `sh run`.
    info: String,
    text: String,
}

fn readme() -> String {
    fs::read_to_string(Path::new(ROOT).join("README.md")).expect("read README.md")
}

/// Every fenced block, in order.
fn blocks() -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut is_inside = false;
    for line in readme().lines() {
        match line.strip_prefix("```") {
            Some(info) if !is_inside => {
                is_inside = true;
                blocks.push(Block { info: info.to_owned(), text: String::new() });
            }
            Some(_) => is_inside = false,
            None if is_inside => {
                let block = blocks.last_mut().expect("a block is open");
                block.text.push_str(line);
                block.text.push('\n');
            }
            None => {}
        }
    }
    assert!(!is_inside, "a fence is not closed");
    blocks
}

fn texts<'a>(blocks: &'a [Block], info: &str) -> Vec<&'a str> {
    let found: Vec<&str> =
        blocks.iter().filter(|block| block.info == info).map(|block| block.text.as_str()).collect();
    assert!(!found.is_empty(), "no block {info:?}");
    found
}

/// Runs commands in the root of the repository, with this build's weir first on the path.
async fn shell(commands: &str) -> Output {
    let binary = Path::new(env!("CARGO_BIN_EXE_weir")).parent().expect("it lies in a directory");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = tokio::process::Command::new("sh");
    shell.args(["-euc", commands]).current_dir(ROOT).env("PATH", format!("{}:{path}", binary.display()));
    let output = shell.kill_on_drop(true).output().await.expect("start a shell");
    assert!(output.status.success(), "{commands}\n{}", String::from_utf8_lossy(&output.stderr));
    output
}

#[tokio::test]
async fn its_configurations_pass_the_check_and_are_those_of_the_directory() {
    let _lane = lane::shared().await;
    let directory = TempDir::new().unwrap();
    let examples: Vec<String> = fs::read_dir(Path::new(ROOT).join("config"))
        .unwrap()
        .map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect();
    for text in texts(&blocks(), "yaml") {
        let path = directory.path().join("weir.yaml");
        fs::write(&path, text).unwrap();
        run(&["check", "--config", path.to_str().unwrap()]).await.assert_code(0);
        assert!(examples.iter().any(|example| example.ends_with(text)), "not in config/:\n{text}");
    }
}

#[tokio::test]
async fn its_commands_files_and_links_exist() {
    let _lane = lane::shared().await;
    let readme = readme();
    let shells: String = blocks()
        .iter()
        .filter(|block| block.info.starts_with("sh"))
        .map(|block| block.text.as_str())
        .collect();
    // At the beginning of a line, behind variables; and in a span of code.
    let commands =
        [named(&shells, r"(?m)^(?:[A-Z_]+=\S+ )*weir ([a-z]+)\b"), named(&readme, r"`weir ([a-z]+)\b")];
    for command in commands.iter().flatten() {
        let help = run(&["help", command]).await;
        assert_eq!(help.code, Some(0), "weir {command}: {}", help.output());
    }
    let paths = [
        named(&readme, r"\b((?:config|scripts|docs|deploy|src)/[\w.-]*)"),
        named(&readme, r"\]\(([^)#:]+)\)"),
    ];
    for path in paths.iter().flatten() {
        assert!(Path::new(ROOT).join(path).exists(), "{path} does not exist");
    }
}

/// Every name that the pattern's group finds, once.
fn named(text: &str, pattern: &str) -> BTreeSet<String> {
    let pattern = Regex::new(pattern).unwrap();
    let names: BTreeSet<String> = pattern.captures_iter(text).map(|found| found[1].to_owned()).collect();
    assert!(!names.is_empty(), "nothing matches {pattern}");
    names
}

#[tokio::test]
async fn its_commands_that_need_nothing_run() {
    let _lane = lane::shared().await;
    for commands in texts(&blocks(), "sh run") {
        assert!(!shell(commands).await.stdout.is_empty(), "{commands}");
    }
}

#[tokio::test]
async fn its_calls_of_the_quickstart_answer_as_it_shows() {
    lane::alone(async || {
        if Command::new("curl").arg("--version").output().is_err() {
            println!("no curl here: not run");
            return;
        }
        let upstream = Upstream::start();
        let quickstart = fs::read_to_string(Path::new(ROOT).join("config/quickstart.yaml")).unwrap();
        let (_, config) =
            quickstart.split_once("\nstore:").expect("what the harness sets stands before the store");
        let weir =
            Weir::start(&format!("store:{config}").replace("http://127.0.0.1:9900", &upstream.url())).await;
        let admin = weir.admin("");
        let admin = admin.trim_start_matches("http://");

        let blocks = blocks();
        let mut answers_compared = 0;
        for (index, block) in blocks.iter().enumerate().filter(|(_, block)| block.info == "sh quickstart") {
            let commands =
                block.text.replace("localhost:8080", &weir.host()).replace("localhost:9090", admin);
            let output = shell(&commands).await;
            let answer = String::from_utf8_lossy(&output.stdout);
            let shown =
                blocks.get(index + 1).filter(|next| next.info == "text").map_or("", |next| &next.text);
            if shown.starts_with("HTTP/") {
                assert_eq!(answer.lines().next(), shown.lines().next(), "{commands}");
                assert_eq!(own_headers(&answer), own_headers(shown), "{commands}");
                answers_compared += 1;
            }
        }
        assert!(answers_compared >= 4, "{answers_compared} answers compared");
    })
    .await;
}

/// The names of the headers that weir adds to an answer.
fn own_headers(answer: &str) -> Vec<&str> {
    let head = answer.lines().take_while(|line| !line.is_empty());
    let names = head.filter_map(|line| Some(line.split_once(": ")?.0));
    let mut own: Vec<&str> = names
        .filter(|name| ["weir-", "ratelimit", "retry-after"].iter().any(|own| name.starts_with(own)))
        .collect();
    own.sort_unstable();
    own
}
