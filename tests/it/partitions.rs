//! Many partitions, each touched once: small in Redis, and forgotten by Redis and by weir.

use std::time::{Duration, Instant};

use tokio_util::task::AbortOnDropHandle;

use crate::support::raw::exchange;
use crate::support::weir::run;
use crate::support::{
    Connection, RedisServer, Request, SECOND, Upstream, Weir, configuration, eventually_within, lane,
    poll_for_within,
};

/// The number of connections that touch partitions at once.
const CONNECTIONS: usize = 64;

/// The largest acceptable size in Redis of a partition that holds one permit.
const BYTES_EACH_MAX: u64 = 1024;

/// The delay of Redis, which looks for expired keys ten times a second and takes a few rounds for many.
const SLACK: Duration = Duration::from_secs(3);

/// Sends one request for each of `count` partitions.
async fn touch(weir: &Weir, path: &str, count: usize) {
    let one = |first: usize| {
        let (host, path) = (weir.host(), path.to_owned());
        AbortOnDropHandle::new(tokio::spawn(async move {
            let mut connection = Connection::open(&host).await.expect("weir accepts");
            for index in (first..count).step_by(CONNECTIONS) {
                let request = Request::get(&path).header("x-tenant", &format!("tenant-{index}"));
                let answer = connection.ask(&request).await;
                assert_eq!(answer.status, 200, "{}", answer.text());
            }
        }))
    };
    let clients: Vec<_> = (0..CONNECTIONS).map(one).collect();
    for client in clients {
        client.await.expect("all are served");
    }
}

/// Waits until Redis holds no key; returns the time that took.
async fn until_forgotten(redis: &RedisServer, deadline: Duration) -> Duration {
    let begun = Instant::now();
    eventually_within("Redis has forgotten all partitions", deadline, async || redis.size().await == 0).await;
    begun.elapsed()
}

/// Touches `count` partitions once. `per` is the window of each partition: long enough that all of them live at once.
async fn partitions_touched_once(count: usize, per: Duration) {
    lane::alone(async || {
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let limiter = |per: Duration| {
        let limit = format!("{{rate: 5, per: {}s}}", per.as_secs());
        format!("{{limits: [{limit}], key: [header:x-tenant], max_partitions: 200000}}")
    };
    let limiters = [("warm", limiter(SECOND)), ("api", limiter(per))];
    let limiters = limiters.each_ref().map(|(name, limiter)| (*name, limiter.as_str()));
    let routes = [("path: /warm", "limiter: warm"), ("path: /", "limiter: api")];
    let weir = Weir::start(&configuration(&redis.store(), &limiters, &routes, &upstream)).await;

    // Connections, buffers and the allocator's arenas have their size after this.
    touch(&weir, "/warm", 3000).await;
    until_forgotten(&redis, SECOND + SLACK).await;
    let (rss, used) = (weir.rss_bytes(), redis.info("memory", "used_memory").await);

    let begun = Instant::now();
    touch(&weir, "/", count).await;
    let (touched, peak) = (begun.elapsed(), weir.rss_bytes());
    let (keys, full) = (redis.size().await, redis.info("memory", "used_memory").await);
    assert!(touched < per, "touching {count} took {touched:?}, so the first have expired: not measured");
    let each = full.saturating_sub(used) / count as u64;
    let forgotten = until_forgotten(&redis, per + SLACK).await;

    println!(
        "{count} partitions touched in {touched:?}: {keys} keys, {each} bytes each in Redis, gone {forgotten:?} after \
         the last; weir {} KiB before, {} KiB then",
        rss / 1024,
        peak / 1024
    );
    assert!(each <= BYTES_EACH_MAX, "{each} bytes for each partition");
    let settled = poll_for_within("weir's memory to return to within 20 %", Duration::from_secs(15), async || {
        Some(weir.rss_bytes()).filter(|now| *now <= rss + rss / 5)
    })
    .await;
    println!("weir {} KiB {:?} after the last", settled / 1024, begun.elapsed() - touched);
    assert_eq!(upstream.count(), 3000 + count);
    }).await;
}

#[tokio::test]
async fn ten_thousand_partitions_are_small_and_forgotten() {
    partitions_touched_once(10_000, Duration::from_secs(6)).await;
}

#[tokio::test]
#[ignore = "long: a hundred thousand partitions"]
async fn a_hundred_thousand_partitions_are_small_and_forgotten() {
    partitions_touched_once(100_000, Duration::from_secs(60)).await;
}

/// A partition that is named by hand is that of requests, or is refused.
#[tokio::test]
async fn a_partition_is_named_by_hand_as_in_requests() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let limiters = [
        ("host", "{limits: [99/1s], key: [host]}"),
        ("address", "{limits: [99/1s], key: [client_ip]}"),
        ("two", "{limits: [99/1s], key: ['header:x-t', 'path:1']}"),
    ];
    let routes = [
        ("path: /host", "limiter: host"),
        ("path: /address", "limiter: address"),
        ("path: /two", "limiter: two"),
    ];
    let weir = Weir::start(&configuration("memory", &limiters, &routes, &upstream)).await;
    let admin = weir.admin("");
    let act = async |words: &[&str]| run(&[words, &["--admin", &admin]].concat()).await;
    let status = async |path: &str| {
        let head =
            format!("GET {path} HTTP/1.1\r\nHost: api.example.com\r\nX-T: acme\r\nConnection: close\r\n\r\n");
        exchange(&weir.host(), head.as_bytes()).await[9..12].to_owned()
    };
    for (limiter, values, fault) in [
        ("two", &["acme"][..], "this key has 2 parts: header:x-t, path:1"),
        ("host", &["a", "b"], "this key has 1 part: host"),
        ("address", &["not-an-ip"], "expected an address"),
    ] {
        let values: Vec<&str> = values.iter().flat_map(|value| ["--partition", value]).collect();
        for action in [
            &["pause", limiter, "--for", "30s"][..],
            &["resume", limiter],
            &["reset", limiter],
            &["limiters", limiter],
        ] {
            let refused = act(&[action, &values].concat()).await;
            refused.assert_code(1);
            assert!(refused.stderr.contains(fault), "{action:?}: {}", refused.stderr);
        }
    }
    for (limiter, values, shown, path) in [
        ("host", &["API.Example.com"][..], "host=api.example.com", "/host"),
        ("address", &["::ffff:127.0.0.1"], "client_ip=127.0.0.1", "/address"),
        ("two", &["acme", "v"], "header:x-t=acme, path:1=v", "/two/v"),
    ] {
        assert_eq!(status(path).await, "200");
        let values: Vec<&str> = values.iter().flat_map(|value| ["--partition", value]).collect();
        let paused = act(&[&["pause", limiter, "--for", "5m"][..], &values].concat()).await;
        paused.assert_code(0);
        assert!(paused.stdout.contains(shown), "{}", paused.stdout);
        assert_eq!(status(path).await, "429", "{limiter}");
        act(&[&["resume", limiter][..], &values].concat()).await.assert_code(0);
        eventually_within("it is resumed", SECOND * 5, async || status(path).await == "200").await;
    }
    // The words are those of the command line, and no weir is asked.
    let refused = run(&["pause", "host", "--for", "2d", "--admin", "http://127.0.0.1:1"]).await;
    refused.assert_code(2);
    assert!(refused.stderr.contains("expected a duration from 1ms to 1d"), "{}", refused.stderr);
}
