//! Connections that cannot be opened, or are lost, and the requests that wait for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use serde_json::json;
use tokio::net::TcpListener;
use weir::config::model::{Breaker, Http2, JsonPath, PauseRule, Retry};

use crate::support::{
    Mood, Up, Weir, call, http2_client, in_time, limiter, mirror, moody_upstream, rule, scripted_upstream,
    speak, tls_rule, weir,
};

const OK: &str = "HTTP/1.1 200 OK";
const FAILED: &str = "HTTP/1.1 502 Bad Gateway";
const GET: &str = "GET / HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n";

const BREAKER: Breaker = Breaker { failures: 3, lasting: Duration::from_secs(3600) };

fn on_connect(attempts: u32) -> Retry {
    Retry { attempts, on_connect: true, on_status: Vec::new(), body_bytes_max: 0, budget_ppm: None }
}

/// Sends ten requests while another one's attempt to connect is under way; returns the status lines of all, that one's first.
async fn ten_behind_one(up: &Up, weir: &Weir) -> Vec<String> {
    let first = tokio::spawn(call(weir.address, GET));
    in_time(up.accepted()).await;
    let others = join_all((0..10).map(|_| call(weir.address, GET)));
    let answers = in_time(futures_util::future::join(first, others)).await;
    let answers = std::iter::once(answers.0.unwrap()).chain(answers.1);
    answers.map(|answer| answer.lines().next().unwrap_or_default().to_owned()).collect()
}

#[tokio::test]
async fn an_attempt_that_nobody_answers_takes_no_time_from_the_next() {
    // Longer than between the arrivals of two requests.
    let slow = Mood::Slow(Duration::from_millis(300));
    let up = moody_upstream(move |number| if number == 1 { Mood::Silent } else { slow }, mirror).await;
    let mut rule = tls_rule("/", &up);
    rule.upstream.timeouts.connect = Duration::from_secs(2);
    let answers = ten_behind_one(&up.0, &weir(vec![rule]).await).await;
    assert!(answers[0].starts_with(FAILED), "{answers:?}");
    assert!(answers[1..].iter().all(|answer| answer.starts_with(OK)), "{answers:?}");
    assert_eq!(up.0.connections(), 2);
}

#[tokio::test]
async fn requests_that_wait_for_a_connection_share_the_failure_to_open_it() {
    let up = moody_upstream(|_| Mood::Silent, mirror).await;
    let mut rule = tls_rule("/", &up);
    rule.upstream.timeouts.connect = Duration::from_secs(1);
    rule.breaker = Some(BREAKER);
    let weir = weir(vec![rule]).await;
    let answers = ten_behind_one(&up.0, &weir).await;
    assert!(answers.iter().all(|answer| answer.starts_with(FAILED)), "{answers:?}");
    assert_eq!(up.0.connections(), 2, "the one under way when they arrived, and the next");
    let breaker = &weir.proxy.breakers()[0];
    assert_eq!((&breaker["state"], &breaker["failures"]), (&json!("closed"), &json!(2)));
}

async fn closing(request: Request<Incoming>) -> Response<Full<Bytes>> {
    let mut response = mirror(request).await;
    response.headers_mut().insert("connection", "close".parse().unwrap());
    response
}

/// Sends a request by the first connection, and then one that waits for its turn; returns the status line of that one, and the number
/// of connections.
async fn behind_another(
    retry: Option<Retry>,
    breaker: Option<Breaker>,
    mood: fn(usize) -> Mood,
) -> (String, usize) {
    let (answer, connections, _) = sent_behind_another(GET, retry, breaker, mood).await;
    (answer, connections)
}

