//! The shapes that vendors' SDKs parse: refusals, and links that stay inside.

use serde_json::json;
use tokio::task::JoinSet;

use crate::support::raw::RawUpstream;
use crate::support::{Answer, PATIENCE, Reply, Request, Upstream, Weir, client, closed_port, lane};

const SIGNED: &str =
    "AWS4-HMAC-SHA256 Credential=AKID/20260101/eu-west-1/s3/aws4_request, SignedHeaders=host";

async fn ask(weir: &Weir, path: &str, headers: &[(&str, &str)]) -> Answer {
    let request = Request::get(path);
    let request = headers.iter().fold(request, |request, (name, value)| request.header(name, value));
    client::send(&weir.url(path), request).await.unwrap()
}

/// No refusal has a status of success, and each says in one sentence who refused, why and when to come back.
fn assert_refused(answer: &Answer, media_type: &str) {
    assert_eq!((answer.status, answer.weir_error()), (429, Some("rate_limited")), "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some(media_type), "{}", answer.text());
    let told = ["weir, the proxy in front of this API, refused", "limiter api", "; try again in "];
    let is_problem = media_type == "application/problem+json";
    assert!(is_problem || told.iter().all(|part| answer.text().contains(part)), "{}", answer.text());
    let exact: u64 = answer.header("retry-after-ms").expect("retry-after-ms").parse().unwrap();
    let seconds: u64 = answer.header("retry-after").expect("retry-after").parse().unwrap();
    assert_eq!(seconds, exact.div_ceil(1000));
}

#[tokio::test]
async fn refusals_have_the_shape_that_the_route_names() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let route = |name: &str, more: &str| {
        let url = upstream.url();
        format!("  - {{name: {name}, match: {{path: /{name}}}, upstream: \"{url}\", limiter: api{more}}}\n")
    };
    let routes: String = FORMS.map(|form| route(form, &format!(", errors: {form}"))).concat();
    let config = format!(
        "server: {{errors: google}}\nlimiters: {{api: {{limits: [1/1h]}}}}\nroutes:\n{routes}{}",
        route("default", "")
    );
    let weir = Weir::start(&config).await;
    assert_eq!(weir.get("/json").await.status, 200);

    let refused = weir.get("/json").await;
    assert_refused(&refused, "application/json");
    let document = refused.json();
    assert_eq!(document["error"]["message"], document["message"]);
    assert_eq!(document["detail"], document["message"]);
    assert_eq!(document["error"]["type"], "rate_limit_error");
    assert_eq!(
        (&document["error"]["code"], &document["code"]),
        (&json!("rate_limited"), &json!("rate_limited"))
    );
    assert_eq!((&document["status"], &document["limiter"]), (&json!(429), &json!("api")));

    let refused = weir.get("/problem").await;
    assert_refused(&refused, "application/problem+json");
    assert_eq!((&refused.json()["error"], &refused.json()["message"]), (&json!(null), &json!(null)));
    let asked = ask(&weir, "/anthropic", &[("accept", "application/problem+json")]).await;
    assert_refused(&asked, "application/problem+json");

    let refused = weir.get("/anthropic").await;
    assert_refused(&refused, "application/json");
    assert_eq!(
        (&refused.json()["type"], &refused.json()["error"]["type"]),
        (&json!("error"), &json!("rate_limit_error"))
    );

    for path in ["/google", "/default"] {
        let refused = weir.get(path).await;
        assert_refused(&refused, "application/json");
        assert_eq!(refused.json()["error"]["status"], "RESOURCE_EXHAUSTED");
    }
    let unknown = weir.get("/nothing").await;
    assert_eq!((unknown.status, &unknown.json()["error"]["code"]), (404, &json!(404)));

    let refused = weir.get("/elasticsearch").await;
    assert_refused(&refused, "application/json");
    assert_eq!(refused.json()["error"]["root_cause"][0]["type"], "rate_limited");
    let accept = [("accept", "application/vnd.elasticsearch+json;compatible-with=9")];
    let refused = ask(&weir, "/json", &accept).await;
    assert_eq!(refused.json()["error"]["root_cause"][0]["type"], "rate_limited");

    for (path, headers) in [("/notion", &[][..]), ("/json", &[("notion-version", "2025-09-03")])] {
        let refused = ask(&weir, path, headers).await;
        assert_refused(&refused, "application/json");
        assert_eq!(
            (&refused.json()["object"], &refused.json()["code"]),
            (&json!("error"), &json!("rate_limited"))
        );
    }
    for (path, headers) in [("/twilio", &[][..]), ("/json", &[("x-twilio-client", "python-9.13.0")])] {
        let refused = ask(&weir, path, headers).await;
        assert_refused(&refused, "application/json");
        assert_eq!((&refused.json()["code"], &refused.json()["title"]), (&json!(20429), &json!(null)));
    }

    for (path, headers) in [
        ("/aws", &[][..]),
        ("/aws", &[("authorization", SIGNED), ("x-amz-date", "20260101T000000Z")]),
        ("/json", &[("authorization", SIGNED), ("x-amz-date", "20260101T000000Z")]),
    ] {
        let refused = ask(&weir, path, headers).await;
        assert_refused(&refused, "application/xml");
        assert!(
            refused.text().contains("<Error><Code>Throttling</Code><Message>weir, "),
            "{}",
            refused.text()
        );
        assert_eq!(refused.header("x-amz-retry-after"), refused.header("retry-after-ms"));
    }
    let refused = ask(&weir, "/aws", &[("content-type", "application/x-amz-json-1.0")]).await;
    assert_refused(&refused, "application/json");
    assert_eq!(refused.json()["__type"], "ThrottlingException");

    let refused = ask(&weir, "/aws", &[("content-type", "application/grpc")]).await;
    assert_eq!((refused.status, refused.header("grpc-status")), (200, Some("8")));
    assert_eq!(refused.header("grpc-retry-pushback-ms"), refused.header("retry-after-ms"));
    assert!(refused.header("grpc-status-details-bin").is_some() && refused.text().is_empty());
    assert_eq!(upstream.count(), 1);
}

