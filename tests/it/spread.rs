//! Refused callers that obey `Retry-After` come back one after the other, find a permit, and leave none unused. A caller alone is
//! told the truth, however often it asks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio_util::task::AbortOnDropHandle;

use crate::support::measure::occupancy;
use crate::support::{
    Connection, RedisServer, Request, SECOND, Upstream, Weir, eventually, lane, one_limiter, poll_for,
};

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

/// Asks so many times at once, again and again until a crowd was refused that one call saw. Returns the longest time told.
async fn crowd(weir: &Weir, clients: usize, longest_of: Duration) -> Duration {
    poll_for("a crowd that is spread", async || {
        let mut longest = Duration::ZERO;
        for pending in weir.begin(clients, "/") {
            let answer = pending.answer().await;
            if answer.status == 429 {
                longest = longest.max(answer.retry_after());
            }
        }
        (longest > longest_of).then_some(longest)
    })
    .await
}

#[tokio::test]
async fn callers_that_come_together_are_told_successive_instants_within_two_minutes() {
    lane::calm(async || {
        let redis = RedisServer::start().await;
        for store in ["memory".to_owned(), redis.store()] {
            let upstream = Upstream::start();
            let weir = Weir::start(&one_limiter(&store, "{limits: [10/1s]}", &upstream)).await;
            // At 10/s three hundred permits take thirty seconds.
            let longest = crowd(&weir, 300, 10 * SECOND).await;
            println!("three hundred callers in {store} are told up to {longest:?}");
            let true_delay = SECOND + SECOND / 50;
            assert!(longest <= 120 * SECOND + true_delay, "{longest:?} in {store}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_caller_that_asks_again_is_never_sent_further_away() {
    lane::calm(async || {
        for (limit, pace) in [("3/1d", 0), ("3/366d", 1), ("10/5s", 100)] {
            let redis = RedisServer::start().await;
            for store in ["memory".to_owned(), redis.store()] {
                let upstream = Upstream::start();
                let replicas = if store == "memory" { 1 } else { 2 };
                let limiter = format!("{{limits: [{limit}]}}");
                let fleet = Weir::fleet(replicas, &one_limiter(&store, &limiter, &upstream)).await;
                ask_twenty_times(&fleet, Duration::from_millis(pace)).await;
            }
        }
    })
    .await;
}

/// Uses the limit up and asks twenty times more, of one replica and another, by one connection and by new ones.
async fn ask_twenty_times(fleet: &[Weir], pace: Duration) {
    let mut kept = fleet[0].connect().await;
    while kept.ask(&Request::get("/")).await.status == 200 {}
    let mut first: Option<Instant> = None;
    for question in 0..20 {
        let answer = match question % 2 {
            0 => kept.ask(&Request::get("/")).await,
            _ => fleet[question / 2 % fleet.len()].get("/").await,
        };
        // The hundredth of a second covers the rounding to whole milliseconds, and two clocks.
        let first = *first.get_or_insert(answer.done + answer.retry_after() + SECOND / 100);
        let told = answer.sent + answer.retry_after();
        assert!(told <= first, "question {question} is told {:?} more", told - first);
        tokio::time::sleep(pace).await;
    }
}

#[tokio::test]
async fn a_refusal_says_how_many_permits_are_left() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    for store in ["memory".to_owned(), redis.store()] {
        let config = one_limiter(&store, "{limits: [10/1h]}", &upstream);
        let weir = Weir::start(&format!("{config}    cost: {{header: x-cost, default: 1, max: 10}}\n")).await;
        let mut client = weir.connect().await;
        assert_eq!(client.statuses(&Request::get("/"), 3).await, [200; 3]);
        // The second refusal is made without asking the store.
        for _ in 0..2 {
            let refused = client.ask(&Request::get("/").header("x-cost", "8")).await;
            let limit = refused.header("ratelimit").expect("ratelimit");
            assert!(limit.starts_with("\"api:10/1h\";r=7;t="), "{limit} in {store}");
        }
        assert_eq!(weir.available("api").await, [7]);
    }
}

#[tokio::test]
async fn refused_callers_that_never_come_back_are_forgotten() {
    lane::calm(async || {
        const PER: Duration = Duration::from_millis(200);
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let weir = Weir::start(&one_limiter(&redis.store(), "{limits: [10/200ms]}", &upstream)).await;
        let mut client = weir.connect().await;
        let longest = crowd(&weir, 300, 10 * PER).await;

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
        eventually("a refusal that names one of the next windows", forgotten).await;
        println!("from {longest:?} down to {told:?} within {:?}", begun.elapsed());
    })
    .await;
}
