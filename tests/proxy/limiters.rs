//! Requests that wait for permits or take several.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use weir::config::model::{Cost, JsonPath, PauseRule, Retry, Route};
use weir::limiter::model::limit::Permits;
use weir::proxy::Drained;

use crate::support::{
    Up, Weir, call, in_time, limiter, mirror, read_head, rule, scripted_upstream, upstream, weir,
};

#[tokio::test]
async fn a_client_that_leaves_while_waiting_takes_no_permit() {
    let up = upstream(mirror).await;
    let mut rule = rule("/", &up);
    rule.limiters = vec![limiter("slow")];
    let weir = weir(vec![rule]).await;
    let get = "GET / HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n";
    assert!(call(weir.address, get).await.starts_with("HTTP/1.1 200"));
    let began = tokio::time::Instant::now();
    let mut leavers = Vec::new();
    for _ in 0..8 {
        let mut leaver = TcpStream::connect(weir.address).await.unwrap();
        let upload = "POST / HTTP/1.1\r\nHost: weir\r\nContent-Length: 1000000\r\n\r\n";
        leaver.write_all(upload.as_bytes()).await.unwrap();
        leaver.write_all(&[b'x'; 100_000]).await.unwrap();
        leavers.push(leaver);
    }
    let waiting = async || weir.limiters.inspect().await[0].waiting;
    in_time(async {
        while waiting().await < 8 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    drop(leavers);
    let answer = call(weir.address, get).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("weir-wait-ms: "), "{answer}");
    assert!(began.elapsed() < Duration::from_secs(2), "it waited behind clients that had left");
    assert_eq!(up.requests(), 2);
}

#[tokio::test]
async fn requests_that_wait_past_the_drain_time_are_answered_draining() {
    let up = upstream(mirror).await;
    let mut rule = rule("/", &up);
    rule.limiters = vec![limiter("slow")];
    let weir = Weir::start(vec![rule], |server| server.drain_timeout = Duration::from_millis(700)).await;
    let get = "GET / HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n";
    let calls: Vec<_> = (0..5).map(|_| tokio::spawn(call(weir.address, get))).collect();
    in_time(async {
        while weir.limiters.inspect().await[0].waiting < 4 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    weir.shutdown.cancel();
    let mut answers = Vec::new();
    for call in calls {
        answers.push(in_time(call).await.unwrap());
    }
    let is_draining =
        |answer: &&String| answer.starts_with("HTTP/1.1 503") && answer.contains("weir-error: draining");
    let served = answers.iter().filter(|answer| answer.starts_with("HTTP/1.1 200")).count();
    let refused = answers.iter().filter(is_draining).count();
    assert!(served >= 2 && refused >= 1 && served + refused == 5, "{answers:?}");
    assert_eq!(in_time(weir.served).await.unwrap(), Drained::Cut);
}

/// Returns the permits left of the ten of the limiter `hourly`.
async fn left(weir: &Weir) -> u64 {
    let states = weir.limiters.inspect().await;
    let hourly = states.iter().find(|state| state.limiter.name.as_str() == "hourly").unwrap();
    hourly.available.as_ref().unwrap()[0]
}

fn with_cost(header: &str) -> Cost {
    let permits = |count| Permits::new(count).unwrap();
    Cost::Header { name: header.parse().unwrap(), default: permits(2), max: permits(20) }
}

#[tokio::test]
async fn an_invalid_cost_is_refused_and_takes_no_permit() {
    let up = upstream(mirror).await;
    let mut rule = rule("/", &up);
    rule.limiters = vec![limiter("hourly")];
    rule.cost = with_cost("weir-cost");
    let weir = weir(vec![rule]).await;
    let get = |lines: &str| format!("GET / HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n{lines}\r\n");
    for value in
        ["0", "-1", "+1", "1.5", "4294967296", "21", "many", "", "1 2", "1,2", "0x1", "99999999999999999999"]
    {
        let answer = call(weir.address, &get(&format!("Weir-Cost: {value}\r\n"))).await;
        assert!(
            answer.starts_with("HTTP/1.1 400") && answer.contains("weir-error: bad_request"),
            "{value}: {answer}"
        );
        assert!(answer.contains("weir-cost must be one whole number from 1 to 20"), "{value}: {answer}");
    }
    let answer = call(weir.address, &get("Weir-Cost: 1\r\nWeir-Cost: 1\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    let answer = call(weir.address, &get("Weir-Cost: 11\r\n")).await;
    assert!(answer.contains("weir-error: cost_exceeds_limit"), "{answer}");
    assert_eq!((left(&weir).await, up.requests()), (10, 0));

    let answer = call(weir.address, &get("Weir-Cost: 7\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 200") && !answer.contains("weir-cost"), "{answer}");
    assert_eq!(left(&weir).await, 3);
    assert!(call(weir.address, &get("")).await.starts_with("HTTP/1.1 200"));
    assert_eq!(left(&weir).await, 1);
    let answer = call(weir.address, &get("Weir-Cost: 2\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 429") && answer.contains("\"limiter\":\"hourly\""), "{answer}");
}

#[tokio::test]
async fn a_cost_header_outside_weir_s_prefix_reaches_the_upstream() {
    let up = upstream(mirror).await;
    let mut rule = rule("/", &up);
    rule.limiters = vec![limiter("hourly")];
    rule.cost = with_cost("x-units");
    let weir = weir(vec![rule]).await;
    let request = "GET / HTTP/1.1\r\nHost: weir\r\nX-Units: 3\r\nConnection: close\r\n\r\n";
    let answer = call(weir.address, request).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("x-units: 3\n"), "{answer}");
    assert_eq!(left(&weir).await, 7);
}

#[tokio::test]
async fn a_request_takes_permits_from_all_its_limiters() {
    let up = upstream(mirror).await;
    for names in [["slow", "hourly"], ["hourly", "slow"]] {
        let mut rule = rule("/", &up);
        rule.limiters = names.map(limiter).to_vec();
        let weir = weir(vec![rule]).await;
        let get = "GET / HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n";
        for number in 0..10 {
            let answer = call(weir.address, get).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{number}: {answer}");
            assert_eq!(answer.contains("weir-wait-ms: "), number > 0, "{number}: {answer}");
        }
        assert_eq!(left(&weir).await, 0);
        let answer = call(weir.address, get).await;
        assert!(answer.starts_with("HTTP/1.1 429") && answer.contains("\"limiter\":\"hourly\""), "{answer}");
    }
}

/// The second request waits for its turn, meets a connection that closes as it is used again, and waits for another permit.
#[tokio::test]
async fn all_waits_of_a_request_that_is_sent_again_are_told() {
    let is_first = AtomicBool::new(true);
    let up = scripted_upstream(move |mut socket, up| {
        let is_first = is_first.swap(false, Ordering::SeqCst);
        async move {
            while !read_head(&mut socket).await.is_empty() {
                up.note_request();
                if is_first && up.requests() > 1 {
                    return;
                }
                socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
            }
        }
    })
    .await;
    let mut rule = rule("/", &up);
    rule.limiters = vec![limiter("slow")];
    let weir = weir(vec![rule]).await;
    let get = "GET / HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n";
    assert!(call(weir.address, get).await.starts_with("HTTP/1.1 200"));
    let answer = call(weir.address, get).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let told = answer.split("weir-wait-ms: ").nth(1).and_then(|rest| rest.split("\r\n").next());
    let told: u64 = told.expect("it has waited").parse().unwrap();
    // Two waits of half a second, less what passes between the requests.
    assert!((850..5000).contains(&told), "{told}");
    assert_eq!(up.requests(), 3);
}

#[tokio::test]
async fn a_body_decides_about_a_pause_although_its_retry_is_refused() {
    let up = upstream(|_: Request<Incoming>| async {
        let mut response = Response::new(Full::new(Bytes::from("{\"error\": {\"code\": \"quota\"}}")));
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        response
    })
    .await;
    let mut rule = rule("/", &up);
    rule.limiters = vec![limiter("single")];
    let code = (JsonPath::parse("error.code").unwrap(), "quota".to_owned());
    let lasting = Some(Duration::from_secs(3600));
    rule.pause_rules = vec![Arc::new([PauseRule { json: vec![code], lasting, ..PauseRule::of(429) }])];
    rule.retry = Some(Retry {
        attempts: 2,
        on_connect: false,
        on_status: vec![429],
        body_bytes_max: 0,
        budget_ppm: None,
    });
    let weir = weir(vec![rule]).await;
    let get = "GET / HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n";
    let answer = call(weir.address, get).await;
    assert!(answer.starts_with("HTTP/1.1 429") && answer.ends_with("\"quota\"}}"), "{answer}");
    let pause_left = async || {
        let states = weir.limiters.inspect().await;
        let single = states.iter().find(|state| state.limiter.name.as_str() == "single").unwrap();
        single.pause.as_ref().map(|pause| pause.left)
    };
    let is_long = |left: Option<Duration>| left.is_some_and(|left| left > Duration::from_secs(3500));
    in_time(async {
        while !is_long(pause_left().await) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert_eq!(up.requests(), 1);
}

#[tokio::test]
async fn a_request_that_waits_over_a_reload_goes_out_with_the_renewed_credential() {
    let (up, other) = (upstream(mirror).await, upstream(mirror).await);
    let with_key = |up: &Up, key: &'static str| {
        let mut rule = rule("/", up);
        rule.limiters = vec![limiter("slow")];
        rule.set_headers = vec![(HeaderName::from_static("x-key"), HeaderValue::from_static(key))];
        vec![rule]
    };
    let weir = weir(with_key(&up, "one")).await;
    let get = "GET / HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n";
    assert!(call(weir.address, get).await.contains("x-key: one\n"));
    let waiting = tokio::spawn(call(weir.address, get));
    in_time(async {
        while weir.limiters.inspect().await[0].waiting < 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    weir.apply(with_key(&up, "two")).unwrap();
    // The credential of another upstream is for that one alone.
    weir.apply(with_key(&other, "three")).unwrap();
    let answer = waiting.await.unwrap();
    assert!(answer.contains("weir-wait-ms: ") && answer.contains("x-key: two\n"), "{answer}");
    assert_eq!((up.requests(), other.requests()), (2, 0));
}

/// Starts an upstream that answers `/free` and hangs up on all else, and a proxy with this rule for all else, and sends it one of each by
/// one connection. Returns the second answer, and how often its request has arrived.
async fn hung_up_on(adjust: impl FnOnce(&mut Route)) -> (String, usize) {
    let up = scripted_upstream(|mut socket, up| async move {
        while read_head(&mut socket).await.starts_with("GET /free ") {
            socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        }
        up.note_request();
    })
    .await;
    let mut adjusted = rule("/", &up);
    adjust(&mut adjusted);
    let weir = weir(vec![rule("/free", &up), adjusted]).await;
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n");
    assert!(call(weir.address, &get("/free")).await.starts_with("HTTP/1.1 200"));
    let answer = call(weir.address, &get("/")).await;
    assert!(up.connections() > 0);
    (answer, up.requests())
}

#[tokio::test]
async fn a_request_that_was_sent_is_not_answered_as_refused() {
    let (answer, sent) = hung_up_on(|rule| rule.limiters = vec![limiter("single")]).await;
    assert!(answer.starts_with("HTTP/1.1 502") && !answer.contains("retry-after"), "{answer}");
    assert_eq!(sent, 1);
}

#[tokio::test]
async fn a_repetition_by_another_connection_is_one_of_the_attempts() {
    for attempts in [2, 3] {
        let on_status = vec![502];
        let retry = Retry { attempts, on_connect: false, on_status, body_bytes_max: 0, budget_ppm: None };
        let (answer, sent) = hung_up_on(|rule| rule.retry = Some(retry)).await;
        assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");
        assert_eq!(sent, attempts as usize);
    }
    let (_, sent) = hung_up_on(|_| ()).await;
    assert_eq!(sent, 2, "without `retry` a connection that may have been closed is replaced once");
}
