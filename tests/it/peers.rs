//! Common HTTP clients, as installed on this machine: each sends the same requests, several on one connection, and is
//! served, queued, and refused once with a `Retry-After` that it can read. The upstream sees the same from all of them.
//!
//! curl and Python are required; the tests of other clients are skipped where these are missing, with a message.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use http::Method;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::time::timeout;

use crate::support::certificates::Certificates;
use crate::support::upstream::Seen;
use crate::support::{Reply, Upstream, Weir, configuration, lane};

/// The time for a virtual machine to start and a compiler to run on a busy machine.
const DEADLINE: Duration = Duration::from_secs(90);

/// The size of the body that every client sends to `upload`, without a declared length.
const UPLOAD: usize = 100_000;

/// `hello` as gzip (RFC 1952): stored, with its checksum.
const GZIP_HELLO: &[u8] = &[
    0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff, 1, 5, 0, 0xfa, 0xff, b'h', b'e', b'l', b'l', b'o', 0x86, 0xa6,
    0x10, 0x36, 5, 0, 0, 0,
];

/// The upstream, with one weir in the clear and one inside TLS in front of it.
struct Served {
    directory: TempDir,
    certificates: Certificates,
    upstream: Upstream,
    clear: Weir,
    secure: Weir,
}

impl Served {
    async fn start() -> Served {
        let (directory, upstream) = (TempDir::new().unwrap(), Upstream::start());
        let certificates = Certificates::write_to(directory.path());
        upstream.reply("/hello", Reply::status(200).body("hello"));
        upstream.reply("/gzip", Reply::status(200).header("content-encoding", "gzip").body(GZIP_HELLO));
        // A limiter for each client, so that clients do not affect each other.
        let limiters = [
            ("slow", "{limits: [1/300ms], queue: {timeout: 1m, max_waiting: 10}, key: [header:x-client]}"),
            ("once", "{limits: [1/1h], key: [header:x-client]}"),
        ];
        let routes =
            [("path: /waits", "limiter: slow"), ("path: /refuses", "limiter: once"), ("path: /", "cost: 1")];
        let config = configuration("memory", &limiters, &routes, &upstream);
        let (cert, key) = (&certificates.certificate, &certificates.key);
        let clear = Weir::start(&config).await;
        let secure =
            Weir::start(&format!("server: {{tls: {{cert: {cert:?}, key: {key:?}}}}}\n{config}")).await;
        Served { directory, certificates, upstream, clear, secure }
    }

    fn clear(&self) -> String {
        format!("http://{}", self.clear.host())
    }

    fn secure(&self) -> String {
        format!("https://{}", self.secure.host())
    }

    fn authority(&self) -> String {
        self.certificates.ca.to_str().expect("a path of letters").to_owned()
    }

    /// Returns the requests that the upstream saw of one client, without those that only curl sends.
    fn seen(&self, client: &str) -> Vec<Seen> {
        let is_its = |seen: &Seen| seen.headers.get("x-client").is_some_and(|name| name == client);
        self.upstream.seen().into_iter().filter(|seen| is_its(seen) && seen.target != "/gzip").collect()
    }

    /// Judges a client's output and the requests that reached the upstream.
    fn judge(&self, client: &str, version: &str, output: &str) {
        let answers: Vec<Answer> = output.lines().map(Answer::parse).collect();
        for answer in &answers {
            assert_eq!(answer.version, version, "{client}: {answer:?}");
        }
        let asked = |answer: &Answer| (answer.step.clone(), answer.status);
        let expected =
            ["hello", "hello", "words", "upload", "waits", "waits", "waits", "refuses", "refuses", "hello"];
        let expected: Vec<_> = expected
            .into_iter()
            .enumerate()
            .map(|(index, step)| (step.to_owned(), if index == 8 { 429 } else { 200 }))
            .collect();
        assert_eq!(answers.iter().map(asked).collect::<Vec<_>>(), expected, "{client}: {output}");
        assert!(answers[4..7].iter().any(|answer| answer.wait_ms > 0), "{client}: nobody waited: {output}");
        let retry_after = answers[8].retry_after;
        assert!((3500..=3700).contains(&retry_after), "{client}: to come back in {retry_after} s");
        let bodies: Vec<_> = [0, 1, 9].iter().map(|index| answers[*index].body.as_str()).collect();
        assert_eq!(bodies, ["hello", "", "hello"], "{client}: {output}");
        self.judge_upstream(client);
    }

