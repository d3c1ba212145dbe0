//! An upstream's rejection pauses the whole fleet, and no replica meets the same rejection again.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::system::uname;
use serde_json::{Value, json};

use crate::support::load::{Load, burst, services};
use crate::support::measure::Service;
use crate::support::weir::run;
use crate::support::{
    PATIENCE, RedisOptions, RedisServer, Reply, Request, SECOND, Upstream, Weir, client, eventually,
    eventually_within, lane, one_limiter,
};

/// The number of requests that wait, at 20 a second; the 40th is rejected.
const WAITING: usize = 150;
const RATE: usize = 20;
const REFUSED: usize = 40;

/// Counts the pairs that were served in the opposite order of their arrival. Arrivals less than 4 ms apart count as
/// simultaneous, because a machine does several things at once.
fn overtaken(services: &[Service]) -> usize {
    const APART: Duration = Duration::from_millis(4);
    let later =
        |one: &Service, other: &Service| one.arrived + APART < other.arrived && one.served > other.served;
    services.iter().map(|one| services.iter().filter(|other| later(one, other)).count()).sum()
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

/// Runs three replicas: one client sees the rejection, nothing is sent for the time that the upstream asks for, and
/// then the others follow in order at the rate of the limit.
async fn all_wait(refusal: impl Fn() -> Reply + Send + Sync + Copy + 'static, publishes: bool) {
    lane::calm(async || {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        if !publishes {
            redis.command(&["ACL", "SETUSER", "default", "-publish", "-subscribe"]).await;
        }
        let limiter = format!("{{limits: [{RATE}/1s], queue: {{timeout: 60s, max_waiting: 1000}}}}");
        let fleet = Weir::fleet(3, &one_limiter(&redis.store(), &limiter, &upstream)).await;
        upstream.script(move |number| (number == REFUSED).then(refusal));
        let burst = burst(&fleet, WAITING).await;
        let sent: Vec<_> = burst.iter().map(|(sent, _)| *sent).collect();
        upstream.wait_for(REFUSED, PATIENCE).await;
        eventually_within("it is shown", SECOND, async || {
            fleet[2].metrics().await.sum("weir_limiter_paused", &[("limiter", "api")]) == 1.0
        })
        .await;
        let answers = client::answers(burst.into_iter().map(|(_, pending)| pending).collect()).await;

        let statuses = |status| answers.iter().filter(|answer| answer.status == status).count();
        assert_eq!((statuses(429), statuses(200)), (1, WAITING - 1));
        let seen = upstream.seen();
        assert_eq!(seen.len(), WAITING, "each goes upstream once");
        let refused_at = seen[REFUSED - 1].at;
        let early = seen[REFUSED..].iter().filter(|seen| seen.at < refused_at + Duration::from_millis(2900));
        let early = early.count();
        let out_of_order = overtaken(&services(&upstream, &sent));
        let resumed = seen[REFUSED + early].at;
        let lasting = seen[WAITING - 1].at - resumed;
        println!(
            "{early} sent in the next 2.9 s, the rest from {:?} on in {lasting:?}, {out_of_order} pairs out of order",
            resumed - refused_at
        );
        assert!(early <= 3, "{early} sent while the upstream asked for a pause");
        let most = WAITING * WAITING / 2 * 3 / 100;
        assert!(out_of_order < most, "{out_of_order} pairs out of order, of which {most} would be 3 %");
        upstream.assert_within(RATE, SECOND);
        // As evenly as the limit allows on average, from the first request on.
        upstream.assert_within_since(Some(resumed), RATE / 2 + 2, SECOND / 2);
        let least = SECOND * u32::try_from(WAITING - REFUSED - early).unwrap() / u32::try_from(RATE).unwrap();
        assert!(lasting < least + SECOND, "{lasting:?} for the rest, of which {least:?} are needed");
    })
    .await;
}

#[tokio::test]
async fn all_replicas_wait_for_seconds() {
    all_wait(|| Reply::status(429).header("retry-after", "3"), true).await;
}

#[tokio::test]
async fn all_replicas_wait_without_announcements() {
    all_wait(|| Reply::status(429).header("retry-after-ms", "3000"), false).await;
}

/// An upstream that rejects for ever is asked once in each pause, and the pauses grow up to the longest.
#[tokio::test]
async fn an_upstream_that_rejects_for_ever_is_asked_once_in_each_pause() {
    lane::calm(async || {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let limiter = "{limits: [50/1s], pause: {guess: {first: 200ms, max: 1600ms}}, queue: {timeout: 60s, max_waiting: 1000}}";
        let fleet = Weir::fleet(2, &one_limiter(&redis.store(), limiter, &upstream)).await;
        upstream.script(|_| Some(Reply::status(429)));
        let _loads: Vec<Load> = fleet.iter().map(|weir| Load::start(weir, 10, &Request::get("/"))).collect();
        let began = Instant::now();
        eventually_within("the pauses have grown", Duration::from_secs(20), async || {
            began.elapsed() > Duration::from_secs(10)
        })
        .await;
        // The requests of the first moment were under way before the pause was known.
        let instants = upstream.instants();
        let first = instants.iter().take_while(|at| **at < instants[0] + Duration::from_millis(150)).count();
        let gaps: Vec<u128> =
            instants[first - 1..].windows(2).map(|pair| (pair[1] - pair[0]).as_millis()).collect();
        println!("{first} at first, then gaps of {gaps:?} ms");
        assert!(gaps.len() <= 12, "{} probes in 10 s: {gaps:?}", gaps.len());
        assert!(gaps.iter().skip(3).all(|gap| *gap >= 1500), "{gaps:?}");
        assert!(gaps[0] >= 190 && gaps.iter().all(|gap| *gap < 2500), "{gaps:?}");
    })
    .await;
}

/// Nonsensical values are ignored, and excessive ones are cut to the longest pause.
#[tokio::test]
async fn hostile_answers_pause_for_no_longer_than_the_longest() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let limiter = "{limits: [1000/1s], pause: {guess: {first: 50ms}, max: 900ms}, queue: {timeout: 10s, max_waiting: 10}}";
    let weir = Weir::start(&one_limiter("memory", limiter, &upstream)).await;
    let long = "9".repeat(7000);
    for (value, longest) in [
        ("99999999999", true),
        (long.as_str(), false),
        ("-1", false),
        ("Sun, 06 Nov 1994 08:49:37 GMT", false),
        ("soon", false),
        ("0", false),
    ] {
        // A pause that follows at once would be longer.
        eventually("the last pause is forgotten", async || {
            weir.ask("/api/limiters/api").await.json()["paused_until"].is_null()
        })
        .await;
        tokio::time::sleep(Duration::from_millis(250)).await;
        let number = upstream.count() + 1;
        let refusal = Reply::status(429).header("retry-after", value);
        upstream.script(move |request| (request == number).then(|| refusal.clone()));
        let refused = Instant::now();
        assert_eq!(weir.get("/").await.status, 429);
        assert_eq!(weir.get("/").await.status, 200);
        let waited = refused.elapsed();
        let about = if longest { 850..1500 } else { 45..500 };
        assert!(about.contains(&waited.as_millis()), "{} bytes: {waited:?}", value.len());
    }
    let metrics = weir.metrics().await;
    assert_eq!(metrics.sum("weir_upstream_invalid_quota_headers_total", &[("route", "all")]), 4.0);
}

