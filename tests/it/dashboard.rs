//! The dashboard: the page, and the stream of events that updates it.

use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{
    PATIENCE, Reply, Request, Upstream, Weir, configuration, eventually, eventually_within, lane,
    one_limiter, poll_for_within,
};

/// The stream of events that a page receives.
struct Events {
    stream: TcpStream,
    text: String,
}

impl Events {
    async fn open(weir: &Weir, header: &str) -> Events {
        let url = weir.admin("/api/events");
        let host = url.trim_start_matches("http://").split('/').next().unwrap();
        let mut stream = TcpStream::connect(host).await.expect("the admin listener accepts");
        let request = format!("GET /api/events HTTP/1.1\r\nhost: {host}\r\n{header}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        Events { stream, text: String::new() }
    }

    /// Reads on until the stream contains `told`; returns `None` if the stream ends before.
    async fn until(&mut self, told: &str) -> Option<()> {
        let read = async {
            while !self.text.contains(told) {
                let mut buffer = [0; 8192];
                let read = self.stream.read(&mut buffer).await.ok().filter(|read| *read > 0)?;
                self.text.push_str(&String::from_utf8_lossy(&buffer[..read]));
            }
            Some(())
        };
        tokio::time::timeout(PATIENCE, read).await.expect("told in time")
    }

    /// Returns the next event with that name.
    async fn next(&mut self, name: &str) -> Value {
        let begin = format!("event: {name}\ndata: ");
        self.until(&begin).await.expect("an event");
        let start = self.text.find(&begin).unwrap() + begin.len();
        self.text.drain(..start);
        self.until("\n\n").await.expect("the rest of it");
        let end = self.text.find("\n\n").unwrap();
        // A chunk may end anywhere in a line, together with the size of the next chunk.
        let line: String = self.text.drain(..end).collect();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }
}

#[tokio::test]
async fn a_page_gets_the_last_hour_and_then_the_state() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let limiter = "{limits: [3/20s], queue: {timeout: 1m, max_waiting: 7}}";
    let weir = Weir::start(&one_limiter("memory", limiter, &upstream)).await;
    assert_eq!(weir.get("/").await.status, 200);
    // weir samples the fleet's figures every five seconds.
    eventually("it has been sampled", async || {
        let history = Events::open(&weir, "").await.next("history").await;
        let granted = history["limiters"]["api"]["granted"].as_array().cloned().unwrap_or_default();
        assert!(history["at"].as_array().unwrap().len() >= granted.len());
        granted.iter().any(|granted| granted.as_f64().is_some_and(|granted| granted > 0.0))
    })
    .await;
    let mut events = Events::open(&weir, "").await;
    let state = events.next("state").await;
    let api = &state["limiters"][0];
    assert_eq!((&api["name"], &api["granted"], &api["waiting"]), (&"api".into(), &1.into(), &0.into()));
    assert_eq!((&api["limits"][0]["available"], &api["mode"]), (&2.into(), &"enforce".into()));
    assert_eq!((&state["store_up"], &state["draining"]), (&true.into(), &false.into()));
    assert_eq!(state["replicas"][0]["configuration"], state["configuration"]);
    let (began, pending) = (Instant::now(), weir.begin(4, "/"));
    weir.wait_for_waiting(2).await;
    let state = loop {
        let state = events.next("state").await;
        if state["limiters"][0]["granted"] == 3 {
            break state;
        }
    };
    assert_eq!(
        (&state["limiters"][0]["waiting"], &state["limiters"][0]["limits"][0]["available"]),
        (&2.into(), &0.into())
    );
    // A request that still waits has waited longer in the later state, but no longer than the test has run.
    let waited = |state: &Value| state["limiters"][0]["longest_wait_ms"].as_u64().expect("a number");
    let (first, later) = (waited(&state), waited(&events.next("state").await));
    assert!(first + 1000 < later && u128::from(later) <= began.elapsed().as_millis(), "{first} {later}");
    drop(pending);
    weir.wait_for_empty_queue().await;
    assert_eq!(weir.ask("/api/limiters/api").await.json()["longest_wait_ms"], 0);
}

