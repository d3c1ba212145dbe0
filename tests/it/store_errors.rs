//! Redis answers with an error, late, or in part: the policy answers each request, the log has the server's own word,
//! nothing is granted twice, and weir recovers once the cause is gone.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::time::interval;

use crate::support::{
    Connection, Cut, PATIENCE, Pending, RedisOptions, RedisServer, Request, Upstream, Weir, closed_port,
    configuration, eventually, lane, one_limiter,
};

const LIMIT: usize = 20;
const TIMEOUT: Duration = Duration::from_millis(200);
/// The delay of a machine that is busy with other tests.
const SLACK: Duration = Duration::from_secs(3);
/// The pause between two requests of a trickle.
const PAUSE: Duration = Duration::from_millis(20);
/// The number of failed probes that show that the store stays away.
const PROBES: f64 = 3.0;
const KEY: &str = "weir:{api}:v2:limiter:api";

/// One weir and its store, with a limiter that rejects without the store.
struct Trial {
    redis: RedisServer,
    upstream: Upstream,
    weir: Weir,
    client: Connection,
}

impl Trial {
    async fn start() -> Trial {
        let redis = RedisServer::start().await;
        let url = redis.url();
        Trial::at(redis, &url).await
    }

    /// Starts a weir that reaches the server by this line.
    async fn behind(redis: RedisServer, cut: &Cut) -> Trial {
        let url = format!("redis://127.0.0.1:{}", cut.port());
        Trial::at(redis, &url).await
    }

    async fn at(redis: RedisServer, url: &str) -> Trial {
        let upstream = Upstream::start();
        let timeout = TIMEOUT.as_millis();
        let store = format!("{{redis: {{url: \"{url}\", timeout: {timeout}ms}}}}");
        let limiter = format!("{{limits: [{LIMIT}/1h], on_store_failure: reject}}");
        let weir = Weir::start(&one_limiter(&store, &limiter, &upstream)).await;
        let client = weir.connect().await;
        let mut trial = Trial { redis, upstream, weir, client };
        trial.grants().await;
        trial
    }

    /// Sends one request of the trickle.
    async fn ask(&mut self) -> u16 {
        tokio::time::sleep(PAUSE).await;
        let answer = self.client.ask(&Request::get("/")).await;
        let took = answer.done - answer.sent;
        assert!(took < TIMEOUT + SLACK, "an answer after {took:?}");
        match (answer.status, answer.weir_error()) {
            (200, None) | (429, Some("rate_limited")) | (503, Some("store_unavailable")) => answer.status,
            other => panic!("{other:?}: {}", answer.text()),
        }
    }

    /// Asks until an answer has this status.
    async fn ask_until(&mut self, what: &str, status: u16) {
        let end = Instant::now() + PATIENCE;
        while self.ask().await != status {
            assert!(Instant::now() < end, "still waiting for: {what}");
        }
    }

    async fn grants(&mut self) {
        self.ask_until("a permit", 200).await;
    }

    async fn run(&self, commands: &[&[&str]]) {
        for command in commands {
            self.redis.command(command).await;
        }
    }

    async fn calls(&self, labels: &[(&str, &str)]) -> f64 {
        self.weir.metrics().await.sum("weir_store_calls_total", labels)
    }

    /// Returns the number of log lines that contain `text`.
    fn told(&self, text: &str) -> usize {
        self.weir.log().lines().filter(|line| line.contains(text)).count()
    }

    /// Asks until the circuit opens, and on through several failed probes.
    async fn stays_away(&mut self, word: &str, result: &str) {
        let end = Instant::now() + PATIENCE;
        let mut probes = None;
        loop {
            self.ask().await;
            let metrics = self.weir.metrics().await;
            let failed: f64 = ["timeout", "connection", "error"]
                .iter()
                .map(|result| metrics.sum("weir_store_calls_total", &[("op", "ping"), ("result", result)]))
                .sum();
            if metrics.sum("weir_store_up", &[]) == 0.0 {
                probes = probes.or(Some(failed));
            }
            if probes.is_some_and(|probes| failed >= probes + PROBES) && self.told(word) > 0 {
                break;
            }
            assert!(Instant::now() < end, "the store is not given up, or the log does not say {word}");
        }
        assert_eq!(self.told("the store answers again"), 0, "it comes and goes");
        assert!(self.calls(&[("result", result)]).await > 0.0, "no {result} is counted");
        assert_eq!(self.ask().await, 503);
    }

