//! Limiters that only count: what they would have granted or refused, beside the requests and never in their way.

use std::slice;
use std::sync::Arc;

use crate::limiter::limit::Permits;
use crate::limiter::live::Member;
use crate::limiter::queue::{Asker, Demand, Shared};
use crate::limiter::queues::Queues;
use crate::limiter::refusal::Refusal;

/// The limiters of a gate that only count.
#[derive(Clone)]
pub(super) struct Shadows {
    queues: Arc<Queues>,
    members: Arc<[Member]>,
}

impl Shadows {
    /// `None` if there are none.
    pub(super) fn new(queues: &Arc<Queues>, members: &[Member]) -> Option<Shadows> {
        (!members.is_empty()).then(|| Shadows { queues: queues.clone(), members: members.into() })
    }

    pub(super) fn members(&self) -> &[Member] {
        &self.members
    }

    /// Charges each of them as if it had been asked, through a queue of its own: nobody waits for the answer, and what
    /// finds no room there counts as refused.
    pub(super) fn charge(&self, cost: Permits) {
        let demand = Demand { cost, wait_max: None };
        for member in &*self.members {
            // Whoever finds a queue that has ended looks for the next; a refusal has been counted.
            while let Some(queue) = self.queue(member, cost)
                && matches!(queue.push(demand, Asker::Shadow), Ok(false))
            {}
        }
    }

    fn queue(&self, member: &Member, cost: Permits) -> Option<Arc<Shared>> {
        match self.queues.find(slice::from_ref(member)) {
            Ok(queue) => Some(queue),
            // weir is shutting down: it would not have been refused.
            Err(Refusal::Closed { .. }) => None,
            Err(_) => {
                member.live.metrics().shadow_refused(cost.get());
                None
            }
        }
    }
}
