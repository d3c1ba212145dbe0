//! A route's breaker: while its upstream cannot be reached requests are refused at once, but for one probe at a time, and what waits
//! keeps its order.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt;

use crate::support::raw::RawUpstream;
use crate::support::{
    Answer, PATIENCE, Pending, Request, Upstream, Weir, closed_port, eventually, lane, one_limiter,
};

/// Returns a configuration of one limiter and one route with a breaker to a port.
fn to_port(port: u16, limiter: &str, breaker: &str) -> String {
    format!(
        "limiters:\n  api: {limiter}\nroutes:\n  - {{name: all, match: {{path: /}}, limiter: api, breaker: {breaker}, \
         upstream: \"http://127.0.0.1:{port}\"}}\n"
    )
}

/// Returns the state of the only breaker.
async fn state(weir: &Weir) -> String {
    let answer = weir.ask("/api/breakers").await.json();
    answer["breakers"][0]["state"].as_str().unwrap().to_owned()
}

async fn gauge(weir: &Weir) -> f64 {
    weir.metrics().await.sum("weir_breaker_open", &[("route", "all")])
}

async fn granted(weir: &Weir) -> f64 {
    weir.metrics().await.sum("weir_permits_total", &[("limiter", "api"), ("result", "granted")])
}

fn end(answer: &Answer) -> (u16, Option<&str>) {
    (answer.status, answer.weir_error())
}

const FAILED: (u16, Option<&str>) = (502, Some("upstream_connect"));
const REFUSED: (u16, Option<&str>) = (503, Some("upstream_unavailable"));

#[tokio::test]
async fn an_upstream_that_is_down_is_left_alone_until_a_probe_reaches_it() {
    let _lane = lane::shared().await;
    let port = closed_port();
    let weir = Weir::start(&to_port(port, "{limits: [50/1h]}", "{failures: 3, for: 3s}")).await;
    assert_eq!((state(&weir).await.as_str(), gauge(&weir).await), ("closed", 0.0));
    for _ in 0..3 {
        assert_eq!(end(&weir.get("/").await), FAILED);
    }
    let refused = weir.get("/").await;
    assert_eq!(end(&refused), REFUSED);
    let exact: u64 = refused.header("retry-after-ms").unwrap().parse().unwrap();
    assert!((1..=3000).contains(&exact), "{exact}");
    assert_eq!(refused.header("retry-after"), Some(exact.div_ceil(1000).to_string().as_str()));
    assert_eq!((state(&weir).await.as_str(), gauge(&weir).await), ("open", 1.0));
    let explained = weir.ask("/api/explain?url=/").await.json();
    assert_eq!(explained["breaker"]["state"], "open");
    weir.wait_for_log(&["the breaker has opened"]).await;

    // A probe that fails has the error of its own, and opens it anew.
    eventually("a probe is due", async || end(&weir.get("/").await) == FAILED).await;
    assert_eq!(end(&weir.get("/").await), REFUSED);
    assert_eq!(weir.available("api").await, [50]);

    let upstream = Upstream::start_at(port);
    eventually("a probe gets through", async || weir.get("/").await.status == 200).await;
    assert_eq!((state(&weir).await.as_str(), gauge(&weir).await), ("closed", 0.0));
    assert_eq!(weir.get("/").await.status, 200);
    assert_eq!((upstream.count(), granted(&weir).await), (2, 2.0));
}

#[tokio::test]
async fn queued_requests_keep_their_order_while_the_upstream_restarts() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let port = upstream.address().port();
    let limiter =
        "{limits: [{rate: 4, per: 1s, algorithm: leaky_bucket}], queue: {timeout: 1m, max_waiting: 50}}";
    let weir = Weir::start(&to_port(port, limiter, "{failures: 1, for: 1s}")).await;
    let mut asked = vec![Pending::get(&weir.url("/0"))];
    upstream.wait_for(1, PATIENCE).await;
    for number in 1..16 {
        asked.push(Pending::get(&weir.url(&format!("/{number}"))));
        let entered = async || weir.waiting().await as usize + upstream.count() > number;
        eventually("it has a place in the queue", entered).await;
    }
    upstream.wait_for(3, PATIENCE).await;
    // So that nothing is on its way when the upstream ends.
    assert_eq!(weir.tell_with("/api/limiters/api/pause", "{\"for\": \"2s\"}").await.status, 200);
    eventually("what was sent is answered", async || {
        let answered = weir.metrics().await.sum("weir_requests_total", &[("outcome", "forwarded")]);
        answered == granted(&weir).await && answered == upstream.count() as f64
    })
    .await;
    let first = upstream.targets();
    drop(upstream);
    eventually("the breaker opens", async || gauge(&weir).await == 1.0).await;
    // A request that comes now takes no place.
    assert_eq!(end(&weir.get("/late").await), REFUSED);
    let upstream = Upstream::start_at(port);
    let mut ends = Vec::new();
    for pending in asked {
        ends.push(pending.answer().await);
    }
    let ends: Vec<_> = ends.iter().map(end).collect();
    let lost = ends.iter().filter(|end| **end != (200, None)).count();
    let order: Vec<String> = first.iter().cloned().chain(upstream.targets()).collect();
    // Those that met the closed port, and probes that came too early; all others are served in the order of their arrival.
    assert!(ends.iter().all(|end| [(200, None), FAILED].contains(end)) && lost < 10, "{ends:?}");
    let numbers: Vec<u32> = order.iter().map(|target| target[1..].parse().unwrap()).collect();
    // One whose turn comes just as the breaker closes goes at once: those before it had been set aside, and ask for other slots.
    let overtaken = numbers.windows(2).filter(|pair| pair[0] > pair[1]).count();
    assert!(overtaken <= 1, "{numbers:?}");
    assert_eq!((numbers.len(), granted(&weir).await), (16 - lost, (16 - lost) as f64));
}