/// External usage of the upstream's quota counts as used, where the upstream reports it.
#[tokio::test]
async fn the_remaining_quota_of_the_upstream_counts() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let reply = |limit: &str, left: &str| {
        Reply::status(200).header("x-ratelimit-limit", limit).header("x-ratelimit-remaining", left)
    };
    let limits = "limits: [20/1m, 1000/1h]";
    for (sync, counts) in [("sync: headers", true), ("sync: off", false)] {
        redis.command(&["FLUSHALL"]).await;
        let fleet =
            Weir::fleet(2, &one_limiter(&redis.store(), &format!("{{{limits}, {sync}}}"), &upstream)).await;
        upstream.reply("/", reply("20", "7"));
        assert_eq!(fleet[0].get("/").await.status, 200);
        // weir leaves others a little more permits than they use.
        let expected = if counts { [6, 999] } else { [19, 999] };
        eventually("it counts", async || fleet[1].available("api").await == expected).await;
        // A higher remainder than expected means that requests are still on their way; a limit that the limiter does
        // not have is not this limiter's.
        for other in [reply("20", "19"), reply("500", "0"), reply("20", "x")] {
            upstream.reply("/", other);
            assert_eq!(fleet[1].get("/").await.status, 200);
        }
        let expected = expected.map(|left| left - 3);
        eventually("nothing else does", async || fleet[0].available("api").await == expected).await;
        let drift =
            fleet[0].metrics().await.sum("weir_limiter_external_usage_permits_total", &[("limiter", "api")]);
        assert_eq!(drift, if counts { 12.0 } else { 0.0 });
    }
}

