//! Every metric of weir: its name, help, labels and buckets, and nowhere else.
//!
//! They live in a registry of their own, so that two weirs in one process do not share a count. Who counts
//! asks here once for a handle (see [`super::handles`]) and never names a metric. Label values come from the
//! configuration alone: the number of series is bounded by it, and no request can make a new one beyond a
//! status code.

use std::sync::Arc;

use prometheus::core::{Collector, Metric, MetricVec, MetricVecBuilder};
use prometheus::{
    Gauge, Histogram, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

use super::handles::{LimiterMetrics, RouteMetrics, StoreMetrics};
use crate::limiter::model::limit::{Limiter, LimiterName};

/// Of whole requests and upstreams, in seconds: from a local answer to a minute's wait.
const REQUEST_SECONDS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// Of waits in a queue, in seconds: the first bucket holds those that went at once.
const WAIT_SECONDS: &[f64] =
    &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
/// Of lateness against a slot, in seconds: a guard is 1 to 20 ms, so the steps are finest below that.
const LATENESS_SECONDS: &[f64] =
    &[0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25];
/// Of calls to the store, in seconds: a call ends after `timeout`, 100 ms by default.
const STORE_SECONDS: &[f64] =
    &[0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0];
/// Of requests booked by one call to the store.
const BATCH_SIZES: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];

/// All metrics of one weir. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    shared: Arc<Shared>,
}

struct Shared {
    registry: Registry,
    families: Families,
    store: StoreMetrics,
}

/// The metric families, each under the name that it is exported with.
pub(super) struct Families {
    pub(super) requests_total: IntCounterVec,
    pub(super) request_duration_seconds: HistogramVec,
    pub(super) upstream_duration_seconds: HistogramVec,
    pub(super) upstream_rejections_total: IntCounterVec,
    pub(super) upstream_invalid_quota_headers_total: IntCounterVec,
    pub(super) retries_total: IntCounterVec,
    pub(super) permits_total: IntCounterVec,
    pub(super) queue_wait_seconds: HistogramVec,
    pub(super) queue_waiting: IntGaugeVec,
    pub(super) queue_capacity: IntGaugeVec,
    pub(super) slot_lateness_seconds: HistogramVec,
    pub(super) limiter_limit_permits: IntGaugeVec,
    pub(super) limiter_available_permits: IntGaugeVec,
    pub(super) limiter_paused: IntGaugeVec,
    pub(super) limiter_external_usage_permits_total: IntCounterVec,
    pub(super) store_calls_total: IntCounterVec,
    pub(super) store_call_duration_seconds: HistogramVec,
    pub(super) store_batch_size: Histogram,
    pub(super) store_up: IntGauge,
    config_reloads_total: IntCounterVec,
    config_last_reload_successful: IntGauge,
    config_last_success_timestamp_seconds: Gauge,
    tasks: IntGauge,
}

