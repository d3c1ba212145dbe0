//! All metrics of one weir: hands out handles, renders `/metrics`, removes the series of what is no longer configured.
//!
//! The registry is a value, not a global, so two weirs in one process have separate counts.

use std::collections::BTreeMap;
use std::sync::Arc;

use prometheus::core::{Collector, Metric, MetricVec, MetricVecBuilder};
use prometheus::{IntCounter, Registry, TextEncoder};

use super::handles::{
    ClassSeries, ClientPermits, ClientRequests, ConnectionErrors, LimiterMetrics, LimiterSeries,
    LimiterShared, RouteMetrics, RouteShared, StoreMetrics, by_bucket,
};
use super::metrics::{CLASS, Families};

/// All metrics of one weir. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    shared: Arc<Shared>,
}

struct Shared {
    registry: Registry,
    families: Families,
    store: StoreMetrics,
    connection_errors: ConnectionErrors,
}

impl Metrics {
    /// Creates a registry with every metric at zero.
    pub fn new() -> Metrics {
        let registry = Registry::new();
        let families = Families::register(&registry);
        families.build_info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        #[cfg(target_os = "linux")]
        super::metrics::register(&registry, super::process::ProcessCollector::new());
        for result in ["ok", "error"] {
            families.config_reloads_total.with_label_values(&[result]);
        }
        let (store, connection_errors) = (StoreMetrics::new(&families), ConnectionErrors::new(&families));
        Metrics { shared: Arc::new(Shared { registry, families, store, connection_errors }) }
    }

    /// Shows how many tasks are alive.
    pub fn tasks(&self, alive: usize) {
        self.shared.families.tasks.set(i64::try_from(alive).unwrap_or(i64::MAX));
    }

    /// Renders all metrics in Prometheus's text format, families and series sorted by name.
    pub fn render(&self) -> String {
        let (mut text, mut families) = (String::new(), self.shared.registry.gather());
        families.iter_mut().for_each(leave_out_no_class);
        if let Err(error) = TextEncoder::new().encode_utf8(&families, &mut text) {
            tracing::warn!(%error, "metrics are incomplete");
        }
        text
    }

    /// Returns the handle of a route, not yet published. The empty name stands for requests that no route matched.
    pub fn route(&self, name: &str) -> RouteMetrics {
        let (shared, name) = (self.shared.clone(), Box::<str>::from(name));
        RouteMetrics::new(move || RouteShared::new(&shared.families, &name))
    }

    /// Returns the handle of a client's requests to a route, not yet published.
    pub fn client_requests(&self, route: &RouteMetrics, client: &str) -> ClientRequests {
        ClientRequests::new(route.clone(), client)
    }

    /// Returns the handle of a client's permits of a limiter, not yet published.
    pub fn client_permits(&self, client: &str, limiter: &str) -> ClientPermits {
        ClientPermits::new(&self.shared.families, client, limiter)
    }

    /// Returns the handle of a limiter as configured, not yet published.
    ///
    /// Once it is published, counters continue from an earlier handle of the same name, and gauges of limits that the
    /// limiter no longer has are removed, as are all series of classes that it no longer has.
    pub fn limiter(&self, limiter: LimiterSeries) -> LimiterMetrics {
        let shared = self.shared.clone();
        LimiterMetrics::new(move || {
            shared.families.forget_limits_not_of(&limiter);
            shared.families.forget_classes_not_of(&limiter);
            LimiterShared::new(&shared.families, &limiter)
        })
    }