/// An upstream whose other callers use half of its quota and are never rejected: it counts by itself, reports the
/// remainder, and rejects beyond its quota.
struct Provider {
    used: Vec<Instant>,
    others: usize,
    began: Instant,
    ours: usize,
    refused: usize,
}

impl Provider {
    const LIMIT: usize = 60;
    const OTHERS: usize = 30;

    fn answer(&mut self) -> Reply {
        let now = Instant::now();
        // The other callers come evenly.
        let due = (now - self.began).as_millis() as usize * Provider::OTHERS / 1000;
        for missing in self.others..due {
            let at = self.began
                + SECOND * u32::try_from(missing).unwrap() / u32::try_from(Provider::OTHERS).unwrap();
            self.used.push(at);
        }
        self.others = self.others.max(due);
        self.used.retain(|at| now.duration_since(*at) < SECOND);
        let is_full = self.used.len() >= Provider::LIMIT;
        if is_full {
            self.refused += 1;
        } else {
            self.ours += 1;
            self.used.push(now);
        }
        let left = Provider::LIMIT.saturating_sub(self.used.len());
        Reply::status(if is_full { 429 } else { 200 })
            .header("x-ratelimit-limit", &Provider::LIMIT.to_string())
            .header("x-ratelimit-remaining", &left.to_string())
    }
}

/// External usage is left to the other callers, and the rest is used: in one of three stretches of ten seconds, nearly
/// always the first.
#[tokio::test]
async fn external_usage_is_left_to_the_other_callers() {
    const STRETCH: Duration = Duration::from_secs(10);
    lane::calm(async || {
        let (redis, upstream) = (RedisServer::start().await, Upstream::start());
        let limiter = "{limits: [60/1s], sync: headers, pause: {guess: {first: 100ms}}, queue: {timeout: 60s, max_waiting: 1000}}";
        let fleet = Weir::fleet(3, &one_limiter(&redis.store(), limiter, &upstream)).await;
        let began = Instant::now();
        let provider =
            Arc::new(Mutex::new(Provider { used: Vec::new(), others: 0, began, ours: 0, refused: 0 }));
        let scripted = Arc::clone(&provider);
        upstream.script(move |_| Some(scripted.lock().unwrap().answer()));
        let _loads: Vec<Load> = fleet.iter().map(|weir| Load::start(weir, 20, &Request::get("/"))).collect();
        let counts = || {
            let provider = provider.lock().unwrap();
            (provider.ours, provider.refused, provider.began.elapsed())
        };
        let after = async |time: Duration| {
            eventually_within("the time has passed", time + PATIENCE, async || began.elapsed() >= time).await;
            counts()
        };
        // weir learns the external usage in the first seconds. A machine that is held up sends later than it has
        // booked, is rejected, and must then learn again.
        let mut judged = Vec::new();
        for from in [4, 14, 24] {
            let (first, refused_first, from) = after(from * SECOND).await;
            let (last, refused_last, until) = after(from + STRETCH).await;
            let (ours, refused) = (last - first, refused_last - refused_first);
            let left = (Provider::LIMIT - Provider::OTHERS) as f64 * (until - from).as_secs_f64();
            let used = ours as f64 / left;
            let share = refused as f64 / (ours + refused) as f64;
            println!("{:.1} % of the rest used, {:.2} % refused", used * 100.0, share * 100.0);
            judged.push((used, share));
            if share < 0.01 && used > 0.9 {
                break;
            }
        }
        let is_kept = judged.last().is_some_and(|(used, share)| *share < 0.01 && *used > 0.9);
        assert!(is_kept, "used and refused: {judged:?}");
        let mut drift = 0.0;
        for weir in &fleet {
            drift += weir.metrics().await.sum("weir_limiter_external_usage_permits_total", &[("limiter", "api")]);
        }
        assert!(drift > 0.0);
    })
    .await;
}

