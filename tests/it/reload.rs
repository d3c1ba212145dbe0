//! Hot reload: every way in which a file changes, reloads under load, and files that cannot be used.

mod refused;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::time::timeout;

use crate::support::measure::{fullest_window, occupancy};
use crate::support::weir::{with_preamble, write_whole};
use crate::support::{
    PATIENCE, RedisServer, SECOND, Upstream, Weir, client, eventually, lane, one_limiter, poll_for,
    replace_file, wait_until,
};

/// The longest time for which a replica uses slots that it got before a reload.
const LEASE: Duration = Duration::from_millis(500);

/// One route that marks each forwarded request, so that the upstream sees which configuration was in force.
fn marked(mark: &str, upstream: &Upstream) -> String {
    let url = upstream.url();
    format!(
        "routes:\n  - name: all\n    match: {{path: /}}\n    upstream: {url}\n    set_headers: {{x-mark: {mark}}}\n"
    )
}

/// Sends a request and returns its mark.
async fn mark_now(weir: &Weir, upstream: &Upstream) -> String {
    assert_eq!(weir.get("/").await.status, 200);
    let seen = upstream.seen();
    seen.last().expect("it arrived").headers["x-mark"].to_str().expect("text").to_owned()
}

async fn wait_for_mark(weir: &Weir, upstream: &Upstream, mark: &str) {
    let what = format!("the configuration marked {mark}");
    eventually(&what, async || mark_now(weir, upstream).await == mark).await;
}

#[tokio::test]
async fn a_file_written_in_place_is_followed() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start(&marked("one", &upstream)).await;
    assert_eq!(mark_now(&weir, &upstream).await, "one");
    for mark in ["two", "three"] {
        fs::write(weir.config(), with_preamble(&marked(mark, &upstream))).unwrap();
        wait_for_mark(&weir, &upstream, mark).await;
    }
}

#[tokio::test]
async fn a_renamed_file_is_followed() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start(&marked("one", &upstream)).await;
    // Two replacements, because a watch on the file itself would follow the replaced file and miss the second one.
    for mark in ["two", "three"] {
        weir.write_config(&marked(mark, &upstream));
        wait_for_mark(&weir, &upstream, mark).await;
    }
}

#[tokio::test]
async fn a_config_map_is_followed() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let volume = TempDir::new().unwrap();
    // As the kubelet does it: the file is a link through `..data`, a link that is replaced by one to another directory.
    let publish = |version: &str| {
        let directory = volume.path().join(version);
        fs::create_dir(&directory).unwrap();
        write_whole(&directory.join("weir.yaml"), &marked(version.trim_start_matches('.'), &upstream));
        let draft = volume.path().join("..data_tmp");
        symlink(version, &draft).unwrap();
        fs::rename(draft, volume.path().join("..data")).unwrap();
    };
    publish("..one");
    symlink("..data/weir.yaml", volume.path().join("weir.yaml")).unwrap();

    let weir = Weir::start_at(&volume.path().join("weir.yaml")).await;
    assert_eq!(mark_now(&weir, &upstream).await, "one");
    for (old, new) in [("..one", "..two"), ("..two", "..three")] {
        publish(new);
        fs::remove_dir_all(volume.path().join(old)).unwrap();
        wait_for_mark(&weir, &upstream, new.trim_start_matches('.')).await;
    }
}

#[tokio::test]
async fn sighup_reloads_even_an_unchanged_file() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start(&marked("one", &upstream)).await;
    let before = weir.reloads("ok").await;
    weir.signal(Signal::HUP);
    eventually("a counted reload", async || weir.reloads("ok").await > before).await;
    weir.reload(&marked("two", &upstream)).await;
    assert_eq!(mark_now(&weir, &upstream).await, "two");
}

#[tokio::test]
async fn the_admin_api_reloads_and_answers_with_the_outcome() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start(&marked("one", &upstream)).await;
    weir.write_config(&marked("two", &upstream));
    let reloaded = weir.tell("/api/reload").await;
    assert_eq!(reloaded.status, 200, "{}", reloaded.text());
    assert_eq!(mark_now(&weir, &upstream).await, "two", "in force when the answer comes");

    let broken =
        format!("{}limiters: {{a: {{limits: [0/1s]}}, b: {{limits: [1]}}}}\n", marked("x", &upstream));
    weir.write_config(&broken);
    let refused = weir.tell("/api/reload").await;
    assert_eq!(refused.status, 422, "{}", refused.text());
    for place in ["limiters.a", "limiters.b"] {
        assert!(refused.text().contains(place), "every problem: {}", refused.text());
    }
    assert_eq!(mark_now(&weir, &upstream).await, "two");
}

