//! The reports of a worker to the store about the upstream's signals: one at a time.

use std::future::pending;

use futures_util::future::BoxFuture;

use super::unsure_costs::UnsureCosts;
use crate::clock::{Micros, Moment};
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::{ReportResult, UpstreamReport};
use crate::limiter::queue::upstream_report::PendingReport;
use crate::limiter::store::Failure;

/// The shortest time between two reports, unless one cannot wait.
const REPORT_INTERVAL: Micros = Micros::from_millis(100);

/// The results of the reports to the store, with the place of the limiter that each is about.
pub(super) type Reports =
    Vec<(usize, LimiterRef, UpstreamReport, Result<ReportResult, Failure<ReportResult>>)>;

/// The reports of a worker to the store: one at a time.
#[derive(Default)]
pub(super) struct Reporter {
    /// Signals of the upstream that were not reported yet.
    pending: Option<PendingReport>,
    /// The report of earlier signals.
    pub(super) under_way: Option<BoxFuture<'static, Reports>>,
    /// The moment before which a report that can wait is not sent.
    not_before: Moment,
    pub(super) unsure: UnsureCosts,
}

/// Waits for the results of the report under way.
pub(super) async fn next_reports(under_way: &mut Option<BoxFuture<'static, Reports>>) -> Reports {
    match under_way {
        Some(reporting) => {
            let reports = reporting.await;
            *under_way = None;
            reports
        }
        None => pending().await,
    }
}

impl Reporter {
    /// Returns whether there is nothing to report, and nothing to record of what was reported.
    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_none() && self.under_way.is_none() && self.unsure.are_recorded()
    }

    /// Returns when the next report is to be sent.
    pub(super) fn wakes_at(&self) -> Option<Moment> {
        (self.pending.is_some() && self.under_way.is_none()).then_some(self.not_before)
    }

    /// Merges new signals, and returns those to be sent now.
    pub(super) fn take(&mut self, report: Option<PendingReport>, now: Moment) -> Option<PendingReport> {
        match (&mut self.pending, report) {
            (Some(before), Some(later)) => before.add(later),
            (before @ None, later) => *before = later,
            (Some(_), None) => {}
        }
        let is_early = now < self.not_before;
        let can_send = self.under_way.is_none();
        let report = self.pending.take_if(|pending| can_send && (!is_early || !pending.can_wait()))?;
        self.not_before = now + REPORT_INTERVAL;
        Some(report)
    }
}