/// Without requests, the queue of a paused limiter does nothing, and ends like any idle queue.
#[tokio::test]
async fn a_paused_partition_that_nobody_uses_costs_nothing() {
    const WATCHED: Duration = Duration::from_secs(4);
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let limiter = "{limits: [100/1s], key: [header:x-tenant]}";
    let weir = Weir::start(&one_limiter("memory", limiter, &upstream)).await;
    upstream.reply("/", Reply::status(429).header("retry-after", "60"));
    let refused = weir.connect().await.ask(&Request::get("/").header("x-tenant", "a")).await;
    assert_eq!(refused.status, 429);
    let cpu_seconds = async || weir.metrics().await.sum("process_cpu_seconds_total", &[]);
    let (began, before) = (Instant::now(), cpu_seconds().await);
    // The queue's worker stays for a second, and then ends.
    eventually_within("it has been watched", WATCHED + PATIENCE, async || began.elapsed() >= WATCHED).await;
    let used = cpu_seconds().await - before;
    assert!(used < 1.0, "{used} s of {WATCHED:?}");
    let refused = weir.connect().await.ask(&Request::get("/").header("x-tenant", "a")).await;
    assert_eq!((refused.status, refused.weir_error()), (429, Some("paused")));
}

/// A pause of all partitions ends in all of them, and the API shows that.
#[tokio::test]
async fn a_partitioned_limiter_that_is_resumed_is_shown_as_such() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let limiter = "{limits: [100/1s], key: [header:x-tenant]}";
    let fleet = Weir::fleet(2, &one_limiter(&redis.store(), limiter, &upstream)).await;
    let ask =
        async |weir: &Weir| weir.connect().await.ask(&Request::get("/").header("x-tenant", "a")).await.status;
    for weir in &fleet {
        assert_eq!(ask(weir).await, 200);
    }
    for (action, body, shown) in [("pause", "{\"for\": \"60s\"}", 1.0), ("resume", "", 0.0)] {
        let answer = fleet[0].tell_with(&format!("/api/limiters/api/{action}"), body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        for weir in &fleet {
            eventually("it is shown", async || {
                weir.metrics().await.sum("weir_limiter_paused", &[("limiter", "api")]) == shown
            })
            .await;
        }
    }
    assert_eq!(ask(&fleet[1]).await, 200);
}

/// Returns a replica's view of a limiter's pause, without its end.
async fn pause_shown(weir: &Weir) -> Value {
    let mut limiter = weir.ask("/api/limiters/api").await.json();
    assert_eq!(limiter["paused"]["until"].is_null(), limiter["paused_until"].is_null(), "{limiter}");
    if let Some(paused) = limiter["paused"].as_object_mut() {
        let until = paused.remove("until").and_then(|until| until.as_u64()).expect("its end");
        assert!((unix_seconds()..unix_seconds() + 70).contains(&(until / 1000)), "{until}");
        assert_eq!(paused.remove("local"), Some(json!(false)), "all replicas know it");
    }
    limiter["paused"].take()
}