/// As [`behind_another`], with a second request of any kind; returns the time that it took, too.
async fn sent_behind_another(
    second: &str,
    retry: Option<Retry>,
    breaker: Option<Breaker>,
    mood: fn(usize) -> Mood,
) -> (String, usize, Duration) {
    let up = moody_upstream(mood, closing).await;
    let mut rule = tls_rule("/", &up);
    rule.upstream.http2 = Http2::Off;
    rule.upstream.timeouts.connect = Duration::from_secs(1);
    rule.limiters = vec![limiter("slow")];
    (rule.retry, rule.breaker) = (retry, breaker);
    let weir = weir(vec![rule]).await;
    let answer = call(weir.address, GET).await;
    assert!(answer.starts_with(OK), "{answer}");
    let began = Instant::now();
    let answer = call(weir.address, second).await;
    (answer.lines().next().unwrap_or_default().to_owned(), up.0.connections(), began.elapsed())
}

#[tokio::test]
async fn a_failure_to_connect_before_the_turn_changes_nothing() {
    let second = |number| if number == 2 { Mood::Refusing } else { Mood::Prompt };
    assert_eq!(behind_another(None, None, second).await, (OK.to_owned(), 3));
}

#[tokio::test]
async fn a_request_that_has_waited_connects_as_often_as_its_route_allows() {
    let refusing = |number| if [2, 3].contains(&number) { Mood::Refusing } else { Mood::Prompt };
    assert_eq!(behind_another(Some(on_connect(2)), None, refusing).await, (OK.to_owned(), 4));
    assert_eq!(behind_another(None, None, refusing).await, (FAILED.to_owned(), 3));
}

#[tokio::test]
async fn a_failure_to_connect_that_is_known_after_the_turn_is_the_first_attempt() {
    let second = |number| if number == 2 { Mood::Silent } else { Mood::Prompt };
    assert_eq!(behind_another(None, None, second).await, (FAILED.to_owned(), 2));
    assert_eq!(behind_another(Some(on_connect(2)), None, second).await, (OK.to_owned(), 3));
}

#[tokio::test]
async fn a_request_that_has_waited_keeps_its_turn_and_its_attempts_behind_a_breaker() {
    let second = |number| if number == 2 { Mood::Refusing } else { Mood::Prompt };
    assert_eq!(behind_another(Some(on_connect(2)), Some(BREAKER), second).await, (OK.to_owned(), 3));
    assert_eq!(behind_another(None, Some(BREAKER), second).await, (FAILED.to_owned(), 2));
}

#[tokio::test]
async fn a_request_that_is_not_sent_twice_waits_for_no_turn_behind_a_breaker() {
    let post = GET.replace("GET", "POST");
    let websocket = GET.replace("close", "close, upgrade\r\nUpgrade: websocket");
    for request in [post, websocket] {
        let mut fastest = Duration::MAX;
        for _ in 0..3 {
            let second = |number| if number == 2 { Mood::Refusing } else { Mood::Prompt };
            let sent = sent_behind_another(&request, Some(on_connect(2)), Some(BREAKER), second).await;
            assert_eq!((&*sent.0, sent.1), (FAILED, 2), "{request}");
            fastest = fastest.min(sent.2);
        }
        // The turn comes half a second after the first request.
        assert!(fastest < Duration::from_millis(250), "{request} after {fastest:?}");
    }
}

#[tokio::test]
async fn a_failed_connection_of_a_retry_replaces_no_response() {
    async fn unavailable(request: Request<Incoming>) -> Response<Full<Bytes>> {
        let mut response = closing(request).await;
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        response
    }
    let mood = |number| if number == 1 { Mood::Prompt } else { Mood::Refusing };
    for connects_again in [false, true] {
        let up = moody_upstream(mood, unavailable).await;
        let mut rule = tls_rule("/", &up);
        rule.upstream.http2 = Http2::Off;
        rule.limiters = vec![limiter("slow")];
        rule.retry = Some(Retry { on_connect: connects_again, on_status: vec![503], ..on_connect(2) });
        rule.breaker = Some(BREAKER);
        let answer = call(weir(vec![rule]).await.address, GET).await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("x-kept: yes"), "{answer}");
        assert_eq!(up.0.connections(), 2);
    }
}

