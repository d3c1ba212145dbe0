//! What the worker does with what an upstream said of its quota, and with a pause.

use futures_util::future::{FutureExt, join_all};
use tokio::time::{Duration, Instant};
use tracing::{info, warn};

use super::state::{Hearing, Worker};
use crate::clock::Micros;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::limit::LimiterName;
use crate::limiter::model::pause::PauseRequest;
use crate::limiter::model::pause::PauseStretch;
use crate::limiter::model::upstream_report::UpstreamReport;
use crate::limiter::queue::active_limiter::LimiterInstance;
use crate::limiter::queue::pause::Paused;
use crate::limiter::queue::upstream_report::PendingReport;
use crate::limiter::store::StoreError;

/// How often the store is told at most what an upstream leaves of its quota.
const HEARD_EVERY: Duration = Duration::from_millis(100);

impl Worker {
    /// Takes in what was said, and tells the store of it unless it is being told of something already.
    pub(super) fn take_said(&mut self, said: Option<PendingReport>, now: Instant) {
        match (&mut self.said, said) {
            (Some(before), Some(later)) => before.add(later),
            (before @ None, later) => *before = later,
            (Some(_), None) => {}
        }
        let is_early = now < self.heard_next;
        if self.hearing.is_some() {
            return;
        }
        let Some(saying) = self.said.take_if(|saying| !is_early || !saying.can_wait()) else { return };
        self.heard_next = now + HEARD_EVERY;
        let (replica, known) = (self.fallback.replica, self.session.epoch_least());
        let limiters = self.shared.instances.iter().zip(self.limiter_refs.iter()).enumerate();
        let told = limiters.filter_map(|(place, (instance, limiter_ref))| {
            let limiter = instance.active.limiter();
            let said = UpstreamReport {
                replica,
                known_epoch: known,
                pause: saying.pause(&limiter, now),
                refused: saying.refused(&limiter),
                cost: saying.cost,
                remaining: saying.remaining(&limiter),
            };
            let is_nothing = said.pause.is_none()
                && said.refused.is_empty()
                && said.cost == 0
                && said.remaining.is_empty();
            (!is_nothing).then(|| (place, limiter_ref.clone(), said))
        });
        let told: Vec<_> = told.collect();
        if told.is_empty() {
            return;
        }
        self.is_pausing = told.iter().any(|(_, _, said)| said.pause.is_some());
        if self.is_pausing {
            self.clear_stock();
        }
        let session = self.session.clone();
        let hearing = join_all(told.into_iter().map(move |(place, limiter_ref, said)| {
            let session = session.clone();
            async move {
                let heard = session.store.report_upstream(&limiter_ref, &said).await;
                (place, limiter_ref, said, heard)
            }
        }));
        self.hearing = Some(hearing.boxed());
    }

    /// The store has heard it, or could not be told: then this replica keeps to it by itself.
    pub(super) fn settle_hearing(&mut self, hearing: Hearing) {
        self.is_pausing = false;
        for (place, limiter_ref, said, heard) in hearing {
            let Some(instance) = self.shared.instances.get(place).cloned() else { continue };
            let heard = match heard {
                Ok(heard) => {
                    if self.session.meet_epoch(heard.epoch) {
                        self.siblings.wake_all();
                    }
                    heard
                }
                Err(error) => {
                    if !matches!(error, StoreError::Away) {
                        warn!(limiter = %limiter_ref.name, %error, "the store did not hear what the upstream said");
                    }
                    self.hear_locally(&instance, &limiter_ref, &said);
                    continue;
                }
            };
            if !said.remaining.is_empty() {
                instance.active.metrics().count_external_usage(heard.external_usage);
            }
            if said.pause.is_some() && heard.paused_until > heard.epoch.now {
                let stretch = PauseStretch { from: heard.epoch.now, until: heard.paused_until };
                tell_of_pause(&said, stretch, &limiter_ref.name);
                self.siblings.pause(&instance, stretch);
            }
        }
    }

    /// Keeps to it in this replica's own memory, by its clock.
    fn hear_locally(&self, instance: &LimiterInstance, limiter_ref: &LimiterRef, said: &UpstreamReport) {
        let fallback = &self.fallback;
        let limiter_ref = limiter_ref.share(fallback.fleet.size());
        let (now_instant, now) = (Instant::now(), fallback.clock.now());
        let heard = fallback.store.report_upstream_at(
            now,
            &limiter_ref,
            &UpstreamReport { remaining: Vec::new(), ..said.clone() },
        );
        if said.pause.is_some() && heard.paused_until > now {
            let stretch = PauseStretch { from: now, until: heard.paused_until };
            tell_of_pause(said, stretch, &limiter_ref.name);
            let until = now_instant + (stretch.until - stretch.from).to_duration();
            self.siblings.pause_between(instance, now_instant, until);
        }
    }

    /// Hears from an answer of the store how long its limiters are paused.
    pub(super) fn learn_pauses(&mut self, now: Micros, paused: &[Micros]) {
        for (instance, until) in self.shared.instances.iter().zip(paused).filter(|(_, until)| **until > now) {
            let (limiter, until) = (instance.active.name.clone(), self.clock.due(*until));
            instance.active.pause_until(until);
            let paused = Paused { limiter, from: self.clock.due(now), until };
            self.paused = self.shared.tell_pause(paused, false);
        }
    }
}

/// Tells of a refusal that this replica has heard, and of the pause that there is then.
fn tell_of_pause(said: &UpstreamReport, stretch: PauseStretch, limiter: &LimiterName) {
    let Some(PauseRequest { status, wait, .. }) = said.pause else { return };
    let (is_named, lasting) = (wait.is_some(), (stretch.until - stretch.from).to_duration());
    info!(%limiter, status, is_named, ?lasting, "the upstream asks for a pause");
}