#[tokio::test]
async fn one_whose_wait_ends_before_the_next_probe_is_refused_without_a_permit() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let limiter =
        "{limits: [{rate: 2, per: 1s, algorithm: leaky_bucket}], queue: {timeout: 20s, max_waiting: 50}}";
    let weir = Weir::start(&to_port(upstream.address().port(), limiter, "{failures: 1, for: 1h}")).await;
    let asked = weir.begin(8, "/");
    upstream.wait_for(1, PATIENCE).await;
    weir.wait_for_waiting(4).await;
    drop(upstream);
    let began = Instant::now();
    let mut answers = Vec::new();
    for pending in asked {
        answers.push(pending.answer().await);
    }
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    let served = answers.iter().filter(|answer| answer.status == 200).count();
    let refused: Vec<_> = answers.iter().filter(|answer| end(answer) == REFUSED).collect();
    assert!(refused.len() >= 3, "{:?}", answers.iter().map(end).collect::<Vec<_>>());
    for answer in refused {
        let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
        assert!((3000..=3600).contains(&seconds), "{seconds}");
    }
    assert_eq!(granted(&weir).await, served as f64);
}

#[tokio::test]
async fn one_probe_at_a_time_goes() {
    let _lane = lane::shared().await;
    // It accepts, and never shakes hands.
    let (open, most, probes) = <(Arc<AtomicUsize>, Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
    let (opens, tops, count) = (Arc::clone(&open), Arc::clone(&most), Arc::clone(&probes));
    let silent = RawUpstream::start(move |mut connection, _| {
        count.fetch_add(1, Ordering::SeqCst);
        tops.fetch_max(opens.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let opens = Arc::clone(&opens);
        async move {
            while connection.stream.read_u8().await.is_ok() {}
            opens.fetch_sub(1, Ordering::SeqCst);
        }
    })
    .await;
    let weir = Weir::start(&format!(
        "routes:\n  - {{name: all, match: {{}}, limiters: off, breaker: {{failures: 1, for: 100ms}}, \
         upstream: {{url: \"https://{}\", connect_timeout: 300ms}}}}\n",
        silent.address(),
    ))
    .await;
    assert_eq!(end(&weir.get("/").await), FAILED);
    eventually("the first connection has ended", async || open.load(Ordering::SeqCst) == 0).await;
    most.store(0, Ordering::SeqCst);
    let before = probes.load(Ordering::SeqCst);
    let mut refused = 0;
    while probes.load(Ordering::SeqCst) < before + 4 {
        for pending in weir.begin(10, "/") {
            refused += usize::from(end(&pending.answer().await) == REFUSED);
        }
    }
    assert_eq!(most.load(Ordering::SeqCst), 1);
    assert!(refused > 4 * 4, "{refused}");
}

#[tokio::test]
async fn each_form_of_a_refusal_tells_the_delay() {
    let _lane = lane::shared().await;
    let port = closed_port();
    let forms = ["json", "problem", "aws", "anthropic", "google", "elasticsearch", "notion", "twilio"];
    let mut config = "routes:\n".to_owned();
    for form in forms {
        config.push_str(&format!(
            "  - {{name: {form}, match: {{path: /{form}}}, limiters: off, errors: {form}, \
             breaker: {{failures: 1, for: 1m}}, upstream: \"http://127.0.0.1:{port}\"}}\n"
        ));
    }
    let weir = Weir::start(&config).await;
    for form in forms {
        assert_eq!(weir.get(&format!("/{form}")).await.status, 502);
        let refused = weir.get(&format!("/{form}")).await;
        assert_eq!(end(&refused), REFUSED, "{form}");
        assert!(
            refused.header("retry-after").is_some() && refused.header("retry-after-ms").is_some(),
            "{form}"
        );
        assert!(refused.header("ratelimit").is_none(), "{form}");
        assert_eq!(refused.header("x-amz-retry-after").is_some(), form == "aws");
        assert!(!["json", "problem"].contains(&form) || refused.json()["retry_after_ms"].is_u64(), "{form}");
        assert!(form != "google" || refused.text().contains("google.rpc.RetryInfo"), "{}", refused.text());
    }
    let grpc =
        Request::post("/json", b"").header("content-type", "application/grpc").header("te", "trailers");
    let grpc = weir.connect().await.ask(&grpc).await;
    assert_eq!((grpc.status, grpc.header("grpc-status")), (200, Some("14")));
    assert!(grpc.header("grpc-retry-pushback-ms").is_some());
}

#[tokio::test]
async fn a_reload_that_leaves_it_as_it_is_keeps_its_state() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let port = closed_port();
    let config = to_port(port, "{limits: [50/1h]}", "{failures: 1, for: 1h}");
    let weir = Weir::start(&config).await;
    assert_eq!(end(&weir.get("/").await), FAILED);
    weir.reload(&config.replace("50/1h", "60/1h")).await;
    assert_eq!(end(&weir.get("/").await), REFUSED);
    // Another upstream has another state, and a route without a breaker none.
    weir.reload(&config.replace(&port.to_string(), &upstream.address().port().to_string())).await;
    assert_eq!((weir.get("/").await.status, gauge(&weir).await), (200, 0.0));
    weir.reload(&one_limiter("memory", "{limits: [50/1h]}", &upstream)).await;
    let breakers = weir.ask("/api/breakers").await.json();
    assert_eq!(breakers["breakers"].as_array().map(Vec::len), Some(0));
}