/// Each replica reports why a limiter is paused, and which replica paused it.
#[tokio::test]
async fn each_replica_reports_the_cause_and_the_origin_of_a_pause() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let limiter = "{limits: [100/1s], pause: {guess: {first: 20s}}}";
    let fleet = Weir::fleet(2, &one_limiter(&redis.store(), limiter, &upstream)).await;
    let (mut ids, mut host) = (Vec::new(), Value::Null);
    for weir in &fleet {
        let replicas = async || weir.ask("/api/replicas").await.json()["replicas"].take();
        eventually("it knows the other one", async || {
            replicas().await.as_array().is_some_and(|all| all.len() == 2)
        })
        .await;
        let replicas = replicas().await;
        ids.push(replicas[0]["id"].clone());
        host = replicas[0]["host"].clone();
        assert_eq!(replicas[1]["host"], host, "both are here: {replicas}");
    }
    assert_eq!(host.as_str(), uname().nodename().to_str().ok());
    let shown_by_all = async |expected: Value| {
        for weir in &fleet {
            assert_eq!(pause_shown(weir).await, expected);
        }
    };
    let name = host.as_str().expect("a name");

    shown_by_all(Value::Null).await;
    upstream.reply("/named", Reply::status(429).header("retry-after", "60"));
    assert_eq!(fleet[0].get("/named").await.status, 429);
    // The store learns of the pause after the client's answer.
    eventually("it is paused", async || !pause_shown(&fleet[1]).await.is_null()).await;
    shown_by_all(json!({"reason": "upstream", "status": 429, "named": true, "by": ids[0], "by_host": name}))
        .await;
    fleet[0].wait_for_log(&["\"the upstream asks for a pause", "429", "true"]).await;
    fleet[1].wait_for_log(&["paused by an upstream through another replica", "429", name]).await;
    let listed = run(&["limiters", "--admin", &fleet[1].admin("")]).await;
    assert!(listed.stdout.lines().any(|row| row.ends_with("s (429)")), "{}", listed.stdout);

    // A shorter pause by hand replaces the longer one, whose cause is forgotten when the limiter resumes.
    fleet[1].tell_with("/api/limiters/api/pause", "{\"for\": \"30s\"}").await;
    shown_by_all(json!({"reason": "by_hand", "by": ids[1], "by_host": name})).await;
    fleet[1].wait_for_log(&["\"paused by hand\"", "30"]).await;
    fleet[0].wait_for_log(&["paused by hand through another replica", name]).await;
    fleet[0].tell("/api/limiters/api/resume").await;
    shown_by_all(Value::Null).await;
    fleet[0].wait_for_log(&["\"resumed by hand\""]).await;
    fleet[1].wait_for_log(&["resumed by hand through another replica", name]).await;

    upstream.reply("/unnamed", Reply::status(429));
    eventually("it goes on", async || fleet[1].get("/").await.status == 200).await;
    assert_eq!(fleet[1].get("/unnamed").await.status, 429);
    eventually("it is paused", async || !pause_shown(&fleet[0]).await.is_null()).await;
    shown_by_all(json!({"reason": "upstream", "status": 429, "named": false, "by": ids[1], "by_host": name}))
        .await;
    fleet[0].wait_for_log(&["paused by an upstream through another replica", "false"]).await;
    // Of the four changes each replica has logged the other's two as those of another replica.
    for weir in &fleet {
        assert_eq!(
            weir.log().lines().filter(|line| line.contains("another replica")).count(),
            2,
            "{}",
            weir.log()
        );
    }
}

