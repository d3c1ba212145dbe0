//! Reports the quota signals in the upstream's answers to the store, and keeps to the pauses that follow.

use futures_util::future::{FutureExt, join_all};
use tokio::time::{Duration, Instant};
use tracing::{info, warn};

use super::state::{Reports, Worker};
use crate::clock::Micros;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::{LimiterName, PauseRequest, PauseStretch, ReportResult, UpstreamReport};
use crate::limiter::queue::active_limiter::LimiterInstance;
use crate::limiter::queue::pause::Paused;
use crate::limiter::queue::upstream_report::PendingReport;
use crate::limiter::store::StoreError;

/// The shortest time between two reports, unless one cannot wait.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

impl Worker {
    /// Merges new signals into the pending report, and sends it if it is time and no other report is under way.
    pub(super) fn take_report(&mut self, report: Option<PendingReport>, now: Instant) {
        match (&mut self.pending_report, report) {
            (Some(before), Some(later)) => before.add(later),
            (before @ None, later) => *before = later,
            (Some(_), None) => {}
        }
        let is_early = now < self.report_not_before;
        if self.reporting.is_some() {
            return;
        }
        let is_due = |pending: &mut PendingReport| !is_early || !pending.can_wait();
        let Some(pending) = self.pending_report.take_if(is_due) else { return };
        self.report_not_before = now + REPORT_INTERVAL;
        let reports = self.upstream_reports(&pending, now);
        if reports.is_empty() {
            return;
        }
        self.is_pausing = reports.iter().any(|(_, _, report)| report.pause.is_some());
        if self.is_pausing {
            self.clear_prefetched();
        }
        let session = self.session.clone();
        let reporting = join_all(reports.into_iter().map(move |(place, limiter_ref, report)| {
            let session = session.clone();
            async move {
                let result = session.store.report_upstream(&limiter_ref, &report).await;
                (place, limiter_ref, report, result)
            }
        }));
        self.reporting = Some(reporting.boxed());
    }

    /// Returns the report for each limiter that the signals concern, with the limiter's place.
    fn upstream_reports(
        &self,
        pending: &PendingReport,
        now: Instant,
    ) -> Vec<(usize, LimiterRef, UpstreamReport)> {
        let (replica, known_epoch) = (self.fallback.replica, self.session.epoch_least());
        let limiters = self.queue.instances.iter().zip(self.limiter_refs.iter()).enumerate();
        let reports = limiters.filter_map(|(place, (instance, limiter_ref))| {
            let limiter = instance.active.limiter();
            let report = UpstreamReport {
                replica,
                known_epoch,
                pause: pending.pause(&limiter, now, &self.fallback.entropy),
                refused: pending.refused(&limiter),
                cost: pending.cost,
                remaining: pending.remaining(&limiter),
            };
            let is_nothing = report.pause.is_none()
                && report.refused.is_empty()
                && report.cost == 0
                && report.remaining.is_empty();
            (!is_nothing).then(|| (place, limiter_ref.clone(), report))
        });
        reports.collect()
    }

    /// Takes in the results of the reports. A report that failed is followed by this replica alone.
    pub(super) fn settle_reports(&mut self, reports: Reports) {
        self.is_pausing = false;
        for (place, limiter_ref, report, result) in reports {
            let Some(instance) = self.queue.instances.get(place).cloned() else { continue };
            match result {
                Ok(result) => self.settle_report(&instance, &limiter_ref, &report, result),
                Err(error) => {
                    if !matches!(error, StoreError::Away) {
                        warn!(limiter = %limiter_ref.name, %error, "cannot report the upstream's quota to the store");
                    }
                    self.report_locally(&instance, &limiter_ref, &report);
                }
            }
        }
    }

    fn settle_report(
        &self,
        instance: &LimiterInstance,
        limiter_ref: &LimiterRef,
        report: &UpstreamReport,
        result: ReportResult,
    ) {
        if self.session.observe_epoch(result.epoch) {
            self.siblings.wake_all();
        }
        if !report.remaining.is_empty() {
            instance.active.metrics().count_external_usage(result.external_usage);
        }
        if report.pause.is_some() && result.paused_until > result.epoch.now {
            let stretch = PauseStretch { from: result.epoch.now, until: result.paused_until };
            log_pause(report, stretch, &limiter_ref.name);
            self.siblings.pause(instance, stretch);
        }
    }

    /// Makes a report to this replica's own memory, and keeps to its pause by this process's clock.
    fn report_locally(&self, instance: &LimiterInstance, limiter_ref: &LimiterRef, report: &UpstreamReport) {
        let fallback = &self.fallback;
        let limiter_ref = limiter_ref.share(fallback.fleet.size());
        let (now_instant, now) = (Instant::now(), fallback.clock.now());
        let local = UpstreamReport { remaining: Vec::new(), ..report.clone() };
        let result = fallback.store.report_upstream_at(now, &limiter_ref, &local);
        if report.pause.is_some() && result.paused_until > now {
            let stretch = PauseStretch { from: now, until: result.paused_until };
            log_pause(report, stretch, &limiter_ref.name);
            let until = now_instant + (stretch.until - stretch.from).to_duration();
            self.siblings.pause_between(instance, now_instant, until);
        }
    }

    /// Keeps to the pauses of the limiters that an answer of the store names.
    pub(super) fn observe_pauses(&mut self, now: Micros, paused: &[Micros]) {
        for (instance, until) in self.queue.instances.iter().zip(paused).filter(|(_, until)| **until > now) {
            let (limiter, until) = (instance.active.name.clone(), self.clock.due(*until));
            instance.active.pause_until(until);
            let paused = Paused { limiter, from: self.clock.due(now), until };
            self.paused = self.queue.apply_pause(paused, false);
        }
    }
}

/// Logs the pause that follows a rejection.
fn log_pause(report: &UpstreamReport, stretch: PauseStretch, limiter: &LimiterName) {
    let Some(PauseRequest { status, wait, .. }) = report.pause else { return };
    let (is_named, lasting) = (wait.is_some(), (stretch.until - stretch.from).to_duration());
    info!(%limiter, status, is_named, ?lasting, "the upstream asks for a pause");
}
