//! The commands beside `serve`: health checks, completions, manual pages, and `check` for programs.

use std::time::Duration;

use serde_json::Value;

use crate::support::weir::{run, run_with_input};
use crate::support::{
    RedisServer, Upstream, Weir, client, configuration, eventually, lane, one_limiter, one_route,
};

#[tokio::test]
async fn health_is_success_while_it_can_serve() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let limiter = "{limits: [3/1m], on_store_failure: reject}";
    let weir = Weir::start(&one_limiter(&redis.store(), limiter, &upstream)).await;
    let admin = weir.admin("");
    let health = run(&["health", "--admin", &admin]).await;
    health.assert_code(0);
    assert_eq!(health.stdout.trim(), "ready");
    redis.command(&["CLIENT", "PAUSE", "60000", "ALL"]).await;
    eventually("it rejects without its store", async || {
        weir.get("/").await;
        weir.ask("/readyz").await.status == 503
    })
    .await;
    let health = run(&["health", "--admin", &admin, "--json"]).await;
    health.assert_code(1);
    let told: Value = serde_json::from_str(&health.stdout).expect("a document");
    assert_eq!(told["ready"], false);
    assert_eq!(told["cannot_serve"][0]["limiter"], "api", "{told}");
    drop(weir);
    let health = run(&["health", "--admin", &admin]).await;
    health.assert_code(1);
    assert!(health.stderr.contains("is weir running there?"), "{}", health.stderr);
}

#[tokio::test]
async fn each_shell_gets_completions() {
    let _lane = lane::shared().await;
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let completions = run(&["completions", shell]).await;
        completions.assert_code(0);
        for word in ["limiters", "pause", "health", "--config"] {
            let is_there = completions.stdout.contains(word.trim_start_matches('-'));
            assert!(is_there, "{shell} is not told of {word}");
        }
    }
    run(&["completions", "none"]).await.assert_code(2);
}

#[tokio::test]
async fn each_command_has_a_manual_page() {
    let _lane = lane::shared().await;
    let page = run(&["man"]).await;
    page.assert_code(0);
    assert!(page.stdout.contains(".TH weir 1"), "{}", page.stdout);
    let parent = tempfile::tempdir().expect("a directory");
    let directory = parent.path().join("share/man1");
    run(&["man", "--directory", directory.to_str().expect("a path")]).await.assert_code(0);
    for (name, word) in [("weir", "demo"), ("weir-serve", "SIGTERM"), ("weir-pause", "partition")] {
        let page = std::fs::read_to_string(directory.join(format!("{name}.1"))).expect(name);
        assert!(page.contains(word), "{page}");
    }
    let refused = run(&["man", "--directory", "/dev/null/nowhere"]).await;
    refused.assert_code(1);
    assert!(refused.stderr.contains("cannot write to /dev/null/nowhere: "), "{}", refused.stderr);
}

#[tokio::test]
async fn a_reload_by_hand_prints_what_has_changed() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let config = |rate: &str, secret: &str| {
        let one = one_limiter("memory", &format!("{{limits: [{rate}]}}"), &upstream);
        format!("{one}    set_headers: {{x-key: {secret}}}\n")
    };
    let weir = Weir::start(&config("3/1m", "first")).await;
    let admin = weir.admin("");
    let reload = run(&["reload", "--admin", &admin]).await;
    reload.assert_code(0);
    assert_eq!(reload.stdout, "nothing has changed since the start\n");

    weir.write_config(&config("5/1m", "s3cret"));
    let reload = run(&["reload", "--admin", &admin]).await;
    reload.assert_code(0);
    // The file is watched, so it may have been taken up before.
    for told in [
        "limiters.api.limits: [{rate: 3, per: 1m, ",
        "-> [{rate: 5, per: 1m, ",
        "routes.all.set_headers.x-key: changed",
    ] {
        assert!(reload.stdout.contains(told), "{told:?} in: {}", reload.stdout);
    }
    let shown = weir.ask("/api/config?defaults=1").await.json();
    assert_eq!(shown["config"]["server"]["idle_timeout"], "75s", "{shown}");
    assert_eq!(shown["config"]["server"]["body_memory"], "256MiB", "{shown}");
    assert_eq!(shown["config"]["routes"][0]["upstream"]["timeout"], "1m", "{shown}");
    let written = weir.ask("/api/config").await.json();
    assert_eq!(
        (&written["config"]["server"], &written["config"]["limiters"]["api"]["limits"][0]),
        (&Value::Null, &"5/1m".into())
    );
    for answer in [reload.stdout, shown.to_string(), written.to_string()] {
        assert!(!answer.contains("s3cret") && !answer.contains("\\u0001"), "{answer}");
    }

    weir.write_config(&config("5/1x", "second").replace("match:", "mach:"));
    let reload = run(&["reload", "--admin", &admin]).await;
    reload.assert_code(1);
    for told in ["unknown unit \"x\"", "unknown key \"mach\"", "nothing has changed"] {
        assert!(reload.stderr.contains(told), "{told:?} in: {}", reload.stderr);
    }
}

