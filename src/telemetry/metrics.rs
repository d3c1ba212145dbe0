//! Every metric of weir: its name, help, labels and buckets. No other file but `process` names a metric.
//!
//! Label values are names of the configuration, or constants, or status codes, so no request can add series without bound.
//! Knows nothing of the code that counts: it uses `handles`.

use prometheus::core::{Collector, MetricVec, MetricVecBuilder};
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};

/// The label of a class of callers.
pub(super) const CLASS: &str = "class";

/// Buckets for whole requests and upstream calls, in seconds: from a local answer to a wait of a minute.
pub const REQUEST_SECONDS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// Buckets for waits in a queue, in seconds. The first holds requests that did not wait.
pub const WAIT_SECONDS: &[f64] =
    &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
/// Buckets for the true cost of a request over its estimate.
const RATIOS: &[f64] = &[0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 1.0, 1.1, 1.5, 2.0, 5.0];
/// Buckets for the lateness of a permit, in seconds. A guard is 1 to 20 ms by default, so they are finest below that.
const LATENESS_SECONDS: &[f64] =
    &[0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25];
/// Buckets for calls to the store, in seconds. A call ends after `timeout`, 100 ms by default.
const STORE_SECONDS: &[f64] =
    &[0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0];
/// Buckets for the number of requests that one call to the store books for.
const BATCH_SIZES: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];

/// The metric families. Each field is named as its metric, without `weir_`.
pub(super) struct Families {
    pub(super) requests_total: IntCounterVec,
    pub(super) client_connection_errors_total: IntCounterVec,
    pub(super) request_duration_seconds: HistogramVec,
    pub(super) upstream_duration_seconds: HistogramVec,
    pub(super) upstream_rejections_total: IntCounterVec,
    pub(super) upstream_invalid_quota_headers_total: IntCounterVec,
    pub(super) retries_total: IntCounterVec,
    pub(super) breaker_open: IntGaugeVec,
    pub(super) permits_total: IntCounterVec,
    pub(super) client_permits_total: IntCounterVec,
    pub(super) queue_wait_seconds: HistogramVec,
    pub(super) queue_waiting: IntGaugeVec,
    pub(super) queue_capacity: IntGaugeVec,
    pub(super) slot_lateness_seconds: HistogramVec,
    pub(super) limiter_estimate_ratio: HistogramVec,
    pub(super) limiter_limit_permits: IntGaugeVec,
    pub(super) limiter_available_permits: IntGaugeVec,
    pub(super) limiter_exhausted_in_seconds: GaugeVec,
    pub(super) limiter_upstream_apart_permits: IntGaugeVec,
    pub(super) limiter_paused: IntGaugeVec,
    pub(super) limiter_ready: IntGaugeVec,
    pub(super) limiter_external_usage_permits_total: IntCounterVec,
    pub(super) store_calls_total: IntCounterVec,
    pub(super) store_call_duration_seconds: HistogramVec,
    pub(super) store_batch_size: Histogram,
    pub(super) store_up: IntGauge,
    pub(super) config_reloads_total: IntCounterVec,
    pub(super) config_last_reload_successful: IntGauge,
    pub(super) config_last_success_timestamp_seconds: Gauge,
    pub(super) log_lines_dropped_total: IntCounter,
    pub(super) build_info: IntGaugeVec,
    pub(super) tasks: IntGauge,
}

