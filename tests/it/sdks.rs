//! The shapes that vendors' SDKs parse: refusals, and links that stay inside.

use serde_json::json;

use crate::support::{Answer, Reply, Request, Upstream, Weir, client, lane};

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
    let forms = ["json", "problem", "aws", "anthropic", "google", "elasticsearch", "notion", "twilio"];
    let routes: String = forms.map(|form| route(form, &format!(", errors: {form}"))).concat();
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
    let refused = weir.get("/twilio").await;
    assert_refused(&refused, "application/json");
    assert_eq!((&refused.json()["code"], &refused.json()["title"]), (&json!(20429), &json!(null)));

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