/// Routes of each condition.
const EXPLAINED: &str = "\
limiters:
  api: {limits: [3/1m], key: ['header:x-tenant'], queue: {timeout: 10s, max_waiting: 7}}
routes:
  - name: writes
    match: {path: /api, methods: [POST]}
    upstream: https://api.example.com/v2
    limiter: api
    cost: 2
  - name: reads
    match: {path: /api}
    strip_prefix: /api
    upstream: UPSTREAM
    limiter: api
    set_headers: {authorization: Bearer s3cret}
    remove_headers: [x-internal]
  - {name: rest, match: {}, upstream: 'http://127.0.0.1:1', limiters: off}
";

#[tokio::test]
async fn a_body_that_is_too_long_to_ask_about_is_named() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start(&EXPLAINED.replace("UPSTREAM", &upstream.url())).await;
    let (file, admin) = (weir.config().to_str().expect("a path").to_owned(), weir.admin(""));
    let body = "x".repeat(80_000);
    let asked = ["explain", "POST", "/api/x", "-H", "x-tenant: b", "-d", &body];
    let live = run(&[&asked[..], &["--admin", &admin]].concat()).await;
    live.assert_code(1);
    assert!(live.stderr.contains("--config FILE"), "{}", live.stderr);
    run(&[&asked[..], &["--config", &file]].concat()).await.assert_code(0);
}

/// The reader of the output, such as `head`, may close it at any moment.
#[tokio::test]
async fn a_verdict_stands_when_its_reader_has_gone() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("weir.yaml");
    let config = "routes: [{name: a, match: {path: /api}, upstream: 'http://127.0.0.1:1'}]";
    let asked: [(&str, &[&str], i32); 3] = [
        ("routes: 5", &["check"], 1),
        (config, &["explain", "GET", "/other"], 1),
        (config, &["explain", "GET", "/api"], 0),
    ];
    for (content, arguments, code) in asked {
        std::fs::write(&path, content).expect("written");
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_weir"));
        let command = command.args(arguments).arg("--config").arg(&path);
        let status =
            command.stderr(writer.try_clone().expect("a pipe")).stdout(writer).status().expect("it runs");
        assert_eq!(status.code(), Some(code), "{arguments:?}");
    }
}

#[tokio::test]
async fn a_reader_that_has_gone_is_no_failure() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start(&one_route(&upstream.url())).await;
    let admin = weir.admin("");
    for asked in [
        &["schema"][..],
        &["schema", "--markdown"],
        &["limiters", "--json", "--admin", &admin],
        &["usage", "--csv", "--admin", &admin],
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_weir"));
        let ended = command.args(asked).stdout(writer).output().expect("it runs");
        let told = String::from_utf8_lossy(&ended.stderr);
        assert_eq!((ended.status.code(), &*told), (Some(0), ""), "{asked:?}");
    }
}

