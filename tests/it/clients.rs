//! Clients are admitted by address and by token (by certificate: see `tls`). An unknown client is refused before a
//! permit is taken or anything is sent upstream.

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use crate::support::{Answer, Request, Upstream, Weir, eventually, lane};

/// Returns a configuration of two clients, with a route for each way to present a token.
fn guarded(upstream: &Upstream) -> String {
    let url = upstream.url();
    format!(
        "limiters: {{api: {{limits: [100/1h]}}}}\n\
         clients:\n  billing: {{tokens: [billing-t0ken, billing-next-t0ken]}}\n  reports: {{tokens: [reports-t0ken]}}\n\
         routes:\n  \
         - {{name: own, match: {{path: /own}}, upstream: \"{url}\", limiter: api, clients: [billing]}}\n  \
         - {{name: keyed, match: {{path: /keyed}}, upstream: \"{url}\", limiter: api, set_headers: {{authorization: upstreams}}}}\n  \
         - {{name: all, match: {{path: /all}}, upstream: \"{url}\", limiter: api}}\n"
    )
}

fn with_token(target: &str, token: &str) -> Request {
    Request::get(target).header("weir-authorization", &format!("Bearer {token}"))
}

/// Returns the status of a request over HTTP/2 with this token.
async fn status_http2(weir: &Weir, target: &str, token: &str) -> u16 {
    let stream = TokioIo::new(TcpStream::connect(weir.host()).await.unwrap());
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream);
    let (mut sender, connection) = handshake.await.unwrap();
    let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let request =
        http::Request::get(weir.url(target)).header("weir-authorization", format!("Bearer {token}"));
    let response = sender.send_request(request.body(Empty::<Bytes>::new()).unwrap()).await.unwrap();
    let status = response.status().as_u16();
    response.into_body().collect().await.unwrap();
    status
}

fn assert_refused(answer: &Answer, status: u16, code: &str) {
    assert_eq!((answer.status, answer.weir_error()), (status, Some(code)), "{}", answer.text());
    assert_eq!(answer.json()["code"], code);
    let challenge = (status == 401).then_some("Bearer realm=\"weir\"");
    assert_eq!(answer.header("www-authenticate"), challenge);
}

#[tokio::test]
async fn an_unknown_client_is_refused_before_anything_is_taken() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start(&guarded(&upstream)).await;
    let mut connection = weir.connect().await;
    let token = "Bearer billing-t0ken";
    let strangers = [
        Request::get("/own"),
        // An unknown client learns neither the routes nor the form that a request must have.
        Request::get("/nowhere"),
        Request::get("/all").header("weir-timeout", "soon"),
        with_token("/all", "billing-t0ke"),
        with_token("/all", "billing-t0ken0"),
        with_token("/all", "***"),
        Request::get("/all").header("weir-authorization", "billing-t0ken"),
        Request::get("/all").header("weir-authorization", "Basic billing-t0ken"),
        Request::get("/all").header("weir-authorization", token).header("weir-authorization", token),
        // A token in a header that goes upstream is no token for weir.
        Request::get("/all").header("authorization", token),
        // The token in weir's own header counts.
        with_token("/keyed", "wrong").header("authorization", token),
    ];
    for stranger in strangers {
        assert_refused(&connection.ask(&stranger).await, 401, "unknown_client");
    }
    assert_refused(&connection.ask(&with_token("/own", "reports-t0ken")).await, 403, "forbidden");
    assert_refused(&connection.ask(&with_token("/nowhere", "reports-t0ken")).await, 404, "no_route");
    let call = Request::post("/all", b"").header("content-type", "application/grpc");
    let answer = connection.ask(&call).await;
    assert_eq!((answer.status, answer.header("grpc-status")), (200, Some("16")));
    assert_eq!((upstream.count(), upstream.connections()), (0, 0));
    assert_eq!(weir.available("api").await, [100]);

    // Each way to present a token, and both tokens of one client.
    let keyed = |token: &str| Request::get("/keyed").header("authorization", &format!("bearer  {token}"));
    let known = [
        with_token("/own", "billing-t0ken"),
        with_token("/own", "billing-next-t0ken"),
        with_token("/all", "reports-t0ken"),
        keyed("reports-t0ken"),
        // A client library may insist on sending an `Authorization` header.
        with_token("/keyed", "reports-t0ken").header("authorization", "Bearer whatever"),
    ];
    let count = known.len();
    for request in &known {
        assert_eq!(connection.ask(request).await.status, 200, "{request:?}");
    }
    assert_eq!((upstream.count(), weir.available("api").await), (count, vec![100 - count as u64]));
}

