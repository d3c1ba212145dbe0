//! Answers as they are printed, and how long they are waited for.

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};
use tokio::time::Instant;

use super::*;

#[test]
fn a_table_has_a_row_for_each_limit() {
    let answer = json!({"store_up": true, "limiters": [{
        "name": "github", "waiting": 3, "granted": 40, "refused": 2, "paused_until": null,
        "limits": [{"limit": "900/1m", "available": 860}, {"limit": "5000/1h", "available": null}],
    }]});
    let expected = "\
LIMITER  LIMIT    AVAILABLE  WAITING  GRANTED  REFUSED  PAUSED FOR
github   900/1m   860        3        40       2        -
         5000/1h  -
";
    assert_eq!(aligned(&limiters_table(&answer)), expected);
    assert_eq!(aligned(&limiters_table(&answer["limiters"][0])), expected);
}

#[test]
fn a_store_that_is_away_is_told() {
    assert!(store_line(&json!({"store_up": false})).is_some_and(|line| line.contains("is away")));
    assert_eq!(store_line(&json!({"store_up": true})), None);
    // The answer about one limiter does not tell.
    assert_eq!(store_line(&json!({"name": "a"})), None);
}

#[test]
fn a_partition_is_shown_by_the_parts_of_its_key() {
    let answer = json!({
        "name": "api", "waiting": 0, "granted": 4, "refused": 0, "paused_until": null, "overrides": 1, "override": null,
        "partition": {"header:x-t": "acme", "path:1": "v"},
        "limits": [{"limit": "9/1s", "available": 9}, {"limit": "20/1m", "available": 20}],
    });
    let expected = "\
LIMITER  LIMIT  AVAILABLE  WAITING  GRANTED  REFUSED  PAUSED FOR  PARTITION                  OVERRIDE
api      9/1s   9          0        4        0        -           header:x-t=acme, path:1=v  -
         20/1m  20
";
    assert_eq!(aligned(&limiters_table(&answer)), expected);
}

#[test]
fn a_pause_is_shown_with_its_reason() {
    let until = crate::clock::millis(unix_now()) + 28_499;
    let paused = |paused: Value| paused_for(&json!({"paused_until": until, "paused": paused}));
    assert!(paused(json!({"reason": "upstream", "status": 429})).ends_with("s (429)"));
    let by_hand = paused(json!({"reason": "by_hand"}));
    assert!(by_hand.starts_with("28.") && by_hand.ends_with("s (by hand)"), "{by_hand}");
    let local = paused(json!({"reason": "by_hand", "local": true}));
    assert!(local.ends_with("s (by hand, this replica alone)"), "{local}");
    assert!(paused(json!({"reason": null, "local": true})).ends_with("s (unknown why, this replica alone)"));
    assert_eq!(paused_for(&json!({"paused_until": null, "paused": null})), "-");
}

#[test]
fn control_characters_are_removed_from_cells() {
    let replica =
        json!({"id": "a\u{1b}[2J", "host": "b\r\u{9b}31m\n", "version": null, "last_seen_ms": 1250});
    let rows = replicas_table(&json!({"replicas": [replica]}));
    assert_eq!(rows[1], ["a[2J", "b31m", "-", "-", "1.2s ago"]);
}

#[test]
fn a_partition_is_named_in_the_query() {
    let limiter = |partition: &[&str]| LimiterArguments {
        name: "a.b".to_owned(),
        partition: partition.iter().map(|value| (*value).to_owned()).collect(),
    };
    assert_eq!(path_of(&limiter(&[]), ""), "/api/limiters/a.b");
    assert_eq!(
        path_of(&limiter(&["x y", "&"]), "reset"),
        "/api/limiters/a.b/reset?partition=x+y&partition=%26"
    );
}

#[tokio::test]
async fn the_answer_to_a_reload_is_waited_for_as_long_as_weir_waits_for_the_files() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let admin = Url::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let asked = tokio::spawn(reload(Remote { admin, json: false }));
    let (mut stream, _) = listener.accept().await.unwrap();
    // The wait has begun when the request is there.
    assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
    tokio::time::pause();
    tokio::time::advance(admin::RELOAD_TIME_MAX).await;
    tokio::time::resume();
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 17\r\n\r\n{\"changed\": true}";
    stream.write_all(answer).await.unwrap();
    assert!(asked.await.unwrap().is_ok());
}

/// As behind a firewall, or at a machine that is gone.
#[tokio::test(start_paused = true)]
async fn an_address_that_does_not_answer_is_told_before_the_answer_is_too_late() {
    let full = TcpSocket::new_v4().unwrap();
    full.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let full = full.listen(1).unwrap();
    let address = full.local_addr().unwrap();
    // Nobody accepts, and the kernel drops what comes beyond its queue.
    let mut queued = Vec::new();
    while let Ok(stream) = std::net::TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
        queued.push(stream);
    }
    let (admin, begun) = (Url::parse(&format!("http://{address}")).unwrap(), Instant::now());
    let error = reload(Remote { admin, json: false }).await.unwrap_err().to_string();
    assert!(error.contains("no connection within 5 s; is weir running there?"), "{error}");
    assert!(begun.elapsed() < ANSWER_TIME_MAX, "{:?}", begun.elapsed());
}
