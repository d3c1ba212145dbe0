//! The part of a limiter that the arithmetic and the stores need.

use std::sync::Arc;

use crate::clock::Micros;
use crate::limiter::arithmetic::algorithm::kind;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::arithmetic::share::Share;
use crate::limiter::model::{Bound, Limiter, LimiterName, Partition};

/// A limiter or one of its partitions: where its state is, and its rules.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LimiterRef {
    /// The limiter.
    pub name: LimiterName,
    /// The partition, if the limiter has any.
    pub partition: Option<Partition>,
    /// The group: limiters that are taken together live together.
    pub group: Arc<str>,
    /// The limits, widened by the guard.
    pub rules: Arc<[Rule]>,
    /// The instant of the store's clock from which the rules must be made anew, because calendar windows go on; `None`: never.
    pub valid_until: Option<Micros>,
}

impl LimiterRef {
    /// Returns the reference to a limiter, or to one of its partitions, as of `now` by the store's clock. `limiter` is as it holds for
    /// the partition.
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

    /// Returns the reference to what some classes together may use of a limiter, or of one of its partitions: that part of each limit, in
    /// millionths and rounded down, in every interval of the limit's window. Even beside a leaky bucket: a spacing of its own would leave gaps
    /// into which nobody fits.
    pub fn ceiling(
        limiter: &Limiter,
        partition: Option<Partition>,
        bound: &Bound,
        now: Micros,
    ) -> LimiterRef {
        let limits = limiter.limits.iter().map(|limit| kind::ceiling(limit, bound.ppm));
        let limiter = Limiter { limits: limits.collect(), ..limiter.clone() };
        let whole = partition.map(|partition| partition.to_string());
        let whole = std::iter::once(whole.as_deref().map(str::as_bytes));
        let own = Partition::of(whole.chain([Some(bound.name.as_bytes())]));
        LimiterRef::new(&limiter, Some(own), now)
    }

    /// Returns a replica's place among those that have a share of the limiter while the store is away; `None` if it has none.
    ///
    /// No more replicas have a share than there are permits at one instant under every limit.
    #[must_use]
    pub fn place(&self, share: Share) -> Option<Share> {
        let most = self.rules.iter().map(|rule| rule.rate.min(rule.capacity())).min().unwrap_or_default();
        share.among(most)
    }

    /// Returns the part of the limiter that one replica may use by itself while the store is away; `None` if it has no share.
    #[must_use]
    pub fn share(&self, share: Share) -> Option<LimiterRef> {
        let share = self.place(share)?;
        let rules: Arc<[Rule]> = self.rules.iter().map(|rule| rule.share(share)).collect();
        let has_any = rules.iter().all(|rule| rule.rate > 0 && rule.capacity() > 0);
        has_any.then(|| LimiterRef { rules, ..self.clone() })
    }

    /// Returns the rules as the Lua twin reads them.
    pub fn rules_text(&self) -> String {
        self.rules.iter().map(Rule::text).collect::<Vec<_>>().join(";")
    }
}
