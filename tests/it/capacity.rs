//! Ten thousand requests wait at once on one replica, in little memory, and all are served.

use std::time::{Duration, Instant};

use crate::support::{Pending, RedisServer, Upstream, Weir, client, eventually_within, lane, open_files_max};

const WAITING: usize = 10_000;
const BYTES_PER_WAITING_MAX: u64 = 12 * 1024;
/// The quota in permits per second: ten thousand requests drain in a moment.
const RATE: usize = 1000;
/// The number of whole quotas that are taken first, so that nothing is served while the ten thousand requests arrive.
const QUOTAS_AHEAD: usize = 8;

#[tokio::test]
async fn ten_thousand_wait_in_little_memory_and_drain() {
    lane::alone(async || {
        // The test holds the clients' ends of the connections, and the upstream's ends of the requests that are being
        // served.
        assert!(open_files_max() > WAITING as u64 + 4000, "raise the limit of open files (ulimit -Hn)");

        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let (store, url) = (redis.store(), upstream.url());
        let weir = Weir::start(&format!(
            "store: {store}\n\
         server: {{max_connections: 20000}}\n\
         limiters:\n  api: {{limits: [{RATE}/1s], queue: {{timeout: 2m, max_waiting: 20000}}}}\n\
         routes:\n  \
         - {{name: whole, match: {{path: /whole}}, upstream: \"{url}\", limiter: api, cost: {RATE}}}\n  \
         - {{name: one, match: {{path: /}}, upstream: \"{url}\", limiter: api}}\n"
        ))
        .await;

        let ahead = weir.begin(QUOTAS_AHEAD, "/whole");
        weir.wait_for_waiting(QUOTAS_AHEAD - 1).await;
        let before = weir.rss_bytes();
        let begun = Instant::now();
        let crowd = open_in_waves(&weir, WAITING).await;
        let there = format!("{WAITING} waiting, {:?} after the first", begun.elapsed());
        eventually_within(&there, Duration::from_secs(10), async || weir.waiting().await >= WAITING as f64)
            .await;
        let grown = weir.rss_bytes().saturating_sub(before) / WAITING as u64;

        client::assert_all_ok(&client::answers(crowd).await);
        client::answers(ahead).await;
        println!("{WAITING} waiting, {grown} bytes each");
        assert!(grown < BYTES_PER_WAITING_MAX, "{grown} bytes for each waiting request");
        assert_eq!(upstream.count(), WAITING + QUOTAS_AHEAD, "each goes upstream once");
        assert_eq!(weir.waiting().await, 0.0);
        let alone: Vec<_> =
            upstream.seen().into_iter().filter(|seen| seen.target == "/").map(|seen| seen.at).collect();
        let last = alone.last().unwrap().duration_since(alone[0]);
        let least = Duration::from_secs((WAITING / RATE) as u64 - 1);
        // A slot that comes too late on a busy machine is booked anew, behind all others: that takes another second or two.
        let most = least + Duration::from_secs(2);
        assert!(last < most, "drained in {last:?}, the quota allows {least:?}");
    })
    .await;
}

/// Opens connections a few hundred at a time, so that no backlog overflows.
async fn open_in_waves(weir: &Weir, count: usize) -> Vec<Pending> {
    const WAVE: usize = 250;
    let mut crowd = Vec::with_capacity(count);
    while crowd.len() < count {
        let mut wave = Vec::with_capacity(WAVE);
        for _ in 0..WAVE.min(count - crowd.len()) {
            let mut connection = client::Connection::open(&weir.host()).await.expect("weir accepts");
            connection.send(&client::Request::get("/")).await.expect("weir reads");
            wave.push(Pending::on(connection));
        }
        crowd.extend(wave);
    }
    crowd
}