    fn judge_upstream(&self, client: &str) {
        let seen = self.seen(client);
        let expected = [
            (Method::GET, "/hello"),
            (Method::HEAD, "/hello"),
            (Method::POST, "/words"),
            (Method::POST, "/upload"),
            (Method::GET, "/waits"),
            (Method::GET, "/waits"),
            (Method::GET, "/waits"),
            (Method::GET, "/refuses"),
            (Method::GET, "/hello"),
        ];
        let arrived: Vec<_> = seen.iter().map(|seen| (seen.method.clone(), seen.target.as_str())).collect();
        assert_eq!(arrived, expected, "{client}");
        assert_eq!(seen[2].body, "some words", "{client}");
        assert!(seen[3].body.len() == UPLOAD && seen[3].body.iter().all(|byte| *byte == b'u'), "{client}");
        for name in ["connection", "upgrade", "http2-settings", "te"] {
            let found = seen.iter().find(|seen| seen.headers.contains_key(name));
            assert!(found.is_none(), "{client}: {name} in {found:?}");
        }
    }
}

/// A line of a client's output: the request and its result.
#[derive(Debug)]
struct Answer {
    step: String,
    status: u16,
    version: String,
    /// The wait in milliseconds; 0 where the client printed none.
    wait_ms: u64,
    /// The `Retry-After` in seconds; 0 where the client printed none.
    retry_after: u64,
    body: String,
}

impl Answer {
    fn parse(line: &str) -> Answer {
        let [step, status, version, wait_ms, retry_after, body] = line.split('|').collect::<Vec<_>>()[..]
        else {
            panic!("not an answer: {line}");
        };
        Answer {
            step: step.into(),
            status: status.parse().expect("a status"),
            version: version.into(),
            wait_ms: wait_ms.parse().unwrap_or_default(),
            retry_after: retry_after.parse().unwrap_or_default(),
            body: body.into(),
        }
    }
}

/// Returns the path of a program's source, beside this file.
fn source(name: &str) -> String {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests", "it", "peers", name].iter().collect();
    path.to_str().expect("a path of letters").to_owned()
}

/// Runs a program to its end and returns its output; panics when the program fails.
async fn run(program: &str, arguments: &[&str], environment: &[(&str, &str)], input: &[u8]) -> String {
    let mut command = Command::new(program);
    command.args(arguments).envs(environment.iter().copied()).kill_on_drop(true);
    // A proxy or settings of the developer must not change the verdict.
    for name in ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "JAVA_TOOL_OPTIONS"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{program}: {error}"));
    let mut stdin = child.stdin.take().expect("it is piped");
    let talking = async {
        let _ = stdin.write_all(input).await;
        drop(stdin);
        child.wait_with_output().await
    };
    let output = timeout(DEADLINE, talking).await.unwrap_or_else(|_| panic!("{program}: still runs"));
    let output = output.expect("it ends");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {}\n{said}\n{complaints}", output.status);
    said
}

/// Returns whether a program is installed; if not, prints that its test is skipped.
async fn is_installed(program: &str, version: &str) -> bool {
    let mut command = Command::new(program);
    command.arg(version).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let installed = command.status().await.is_ok_and(|status| status.success());
    if !installed {
        println!("left out: {program} is not installed");
    }
    installed
}

/// Splits the output of a program that did several runs, each begun with `run|NAME`, by name.
fn runs(output: &str) -> Vec<(&str, &str)> {
    output.split("run|").filter_map(|run| run.split_once('\n')).collect()
}

/// Returns curl's arguments for the common requests and for a compressed body: one list for each request.
fn curl(base: &str, client: &str, flags: &[&str], unzipped: &str) -> Vec<Vec<String>> {
    let told = "|%{http_code}|%{http_version}|%header{weir-wait-ms}|%header{retry-after}|";
    let steps: [(&str, &[&str]); 11] = [
        ("gzip", &["--compressed"]),
        ("hello", &[]),
        ("hello", &["-I"]),
        ("words", &["-H", "Expect: 100-continue", "--data-binary", "some words"]),
        ("upload", &["-X", "POST", "-T", "-"]),
        ("waits", &[]),
        ("waits", &[]),
        ("waits", &[]),
        ("refuses", &[]),
        ("refuses", &[]),
        ("hello", &[]),
    ];
    let arguments = steps.map(|(step, own)| {
        let output = if step == "gzip" { unzipped } else { "/dev/null" };
        // The length shows whether a body has come.
        let body = if step == "hello" && own.is_empty() { "hello" } else { "" };
        let line = format!("{step}{told}{body}|%{{num_connects}}|%{{size_download}}\n");
        let (header, url) = (format!("x-client: {client}"), format!("{base}/{step}"));
        let given = ["-sS", "--max-time", "30", "-o", output, "-w", &line, "-H", &header];
        [&given[..], flags, own, &[&url]].concat().into_iter().map(str::to_owned).collect()
    });
    arguments.into()
}

