//! The series of one limiter.

use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use prometheus::{Histogram, HistogramVec, IntCounter, IntGauge, IntGaugeVec};

use crate::telemetry::handles::{ClassMetrics, ClassSeries, Unpublished, gauge_value};
use crate::telemetry::metrics::Families;

/// A limiter as the metrics show it.
pub struct LimiterSeries {
    /// The name, for the label `limiter`.
    pub name: Arc<str>,
    /// The classes of its callers: one at least.
    pub classes: Vec<ClassSeries>,
    /// The label and the rate of each limit.
    pub limits: Vec<(Arc<str>, u64)>,
    /// The same of the limits that some partitions have in their place, in the order of the labels, which are others.
    pub overriding: Vec<(Arc<str>, u64)>,
}

impl LimiterSeries {
    /// Iterates over the limits of all partitions, the limiter's own first.
    pub(in crate::telemetry) fn all_limits(&self) -> impl Iterator<Item = &(Arc<str>, u64)> {
        self.limits.iter().chain(&self.overriding)
    }
}

/// The series of one limiter, as it was configured when the handle was created. Cheap to clone.
#[derive(Clone)]
pub struct LimiterMetrics {
    shared: Arc<Unpublished<LimiterShared>>,
}

pub(in crate::telemetry) struct LimiterShared {
    /// At least one.
    classes: Vec<ClassMetrics>,
    lateness: Histogram,
    estimates: Estimates,
    condition: Condition,
    external_usage: IntCounter,
    available: Available,
}

/// The histogram of true costs. It appears with the first one: most limiters have none.
struct Estimates {
    limiter: Arc<str>,
    family: HistogramVec,
    ratio: OnceLock<Histogram>,
}

/// The gauges of each limit's available permits.
struct Available {
    limiter: Arc<str>,
    family: IntGaugeVec,
    /// Those of the limiter's own limits, in its order.
    own: Vec<IntGauge>,
    /// Those of limits that some partitions have in their place, in the order of their labels. Each appears when such a partition is seen, because
    /// zero would be wrong until then.
    overriding: Vec<(Arc<str>, OnceLock<IntGauge>)>,
}

impl Available {
    fn new(families: &Families, limiter: &LimiterSeries) -> Available {
        let (name, family) = (&limiter.name, &families.limiter_available_permits);
        let own = limiter.limits.iter().map(|(label, _)| family.with_label_values(&[&**name, &**label]));
        Available {
            limiter: name.clone(),
            family: family.clone(),
            own: own.collect(),
            overriding: limiter
                .overriding
                .iter()
                .map(|(label, _)| (label.clone(), OnceLock::new()))
                .collect(),
        }
    }

    /// Returns the gauge of the limit with this index, the limiter's own first.
    fn gauge(&self, limit: usize) -> Option<&IntGauge> {
        let own = self.own.get(limit);
        own.or_else(|| {
            let (label, gauge) = self.overriding.get(limit - self.own.len())?;
            Some(gauge.get_or_init(|| self.family.with_label_values(&[&*self.limiter, &**label])))
        })
    }
}

/// The gauges of whether a limiter lets requests pass.
struct Condition {
    paused: IntGauge,
    ready: IntGauge,
}

impl LimiterShared {
    /// Creates the series of a limiter.
    pub(in crate::telemetry) fn new(families: &Families, limiter: &LimiterSeries) -> LimiterShared {
        let name = &*limiter.name;
        for (label, rate) in limiter.all_limits() {
            families.limiter_limit_permits.with_label_values(&[name, &**label]).set(gauge_value(*rate));
        }
        LimiterShared {
            classes: limiter.classes.iter().map(|class| ClassMetrics::new(families, name, class)).collect(),
            lateness: families.slot_lateness_seconds.with_label_values(&[name]),
            estimates: Estimates {
                limiter: limiter.name.clone(),
                family: families.limiter_estimate_ratio.clone(),
                ratio: OnceLock::new(),
            },
            condition: Condition {
                paused: families.limiter_paused.with_label_values(&[name]),
                ready: families.limiter_ready.with_label_values(&[name]),
            },
            external_usage: families.limiter_external_usage_permits_total.with_label_values(&[name]),
            available: Available::new(families, limiter),
        }
    }
}

impl LimiterMetrics {
    /// Creates a handle to series that `create` will make.
    pub(in crate::telemetry) fn new(
        create: impl FnOnce() -> LimiterShared + Send + 'static,
    ) -> LimiterMetrics {
        LimiterMetrics { shared: Arc::new(LazyLock::new(Box::new(create))) }
    }

    /// Shows the series in `/metrics`, at zero where nothing was counted yet.
    pub fn publish(&self) {
        LazyLock::force(&self.shared);
    }

    /// Returns the series of the class with this place. A limiter that its callers do not share has one for all.
    pub fn class(&self, place: usize) -> &ClassMetrics {
        let classes = &self.shared.classes;
        &classes[place.min(classes.len() - 1)]
    }

    /// Returns the number of classes: one if callers do not share the limiter.
    pub fn classes(&self) -> usize {
        self.shared.classes.len()
    }

    /// Returns how many requests waited, by [`WAIT_SECONDS`](crate::telemetry::metrics::WAIT_SECONDS), and beyond the last bound.
    pub fn wait_counts(&self) -> Vec<u64> {
        let mut counts = self.class(0).wait_counts();
        for class in &self.shared.classes[1..] {
            counts.iter_mut().zip(class.wait_counts()).for_each(|(count, more)| *count += more);
        }
        counts
    }

    /// Records the time from a permit's slot to its use.
    pub fn lateness(&self, late: Duration) {
        self.shared.lateness.observe(late.as_secs_f64());
    }

    /// Records the true cost of a request over what it had taken.
    pub fn estimate_ratio(&self, ratio: f64) {
        let Estimates { limiter, family, ratio: histogram } = &self.shared.estimates;
        histogram.get_or_init(|| family.with_label_values(&[&**limiter])).observe(ratio);
    }

    /// Sets whether the limiter is paused.
    pub fn set_paused(&self, is_paused: bool) {
        self.shared.condition.paused.set(i64::from(is_paused));
    }

    /// Sets whether the limiter can serve.
    pub fn set_ready(&self, is_ready: bool) {
        self.shared.condition.ready.set(i64::from(is_ready));
    }

    /// Counts permits charged for external usage.
    pub fn count_external_usage(&self, permits: u64) {
        self.shared.external_usage.inc_by(permits);
    }

    /// Returns the index of the limit with this label, among those of all partitions; `None` if it is not shown.
    pub fn limit(&self, label: &str) -> Option<usize> {
        let Available { own, overriding, .. } = &self.shared.available;
        let place = overriding.binary_search_by(|(other, _)| (**other).cmp(label)).ok()?;
        Some(own.len() + place)
    }

    /// Sets the permits left of the limit with this index, in the partition that has least of it. The limiter's own limits come first.
    pub fn set_available(&self, limit: usize, permits: u64) {
        if let Some(available) = self.shared.available.gauge(limit) {
            available.set(gauge_value(permits));
        }
    }
}