#[tokio::test]
async fn a_token_reaches_no_upstream_and_the_client_is_logged() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let verbose = "listen: 127.0.0.1:0\nadmin: {listen: 127.0.0.1:0}\nlog: {level: trace, access: true}\n";
    let weir = Weir::start_whole(&format!("{verbose}{}", guarded(&upstream))).await;
    let mut connection = weir.connect().await;
    let token = "Bearer billing-t0ken";
    let requests = [
        (with_token("/own", "billing-t0ken"), 200),
        (Request::get("/keyed").header("authorization", token), 200),
        // weir's token reaches no upstream, in whichever header the client put it.
        (with_token("/all", "billing-t0ken").header("authorization", token), 200),
        (
            with_token("/all", "billing-t0ken").header("authorization", "x").header("authorization", token),
            200,
        ),
        // A credential that is not weir's goes to the upstream.
        (with_token("/all", "billing-t0ken").header("authorization", "Bearer upstreams-0wn"), 200),
        (with_token("/all", "billing-t0ken").header("authorization", "Bearer\tbilling-t0ken"), 200),
        (with_token("/all", "billing-t0ken").header("authorization", "Token reports-t0ken"), 200),
        (with_token("/own", "reports-t0ken"), 403),
        (with_token("/own", "wrong-t0ken"), 401),
    ];
    for (request, status) in &requests {
        assert_eq!(connection.ask(request).await.status, *status, "{request:?}");
    }
    assert_eq!(status_http2(&weir, "/own", "billing-next-t0ken").await, 200);
    let count = requests.len() + 1;
    let seen = upstream.seen();
    let authorization: Vec<_> = seen
        .iter()
        .map(|seen| seen.headers.get("authorization").map(|value| value.to_str().unwrap()))
        .collect();
    let own = Some("Bearer upstreams-0wn");
    assert_eq!(authorization, [None, Some("upstreams"), None, None, own, None, None, None]);
    for seen in &seen {
        assert!(!seen.headers.contains_key("weir-authorization"));
        assert!(seen.headers.values().all(|value| !value.to_str().unwrap().contains("t0ken")));
    }

    let clients = async || {
        let told = |line: &Value| {
            assert_eq!(line["client_ip"], "127.0.0.1", "{line}");
            (line["status"].as_u64().unwrap(), line["client"].as_str().map(ToOwned::to_owned))
        };
        weir.log_of("weir::access").iter().map(told).collect::<Vec<_>>()
    };
    eventually("all requests in the log", async || clients().await.len() == count).await;
    let billing = (200, Some("billing".to_owned()));
    let refused = [(403, Some("reports".to_owned())), (401, None)];
    let expected = [vec![billing.clone(); 7], refused.to_vec(), vec![billing]].concat();
    assert_eq!(clients().await, expected);
    let config = weir.ask("/api/config").await.text();
    assert!(config.contains("billing") && config.contains("***"), "{config}");
    for place in [weir.log(), config, weir.ask("/metrics").await.text()] {
        assert!(!place.contains("t0ken"), "{place}");
    }
}

#[tokio::test]
async fn a_reload_that_removes_a_client_refuses_it() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start(&guarded(&upstream)).await;
    // On a connection that is open already.
    let mut connection = weir.connect().await;
    let old = with_token("/all", "reports-t0ken");
    let new = with_token("/all", "reports-replaced-t0ken");
    assert_eq!(connection.ask(&old).await.status, 200);
    assert_refused(&connection.ask(&new).await, 401, "unknown_client");
    weir.reload(&guarded(&upstream).replace("[reports-t0ken]", "[reports-replaced-t0ken]")).await;
    assert_refused(&connection.ask(&old).await, 401, "unknown_client");
    assert_eq!(connection.ask(&new).await.status, 200);
    assert_eq!(connection.ask(&with_token("/own", "billing-t0ken")).await.status, 200);
}