#[tokio::test]
async fn curl_is_served_over_both_protocols() {
    let _lane = lane::shared().await;
    let served = Served::start().await;
    let speaks_http2 = run("curl", &["--version"], &[], b"").await.contains("HTTP2");
    if !speaks_http2 {
        println!("left out: this curl does not speak HTTP/2");
    }
    let (clear, secure, authority) = (served.clear(), served.secure(), served.authority());
    let trusting = ["--cacert", &authority];
    for (client, base, version, flags) in [
        ("curl", &clear, "1.1", vec!["--http1.1"]),
        ("curl-2", &clear, "2", vec!["--http2-prior-knowledge"]),
        // Asks for an upgrade, which weir ignores.
        ("curl-upgrade", &clear, "1.1", vec!["--http2"]),
        ("curl-tls", &secure, "1.1", [&trusting[..], &["--http1.1"]].concat()),
        ("curl-tls-2", &secure, "2", [&trusting[..], &["--http2"]].concat()),
    ] {
        if !flags.contains(&"--http1.1") && !speaks_http2 {
            continue;
        }
        let unzipped = served.directory.path().join(client);
        let mut requests = curl(base, client, &flags, unzipped.to_str().expect("a path of letters"));
        // curl 7.88 cannot reuse a connection on which it spoke HTTP/2 without negotiation.
        let connections =
            if client == "curl-2" { "1".repeat(requests.len()) } else { "10000000000".to_owned() };
        if client != "curl-2" {
            requests = vec![requests.join(&"--next".to_owned())];
        }
        let mut output = String::new();
        for arguments in requests {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            output += &run("curl", &arguments, &[], &[b'u'; UPLOAD]).await;
        }
        assert_eq!(std::fs::read_to_string(unzipped).unwrap(), "hello", "{client}");
        let lines: Vec<Vec<&str>> = output.lines().map(|line| line.split('|').collect()).collect();
        let column = |index: usize| lines.iter().map(|line| line[index]).collect::<Vec<_>>();
        assert_eq!(column(6).concat(), connections, "{client}: {output}");
        let lengths = column(7);
        assert_eq!((lengths[1], lengths[2], lengths[10]), ("5", "0", "5"), "{client}: {output}");
        let common: Vec<String> = lines[1..].iter().map(|line| line[..6].join("|")).collect();
        served.judge(client, version, &common.join("\n"));
    }
}

#[tokio::test]
async fn python_is_served_over_http1() {
    let _lane = lane::shared().await;
    let served = Served::start().await;
    for (client, base) in [("python", served.clear()), ("python-tls", served.secure())] {
        let arguments: [&str; 4] = [&source("client.py"), &base, client, &served.authority()];
        served.judge(client, "1.1", &run("python3", &arguments, &[], b"").await);
    }
}

#[tokio::test]
async fn node_is_served_over_both_protocols() {
    let _lane = lane::shared().await;
    if !is_installed("node", "--version").await {
        return;
    }
    let served = Served::start().await;
    let (clear, secure, authority) = (served.clear(), served.secure(), served.authority());
    let (program, trusting) = (source("client.mjs"), [("NODE_EXTRA_CA_CERTS", authority.as_str())]);
    for (client, kind, base, version) in [
        ("node", "http", &clear, "1.1"),
        ("node-tls", "http", &secure, "1.1"),
        ("node-2", "http2", &clear, "2"),
        ("node-tls-2", "http2", &secure, "2"),
        ("node-fetch", "fetch", &clear, "1.1"),
        ("node-tls-fetch", "fetch", &secure, "1.1"),
    ] {
        let output = run("node", &[&program, kind, base, client], &trusting, b"").await;
        served.judge(client, version, &output);
    }
}

#[tokio::test]
async fn java_is_served_over_both_protocols() {
    let _lane = lane::shared().await;
    if !is_installed("java", "-version").await {
        return;
    }
    let served = Served::start().await;
    let (clear, secure) = (served.clear(), served.secure());
    let expected = [("java", "1.1"), ("java-upgrade", "1.1"), ("java-tls", "1.1"), ("java-tls-2", "2")];
    let arguments = [
        // A short run needs no second compiler.
        "-XX:TieredStopAtLevel=1",
        &source("Client.java"),
        &served.authority(),
        "HTTP_1_1",
        &clear,
        "java",
        "HTTP_2",
        &clear,
        "java-upgrade",
        "HTTP_1_1",
        &secure,
        "java-tls",
        "HTTP_2",
        &secure,
        "java-tls-2",
    ];
    let output = run("java", &arguments, &[], b"").await;
    let runs = runs(&output);
    assert_eq!(
        runs.iter().map(|(client, _)| *client).collect::<Vec<_>>(),
        expected.map(|(client, _)| client)
    );
    for ((client, version), (_, said)) in expected.into_iter().zip(runs) {
        served.judge(client, version, said);
    }
}

#[tokio::test]
async fn go_is_served_over_both_protocols() {
    let _lane = lane::shared().await;
    if !is_installed("go", "version").await {
        return;
    }
    let served = Served::start().await;
    let (clear, secure) = (served.clear(), served.secure());
    let arguments = ["run", &source("client.go"), &served.authority(), &clear, "go", &secure, "go-tls-2"];
    let output = run("go", &arguments, &[], b"").await;
    let runs = runs(&output);
    assert_eq!(runs.len(), 2, "{output}");
    for ((client, said), version) in runs.into_iter().zip(["1.1", "2"]) {
        served.judge(client, version, said);
    }
}
