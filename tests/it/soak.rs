//! Mixed load on three replicas with a random fault every few seconds: no window goes over its limit, every request is
//! answered, and in the end nothing is left waiting and nothing has grown.
//!
//! `scripts/soak` runs it for twenty minutes; among the other tests it runs for a short time. `WEIR_SOAK_SECONDS` sets
//! the length, `WEIR_SOAK_SEED` the faults.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::time::sleep;

use crate::support::load::{Load, leavers};
use crate::support::{PATIENCE, RedisOptions, RedisServer, Request, Upstream, Weir, eventually, lane};

const SECONDS: u64 = 60;
/// A seed with which each fault comes once in that time.
const SEED: u64 = 105;
/// The time between two faults, besides the time of each fault itself.
const BETWEEN: Duration = Duration::from_secs(2);
const CLIENTS: usize = 15;
/// The resources that a replica may hold beyond those before the load: connections kept open to upstream and Redis.
const MORE: Held = Held { files: 60, tasks: 20, bytes: 64 * 1024 * 1024 };

/// Each limiter's path, its permits, and the window in which no more are used.
const LIMITS: [(&str, usize, Duration); 3] = [
    ("/window", 40, Duration::from_secs(2)),
    ("/two", 30, Duration::from_secs(1)),
    // A bucket of 20, and the 20 permits that flow in within a second.
    ("/bucket", 20 + 20, Duration::from_secs(1)),
];

#[derive(Clone, Copy, Debug)]
enum Fault {
    Flush,
    ForgetScripts,
    Restart,
    Freeze,
    KillConnections,
    Pause,
    Full,
    KillReplica,
    Reload,
}

const FAULTS: [Fault; 9] = [
    Fault::Flush,
    Fault::ForgetScripts,
    Fault::Restart,
    Fault::Freeze,
    Fault::KillConnections,
    Fault::Pause,
    Fault::Full,
    Fault::KillReplica,
    Fault::Reload,
];

/// Pseudo-random numbers, the same for each seed (Marsaglia's xorshift).
struct Dice(u64);

impl Dice {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }

    fn millis(&mut self, below: u64) -> Duration {
        Duration::from_millis(self.next(below))
    }
}

/// The resources of a replica.
#[derive(Clone, Copy, Default, Debug)]
struct Held {
    files: usize,
    tasks: usize,
    bytes: u64,
}

impl Held {
    async fn by(weir: &Weir) -> Held {
        let tasks = weir.metrics().await.sum("weir_tasks", &[]);
        Held { files: weir.open_files(), tasks: tasks as usize, bytes: weir.rss_bytes() }
    }

    fn is_within(&self, before: Held) -> bool {
        self.files <= before.files + MORE.files
            && self.tasks <= before.tasks + MORE.tasks
            && self.bytes <= before.bytes + MORE.bytes
    }
}

struct Soak {
    redis: Option<RedisServer>,
    upstream: Upstream,
    config: String,
    replicas: Vec<Weir>,
    loads: Vec<Vec<Load>>,
    /// The resources of a replica that has just started.
    idle: Held,
}

impl Soak {
    async fn start() -> Soak {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let (store, url) =
            (redis.store().replace("timeout: 1s", "timeout: 200ms, fleet_size: 3"), upstream.url());
        let queue = "queue: {timeout: 20s, max_waiting: 1000}";
        let config = format!(
            "store: {store}\nlimiters:\n  window: {{limits: [40/2s], {queue}}}\n  \
             tight: {{limits: [30/1s], {queue}, group: two}}\n  wide: {{limits: [2000/1m], {queue}, group: two}}\n  \
             bucket: {{limits: [{{rate: 20, per: 1s, algorithm: token_bucket}}], {queue}}}\nroutes:\n  \
             - {{name: window, match: {{path: /window}}, upstream: \"{url}\", limiter: window}}\n  \
             - {{name: leaves, match: {{path: /leaves}}, upstream: \"{url}\", limiter: window}}\n  \
             - {{name: two, match: {{path: /two}}, upstream: \"{url}\", limiters: [tight, wide]}}\n  \
             - {{name: bucket, match: {{path: /bucket}}, upstream: \"{url}\", limiter: bucket}}\n"
        );
        let mut soak = Soak {
            redis: Some(redis),
            upstream,
            config,
            replicas: Vec::new(),
            loads: Vec::new(),
            idle: Held::default(),
        };
        for _ in 0..3 {
            soak.join().await;
        }
        soak
    }