/// A host name from the store is shown without control characters, and cut to the length of a name.
#[tokio::test]
async fn a_host_name_from_the_store_is_sanitized() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let weir = Weir::start(&one_limiter(&redis.store(), "{limits: [100/1s]}", &upstream)).await;
    let replica = "local now = redis.call('TIME')[1] * 1000000
        redis.call('SET', KEYS[1], cmsgpack.pack({ 7, now, '0.1.0', 'x', ARGV[1] }))";
    let host = format!("a\u{1b}[2J\u{9b}b\n{}", "c".repeat(100));
    redis.command(&["EVAL", replica, "1", "weir:v1:replicas", &host]).await;
    let shown = format!("a[2Jb{}", "c".repeat(59));
    eventually("it is there", async || {
        let replicas = weir.ask("/api/replicas").await.json()["replicas"].take();
        replicas.as_array().is_some_and(|all| all.iter().any(|replica| replica["host"] == shown))
    })
    .await;
    let listed = run(&["replicas", "--admin", &weir.admin("")]).await;
    assert!(listed.stdout.lines().any(|row| row.contains(&shown)), "{}", listed.stdout);
}

/// A pause by hand holds on all replicas: queued requests wait longer, requests that would wait too long are refused,
/// and then all goes on.
#[tokio::test]
async fn a_limiter_is_paused_and_resumed_by_hand() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let limiter = "{limits: [5/1s], queue: {timeout: 20s, max_waiting: 100}}";
    let fleet = Weir::fleet(2, &one_limiter(&redis.store(), limiter, &upstream)).await;
    for weir in &fleet {
        assert_eq!(weir.get("/").await.status, 200);
    }
    let answer = fleet[0].tell_with("/api/limiters/api/pause", "{\"for\": \"30s\"}").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(answer.json()["paused_until"].as_u64().is_some_and(|until| until / 1000 >= unix_seconds() + 25));
    eventually("the other one has heard of it", async || {
        let refused = fleet[1].get("/").await;
        (refused.status, refused.weir_error()) == (429, Some("paused"))
    })
    .await;
    let refused = fleet[1].get("/").await;
    let retry_after: u64 = refused.header("retry-after").expect("it says when").parse().unwrap();
    assert!((20..=90).contains(&retry_after), "{retry_after}");
    let before = upstream.count();

    let answer = fleet[1].tell("/api/limiters/api/resume").await;
    assert!((answer.status, &answer.json()["paused_until"]) == (200, &Value::Null), "{}", answer.text());
    eventually("the other one goes on", async || fleet[0].get("/").await.status == 200).await;

    // Queued requests wait longer, and move up again.
    fleet[0].tell_with("/api/limiters/api/pause", "{\"for\": \"15s\"}").await;
    let waiting = fleet[1].begin(8, "/waits");
    fleet[1].wait_for_waiting(8).await;
    fleet[0].tell("/api/limiters/api/resume").await;
    let resumed = Instant::now();
    client::assert_all_ok(&client::answers(waiting).await);
    assert!(resumed.elapsed() < Duration::from_secs(8), "{:?}", resumed.elapsed());
    assert!(upstream.count() > before);
    for body in
        ["", "{}", "{\"for\": 30}", "{\"for\": \"2d\"}", "{\"for\": \"0s\"}", "{\"for\": \"1s\", \"x\": 1}"]
    {
        let answer = fleet[0].tell_with("/api/limiters/api/pause", body).await;
        assert_eq!(answer.status, 400, "{body}: {}", answer.text());
    }
    assert_eq!(fleet[0].tell("/api/limiters/none/resume").await.status, 404);
    // The same actions from the command line.
    let admin = fleet[0].admin("");
    let command = async |words: &[&str]| run(&[words, &["--admin", &admin]].concat()).await;
    command(&["pause", "api", "--for", "30s"]).await.assert_code(0);
    let listed = command(&["limiters"]).await;
    let table = listed.output();
    let row = table.lines().nth(1).unwrap_or_default();
    assert!(table.contains("PAUSED FOR") && row.ends_with("s (by hand)"), "{table}");
    command(&["resume", "api"]).await.assert_code(0);
    let listed = command(&["limiters", "api", "--json"]).await;
    assert!(listed.output().contains("\"paused_until\": null"), "{}", listed.output());
    let replicas = command(&["replicas"]).await;
    assert_eq!(replicas.output().lines().count(), 3, "{}", replicas.output());
    let host = uname().nodename().to_string_lossy().into_owned();
    assert_eq!(
        replicas.output().lines().filter(|row| row.contains(&host)).count(),
        2,
        "{}",
        replicas.output()
    );
    let unknown = command(&["reset", "none"]).await;
    unknown.assert_code(1);
    assert!(unknown.output().contains("unknown limiter \"none\"; known: api"), "{}", unknown.output());
    assert_eq!(fleet[0].tell("/api/limiters/api/destroy").await.status, 404);
}