const FORMS: [&str; 8] =
    ["json", "problem", "aws", "anthropic", "google", "elasticsearch", "notion", "twilio"];

/// The routes of one refusal, a route for each form.
fn routes_of(refusal: &str, options: &str) -> String {
    let route = |form| {
        format!(
            "  - {{name: {form}-{refusal}, match: {{path: /{form}/{refusal}}}, errors: {form}, {options}}}\n"
        )
    };
    FORMS.map(route).concat()
}

/// Checks a refusal in its form: it has its own status, the reason, and a time to come back if it is about a limit.
fn assert_form(form: &str, answer: &Answer, status: u16) {
    let text = answer.text();
    assert_eq!(answer.status, status, "{form}: {text}");
    let kind = answer.header("content-type").expect("content-type");
    assert_eq!(answer.header("content-length"), Some(&*text.len().to_string()), "{form}: {text}");
    let reason = "weir, the proxy in front of this API, ";
    let document = || answer.json();
    let message = match form {
        "aws" => {
            assert_eq!(kind, "application/xml");
            let (_, rest) = text.split_once("<Error><Code>").expect("AWS's error");
            rest.split_once("</Code><Message>").expect("a code").1.to_owned()
        }
        "problem" => {
            assert_eq!(
                (kind, document()["status"].as_u64()),
                ("application/problem+json", Some(status.into()))
            );
            format!("{reason}{}", document()["detail"])
        }
        _ => {
            assert_eq!(kind, "application/json", "{form}");
            let member = match form {
                "json" => document()["detail"].clone(),
                "elasticsearch" => document()["error"]["reason"].clone(),
                "notion" | "twilio" => document()["message"].clone(),
                _ => document()["error"]["message"].clone(),
            };
            member.as_str().expect("a message").to_owned()
        }
    };
    assert!(message.starts_with(reason), "{form}: {text}");
    let exact = answer.header("retry-after-ms");
    assert_eq!(
        (exact.is_some(), answer.header("retry-after").is_some()),
        (status == 429, status == 429),
        "{text}"
    );
    assert_eq!(answer.header("x-amz-retry-after"), exact.filter(|_| form == "aws"), "{text}");
}

