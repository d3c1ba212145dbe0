//! The requests that wait in a queue, as its worker last said, for those who look on.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::clock::Moment;
use crate::limiter::model::Flow;

/// The requests of one flow that wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::limiter) struct FlowWaiting {
    pub(in crate::limiter) flow: Flow,
    /// The number of requests.
    pub(in crate::limiter) count: u32,
    /// When the first of them arrived.
    pub(in crate::limiter) since: Moment,
}

/// The requests that wait in a queue.
#[derive(Default)]
pub(in crate::limiter) struct WaitingNow {
    count: AtomicU32,
    /// The moment at which the first one arrived.
    first_arrived: AtomicU64,
    /// The flows, where callers share the quota.
    flows: Mutex<Vec<FlowWaiting>>,
}

impl WaitingNow {
    /// Sets how many wait, and when the first of them arrived. Returns how many waited before.
    pub(in crate::limiter) fn set(&self, count: u32, first_arrived: Option<Moment>) -> u32 {
        if let Some(arrived) = first_arrived {
            self.first_arrived.store(arrived.0, Ordering::Relaxed);
        }
        // Released after the arrival, so that a reader of this number sees that instant too.
        self.count.swap(count, Ordering::Release)
    }

    /// Returns how many wait, as seen at some moment just now.
    pub(in crate::limiter) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns when the first one arrived; `None` if nobody waits.
    pub(in crate::limiter) fn since(&self) -> Option<Moment> {
        let is_waited_for = self.count.load(Ordering::Acquire) > 0;
        is_waited_for.then(|| Moment(self.first_arrived.load(Ordering::Relaxed)))
    }

    /// Sets the flows that wait.
    pub(in crate::limiter) fn set_flows(&self, flows: Vec<FlowWaiting>) {
        *self.flows.lock().unwrap_or_else(PoisonError::into_inner) = flows;
    }

    /// Looks at the flows that wait.
    pub(in crate::limiter) fn each_flow(&self, look: impl FnMut(&FlowWaiting)) {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(look);
    }
}