    /// Checks the recovery: the rest of the limit is granted, and not one permit more.
    async fn ends_well(&mut self) {
        self.grants().await;
        let end = Instant::now() + PATIENCE;
        while self.upstream.count() < LIMIT {
            self.ask().await;
            assert!(Instant::now() < end, "{} of {LIMIT} were granted", self.upstream.count());
        }
        self.is_used_up().await;
    }

    async fn is_used_up(&mut self) {
        for _ in 0..3 {
            assert_ne!(self.ask().await, 200);
        }
        assert!(self.upstream.count() <= LIMIT, "{} of {LIMIT} were granted", self.upstream.count());
        let up = async || self.weir.metrics().await.sum("weir_store_up", &[]) == 1.0;
        eventually("the store is up", up).await;
    }
}

/// A state of the server in which it answers with an error.
struct Fault {
    begin: &'static [&'static [&'static str]],
    end: &'static [&'static [&'static str]],
    /// The error code as the server sends it.
    word: &'static str,
    /// The value of the label `result` of `weir_store_calls_total`.
    result: &'static str,
}

const FAULTS: [Fault; 7] = [
    Fault {
        begin: &[&["REPLICAOF", "127.0.0.1", "OTHER"]],
        end: &[&["REPLICAOF", "NO", "ONE"]],
        word: "READONLY",
        result: "connection",
    },
    Fault {
        begin: &[&["CONFIG", "SET", "replica-serve-stale-data", "no"], &["REPLICAOF", "127.0.0.1", "NOBODY"]],
        end: &[&["REPLICAOF", "NO", "ONE"]],
        word: "MASTERDOWN",
        result: "connection",
    },
    Fault {
        begin: &[&["CONFIG", "SET", "maxmemory", "1"]],
        end: &[&["CONFIG", "SET", "maxmemory", "0"]],
        word: "OOM",
        result: "error",
    },
    Fault {
        begin: &[&["CONFIG", "SET", "requirepass", "s3cret"], &["CLIENT", "KILL", "TYPE", "normal"]],
        end: &[&["CONFIG", "SET", "requirepass", ""]],
        word: "NOAUTH",
        result: "connection",
    },
    Fault {
        begin: &[&["ACL", "SETUSER", "default", "-@scripting"]],
        end: &[&["ACL", "SETUSER", "default", "+@all"]],
        word: "NOPERM",
        result: "error",
    },
    // Writes are refused, reads are not.
    Fault {
        begin: &[&["ACL", "SETUSER", "default", "-set"]],
        end: &[&["ACL", "SETUSER", "default", "+@all"]],
        word: "the store refused the call",
        result: "error",
    },
    Fault {
        begin: &[&["CONFIG", "SET", "maxclients", "1"], &["CLIENT", "KILL", "TYPE", "normal"]],
        end: &[&["CONFIG", "SET", "maxclients", "1000"]],
        word: "cannot reach the store",
        result: "connection",
    },
];

/// Returns what it has started: to end a process may take seconds of the thread that others are timed on.
async fn is_overcome(fault: &Fault) -> (RedisServer, Trial) {
    let (other, nobody) = (RedisServer::start().await, closed_port().to_string());
    let port = other.port().to_string();
    let mut trial = Trial::start().await;
    for command in fault.begin {
        let word = |word: &&'static str| match *word {
            "OTHER" => port.clone(),
            "NOBODY" => nobody.clone(),
            other => other.to_owned(),
        };
        let words: Vec<String> = command.iter().map(word).collect();
        trial.redis.command(&words.iter().map(String::as_str).collect::<Vec<_>>()).await;
    }
    trial.stays_away(fault.word, fault.result).await;
    trial.run(fault.end).await;
    trial.ends_well().await;
    (other, trial)
}

#[tokio::test]
async fn weir_recovers_from_each_error_of_redis() {
    let _lane = lane::shared().await;
    join_all(FAULTS.iter().map(is_overcome)).await;
}

#[tokio::test]
async fn forgotten_scripts_are_sent_again() {
    let _lane = lane::shared().await;
    let mut trial = Trial::start().await;
    for _ in 0..3 {
        trial.run(&[&["SCRIPT", "FLUSH"]]).await;
        assert_eq!(trial.ask().await, 200);
    }
    assert!(trial.calls(&[("result", "noscript")]).await >= 3.0);
    trial.ends_well().await;
}

#[tokio::test]
async fn weir_recovers_from_a_foreign_script_that_does_not_end() {
    let _lane = lane::shared().await;
    let mut trial = Trial::start().await;
    trial.run(&[&["CONFIG", "SET", "lua-time-limit", "50"]]).await;
    let somebody = redis::Client::open(trial.redis.url()).unwrap();
    let mut somebody = somebody.get_multiplexed_async_connection().await.unwrap();
    let endless = tokio::spawn(async move {
        let mut endless = redis::cmd("EVAL");
        endless.arg("while true do end").arg(0);
        endless.exec_async(&mut somebody).await.ok();
    });
    trial.stays_away("BUSY", "connection").await;
    trial.run(&[&["SCRIPT", "KILL"]]).await;
    trial.ends_well().await;
    endless.abort();
}

#[tokio::test]
async fn weir_recovers_from_a_loading_server() {
    let _lane = lane::shared().await;
    let redis = RedisServer::start_part(closed_port, &["--enable-debug-command", "yes"]).await;
    let url = redis.url();
    let mut trial = Trial::at(redis, &url).await;
    // The server takes two seconds to load its data.
    trial
        .run(&[
            &["DEBUG", "POPULATE", "2000", "filler", "100"],
            &["CONFIG", "SET", "key-load-delay", "1000"],
            &["CONFIG", "SET", "loading-process-events-interval-bytes", "1024"],
        ])
        .await;
    let somebody = redis::Client::open(trial.redis.url()).unwrap();
    let mut somebody = somebody.get_multiplexed_async_connection().await.unwrap();
    let loading = tokio::spawn(async move {
        redis::cmd("DEBUG").arg("RELOAD").exec_async(&mut somebody).await.ok();
    });
    trial.stays_away("LOADING", "error").await;
    trial.ends_well().await;
    loading.abort();
}

#[tokio::test]
async fn weir_recovers_from_a_password_change() {
    let _lane = lane::shared().await;
    let options = RedisOptions { password: Some("s3cret"), ..RedisOptions::default() };
    let redis = RedisServer::start_with(options).await;
    let url = redis.url();
    let mut trial = Trial::at(redis, &url).await;
    trial.run(&[&["CONFIG", "SET", "requirepass", "0ther"], &["CLIENT", "KILL", "TYPE", "normal"]]).await;
    // The client library hides the server's WRONGPASS.
    trial.stays_away("Password authentication failed", "connection").await;
    trial.run(&[&["CONFIG", "SET", "requirepass", "s3cret"]]).await;
    trial.ends_well().await;
    assert_eq!(trial.told("s3cret"), 0, "the password shows");
}

/// A foreign value under one of weir's keys.
/// Where callers share a quota nobody asks a store that counts as away.
#[tokio::test]
async fn a_shared_limiter_passes_again_when_a_foreign_value_is_gone() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let limiter = "{limits: [1000/1h], on_store_failure: reject, queue: {timeout: 1s}, share: {by: \"header:x-caller\"}}";
    let weir = Weir::start(&one_limiter(&redis.store(), limiter, &upstream)).await;
    assert_eq!(weir.get("/").await.status, 200);
    redis.command(&["EVAL", "redis.call('DEL', KEYS[1]) redis.call('LPUSH', KEYS[1], 'x')", "1", KEY]).await;
    let is_refused = async || weir.get("/").await.weir_error() == Some("store_unavailable");
    eventually("it is refused", is_refused).await;
    redis.command(&["DEL", KEY]).await;
    eventually("requests pass", async || weir.get("/").await.status == 200).await;
}