#[tokio::test]
async fn every_refusal_has_every_form() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let (url, closed) = (upstream.url(), closed_port());
    let silent = RawUpstream::start(|mut connection, _| async move {
        connection.read_head().await;
        std::future::pending::<()>().await;
    })
    .await;
    let garbage = RawUpstream::start(|mut connection, _| async move {
        connection.read_head().await;
        connection.write(b"HELLO\r\n\r\n").await;
    })
    .await;
    upstream.reply("/", Reply::status(200));
    let to = format!("upstream: \"{url}\"");
    let refusals = [
        ("spent", 429, "rate_limited", format!("{to}, limiter: spent")),
        ("paused", 429, "paused", format!("{to}, limiter: paused")),
        (
            "cost",
            400,
            "cost_exceeds_limit",
            format!("{to}, limiter: spent, cost: {{header: weir-cost, max: 9}}"),
        ),
        ("closed", 502, "upstream_connect", format!("upstream: \"http://127.0.0.1:{closed}\"")),
        ("garbage", 502, "upstream_protocol", format!("upstream: \"{}\"", garbage.url())),
        (
            "silent",
            504,
            "upstream_timeout",
            format!("upstream: {{url: \"{}\", timeout: 50ms}}", silent.url()),
        ),
    ];
    let routes: String = refusals.iter().map(|(name, _, _, options)| routes_of(name, options)).collect();
    let limiters = "limiters: {spent: {limits: [1/1h]}, paused: {limits: [100/1s]}}";
    let weir = Weir::start(&format!("{limiters}\nroutes:\n{routes}")).await;
    assert_eq!(weir.get("/json/spent").await.status, 200);
    upstream.reply("/json/paused", Reply::status(429).header("retry-after", "3600"));
    weir.get("/json/paused").await;
    for (refusal, status, code, _) in refusals {
        for form in FORMS {
            let path = format!("/{form}/{refusal}");
            // One route reads the cost.
            let ask = async |name, value| ask(&weir, &path, &[("weir-cost", "2"), (name, value)]).await;
            let answer = ask("accept", "*/*").await;
            assert_eq!(answer.weir_error(), Some(code), "{path}");
            assert_form(form, &answer, status);
            let problem = ask("accept", "text/html;q=0.9, application/problem+json").await;
            assert_form("problem", &problem, status);
            let unwanted = ask("accept", "application/problem+json;q=0").await;
            assert_form(form, &unwanted, status);
            let grpc = ask("content-type", "application/grpc").await;
            assert_eq!((grpc.status, grpc.weir_error(), &*grpc.text()), (200, Some(code), ""));
            assert!(!["0", ""].contains(&grpc.header("grpc-status").unwrap_or_default()), "{path}");
            assert_eq!(grpc.header("grpc-retry-pushback-ms"), grpc.header("retry-after-ms"), "{path}");
        }
    }
}

#[tokio::test]
async fn a_refusal_without_the_store_has_every_form() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let routes = routes_of("away", &format!("upstream: \"{}\", limiter: api", upstream.url()));
    let weir = Weir::start(&format!(
        "store: {{redis: {{url: \"redis://127.0.0.1:{}\"}}}}\n\
         limiters: {{api: {{limits: [1/1h], on_store_failure: reject}}}}\nroutes:\n{routes}",
        closed_port()
    ))
    .await;
    for form in FORMS {
        let answer = weir.get(&format!("/{form}/away")).await;
        assert_eq!(answer.weir_error(), Some("store_unavailable"), "{form}");
        assert_form(form, &answer, 503);
    }
    assert_eq!(upstream.count(), 0);
}

