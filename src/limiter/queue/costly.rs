//! The largest cost of a request that takes the permits of several limiters at once.

use crate::limiter::model::{Costs, Permits, Refusal};
use crate::limiter::queue::active_limiter::LimiterInstance;
use crate::limiter::queue::handle::Queue;

impl Queue {
    /// Returns the largest cost that every limiter can ever hold.
    pub(in crate::limiter) fn cost_max(&self) -> Permits {
        self.instances.iter().map(LimiterInstance::cost_max).min().unwrap_or(Permits::ONE)
    }

    /// Returns the refusal of a request that costs more than a limiter can ever hold, if it does.
    pub(in crate::limiter) fn too_costly_for(&self, costs: &Costs) -> Option<Refusal> {
        let costly =
            |(place, instance): &(usize, &LimiterInstance)| costs.at(*place) > instance.cost_max().get();
        let (_, instance) = self.instances.iter().enumerate().find(costly)?;
        if costs.same().is_some() {
            return Some(self.too_costly());
        }
        let (limiter, cost_max) = (instance.active.name.clone(), instance.cost_max());
        Some(Refusal::CostExceedsLimit { limiter, cost_max })
    }

    /// Returns the refusal of a request that costs more of each limiter than [`Queue::cost_max`].
    pub(in crate::limiter) fn too_costly(&self) -> Refusal {
        let cost_max = self.cost_max();
        let limiter = self.instances.iter().find(|instance| instance.cost_max() == cost_max);
        let limiter = limiter.map_or_else(|| self.name(), |instance| instance.active.name.clone());
        Refusal::CostExceedsLimit { limiter, cost_max }
    }
}
