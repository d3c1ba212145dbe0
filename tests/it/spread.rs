//! Refused callers that obey `Retry-After` come back one after the other, find a permit, and leave none unused.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio_util::task::AbortOnDropHandle;

use crate::support::measure::occupancy;
use crate::support::{
    Connection, PATIENCE, RedisServer, Request, Upstream, Weir, eventually, lane, one_limiter,
};

const SECOND: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Tally {
    attempts: AtomicUsize,
    successes: AtomicUsize,
}

/// Asks without end, and after a refusal only at the named time.
async fn obey(host: String, tally: Arc<Tally>) {
    let mut connection = Connection::open(&host).await.expect("weir accepts");
    loop {
        let answer = connection.ask(&Request::get("/")).await;
        tally.attempts.fetch_add(1, Ordering::Relaxed);
        if answer.status == 200 {
            tally.successes.fetch_add(1, Ordering::Relaxed);
        } else {
            tokio::time::sleep_until((answer.done + answer.retry_after()).into()).await;
        }
    }
}

/// Runs this many clients for this long; each client that was served asks again at once.
async fn clients_that_obey(clients: usize, rate: usize, per: Duration, lasting: Duration) {
    lane::calm(async || {
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    // The queue's timeout is at least one guard: a request that comes a moment early waits for its instant.
    let limiter =
        format!("{{limits: [{rate}/{}ms], queue: {{timeout: 50ms, max_waiting: 1000}}}}", per.as_millis());
    let fleet = Weir::fleet(2, &one_limiter(&redis.store(), &limiter, &upstream)).await;

    let tally = Arc::<Tally>::default();
    let begun = Instant::now();
    let crowd: Vec<_> = (0..clients)
        .map(|client| obey(fleet[client % 2].host(), Arc::clone(&tally)))
        .map(|client| AbortOnDropHandle::new(tokio::spawn(client)))
        .collect();
    tokio::time::sleep_until((begun + lasting).into()).await;
    let (attempts, successes) =
        (tally.attempts.load(Ordering::Relaxed), tally.successes.load(Ordering::Relaxed));
    drop(crowd);

    let used = occupancy(&upstream.instants(), rate, per);
    let each = attempts as f64 / successes as f64;
    println!(
        "{clients} clients at {rate}/{per:?} for {lasting:?}: {each:.2} attempts for each of {successes} successes, \
         {:.1} % of the quota used",
        used * 100.0
    );
    upstream.assert_within(rate, per);
    assert!(used >= 0.95, "{:.1} % of the quota used", used * 100.0);
    assert!(each <= 3.0, "{attempts} attempts for {successes} successes");
    }).await;
}

#[tokio::test]
async fn clients_that_obey_come_back_in_turn() {
    // Each client begins with an attempt too many, so with more clients six seconds would not suffice. And when the
    // first burst leaves its window all at once, the refused callers come one by one: half a window is lost, so the
    // window is short.
    clients_that_obey(150, 15, SECOND / 4, 6 * SECOND).await;
}

#[tokio::test]
#[ignore = "long: a thousand clients at 10/s for three minutes"]
async fn a_thousand_clients_that_obey_come_back_in_turn() {
    clients_that_obey(1000, 10, SECOND, 180 * SECOND).await;
}

#[tokio::test]
async fn successive_refusals_name_successive_instants_within_a_minute() {
    lane::calm(async || {
        const REFUSED: usize = 1000;
        let redis = RedisServer::start().await;
        for store in ["memory".to_owned(), redis.store()] {
            let upstream = Upstream::start();
            let weir = Weir::start(&one_limiter(&store, "{limits: [10/1s]}", &upstream)).await;
            let mut client = weir.connect().await;
            assert_eq!(client.statuses(&Request::get("/"), 10).await, [200; 10]);
            let granted = Instant::now();
            let mut named = Vec::with_capacity(REFUSED);
            while named.len() < REFUSED {
                let answer = client.ask(&Request::get("/")).await;
                // The refusals may take so long that the next window opens meanwhile.
                if answer.status == 429 {
                    named.push((answer.sent + answer.retry_after(), answer.retry_after()));
                }
            }
            let turns: Vec<Instant> = named.iter().map(|(at, _)| *at).collect();
            // The hundredth of a second covers an answer's way and its rounding to whole milliseconds.
            let backward = turns.windows(2).filter(|pair| pair[1] + SECOND / 100 < pair[0]).count();
            let longest = named.iter().map(|(_, told)| *told).max().expect("refusals");
            // At 10/s a thousand permits take a hundred seconds.
            let of_hundred = turns[99].duration_since(turns[0]);
            println!(
                "the hundredth {of_hundred:?} after the first, the longest {longest:?}, {backward} go back"
            );
            assert!(of_hundred > 8 * SECOND && of_hundred < 12 * SECOND, "{of_hundred:?} in {store}");
            let true_delay = SECOND + SECOND / 50;
            assert!(longest <= 60 * SECOND + true_delay, "{longest:?} in {store}");
            assert!(longest > 30 * SECOND, "{longest:?} in {store}");
            // Only where the bound is reached may the instants begin anew.
            assert!(backward < REFUSED / 50, "{backward} of {REFUSED} name an earlier instant in {store}");
            assert!(granted.elapsed() < PATIENCE, "{REFUSED} refusals took {:?}", granted.elapsed());
        }
    })
    .await;
}

#[tokio::test]
async fn refused_callers_that_never_come_back_are_forgotten() {
    lane::calm(async || {
        const PER: Duration = Duration::from_millis(200);
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let weir = Weir::start(&one_limiter(&redis.store(), "{limits: [10/200ms]}", &upstream)).await;
        let mut client = weir.connect().await;
        let mut longest = Duration::ZERO;
        for _ in 0..300 {
            let answer = client.ask(&Request::get("/")).await;
            if answer.status == 429 {
                longest = longest.max(answer.retry_after());
            }
        }
        assert!(longest > 10 * PER, "three hundred are spread: {longest:?}");

        // No refused caller comes back; new callers get shorter and shorter times, down to a few windows.
        let begun = Instant::now();
        let mut told = longest;
        let forgotten = async || {
            tokio::time::sleep(PER).await;
            for status in client.statuses(&Request::get("/"), 10).await {
                assert!(matches!(status, 200 | 429));
            }
            let answer = client.ask(&Request::get("/")).await;
            told = if answer.status == 429 { answer.retry_after() } else { Duration::ZERO };
            told <= 3 * PER
        };
        eventually("a refusal that names one of the next windows", PATIENCE, forgotten).await;
        println!("from {longest:?} down to {told:?} within {:?}", begun.elapsed());
    })
    .await;
}