/// A request that waits when weir must end is refused, in the form of its route, or in the one that it asks for itself.
#[tokio::test]
async fn a_refusal_of_a_weir_that_drains_has_every_form() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let options = format!("upstream: \"{}\", limiter: api", upstream.url());
    let routes = routes_of("drained", &options);
    let mut weir = Weir::start(&format!(
        "server: {{drain_timeout: 1s}}\nlimiters: {{api: {{limits: [1/1m], queue: {{timeout: 1h}}}}}}\nroutes:\n{routes}"
    ))
    .await;
    assert_eq!(weir.get("/json/drained").await.status, 200);
    let mut waiting = JoinSet::new();
    for form in FORMS {
        for (seen, name, value) in [
            (form, "accept", "*/*"),
            ("problem", "accept", "application/problem+json"),
            ("grpc", "content-type", "application/grpc"),
        ] {
            let (url, target) = (weir.url(""), format!("/{form}/drained"));
            let request = Request::get(&target).header(name, value);
            waiting.spawn(async move { (seen, client::send(&url, request).await.unwrap()) });
        }
    }
    weir.wait_for_waiting(3 * FORMS.len()).await;
    weir.sigterm();
    for (form, answer) in waiting.join_all().await {
        assert_eq!(answer.weir_error(), Some("draining"), "{form}");
        match form {
            "grpc" => assert_eq!((answer.status, answer.header("grpc-status")), (200, Some("14"))),
            _ => assert_form(form, &answer, 503),
        }
    }
    weir.wait_exit(PATIENCE).await;
    assert_eq!(upstream.count(), 1);
}

/// Follows `Link: <...>; rel="next"` as octokit does: to wherever it leads.
#[tokio::test]
async fn pages_are_followed_through_weir() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let url = upstream.url();
    for page in 1..=5 {
        let next = format!("<{url}/repositories/7/p{}?per_page=100>; rel=\"next\"", page + 1);
        let last = format!("<{url}/repositories/7/p5>; rel=\"last\"; title=\"<{url}/x>, 5\"");
        let reply = Reply::status(200).header("link", &format!("{next}, {last}"));
        upstream.reply(&format!("/repositories/7/p{page}"), reply);
    }
    let config = format!(
        "routes:\n  - {{name: hub, match: {{path: /hub}}, strip_prefix: /hub, upstream: \"{url}\"}}\n"
    );
    let weir = Weir::start(&config).await;
    let mut target = "/hub/repositories/7/p1".to_owned();
    for page in 1..=5 {
        let answer = weir.get(&target).await;
        let link = answer.header("link").expect("link").to_owned();
        let base = weir.url("/hub/repositories/7");
        let next = format!("<{base}/p{}?per_page=100>; rel=\"next\"", page + 1);
        let last = format!("<{base}/p5>; rel=\"last\"; title=\"<{url}/x>, 5\"");
        assert_eq!(link, format!("{next}, {last}"));
        target = format!("/hub/repositories/7/p{}?per_page=100", page + 1);
    }
    assert_eq!(upstream.count(), 5);
}