#[tokio::test]
async fn a_limiter_by_client_gives_each_its_own_limit() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let config = guarded(&upstream).replace("{limits: [100/1h]}", "{limits: [2/1h], key: [client]}");
    let weir = Weir::start(&config).await;
    let mut connection = weir.connect().await;
    for (token, status) in [
        ("billing-t0ken", 200),
        ("reports-t0ken", 200),
        // Another token of the same client is the same client.
        ("billing-next-t0ken", 200),
        ("billing-t0ken", 429),
        ("billing-next-t0ken", 429),
        ("reports-t0ken", 200),
        ("reports-t0ken", 429),
    ] {
        assert_eq!(connection.ask(&with_token("/all", token)).await.status, status, "{token}");
    }
    assert_eq!(weir.available_of("api", "billing").await, [0]);
    assert_eq!(weir.available_of("api", "other").await, [2]);
}

/// Returns a configuration of one route with further keys of `server`.
fn open_to(server: &str, limiter: &str, upstream: &Upstream) -> String {
    let url = upstream.url();
    format!(
        "server: {{{server}}}\nlimiters: {{api: {limiter}}}\nroutes:\n  - {{name: all, match: {{path: /}}, \
         upstream: \"{url}\", limiter: api, forwarded_headers: true}}\n"
    )
}

#[tokio::test]
async fn only_allowed_addresses_are_served() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let config = |allow: &str| {
        let server = format!("allow: [{allow}], trusted_proxies: [127.0.0.0/8]");
        open_to(&server, "{limits: [10/1h]}", &upstream)
    };
    let weir = Weir::start(&config("10.0.0.0/8, '::1'")).await;
    let mut connection = weir.connect().await;
    // The address of the connection's peer counts.
    for request in [Request::get("/"), Request::get("/").header("x-forwarded-for", "10.0.0.1")] {
        assert_refused(&connection.ask(&request).await, 403, "forbidden");
    }
    assert_eq!((upstream.count(), weir.available("api").await), (0, vec![10]));
    weir.reload(&config("10.0.0.0/8, 127.0.0.1")).await;
    assert_eq!(connection.ask(&Request::get("/")).await.status, 200);
    weir.reload(&config("10.0.0.0/8")).await;
    assert_refused(&connection.ask(&Request::get("/")).await, 403, "forbidden");
    assert_eq!((upstream.count(), weir.available("api").await), (1, vec![9]));
}

#[tokio::test]
async fn behind_a_trusted_proxy_each_client_has_its_own_limit() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let limiter = "{limits: [2/1h], key: [client_ip]}";
    let weir = Weir::start(&open_to("trusted_proxies: [127.0.0.1, 10.0.0.0/8]", limiter, &upstream)).await;
    let mut connection = weir.connect().await;
    for (forwarded, status) in [
        ("198.51.100.1", 200),
        ("198.51.100.1, 10.0.0.7", 200),
        // Addresses that a client writes before its own gain it nothing.
        ("203.0.113.5, 198.51.100.1", 429),
        ("198.51.100.2", 200),
        ("198.51.100.2:4711", 200),
        ("198.51.100.2", 429),
        // The search ends at a part that is no address, so these requests count for the proxy.
        ("198.51.100.3, unknown", 200),
        ("198.51.100.4, unknown", 200),
        ("198.51.100.5, unknown", 429),
    ] {
        let request = Request::get("/").header("x-forwarded-for", forwarded);
        assert_eq!(connection.ask(&request).await.status, status, "{forwarded}");
    }
    let seen = upstream.seen();
    assert_eq!(seen[1].headers["x-forwarded-for"], "198.51.100.1, 10.0.0.7, 127.0.0.1");

    // Without trust, all requests count for the connecting address.
    let weir = Weir::start(&open_to("", limiter, &upstream)).await;
    let mut connection = weir.connect().await;
    for (forwarded, status) in [("198.51.100.1", 200), ("198.51.100.2", 200), ("198.51.100.3", 429)] {
        let request = Request::get("/").header("x-forwarded-for", forwarded);
        assert_eq!(connection.ask(&request).await.status, status, "{forwarded}");
    }
}
