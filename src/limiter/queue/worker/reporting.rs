//! Reports the quota signals in the upstream's answers to the store, and keeps to the pauses that follow.

use std::slice;

use futures_util::future::{FutureExt, join_all};
use tracing::{info, warn};

use super::events::Event;
use super::reporter::Reports;
use super::state::Worker;
use super::unsure_costs::{CostEnd, ReportedCost, UnsureCost};
use crate::clock::Moment;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::{
    Cause, Epoch, Holding, PauseRequest, PauseStretch, Reason, ReportResult, UpstreamReport,
};
use crate::limiter::queue::active_limiter::LimiterInstance;
use crate::limiter::queue::shared_quota::SharedQuota;
use crate::limiter::queue::upstream_report::PendingReport;
use crate::limiter::store::{Failure, LateAnswer, StoreError};

impl Worker {
    /// Merges new signals into the pending report, and sends it if it is time and no other report is under way.
    pub(super) fn take_report(&mut self, report: Option<PendingReport>, now: Moment) {
        let Some(pending) = self.reporter.take(report, now) else { return };
        let reports = self.upstream_reports(&pending, now);
        if reports.is_empty() {
            return;
        }
        let pauses = reports.iter().any(|(_, _, report)| report.pause.is_some());
        self.events.push(Event::Reporting(pauses));
        let session = self.session.clone();
        let reporting = join_all(reports.into_iter().map(move |(place, limiter_ref, report)| {
            let session = session.clone();
            async move {
                let result = session.store.report_upstream(&limiter_ref, &report).await;
                (place, limiter_ref, report, result)
            }
        }));
        self.reporter.under_way = Some(reporting.boxed());
    }

    /// Returns the report for each limiter that the signals concern, and for each ceiling, with its place among these.
    fn upstream_reports(
        &self,
        pending: &PendingReport,
        now: Moment,
    ) -> Vec<(usize, LimiterRef, UpstreamReport)> {
        let (replica, known_epoch) = (self.fallback.replica, self.session.epoch_least());
        let jitter = self.fallback.entropy.draw() % 1024;
        let limiter_refs = || self.store_calls.limiter_refs.iter().enumerate();
        let limiters = self.queue.instances.iter().zip(limiter_refs());
        let reports = limiters.filter_map(|(instance, (place, limiter_ref))| {
            let limiter = instance.limiter();
            let report = UpstreamReport {
                replica,
                known_epoch,
                pause: pending.pause(&limiter, now, jitter),
                refused: pending.refused(place, &limiter),
                cost: pending.charged(place, |_| true),
                remaining: pending.remaining(&limiter),
            };
            let is_nothing = report.pause.is_none()
                && report.refused.is_empty()
                && report.cost == 0
                && report.remaining.is_empty();
            (!is_nothing).then(|| (place, limiter_ref.clone(), report))
        });
        // A ceiling is told of the requests of its classes, as it was when they took their permits.
        let shared = pending.has_charges().then(|| SharedQuota::of(&self.queue.instances)).flatten();
        let ceilings = shared.iter().flat_map(|SharedQuota { share, place, ceilings, .. }| {
            limiter_refs().skip(self.queue.instances.len()).zip(ceilings).filter_map(
                move |((own, limiter_ref), classes)| {
                    let cost = pending.charged(*place, |flow| classes.contains(&share.member(flow).class));
                    let report = UpstreamReport { replica, known_epoch, cost, ..UpstreamReport::default() };
                    (cost > 0).then(|| (own, limiter_ref.clone(), report))
                },
            )
        });
        reports.chain(ceilings).collect()
    }

    /// Takes in the results of the reports. A report that failed is followed by this replica alone.
    pub(super) fn settle_reports(&mut self, reports: Reports) {
        self.events.push(Event::Reporting(false));
        for (place, limiter_ref, report, result) in reports {
            let instance = self.queue.instances.get(place).cloned();
            match (result, instance) {
                (Ok(result), instance) => {
                    let is_kept = self.settle_charge(&limiter_ref, report.cost, result.epoch);
                    if let Some(instance) = instance {
                        if !is_kept && report.cost > 0 && self.session.store.may_fail() {
                            self.record_excess(place, report.cost);
                        }
                        self.settle_report(&instance, &report, result);
                    }
                }
                // A ceiling holds as long as the store knows it.
                (Err(_), None) => {}
                (Err(Failure { error, late }), Some(instance)) => {
                    if !matches!(error, StoreError::Away) {
                        warn!(limiter = %limiter_ref.name, %error, "cannot report the upstream's quota to the store");
                    }
                    self.report_locally(&instance, &limiter_ref, &report);
                    if report.cost > 0 && self.session.store.may_fail() {
                        self.doubt_cost(ReportedCost { place, limiter_ref, cost: report.cost }, late);
                    }
                }
            }
        }
    }

