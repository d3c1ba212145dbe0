//! Several limiters, costs, partitions and scopes: which limits a request needs, and which requests hold up others.

use std::time::{Duration, Instant};

use crate::support::measure::{fullest_window, median, occupancy};
use crate::support::{
    Answer, PATIENCE, Pending, RedisServer, Request, SECOND, Upstream, Weir, client, configuration,
    eventually, lane, one_limiter,
};

/// Returns a tenant's request.
fn of_tenant(path: &str, tenant: &str) -> Request {
    Request::get(path).header("x-tenant", tenant)
}

#[tokio::test]
async fn several_limiters_are_taken_together_or_not_at_all() {
    let _lane = lane::shared().await;
    let redis = RedisServer::start().await;
    for store in ["memory".to_owned(), redis.store()] {
        let upstream = Upstream::start();
        let limiters = [("wide", "{limits: [5/1h, 100/1d]}"), ("narrow", "{limits: [2/1h]}")];
        let routes = [
            ("path: /both", "limiters: [wide, narrow]"),
            ("path: /turned", "limiters: [narrow, wide]"),
            ("path: /wide", "limiters: [wide]"),
        ];
        let weir = Weir::start(&configuration(&store, &limiters, &routes, &upstream)).await;
        let mut client = weir.connect().await;
        assert_eq!(client.statuses(&Request::get("/both"), 3).await, [200, 200, 429], "in {store}");
        for path in ["/both", "/turned", "/both", "/turned"] {
            let refused = client.ask(&Request::get(path)).await;
            assert_eq!((refused.status, refused.weir_error()), (429, Some("rate_limited")), "in {store}");
            let problem = refused.json();
            assert_eq!(problem["limiter"], "narrow", "the refusing limiter: {problem}");
            assert_eq!(problem["violated-policies"], serde_json::json!(["narrow:2/1h"]));
        }
        // The refusals have taken nothing from the other limiter.
        assert_eq!(weir.available("wide").await, [3, 98], "in {store}");
        assert_eq!(weir.available("narrow").await, [0], "in {store}");
        let statuses = client.statuses(&Request::get("/wide"), 4).await;
        assert_eq!(statuses, [200, 200, 200, 429], "in {store}");
    }
}

/// The paused limiter keeps places behind its pause. The other one has nothing to move, so the void permits must make room there.
#[tokio::test]
async fn a_pause_of_one_limiter_leaves_no_void_permits_in_the_other() {
    const WAITING: usize = 150;
    lane::calm(async || {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let limiter = "{limits: [40/1s], queue: {timeout: 60s, max_waiting: 400}}";
        let routes = [("path: /both", "limiters: [paused, other]")];
        let limiters = [("paused", limiter), ("other", limiter)];
        let fleet = Weir::fleet(2, &configuration(&redis.store(), &limiters, &routes, &upstream)).await;
        let mut pending = fleet[0].begin(WAITING, "/both");
        pending.extend(fleet[1].begin(WAITING, "/both"));
        upstream.wait_for(40, PATIENCE).await;
        let answer = fleet[0].tell_with("/api/limiters/paused/pause", "{\"for\": \"3s\"}").await;
        let paused = Instant::now();
        assert_eq!(answer.status, 200, "{}", answer.text());
        client::assert_all_ok(&client::answers(pending).await);
        let sent = upstream.instants();
        let resumed = sent.iter().find(|at| **at > paused + SECOND).expect("they were sent");
        println!(
            "sent again {:?} behind the pause's begin, the last {:?}",
            *resumed - paused,
            sent[sent.len() - 1] - paused
        );
        assert!(*resumed < paused + SECOND * 4, "{:?}", *resumed - paused);
        upstream.assert_within(40, SECOND);
    })
    .await;
}

#[tokio::test]
async fn every_limiter_is_charged_at_the_slot_of_the_latest() {
    lane::calm(async || {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let queue = "queue: {timeout: 30s, max_waiting: 100}";
        let limiters = [
            ("slow", format!("{{limits: [5/1s], {queue}}}")),
            ("quick", format!("{{limits: [10/1s], {queue}}}")),
        ];
        let limiters = [(limiters[0].0, limiters[0].1.as_str()), (limiters[1].0, limiters[1].1.as_str())];
        let routes = [("path: /both", "limiters: [slow, quick]"), ("path: /quick", "limiters: [quick]")];
        let weir = Weir::start(&configuration(&redis.store(), &limiters, &routes, &upstream)).await;
        let mut pending = weir.begin(15, "/both");
        weir.wait_for_waiting(10).await;
        // The slow limiter leaves room in the quick one: five permits in each second.
        pending.extend(weir.begin(15, "/quick"));
        client::assert_all_ok(&client::answers(pending).await);
        upstream.assert_within(10, SECOND);
        let both: Vec<_> =
            upstream.seen().into_iter().filter(|seen| seen.target == "/both").map(|seen| seen.at).collect();
        assert!(fullest_window(&both, SECOND * 95 / 100) <= 5);
        let used = occupancy(&upstream.instants(), 10, SECOND);
        println!("15 of both and 15 of the quick one, {:.1} % of the quota used", used * 100.0);
        assert!(used >= 0.9, "{:.1} % of the quota used", used * 100.0);
    })
    .await;
}