impl Families {
    /// Registers every family.
    #[rustfmt::skip] // one entry per metric: name, help, labels, buckets
    pub(super) fn register(registry: &Registry) -> Families {
        Families {
            requests_total: counters(registry, "weir_requests_total",
                "Requests answered, by route (empty: no route matched), client (`other`: none of `clients`; `none`: there are no `clients`), \
                 status code and outcome.", &["route", "client", "code", "outcome"]),
            client_connection_errors_total: counters(registry, "weir_client_connection_errors_total",
                "Connections that an error of their client has ended, by reason.", &["reason"]),
            request_duration_seconds: histograms(registry, "weir_request_duration_seconds",
                "Time from a request's head to the end of its response, waits included.", &["route"], REQUEST_SECONDS),
            upstream_duration_seconds: histograms(registry, "weir_upstream_duration_seconds",
                "Time from sending a request's head upstream to receiving the response's head.", &["route"], REQUEST_SECONDS),
            upstream_invalid_quota_headers_total: counters(registry, "weir_upstream_invalid_quota_headers_total",
                "Quota headers of upstreams that could not be parsed.", &["route"]),
            retries_total: counters(registry, "weir_retries_total",
                "Retries of requests, by reason: `connect` (no connection) or the status of the failed attempt.", &["route", "reason"]),
            breaker_open: gauges(registry, "weir_breaker_open",
                "1 while the route's breaker refuses requests, because the upstream cannot be reached.", &["route"]),
            upstream_rejections_total: counters(registry, "weir_upstream_rejections_total",
                "Responses with which an upstream rejected a request because its quota is spent.", &["route", "code"]),
            permits_total: counters(registry, "weir_permits_total",
                "Permits by result, counted in cost. Each permit counts once.", &["limiter", CLASS, "result"]),
            client_permits_total: counters(registry, "weir_client_permits_total",
                "Permits by the client that asked for them and by result, counted in cost.", &["client", "limiter", "result"]),
            queue_wait_seconds: histograms(registry, "weir_queue_wait_seconds",
                "Time that forwarded requests waited for their permits.", &["limiter", CLASS], WAIT_SECONDS),
            queue_waiting: gauges(registry, "weir_queue_waiting",
                "Requests waiting in this replica.", &["limiter", CLASS]),
            queue_capacity: gauges(registry, "weir_queue_capacity",
                "The most requests that may wait at once in this replica.", &["limiter", CLASS]),
            slot_lateness_seconds: histograms(registry, "weir_slot_lateness_seconds",
                "Time from a permit's slot to its use.", &["limiter"], LATENESS_SECONDS),
            limiter_estimate_ratio: histograms(registry, "weir_limiter_estimate_ratio",
                "True cost of requests, as their responses told it, over the cost that they had taken.", &["limiter"], RATIOS),
            limiter_limit_permits: gauges(registry, "weir_limiter_limit_permits",
                "Permits in a window, as configured.", &["limiter", "limit"]),
            limiter_available_permits: gauges(registry, "weir_limiter_available_permits",
                "Permits left in the tightest partition, as of the store's last answer.", &["limiter", "limit"]),
            limiter_exhausted_in_seconds: float_gauges(registry, "weir_limiter_exhausted_in_seconds",
                "Seconds until a limit of an hour or more is spent, if the fleet goes on at its present pace.", &["limiter", "limit"]),
            limiter_upstream_apart_permits: gauges(registry, "weir_limiter_upstream_apart_permits",
                "Permits that the upstream's last response counted as used beyond those that weir counted.", &["limiter", "limit"]),
            limiter_paused: gauges(registry, "weir_limiter_paused",
                "1 while the limiter is paused, by an upstream or by hand.", &["limiter"]),
            limiter_ready: gauges(registry, "weir_limiter_ready",
                "0 while the limiter refuses everything, because its store is away.", &["limiter"]),
            limiter_external_usage_permits_total: counters(registry, "weir_limiter_external_usage_permits_total",
                "Permits charged because the upstream reported fewer permits left than weir had counted.", &["limiter"]),
            store_calls_total: counters(registry, "weir_store_calls_total",
                "Calls to the store.", &["op", "result"]),
            store_call_duration_seconds: histograms(registry, "weir_store_call_duration_seconds",
                "Duration of calls to the store, failed ones included.", &["op"], STORE_SECONDS),
            store_batch_size: only(&histograms(registry, "weir_store_batch_size",
                "Requests for which one call to the store made bookings.", &[], BATCH_SIZES)),
            store_up: only(&gauges(registry, "weir_store_up",
                "1 while the store answers.", &[])),
            config_reloads_total: counters(registry, "weir_config_reloads_total",
                "Reloads of the configuration, by result.", &["result"]),
            config_last_reload_successful: only(&gauges(registry, "weir_config_last_reload_successful",
                "1 if the last reload succeeded, and after a start.", &[])),
            config_last_success_timestamp_seconds: seconds(registry, "weir_config_last_success_timestamp_seconds",
                "Unix time of the last successful start or reload, in seconds."),
            log_lines_dropped_total: only(&counters(registry, "weir_log_lines_dropped_total",
                "Log lines that were dropped, because nothing took them in time or they could not be written.", &[])),
            build_info: gauges(registry, "weir_build_info",
                "Always 1. The label is the version of weir.", &["version"]),
            tasks: only(&gauges(registry, "weir_tasks",
                "Asynchronous tasks: one for each connection and active queue, and a few more.", &[])),
        }
    }
}

fn counters(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    registered(registry, IntCounterVec::new(Opts::new(name, help), labels))
}

fn gauges(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
    registered(registry, IntGaugeVec::new(Opts::new(name, help), labels))
}

fn float_gauges(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> GaugeVec {
    registered(registry, GaugeVec::new(Opts::new(name, help), labels))
}

fn seconds(registry: &Registry, name: &str, help: &str) -> Gauge {
    registered(registry, Gauge::new(name, help))
}

fn histograms(registry: &Registry, name: &str, help: &str, labels: &[&str], buckets: &[f64]) -> HistogramVec {
    let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
    registered(registry, HistogramVec::new(options, labels))
}

/// Returns the only series of a family without labels.
fn only<T: MetricVecBuilder>(vec: &MetricVec<T>) -> T::M {
    vec.with_label_values::<&str>(&[])
}

#[expect(clippy::expect_used, reason = "names, labels and buckets are constants, and a test builds them all")]
fn registered<C: Collector + Clone + 'static>(registry: &Registry, metric: prometheus::Result<C>) -> C {
    let metric = metric.expect("a well-formed metric");
    register(registry, metric.clone());
    metric
}

#[expect(clippy::expect_used, reason = "names, labels and buckets are constants, and a test builds them all")]
pub(super) fn register(registry: &Registry, metric: impl Collector + 'static) {
    registry.register(Box::new(metric)).expect("a metric that is not registered yet");
}