#[tokio::test]
async fn a_broken_file_changes_nothing_and_is_reported() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start(&marked("one", &upstream)).await;
    let metrics = weir.metrics().await;
    assert_eq!(metrics.sum("weir_config_last_reload_successful", &[]), 1.0);
    let succeeded_at = metrics.sum("weir_config_last_success_timestamp_seconds", &[]);
    assert!(succeeded_at > 1.6e9, "seconds since the epoch: {succeeded_at}");

    for broken in ["routes: [", "colour: blue\n", "limiters: {api: {limits: [-1/1s]}}\n", ""] {
        let before = weir.reloads("error").await;
        weir.write_config(broken);
        weir.signal(Signal::HUP);
        eventually("a counted failure", async || weir.reloads("error").await > before).await;
        assert_eq!(mark_now(&weir, &upstream).await, "one");
        assert_eq!(weir.metrics().await.sum("weir_config_last_reload_successful", &[]), 0.0);
    }
    weir.write_config("colour: blue\n");
    let shown = poll_for("the problem in /api/config", async || {
        let config = weir.ask("/api/config").await;
        config.text().contains("colour").then_some(config)
    })
    .await;
    assert_eq!(shown.status, 200);
    assert!(shown.text().contains("x-mark"), "the running configuration: {}", shown.text());
    assert!(weir.log().contains("colour"), "the problem is logged");

    weir.reload(&marked("two", &upstream)).await;
    assert_eq!(mark_now(&weir, &upstream).await, "two");
    assert_eq!(weir.metrics().await.sum("weir_config_last_reload_successful", &[]), 1.0);
}

#[tokio::test]
async fn a_file_that_goes_away_changes_nothing() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start(&marked("one", &upstream)).await;
    fs::remove_file(weir.config()).unwrap();
    let refused = weir.tell("/api/reload").await;
    assert_eq!(refused.status, 422, "{}", refused.text());
    assert_eq!(mark_now(&weir, &upstream).await, "one");
    weir.write_config(&marked("two", &upstream));
    wait_for_mark(&weir, &upstream, "two").await;
}

#[tokio::test]
async fn a_change_that_needs_a_restart_leaves_the_rest_applied() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start(&marked("one", &upstream)).await;
    let moved = format!("store: {{redis: {{url: \"redis://127.0.0.1:1\"}}}}\n{}", marked("two", &upstream));
    weir.reload(&moved).await;
    assert_eq!(mark_now(&weir, &upstream).await, "two");
    weir.wait_for_log(&["restart"]).await;
}

#[tokio::test]
async fn a_request_keeps_the_route_it_began_with() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let gate = upstream.hold("/slow");
    let weir = Weir::start(&marked("one", &upstream)).await;
    let slow = weir.begin(1, "/slow");
    upstream.wait_for(1, PATIENCE).await;
    weir.reload("routes:\n  - {name: other, match: {path: /other}, upstream: \"http://127.0.0.1:9\"}\n")
        .await;
    assert_eq!(weir.get("/").await.weir_error(), Some("no_route"));
    gate.open();
    assert_eq!(client::answers(slow).await[0].status, 200);
}

#[tokio::test]
async fn a_new_rate_holds_within_a_window_and_nothing_is_forgotten() {
    lane::alone(async || {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let at_rate = |rate: &str| {
            let limiter = format!("{{limits: [{rate}], queue: {{timeout: 60s, max_waiting: 1000}}}}");
            one_limiter(&redis.store(), &limiter, &upstream)
        };
        let fleet = Weir::fleet(3, &at_rate("100/1s")).await;
        let mut backlog = Vec::new();
        for _ in 0..260 {
            backlog.extend(fleet.iter().flat_map(|weir| weir.begin(1, "/")));
        }
        upstream.wait_for(200, PATIENCE).await;

        Weir::reload_all(&fleet, &at_rate("20/1s")).await;
        let slowed = Instant::now();
        let settled = slowed + SECOND + LEASE;
        wait_until(settled + 3 * SECOND).await;
        let (low, high) = (upstream.instants_since(settled), upstream.count());
        upstream.assert_within_since(Some(settled), 20, SECOND);
        assert!(low.len() >= 55, "the lower rate is used: {} in 3 s", low.len());
        assert!(high < 780, "a backlog is left: {high}");

        Weir::reload_all(&fleet, &at_rate("100/1s")).await;
        let raised = Instant::now();
        wait_until(raised + Duration::from_millis(2500)).await;
        let fullest = fullest_window(&upstream.instants_since(raised), SECOND);
        assert!(fullest >= 90, "{fullest} in the fullest second after the rate went back to 100/1s");
        println!("{} in 3 s at 20/s, then {fullest} in the fullest second at 100/s", low.len());
        upstream.assert_within(100, SECOND);
        drop(backlog);
    })
    .await;
}

#[tokio::test]
async fn used_permits_stay_used_across_a_reload() {
    let _lane = lane::shared().await;
    let redis = RedisServer::start().await;
    for store in ["memory".to_owned(), redis.store()] {
        let upstream = Upstream::start();
        let weir = Weir::start(&one_limiter(&store, "{limits: [5/1h]}", &upstream)).await;
        let mut passed = 0;
        for (limit, allowed) in [("5/1h", 5), ("8/1h", 8), ("3/1h", 8), ("10/2h", 10)] {
            weir.reload(&one_limiter(&store, &format!("{{limits: [{limit}]}}"), &upstream)).await;
            for _ in 0..12 {
                passed += usize::from(weir.get("/").await.status == 200);
            }
            assert_eq!(passed, allowed, "after {limit} with {store}");
        }
        assert_eq!(upstream.count(), 10);
    }
}