    /// Takes in that a report was carried out in an epoch. Returns whether the store's present memory has what it charged.
    fn settle_charge(&self, limiter_ref: &LimiterRef, cost: u64, epoch: Epoch) -> bool {
        if self.session.observe_epoch(epoch) {
            self.siblings.wake_all();
        }
        // Behind the epoch, which may be one that the report has begun: that memory has the charge. An earlier one is gone.
        let is_kept = epoch.memory >= self.session.memory();
        if cost > 0 && is_kept && self.session.store.may_fail() {
            let at = self.session.on_known_clock(epoch.now);
            self.session.ledger().charge(limiter_ref, at, cost);
        }
        is_kept
    }

    /// Takes in that the report of a cost has failed, or may still be carried out late.
    ///
    /// Invariant: it is told, or recorded to be told, by when the store counts as away at the latest. What is recorded is taken back only when
    /// the store's memory is sure to have it, and only if it was not written back meanwhile.
    fn doubt_cost(&mut self, cost: ReportedCost, late: Option<LateAnswer<ReportResult>>) {
        match late.filter(|_| !self.reporter.unsure.are_full()) {
            Some(late) => {
                let longest = self.session.terms.lease;
                self.reporter.unsure.wait(cost, late, longest);
            }
            None => drop(self.record_excess(cost.place, cost.cost)),
        }
    }

    /// Takes in what has become of the report of a cost.
    pub(super) fn take_unsure(&mut self, (cost, recorded, end): UnsureCost) {
        if recorded.is_none() {
            self.reporter.unsure.settled();
        }
        match (end, recorded) {
            (CostEnd::Told(result), recorded) => {
                let is_kept = self.settle_charge(&cost.limiter_ref, cost.cost, result.epoch);
                match recorded {
                    Some(slot) if is_kept => {
                        let told = Holding { slot, cost: cost.cost, count: 1 };
                        self.session.ledger().remove_offline(slice::from_ref(&cost.limiter_ref), &[told]);
                    }
                    None if !is_kept => drop(self.record_excess(cost.place, cost.cost)),
                    _ => {}
                }
            }
            (CostEnd::Untold, None) => drop(self.record_excess(cost.place, cost.cost)),
            (CostEnd::Overdue(late), _) => {
                if let Some(recorded) = self.record_excess(cost.place, cost.cost) {
                    self.reporter.unsure.wait_on(cost, recorded, late);
                }
            }
            (CostEnd::Untold, Some(_)) => {}
        }
    }

    fn settle_report(&self, instance: &LimiterInstance, report: &UpstreamReport, result: ReportResult) {
        if !report.remaining.is_empty() {
            instance.active.metrics().count_external_usage(result.external_usage);
        }
        if report.pause.is_some() && result.paused_until > result.epoch.now {
            let stretch = PauseStretch { from: result.epoch.now, until: result.paused_until };
            log_pause(report, stretch, instance);
            if let Some(cause) = cause_of(report) {
                self.siblings.pause(instance, stretch, cause);
            }
        }
    }

    /// Makes a report to this replica's own memory, and keeps to its pause by this process's clock.
    fn report_locally(&self, instance: &LimiterInstance, limiter_ref: &LimiterRef, report: &UpstreamReport) {
        let fallback = &self.fallback;
        // A replica without a share keeps to a pause, too.
        let limiter_ref = limiter_ref.share(self.share()).unwrap_or_else(|| limiter_ref.clone());
        let (moment, now) = (self.session.moment(), fallback.clock.now());
        let local = UpstreamReport { remaining: Vec::new(), ..report.clone() };
        let result = fallback.store.report_upstream_at(now, &limiter_ref, &local);
        if report.pause.is_some() && result.paused_until > now {
            let stretch = PauseStretch { from: now, until: result.paused_until };
            log_pause(report, stretch, instance);
            if let Some(cause) = cause_of(report) {
                self.siblings.pause_locally(instance, moment + (stretch.until - stretch.from), cause);
            }
        }
    }
}

/// Returns why a report pauses a limiter.
fn cause_of(report: &UpstreamReport) -> Option<Cause> {
    let PauseRequest { status, wait, .. } = report.pause?;
    let reason = Reason::Upstream { status, is_named: wait.is_some() };
    Some(Cause { reason, replica: report.replica })
}

/// Logs the pause that follows a rejection. A limiter may have very many partitions, whose pauses concern one tenant each.
fn log_pause(report: &UpstreamReport, stretch: PauseStretch, instance: &LimiterInstance) {
    let Some(PauseRequest { status, wait, .. }) = report.pause else { return };
    let (is_named, lasting) = (wait.is_some(), (stretch.until - stretch.from).to_duration());
    let limiter = &instance.active.name;
    if instance.partition.is_some() {
        info!(%limiter, status, is_named, ?lasting, "the upstream asks for a pause of a partition");
    } else {
        warn!(%limiter, status, is_named, ?lasting, "the upstream asks for a pause");
    }
}