#[tokio::test]
async fn a_request_is_explained_by_a_file_and_by_a_running_weir() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let config = EXPLAINED.replace("UPSTREAM", &upstream.url());
    let weir = Weir::start(&config).await;
    let file = weir.config().to_str().expect("a path").to_owned();
    let request = ["explain", "GET", "/api/x?y=1", "-H", "x-tenant: acme", "-H", "x-internal: 1"];
    let explained = run(&[&request[..], &["--config", &file]].concat()).await;
    explained.assert_code(0);
    for told in [
        "route     reads",
        &format!("upstream  {}/x?y=1", upstream.url()),
        "header    authorization: *** (set by the route)",
        "removed   x-internal",
        "limiter   api: 3/1m; partition header:x-tenant acme; cost 1; queue of 7 for 10s",
        "waits     at most 10s",
        "not       writes: the method is not POST",
        "not       rest: it matches, but reads comes first",
    ] {
        assert!(explained.stdout.contains(told), "{told:?} in:\n{}", explained.stdout);
    }
    assert!(!explained.stdout.contains("s3cret"), "{}", explained.stdout);
    assert_eq!(upstream.count(), 0, "nothing is sent");

    let request = client::Request::get("/api/x").header("x-tenant", "acme");
    assert_eq!(client::send(&weir.url("/api/x"), request).await.expect("an answer").status, 200);
    let live = run(&["explain", "GET", "/api/x", "-H", "x-tenant: acme", "--admin", &weir.admin("")]).await;
    live.assert_code(0);
    assert!(live.stdout.contains("now 2 of 3/1m left, 0 waiting"), "{}", live.stdout);
    let other = run(&[
        "explain",
        "POST",
        "/api/x",
        "-H",
        "x-tenant: b",
        "-d",
        "{}",
        "--json",
        "--admin",
        &weir.admin(""),
    ])
    .await;
    let told: Value = serde_json::from_str(&other.stdout).expect("a document");
    assert_eq!(
        (&told["route"], &told["upstream"]["url"]),
        (&"writes".into(), &"https://api.example.com/v2/api/x".into())
    );
    assert_eq!(
        (&told["limiters"][0]["cost"], &told["limiters"][0]["now"]["limits"][0]["available"]),
        (&2.into(), &3.into())
    );
    assert_eq!(told["upstream"]["headers"]["content-length"], "2");
    assert_eq!(upstream.count(), 1, "no permit is taken and nothing is sent");

    let refused = run(&["explain", "GET", "/api/%2e%2e/x", "--config", &file]).await;
    refused.assert_code(1);
    assert!(refused.stdout.contains("refused  400 bad_request: "), "{}", refused.stdout);
    let wrong = weir.ask("/api/explain?method=GET").await;
    assert_eq!(wrong.status, 400, "{}", wrong.text());
}

#[tokio::test]
async fn an_explanation_says_that_a_queue_is_not_used() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("weir.yaml");
    let config = "\
limiters:
  first: {limits: [3/1m]}
  waits: {limits: [3/1m], queue: {timeout: 10s}}
  counts: {limits: [3/1m], queue: {timeout: 1s}, mode: shadow}
  silent: {limits: [3/1m], mode: shadow}
routes:
  - {name: none, match: {path: /none}, upstream: 'http://127.0.0.1:1', limiters: [waits, first, counts]}
  - {name: some, match: {path: /some}, upstream: 'http://127.0.0.1:1', limiters: [waits, counts, silent]}
";
    std::fs::write(&file, config).expect("a file");
    let path = file.to_str().expect("a path");
    let none = run(&["explain", "GET", "/none", "--config", path]).await;
    for told in [
        "waits: 3/1m; cost 1; its queue is not used, because first has no queue\n",
        "first: 3/1m; cost 1; no queue\n",
        "counts: 3/1m; cost 1; its queue is not used, because it only counts\n",
    ] {
        assert!(none.stdout.contains(told), "{told:?} in:\n{}", none.stdout);
    }
    assert!(!none.stdout.contains("at most"), "{}", none.stdout);
    // Limiters that only count shorten no wait.
    let some = run(&["explain", "GET", "/some", "--config", path]).await;
    for told in ["waits: 3/1m; cost 1; queue of 1000 for 10s\n", "waits     at most 10s\n"] {
        assert!(some.stdout.contains(told), "{told:?} in:\n{}", some.stdout);
    }
}

