//! The harness itself: servers under sentinels and a cluster do what their methods say.

use crate::support::{Cluster, Sentinel, lane};

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
async fn a_primary_gives_way_though_nothing_is_wrong() {
    let _lane = lane::shared().await;
    let sentinel = Sentinel::start().await;
    let before = sentinel.primary_port().await;
    sentinel.failover().await;
    sentinel.wait_for_primary_other_than(before).await;
    sentinel.command(&["SET", "key", "value"]).await;
    sentinel.wait_until_whole().await;
    assert_eq!(text(sentinel.command(&["GET", "key"]).await), "value");
}

#[tokio::test]
async fn a_frozen_primary_is_replaced_and_follows_once_it_goes_on() {
    let _lane = lane::shared().await;
    let mut sentinel = Sentinel::start().await;
    let before = sentinel.primary_port().await;
    sentinel.freeze_primary(true).await;
    let primary = sentinel.wait_for_primary_other_than(before).await;
    sentinel.freeze_primary(false).await;
    sentinel.wait_until_whole().await;
    assert_eq!(sentinel.primary_port().await, primary);
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
