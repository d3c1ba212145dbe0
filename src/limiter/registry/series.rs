//! A limiter as the metrics show it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::limiter::model::{Class, Limit, Limiter};
use crate::telemetry::{ClassSeries, LimiterSeries};

/// The most limits of overrides that are shown, the first by their labels: all replicas show the same.
const OVERRIDING_MAX: usize = 64;

/// Returns the label values and configured numbers of a limiter.
pub(super) fn series(limiter: &Limiter) -> LimiterSeries {
    let shown = |limit: &Limit| (limit.label.clone(), limit.rate.get());
    let own: Vec<(Arc<str>, u64)> = limiter.limits.iter().map(shown).collect();
    let others = limiter.overrides().flat_map(|limiter| limiter.limits.iter().map(shown));
    let others: BTreeMap<_, _> = others.filter(|other| !own.contains(other)).collect();
    LimiterSeries {
        name: limiter.name.as_str().into(),
        classes: classes(limiter),
        limits: own,
        overriding: others.into_iter().take(OVERRIDING_MAX).collect(),
    }
}

/// Returns the classes of a limiter's callers; one without a name where they share nothing.
fn classes(limiter: &Limiter) -> Vec<ClassSeries> {
    let Some(share) = limiter.share() else {
        let queue_capacity = limiter.queue.as_ref().map_or(0, |queue| queue.max_waiting);
        return vec![ClassSeries { name: "".into(), queue_capacity }];
    };
    let class =
        |class: &Class| ClassSeries { name: class.name.clone(), queue_capacity: class.queue.max_waiting };
    share.classes.iter().map(class).collect()
}
