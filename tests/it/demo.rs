//! `weir demo` keeps within the quota, also on a machine where its ports are taken, and ends on request.

use std::net::TcpListener;

use crate::support::lane;
use crate::support::weir::run;

#[tokio::test]
async fn the_demo_keeps_within_the_quota_and_ends() {
    lane::calm(async || {
        // Takes the demo's usual ports, where they are free.
        let _taken = ["127.0.0.1:8080", "127.0.0.1:9090"].map(|address| TcpListener::bind(address).ok());
        let demo = run(&["demo", "--seconds", "2"]).await;
        demo.assert_code(0);
        assert!(!demo.stdout.contains('\x1b'), "no colours for a pipe: {}", demo.stdout);
        for hint in ["curl -i http://127.0.0.1:", "/api/limiters", "/metrics", " 0 of them beyond its quota"]
        {
            assert!(demo.stdout.contains(hint), "{hint:?} in: {}", demo.stdout);
        }
        assert_eq!(demo.stderr, "", "weir has nothing to complain about");
        assert!(demo.stdout.contains("The dashboard: http://127.0.0.1:"), "{}", demo.stdout);
        let told = demo.stdout.lines().find_map(|line| line.trim().split_once(" forwarded, "));
        let (forwarded, rate) = told.unwrap_or_else(|| panic!("a summary: {}", demo.stdout));
        let rate: f64 = rate.split(' ').next().and_then(|rate| rate.parse().ok()).expect("a rate");
        assert!((7.0..=12.0).contains(&rate), "{forwarded} forwarded at 10 a second read as {rate}");

        // The columns: time, sent, forwarded, per second, waiting, refused, violations.
        let rows: Vec<Vec<u64>> = demo.stdout.lines().filter_map(row).collect();
        assert_eq!(rows.len(), 2, "one row a second: {}", demo.stdout);
        let [_, sent, forwarded, _, waiting, refused, violations] = rows[1][..] else {
            panic!("seven columns: {:?}", rows[1])
        };
        assert!((45..=55).contains(&sent), "25 a second: {sent}");
        assert!((15..=30).contains(&forwarded), "10 a second: {forwarded}");
        assert_eq!((sent, violations), (forwarded + waiting + refused, 0));
    })
    .await;
}

#[tokio::test]
async fn a_demo_without_a_length_is_refused() {
    let _lane = lane::shared().await;
    let demo = run(&["demo", "--seconds", "0"]).await;
    demo.assert_code(2);
    assert!(demo.stderr.contains("--seconds"), "{}", demo.stderr);
}

/// Parses the numbers of a row of the table.
fn row(line: &str) -> Option<Vec<u64>> {
    let (time, columns) = line.trim().split_once("s ")?;
    let numbers = columns.split_whitespace().map(|column| column.parse().ok());
    std::iter::once(time.parse().ok()).chain(numbers).collect()
}