#[tokio::test]
async fn a_pause_lasts_from_its_first_report() {
    async fn limited(request: Request<Incoming>) -> Response<Full<Bytes>> {
        let mut response = closing(request).await;
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        response
    }
    let mood = |number| if number == 1 { Mood::Prompt } else { Mood::Refusing };
    let up = moody_upstream(mood, limited).await;
    let mut rule = tls_rule("/", &up);
    rule.upstream.http2 = Http2::Off;
    rule.limiters = vec![limiter("slow")];
    let by_body = vec![(JsonPath::parse("error.code").unwrap(), "quota".to_owned())];
    let lasting = Some(Duration::from_secs(3));
    let quota = PauseRule { json: by_body, lasting, ..PauseRule::of(429) };
    rule.pause_rules = vec![Arc::new([quota, PauseRule { lasting, ..PauseRule::of(429) }])];
    rule.retry = Some(Retry { on_connect: false, on_status: vec![429], ..on_connect(2) });
    rule.breaker = Some(BREAKER);
    let weir = weir(vec![rule]).await;
    let answer = call(weir.address, GET).await;
    assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
    assert_eq!(up.0.connections(), 2, "it has failed behind the pause");
    // The body ends with the answer, and is reported behind it.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let states = weir.limiters.inspect().await;
    let slow = states.iter().find(|state| state.limiter.name.as_str() == "slow").unwrap();
    let left = slow.pause.as_ref().map(|pause| pause.left);
    assert!(left.is_none_or(|left| left < Duration::from_millis(1500)), "{left:?}");
}

#[tokio::test]
async fn the_time_of_an_upstream_begins_with_the_request_sent() {
    let up = moody_upstream(|_| Mood::Slow(Duration::from_millis(1500)), mirror).await;
    let weir = weir(vec![tls_rule("/", &up)]).await;
    assert!(call(weir.address, GET).await.starts_with(OK));
    let metrics = weir.metrics.render();
    let sum = |name: &str| -> f64 {
        let line =
            metrics.lines().find(|line| line.starts_with(&format!("{name}_sum{{route=\"test\"}}"))).unwrap();
        line.split(' ').next_back().unwrap().parse().unwrap()
    };
    assert!(sum("weir_request_duration_seconds") >= 1.5, "{metrics}");
    assert!(sum("weir_upstream_duration_seconds") < 1.0, "{metrics}");
}

#[tokio::test]
async fn attempts_to_connect_are_spaced_without_a_limiter_too() {
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let mut rule = rule("/", nobody);
    rule.retry = Some(on_connect(4));
    let weir = weir(vec![rule]).await;
    let began = Instant::now();
    let answer = call(weir.address, GET).await;
    assert!(answer.starts_with(FAILED), "{answer}");
    // 25 ms, 50 ms and 100 ms.
    assert!(began.elapsed() >= Duration::from_millis(175), "after {:?}", began.elapsed());
}

#[tokio::test]
async fn requests_that_lose_a_shared_connection_share_the_next() {
    const REQUESTS: usize = 50;
    let connections = Arc::new(AtomicUsize::new(0));
    let up = scripted_upstream(move |socket, up| {
        let is_first = connections.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if !is_first {
                return speak(socket, up, mirror).await;
            }
            let mut connection = h2::server::handshake(socket).await.unwrap();
            let mut taken = Vec::new();
            while taken.len() < REQUESTS
                && let Some(Ok((request, mut respond))) = connection.accept().await
            {
                if request.uri().path() == "/first" {
                    respond.send_response(Response::new(()), true).unwrap();
                } else {
                    taken.push(respond);
                }
            }
        }
    })
    .await;
    let mut rule = rule("/", &up);
    rule.upstream.http2 = Http2::PriorKnowledge;
    let weir = weir(vec![rule]).await;
    let client = http2_client(weir.address).await;
    let get = async |path: &str| {
        let request = Request::get(format!("http://{}{path}", weir.address)).body(Full::default()).unwrap();
        client.clone().send_request(request).await.unwrap().status()
    };
    assert_eq!(in_time(get("/first")).await, StatusCode::OK);
    let statuses = in_time(join_all((0..REQUESTS).map(|_| get("/")))).await;
    assert!(statuses.iter().all(|status| *status == StatusCode::OK), "{statuses:?}");
    assert_eq!(up.connections(), 2);
}