impl Families {
    #[rustfmt::skip] // one metric, one entry: name, help, labels, buckets
    fn register(registry: &Registry) -> Families {
        Families {
            requests_total: counters(registry, "weir_requests_total",
                "Requests answered, by route (empty: no route matched), status code and outcome.", &["route", "code", "outcome"]),
            request_duration_seconds: histograms(registry, "weir_request_duration_seconds",
                "From a request's head to the end of its response, waits included.", &["route"], REQUEST_SECONDS),
            upstream_duration_seconds: histograms(registry, "weir_upstream_duration_seconds",
                "From a request's head sent upstream to the head of the upstream's response.", &["route"], REQUEST_SECONDS),
            upstream_invalid_quota_headers_total: counters(registry, "weir_upstream_invalid_quota_headers_total",
                "Headers of upstreams about their quota that could not be understood.", &["route"]),
            retries_total: counters(registry, "weir_retries_total",
                "Requests that were sent once more: where no connection could be made, or after a status.", &["route", "reason"]),
            upstream_rejections_total: counters(registry, "weir_upstream_rejections_total",
                "Responses by which an upstream said that its quota is spent: they leaked through.", &["route", "code"]),
            permits_total: counters(registry, "weir_permits_total",
                "Permits by what became of them, counted in cost; each counts once.", &["limiter", "result"]),
            queue_wait_seconds: histograms(registry, "weir_queue_wait_seconds",
                "How long forwarded requests waited for their permits.", &["limiter"], WAIT_SECONDS),
            queue_waiting: gauges(registry, "weir_queue_waiting",
                "Requests waiting in this replica.", &["limiter"]),
            queue_capacity: gauges(registry, "weir_queue_capacity",
                "Requests that may wait at once in this replica.", &["limiter"]),
            slot_lateness_seconds: histograms(registry, "weir_slot_lateness_seconds",
                "How long after its slot a permit was used.", &["limiter"], LATENESS_SECONDS),
            limiter_limit_permits: gauges(registry, "weir_limiter_limit_permits",
                "Permits in a window, as configured.", &["limiter", "limit"]),
            limiter_available_permits: gauges(registry, "weir_limiter_available_permits",
                "Permits left now in the tightest partition, as last answered by the store.", &["limiter", "limit"]),
            limiter_paused: gauges(registry, "weir_limiter_paused",
                "1 while a pause lasts that an upstream has asked for, or that was set by hand.", &["limiter"]),
            limiter_external_usage_permits_total: counters(registry, "weir_limiter_external_usage_permits_total",
                "Permits charged because the upstream reported that less was left.", &["limiter"]),
            store_calls_total: counters(registry, "weir_store_calls_total",
                "Calls to the store.", &["op", "result"]),
            store_call_duration_seconds: histograms(registry, "weir_store_call_duration_seconds",
                "How long calls to the store took, failed ones included.", &["op"], STORE_SECONDS),
            store_batch_size: only(&histograms(registry, "weir_store_batch_size",
                "Requests that one call to the store booked for.", &[], BATCH_SIZES)),
            store_up: only(&gauges(registry, "weir_store_up",
                "1 while the store answers.", &[])),
            config_reloads_total: counters(registry, "weir_config_reloads_total",
                "Attempts to take up a changed configuration.", &["result"]),
            config_last_reload_successful: only(&gauges(registry, "weir_config_last_reload_successful",
                "1 if the last attempt to take up a configuration succeeded.", &[])),
            config_last_success_timestamp_seconds: seconds(registry, "weir_config_last_success_timestamp_seconds",
                "When a configuration was last taken up, since the Unix epoch."),
            tasks: only(&gauges(registry, "weir_tasks",
                "Asynchronous tasks: one for each connection and live queue, and a few more.", &[])),
        }
    }
}

impl Metrics {
    /// A set of its own, everything at zero.
    pub fn new() -> Metrics {
        let registry = Registry::new();
        let families = Families::register(&registry);
        let build =
            gauges(&registry, "weir_build_info", "Always 1; its label tells the version.", &["version"]);
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        #[cfg(target_os = "linux")]
        register(&registry, prometheus::process_collector::ProcessCollector::for_self());
        for result in ["ok", "error"] {
            families.config_reloads_total.with_label_values(&[result]);
        }
        let store = StoreMetrics::new(&families);
        Metrics { shared: Arc::new(Shared { registry, families, store }) }
    }