    /// Starts one more replica, with its clients.
    async fn join(&mut self) {
        let weir = Weir::start(&self.config).await;
        self.idle = Held::by(&weir).await;
        let load = |(path, _, _): &(&str, usize, Duration)| Load::start(&weir, CLIENTS, &Request::get(path));
        self.loads.push(LIMITS.iter().map(load).collect());
        self.replicas.push(weir);
    }

    async fn suffer(&mut self, fault: Fault, dice: &mut Dice) {
        let redis = self.redis.take().expect("it runs");
        let redis = match fault {
            Fault::Flush => {
                redis.command(&["FLUSHALL"]).await;
                redis
            }
            Fault::ForgetScripts => {
                redis.command(&["SCRIPT", "FLUSH"]).await;
                redis
            }
            Fault::KillConnections => {
                redis.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
                redis
            }
            Fault::Pause => {
                redis.command(&["CLIENT", "PAUSE", &(dice.next(1000) + 50).to_string(), "ALL"]).await;
                redis
            }
            Fault::Freeze => {
                redis.freeze(true);
                sleep(dice.millis(3000)).await;
                redis.freeze(false);
                redis
            }
            Fault::Full => {
                redis.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
                sleep(dice.millis(1500)).await;
                redis.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
                redis
            }
            Fault::Restart => {
                let port = Some(redis.port());
                drop(redis);
                sleep(dice.millis(1500)).await;
                RedisServer::start_with(RedisOptions { port, ..RedisOptions::default() }).await
            }
            Fault::KillReplica => {
                drop(self.loads.remove(0));
                self.replicas.remove(0).signal(Signal::KILL);
                self.join().await;
                redis
            }
            Fault::Reload => {
                Weir::reload_all(&self.replicas, &format!("{}# {}\n", self.config, dice.next(1 << 32))).await;
                redis
            }
        };
        self.redis = Some(redis);
    }

    fn judge(&self) {
        let seen = self.upstream.seen();
        for (path, rate, window) in LIMITS {
            let is_of = |target: &str| target == path || (path == "/window" && target == "/leaves");
            let instants: Vec<_> =
                seen.iter().filter(|seen| is_of(&seen.target)).map(|seen| seen.at).collect();
            let fullest = crate::support::measure::fullest_window(
                &instants,
                window.saturating_sub(self.upstream.lag()),
            );
            println!("{path}: {} sent, fullest window {fullest} of {rate}", instants.len());
            assert!(fullest <= rate, "{path}: {fullest} in {window:?}, where {rate} are allowed");
        }
        for statuses in self.loads.iter().flatten().map(Load::statuses) {
            assert!(statuses.keys().all(|status| matches!(status, 200 | 429 | 503)), "{statuses:?}");
        }
    }
}

#[tokio::test]
async fn mixed_load_survives_random_faults() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seconds = number("WEIR_SOAK_SECONDS").unwrap_or(SECONDS);
    let seed = number("WEIR_SOAK_SEED").unwrap_or(SEED);
    println!("WEIR_SOAK_SEED={seed}");
    lane::calm(async || {
        let mut soak = Soak::start().await;
        let (mut dice, start) = (Dice(seed | 1), Instant::now());
        while start.elapsed() < Duration::from_secs(seconds) {
            let _leaving: Vec<_> =
                soak.replicas.iter().map(|weir| leavers(weir, 3, Duration::from_secs(2))).collect();
            sleep(BETWEEN / 2 + dice.millis(3000)).await;
            let fault = FAULTS[dice.next(FAULTS.len() as u64) as usize];
            println!("{:>6.1} s: {fault:?}", start.elapsed().as_secs_f64());
            soak.suffer(fault, &mut dice).await;
            soak.judge();
        }
        // After all faults the fleet serves as before.
        soak.upstream.wait_for(soak.upstream.count() + 200, PATIENCE).await;
        soak.judge();
        soak.loads.clear();
        for weir in &soak.replicas {
            weir.wait_for_empty_queue().await;
            eventually("its resources are released", async || Held::by(weir).await.is_within(soak.idle))
                .await;
            println!("{:?}, before {:?}", Held::by(weir).await, soak.idle);
        }
    })
    .await;
}