    /// Shows when limits are spent, in seconds: each limiter's limits of which that is known, and no other.
    pub fn exhausted_in<'a>(&self, limits: impl Iterator<Item = (&'a str, &'a str, f64)>) {
        let gauges = &self.shared.families.limiter_exhausted_in_seconds;
        gauges.reset();
        limits.for_each(|(limiter, limit, seconds)| {
            gauges.with_label_values(&[limiter, limit]).set(seconds);
        });
    }

    /// Shows by how many permits the upstream counts more than weir: of each limiter's limits of which that is known, and of no other.
    pub fn upstream_apart<'a>(&self, apart: impl Iterator<Item = (&'a str, &'a str, i64)>) {
        let gauges = &self.shared.families.limiter_upstream_apart_permits;
        gauges.reset();
        apart.for_each(|(limiter, limit, permits)| {
            gauges.with_label_values(&[limiter, limit]).set(permits);
        });
    }

    /// Returns the handle of the store.
    pub fn store(&self) -> StoreMetrics {
        self.shared.store.clone()
    }

    /// Returns the counters of connections that an error of their client has ended.
    pub fn connection_errors(&self) -> ConnectionErrors {
        self.shared.connection_errors.clone()
    }

    /// Returns the counter of dropped log lines.
    pub(super) fn log_lines_dropped(&self) -> IntCounter {
        self.shared.families.log_lines_dropped_total.clone()
    }

    /// Records that the start's configuration is in force. A start is not counted as a reload.
    pub fn started(&self, unix_seconds: f64) {
        self.shared.families.config_last_reload_successful.set(1);
        self.shared.families.config_last_success_timestamp_seconds.set(unix_seconds);
    }

    /// Counts a reload that succeeded or failed.
    pub fn reload(&self, ok: bool, unix_seconds: f64) {
        let families = &self.shared.families;
        families.config_reloads_total.with_label_values(&[if ok { "ok" } else { "error" }]).inc();
        families.config_last_reload_successful.set(i64::from(ok));
        if ok {
            families.config_last_success_timestamp_seconds.set(unix_seconds);
        }
    }

    /// Returns the upstream rejections since the start: route, status code, count.
    pub fn upstream_rejections(&self) -> Vec<(String, String, u64)> {
        let mut rejections = Vec::new();
        for family in self.shared.families.upstream_rejections_total.collect() {
            for series in family.get_metric() {
                let value_of = |name: &str| label_of(series, name).to_owned();
                rejections.push((value_of("route"), value_of("code"), count_of(series)));
            }
        }
        rejections
    }

    /// Returns the counts of every route since the start.
    pub fn route_counts(&self) -> Vec<RouteCounts> {
        let families = &self.shared.families;
        let mut routes: BTreeMap<String, RouteCounts> = BTreeMap::new();
        for series in
            families.upstream_duration_seconds.collect().iter().flat_map(|family| family.get_metric())
        {
            let counts = of_route(&mut routes, series);
            counts.upstream = by_bucket(series.get_histogram());
        }
        for series in families.requests_total.collect().iter().flat_map(|family| family.get_metric()) {
            let code = label_of(series, "code").to_owned();
            *of_route(&mut routes, series).codes.entry(code).or_default() += count_of(series);
        }
        for series in
            families.upstream_rejections_total.collect().iter().flat_map(|family| family.get_metric())
        {
            of_route(&mut routes, series).rejected += count_of(series);
        }
        routes.into_values().collect()
    }

    /// Removes the series of every limiter that `keep` refuses.
    ///
    /// A request still in flight on a removed limiter may create a series again. The next reload removes it.
    pub fn retain_limiters(&self, keep: impl Fn(&str) -> bool) {
        let families = &self.shared.families;
        let gone = |labels: &[&str]| labels.first().is_some_and(|limiter| !keep(limiter));
        families.forget_classes(gone);
        forget(&families.limiter_external_usage_permits_total, gone);
        forget(&families.client_permits_total, |labels| labels.get(1).is_some_and(|limiter| !keep(limiter)));
        forget(&families.slot_lateness_seconds, gone);
        forget(&families.limiter_estimate_ratio, gone);
        for gauges in [
            &families.limiter_paused,
            &families.limiter_ready,
            &families.limiter_limit_permits,
            &families.limiter_available_permits,
        ] {
            forget(gauges, gone);
        }
    }

    /// Removes the series of every route that `keep` refuses. The series of requests without a route stay.
    ///
    /// A request still in flight on a removed route may create a series again. The next reload removes it.
    pub fn retain_routes(&self, keep: impl Fn(&str) -> bool) {
        let families = &self.shared.families;
        let gone = |labels: &[&str]| labels.first().is_some_and(|route| !route.is_empty() && !keep(route));
        for counters in [
            &families.requests_total,
            &families.upstream_rejections_total,
            &families.upstream_invalid_quota_headers_total,
            &families.retries_total,
        ] {
            forget(counters, gone);
        }
        forget(&families.breaker_open, gone);
        for histograms in [&families.request_duration_seconds, &families.upstream_duration_seconds] {
            forget(histograms, gone);
        }
    }
}

