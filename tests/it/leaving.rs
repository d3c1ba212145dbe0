//! Clients that give up: the remaining ones are all served, and the quota is used to the last permit.

use std::time::Instant;

use crate::support::load::burst;
use crate::support::measure::occupancy;
use crate::support::{PATIENCE, Pending, RedisServer, SECOND, Upstream, Weir, client, lane, one_limiter};

/// The number of clients that wait on three replicas when a third of them leaves.
const WAITING: usize = 450;

/// The number of requests that have been served when the clients leave.
const SERVED: usize = 200;

/// Starts clients on three replicas at 100/s; after a second of waiting, the clients whose number `leaves` accepts give
/// up. Client `n` is on replica `n % 3`.
async fn a_third_leaves(leaves: impl Fn(usize) -> bool) {
    lane::alone(async || {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let limiter = "{limits: [100/1s], queue: {timeout: 30s, max_waiting: 1000}}";
        let fleet = Weir::fleet(3, &one_limiter(&redis.store(), limiter, &upstream)).await;

        // Two windows have been served when the remaining clients have waited for a second.
        let crowd: Vec<(usize, Pending)> = burst(&fleet, WAITING + SERVED)
            .await
            .into_iter()
            .map(|(_, pending)| pending)
            .enumerate()
            .collect();
        upstream.wait_for(SERVED, PATIENCE).await;
        let (leaving, staying): (Vec<_>, Vec<_>) = crowd.into_iter().partition(|(index, _)| leaves(*index));
        let left_at = Instant::now();
        drop(leaving);

        client::assert_all_ok(
            &client::answers(staying.into_iter().map(|(_, pending)| pending).collect()).await,
        );
        let instants = upstream.instants();
        let last = *instants.iter().max().expect("all have been served");
        let used = occupancy(&instants, 100, SECOND);
        println!(
            "{} of {WAITING} left, {} were served, the last {:?} after that; {:.1} % of the quota used, \
         fullest second {}",
            WAITING + SERVED - instants.len(),
            instants.len(),
            last.duration_since(left_at),
            used * 100.0,
            upstream.fullest_window(SECOND)
        );
        upstream.assert_within(100, SECOND);
        assert!(used >= 0.95, "{:.1} % of the quota used", used * 100.0);
    })
    .await;
}

#[tokio::test]
async fn the_rest_is_served_when_a_third_leaves_on_all_replicas_alike() {
    // By groups of three neighbours, one on each replica.
    a_third_leaves(|index| index / 3 % 3 == 0).await;
}

#[tokio::test]
async fn the_rest_is_served_when_a_third_leaves_on_one_replica() {
    a_third_leaves(|index| index % 3 == 0).await;
}