#[tokio::test]
async fn a_costly_request_among_cheap_ones_is_served_in_its_turn() {
    lane::calm(async || {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let limiter = ("api", "{limits: [10/1s], queue: {timeout: 30s, max_waiting: 100}}");
        let routes = [("path: /five", "limiter: api, cost: 5"), ("path: /", "limiter: api")];
        let weir = Weir::start(&configuration(&redis.store(), &[limiter], &routes, &upstream)).await;
        let mut pending = weir.begin(30, "/before");
        weir.wait_for_waiting(20).await;
        pending.extend(weir.begin(1, "/five"));
        weir.wait_for_waiting(21).await;
        pending.extend(weir.begin(15, "/after"));
        weir.wait_for_waiting(36).await;
        client::assert_all_ok(&client::answers(pending).await);

        let targets = upstream.targets();
        let place = targets.iter().position(|target| target == "/five").expect("it was served");
        let instants = upstream.instants();
        let waited = instants[place].duration_since(instants[0]);
        println!("the costly one came as number {} of {}, after {waited:?}", place + 1, targets.len());
        // The requests before the costly one fill three windows; five cheap ones fit beside it in the fourth.
        assert!((30..=35).contains(&place), "{targets:?}");
        let behind = targets.iter().rposition(|target| target == "/before").expect("they were served");
        assert!(behind < place, "all earlier requests: {targets:?}");
        assert!(waited < Duration::from_millis(3400), "{waited:?}");
        let costs = targets.iter().map(|target| if target == "/five" { 5 } else { 1 });
        let permits: Vec<_> =
            instants.iter().zip(costs).flat_map(|(at, cost)| std::iter::repeat_n(*at, cost)).collect();
        assert!(fullest_window(&permits, SECOND - upstream.lag()) <= 10);
    })
    .await;
}

#[tokio::test]
async fn a_tenant_far_behind_holds_up_nobody() {
    lane::calm(async || {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let queue = "queue: {timeout: 30s, max_waiting: 1000}";
        let overall = format!("{{limits: [100/1s], group: shared, {queue}}}");
        let tenants = format!("{{limits: [1/1s], key: [header:x-tenant], group: shared, {queue}}}");
        let limiters = [("overall", overall.as_str()), ("tenants", tenants.as_str())];
        let routes = [("path: /own", "limiters: [overall, tenants]"), ("path: /overall", "limiter: overall")];
        let weir = Weir::start(&configuration(&redis.store(), &limiters, &routes, &upstream)).await;

        // In each of four seconds X sends 5 and is limited to 1, Y sends 20 and needs only the overall limiter, and
        // twenty other tenants send one each, inside their own limits.
        let (mut x, mut y, mut others) = (Vec::new(), Vec::new(), Vec::new());
        let mut tick = tokio::time::interval(SECOND / 20);
        for round in 0..80 {
            tick.tick().await;
            if round % 4 == 0 {
                x.push(Pending::send(&weir.url("/own"), of_tenant("/own?x", "x")));
            }
            y.push(Pending::send(&weir.url("/overall"), of_tenant("/overall", "y")));
            let tenant = format!("tenant-{}", round % 40);
            others.push(Pending::send(&weir.url("/own"), of_tenant("/own?other", &tenant)));
        }
        let waits = |answers: Vec<Answer>| -> Vec<Duration> {
            answers
                .iter()
                .map(|answer| {
                    assert_eq!(answer.status, 200, "{}", answer.text());
                    answer.done - answer.sent
                })
                .collect()
        };
        let y = waits(client::answers(y).await);
        let others = waits(client::answers(others).await);
        let of_x = upstream.seen().iter().filter(|seen| seen.target == "/own?x").count();
        println!(
            "median wait of Y {:?} (longest {:?}), of the others {:?}; X was served {of_x} times in 4 s",
            median(&y),
            y.iter().max(),
            median(&others)
        );
        assert!(median(&y) < Duration::from_millis(20), "median wait of Y {:?}", median(&y));
        assert!(
            median(&others) < Duration::from_millis(20),
            "median wait of the others {:?}",
            median(&others)
        );
        assert!((3..=6).contains(&of_x), "X was served {of_x} times");
        drop(x);
        upstream.assert_within(100, SECOND);
    })
    .await;
}