impl Metrics {
    /// Removes the series of every client that `keep` refuses.
    pub fn retain_clients(&self, keep: impl Fn(&str) -> bool) {
        let families = &self.shared.families;
        let gone = |client: Option<&&str>| client.is_some_and(|client| !keep(client));
        forget(&families.requests_total, |labels| gone(labels.get(1)));
        forget(&families.client_permits_total, |labels| gone(labels.first()));
    }
}

impl Families {
    /// Removes the gauges of limits that a limiter no longer has.
    fn forget_limits_not_of(&self, limiter: &LimiterSeries) {
        let gone = |labels: &[&str]| {
            labels.first() == Some(&&*limiter.name)
                && !limiter.all_limits().any(|(label, _)| labels.get(1) == Some(&&**label))
        };
        forget(&self.limiter_limit_permits, gone);
        forget(&self.limiter_available_permits, gone);
    }

    /// Removes the series of classes that a limiter no longer has.
    fn forget_classes_not_of(&self, limiter: &LimiterSeries) {
        self.forget_classes(|labels| {
            let is_of = |class: &ClassSeries| labels.get(1) == Some(&&*class.name);
            labels.first() == Some(&&*limiter.name) && !limiter.classes.iter().any(is_of)
        });
    }

    /// Removes each series by class for which `gone` holds. Its first labels are the limiter and the class.
    fn forget_classes(&self, gone: impl Fn(&[&str]) -> bool) {
        forget(&self.permits_total, &gone);
        forget(&self.queue_wait_seconds, &gone);
        forget(&self.queue_waiting, &gone);
        forget(&self.queue_capacity, &gone);
    }
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}

/// The counts of a route since the start.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct RouteCounts {
    /// The route; empty for requests that matched none.
    pub route: String,
    /// Requests by status code.
    pub codes: BTreeMap<String, u64>,
    /// Answers of the upstream by how long they took: one count for each of [`REQUEST_SECONDS`](super::metrics::REQUEST_SECONDS), and one beyond.
    pub upstream: Vec<u64>,
    /// Requests that the upstream rejected.
    pub rejected: u64,
}

/// Returns the counts of the route of a series.
fn of_route<'a>(
    routes: &'a mut BTreeMap<String, RouteCounts>,
    series: &prometheus::proto::Metric,
) -> &'a mut RouteCounts {
    let route = label_of(series, "route");
    routes
        .entry(route.to_owned())
        .or_insert_with(|| RouteCounts { route: route.to_owned(), ..RouteCounts::default() })
}

/// Returns the value of a counter, which holds integers.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn count_of(series: &prometheus::proto::Metric) -> u64 {
    series.get_counter().get_value() as u64
}

/// Leaves the label of the class out where callers share nothing: to Prometheus an empty value and no label are the same, and people read this.
fn leave_out_no_class(family: &mut prometheus::proto::MetricFamily) {
    for series in family.mut_metric() {
        if series.get_label().iter().any(|label| label.name() == CLASS && label.value().is_empty()) {
            let labels = series.take_label().into_iter();
            series.set_label(labels.filter(|label| label.name() != CLASS).collect());
        }
    }
}

/// Returns the value of a label, or the empty string if the series has no such label.
fn label_of<'a>(series: &'a prometheus::proto::Metric, name: &str) -> &'a str {
    let label = series.get_label().iter().find(|label| label.name() == name);
    label.map_or("", |label| label.value())
}

