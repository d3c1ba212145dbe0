//! Tests of the harness: servers under sentinels, a cluster, and a line that is cut.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::{Cluster, Cut, PATIENCE, RedisServer, Sentinel, eventually, lane};

fn text(value: redis::Value) -> String {
    redis::from_redis_value(value).expect("text")
}

fn number(value: redis::Value) -> u64 {
    redis::from_redis_value(value).expect("a number")
}

#[tokio::test]
async fn a_killed_primary_is_replaced_and_comes_back_as_a_replica() {
    let _lane = lane::shared().await;
    let mut sentinel = Sentinel::start().await;
    let store = sentinel.store();
    assert_eq!(store.matches("redis://127.0.0.1:").count(), 3, "{store}");
    assert!(store.ends_with("], master: weir}, timeout: 1s}}"), "{store}");
    sentinel.command(&["SET", "before", "1"]).await;

    let killed = sentinel.kill_primary().await;
    let primary = sentinel.wait_for_primary_other_than(killed).await;
    assert_eq!(sentinel.primary_port().await, primary);
    sentinel.command(&["SET", "after", "2"]).await;

    sentinel.restart_killed().await;
    sentinel.wait_until_whole().await;
    assert_eq!(sentinel.primary_port().await, primary);
    assert_eq!(text(sentinel.command(&["GET", "after"]).await), "2");
}

#[tokio::test]
async fn a_cluster_goes_on_without_a_primary() {
    let _lane = lane::shared().await;
    let mut cluster = Cluster::start().await;
    let owner = cluster.owner_port("key").await;
    let store = cluster.store();
    assert!(store.contains(&format!("\"redis://127.0.0.1:{owner}\"")), "{store}");
    assert_eq!(store.matches("redis://127.0.0.1:").count(), 3, "{store}");

    let killed = cluster.kill_primary_of("key").await;
    assert_eq!(killed, owner);
    let heir = cluster.wait_for_primary_of("key").await;
    assert_ne!(heir, killed);
    cluster.command_at(heir, &["SET", "key", "value"]).await;
    cluster.flush_all().await;
    assert_eq!(number(cluster.command_at(heir, &["DBSIZE"]).await), 0);
}

#[tokio::test]
async fn a_slot_moves_with_its_keys() {
    let _lane = lane::shared().await;
    let cluster = Cluster::start().await;
    let source = cluster.owner_port("{slot}").await;
    for index in 0..100 {
        let key = format!("{{slot}}:{index}");
        cluster.command_at(source, &["SET", &key, &index.to_string()]).await;
    }
    let target = cluster.migrate_slot_of("{slot}").await;
    assert_ne!(target, source);
    assert_eq!(cluster.owner_port("{slot}").await, target);
    assert_eq!(number(cluster.command_at(source, &["DBSIZE"]).await), 0);
    assert_eq!(number(cluster.command_at(target, &["DBSIZE"]).await), 100);
    for index in 0..100 {
        let key = format!("{{slot}}:{index}");
        assert_eq!(text(cluster.command_at(target, &["GET", &key]).await), index.to_string());
    }
}

async fn connect(cut: &Cut) -> TcpStream {
    TcpStream::connect(("127.0.0.1", cut.port())).await.expect("the line accepts")
}

async fn ask(connection: &mut TcpStream, command: &str) {
    connection.write_all(format!("{command}\r\n").as_bytes()).await.expect("the line takes requests");
}

/// Reads the next reply, whose length is known.
async fn reply(connection: &mut TcpStream, length: usize) -> String {
    let mut reply = vec![0; length];
    timeout(PATIENCE, connection.read_exact(&mut reply)).await.expect("in time").expect("the whole reply");
    String::from_utf8(reply).expect("text")
}

/// Reads until the connection ends; returns the bytes, and whether the connection was reset.
async fn rest(connection: &mut TcpStream) -> (String, bool) {
    let mut rest = Vec::new();
    let end = timeout(PATIENCE, connection.read_to_end(&mut rest)).await.expect("in time");
    let was_reset = end.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset);
    (String::from_utf8(rest).expect("text"), was_reset)
}

#[tokio::test]
async fn a_line_delays_each_reply() {
    let _lane = lane::shared().await;
    const DELAY: Duration = Duration::from_millis(200);
    let redis = RedisServer::start().await;
    let cut = Cut::before(redis.port()).await;
    let mut connection = connect(&cut).await;
    ask(&mut connection, "PING").await;
    assert_eq!(reply(&mut connection, 7).await, "+PONG\r\n");

    cut.delay(DELAY);
    for _ in 0..2 {
        let asked = Instant::now();
        ask(&mut connection, "PING").await;
        assert_eq!(reply(&mut connection, 7).await, "+PONG\r\n");
        assert!(asked.elapsed() >= DELAY, "{:?}", asked.elapsed());
    }
    cut.delay(Duration::ZERO);
    eventually("a reply at once", async || {
        let asked = Instant::now();
        ask(&mut connection, "PING").await;
        assert_eq!(reply(&mut connection, 7).await, "+PONG\r\n");
        asked.elapsed() < DELAY
    })
    .await;
}

#[tokio::test]
async fn a_line_cuts_one_reply() {
    let _lane = lane::shared().await;
    let redis = RedisServer::start().await;
    let cut = Cut::before(redis.port()).await;
    for (bytes, passed) in [(3, "+PO"), (0, ""), (10, "+PONG\r\n+PO")] {
        cut.cut_reply_after(bytes);
        let mut connection = connect(&cut).await;
        ask(&mut connection, "PING").await;
        ask(&mut connection, "PING").await;
        assert_eq!(rest(&mut connection).await, (passed.to_owned(), true));
    }
    let mut connection = connect(&cut).await;
    ask(&mut connection, "PING").await;
    assert_eq!(reply(&mut connection, 7).await, "+PONG\r\n");
}

#[tokio::test]
async fn a_line_swallows_replies_and_delivers_them() {
    let _lane = lane::shared().await;
    let redis = RedisServer::start().await;
    let cut = Cut::before(redis.port()).await;
    let mut connection = connect(&cut).await;
    cut.swallow_replies(true);
    for _ in 0..2 {
        ask(&mut connection, "INCR counter").await;
    }
    eventually("requests at the server", async || {
        redis::from_redis_value::<Option<u64>>(redis.command(&["GET", "counter"]).await).unwrap() == Some(2)
    })
    .await;
    let mut byte = [0];
    let early = timeout(Duration::from_millis(200), connection.read(&mut byte)).await;
    assert!(early.is_err(), "{early:?}");
    cut.swallow_replies(false);
    assert_eq!(reply(&mut connection, 8).await, ":1\r\n:2\r\n");
}

#[tokio::test]
async fn a_line_drops_and_refuses_connections() {
    let _lane = lane::shared().await;
    let redis = RedisServer::start().await;
    let cut = Cut::before(redis.port()).await;
    let mut connection = connect(&cut).await;
    ask(&mut connection, "PING").await;
    assert_eq!(reply(&mut connection, 7).await, "+PONG\r\n");
    cut.drop_connections();
    assert_eq!(rest(&mut connection).await, (String::new(), true));

    cut.refuse(true);
    assert_eq!(rest(&mut connect(&cut).await).await.0, "");
    cut.refuse(false);
    let mut connection = connect(&cut).await;
    ask(&mut connection, "PING").await;
    assert_eq!(reply(&mut connection, 7).await, "+PONG\r\n");

    drop(cut);
    assert_eq!(rest(&mut connection).await.0, "");
}
