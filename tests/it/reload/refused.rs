//! Reloads that fail while they are prepared, at each step and under load. Nothing has changed then.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::certificates::Certificates;
use crate::support::measure::fullest_window;
use crate::support::{
    HeldFile, Load, PATIENCE, RedisServer, Request, SECOND, Upstream, Weir, configuration, eventually, lane,
};

/// The time for which a reload is held before it fails. If its higher limit came into force, far more requests would
/// pass in it.
const HELD: Duration = Duration::from_millis(1200);

/// The environment's name for the path of the held file: weir does not watch a file behind a reference.
const HELD_FILE: &str = "WEIR_TEST_HELD";

/// Permits a second of the limiter that is under load.
const RATE: usize = 20;

/// A step of preparing a reload that fails.
struct Step {
    name: &'static str,
    /// `server.tls`, in flow style; none if empty.
    server_tls: String,
    /// The upstream of a route, in flow style.
    upstream: String,
    /// The sound content of the held file.
    content: String,
    /// How often the file is read while the configuration is checked, before the reload is prepared.
    checks: usize,
}

fn steps(directory: &TempDir) -> Vec<Step> {
    let files = Certificates::write_to(directory.path());
    let content = |path| std::fs::read_to_string(path).unwrap();
    let (held, plain) = (format!("\"${{{HELD_FILE}}}\""), "\"http://127.0.0.1:9\"");
    let (certificate, key) = (files.certificate.display(), files.key.display());
    let upstream = |rest: String| format!("{{url: \"https://127.0.0.1:9\", {rest}}}");
    let of_upstream = |name, rest, path, checks| {
        let (server_tls, upstream) = (String::new(), upstream(rest));
        Step { name, server_tls, upstream, content: content(path), checks }
    };
    let of_server = |name, server_tls, path, checks| Step {
        name,
        server_tls,
        upstream: plain.to_owned(),
        content: content(path),
        checks,
    };
    vec![
        of_upstream("upstream.ca", format!("ca: {held}"), &files.ca, 1),
        of_upstream("upstream.cert", format!("cert: {held}, key: {key}"), &files.certificate, 2),
        of_upstream("upstream.key", format!("cert: {certificate}, key: {held}"), &files.key, 2),
        of_server("server.tls.cert", format!("{{cert: {held}, key: {key}}}"), &files.certificate, 2),
        of_server("server.tls.key", format!("{{cert: {certificate}, key: {held}}}"), &files.key, 2),
        of_server(
            "server.tls.client_ca",
            format!("{{cert: {certificate}, key: {key}, client_ca: {held}}}"),
            &files.ca,
            1,
        ),
    ]
}

/// The configuration in force.
fn running(store: &str, upstream: &Upstream) -> String {
    let limiters = [
        ("api", "{limits: [20/1s], queue: {timeout: 60s, max_waiting: 100}}"),
        ("tenants", "{limits: [100/1h], key: [header:x-tenant]}"),
        ("leaves", "{limits: [100/1h]}"),
    ];
    let routes = [("path: /api", "limiter: api"), ("path: /", "limiters: [tenants, leaves]")];
    configuration(store, &limiters, &routes, upstream)
}

/// A configuration with a higher limit, a limiter without its key, a new limiter and one that is gone: none of it may
/// be noticed.
fn refused(store: &str, step: &Step, upstream: &Upstream) -> String {
    let limiters = [
        ("api", "{limits: [1000/1s], queue: {timeout: 60s, max_waiting: 7}}"),
        ("tenants", "{limits: [100/1h]}"),
        ("comes", "{limits: [100/1h]}"),
    ];
    let routes = [("path: /api", "limiter: api"), ("path: /", "limiters: [tenants, comes]")];
    let rest = configuration(store, &limiters, &routes, upstream);
    let server = match step.server_tls.as_str() {
        "" => String::new(),
        tls => format!("server: {{tls: {tls}}}\n"),
    };
    format!("{server}{rest}  - {{name: fails, match: {{path: /fails}}, upstream: {}}}\n", step.upstream)
}

/// Everything that a configuration decides and that can be seen from outside.
#[derive(PartialEq, Debug)]
struct Shown {
    /// The series of limiters and routes, by name and labels.
    series: BTreeSet<String>,
    /// The gauges of configured values.
    configured: BTreeMap<String, u64>,
    /// Limits and keys by the admin API.
    limiters: BTreeMap<String, (Vec<String>, bool)>,
    keys: BTreeSet<String>,
}

impl Shown {
    async fn of(weir: &Weir, redis: &RedisServer) -> Shown {
        let (mut series, mut configured) = (BTreeSet::new(), BTreeMap::new());
        for sample in weir.metrics().await.samples {
            let name = format!("{}{:?}", sample.name, sample.labels);
            if ["weir_limiter_limit_permits", "weir_queue_capacity"].contains(&sample.name.as_str()) {
                configured.insert(name.clone(), sample.value as u64);
            }
            if sample.labels.contains_key("limiter") || sample.labels.contains_key("route") {
                series.insert(name);
            }
        }
        let limiters = limiters(weir).await.into_iter().map(|limiter| {
            let limits = limiter["limits"].as_array().unwrap();
            let limits = limits.iter().map(|limit| limit["limit"].to_string()).collect();
            (limiter["name"].to_string(), (limits, limiter["partitioned"].as_bool().unwrap()))
        });
        // A queue's key lives for seconds after its last request.
        // Queues come and go, and what has been used is written every few seconds.
        let of_configuration = |key: &String| !key.contains(":queue:") && !key.contains(":usage:");
        let keys = redis.keys().await.into_iter().filter(of_configuration).collect();
        Shown { series, configured, limiters: limiters.collect(), keys }
    }

