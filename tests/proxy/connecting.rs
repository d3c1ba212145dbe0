//! Connections that cannot be opened, and the requests that wait for them.

use std::time::Duration;

use futures_util::future::join_all;
use weir::config::model::Route;

use crate::support::{
    Mood, Up, call, in_time, mirror, moody_upstream, tls_rule, weir,
};

const OK: &str = "HTTP/1.1 200 OK";
const FAILED: &str = "HTTP/1.1 502 Bad Gateway";
const GET: &str = "GET / HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n";

/// Sends ten requests while another one's attempt to connect is under way; returns the status lines of all, that one's first.
async fn ten_behind_one(up: &Up, rule: Route) -> Vec<String> {
    let weir = weir(vec![rule]).await;
    let first = tokio::spawn(call(weir.address, GET));
    in_time(up.accepted()).await;
    let others = join_all((0..10).map(|_| call(weir.address, GET)));
    let answers = in_time(futures_util::future::join(first, others)).await;
    let answers = std::iter::once(answers.0.unwrap()).chain(answers.1);
    answers.map(|answer| answer.lines().next().unwrap_or_default().to_owned()).collect()
}

#[tokio::test]
async fn an_attempt_that_nobody_answers_takes_no_time_from_the_next() {
    // Longer than between the arrivals of two requests.
    let slow = Mood::Slow(Duration::from_millis(300));
    let up = moody_upstream(move |number| if number == 1 { Mood::Silent } else { slow }, mirror).await;
    let mut rule = tls_rule("/", &up);
    rule.upstream.timeouts.connect = Duration::from_secs(2);
    let answers = ten_behind_one(&up.0, rule).await;
    assert!(answers[0].starts_with(FAILED), "{answers:?}");
    assert!(answers[1..].iter().all(|answer| answer.starts_with(OK)), "{answers:?}");
    assert_eq!(up.0.connections(), 2);
}

#[tokio::test]
async fn requests_that_wait_for_a_connection_share_the_failure_to_open_it() {
    let up = moody_upstream(|_| Mood::Silent, mirror).await;
    let mut rule = tls_rule("/", &up);
    rule.upstream.timeouts.connect = Duration::from_secs(1);
    let answers = ten_behind_one(&up.0, rule).await;
    assert!(answers.iter().all(|answer| answer.starts_with(FAILED)), "{answers:?}");
    assert_eq!(up.0.connections(), 2, "the one under way when they arrived, and the next");
}