    /// Everything in Prometheus's text format, families and series in the order of their names.
    pub fn render(&self) -> String {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let tasks = runtime.metrics().num_alive_tasks();
            self.shared.families.tasks.set(i64::try_from(tasks).unwrap_or(i64::MAX));
        }
        let mut text = String::new();
        if let Err(error) = TextEncoder::new().encode_utf8(&self.shared.registry.gather(), &mut text) {
            tracing::warn!(%error, "metrics are incomplete");
        }
        text
    }

    /// The handle of a route; the empty name stands for requests that no route matched.
    pub fn route(&self, name: &str) -> RouteMetrics {
        RouteMetrics::new(&self.shared.families, name)
    }

    /// The handle of a limiter as it is configured now.
    ///
    /// Its counts carry on where an earlier handle of the same name left off; gauges of limits that it no
    /// longer has go away.
    pub fn limiter(&self, limiter: &Limiter) -> LimiterMetrics {
        let families = &self.shared.families;
        let name = limiter.name.as_str();
        let gone = |labels: &[&str]| {
            labels.first() == Some(&name)
                && !limiter.limits.iter().any(|limit| labels.get(1) == Some(&&*limit.label))
        };
        forget(&families.limiter_limit_permits, &["limiter", "limit"], gone);
        forget(&families.limiter_available_permits, &["limiter", "limit"], gone);
        LimiterMetrics::new(families, limiter)
    }

    /// The handle of the store.
    pub fn store(&self) -> StoreMetrics {
        self.shared.store.clone()
    }

    /// Notes the configuration of the start, which is no reload.
    pub fn started(&self, unix_seconds: f64) {
        self.shared.families.config_last_reload_successful.set(1);
        self.shared.families.config_last_success_timestamp_seconds.set(unix_seconds);
    }

    /// Counts an attempt to take up a changed configuration.
    pub fn reload(&self, ok: bool, unix_seconds: f64) {
        let families = &self.shared.families;
        families.config_reloads_total.with_label_values(&[if ok { "ok" } else { "error" }]).inc();
        families.config_last_reload_successful.set(i64::from(ok));
        if ok {
            families.config_last_success_timestamp_seconds.set(unix_seconds);
        }
    }

    /// How often upstreams have said that their quota is spent: the route, the code, how many times.
    pub fn upstream_rejections(&self) -> Vec<(String, String, u64)> {
        let mut refusals = Vec::new();
        for family in self.shared.families.upstream_rejections_total.collect() {
            for series in family.get_metric() {
                let value_of = |name: &str| label_of(series, name).to_owned();
                // A counter of integers.
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                let count = series.get_counter().get_value() as u64;
                refusals.push((value_of("route"), value_of("code"), count));
            }
        }
        refusals
    }

    /// Takes the series of a limiter away, once it is no longer configured.
    pub fn forget_limiter(&self, limiter: &LimiterName) {
        let families = &self.shared.families;
        let gone = |labels: &[&str]| labels.first() == Some(&limiter.as_str());
        forget(&families.permits_total, &["limiter", "result"], gone);
        for histograms in [&families.queue_wait_seconds, &families.slot_lateness_seconds] {
            forget(histograms, &["limiter"], gone);
        }
        forget(&families.limiter_external_usage_permits_total, &["limiter"], gone);
        for gauges in [&families.queue_waiting, &families.queue_capacity, &families.limiter_paused] {
            forget(gauges, &["limiter"], gone);
        }
        for gauges in [&families.limiter_limit_permits, &families.limiter_available_permits] {
            forget(gauges, &["limiter", "limit"], gone);
        }
    }

    /// Takes the series of every route away that `keep` does not name. Requests without a route keep theirs.
    ///
    /// A request that is still under way on such a route may bring one of its series back; the next reload
    /// takes it away for good.
    pub fn retain_routes(&self, keep: impl Fn(&str) -> bool) {
        let families = &self.shared.families;
        let gone = |labels: &[&str]| labels.first().is_some_and(|route| !route.is_empty() && !keep(route));
        forget(&families.requests_total, &["route", "code", "outcome"], gone);
        forget(&families.upstream_rejections_total, &["route", "code"], gone);
        forget(&families.upstream_invalid_quota_headers_total, &["route"], gone);
        forget(&families.retries_total, &["route", "reason"], gone);
        for histograms in [&families.request_duration_seconds, &families.upstream_duration_seconds] {
            forget(histograms, &["route"], gone);
        }
    }
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}

/// The value of a series' label; empty if it has none of that name.
fn label_of<'a>(series: &'a prometheus::proto::Metric, name: &str) -> &'a str {
    let label = series.get_label().iter().find(|label| label.name() == name);
    label.map_or("", |label| label.value())
}

/// Removes the series for whose label values, in the order of `names`, `gone` holds.
fn forget<T: MetricVecBuilder>(vec: &MetricVec<T>, names: &[&str], gone: impl Fn(&[&str]) -> bool)
where
    T::M: Metric,
{
    for family in vec.collect() {
        for series in family.get_metric() {
            // The library sorts the labels of a series by name.
            let values: Vec<&str> = names.iter().map(|name| label_of(series, name)).collect();
            if gone(&values) {
                // The only error is that somebody else was quicker.
                let _ = vec.remove_label_values(&values);
            }
        }
    }
}

fn counters(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    registered(registry, IntCounterVec::new(Opts::new(name, help), labels))
}

fn gauges(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
    registered(registry, IntGaugeVec::new(Opts::new(name, help), labels))
}

fn seconds(registry: &Registry, name: &str, help: &str) -> Gauge {
    registered(registry, Gauge::new(name, help))
}

fn histograms(registry: &Registry, name: &str, help: &str, labels: &[&str], buckets: &[f64]) -> HistogramVec {
    let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
    registered(registry, HistogramVec::new(options, labels))
}

