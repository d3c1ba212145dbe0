//! Bad input gets a clear message that names the place, exit code 1 and no stack trace; `serve` prints the same as
//! `check`.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::support::weir::{check_strictly, run};
use crate::support::{Upstream, Weir, lane, one_limiter};

/// A broken file with a title, and the parts that the message must contain: the place and the nearest valid name.
struct Broken {
    what: &'static str,
    yaml: &'static str,
    line: usize,
    names: &'static [&'static str],
}

const ROUTE: &str = "routes:\n  - {name: all, match: {path: /}, upstream: \"http://127.0.0.1:1\"}\n";

const BROKEN: &[Broken] = &[
    Broken {
        what: "an unknown key",
        yaml: "listen: 127.0.0.1:0\nlimiter:\n  api: {limits: [1/1s]}\n",
        line: 2,
        names: &["limiter", "limiters"],
    },
    Broken {
        what: "an unknown key deep inside",
        yaml: "limiters:\n  api:\n    limits: [1/1s]\n    queue: {timeout: 1s, max_waitng: 5}\n",
        line: 4,
        names: &["max_waitng", "max_waiting", "limiters.api.queue"],
    },
    Broken {
        what: "a doubled key",
        yaml: "limiters:\n  api: {limits: [1/1s]}\n  api: {limits: [2/1s]}\n",
        line: 3,
        names: &["api"],
    },
    Broken {
        what: "a limiter that does not exist",
        yaml: "limiters:\n  github: {limits: [1/1s]}\nroutes:\n  - name: all\n    match: {path: /}\n    upstream: http://127.0.0.1:1\n    limiter: gihtub\n",
        line: 7,
        names: &["gihtub", "github", "routes[0].limiter"],
    },
    Broken {
        what: "a client that does not exist",
        yaml: "clients:\n  billing: {tokens: [abc]}\nroutes:\n  - name: all\n    match: {path: /}\n    upstream: http://127.0.0.1:1\n    clients: [biling]\n",
        line: 7,
        names: &["biling", "billing", "routes[0].clients[0]"],
    },
    Broken {
        what: "a token of two clients",
        yaml: "clients:\n  billing: {tokens: [abc]}\n  reports: {tokens: [abc]}\n",
        line: 3,
        names: &["billing", "clients.reports.tokens[0]"],
    },
    Broken {
        what: "a certificate that is not there",
        yaml: "server:\n  tls:\n    cert: nowhere/server.crt\n    key: nowhere/server.key\n",
        line: 3,
        names: &["server.tls.cert", "nowhere/server.crt", "server.tls.key"],
    },
    Broken {
        what: "a client by certificate without verification",
        yaml: "clients:\n  reports:\n    certificate: {san: reports.internal}\n",
        line: 3,
        names: &["clients.reports.certificate", "server.tls.client_ca"],
    },
    Broken {
        what: "a zero rate",
        yaml: "limiters:\n  api:\n    limits:\n      - 5/1s\n      - 0/1s\n",
        line: 5,
        names: &["limiters.api.limits[1]"],
    },
    Broken {
        what: "a zero rate, long form",
        yaml: "limiters:\n  api:\n    limits:\n      - {rate: 0, per: 1s}\n",
        line: 4,
        names: &["limiters.api.limits[0].rate"],
    },
    Broken {
        what: "a negative rate",
        yaml: "limiters:\n  api:\n    limits: [-5/1s]\n",
        line: 3,
        names: &["limiters.api.limits[0]"],
    },
    Broken {
        what: "a rate without a unit",
        yaml: "limiters:\n  api:\n    limits: [5/10]\n",
        line: 3,
        names: &["limiters.api.limits[0]", "10"],
    },
    Broken {
        what: "a rate without a window",
        yaml: "limiters:\n  api:\n    limits: [5]\n",
        line: 3,
        names: &["limiters.api.limits[0]"],
    },
    Broken {
        what: "a cost larger than the limit",
        yaml: "limiters:\n  api: {limits: [100/1m, 5/1s]}\nroutes:\n  - name: all\n    match: {path: /}\n    upstream: http://127.0.0.1:1\n    limiter: api\n    cost: 6\n",
        line: 8,
        names: &["routes[0].cost", "5"],
    },
    Broken {
        what: "no limits at all",
        yaml: "limiters:\n  api: {limits: []}\n",
        line: 2,
        names: &["limiters.api.limits"],
    },
    Broken {
        what: "a duration without a unit",
        yaml: "limiters:\n  api:\n    limits: [1/1s]\n    queue:\n      timeout: 10\n      max_waiting: 5\n",
        line: 5,
        names: &["limiters.api.queue.timeout", "10"],
    },
    Broken {
        what: "an upstream that is not a URL",
        yaml: "routes:\n  - name: all\n    match: {path: /}\n    upstream: ftp:/nowhere\n",
        line: 4,
        names: &["routes[0].upstream"],
    },
    Broken {
        what: "an address without a port",
        yaml: "listen: localhost\n",
        line: 1,
        names: &["listen", "localhost"],
    },
    Broken { what: "a list in place of a map", yaml: "limiters:\n  - api\n", line: 2, names: &["limiters"] },
    Broken {
        what: "YAML that does not parse",
        yaml: "limiters:\n  api: {limits: [1/1s]\nroutes: []\n",
        line: 3,
        names: &[],
    },
    Broken {
        what: "a tab for indentation",
        yaml: "limiters:\n\tapi: {limits: [1/1s]}\n",
        line: 2,
        names: &[],
    },
    Broken {
        what: "an environment variable that is not set",
        yaml: "listen: ${WEIR_TEST_VARIABLE_THAT_IS_NOT_SET}\n",
        line: 1,
        names: &["WEIR_TEST_VARIABLE_THAT_IS_NOT_SET"],
    },
    Broken {
        what: "a name with other characters",
        yaml: "limiters:\n  \"a b\": {limits: [1/1s]}\n",
        line: 2,
        names: &["a b"],
    },
    Broken {
        what: "a regular expression that does not compile",
        yaml: "routes:\n  - name: all\n    match: {path_regex: \"(\"}\n    upstream: http://127.0.0.1:1\n",
        line: 3,
        names: &["routes[0].match.path_regex"],
    },
];

