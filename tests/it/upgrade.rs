//! Replicas of an earlier version, with another layout of keys, beside weir on one Redis: one quota, whoever starts first.
//!
//! The earlier replicas are their script, which books by Redis's clock. `scripts/upgrade` does the same with the real program.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::support::measure::{fullest_window, occupancy};
use crate::support::{
    Load, PATIENCE, RedisServer, Request, Upstream, Weir, client, eventually, lane, one_limiter,
};

/// The script of layout v1 that books, as the last version of that layout sent it.
const RESERVE: &str = include_str!("../fixtures/layout_v1/reserve.lua");
const LIMIT: usize = 40;
const PER: Duration = Duration::from_secs(2);
const LIMITER: &str = "{limits: [40/2s], on_store_failure: reject, queue: {timeout: 10s, max_waiting: 100}}";
/// That limit as scripts read it: with the default guard, 1 % of the window.
const RULES: &str = "S 40 2020000 1";
const RULES_OF_AN_HOUR: &str = "S 40 3600020000 1";
const LEASE_US: u64 = 500_000;

/// The answer of the script: the epoch, the outcomes, and what lies between.
#[derive(Deserialize)]
struct EarlierAnswer {
    epoch: (u64, u64, u64, u64),
    _limiters: Vec<(u64, u64, u64, Vec<u64>, u64, u64)>,
    _last: u64,
    _freed: (u64, u64),
    _rescheduled: Vec<(u64, u64)>,
    outcomes: Vec<Vec<u64>>,
}

/// A replica of the earlier version, which uses each permit that it can get at once, until it is dropped.
struct EarlierReplica {
    uses: Arc<Mutex<Vec<Instant>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl EarlierReplica {
    fn start(redis: &RedisServer) -> EarlierReplica {
        let client = redis::Client::open(redis.url()).expect("an address");
        let mut connection = client.get_connection().expect("Redis answers");
        let (uses, stop) = (Arc::<Mutex<Vec<Instant>>>::default(), Arc::<AtomicBool>::default());
        let (noted, stopped) = (uses.clone(), stop.clone());
        let thread = spawn(move || {
            let mut known_epoch = 0;
            while !stopped.load(Ordering::Relaxed) {
                let asked = Instant::now();
                let granted;
                (known_epoch, granted) = reserve(&mut connection, RULES, known_epoch);
                // Like weir, it uses no permit that comes too late.
                if asked.elapsed() < Duration::from_millis(10) {
                    let mut uses = noted.lock().unwrap_or_else(PoisonError::into_inner);
                    uses.extend(std::iter::repeat_n(Instant::now(), granted));
                }
                std::thread::sleep(Duration::from_millis(15));
            }
        });
        EarlierReplica { uses, stop, thread: Some(thread) }
    }

    fn uses(&self) -> Vec<Instant> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for EarlierReplica {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// Asks for two permits that cannot wait. Returns the epoch, and how many were granted.
fn reserve(connection: &mut redis::Connection, rules: &str, known_epoch: u64) -> (u64, usize) {
    let none = Vec::<u64>::new();
    let head = (0, LEASE_US, 71, 0, known_epoch, "", LEASE_US, "");
    let tail = ((rules, 0, 0), &none, &none, 0, [1, 0, 2], 0, 0);
    let mut packed = rmp_serde::to_vec(&head).expect("numbers").split_off(1);
    packed.extend(&rmp_serde::to_vec(&tail).expect("numbers")[1..]);
    let keys = ["weir:{api}:v1:limiter:api", "weir:{api}:v1:queue:api", "weir:v1:epoch"];
    let mut command = redis::cmd("EVAL");
    command.arg(RESERVE).arg(keys.len()).arg(&keys).arg(packed);
    let answer: Vec<u8> = command.query(connection).expect("an answer");
    let answer: EarlierAnswer = rmp_serde::from_slice(&answer).expect("a well-formed answer");
    let booked = answer.outcomes.iter().filter(|row| row.len() == 2).map(|row| row[0]);
    (answer.epoch.1, booked.sum::<u64>() as usize)
}

/// Panics if a window holds more than the limit, or the limit was not used.
fn judge(upstream: &Upstream, earlier: &EarlierReplica) {
    let uses = [upstream.instants(), earlier.uses()].concat();
    let slack = upstream.lag().min(PER / 20);
    let fullest = fullest_window(&uses, PER - slack);
    println!(
        "{fullest} of {LIMIT}, {} by the earlier replica, lag {:?}",
        earlier.uses().len(),
        upstream.lag()
    );
    assert!(fullest <= LIMIT, "{fullest} in a window less {slack:?}");
    let used = occupancy(&uses, LIMIT, PER);
    assert!(used > 0.8, "{:.1} % of the quota used", used * 100.0);
}

/// Waits until the earlier replica has used so many permits.
async fn wait_for_uses(earlier: &EarlierReplica, count: usize) {
    eventually("uses of the earlier replica", async || earlier.uses().len() >= count).await;
}

#[tokio::test]
async fn an_upgrade_keeps_one_quota() {
    lane::calm(async || {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let earlier = EarlierReplica::start(&redis);
        wait_for_uses(&earlier, LIMIT + 1).await;
        let weir = Weir::start(&one_limiter(&redis.store(), LIMITER, &upstream)).await;
        let load = Load::start(&weir, 10, &Request::get("/"));
        upstream.wait_for(2 * LIMIT, PATIENCE).await;
        assert!(weir.log().contains("replicas of an earlier version"), "{}", weir.log());
        // The earlier replica ends; its permits count.
        earlier.stop.store(true, Ordering::Relaxed);
        let count = upstream.count();
        upstream.wait_for(count + LIMIT, PATIENCE).await;
        drop(load);
        judge(&upstream, &earlier);
    })
    .await;
}

#[tokio::test]
async fn a_rollback_keeps_one_quota() {
    lane::calm(async || {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let weir = Weir::start(&one_limiter(&redis.store(), LIMITER, &upstream)).await;
        let load = Load::start(&weir, 10, &Request::get("/"));
        upstream.wait_for(2 * LIMIT, PATIENCE).await;
        let earlier = EarlierReplica::start(&redis);
        let count = upstream.count();
        upstream.wait_for(count + LIMIT, PATIENCE).await;
        // weir ends; its permits count.
        drop(load);
        let used = earlier.uses().len();
        drop(weir);
        wait_for_uses(&earlier, used + 2 * LIMIT).await;
        judge(&upstream, &earlier);
    })
    .await;
}

#[tokio::test]
async fn usage_that_nobody_asks_for_is_known_to_an_earlier_version_that_starts() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let limiter = LIMITER.replace("40/2s", "40/1h");
    let weir = Weir::start(&one_limiter(&redis.store(), &limiter, &upstream)).await;
    client::assert_all_ok(&client::answers(weir.begin(30, "/")).await);
    let mut connection = redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
    let (mut epoch, mut used) = (0, 0);
    eventually("the earlier version grants what is left", async || {
        let granted;
        (epoch, granted) = reserve(&mut connection, RULES_OF_AN_HOUR, epoch);
        used += granted;
        used == 10
    })
    .await;
    for _ in 0..20 {
        assert_eq!(reserve(&mut connection, RULES_OF_AN_HOUR, epoch).1, 0);
    }
}