/// Returns whether a replica shows its pause as one that it alone knows.
async fn local_pause(weir: &Weir) -> Value {
    weir.ask("/api/limiters/api").await.json()["paused"]["local"].take()
}

/// A pause that only one replica knows, because Redis is gone, is shown there and can be ended there. When Redis is back, the latest
/// action by hand counts on all replicas.
#[tokio::test]
async fn a_pause_without_redis_is_local_until_redis_is_back() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let limiter = "{limits: [50/1s], queue: {timeout: 2s, max_waiting: 100}}";
    let fleet = Weir::fleet(2, &one_limiter(&redis.store(), limiter, &upstream)).await;
    for weir in &fleet {
        assert_eq!(weir.get("/").await.status, 200);
        eventually("it knows the other one", async || {
            weir.ask("/api/replicas").await.json()["replicas"].as_array().map_or(0, Vec::len) == 2
        })
        .await;
    }
    fleet[1].tell_with("/api/limiters/api/pause", "{\"for\": \"10m\"}").await;
    eventually("both are paused", async || fleet[0].get("/").await.weir_error() == Some("paused")).await;
    let port = Some(redis.port());
    drop(redis);
    for weir in &fleet {
        eventually("Redis is missed", async || weir.metrics().await.sum("weir_store_up", &[]) == 0.0).await;
        assert_eq!(local_pause(weir).await, json!(false), "both know it");
    }

    let admin = [0, 1].map(|index: usize| fleet[index].admin(""));
    let resumed = run(&["resume", "api", "--admin", &admin[0]]).await;
    resumed.assert_code(0);
    assert!(resumed.output().contains("done on this replica alone"), "{}", resumed.output());
    eventually("it goes on", async || fleet[0].get("/").await.status == 200).await;
    assert_ne!(fleet[1].get("/").await.status, 200, "the other one does not know");
    let answer = fleet[0].tell_with("/api/limiters/api/pause", "{\"for\": \"5m\"}").await.json();
    assert_eq!(
        (&answer["applied"], &answer["paused"]["local"]),
        (&json!("replica"), &json!(true)),
        "{answer}"
    );
    let listed = run(&["limiters", "--admin", &admin[0]]).await;
    assert!(listed.output().contains("s (by hand, this replica alone)"), "{}", listed.output());
    assert_eq!(fleet[0].get("/").await.weir_error(), Some("paused"));
    assert_eq!(fleet[0].metrics().await.sum("weir_limiter_paused", &[("limiter", "api")]), 1.0);
    // Requests that wait do so no longer than they may.
    let asked = Instant::now();
    assert_eq!(fleet[0].get("/").await.status, 429);
    assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
    // Actions have an order where they lie further apart than a call to a Redis that has just come back may take.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(fleet[1].tell("/api/limiters/api/resume").await.json()["applied"], json!("replica"));
    eventually("it goes on", async || fleet[1].get("/").await.status == 200).await;

    let _redis = RedisServer::start_with(RedisOptions { port, ..RedisOptions::default() }).await;
    for weir in &fleet {
        eventually("the last action counts", async || {
            weir.metrics().await.sum("weir_store_up", &[]) == 1.0
                && weir.ask("/api/limiters/api").await.json()["paused_until"].is_null()
                && weir.get("/").await.status == 200
        })
        .await;
        assert_eq!(weir.metrics().await.sum("weir_limiter_paused", &[("limiter", "api")]), 0.0);
    }
    let answer = fleet[0].tell_with("/api/limiters/api/pause", "{\"for\": \"5m\"}").await.json();
    assert_eq!(
        (&answer["applied"], &answer["paused"]["local"]),
        (&json!("fleet"), &json!(false)),
        "{answer}"
    );
}