    /// Returns the differences from what was shown before.
    fn differences(&self, before: &Shown) -> Vec<String> {
        let mut differences = Vec::new();
        let mut compare = |what: &str, gone: Vec<String>, come: Vec<String>| {
            if !gone.is_empty() || !come.is_empty() {
                differences.push(format!("{what}: gone {gone:?}, come {come:?}"));
            }
        };
        let less =
            |one: &BTreeSet<String>, other: &BTreeSet<String>| one.difference(other).cloned().collect();
        compare("series", less(&before.series, &self.series), less(&self.series, &before.series));
        compare("keys", less(&before.keys, &self.keys), less(&self.keys, &before.keys));
        if self.configured != before.configured {
            differences.push(format!("gauges: {:?} was {:?}", self.configured, before.configured));
        }
        if self.limiters != before.limiters {
            differences.push(format!("limiters: {:?} was {:?}", self.limiters, before.limiters));
        }
        differences
    }
}

async fn limiters(weir: &Weir) -> Vec<serde_json::Value> {
    let listing = weir.ask("/api/limiters").await.json();
    listing["limiters"].as_array().unwrap().clone()
}

/// Permits granted by each limiter since weir started.
async fn granted(weir: &Weir) -> BTreeMap<String, u64> {
    let granted = |limiter: &serde_json::Value| limiter["granted"].as_u64().unwrap();
    limiters(weir).await.iter().map(|limiter| (limiter["name"].to_string(), granted(limiter))).collect()
}

/// Four requests of two tenants; all are served.
async fn touch_tenants(weir: &Weir) {
    let mut client = weir.connect().await;
    for tenant in ["one", "two", "one", "two"] {
        let answer = client.ask(&Request::get("/").header("x-tenant", tenant)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

/// The instants of the requests under load.
fn api_instants(upstream: &Upstream) -> Vec<Instant> {
    upstream.seen().iter().filter(|seen| seen.target == "/api").map(|seen| seen.at).collect()
}

/// Waits until weir has counted one more reload that failed.
async fn until_refused(weir: &Weir, before: f64) {
    eventually("a refused reload", async || weir.reloads("error").await > before).await;
}

#[tokio::test]
async fn a_reload_that_fails_at_any_step_has_changed_nothing() {
    lane::calm(async || {
        let (redis, upstream, directory) =
            (RedisServer::start().await, Upstream::start(), TempDir::new().unwrap());
        let held = HeldFile::new();
        let environment = [(HELD_FILE, held.path().to_string_lossy().into_owned())];
        let weir = Weir::start_in(&running(&redis.store(), &upstream), &environment).await;
        touch_tenants(&weir).await;
        let _load = Load::start(&weir, 8, &Request::get("/api"));
        weir.wait_for_waiting(7).await;
        upstream.wait_for(2 * RATE, PATIENCE).await;

        let (mut faults, before) = (Vec::new(), Shown::of(&weir, &redis).await);
        for step in steps(&directory) {
            let mut note = |when: &str, found: Vec<String>| {
                faults.extend(found.into_iter().map(|fault| format!("{}, {when}: {fault}", step.name)));
            };
            let (refusals, granted_before) = (weir.reloads("error").await, granted(&weir).await);
            weir.write_config(&refused(&redis.store(), &step, &upstream));
            for _ in 0..step.checks {
                held.reading().await.answer(&step.content).await;
            }
            let last = held.reading().await;
            let since = Instant::now();
            tokio::time::sleep(HELD).await;
            let sent = api_instants(&upstream).into_iter().filter(|at| *at >= since).count();
            // The 1.2 s hold at most the bursts of two windows.
            if !(RATE / 2..=2 * RATE).contains(&sent) {
                note("while it is prepared", vec![format!("{sent} requests in {HELD:?} at {RATE}/s")]);
            }
            note("while it is prepared", Shown::of(&weir, &redis).await.differences(&before));
            last.answer("no PEM").await;
            until_refused(&weir, refusals).await;

            touch_tenants(&weir).await;
            note("afterwards", Shown::of(&weir, &redis).await.differences(&before));
            let granted = granted(&weir).await;
            let is_counted = |(name, count): (&String, &u64)| {
                let more = if name.contains("api") { 0 } else { 4 };
                granted.get(name).is_some_and(|now| *now >= count + more)
            };
            if !granted_before.iter().all(is_counted) {
                note("afterwards", vec![format!("granted {granted:?} was {granted_before:?}")]);
            }
        }
        assert!(faults.is_empty(), "{}", faults.join("\n"));
        let slack = upstream.lag().min(SECOND / 40);
        let fullest = fullest_window(&api_instants(&upstream), SECOND - slack);
        assert!(fullest <= RATE, "{fullest} requests in a second less {slack:?}, at {RATE}/s");
    })
    .await;
}
