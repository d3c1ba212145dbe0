//! Settles the cost of a request by a number in the body of its response, which goes on to the client meanwhile.
//!
//! Decides nothing about limits.

use std::sync::Arc;

use http::HeaderMap;

use super::plan::Plan;
use crate::config::model::Settle;
use crate::limiter::model::{Permits, RATE_MAX};
use crate::limiter::{Partition, Receipt};
use crate::proxy::messages::body_numbers::BodyNumbers;
use crate::proxy::route::table::Route;

/// A cost that the body of a response settles.
pub(crate) struct Settling {
    numbers: BodyNumbers,
    route: Arc<Route>,
    partitions: Vec<Option<Partition>>,
    receipt: Receipt,
    /// What the request has taken.
    taken: Permits,
}

impl Settling {
    /// Begins to look for the cost in a body with these headers; `None` if no body can tell it.
    pub(crate) fn of(
        plan: &Plan,
        headers: &HeaderMap,
        receipt: &Receipt,
        settle: &Settle,
    ) -> Option<Box<Settling>> {
        if settle.json.is_empty() {
            return None;
        }
        Some(Box::new(Settling {
            numbers: BodyNumbers::of(headers, &settle.json, RATE_MAX.into())?,
            route: Arc::clone(&plan.route),
            partitions: plan.partitions.clone(),
            receipt: receipt.clone(),
            taken: plan.demand.cost,
        }))
    }

    /// Looks at a further piece of the body.
    pub(crate) fn see(&mut self, piece: &[u8]) {
        self.numbers.see(piece);
    }

    /// Settles the cost at the end of the body. Of one that breaks off nobody knows what was still to come, so nothing is given back.
    pub(crate) fn end(&self, is_whole: bool) {
        let (Some(cost), Some(limiter_set)) = (self.numbers.largest(), &self.route.limiter_set) else {
            return;
        };
        if is_whole || cost > self.taken.get() {
            limiter_set.settle(&self.partitions, &self.receipt, cost);
        }
    }
}
