//! Limiters that only count: what they would have granted or refused, beside the requests and never in their way.

use std::sync::Arc;

use crate::limiter::model::limit::Permits;
use crate::limiter::queue::active_limiter::LimiterInstance;

/// Charges limiters that only count, each through a queue of its own.
pub(in crate::limiter) trait ShadowQueues: Send + Sync {
    /// Charges one of them as if it had been asked.
    fn charge_shadow(self: Arc<Self>, instance: &LimiterInstance, cost: Permits);
}

/// The limiters of a gate that only count.
#[derive(Clone)]
pub(in crate::limiter) struct Shadows {
    queues: Arc<dyn ShadowQueues>,
    instances: Arc<[LimiterInstance]>,
}

impl Shadows {
    /// `None` if there are none.
    pub(in crate::limiter) fn new(
        queues: &Arc<impl ShadowQueues + 'static>,
        instances: &[LimiterInstance],
    ) -> Option<Shadows> {
        (!instances.is_empty()).then(|| Shadows { queues: queues.clone(), instances: instances.into() })
    }

    pub(in crate::limiter) fn instances(&self) -> &[LimiterInstance] {
        &self.instances
    }

    /// Charges each of them as if it had been asked, through a queue of its own: nobody waits for the answer, and what
    /// finds no room there counts as refused.
    pub(in crate::limiter) fn charge(&self, cost: Permits) {
        self.instances.iter().for_each(|instance| self.queues.clone().charge_shadow(instance, cost));
    }
}