/// Redis forgets a pause by hand of a limiter that nobody uses; the replicas do not.
#[tokio::test]
async fn a_pause_by_hand_outlives_the_memory_of_redis() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let limiter = "{limits: [50/1s], key: [header:x-tenant]}";
    let fleet = Weir::fleet(2, &one_limiter(&redis.store(), limiter, &upstream)).await;
    fleet[0].tell_with("/api/limiters/api/pause", "{\"for\": \"10m\"}").await;
    eventually("the other one has heard of it", async || {
        fleet[1].metrics().await.sum("weir_limiter_paused", &[("limiter", "api")]) == 1.0
    })
    .await;
    redis.command(&["FLUSHALL"]).await;
    for weir in &fleet {
        eventually("the store knows it again", async || local_pause(weir).await == json!(false)).await;
        assert_eq!(weir.get("/").await.weir_error(), Some("paused"));
    }
    assert_eq!(fleet[1].tell("/api/limiters/api/resume").await.status, 200);
    for weir in &fleet {
        eventually("it goes on", async || weir.get("/").await.status == 200).await;
    }
}

/// The last action by hand counts, however it was heard, and in an outage behind it.
#[tokio::test]
async fn a_resume_that_is_not_announced_ends_the_pause_on_all_replicas() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let limiter = "{limits: [50/1s], key: [header:x-tenant]}";
    let fleet = Weir::fleet(2, &one_limiter(&redis.store(), limiter, &upstream)).await;
    let other_is_paused = async |is_paused| {
        eventually("the other one has heard of it", async || {
            fleet[1].metrics().await.sum("weir_limiter_paused", &[("limiter", "api")]) == is_paused
        })
        .await;
    };
    fleet[0].tell_with("/api/limiters/api/pause", "{\"for\": \"10m\"}").await;
    other_is_paused(1.0).await;
    redis.command(&["ACL", "SETUSER", "default", "-publish"]).await;
    assert_eq!(fleet[0].tell("/api/limiters/api/resume").await.status, 200);
    other_is_paused(0.0).await;
    // Nor is a pause missed, nor its end.
    fleet[0].tell_with("/api/limiters/api/pause", "{\"for\": \"10m\"}").await;
    other_is_paused(1.0).await;
    assert_eq!(fleet[1].get("/").await.weir_error(), Some("paused"));
    assert_eq!(fleet[0].tell("/api/limiters/api/resume").await.status, 200);
    other_is_paused(0.0).await;
    drop(redis);
    eventually("it grants its share", async || {
        fleet[1].metrics().await.sum("weir_store_up", &[]) == 0.0 && fleet[1].get("/").await.status == 200
    })
    .await;
}

#[tokio::test]
async fn a_pause_is_a_warning_and_no_change_of_the_limits() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let limiter = "{limits: [{rate: 2, per: 1s, algorithm: leaky_bucket}], queue: {timeout: 1m}}";
    let fleet = Weir::fleet(2, &one_limiter(&redis.store(), limiter, &upstream)).await;
    let waiting: Vec<_> = fleet.iter().flat_map(|weir| weir.begin(4, "/")).collect();
    for weir in &fleet {
        weir.wait_for_waiting(2).await;
    }
    fleet[0].tell_with("/api/limiters/api/pause", "{\"for\": \"2s\"}").await;
    fleet[0].wait_for_log(&["\"WARN\"", "\"paused by hand\""]).await;
    fleet[1].wait_for_log(&["\"WARN\"", "paused by hand through another replica"]).await;
    client::assert_all_ok(&client::answers(waiting).await);
    for weir in &fleet {
        assert!(!weir.log().contains("limits changed"), "{}", weir.log());
    }
}