#[tokio::test]
async fn links_lead_where_the_caller_reaches_weir() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let url = upstream.url();
    let reply = Reply::status(201)
        .header("location", &format!("{url}/upload?id=1"))
        .header("content-location", "/objects/1")
        .header("link", &format!("<{url}/next>; rel=next"));
    upstream.reply("/", reply);
    let config = |server: &str, more: &str| {
        format!("server: {{{server}}}\nroutes:\n  - {{name: a, match: {{}}, upstream: \"{url}\"{more}}}\n")
    };
    let trusting = "trusted_proxies: [127.0.0.1]";
    let forwarded =
        [("x-forwarded-proto", "http, https"), ("x-forwarded-host", "evil.example, api.corp:8443")];
    for (server, headers, origin) in [
        ("", &[][..], None),
        ("", &forwarded, None),
        (trusting, &[], None),
        (trusting, &forwarded, Some("https://api.corp:8443")),
        (trusting, &[("x-forwarded-proto", "gopher"), ("x-forwarded-host", "a@b")], None),
        (trusting, &[("x-forwarded-host", "api.corp")], Some("http://api.corp")),
        ("public_url: \"https://weir.corp/\"", &forwarded, Some("https://weir.corp")),
    ] {
        let weir = Weir::start(&config(server, "")).await;
        let origin = origin.map_or_else(|| weir.url(""), str::to_owned);
        let answer = ask(&weir, "/", headers).await;
        assert_eq!(
            answer.header("location"),
            Some(&*format!("{origin}/upload?id=1")),
            "{server} {headers:?}"
        );
        assert_eq!(answer.header("content-location"), Some("/objects/1"));
        assert_eq!(answer.header("link"), Some(&*format!("<{origin}/next>; rel=next")));
    }
    let weir = Weir::start(&config("", ", rewrite_links: false")).await;
    let answer = weir.get("/").await;
    assert_eq!(answer.header("location"), Some(&*format!("{url}/upload?id=1")));
    assert_eq!(answer.header("link"), Some(&*format!("<{url}/next>; rel=next")));
}

/// A link leads through weir if, and only if, it lies below the route's upstream.
#[tokio::test]
async fn links_below_the_upstream_alone_are_rewritten() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let url = upstream.url();
    let weir = Weir::start(&format!(
        "routes:\n  - {{name: hub, match: {{path: /hub}}, strip_prefix: /hub, upstream: \"{url}/api/v3\"}}\n"
    ))
    .await;
    let (host, here) = (url.strip_prefix("http://").unwrap(), weir.url("/hub"));
    let weir_host = weir.host();
    for (target, seen) in [
        (format!("{url}/api/v3/a%2Fb?x=%20#f"), format!("{here}/a%2Fb?x=%20#f")),
        (format!("{url}/api/v3"), here.clone()),
        (format!("{url}/api/v3?page=2"), format!("{here}?page=2")),
        (format!("HTTP://{host}/api/v3/a"), format!("{here}/a")),
        (format!("//{host}/api/v3/a"), format!("//{weir_host}/hub/a")),
        ("/api/v3/a".to_owned(), "/hub/a".to_owned()),
        (format!("{url}/api/v3/x/../a"), format!("{here}/a")),
        (format!("{url}/api/x/%2E./v3/a"), format!("{here}/a")),
    ] {
        let link =
            format!("<{target}>; rel=\"next\"; title=\"a, <{url}/api/v3/b>\"; anchor=\"{url}/api/v3\", <c>");
        let reply = Reply::status(201).header("location", &target).header("link", &link);
        upstream.reply("/api/v3/x", reply);
        let answer = weir.get("/hub/x").await;
        assert_eq!(answer.header("location"), Some(&*seen), "{target}");
        let link = link.replacen(&target, &seen, 1);
        assert_eq!(answer.header("link"), Some(&*link), "{target}");
    }
    for target in [
        format!("{url}/api/v33/a"),
        format!("{url}/other"),
        format!("{url}/api/v3/../admin"),
        format!("{url}/api/v3/%2e%2e/admin"),
        format!("http://{host}1/api/v3/a"),
        format!("http://user@{host}/api/v3/a"),
        format!("http://{host}@elsewhere.example/api/v3/a"),
        format!("http://elsewhere.example/?to={url}/api/v3/a"),
        "//elsewhere.example/api/v3/a".to_owned(),
        "mailto:a@elsewhere.example".to_owned(),
        "/api/v33/a".to_owned(),
        "a/b".to_owned(),
        "../a".to_owned(),
        "?page=2".to_owned(),
    ] {
        let link = format!("<{target}>; rel=next, <{target}>;rel=last");
        let reply = Reply::status(201).header("location", &target).header("link", &link);
        upstream.reply("/api/v3/x", reply);
        let answer = weir.get("/hub/x").await;
        assert_eq!(answer.header("location"), Some(&*target));
        assert_eq!(answer.header("link"), Some(&*link));
    }
}