/// Removes each series for which `gone` holds. `gone` gets its label values in the order of the family's labels.
fn forget<T: MetricVecBuilder>(vec: &MetricVec<T>, gone: impl Fn(&[&str]) -> bool)
where
    T::M: Metric,
{
    let names: Vec<&String> = vec.desc().into_iter().flat_map(|family| &family.variable_labels).collect();
    for family in vec.collect() {
        for series in family.get_metric() {
            // The library sorts the labels of a series by their names.
            let values: Vec<&str> = names.iter().map(|name| label_of(series, name)).collect();
            if gone(&values) {
                // The only error: another thread has removed it.
                let _ = vec.remove_label_values(&values);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::telemetry::handles::{ClientPermit, ConnectionError, StoreOp, StoreResult};
    use crate::telemetry::outcome::Outcome;

    fn limiter(name: &str, limits: &[(&str, u64)]) -> LimiterSeries {
        let limits = limits.iter().map(|(label, rate)| ((*label).into(), *rate)).collect();
        let classes = vec![ClassSeries { name: "".into(), queue_capacity: 7 }];
        LimiterSeries { name: name.into(), classes, limits, overriding: Vec::new() }
    }

    fn has(text: &str, line: &str) -> bool {
        text.lines().any(|found| found == line)
    }

    #[test]
    fn every_metric_is_exported_before_the_first_request() {
        let metrics = Metrics::new();
        metrics.route("a").publish();
        metrics.client_requests(&metrics.route("a"), "none").publish();
        metrics.client_permits("none", "l").publish();
        metrics.limiter(limiter("l", &[("5/1s", 5)])).publish();
        let text = metrics.render();
        let named = "requests_total client_connection_errors_total request_duration_seconds upstream_duration_seconds upstream_rejections_total breaker_open \
            permits_total client_permits_total queue_wait_seconds queue_waiting queue_capacity slot_lateness_seconds \
            limiter_limit_permits limiter_available_permits limiter_paused limiter_ready store_calls_total \
            store_call_duration_seconds store_batch_size store_up config_reloads_total \
            config_last_reload_successful config_last_success_timestamp_seconds log_lines_dropped_total build_info tasks";
        for name in named.split_whitespace() {
            assert!(text.contains(&format!("# TYPE weir_{name} ")), "weir_{name} is missing");
        }
        assert!(has(&text, r#"weir_permits_total{limiter="l",result="shadow_refused"} 0"#));
        assert!(has(&text, r#"weir_limiter_paused{limiter="l"} 0"#));
        assert!(has(&text, r#"weir_queue_capacity{limiter="l"} 7"#));
        assert!(has(&text, r#"weir_limiter_limit_permits{limit="5/1s",limiter="l"} 5"#));
    }

    #[test]
    fn a_handle_that_was_not_published_leaves_no_trace() {
        let metrics = Metrics::new();
        metrics.limiter(limiter("l", &[("5/1s", 5)])).publish();
        // The metrics of the process go on by themselves.
        let own = |text: String| {
            text.lines().filter(|line| !line.contains("process_")).map(str::to_owned).collect()
        };
        let before: Vec<String> = own(metrics.render());
        drop((metrics.route("r"), metrics.limiter(limiter("l", &[("6/1s", 6)]))));
        assert_eq!(own(metrics.render()), before);
    }

    #[test]
    fn requests_are_counted_beyond_the_cached_codes() {
        let metrics = Metrics::new();
        let route = metrics.client_requests(&metrics.route("a"), "none");
        for code in 200..240 {
            route.finished(code, Outcome::Forwarded, Duration::from_millis(3));
            route.finished(code, Outcome::Forwarded, Duration::from_millis(3));
        }
        let text = metrics.render();
        for code in 200..240 {
            let line = format!(
                r#"weir_requests_total{{client="none",code="{code}",outcome="forwarded",route="a"}} 2"#
            );
            assert!(has(&text, &line), "{line}");
        }
        assert!(has(&text, r#"weir_request_duration_seconds_count{route="a"} 80"#));
    }

    #[test]
    fn a_changed_limit_loses_its_gauge_and_keeps_its_counts() {
        let metrics = Metrics::new();
        metrics.limiter(limiter("l", &[("5/1s", 5), ("9/1m", 9)])).class(0).granted(3);
        metrics.limiter(limiter("other", &[("5/1s", 5)])).publish();
        metrics.limiter(limiter("l", &[("6/1s", 6), ("9/1m", 9)])).class(0).granted(1);
        let text = metrics.render();
        assert!(!text.contains(r#"{limit="5/1s",limiter="l"}"#));
        assert!(has(&text, r#"weir_limiter_limit_permits{limit="5/1s",limiter="other"} 5"#));
        assert!(has(&text, r#"weir_limiter_limit_permits{limit="9/1m",limiter="l"} 9"#));
        assert!(has(&text, r#"weir_permits_total{limiter="l",result="granted"} 4"#));
    }

    #[test]
    fn a_limit_of_some_partitions_is_shown_when_it_is_used() {
        let metrics = Metrics::new();
        let overriding = vec![("7/1s".into(), 7), ("8/1s".into(), 8)];
        let handle = metrics.limiter(LimiterSeries { overriding, ..limiter("l", &[("5/1s", 5)]) });
        handle.publish();
        assert_eq!([handle.limit("8/1s"), handle.limit("9/1s")], [Some(2), None]);
        handle.set_available(2, 3);
        handle.set_available(3, 3);
        let text = metrics.render();
        assert!(has(&text, r#"weir_limiter_available_permits{limit="8/1s",limiter="l"} 3"#));
        assert!(has(&text, r#"weir_limiter_available_permits{limit="5/1s",limiter="l"} 0"#));
        assert!(!text.contains(r#"weir_limiter_available_permits{limit="7/1s""#));
        assert!(has(&text, r#"weir_limiter_limit_permits{limit="7/1s",limiter="l"} 7"#));
    }

    #[test]
    fn a_removed_limiter_or_route_leaves_no_series() {
        let metrics = Metrics::new();
        metrics.limiter(limiter("gone", &[("5/1s", 5)])).publish();
        metrics.limiter(limiter("stays", &[("5/1s", 5)])).publish();
        for route in ["gone", "stays", ""] {
            let requests = |client| metrics.client_requests(&metrics.route(route), client);
            requests("none").finished(404, Outcome::Refused, Duration::ZERO);
            requests("gone").finished(404, Outcome::Refused, Duration::ZERO);
        }
        for (client, limiter) in [("gone", "stays"), ("none", "gone"), ("none", "stays")] {
            metrics.client_permits(client, limiter).add(ClientPermit::Granted, 2);
        }
        metrics.retain_limiters(|name| name == "stays");
        metrics.retain_routes(|name| name == "stays");
        metrics.retain_clients(|name| name == "none");
        let text = metrics.render();
        assert!(!text.contains("\"gone\""));
        assert!(text.contains(r#"limiter="stays""#) && text.contains(r#"route="stays""#));
        assert!(has(&text, r#"weir_requests_total{client="none",code="404",outcome="refused",route=""} 1"#));
        assert!(has(&text, r#"weir_client_permits_total{client="none",limiter="stays",result="granted"} 2"#));
    }

    #[test]
    fn store_calls_errors_of_clients_and_reloads_are_counted() {
        let metrics = Metrics::new();
        metrics.store().called(StoreOp::Inspect, StoreResult::Timeout, Duration::from_millis(100));
        metrics.store().set_up(true);
        metrics.connection_errors().ended(ConnectionError::OtherProtocol);
        metrics.reload(true, 12.5);
        metrics.reload(false, 13.5);
        let text = metrics.render();
        assert!(has(&text, r#"weir_store_calls_total{op="inspect",result="timeout"} 1"#));
        assert!(has(&text, "weir_store_up 1"));
        assert!(has(&text, r#"weir_client_connection_errors_total{reason="tls_handshake"} 0"#));
        assert!(has(&text, r#"weir_client_connection_errors_total{reason="other_protocol"} 1"#));
        assert!(has(&text, r#"weir_config_reloads_total{result="error"} 1"#));
        assert!(has(&text, "weir_config_last_reload_successful 0"));
        assert!(has(&text, "weir_config_last_success_timestamp_seconds 12.5"));
    }
}
