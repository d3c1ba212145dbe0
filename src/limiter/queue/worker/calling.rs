//! Makes calls to the store, and takes in what their answers tell beside the slots: the epoch, pauses, the ledger's entries.

use std::sync::Arc;

use futures_util::future::FutureExt;
use tokio::time::timeout;
use tracing::warn;

use super::events::{Context, Event};
use super::report_pauses::report_pauses;
use super::state::Worker;
use super::store_calls::{CallEnd, CallResult, MadeCall};
use crate::clock::{Micros, Moment};
use crate::limiter::model::{Answer, CALL_KEPT, Call, Epoch, Holding};
use crate::limiter::queue::pause::Paused;
use crate::limiter::recovery::grants::granted;
use crate::limiter::recovery::link::{Link, SessionEvent};
use crate::limiter::recovery::session::{Known, StoreSession};
use crate::limiter::recovery::write_back::report_offline_grants;
use crate::limiter::store::clock::StoreClock;
use crate::limiter::store::{Failure, StoreError};

/// The most failed calls of a queue that may still complete. A store that has failed three times is not asked.
const LATE_CALLS_MAX: usize = 16;

/// Waits for the answer to a call that was sent at a moment and is late, until the store counts as away: what it books is not asked for
/// twice. `None` if none has come.
async fn wait_longer(session: &StoreSession, sent: Moment, failure: &mut Failure) -> Option<Answer> {
    // A booking that no replica of Redis has confirmed is given back, and not used.
    let late = failure.late.as_mut().filter(|_| !matches!(failure.error, StoreError::Unconfirmed))?;
    session.on(SessionEvent::Failed { sent }, session.moment());
    let left = (sent + session.terms.away_after) - session.moment();
    let answer = timeout(left.to_duration(), late).await.ok()?;
    failure.late = None;
    answer
}

/// Returns whether the call would book in vain: the epoch is not open yet, or an outage has begun since the call was built, whose policy
/// now decides.
fn is_vain(link: Link, outage: u64) -> bool {
    match link {
        Link::Settling { .. } => true,
        Link::Away { outage: present } => present != outage,
        Link::Up { .. } | Link::Held { .. } => false,
    }
}

impl Worker {
    /// Makes a call to the store. Offline grants, and pauses that it does not know, are reported before.
    pub(super) fn call_store(&mut self, mut call: Call, context: &Context) {
        if let Some(line) = &mut call.line {
            line.expected = self.queue.expected_costs.parts(self.queue.instances.len(), line.ceilings);
        }
        let call = Call {
            replica: self.fallback.replica,
            epoch: self.session.epoch_least(),
            refusal_budget: self.queue.refusal_budget(context.now),
            ..call
        };
        let limiter_refs = self.store_calls.limiter_refs.clone();
        let (session, fallback) = (self.session.clone(), self.fallback.clone());
        let (queue, siblings) = (self.queue.clone(), self.siblings.clone());
        let since = self.core.first_asked().unwrap_or(context.now);
        let outage = self.core.outage();
        self.store_calls.under_way = Some(Box::pin(async move {
            let place = session.gate.enter(since).await;
            let sent = session.moment();
            let known = session.advance(sent);
            let taken_back_until = known.clock.map_or(Micros::ZERO, |clock| clock.earliest(sent) + CALL_KEPT);
            let call = Arc::new(Call { taken_back_until, ..call });
            let made = MadeCall { call, limiter_refs, sent };
            if is_vain(known.link, outage) {
                return (made, CallEnd::NotMade);
            }
            let reported_first = async {
                for instance in queue.instances.iter() {
                    report_pauses(&instance.active, &fallback, &*siblings).await?;
                }
                report_offline_grants(&session, &made.limiter_refs, &fallback).await
            };
            let mut result = match reported_first.await {
                Ok(()) => session.store.reserve(&made.limiter_refs, &made.call).await,
                Err(error) => Err(error.into()),
            };
            if let Err(failure) = &mut result
                && let Some(answer) = wait_longer(&session, made.sent, failure).await
            {
                result = Ok(answer);
            }
            place.leave(made.sent, session.moment(), result.is_ok());
            (made, result.map_or_else(CallEnd::Failed, CallEnd::Answered))
        }));
    }

    /// Takes in the result of the call under way.
    pub(super) fn take_result(&mut self, (made, outcome): CallResult) {
        match outcome {
            // Permits granted meanwhile without the store were not in its reckoning.
            CallEnd::Answered(answer) if self.session.ledger().lacks(&made.limiter_refs) => {
                let known = self.observe_answer(&made, &answer);
                self.events.extend([Event::Linked(known.link), Event::PutBack { is_unsent: false }]);
                self.take_late((made, CallEnd::Answered(answer)));
            }
            CallEnd::Answered(answer) => self.take_answer(&made, answer),
            CallEnd::Failed(failure) => self.take_failure(made, failure),
            CallEnd::NotMade => {
                let link = self.session.advance(self.session.moment()).link;
                // The link may be another, which gives the call up or voids what it was to give back.
                self.events.extend([Event::PutBack { is_unsent: true }, Event::Linked(link)]);
            }
        }
    }

