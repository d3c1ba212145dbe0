//! Traces of requests, if the environment names a collector ([`otlp`]). Without one, tracing costs nothing.
//!
//! A request has a span. Below it are spans for its part of a call to the store, for its wait, and for each attempt at
//! the upstream. The attempt's context is forwarded as `traceparent` (W3C Trace Context). Sampling, batching and the
//! loss of spans while a collector is away are left to OpenTelemetry, which bounds them. Knows no limiter, store or
//! upstream: the proxy reports the parts of a request.

use std::borrow::Cow;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::poll_fn;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{
    Span, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt, Tracer, TracerProvider,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, Span as SdkSpan};
use tokio::time::Instant;
use tracing::{info, warn};

use super::otlp;
use super::outcome::Outcome;

/// The longest time to send the last spans when weir ends.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(3);

/// The longest path in a span. Thousands of spans may be kept while a collector is away.
const PATH_BYTES_MAX: usize = 1024;

/// The length of a `traceparent`, version 00.
const TRACEPARENT_BYTES: usize = 55;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The exporter of spans, or none. Cheap to clone.
#[derive(Clone, Default)]
pub struct Spans(Option<Arc<Inner>>);

struct Inner {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    propagator: TraceContextPropagator,
}

impl Spans {
    /// Sets up tracing as the process's environment asks for it: none unless it names a collector ([`otlp`]). A fault in
    /// the environment is logged, and weir runs without traces.
    pub fn from_environment() -> Spans {
        let provider = otlp::provider().unwrap_or_else(|error| {
            warn!(%error, "no traces");
            None
        });
        let Some(provider) = provider else { return Spans::default() };
        info!("traces are sent over OTLP");
        let (tracer, propagator) = (provider.tracer("weir"), TraceContextPropagator::new());
        Spans(Some(Arc::new(Inner { provider, tracer, propagator })))
    }

    /// Begins the trace of a request, or continues its client's; `None` without tracing.
    pub fn begin(&self, headers: &HeaderMap) -> Option<Box<Trace>> {
        let inner = self.0.as_ref()?;
        let caller = if has_traceparent(headers) {
            inner.propagator.extract_with_context(&Context::new(), &HeaderExtractor(headers))
        } else {
            Context::new()
        };
        let (began, began_at) = (Instant::now(), SystemTime::now());
        let builder = SpanBuilder::from_name("request").with_kind(SpanKind::Server).with_start_time(began_at);
        let span = inner.tracer.build_with_context(builder, &caller);
        let has_caller = caller.has_active_span();
        let own = Context::new().with_span(span);
        Some(Box::new(Trace { spans: Arc::clone(inner), own, has_caller, began, began_at, attempt: None }))
    }

    /// Sends the last spans, when weir ends.
    pub async fn close(self) {
        let Some(inner) = self.0 else { return };
        // The shutdown blocks on the exporter's thread.
        let shutdown = move || inner.provider.shutdown_with_timeout(CLOSE_TIME_MAX);
        let closing = tokio::task::spawn_blocking(shutdown);
        if !matches!(closing.await, Ok(Ok(()))) {
            warn!("the last traces may not have been sent");
        }
    }
}

/// A part of a request that has its own span.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The request takes part in a call to the store.
    Reserve,
    /// The request waits for its slot.
    Wait,
    /// A connection to the upstream is opened for the request.
    Connect,
}

/// The trace of one request. Dropping it ends it.
pub struct Trace {
    spans: Arc<Inner>,
    /// The context that holds the request's span.
    own: Context,
    /// True if the trace continues the client's.
    has_caller: bool,
    began: Instant,
    began_at: SystemTime,
    /// The span of the attempt in flight.
    attempt: Option<SdkSpan>,
}

impl Trace {
    /// Returns the trace's id, if the trace is sampled.
    pub fn id(&self) -> Option<String> {
        let span = self.own.span();
        span.is_recording().then(|| span.span_context().trace_id().to_string())
    }

    /// Runs a part of the request and records its span. A part that is ready at once has no span.
    pub async fn part<T>(&self, part: Part, running: impl Future<Output = T>) -> T {
        let mut running = pin!(running);
        let mut guard = Running { trace: self, part, began: None };
        poll_fn(|context| {
            let polled = running.as_mut().poll(context);
            if polled.is_pending() {
                guard.began.get_or_insert_with(Instant::now);
            }
            polled
        })
        .await
    }

    /// Begins an attempt at the upstream with this host. With `may_tell`, its headers carry the trace context.
    pub fn begin_attempt(&mut self, method: &Method, host: &str, headers: &mut HeaderMap, may_tell: bool) {
        let is_recording = self.own.span().is_recording();
        self.attempt = is_recording.then(|| {
            let attributes = [
                KeyValue::new("http.request.method", name_of(method)),
                KeyValue::new("server.address", host.to_owned()),
            ];
            let builder = self.child(name_of(method), SpanKind::Client, Instant::now());
            self.spans.tracer.build_with_context(builder.with_attributes(attributes), &self.own)
        });
        if !may_tell {
            return;
        }
        let span = self.own.span();
        let context =
            self.attempt.as_ref().map_or_else(|| span.span_context(), |attempt| attempt.span_context());
        if let Ok(parent) = HeaderValue::from_str(&traceparent(context)) {
            headers.insert(TRACEPARENT, parent);
            if !self.has_caller {
                // The client's `tracestate` belongs to another trace.
                headers.remove(TRACESTATE);
            }
        }
    }