#[tokio::test]
async fn foreign_values_are_named_and_left_alone() {
    let _lane = lane::shared().await;
    let redis = RedisServer::start().await;
    let upstream = Upstream::start();
    let store = redis.store();
    let limiter = "{limits: [1000/1h], on_store_failure: reject}";
    let config = configuration(
        &store,
        &[("api", limiter), ("other", limiter)],
        &[("path: /api", "limiter: api"), ("path: /other", "limiter: other")],
        &upstream,
    );
    let weir = Weir::start(&config).await;
    assert_eq!(weir.get("/api").await.status, 200);
    let replace = async |key: &str, by: &str| {
        let script = format!("redis.call('DEL', KEYS[1]) {by}");
        redis.command(&["EVAL", &script, "1", key]).await;
    };
    let (list, bytes, number) = (
        "redis.call('LPUSH', KEYS[1], 'x')",
        "redis.call('SET', KEYS[1], '\\255\\193')",
        "redis.call('SET', KEYS[1], '12')",
    );
    let queue = "weir:{api}:v2:queue:api";
    let mut errors = 0.0;
    for (key, by) in [(KEY, list), (KEY, bytes), (KEY, number), (queue, list), (queue, bytes)] {
        replace(key, by).await;
        let left = redis.command(&["DUMP", key]).await;
        let is_refused = async || weir.get("/api").await.weir_error() == Some("store_unavailable");
        eventually("the permits taken before are used up", is_refused).await;
        for _ in 0..5 {
            let answer = weir.get("/api").await;
            assert_eq!((answer.status, answer.weir_error()), (503, Some("store_unavailable")), "{key} {by}");
            assert_eq!(weir.get("/other").await.status, 200, "no other limiter is touched");
        }
        assert_eq!(redis.command(&["DUMP", key]).await, left, "foreign data is not overwritten");
        let metrics = weir.metrics().await;
        assert_eq!(metrics.sum("weir_store_up", &[]), 1.0);
        let counted = metrics.sum("weir_store_calls_total", &[("result", "error")]);
        assert!(counted >= errors + 5.0, "{counted}");
        errors = counted;
        redis.command(&["DEL", key]).await;
        eventually("requests pass", async || weir.get("/api").await.status == 200).await;
    }
    // Without the epoch nothing is granted, and the store stays away while that is so.
    let epoch = "weir:v2:epoch";
    for by in [list, bytes] {
        replace(epoch, by).await;
        let up = async || weir.metrics().await.sum("weir_store_up", &[]);
        eventually("the store is given up", async || {
            weir.get("/api").await.status == 503 && up().await == 0.0
        })
        .await;
        redis.command(&["DEL", epoch]).await;
        eventually("requests pass", async || weir.get("/other").await.status == 200).await;
    }
    let log = weir.log();
    for (key, why) in [
        (KEY, "WRONGTYPE"),
        (KEY, "cannot be read"),
        (queue, "WRONGTYPE"),
        (queue, "cannot be read"),
        (epoch, ""),
    ] {
        let is_told = |line: &str| [key, why, "delete it"].iter().all(|part| line.contains(part));
        assert!(log.lines().any(is_told), "{key} {why}");
    }
}

