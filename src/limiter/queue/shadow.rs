//! Limiters that only count: what they would have granted or refused, beside the requests and never in their way.

use std::slice;
use std::sync::Arc;

use crate::limiter::model::limit::Permits;
use crate::limiter::model::refusal::Refusal;
use crate::limiter::queue::handle::{Asker, Demand, Queue};
use crate::limiter::registry::active_limiter::LimiterInstance;
use crate::limiter::registry::queues::Queues;

/// The limiters of a gate that only count.
#[derive(Clone)]
pub(in crate::limiter) struct Shadows {
    queues: Arc<Queues>,
    instances: Arc<[LimiterInstance]>,
}

impl Shadows {
    /// `None` if there are none.
    pub(in crate::limiter) fn new(queues: &Arc<Queues>, instances: &[LimiterInstance]) -> Option<Shadows> {
        (!instances.is_empty()).then(|| Shadows { queues: queues.clone(), instances: instances.into() })
    }

    pub(in crate::limiter) fn instances(&self) -> &[LimiterInstance] {
        &self.instances
    }

    /// Charges each of them as if it had been asked, through a queue of its own: nobody waits for the answer, and what
    /// finds no room there counts as refused.
    pub(in crate::limiter) fn charge(&self, cost: Permits) {
        let demand = Demand { cost, wait_max: None };
        for instance in &*self.instances {
            // Whoever finds a queue that has ended looks for the next; a refusal has been counted.
            while let Some(queue) = self.queue(instance, cost)
                && matches!(queue.push(demand, Asker::Shadow), Ok(false))
            {}
        }
    }

    fn queue(&self, instance: &LimiterInstance, cost: Permits) -> Option<Arc<Queue>> {
        match self.queues.find(slice::from_ref(instance)) {
            Ok(queue) => Some(queue),
            // weir is shutting down: it would not have been refused.
            Err(Refusal::Closed { .. }) => None,
            Err(_) => {
                instance.active.metrics().shadow_refused(cost.get());
                None
            }
        }
    }
}
