//! The part of a limiter that the arithmetic and the stores need.

use std::sync::Arc;

use crate::clock::Micros;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::model::limit::{Limiter, LimiterName};
use crate::limiter::model::partition::Partition;

/// The part of a limiter that a store needs: where its state is, and its rules.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LimiterRef {
    /// The limiter.
    pub name: LimiterName,
    /// Which of its partitions, if it has any.
    pub partition: Option<Partition>,
    /// Its group: what is taken together lives together.
    pub group: Arc<str>,
    /// Its limits, widened by its guard.
    pub rules: Arc<[Rule]>,
    /// From when on, by the store's clock, they must be made anew, because windows of a calendar go on; `None`: never.
    pub valid_until: Option<Micros>,
}

impl LimiterRef {
    /// The limiter_ref of a limiter, or of one of its partitions, as of `now` by the store's clock.
    pub fn new(limiter: &Limiter, partition: Option<Partition>, now: Micros) -> LimiterRef {
        let guard = Micros::from(limiter.guard);
        let (rules, valid_until): (Vec<_>, Vec<_>) =
            limiter.limits.iter().map(|limit| Rule::new(limit, guard, now)).unzip();
        LimiterRef {
            name: limiter.name.clone(),
            partition,
            group: limiter.group.clone(),
            rules: rules.into(),
            valid_until: valid_until.into_iter().flatten().min(),
        }
    }
}