#[tokio::test]
async fn weir_recovers_from_repeated_connection_resets() {
    let _lane = lane::shared().await;
    let redis = RedisServer::start().await;
    let cut = Cut::before(redis.port()).await;
    let mut trial = Trial::behind(redis, &cut).await;
    for round in 0..4 {
        let under_way = trial.weir.begin(2, "/");
        trial.run(&[&["CLIENT", "KILL", "TYPE", "normal"]]).await;
        trial.ask().await;
        for pending in under_way {
            let answer = pending.answer().await;
            assert!(matches!(answer.status, 200 | 503), "{} {}", answer.status, answer.text());
            assert!(answer.done - answer.sent < TIMEOUT + SLACK);
        }
        // In the first bytes of a reply, and later.
        cut.cut_reply_after(1 + round * 7);
        trial.ask().await;
        trial.ask().await;
    }
    assert!(trial.calls(&[("result", "connection")]).await >= 4.0);
    // A call whose second connection broke as well may have booked permits that no request uses.
    trial.ask_until("the limit", 429).await;
    assert!(trial.upstream.count() > LIMIT / 2, "{} of {LIMIT} were granted", trial.upstream.count());
    trial.is_used_up().await;
}

/// Waits until the unused bookings have expired.
async fn comes_back(trial: &mut Trial) {
    trial.grants().await;
    let left = |trial: &Trial| vec![(LIMIT - trial.upstream.count()) as u64];
    eventually("the unused permits are free", async || trial.weir.available("api").await == left(trial))
        .await;
    trial.ends_well().await;
}

