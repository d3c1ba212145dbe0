//! The harness itself: servers under sentinels do what their methods say.

use crate::support::{Sentinel, lane};

fn text(value: redis::Value) -> String {
    redis::from_redis_value(value).expect("text")
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
