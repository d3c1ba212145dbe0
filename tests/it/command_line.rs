//! The commands beside `serve`: health checks, completions, manual pages, and `check` for programs.

use std::time::Duration;

use serde_json::Value;

use crate::support::weir::run;
use crate::support::{PATIENCE, RedisServer, Upstream, Weir, eventually, lane, one_limiter};

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
    eventually("it rejects without its store", PATIENCE, async || {
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
    let directory = tempfile::tempdir().expect("a directory");
    run(&["man", "--directory", directory.path().to_str().expect("a path")]).await.assert_code(0);
    for (name, word) in [("weir", "demo"), ("weir-serve", "SIGTERM"), ("weir-pause", "partition")] {
        let page = std::fs::read_to_string(directory.path().join(format!("{name}.1"))).expect(name);
        assert!(page.contains(word), "{page}");
    }
    run(&["man", "--directory", "/dev/null/nowhere"]).await.assert_code(1);
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