#[tokio::test]
async fn weir_recovers_from_late_replies() {
    let _lane = lane::shared().await;
    let redis = RedisServer::start().await;
    let cut = Cut::before(redis.port()).await;
    let mut trial = Trial::behind(redis, &cut).await;
    cut.delay(TIMEOUT * 8);
    trial.stays_away("did not answer within 200ms", "timeout").await;
    cut.delay(Duration::ZERO);
    comes_back(&mut trial).await;
}

#[tokio::test]
async fn weir_recovers_from_paused_clients() {
    let _lane = lane::shared().await;
    let mut trial = Trial::start().await;
    // Several probes, each as long as a call may take.
    trial.run(&[&["CLIENT", "PAUSE", "6000", "ALL"]]).await;
    trial.stays_away("did not answer within 200ms", "timeout").await;
    comes_back(&mut trial).await;
}

#[tokio::test]
async fn weir_recovers_from_replies_held_back() {
    let _lane = lane::shared().await;
    let redis = RedisServer::start().await;
    let cut = Cut::before(redis.port()).await;
    let mut trial = Trial::behind(redis, &cut).await;
    cut.swallow_replies(true);
    trial.stays_away("did not answer within 200ms", "timeout").await;
    cut.swallow_replies(false);
    comes_back(&mut trial).await;
}

#[tokio::test]
async fn a_connection_whose_answers_are_lost_is_replaced() {
    const CALM: usize = 8;
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let cut = Cut::before(redis.port()).await;
    let store = redis.store().replace(&redis.port().to_string(), &cut.port().to_string());
    // Each request makes a call of its own.
    let limiter = "{limits: [100000/1h], queue: {timeout: 30s}}";
    let weir = Weir::start(&one_limiter(&store, limiter, &upstream)).await;
    assert_eq!(weir.get("/").await.status, 200);
    cut.mute_connections();
    let timeouts = async || {
        let labels = [("op", "reserve"), ("result", "timeout")];
        weir.metrics().await.sum("weir_store_calls_total", &labels)
    };
    eventually("calls are answered in time", async || {
        let before = timeouts().await;
        for _ in 0..CALM {
            let status = weir.get("/").await.status;
            assert!(matches!(status, 200 | 503), "{status}");
        }
        timeouts().await == before
    })
    .await;
}

const FROZEN: Duration = Duration::from_secs(6);
/// The time from the thaw until all replicas ask the store again.
const RECOVERY: Duration = Duration::from_secs(2);
/// The time for permits taken before to be used, and for the circuit to open.
const SETTLES: Duration = Duration::from_millis(800);
const POLICIES: [&str; 3] = ["reject", "allow", "local"];