#[tokio::test]
async fn partitions_are_independent_and_their_names_stay_in_weir() {
    let _lane = lane::shared().await;
    let redis = RedisServer::start().await;
    for store in ["memory".to_owned(), redis.store()] {
        let upstream = Upstream::start();
        let limiter = "{limits: [2/1h], key: [header:x-tenant]}";
        let weir = Weir::start(&one_limiter(&store, limiter, &upstream)).await;
        let mut client = weir.connect().await;
        for tenant in ["acme-secret", "globex", "Acme-secret"] {
            let statuses = client.statuses(&of_tenant("/", tenant), 3).await;
            assert_eq!(statuses, [200, 200, 429], "{tenant} in {store}");
        }
        // A request without the header and one with an empty header have different partitions.
        assert_eq!(client.statuses(&Request::get("/"), 3).await, [200, 200, 429], "in {store}");
        assert_eq!(client.statuses(&of_tenant("/", ""), 3).await, [200, 200, 429], "in {store}");
        assert_eq!(weir.available_of("api", "globex").await, [0], "in {store}");
        assert_eq!(weir.available_of("api", "initech").await, [2], "in {store}");
        assert_eq!(client.ask(&of_tenant("/", "initech")).await.status, 200, "looking takes nothing");

        let everywhere =
            format!("{:?} {} {}", redis.keys().await, weir.ask("/metrics").await.text(), weir.log());
        for name in ["acme-secret", "globex"] {
            assert!(!everywhere.contains(name), "{name} shows: {everywhere}");
        }
    }
}

#[tokio::test]
async fn a_new_partition_beyond_the_largest_number_is_refused() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let limiter = "{limits: [1/1h], key: [header:x-tenant], max_partitions: 3}";
    let weir = Weir::start(&one_limiter("memory", limiter, &upstream)).await;
    let mut client = weir.connect().await;
    for tenant in ["a", "b", "c"] {
        assert_eq!(client.ask(&of_tenant("/", tenant)).await.status, 200, "{tenant}");
    }
    let refused = client.ask(&of_tenant("/", "d")).await;
    assert_eq!((refused.status, refused.weir_error()), (429, Some("queue_full")));
    // The existing partitions are not disturbed.
    assert_eq!(client.ask(&of_tenant("/", "a")).await.weir_error(), Some("rate_limited"));
}

#[tokio::test]
async fn each_replica_has_the_whole_of_a_per_replica_limit() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let config = one_limiter(&redis.store(), "{limits: [3/1h], scope: per_replica}", &upstream);
    let fleet = Weir::fleet(2, &config).await;
    for weir in &fleet {
        let statuses = weir.connect().await.statuses(&Request::get("/"), 4).await;
        assert_eq!(statuses, [200, 200, 200, 429]);
        assert_eq!(weir.available("api").await, [0]);
    }
    assert_eq!(upstream.count(), 6);
    let keys = redis.keys().await;
    assert!(!keys.iter().any(|key| key.contains("{api}")), "its state is in memory: {keys:?}");
}

#[tokio::test]
async fn a_shadow_limiter_counts_and_never_refuses() {
    let _lane = lane::shared().await;
    let redis = RedisServer::start().await;
    for store in ["memory".to_owned(), redis.store()] {
        let upstream = Upstream::start();
        let shadow = "{limits: [2/1h], mode: shadow, queue: {timeout: 1s, max_waiting: 10}}";
        let limiter = [("shadow", shadow)];
        let routes = [("path: /", "limiter: shadow")];
        let weir = Weir::start(&configuration(&store, &limiter, &routes, &upstream)).await;
        let mut client = weir.connect().await;
        for _ in 0..6 {
            let answer = client.ask(&Request::get("/")).await;
            assert_eq!((answer.status, answer.header("weir-wait-ms")), (200, None), "in {store}");
        }
        let counted = async |result: &str| {
            let labels = [("limiter", "shadow"), ("result", result)];
            weir.metrics().await.sum("weir_permits_total", &labels)
        };
        let is_counted = async || {
            (counted("granted").await, counted("shadow_refused").await, counted("refused").await)
                == (2.0, 4.0, 0.0)
        };
        eventually("2 granted and 4 refused in shadow", is_counted).await;
        assert_eq!(weir.available("shadow").await, [0], "charged as if, in {store}");
    }
}

#[tokio::test]
async fn a_shadow_limiter_is_left_out_of_all_or_nothing() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let limiters = [("shadow", "{limits: [2/1h], mode: shadow}"), ("enforced", "{limits: [4/1h]}")];
    let routes = [("path: /", "limiters: [shadow, enforced]")];
    let weir = Weir::start(&configuration(&redis.store(), &limiters, &routes, &upstream)).await;
    let mut client = weir.connect().await;
    assert_eq!(client.statuses(&Request::get("/"), 4).await, [200; 4], "the shadow's limit holds nobody up");
    let refused = client.ask(&Request::get("/")).await;
    assert_eq!(refused.json()["limiter"], "enforced");
    assert_eq!(weir.available("enforced").await, [0]);
}