#[tokio::test]
async fn a_page_behind_a_token_asks_for_the_token_and_shows_nothing_else() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let limiter = one_limiter("memory", "{limits: [3/1m]}", &upstream);
    let listen = "listen: 127.0.0.1:0\nadmin: {listen: 127.0.0.1:0, token: t0ken}";
    let weir = Weir::start_whole(&format!("{listen}\n{limiter}")).await;
    let page = weir.ask("/").await;
    assert_eq!(page.status, 200);
    let policy = page.header("content-security-policy").expect("the page may do little");
    assert!(policy.contains("script-src 'sha256-") && !policy.contains("unsafe"), "{policy}");
    assert!(!page.text().contains("t0ken"));
    assert_eq!(weir.ask("/api/events").await.status, 401);
    let mut events = Events::open(&weir, "authorization: Bearer t0ken\r\n").await;
    assert_eq!(events.next("state").await["limiters"][0]["name"], "api");
}

#[tokio::test]
async fn the_number_of_open_pages_is_bounded_and_all_end_with_weir() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let mut weir = Weir::start(&one_limiter("memory", "{limits: [3/1m]}", &upstream)).await;
    let mut pages = Vec::new();
    for _ in 0..32 {
        let mut events = Events::open(&weir, "").await;
        events.next("state").await;
        pages.push(events);
    }
    assert_eq!(weir.ask("/api/events").await.status, 503);
    assert_eq!(weir.ask("/readyz").await.status, 200);
    drop(pages.pop());
    eventually("there is room for another", async || {
        let mut events = Events::open(&weir, "").await;
        events.until("\r\n").await;
        events.text.starts_with("HTTP/1.1 200")
    })
    .await;
    let stopped = Instant::now();
    weir.sigterm();
    assert!(weir.wait_exit(PATIENCE).await.success());
    assert!(stopped.elapsed() < Duration::from_secs(8), "{:?}", stopped.elapsed());
    for page in &mut pages {
        assert!(page.until("what is never said").await.is_none(), "the stream ends");
        assert!(page.text.contains("\"draining\":true"), "it is told: {}", page.text);
        assert!(page.text.ends_with("0\r\n\r\n"), "and then ends, and is not cut off: {}", page.text);
    }
}

/// With fifty limiters and ten thousand waiting requests, an open page costs little CPU.
#[tokio::test]
async fn a_page_that_is_open_costs_little() {
    const LIMITERS: usize = 50;
    const WAITING: usize = 200;
    const WATCHED: Duration = Duration::from_secs(3);
    const ROUNDS: u32 = 2;
    lane::alone(async || {
        let upstream = Upstream::start();
        let url = upstream.url();
        let limiters: String = (0..LIMITERS)
            // So long a guard that the first request of each uses its slot also on a busy machine. The others wait.
            .map(|number| format!("  l{number}: {{limits: [1/5m], guard: 1s, queue: {{timeout: 1d, max_waiting: 1000}}}}\n"))
            .collect();
        let routes: String = (0..LIMITERS)
            .map(|number| {
                format!("  - {{name: r{number}, match: {{path: /{number}/}}, upstream: \"{url}\", limiter: l{number}}}\n")
            })
            .collect();
        let weir = Weir::start(&format!("store: memory\nserver: {{max_connections: 20000}}\nlimiters:\n{limiters}routes:\n{routes}")).await;
        let mut waiting = Vec::new();
        for number in 0..LIMITERS {
            for _ in 0..=WAITING {
                let mut connection = weir.connect().await;
                connection.send(&Request::get(&format!("/{number}/"))).await.expect("weir reads");
                waiting.push(connection);
            }
        }
        weir.wait_for_waiting(LIMITERS * WAITING).await;
        let watch = async |events: Option<&mut Events>| {
            let (began, before) = (Instant::now(), weir.cpu_time());
            match events {
                Some(events) => while began.elapsed() < WATCHED {
                    let state = events.next("state").await;
                    let shown = state["limiters"].as_array().expect("limiters");
                    assert_eq!(shown.len(), LIMITERS);
                    assert!(shown.iter().all(|limiter| limiter["waiting"] == WAITING));
                },
                None => eventually_within("the time has passed", WATCHED + PATIENCE, async || began.elapsed() >= WATCHED).await,
            }
            (weir.cpu_time() - before).as_secs_f64() / began.elapsed().as_secs_f64()
        };
        // Measured in turns, so that other work of the machine affects both alike.
        let (mut idle, mut watched) = (0.0, 0.0);
        for _ in 0..ROUNDS {
            idle += watch(None).await / f64::from(ROUNDS);
            let mut events = Events::open(&weir, "").await;
            watched += watch(Some(&mut events)).await / f64::from(ROUNDS);
        }
        println!("{:.2} % of a core without a page, {:.2} % with one", idle * 100.0, watched * 100.0);
        // An open page takes about 0.5 % of a core; the system's clock has a resolution of 1 %.
        assert!(watched - idle < 0.015, "{:.2} % of a core", (watched - idle) * 100.0);
        drop(waiting);
    })
    .await;
}