    /// Ends the attempt with a status, or with the reason of its failure.
    pub fn end_attempt(&mut self, ended: Result<u16, &'static str>) {
        let Some(mut attempt) = self.attempt.take() else { return };
        match ended {
            Ok(status) => {
                attempt.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
                if status >= 400 {
                    attempt.set_attribute(KeyValue::new("error.type", status.to_string()));
                    attempt.set_status(Status::error(""));
                }
            }
            Err(reason) => {
                attempt.set_attribute(KeyValue::new("error.type", reason));
                attempt.set_status(Status::error(""));
            }
        }
        attempt.end_with_timestamp(self.at(Instant::now()));
    }

    /// Sets the attributes of a finished request.
    pub fn describe(&self, summary: &Summary<'_>) {
        let span = self.own.span();
        if !span.is_recording() {
            return;
        }
        let Summary { method, path, route, status, outcome, error, waited, client_address, client } =
            *summary;
        let path = path.get(..path.floor_char_boundary(PATH_BYTES_MAX)).unwrap_or_default();
        span.update_name(format!("{} {route}", name_of(method)));
        span.set_attributes([
            KeyValue::new("http.request.method", name_of(method)),
            KeyValue::new("http.response.status_code", i64::from(status)),
            KeyValue::new("url.path", path.to_owned()),
            KeyValue::new("client.address", client_address.to_string()),
            KeyValue::new("weir.route", route.to_owned()),
            KeyValue::new("weir.outcome", outcome.as_str()),
            KeyValue::new("weir.wait_ms", i64::try_from(waited.as_millis()).unwrap_or(i64::MAX)),
        ]);
        span.set_attributes(client.map(|client| KeyValue::new("weir.client", client.to_owned())));
        let has_failed = outcome == Outcome::Failed;
        let error = error.or(has_failed.then_some("failed"));
        span.set_attributes(error.map(|error| KeyValue::new("error.type", error)));
        if status >= 500 || has_failed {
            span.set_status(Status::error(""));
        }
    }

    fn child(&self, name: impl Into<Cow<'static, str>>, kind: SpanKind, began: Instant) -> SpanBuilder {
        SpanBuilder::from_name(name).with_kind(kind).with_start_time(self.at(began))
    }

    fn at(&self, instant: Instant) -> SystemTime {
        self.began_at + instant.saturating_duration_since(self.began)
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.end_attempt(Err("cancelled"));
        self.own.span().end_with_timestamp(self.at(Instant::now()));
    }
}

/// A finished request, as its span describes it.
#[derive(Clone, Copy, Debug)]
pub struct Summary<'a> {
    /// The method.
    pub method: &'a Method,
    /// The path, without the query, which may contain credentials.
    pub path: &'a str,
    /// The name of the route.
    pub route: &'a str,
    /// The status of the response to the client.
    pub status: u16,
    /// The outcome.
    pub outcome: Outcome,
    /// The `weir-error` of weir's own answer.
    pub error: Option<&'static str>,
    /// The time in the queue.
    pub waited: Duration,
    /// The client's address.
    pub client_address: IpAddr,
    /// The client's name.
    pub client: Option<&'a str>,
}

/// A part in progress. Its span is recorded when it is dropped.
struct Running<'a> {
    trace: &'a Trace,
    part: Part,
    began: Option<Instant>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let Some(began) = self.began else { return };
        let Trace { spans, own, .. } = self.trace;
        if own.span().is_recording() {
            let (name, kind) = match self.part {
                Part::Reserve => ("reserve", SpanKind::Client),
                Part::Wait => ("wait", SpanKind::Internal),
                Part::Connect => ("connect", SpanKind::Client),
            };
            let mut span = spans.tracer.build_with_context(self.trace.child(name, kind, began), own);
            span.end_with_timestamp(self.trace.at(Instant::now()));
        }
    }
}

/// Returns a method for use in a span's name. Unknown methods share one name, to bound the number of names.
fn name_of(method: &Method) -> &'static str {
    const KNOWN: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    KNOWN.into_iter().find(|known| method == *known).unwrap_or("HTTP")
}

/// Returns whether a request has exactly one well-formed `traceparent` (W3C Trace Context, 3.2.2). Later versions may
/// append fields.
fn has_traceparent(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(TRACEPARENT).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return false };
    let bytes = value.as_bytes();
    let is_hex = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let fits = bytes.len() == TRACEPARENT_BYTES
        || (bytes.get(TRACEPARENT_BYTES) == Some(&b'-') && !bytes.starts_with(b"00-"));
    let parts = bytes.get(..TRACEPARENT_BYTES).unwrap_or_default().split(|byte| *byte == b'-');
    fits && parts
        .map(|part| (part.len(), part.iter().all(is_hex)))
        .eq([2, 32, 16, 2].map(|length| (length, true)))
}

/// Formats the `traceparent` header, version 00.
fn traceparent(context: &SpanContext) -> String {
    let (trace, span, flags) = (context.trace_id(), context.span_id(), context.trace_flags().to_u8());
    format!("00-{trace}-{span}-{flags:02x}")
}