/// A file that is removed when the value is dropped.
struct File {
    _directory: TempDir,
    path: PathBuf,
}

impl File {
    fn with(content: impl AsRef<[u8]>) -> File {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("weir.yaml");
        fs::write(&path, content).unwrap();
        File { _directory: directory, path }
    }

    fn name(&self) -> &str {
        self.path.to_str().unwrap()
    }
}

#[tokio::test]
async fn every_broken_file_is_refused_with_its_place() {
    let _lane = lane::shared().await;
    for Broken { what, yaml, line, names } in BROKEN {
        let file =
            File::with(if yaml.contains("routes:") { (*yaml).to_owned() } else { format!("{yaml}{ROUTE}") });
        let checked = run(&["check", "--config", file.name()]).await;
        println!("{what}:\n{}", checked.output());
        checked.assert_code(1);
        let place = format!("weir.yaml:{line}:");
        for name in [&place.as_str()].into_iter().chain(*names) {
            assert!(checked.output().contains(name), "{what}: no {name:?} in\n{}", checked.output());
        }
    }
}

#[tokio::test]
async fn serve_refuses_what_check_refuses() {
    let _lane = lane::shared().await;
    let file = File::with(format!("limiters:\n  api: {{limits: [0/1s]}}\n{ROUTE}"));
    let served = run(&["serve", "--config", file.name()]).await;
    served.assert_code(1);
    for name in ["weir.yaml:2:", "limiters.api.limits[0]"] {
        assert!(served.output().contains(name), "no {name:?} in\n{}", served.output());
    }
}