/// Removes what changes with time alone: ages, and what is reckoned from the present instant.
fn still(value: &Value) -> Value {
    const MOVING: [&str; 4] = ["longest_wait_ms", "told_ms_ago", "exhausted_in_seconds", "seconds"];
    match value {
        Value::Object(parts) => {
            let parts = parts.iter().filter(|(key, _)| !MOVING.contains(&key.as_str()));
            parts.map(|(key, value)| (key.clone(), still(value))).collect()
        }
        Value::Array(values) => values.iter().map(still).collect(),
        other => other.clone(),
    }
}

/// The page, the API and the metrics have the same figures at the same time.
#[tokio::test]
async fn the_page_shows_the_figures_of_the_api_and_of_the_metrics() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let reply = Reply::status(200).header("x-ratelimit-limit", "20").header("x-ratelimit-remaining", "9");
    upstream.reply("/", reply);
    let limiter = "{limits: [20/1h, 1000/1m], key: [header:x-tenant], queue: {timeout: 1d}}";
    let plain = "{limits: [20/1h], queue: {timeout: 1d, max_waiting: 2}}";
    let routes = [("path: /keyed", "limiter: keyed"), ("path: /", "limiter: plain")];
    let limiters = [("keyed", limiter), ("plain", plain)];
    let weir = Weir::start(&configuration("memory", &limiters, &routes, &upstream)).await;
    for path in ["/keyed", "/"] {
        for _ in 0..20 {
            assert_eq!(weir.get(path).await.status, 200);
        }
    }
    let _waiting = weir.begin(2, "/");
    weir.wait_for_waiting(2).await;
    assert_eq!(weir.get("/").await.status, 429);
    let figures = poll_for_within("all of them still, and alike", 2 * PATIENCE, async || {
        let state = Events::open(&weir, "").await.next("state").await;
        let history = Events::open(&weir, "").await.next("history").await;
        let (api, metrics) = (weir.ask("/api/limiters").await.json(), weir.metrics().await);
        let last = |name: &str, key: &str| history["limiters"][name][key].as_array()?.last()?.as_f64();
        let limiters = api["limiters"].as_array()?;
        for limiter in limiters {
            let (name, fleet) = (limiter["name"].as_str()?, &limiter["fleet"]);
            let known = [("granted", "granted_per_second"), ("waiting", "waiting"), ("p99", "wait_p99")];
            let is_alike = |(key, shown): &(&str, &str)| {
                let (last, shown) = (last(name, key), fleet[shown].as_f64());
                matches!((last, shown), (Some(last), Some(shown)) if (last - shown).abs() < 0.01)
            };
            // No request has come lately, so the rates are those of an idle limiter.
            if fleet["granted_per_second"] != 0.0 || !known.iter().all(is_alike) {
                return None;
            }
            let sum =
                |family: &str, result: &str| metrics.sum(family, &[("limiter", name), ("result", result)]);
            assert_eq!(Some(sum("weir_permits_total", "granted")), limiter["granted"].as_f64());
            assert_eq!(Some(sum("weir_permits_total", "refused")), limiter["refused"].as_f64());
            let waiting = metrics.sum("weir_queue_waiting", &[("limiter", name)]);
            assert_eq!(Some(waiting), limiter["waiting"].as_f64());
            for limit in limiter["limits"].as_array()? {
                let labels = [("limiter", name), ("limit", limit["limit"].as_str()?)];
                if let Some(apart) = limit["upstream"]["apart"].as_f64() {
                    assert_eq!(metrics.sum("weir_limiter_upstream_apart_permits", &labels), apart);
                }
                if let Some(available) = limit["available"].as_f64() {
                    assert_eq!(metrics.sum("weir_limiter_available_permits", &labels), available);
                }
                if let Some(seconds) = limit["exhausted_in_seconds"].as_f64() {
                    let metric = metrics.sum("weir_limiter_exhausted_in_seconds", &labels);
                    assert!((metric - seconds).abs() < 10.0, "{metric} {seconds}");
                }
            }
        }
        (still(&state["limiters"]) == still(&api["limiters"])).then(|| api["limiters"].clone())
    })
    .await;
    // There was something to compare.
    assert_eq!((&figures[1]["waiting"], &figures[1]["refused"]), (&2.into(), &1.into()));
    assert_eq!(figures[0]["top"]["used"][0]["granted"], 20);
    assert_eq!(figures[1]["limits"][0]["upstream"]["available"], 9);
}
