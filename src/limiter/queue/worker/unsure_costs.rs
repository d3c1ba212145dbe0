//! Costs beyond their estimates whose report was not answered in time. A store that stood still carries the report out when it goes on, so
//! that they must not be told to it again; one that was away has not heard of them.

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::timeout;

use crate::clock::Micros;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::ReportResult;
use crate::limiter::store::LateAnswer;

/// The most costs that a worker is unsure of: a store that has failed three times is not asked.
const UNSURE_MAX: usize = 64;

/// A cost that was reported for the limiter, or the ceiling, at a place.
pub(super) struct ReportedCost {
    pub(super) place: usize,
    pub(super) limiter_ref: LimiterRef,
    pub(super) cost: u64,
}

/// The end of the wait for a late answer.
pub(super) enum CostEnd {
    /// The report was carried out.
    Told(ReportResult),
    /// It was not, as far as can be known.
    Untold,
    /// The store has had its time to answer.
    Overdue(LateAnswer<ReportResult>),
}

/// A cost, when it was recorded as granted without the store, by this process's clock, and the end of a wait for the late answer.
pub(super) type UnsureCost = (ReportedCost, Option<Micros>, CostEnd);

/// The costs that a worker is unsure of.
#[derive(Default)]
pub(super) struct UnsureCosts {
    each: FuturesUnordered<BoxFuture<'static, UnsureCost>>,
    /// How many of them are not recorded.
    unrecorded: usize,
}

impl UnsureCosts {
    /// Returns whether nothing is awaited.
    pub(super) fn is_empty(&self) -> bool {
        self.each.is_empty()
    }

    /// Returns whether no further cost is awaited.
    pub(super) fn are_full(&self) -> bool {
        self.each.len() >= UNSURE_MAX
    }

    /// Takes in that a cost which was not recorded is told or recorded now.
    pub(super) fn settled(&mut self) {
        self.unrecorded = self.unrecorded.saturating_sub(1);
    }

    /// Returns whether each cost is told or recorded, so that nothing is lost with the worker.
    pub(super) fn are_recorded(&self) -> bool {
        self.unrecorded == 0
    }

    /// Waits for the end of a wait; forever if there is none.
    pub(super) async fn ended(&mut self) -> UnsureCost {
        match self.each.next().await {
            Some(end) => end,
            None => std::future::pending().await,
        }
    }

    /// Waits so long for the late answer to the report of a cost.
    pub(super) fn wait(&mut self, cost: ReportedCost, mut late: LateAnswer<ReportResult>, longest: Micros) {
        self.unrecorded += 1;
        let wait = async move {
            let end = match timeout(longest.to_duration(), &mut late).await {
                Ok(answer) => answer.map_or(CostEnd::Untold, CostEnd::Told),
                Err(_) => CostEnd::Overdue(late),
            };
            (cost, None, end)
        };
        self.each.push(wait.boxed());
    }

    /// Waits on for the late answer, which may still come before the recorded cost is told to the store.
    pub(super) fn wait_on(&mut self, cost: ReportedCost, recorded: Micros, late: LateAnswer<ReportResult>) {
        let wait = async move {
            let end = late.await.map_or(CostEnd::Untold, CostEnd::Told);
            (cost, Some(recorded), end)
        };
        self.each.push(wait.boxed());
    }
}