#[tokio::test]
async fn policies_answer_while_redis_is_frozen_for_six_seconds() {
    lane::alone(async || {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let store = redis.store().replace("timeout: 1s", "timeout: 100ms");
        let limiters = POLICIES.map(|policy| format!("{{limits: [2000/1s], on_store_failure: {policy}}}"));
        let limiters: Vec<_> = POLICIES.into_iter().zip(limiters.iter().map(String::as_str)).collect();
        let routes = POLICIES.map(|policy| (format!("path: /{policy}"), format!("limiter: {policy}")));
        let routes: Vec<_> = routes.iter().map(|(path, rest)| (path.as_str(), rest.as_str())).collect();
        let fleet = Weir::fleet(3, &configuration(&store, &limiters, &routes, &upstream)).await;
        let mut load = OpenLoad::new(&fleet);
        for (_, pending) in load.run_for(Duration::from_millis(500)).await {
            let answer = pending.answer().await;
            assert_eq!(answer.status, 200, "{}", answer.text());
        }

        let frozen = Instant::now();
        redis.freeze(true);
        let asked = load.run_for(FROZEN).await;
        for weir in &fleet {
            assert_eq!(weir.metrics().await.sum("weir_store_up", &[]), 0.0);
        }
        let before = reserved(&fleet).await;
        redis.freeze(false);
        let thawed = Instant::now();
        let after = load.run_for(RECOVERY).await;
        for (weir, before) in fleet.iter().zip(before) {
            assert_eq!(weir.metrics().await.sum("weir_store_up", &[]), 1.0, "after {:?}", thawed.elapsed());
            assert!(reserved_by(weir).await > before, "the store is asked again");
        }
        let mut refused = Duration::ZERO;
        for (_, pending) in after {
            let answer = pending.answer().await;
            // Nothing is granted while the replicas report their offline grants to the store.
            assert!(matches!(answer.status, 200 | 429 | 503), "{}", answer.status);
            if answer.status != 200 {
                refused = refused.max(answer.sent - thawed);
            }
        }
        println!("the last one refused {refused:?} after the thaw");
        assert!(refused < RECOVERY, "{refused:?}");
        for policy in POLICIES {
            assert_eq!(fleet[0].get(&format!("/{policy}")).await.status, 200);
        }

        let mut times = Vec::with_capacity(asked.len());
        for (policy, pending) in asked {
            let answer = pending.answer().await;
            times.push(answer.done - answer.sent);
            let is_right = match policy {
                "reject" => answer.weir_error() == Some("store_unavailable") && answer.status == 503,
                _ => answer.status == 200,
            };
            let is_early = answer.sent < frozen + SETTLES && answer.status == 200;
            // Nobody knows what the others were granted right before. That has left the window a second after the outage began.
            let is_unknown = policy == "local"
                && answer.status == 429
                && answer.sent < frozen + SETTLES + Duration::from_secs(1);
            assert!(is_right || is_early || is_unknown, "{policy}: {} {}", answer.status, answer.text());
        }
        times.sort();
        let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
        println!("{} answers while frozen, median {median:?}, worst {worst:?}", times.len());
        assert!(times.len() > 500, "{}", times.len());
        assert!(median < Duration::from_millis(20), "{median:?}");
        // A request waits for the store as long as its deadline and a lease.
        assert!(worst < Duration::from_millis(1000), "{worst:?}");
    })
    .await;
}

/// A hundred requests a second in all, regardless of waiting ones: each policy at each replica in turn.
struct OpenLoad<'a> {
    fleet: &'a [Weir],
    next: usize,
}

impl<'a> OpenLoad<'a> {
    fn new(fleet: &'a [Weir]) -> OpenLoad<'a> {
        OpenLoad { fleet, next: 0 }
    }

    async fn run_for(&mut self, time: Duration) -> Vec<(&'static str, Pending)> {
        let (end, mut tick) = (Instant::now() + time, interval(Duration::from_millis(10)));
        let mut pending = Vec::new();
        while Instant::now() < end {
            tick.tick().await;
            let (policy, weir) = (POLICIES[self.next % 3], &self.fleet[self.next / 3 % 3]);
            pending.push((policy, Pending::get(&weir.url(&format!("/{policy}")))));
            self.next += 1;
        }
        pending
    }
}

async fn reserved_by(weir: &Weir) -> f64 {
    let labels = [("op", "reserve"), ("result", "ok")];
    weir.metrics().await.sum("weir_store_calls_total", &labels)
}

async fn reserved(fleet: &[Weir]) -> Vec<f64> {
    join_all(fleet.iter().map(reserved_by)).await
}
