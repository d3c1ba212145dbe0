//! Limiters of one route at which a request costs differently: all or nothing, in order, over the fleet.

use std::time::Duration;

use crate::support::{RedisServer, Reply, Request, Upstream, Weir, client, eventually, lane};

/// Returns a configuration in which a request is one of `requests`, and takes as many of `tokens` as its header says.
fn config(store: &str, requests: &str, tokens: &str, more: &str, url: &str) -> String {
    format!(
        "store: {store}\nlimiters:\n  requests: {{limits: [{requests}], group: api{more}}}\n  tokens: {{limits: [{tokens}], group: api{more}}}\n\
         routes:\n  - name: all\n    match: {{}}\n    upstream: {url}\n    limiters:\n      - requests\n      \
         - name: tokens\n        cost: {{header: x-tokens, default: 10, max: 1000, settle: {{header: x-used}}}}\n"
    )
}

fn costing(tokens: u32) -> Request {
    Request::get("/").header("x-tokens", &tokens.to_string())
}

#[tokio::test]
async fn each_limiter_takes_its_own_cost_or_none_does() {
    let _lane = lane::shared().await;
    let (upstream, redis) = (Upstream::start(), RedisServer::start().await);
    for store in ["memory".to_owned(), redis.store()] {
        let weir = Weir::start(&config(&store, "10/1h", "1000/1h", "", &upstream.url())).await;
        let left = async |requests: u64, tokens: u64| {
            eventually(&format!("{requests} and {tokens} are left of {store}"), async || {
                weir.available("requests").await == [requests] && weir.available("tokens").await == [tokens]
            })
            .await;
        };
        let send = async |tokens| client::send(&weir.url("/"), costing(tokens)).await.unwrap();
        assert_eq!(send(900).await.status, 200);
        left(9, 100).await;
        // Refused by one, so nothing of the other is taken.
        let refused = send(101).await;
        assert_eq!((refused.status, refused.json()["limiter"].as_str()), (429, Some("tokens")));
        assert!(refused.retry_after() > Duration::from_secs(3000), "{:?}", refused.retry_after());
        left(9, 100).await;
        assert_eq!(send(1001).await.status, 400, "more than may be named");
        // The response's number counts for that limiter alone.
        upstream.reply("/", Reply::status(200).header("x-used", "30"));
        assert_eq!(send(100).await.status, 200);
        left(8, 70).await;
        upstream.reply("/", Reply::status(200).header("x-used", "60"));
        assert_eq!(send(50).await.status, 200);
        left(7, 10).await;
        upstream.reply("/", Reply::status(200));
        let metrics = weir.metrics().await;
        let granted =
            |limiter| metrics.sum("weir_permits_total", &[("limiter", limiter), ("result", "granted")]);
        assert_eq!((granted("requests"), granted("tokens")), (3.0, 1050.0));
        let explained = weir.ask("/api/explain?url=/").await.json();
        let cost = |place: usize| explained["limiters"][place]["cost"].as_u64();
        assert_eq!((cost(0), cost(1)), (Some(1), Some(10)));
    }
}

#[tokio::test]
async fn the_next_request_gets_its_slot_whatever_its_cost() {
    lane::calm(async || {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let queue = ", queue: {timeout: 60s, max_waiting: 1000}";
        let fleet =
            Weir::fleet(3, &config(&redis.store(), "1000/1s", "1000/1s", queue, &upstream.url())).await;
        // Small ones and large ones by turns: four windows of them.
        let costs = [400, 100, 10, 250, 40];
        let mut pending = Vec::new();
        for number in 0..25 {
            let request = costing(costs[number % costs.len()]).header("x-order", &number.to_string());
            pending.push(client::Pending::send(&fleet[number % fleet.len()].url("/"), request));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        client::assert_all_ok(&client::answers(pending).await);
        let seen = upstream.seen();
        let order: Vec<i64> =
            seen.iter().map(|seen| seen.headers["x-order"].to_str().unwrap().parse().unwrap()).collect();
        for (place, number) in order.iter().enumerate() {
            assert!((*number - place as i64).abs() <= 10, "{number} is at {place} of {order:?}");
        }
        let spent = |from: usize| -> u64 {
            let first = seen[from].at;
            let within = seen[from..].iter().take_while(|seen| seen.at - first < Duration::from_secs(1));
            within.map(|seen| seen.headers["x-tokens"].to_str().unwrap().parse::<u64>().unwrap()).sum()
        };
        let most = (0..seen.len()).map(spent).max().unwrap();
        assert!(most <= 1000, "{most} in one second");
        let lasted = seen.last().unwrap().at - seen[0].at;
        assert!(lasted < Duration::from_millis(9000), "4000 tokens took {lasted:?}");
    })
    .await;
}

#[tokio::test]
async fn a_replica_without_the_store_goes_by_its_share_of_each() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let weir = Weir::start(&config(&redis.store(), "10/5s", "1000/5s", "", &upstream.url())).await;
    let send = async |tokens| client::send(&weir.url("/"), costing(tokens)).await.unwrap();
    assert_eq!(send(100).await.status, 200);
    redis.freeze(true);
    eventually("it serves without the store", async || send(600).await.status == 200).await;
    let refused = send(600).await;
    assert_eq!((refused.status, refused.json()["limiter"].as_str()), (429, Some("tokens")));
    assert_eq!(send(300).await.status, 200);
}