#[tokio::test]
async fn a_reload_does_not_disturb_the_queue_of_an_unchanged_limiter() {
    lane::calm(async || {
        let upstream = Upstream::start();
        let url = upstream.url();
        let config = |other: &str| {
            format!(
                "limiters:\n  api: {{limits: [10/1s], queue: {{timeout: 30s, max_waiting: 100}}}}\n  \
             other: {{limits: [{other}]}}\n\
             routes:\n  \
             - {{name: other, match: {{path: /other}}, upstream: \"{url}\", limiter: other}}\n  \
             - {{name: api, match: {{path: /}}, upstream: \"{url}\", limiter: api}}\n"
            )
        };
        let weir = Weir::start(&config("1/1h")).await;
        let pending = weir.begin(40, "/");
        upstream.wait_for(10, PATIENCE).await;
        for rate in 2..=6 {
            weir.reload(&config(&format!("{rate}/1h"))).await;
        }
        client::assert_all_ok(&client::answers(pending).await);
        upstream.assert_within(10, SECOND);
        let used = occupancy(&upstream.instants(), 10, SECOND);
        assert!(used >= 0.9, "{:.1} % of the quota used", used * 100.0);
    })
    .await;
}

#[tokio::test]
async fn a_request_that_waits_on_a_removed_limiter_gets_an_answer() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let limiter = "{limits: [1/2s], queue: {timeout: 5m, max_waiting: 10}}";
    let weir = Weir::start(&one_limiter("memory", limiter, &upstream)).await;
    assert_eq!(weir.get("/").await.status, 200);
    let waiting = weir.begin(2, "/");
    weir.wait_for_waiting(2).await;
    weir.reload(&marked("free", &upstream)).await;
    for answer in client::answers(waiting).await {
        assert!(answer.status == 200 || answer.weir_error().is_some(), "{} {}", answer.status, answer.text());
    }
    assert_eq!(weir.get("/").await.status, 200);
}

/// A rotated secret is used from the next request on, without a reload by hand.
#[tokio::test]
async fn a_rotated_secret_is_followed() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let secrets = tempfile::tempdir().unwrap();
    let secret = secrets.path().join("key");
    fs::write(&secret, "one\n").unwrap();
    let reference = format!("\"${{file:{}}}\"", secret.display());
    let weir = Weir::start(&marked(&reference, &upstream)).await;
    assert_eq!(mark_now(&weir, &upstream).await, "one");
    replace_file(&secret, "two\n");
    wait_for_mark(&weir, &upstream, "two").await;
    for place in [weir.log(), weir.ask("/api/config").await.text()] {
        assert!(!place.contains("two") && !place.contains("\"one\""), "the secret shows: {place}");
    }
}

/// Makes a pipe with a name.
fn make_pipe(path: &Path) {
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, path, FileType::Fifo, mode, 0).expect("a pipe");
}

/// A secret of a pipe can be read once: by the start, and not by the watch that begins before it.
#[tokio::test]
async fn a_secret_from_a_pipe_is_used_and_a_reload_does_not_lose_it() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let directory = tempfile::tempdir().unwrap();
    let (pipe, file) = (directory.path().join("key"), directory.path().join("weir.yaml"));
    make_pipe(&pipe);
    write_whole(&file, &marked(&format!("\"${{file:{}}}\"", pipe.display()), &upstream));
    // Opening the pipe waits for its reader.
    let write = |content: &'static str| {
        let pipe = pipe.clone();
        std::thread::spawn(move || fs::write(pipe, content))
    };
    write("s3cret\n");
    let weir = Weir::start_at(&file).await;
    assert_eq!(mark_now(&weir, &upstream).await, "s3cret");
    write("");
    let answer = weir.tell("/api/reload").await;
    assert_eq!(answer.status, 422, "{}", answer.text());
    assert!(answer.text().contains("is empty"), "{}", answer.text());
    assert_eq!(mark_now(&weir, &upstream).await, "s3cret");
}

/// A pipe without a writer blocks who opens it, as a mount does that hangs.
#[tokio::test]
async fn a_reload_that_hangs_holds_up_no_end() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let directory = tempfile::tempdir().unwrap();
    let (secret, pipe) = (directory.path().join("key"), directory.path().join("pipe"));
    fs::write(&secret, "one\n").unwrap();
    let mut weir = Weir::start(&marked(&format!("\"${{file:{}}}\"", secret.display()), &upstream)).await;
    make_pipe(&pipe);
    fs::rename(&pipe, &secret).unwrap();
    weir.signal(Signal::HUP);
    assert!(timeout(SECOND, weir.tell("/api/reload")).await.is_err(), "the reload does not hang");
    assert_eq!(mark_now(&weir, &upstream).await, "one");
    weir.sigterm();
    assert!(weir.wait_exit(PATIENCE).await.success());
}
