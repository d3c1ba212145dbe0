//! Limiters that only count: they record what they would have granted or refused, and never hold a request up.

use std::sync::Arc;

use crate::limiter::model::{Costs, Permits};
use crate::limiter::queue::active_limiter::LimiterInstance;

/// The queues through which limiters that only count are charged, one for each.
pub(in crate::limiter) trait ShadowQueues: Send + Sync {
    /// Charges a limiter as if it had been asked. Nobody waits for the answer; a refusal is only counted.
    fn charge_shadow(self: Arc<Self>, instance: &LimiterInstance, cost: Permits);
}

/// The limiters of a request that only count.
#[derive(Clone)]
pub(in crate::limiter) struct Shadows {
    queues: Arc<dyn ShadowQueues>,
    instances: Arc<[LimiterInstance]>,
    /// The permits that the request takes of each of them.
    costs: Costs,
}

impl Shadows {
    /// Creates the shadows of these instances; `None` if there are none.
    pub(in crate::limiter) fn new(
        queues: &Arc<impl ShadowQueues + 'static>,
        instances: &[LimiterInstance],
    ) -> Option<Shadows> {
        let costs = Permits::ONE.into();
        (!instances.is_empty()).then(|| Shadows {
            queues: queues.clone(),
            instances: instances.into(),
            costs,
        })
    }

    pub(in crate::limiter) fn instances(&self) -> &[LimiterInstance] {
        &self.instances
    }

    /// Returns the shadows of a request that takes so much of each of them.
    pub(in crate::limiter) fn taking(mut self, costs: Costs) -> Shadows {
        self.costs = costs;
        self
    }

    /// Charges each of the limiters.
    pub(in crate::limiter) fn charge(&self) {
        for (place, instance) in self.instances.iter().enumerate() {
            if let Some(cost) = Permits::new(self.costs.at(place)) {
                self.queues.clone().charge_shadow(instance, cost);
            }
        }
    }
}
