//! Three replicas with one Redis: together inside one quota, in order, and cheap for Redis.

use std::time::{Duration, Instant};

use crate::support::load::{at_once, burst, services};
use crate::support::measure::{jain, occupancy, pairs_out_of_order};
use crate::support::{
    Answer, Load, PATIENCE, Pending, RedisServer, Request, SECOND, Upstream, Weir, client, lane, one_limiter,
};

/// Returns the number of script calls that no request caused.
async fn others_than_reserve(fleet: &[Weir]) -> u64 {
    let mut calls = 0.0;
    for weir in fleet {
        let metrics = weir.metrics().await;
        let of = |op| metrics.sum("weir_store_calls_total", &[("op", op)]);
        calls += ["heartbeat", "register_replica", "ping"].into_iter().map(of).sum::<f64>();
    }
    calls as u64
}

async fn all_ok(burst: Vec<(Instant, Pending)>) -> Vec<Answer> {
    let pending = burst.into_iter().map(|(_, pending)| pending).collect();
    let answers = client::answers(pending).await;
    client::assert_all_ok(&answers);
    answers
}

#[tokio::test]
async fn nine_hundred_within_a_second_stay_inside_the_quota_and_waste_none_of_it() {
    lane::alone(async || {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let limiter = "{limits: [100/1s], queue: {timeout: 30s, max_waiting: 1000}}";
        let fleet = Weir::fleet(3, &one_limiter(&redis.store(), limiter, &upstream)).await;
        let burst = burst(&fleet, 900).await;
        let sent: Vec<_> = burst.iter().map(|(sent, _)| *sent).collect();
        all_ok(burst).await;

        assert_eq!(upstream.count(), 900, "each request goes upstream once");
        upstream.assert_within(100, SECOND);

        let used = occupancy(&upstream.instants(), 100, SECOND);
        assert!(used >= 0.97, "{:.1} % of the quota used", used * 100.0);

        let out_of_order = pairs_out_of_order(&services(&upstream, &sent), Duration::from_millis(50));
        assert!(out_of_order < 0.02, "{:.2} % of the pairs out of order", out_of_order * 100.0);

        println!(
            "{:.1} % of the quota used, {:.2} % of the pairs out of order",
            used * 100.0,
            out_of_order * 100.0
        );
    })
    .await;
}

/// However fast requests come: those that arrive while a call is under way share the next one.
#[tokio::test]
async fn requests_that_come_at_once_share_their_script_calls() {
    lane::alone(async || {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let limiter = "{limits: [100/1s], queue: {timeout: 30s, max_waiting: 1000}}";
        let fleet = Weir::fleet(3, &one_limiter(&redis.store(), limiter, &upstream)).await;
        let calls_before = redis.script_calls().await;
        all_ok(at_once(&fleet, 300).await).await;
        assert_eq!(upstream.count(), 300, "each request goes upstream once");
        upstream.assert_within(100, SECOND);
        let calls = redis.script_calls().await - calls_before;
        println!("{calls} script calls");
        assert!(calls < 150, "{calls} script calls for 300 requests, heartbeats included");
    })
    .await;
}

#[tokio::test]
async fn replicas_come_and_go_and_the_quota_holds() {
    lane::calm(async || {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let limiter = "{limits: [50/1s], queue: {timeout: 30s, max_waiting: 1000}}";
        let config = one_limiter(&redis.store(), limiter, &upstream);
        let mut fleet = Weir::fleet(2, &config).await;

        let crashed = fleet.pop().expect("two replicas");
        let lost = crashed.begin(60, "/lost");
        let kept = fleet[0].begin(60, "/kept");
        upstream.wait_for(50, PATIENCE).await;
        // A crash: the slots of the replica are spent or expire, and no other replica may use them again.
        drop(crashed);
        fleet.push(Weir::start(&config).await);
        let more = fleet[1].begin(60, "/more");

        client::assert_all_ok(&client::answers(kept.into_iter().chain(more).collect()).await);
        drop(lost);
        upstream.assert_within(50, SECOND);
    })
    .await;
}

