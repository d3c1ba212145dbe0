//! Traces: the client's trace continues at the upstream, and a collector that the standard variables name gets spans
//! over OTLP.

use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message;

use crate::support::client::{Pending, send};
use crate::support::{
    PATIENCE, RedisServer, Reply, Request, Upstream, Weir, lane, one_limiter, one_route, poll_for,
};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// Returns the environment of a weir that sends traces to this collector.
fn environment(collector: &Upstream) -> [(&'static str, String); 2] {
    [("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url()), ("OTEL_BSP_SCHEDULE_DELAY", "50".to_owned())]
}

/// Returns a request that belongs to a client's trace, with its sampled flag.
fn traced(target: &str, flags: &str) -> Request {
    let parent = format!("00-{TRACE}-{PARENT}-{flags}");
    Request::get(target).header("traceparent", &parent).header("tracestate", "vendor=value")
}

/// Returns every span that the collector got, with its resource's attributes.
fn spans(collector: &Upstream) -> Vec<(Span, Vec<KeyValue>)> {
    let exports = collector.seen().into_iter().map(|seen| {
        assert_eq!((seen.target.as_str(), seen.method.as_str()), ("/v1/traces", "POST"));
        ExportTraceServiceRequest::decode(seen.body).expect("an export")
    });
    let resources = exports.flat_map(|export| export.resource_spans);
    let spans = resources.flat_map(|spans| {
        let attributes = spans.resource.map(|resource| resource.attributes).unwrap_or_default();
        spans
            .scope_spans
            .into_iter()
            .flat_map(|scope| scope.spans)
            .map(move |span| (span, attributes.clone()))
    });
    spans.collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns an attribute as text.
fn attribute(attributes: &[KeyValue], key: &str) -> Option<String> {
    let value = attributes.iter().find(|attribute| attribute.key == key)?.value.clone()?.value?;
    Some(match value {
        Value::StringValue(text) => text,
        Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    })
}

fn took(span: &Span) -> Duration {
    Duration::from_nanos(span.end_time_unix_nano - span.start_time_unix_nano)
}

#[tokio::test]
async fn without_a_collector_a_trace_is_passed_on_as_it_is_and_none_is_begun() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start(&one_route(&upstream.url())).await;
    send(&weir.url("/"), traced("/", "01")).await.unwrap();
    weir.get("/").await;
    let seen = upstream.seen();
    assert_eq!(seen[0].headers["traceparent"], format!("00-{TRACE}-{PARENT}-01"));
    assert_eq!(seen[0].headers["tracestate"], "vendor=value");
    assert!(!seen[1].headers.contains_key("traceparent"));
}

#[tokio::test]
async fn a_request_that_waits_has_a_span_for_each_part_of_its_life() {
    lane::calm(async || {
        let (redis, upstream, collector) = (RedisServer::start().await, Upstream::start(), Upstream::start());
        let config = one_limiter(&redis.store(), "{limits: [1/2s], queue: {timeout: 5s}}", &upstream);
        let weir = Weir::start_in(&config, &environment(&collector)).await;
        assert_eq!(weir.get("/").await.status, 200);
        let answer = send(&weir.url("/"), traced("/orders/7?key=s3cret", "01")).await.unwrap();
        let waited = Duration::from_millis(answer.header("weir-wait-ms").unwrap().parse().unwrap());

        let is_ours = |span: &&Span| hex(&span.trace_id) == TRACE;
        let ours = poll_for("the trace", async || {
            let all: Vec<Span> = spans(&collector).into_iter().map(|(span, _)| span).collect();
            let ours: Vec<Span> = all.iter().filter(is_ours).cloned().collect();
            ours.iter().any(|span| hex(&span.parent_span_id) == PARENT).then_some(ours)
        })
        .await;
        let whole = ours.iter().find(|span| hex(&span.parent_span_id) == PARENT).unwrap();
        assert_eq!((whole.name.as_str(), whole.kind), ("GET all", SpanKind::Server as i32));
        for (key, value) in [
            ("http.request.method", "GET"),
            ("http.response.status_code", "200"),
            ("url.path", "/orders/7"),
            ("weir.route", "all"),
            ("weir.outcome", "forwarded"),
            ("client.address", "127.0.0.1"),
        ] {
            assert_eq!(attribute(&whole.attributes, key).as_deref(), Some(value), "{key}");
        }
        let mut parts: Vec<&Span> = ours.iter().filter(|span| span.parent_span_id == whole.span_id).collect();
        parts.sort_by_key(|span| span.start_time_unix_nano);
        let names: Vec<&str> = parts.iter().map(|span| span.name.as_str()).collect();
        assert_eq!(names, ["reserve", "wait", "GET"]);
        assert!(took(parts[1]) + Duration::from_millis(200) > waited, "{:?} of {waited:?}", took(parts[1]));
        assert!(parts.windows(2).all(|pair| pair[0].end_time_unix_nano <= pair[1].start_time_unix_nano));
        assert_eq!(attribute(&parts[2].attributes, "http.response.status_code").as_deref(), Some("200"));
        assert_eq!(attribute(&parts[2].attributes, "server.address").as_deref(), Some("127.0.0.1"));

        // The upstream continues the attempt's span.
        let seen = upstream.seen().pop().unwrap();
        assert_eq!(seen.headers["traceparent"], format!("00-{TRACE}-{}-01", hex(&parts[2].span_id)));
        assert_eq!(seen.headers["tracestate"], "vendor=value");
        let (_, resource) = spans(&collector).remove(0);
        assert_eq!(attribute(&resource, "service.name").as_deref(), Some("weir"));
        assert_eq!(attribute(&resource, "service.version").as_deref(), Some(env!("CARGO_PKG_VERSION")));
        assert!(collector.seen().iter().all(|seen| !seen.body.windows(6).any(|bytes| bytes == b"s3cret")));
    })
    .await;
}

#[tokio::test]
async fn refusals_failures_and_retries_are_seen() {
    let _lane = lane::shared().await;
    let (upstream, collector) = (Upstream::start(), Upstream::start());
    upstream.script(|index| (index == 1).then(|| Reply::status(503)));
    let url = upstream.url();
    let config = format!(
        "limiters: {{none: {{limits: [1/1h]}}}}\n\
         routes:\n\
         - {{name: refused, match: {{path: /refused}}, upstream: \"{url}\", limiter: none, cost: 1}}\n\
         - {{name: down, match: {{path: /down}}, upstream: \"http://127.0.0.1:1\"}}\n\
         - {{name: again, match: {{path: /}}, upstream: \"{url}\", retry: {{attempts: 2, budget: off}}, remove_headers: [traceparent]}}\n"
    );
    let environment = [&environment(&collector)[..], &[("OTEL_SERVICE_NAME", "egress".to_owned())]].concat();
    let weir = Weir::start_in(&config, &environment).await;
    for (target, status) in [("/", 200), ("/refused", 200), ("/refused", 429), ("/down", 502)] {
        assert_eq!(send(&weir.url("/"), traced(target, "01")).await.unwrap().status, status, "{target}");
    }
    // Spans are sent in the order in which they end. A connection has one only if it took any time, which a refused one need not.
    let all = poll_for("the last span", async || {
        let all: Vec<Span> = spans(&collector).into_iter().map(|(span, _)| span).collect();
        all.iter().any(|span| span.name == "GET down").then_some(all)
    })
    .await;
    let whole = |name: &str, status: &str| {
        let is_it = |span: &&Span| {
            span.name == name
                && attribute(&span.attributes, "http.response.status_code").as_deref() == Some(status)
        };
        all.iter().find(is_it).unwrap_or_else(|| panic!("no {name} {status}: {all:#?}"))
    };
    let error = |span: &Span| attribute(&span.attributes, "error.type");
    let again = whole("GET again", "200");
    let attempts: Vec<_> = all
        .iter()
        .filter(|span| span.parent_span_id == again.span_id && span.name == "GET")
        .map(|span| attribute(&span.attributes, "http.response.status_code").unwrap())
        .collect();
    assert_eq!(attempts, ["503", "200"]);
    assert_eq!(error(whole("GET refused", "429")).as_deref(), Some("rate_limited"));
    assert_eq!(error(whole("GET down", "502")).as_deref(), Some("upstream_connect"));
    // Headers that a route removes do not reach the upstream.
    let seen = upstream.seen();
    assert!(seen[..2].iter().all(|seen| !seen.headers.contains_key("traceparent")));
    assert!(seen[2].headers.contains_key("traceparent"));
    let (_, resource) = spans(&collector).remove(0);
    assert_eq!(attribute(&resource, "service.name").as_deref(), Some("egress"));
}

#[tokio::test]
async fn a_trace_that_is_not_sampled_is_passed_on_and_sent_nowhere() {
    let _lane = lane::shared().await;
    let (upstream, collector) = (Upstream::start(), Upstream::start());
    let weir = Weir::start_in(&one_route(&upstream.url()), &environment(&collector)).await;
    // The client's flag decides.
    send(&weir.url("/"), traced("/", "00")).await.unwrap();
    assert_eq!(weir.get("/").await.status, 200);
    assert_eq!(weir.get("/").await.status, 200);
    // The third request's span is the last.
    let all = poll_for("two traces", async || {
        let all: Vec<Span> = spans(&collector).into_iter().map(|(span, _)| span).collect();
        (all.iter().filter(|span| span.name == "GET all").count() >= 2).then_some(all)
    })
    .await;
    assert!(all.iter().all(|span| hex(&span.trace_id) != TRACE), "{all:#?}");
    let parents: Vec<_> = upstream.seen().iter().map(|seen| seen.headers["traceparent"].clone()).collect();
    let parents: Vec<_> = parents.iter().map(|parent| parent.to_str().unwrap()).collect();
    assert!(parents[0].starts_with(&format!("00-{TRACE}-")) && parents[0].ends_with("-00"), "{parents:?}");
    assert!(parents[1..].iter().all(|parent| parent.len() == 55 && parent.ends_with("-01")), "{parents:?}");
    assert_ne!(parents[1], parents[2]);
}

#[tokio::test]
async fn a_malformed_trace_is_not_continued() {
    let _lane = lane::shared().await;
    let (upstream, collector) = (Upstream::start(), Upstream::start());
    let weir = Weir::start_in(&one_route(&upstream.url()), &environment(&collector)).await;
    let good = format!("00-{TRACE}-{PARENT}-01");
    let bad = [
        "nonsense".to_owned(),
        "00-1-1-01".to_owned(),
        good.to_uppercase(),
        good.replace("00-4b", "ff-4b"),
        good.replace(TRACE, &"0".repeat(32)),
        good.replace(PARENT, &"0".repeat(16)),
        format!("{good}-more"),
        format!("{good}-"),
    ];
    let of =
        |parent: &str| Request::get("/").header("traceparent", parent).header("tracestate", "vendor=value");
    let mut requests: Vec<Request> = bad.iter().map(|bad| of(bad)).collect();
    requests.push(of(&good).header("traceparent", &good));
    for request in requests {
        send(&weir.url("/"), request.clone()).await.unwrap();
        let seen = upstream.seen().pop().unwrap();
        let parent = seen.headers["traceparent"].to_str().unwrap();
        assert!(parent.len() == 55 && !parent.contains(TRACE), "{request:?}: {parent}");
        assert!(!seen.headers.contains_key("tracestate"), "{request:?}: of another trace");
    }
    // A later version may carry more fields.
    send(&weir.url("/"), of(&format!("01-{TRACE}-{PARENT}-01-more"))).await.unwrap();
    let seen = upstream.seen().pop().unwrap();
    assert!(seen.headers["traceparent"].to_str().unwrap().starts_with(&format!("00-{TRACE}-")), "{seen:?}");
}

#[tokio::test]
async fn remaining_spans_are_sent_when_weir_ends() {
    let _lane = lane::shared().await;
    let (upstream, collector) = (Upstream::start(), Upstream::start());
    // A batch takes longer than this test waits.
    let environment = [
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", format!("{}/v1/traces", collector.url())),
        ("OTEL_BSP_SCHEDULE_DELAY", "3600000".to_owned()),
    ];
    let mut weir = Weir::start_in(&one_route(&upstream.url()), &environment).await;
    assert_eq!(weir.get("/").await.status, 200);
    weir.sigterm();
    assert!(weir.wait_exit(PATIENCE).await.success());
    let names: Vec<String> = spans(&collector).into_iter().map(|(span, _)| span.name).collect();
    assert!(names.contains(&"GET all".to_owned()), "{names:?}");
}

#[tokio::test]
async fn a_collector_that_is_away_holds_up_nothing() {
    let _lane = lane::shared().await;
    let (upstream, collector) = (Upstream::start(), Upstream::start());
    let _never = collector.hold("/v1/traces");
    for endpoint in [collector.url(), "http://127.0.0.1:1".to_owned()] {
        let environment = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
            ("OTEL_BSP_SCHEDULE_DELAY", "10".to_owned()),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "500".to_owned()),
        ];
        let mut weir = Weir::start_in(&one_route(&upstream.url()), &environment).await;
        let pending: Vec<Pending> = weir.begin(50, "/");
        for pending in pending {
            assert_eq!(pending.answer().await.status, 200);
        }
        weir.sigterm();
        assert!(weir.wait_exit(PATIENCE).await.success());
    }
}

#[tokio::test]
async fn unusable_trace_settings_are_logged_and_hold_up_nothing() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318".to_owned());
    for (variable, value, said) in [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "4318"),
        ("OTEL_TRACES_EXPORTER", "zipkin", "OTEL_TRACES_EXPORTER"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon", "milliseconds"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere/ca.pem", "OTEL_EXPORTER_OTLP_CERTIFICATE"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://user:s3cret@[", "must be a URL"),
    ] {
        let environment = [endpoint.clone(), (variable, value.to_owned())];
        let weir = Weir::start_in(&one_route(&upstream.url()), &environment).await;
        assert_eq!(weir.get("/").await.status, 200);
        let log = weir.log();
        assert!(log.contains("no traces") && log.contains(said), "{variable}: {log}");
        assert!(!log.contains("s3cret"), "{log}");
    }
    for (variable, value) in [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")] {
        let environment = [endpoint.clone(), (variable, value.to_owned())];
        let weir = Weir::start_in(&one_route(&upstream.url()), &environment).await;
        assert!(!weir.log().contains("traces"), "{}", weir.log());
    }
}

#[tokio::test]
async fn a_collector_that_takes_nothing_is_told_of_once_a_minute() {
    let _lane = lane::shared().await;
    let (upstream, collector) = (Upstream::start(), Upstream::start());
    // No retry helps there, so that each export ends at once.
    collector.reply("/v1/traces", Reply::status(400));
    let weir = Weir::start_in(&one_route(&upstream.url()), &environment(&collector)).await;
    for exports in 1..4 {
        weir.get("/").await;
        collector.wait_for(exports, PATIENCE).await;
    }
    let lines = poll_for("a warning", async || {
        let log = weir.log();
        let warnings = log.lines().filter(|line| line.contains("\"WARN\"") || line.contains("\"ERROR\""));
        let warnings: Vec<String> = warnings.map(str::to_owned).collect();
        (!warnings.is_empty()).then_some(warnings)
    })
    .await;
    assert!(lines.len() == 1 && lines[0].contains("the collector takes no traces"), "{lines:?}");
    assert!(lines[0].contains("it answers 400"), "{lines:?}");
}