    /// Takes in the epoch and the clock of an answer, and wakes the other queues where slots are void with it. Returns what is known then.
    fn observe_answer(&self, made: &MadeCall, answer: &Answer) -> Known {
        let epoch = Epoch { now: answer.now, ..answer.epoch };
        let event = SessionEvent::Answered { sent: made.sent, epoch };
        let (known, is_void) = self.session.on(event, self.session.moment());
        if is_void {
            self.siblings.wake_all();
        }
        known
    }

    fn take_answer(&mut self, made: &MadeCall, answer: Answer) {
        let known = self.observe_answer(made, &answer);
        self.own_fault.answered();
        self.events.push(Event::Linked(known.link));
        if answer.epoch.id < known.epoch_least {
            return self.events.push(Event::PutBack { is_unsent: false });
        }
        self.observe_pauses(made.sent, answer.now, &answer.paused, known.clock);
        if answer.epoch.settles_until.is_some() {
            return self.events.push(Event::PutBack { is_unsent: false });
        }
        if self.session.store.may_fail() {
            self.session.ledger().record(&made.limiter_refs, &made.call, &answer);
        }
        self.observe_usage(made.sent, &answer);
        self.store_calls.moves.answered(&answer);
        let refusal_budget = made.call.refusal_budget;
        self.events.push(Event::Answered { answer: Box::new(answer), refusal_budget, sent: made.sent });
    }

    fn take_failure(&mut self, made: MadeCall, Failure { error, late }: Failure) {
        let now = self.session.moment();
        match error {
            // The store is all right, and so may other keys be.
            StoreError::Unreadable(_) | StoreError::Malformed(_) => self.own_fault.failed(made.sent),
            _ => drop(self.session.on(SessionEvent::Failed { sent: made.sent }, now)),
        }
        let text = error.to_string();
        let is_unsent = matches!(error, StoreError::Away);
        if !is_unsent && self.store_calls.note_warning(&text, now) {
            warn!(limiter = %self.queue.name(), error = text, "store call failed");
        }
        self.events.push(Event::Failed { is_unsent });
        if let Some(late) = late.filter(|_| self.store_calls.late.len() < LATE_CALLS_MAX) {
            let failed = CallEnd::Failed(error.into());
            self.store_calls
                .late
                .push(late.map(|answer| (made, answer.map_or(failed, CallEnd::Answered))).boxed());
        }
    }

    /// Gives back the bookings of a call that was given up and has completed. If the store has lost its state meanwhile, or grants
    /// nothing yet, there is nothing to give back.
    pub(super) fn take_late(&mut self, (made, outcome): CallResult) {
        let mut answer = match outcome {
            CallEnd::Answered(answer) => answer,
            CallEnd::Failed(_) => return,
            CallEnd::NotMade => return self.keep_to_give_back(&made),
        };
        if self.session.observe_epoch(answer.epoch) {
            self.siblings.wake_all();
        }
        if answer.epoch.id < self.session.epoch() || answer.epoch.settles_until.is_some() {
            return;
        }
        if let Some(line) = &mut answer.line {
            // The next answer tells of them again, and until then nobody can use them.
            line.dealt.clear();
        }
        self.session.ledger().record(&made.limiter_refs, &made.call, &answer);
        let generations = answer.generations.iter().map(|generation| generation.number).collect();
        let unused = granted(&made.call, &answer).map(|(slot, cost)| Holding { slot, cost, count: 1 });
        self.events.push(Event::Unneeded(unused.collect(), generations));
    }

    /// Keeps what a call that was given up and not made was to give back for the next one. In another epoch those slots are void.
    fn keep_to_give_back(&mut self, made: &MadeCall) {
        if made.call.epoch != self.session.epoch_least() {
            return;
        }
        let generations = made.call.generations.iter().copied().collect();
        self.events.push(match &made.call.line {
            Some(line) => Event::UnneededOfLine(line.unused.clone()),
            None => Event::Unneeded(made.call.give_back.clone(), generations),
        });
    }

    /// Keeps to the pauses of the limiters that an answer of the store to a call sent at a moment names, and to no other.
    fn observe_pauses(&mut self, sent: Moment, now: Micros, paused: &[Micros], clock: Option<StoreClock>) {
        let Some(clock) = clock else { return };
        for (instance, until) in self.queue.instances.iter().zip(paused) {
            let (pauses, limiter) = (&instance.active.pauses, instance.active.name.clone());
            let paused = if *until > now {
                let until = clock.due(*until);
                let is_followed = pauses.note_end(instance.partition, (clock.moment_of(now), until));
                is_followed.then(|| Paused { limiter, from: clock.due(now), until })
            } else {
                // Its end was announced, and this replica has not heard it.
                let has_ended = self.queue.has_pause() && pauses.note_none(instance.partition, sent);
                has_ended.then_some(Paused { limiter, from: sent, until: sent })
            };
            if let Some(paused) = paused {
                // Before the answer, whose refusals name the pause.
                let paused = self.queue.apply_pause(paused, false);
                self.events.push(Event::Paused(paused));
            }
        }
    }
}