#[tokio::test]
async fn permits_that_one_replica_gives_back_are_used_by_newcomers_of_the_others() {
    lane::calm(async || {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let limiter = "{limits: [20/1s], queue: {timeout: 30s, max_waiting: 1000}}";
        let fleet = Weir::fleet(3, &one_limiter(&redis.store(), limiter, &upstream)).await;

        let burst = burst(&fleet, 120).await;
        upstream.wait_for(20, PATIENCE).await;
        // Every client of the first replica gives up, a third of all waiting clients, and as many come to the second.
        let (leaving, staying): (Vec<_>, Vec<_>) =
            burst.into_iter().enumerate().partition(|(index, _)| index % 3 == 0);
        drop(leaving);
        fleet[0].wait_for_empty_queue().await;
        let left = Instant::now();
        let newcomers = fleet[1].begin(40, "/").into_iter().map(|pending| (Instant::now(), pending));
        all_ok(staying.into_iter().map(|(_, pending)| pending).chain(newcomers).collect()).await;

        upstream.assert_within(20, SECOND);
        // A client that leaves just when its slot is due takes the slot with it, so judging begins with the next
        // window.
        let mut seen = upstream.instants();
        seen.sort_unstable();
        let is_pause = |pair: &[Instant]| pair[1] > left && pair[1] - pair[0] > SECOND / 2;
        let next = seen.windows(2).position(is_pause).expect("a window after they left") + 1;
        assert!(seen.len() - next >= 60, "only {} came after", seen.len() - next);
        let used = occupancy(&seen[next..], 20, SECOND);
        assert!(used >= 0.95, "{:.1} % of the quota used", used * 100.0);
    })
    .await;
}

#[tokio::test]
async fn replicas_spend_from_one_quota() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let fleet = Weir::fleet(2, &one_limiter(&redis.store(), "{limits: [5/1h]}", &upstream)).await;
    let mut passed = 0;
    for index in 0..20 {
        passed += usize::from(fleet[index % 2].get("/").await.status == 200);
    }
    assert_eq!((passed, upstream.count()), (5, 5));
}

#[tokio::test]
async fn a_quiet_limiter_costs_at_most_one_call_a_request() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let weir = Weir::start(&one_limiter(&redis.store(), "{limits: [1000/1s]}", &upstream)).await;
    let before = redis.script_calls().await;
    for _ in 0..50 {
        assert_eq!(weir.get("/").await.status, 200);
    }
    let calls = redis.script_calls().await - before;
    // On a slow machine a heartbeat may fall into the measured time.
    let beats = others_than_reserve(&[weir]).await;
    assert!(calls <= 50 + beats, "{calls} script calls for 50 requests and {beats} heartbeats");
}

#[tokio::test]
async fn replicas_that_saturate_one_limiter_get_equal_shares() {
    lane::alone(async || {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        // A replica that the machine holds up for longer than the guard loses its slots, so the guard is long. The
        // clients fill whole windows: the clients served in one window all come back at once, and are served in the
        // order of their arrival.
        let limiter = "{limits: [50/1s], guard: 200ms, queue: {timeout: 30s, max_waiting: 1000}}";
        let fleet = Weir::fleet(3, &one_limiter(&redis.store(), limiter, &upstream)).await;
        let paths = ["/0", "/1", "/2"];
        let _load: Vec<_> =
            fleet.iter().zip(paths).map(|(weir, path)| Load::start(weir, 50, &Request::get(path))).collect();

        upstream.wait_for(350, PATIENCE).await;
        // The first window goes to the clients that came first; then every client's turn comes round twice.
        let targets = upstream.targets().split_off(50);
        let targets = &targets[..300];
        let shares = paths.map(|path| targets.iter().filter(|target| *target == path).count());
        let index = jain(&shares);
        println!("shares {shares:?}, Jain's index {index:.4}");
        assert!(index >= 0.99, "shares {shares:?}, Jain's index {index:.4}");
        upstream.assert_within(50, SECOND);
    })
    .await;
}