/// The single series of a family without labels.
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
fn register(registry: &Registry, metric: impl Collector + 'static) {
    registry.register(Box::new(metric)).expect("a metric that is not registered yet");
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::handles::{Outcome, StoreOp, StoreResult};
    use super::*;
    use crate::limiter::model::limit::{Algorithm, Limit, Permits, QueueLimits};

    fn limiter(name: &str, limits: &[(u64, &str)]) -> Limiter {
        let limit = |&(rate, label): &(u64, &str)| Limit {
            rate: Permits::new(rate).unwrap(),
            per: Duration::from_secs(1),
            algorithm: Algorithm::SlidingWindow { precision: 256.try_into().unwrap() },
            label: label.into(),
        };
        Limiter {
            guard: Duration::from_millis(10),
            queue: Some(QueueLimits { timeout: Duration::from_secs(1), max_waiting: 7 }),
            ..Limiter::new(LimiterName::parse(name).unwrap(), limits.iter().map(limit).collect())
        }
    }

    fn has(text: &str, line: &str) -> bool {
        text.lines().any(|found| found == line)
    }

    #[test]
    fn every_metric_is_exported_before_anything_happened() {
        let metrics = Metrics::new();
        metrics.route("a");
        metrics.limiter(&limiter("l", &[(5, "5/1s")]));
        let text = metrics.render();
        let named = "requests_total request_duration_seconds upstream_duration_seconds upstream_rejections_total \
            permits_total queue_wait_seconds queue_waiting queue_capacity slot_lateness_seconds \
            limiter_limit_permits limiter_available_permits limiter_paused store_calls_total \
            store_call_duration_seconds store_batch_size store_up config_reloads_total \
            config_last_reload_successful config_last_success_timestamp_seconds build_info tasks";
        for name in named.split_whitespace() {
            assert!(text.contains(&format!("# TYPE weir_{name} ")), "weir_{name} is missing");
        }
        assert!(has(&text, r#"weir_permits_total{limiter="l",result="shadow_refused"} 0"#));
        assert!(has(&text, r#"weir_limiter_paused{limiter="l"} 0"#));
        assert!(has(&text, r#"weir_queue_capacity{limiter="l"} 7"#));
        assert!(has(&text, r#"weir_limiter_limit_permits{limit="5/1s",limiter="l"} 5"#));
    }

    #[test]
    fn requests_are_counted_beyond_the_cached_codes() {
        let metrics = Metrics::new();
        let route = metrics.route("a");
        for code in 200..240 {
            route.finished(code, Outcome::Forwarded, Duration::from_millis(3));
            route.finished(code, Outcome::Forwarded, Duration::from_millis(3));
        }
        let text = metrics.render();
        for code in 200..240 {
            let line = format!(r#"weir_requests_total{{code="{code}",outcome="forwarded",route="a"}} 2"#);
            assert!(has(&text, &line), "{line}");
        }
        assert!(has(&text, r#"weir_request_duration_seconds_count{route="a"} 80"#));
    }

    #[test]
    fn a_changed_limit_loses_its_gauge_and_keeps_its_counts() {
        let metrics = Metrics::new();
        metrics.limiter(&limiter("l", &[(5, "5/1s"), (9, "9/1m")])).granted(3);
        metrics.limiter(&limiter("other", &[(5, "5/1s")]));
        metrics.limiter(&limiter("l", &[(6, "6/1s"), (9, "9/1m")])).granted(1);
        let text = metrics.render();
        assert!(!text.contains(r#"{limit="5/1s",limiter="l"}"#));
        assert!(has(&text, r#"weir_limiter_limit_permits{limit="5/1s",limiter="other"} 5"#));
        assert!(has(&text, r#"weir_limiter_limit_permits{limit="9/1m",limiter="l"} 9"#));
        assert!(has(&text, r#"weir_permits_total{limiter="l",result="granted"} 4"#));
    }

    #[test]
    fn what_is_removed_leaves_no_series() {
        let metrics = Metrics::new();
        let gone = limiter("gone", &[(5, "5/1s")]);
        metrics.limiter(&gone);
        metrics.limiter(&limiter("stays", &[(5, "5/1s")]));
        for route in ["gone", "stays", ""] {
            metrics.route(route).finished(404, Outcome::Refused, Duration::ZERO);
        }
        metrics.forget_limiter(&gone.name);
        metrics.retain_routes(|name| name == "stays");
        let text = metrics.render();
        assert!(!text.contains("\"gone\""));
        assert!(text.contains(r#"limiter="stays""#) && text.contains(r#"route="stays""#));
        assert!(has(&text, r#"weir_requests_total{code="404",outcome="refused",route=""} 1"#));
    }

    #[test]
    fn store_and_reloads() {
        let metrics = Metrics::new();
        metrics.store().called(StoreOp::Inspect, StoreResult::Timeout, Duration::from_millis(100));
        metrics.store().set_up(true);
        metrics.reload(true, 12.5);
        metrics.reload(false, 13.5);
        let text = metrics.render();
        assert!(has(&text, r#"weir_store_calls_total{op="inspect",result="timeout"} 1"#));
        assert!(has(&text, "weir_store_up 1"));
        assert!(has(&text, r#"weir_config_reloads_total{result="error"} 1"#));
        assert!(has(&text, "weir_config_last_reload_successful 0"));
        assert!(has(&text, "weir_config_last_success_timestamp_seconds 12.5"));
    }
}