#[tokio::test]
async fn all_problems_are_reported_at_once() {
    let _lane = lane::shared().await;
    let file = File::with(
        "limiters:\n  a: {limits: [0/1s]}\n  b: {limits: [5/10]}\nroutes:\n  - name: all\n    match: {path: /}\n    \
         upstream: http://127.0.0.1:1\n    limiter: c\n",
    );
    let checked = run(&["check", "--config", file.name()]).await;
    checked.assert_code(1);
    for place in ["weir.yaml:2:", "weir.yaml:3:", "weir.yaml:8:"] {
        assert!(checked.output().contains(place), "no {place:?} in\n{}", checked.output());
    }
}

#[tokio::test]
async fn a_missing_file_is_named() {
    let _lane = lane::shared().await;
    for command in ["check", "serve"] {
        let finished = run(&[command, "--config", "/nonexistent/weir.yaml"]).await;
        finished.assert_code(1);
        assert!(finished.output().contains("/nonexistent/weir.yaml"), "{}", finished.output());
    }
}

#[tokio::test]
async fn an_unreadable_file_is_named() {
    let _lane = lane::shared().await;
    let directory = TempDir::new().unwrap();
    // A directory, and bytes that are no text: unreadable for root as well.
    let binary = File::with(b"listen: \xff\xfe\n");
    for path in [directory.path().to_str().unwrap(), binary.name()] {
        for command in ["check", "serve"] {
            let finished = run(&[command, "--config", path]).await;
            finished.assert_code(1);
            assert!(finished.output().contains(path), "{}", finished.output());
        }
    }
}

#[tokio::test]
async fn hostile_yaml_ends_quickly() {
    let _lane = lane::shared().await;
    let deep = "[".repeat(100_000);
    let mut laughs = "a: &a [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (previous, name) in ('a'..='y').zip('b'..='z') {
        laughs.push_str(&format!("{name}: &{name} [{}]\n", vec![format!("*{previous}"); 9].join(", ")));
    }
    for content in [deep, laughs, "\0".to_owned(), "a: !!binary |\n  ////".to_owned()] {
        let file = File::with(content);
        run(&["check", "--config", file.name()]).await.assert_code(1);
    }
}

#[tokio::test]
async fn a_port_in_use_is_named() {
    let _lane = lane::shared().await;
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    for (listen, admin) in
        [(address.to_string(), "127.0.0.1:0".into()), ("127.0.0.1:0".into(), address.to_string())]
    {
        let file = File::with(format!("listen: {listen}\nadmin: {{listen: {admin}}}\n{ROUTE}"));
        let served = run(&["serve", "--config", file.name()]).await;
        served.assert_code(1);
        assert!(served.output().contains(&address.to_string()), "{}", served.output());
    }
}

#[tokio::test]
async fn a_good_file_is_summed_up() {
    let _lane = lane::shared().await;
    let file = File::with(format!("limiters:\n  api: {{limits: [5/1s]}}\n{ROUTE}"));
    let checked = run(&["check", "--config", file.name()]).await;
    checked.assert_code(0);
    assert!(!checked.stdout.trim().is_empty());
}

#[tokio::test]
async fn every_example_passes_the_check() {
    let _lane = lane::shared().await;
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/config");
    for entry in fs::read_dir(examples).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            check_strictly(&path).await.assert_code(0);
        }
    }
}

#[tokio::test]
async fn a_malformed_weir_timeout_is_refused_and_costs_nothing() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start(&one_limiter("memory", "{limits: [1/1h]}", &upstream)).await;
    for value in ["soon", "-1s", "5x", ""] {
        let request = crate::support::Request::get("/").header("weir-timeout", value);
        let answer = crate::support::client::send(&weir.url("/"), request).await.unwrap();
        assert_eq!((answer.status, answer.weir_error()), (400, Some("bad_request")), "{value:?}");
    }
    assert_eq!(weir.get("/").await.status, 200);
}