#[tokio::test]
async fn an_explanation_knows_the_body_that_it_is_given() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let limiters = [("models", "{limits: [3/1m], key: [\"json:model\"]}")];
    let routes = [
        ("path: /, json: {stream: \"true\"}", "limiters: off"),
        ("path: /", "limiter: models, cost: {json: n, max: 3}"),
    ];
    let weir = Weir::start(&configuration("memory", &limiters, &routes, &upstream)).await;
    let (file, admin) = (weir.config().to_str().expect("a path").to_owned(), weir.admin(""));
    let body = r#"{"model": "gpt-5", "n": 2, "stream": false}"#;
    for from in [["--config", &file], ["--admin", &admin]] {
        let with = run(&[&["explain", "POST", "/", "-d", body][..], &from].concat()).await;
        with.assert_code(0);
        for told in [
            "models: 3/1m; partition json:model gpt-5; cost 2;",
            "route-0: the JSON body has no stream, or another value there",
        ] {
            assert!(with.stdout.contains(told), "{told:?} in:\n{}", with.stdout);
        }
        assert!(!with.stdout.contains("unknown"), "{}", with.stdout);
        let without = run(&[&["explain", "POST", "/"][..], &from].concat()).await;
        without.assert_code(0);
        for told in [
            "unknown   the body, on which this depends: give it with --data",
            "route-0: the body is not known",
        ] {
            assert!(without.stdout.contains(told), "{told:?} in:\n{}", without.stdout);
        }
        let ambiguous =
            run(&[&["explain", "POST", "/", "-d", r#"{"n": 1, "N": 2}"#][..], &from].concat()).await;
        ambiguous.assert_code(1);
        assert!(ambiguous.stdout.contains("400 bad_request: "), "{}", ambiguous.stdout);
    }
}

/// A file with one warning of each kind.
const HARDLY_MEANT: &str = "\
limiters:
  api: {limits: [3/1m]}
  spare: {limits: [3/1m]}
routes:
  - {name: all, match: {path: /a}, upstream: 'http://127.0.0.1:1', limiter: api}
  - {name: part, match: {path: /a/b, methods: [GET]}, upstream: 'http://127.0.0.1:1', limiters: off}
  - {name: free, match: {}, upstream: 'http://127.0.0.1:1'}
";

#[tokio::test]
async fn check_warns_of_valid_settings_that_are_hardly_meant() {
    let _lane = lane::shared().await;
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("weir.yaml");
    std::fs::write(&file, HARDLY_MEANT).expect("a file");
    let path = file.to_str().expect("a path");
    let warnings = format!(
        "{path}:3:3: warning: limiters.spare: no route uses this limiter
    3 |   spare: {{limits: [3/1m]}}
      |   ^
{path}:6:18: warning: routes[1].match: can never match: \"all\" before it takes each of its requests
    6 |   - {{name: part, match: {{path: /a/b, methods: [GET]}}, upstream: 'http://127.0.0.1:1', limiters: off}}
      |                  ^
{path}:7:5: warning: routes[2]: has no limiter, so its requests go out unlimited; `limiters: off` says that this is meant
    7 |   - {{name: free, match: {{}}, upstream: 'http://127.0.0.1:1'}}
      |     ^
"
    );
    let checked = run(&["check", path]).await;
    checked.assert_code(0);
    assert_eq!(checked.stderr, warnings);
    let strict = run(&["check", path, "--strict"]).await;
    strict.assert_code(1);
    assert_eq!(strict.stderr, warnings);
    let told: Value =
        serde_json::from_str(&run(&["check", path, "--json"]).await.stdout).expect("a document");
    assert_eq!((&told["ok"], told["warnings"].as_array().map(Vec::len)), (&true.into(), Some(3)), "{told}");
    let first = &told["warnings"][0];
    assert_eq!(
        (&first["path"], &first["line"], &first["column"]),
        (&"limiters.spare".into(), &3.into(), &3.into())
    );
    assert_eq!(first["message"], "no route uses this limiter");
    std::fs::write(&file, HARDLY_MEANT.replace("  spare: {limits: [3/1m]}\n", "").replace("/a/b", "/b"))
        .expect("a file");
    let rest = run(&["check", path, "--strict"]).await;
    rest.assert_code(1);
    assert_eq!(rest.stderr.matches("warning: ").count(), 1, "{}", rest.stderr);
}

#[tokio::test]
async fn a_problem_is_shown_in_its_line_without_secrets() {
    let _lane = lane::shared().await;
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("weir.yaml");
    std::fs::write(&file, "limiters:\n  api: {limits: [3/1x]}\nadmin: {lisen: a, token: s3cret}\n")
        .expect("a file");
    let path = file.to_str().expect("a path");
    let checked = run(&["check", path]).await;
    checked.assert_code(1);
    assert!(
        checked.stderr.contains("\n    2 |   api: {limits: [3/1x]}\n      |                  ^\n"),
        "{}",
        checked.stderr
    );
    assert!(
        checked.stderr.contains("\n    3 | admin: {lisen: a, token: ***\n      |         ^\n"),
        "{}",
        checked.stderr
    );
    assert!(!checked.stderr.contains("s3cret"), "{}", checked.stderr);
    // Passwords that are not percent-encoded, where the URL has no authority of which they are a part.
    for url in [
        "redis://weir:s3cret/x@redis:6379/0",
        "redis://weir:s3cret#x@redis:6379/0",
        "redis://weir:s3cret?x@redis:6379/0",
        "weir:s3cret@redis:6379",
    ] {
        for key in [
            format!("store: {{redis: {{url: '{url}'}}}}"),
            format!("store: {{redis: {{cluster: ['{url}']}}}}"),
            format!("store: {{redis: {{sentinel: {{master: m, nodes: ['{url}']}}}}}}"),
            format!("routes: [{{upstream: '{url}'}}]"),
            format!("routes: [{{upstream: {{url: 'https://a', proxy: '{url}'}}}}]"),
        ] {
            std::fs::write(&file, &key).expect("a file");
            let checked = run(&["check", path]).await;
            checked.assert_code(1);
            assert!(checked.stderr.contains("***"), "{key}: {}", checked.stderr);
            assert!(!checked.stderr.contains("s3cret"), "{key}: {}", checked.stderr);
        }
    }
}

#[tokio::test]
async fn a_check_reads_standard_input() {
    let _lane = lane::shared().await;
    let checked = run_with_input(&["check", "-"], HARDLY_MEANT).await;
    checked.assert_code(0);
    assert!(
        checked.stdout.starts_with("standard input is valid: 2 limiters, 3 routes"),
        "{}",
        checked.stdout
    );
    assert!(
        checked.stderr.starts_with("standard input:3:3: warning: limiters.spare: "),
        "{}",
        checked.stderr
    );
    let checked = run_with_input(&["check", "--json", "--config", "-"], "listen: a\n").await;
    checked.assert_code(1);
    let told: Value = serde_json::from_str(&checked.stdout).expect("a document");
    assert_eq!(
        (&told["ok"], &told["problems"][0]["file"]),
        (&false.into(), &"standard input".into()),
        "{told}"
    );
}

#[tokio::test]
async fn a_check_can_be_printed_as_json() {
    let _lane = lane::shared().await;
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("weir.yaml");
    let path = file.to_str().expect("a path");
    let check = async |text: &str, store: bool| {
        std::fs::write(&file, text).expect("a file");
        let arguments = ["check", "--config", path, "--json", "--store"];
        let checked = run(&arguments[..if store { 5 } else { 4 }]).await;
        let told: Value = serde_json::from_str(&checked.stdout).expect("a document");
        assert_eq!(told["ok"], checked.code == Some(0), "{told}");
        told
    };
    let upstream = Upstream::start();
    let good = one_limiter("memory", "{limits: [3/1m]}", &upstream);
    let told = check(&good, false).await;
    assert_eq!((&told["ok"], &told["summary"]), (&true.into(), &"1 limiter, 1 route, store memory".into()));
    let told = check(&good.replace("3/1m", "3/1x"), true).await;
    let problem = &told["problems"][0];
    assert_eq!((&told["ok"], &problem["path"]), (&false.into(), &"limiters.api.limits[0]".into()), "{told}");
    assert!(problem["line"].as_u64().is_some_and(|line| line > 0), "{told}");
    let redis = RedisServer::start().await;
    let told = check(&good.replace("memory", &redis.store()), true).await;
    assert_eq!((&told["ok"], &told["store"]["ok"]), (&true.into(), &true.into()), "{told}");
    let url = redis.store();
    drop(redis);
    let told =
        tokio::time::timeout(Duration::from_secs(30), check(&good.replace("memory", &url), true)).await;
    let told = told.expect("it ends");
    assert_eq!((&told["ok"], &told["store"]["ok"]), (&false.into(), &false.into()), "{told}");
}
