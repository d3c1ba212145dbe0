//! What the worker does with an answer of the store, or without one.

use std::collections::VecDeque;
use std::iter::repeat_n;
use std::sync::Arc;

use tokio::time::Instant;
use tracing::{info, warn};

use super::{Fallback, Sent, Worker};
use crate::clock::Micros;
use crate::limiter::lane::{Stage, Waiter};
use crate::limiter::limit::{OnStoreFailure, Permits};
use crate::limiter::memory::share;
use crate::limiter::permit::{Slot, Source};
use crate::limiter::queue::Arrival;
use crate::limiter::refusal::Refusal;
use crate::limiter::reserve::{Answer, Away, Call, Outcome, Violated};
use crate::limiter::store::{StoreError, Subject};

impl Worker {
    pub(super) fn settle(&mut self, sent: Sent, result: Result<Answer, StoreError>) {
        match result {
            Ok(answer) => self.settle_answer(sent, &answer),
            Err(error) => self.settle_failure(sent, &error),
        }
        self.hand_out(Instant::now());
        self.tell_waiting();
    }

    fn settle_answer(&mut self, sent: Sent, answer: &Answer) {
        let now = Instant::now();
        self.clock.learn(sent.at, now, answer.now);
        self.heard = sent.at;
        self.is_local = false;
        let moved = self.learn_generations(answer);
        let clock = self.clock;
        let slot = |at: Micros| Slot { at, due: clock.due(at), source: Source::Store };
        for lane in self.lanes.values_mut() {
            lane.refresh(|held| if held.source == Source::Store { clock.due(held.at) } else { held.due });
        }
        let exchanged = answer.exchanged.iter().flat_map(|(count, at)| repeat_n(*at, to_usize(*count)));
        for ((_, cost), at) in sent.exchange.iter().zip(exchanged) {
            match at {
                Some(at) => self.arrived_slot(*cost, slot(at)),
                None => self.refuse_without_slot(*cost, &self.too_far(None)),
            }
        }
        let replaced = !sent.replace.is_empty();
        self.settle_outcomes(sent.replace, sent.arrivals, &answer.outcomes, slot);
        if moved || replaced || !sent.exchange.is_empty() {
            self.refuse_overdue(now);
        }
        if let Some(available) = answer.available.first() {
            let metrics = self.shared.metrics();
            for (limit, permits) in available.iter().enumerate() {
                metrics.set_available(limit, *permits);
            }
            let rules = self.subjects[0].rules.iter();
            self.used = rules.zip(available).map(|(rule, left)| rule.rate.saturating_sub(*left)).collect();
        }
    }

    /// A slot that was wanted has come.
    fn arrived_slot(&mut self, cost: Permits, slot: Slot) {
        let lane = self.lanes.entry(cost).or_default();
        lane.wanted = lane.wanted.saturating_sub(1);
        lane.hold(slot);
    }

    /// Takes void slots out of the lanes, to be exchanged by the next call. Returns whether there are any.
    fn learn_generations(&mut self, answer: &Answer) -> bool {
        let numbers: Arc<[u64]> = answer.generations.iter().map(|generation| generation.number).collect();
        if numbers == self.known {
            return false;
        }
        let void_from = answer
            .generations
            .iter()
            .zip(self.known.iter())
            .filter(|(generation, known)| generation.number != **known)
            .map(
                |(generation, known)| {
                    if generation.before == *known { generation.void_from } else { Micros::ZERO }
                },
            )
            .min()
            .unwrap_or_default();
        let mut void: Vec<(Slot, Permits)> = Vec::new();
        for (cost, lane) in &mut self.lanes {
            let gone = lane.take_void(|slot| slot.at >= void_from);
            lane.wanted += gone.len();
            void.extend(gone.into_iter().map(|slot| (slot, *cost)));
        }
        void.sort_by_key(|(slot, _)| slot.at);
        if !void.is_empty() {
            info!(limiter = %self.subjects[0].name, slots = void.len(), "limits changed: moving what waits");
        }
        // What was still to be exchanged for a change before this one has lost its place: it is asked for anew.
        for (_, cost) in self.void.drain(..) {
            *self.replace.entry(cost).or_default() += 1;
        }
        self.void_known = std::mem::replace(&mut self.known, numbers);
        self.void = VecDeque::from(void);
        !self.void.is_empty()
    }

    /// Puts booked requests into their lanes and refuses the others.
    fn settle_outcomes(
        &mut self,
        replace: Vec<(Permits, usize)>,
        arrivals: Vec<Arrival>,
        outcomes: &[(u64, Outcome)],
        slot: impl Fn(Micros) -> Slot,
    ) {
        let mut outcomes = outcomes.iter().flat_map(|(count, outcome)| repeat_n(*outcome, to_usize(*count)));
        for (cost, count) in replace {
            for outcome in outcomes.by_ref().take(count) {
                match outcome {
                    Outcome::Booked(at) => self.arrived_slot(cost, slot(at)),
                    Outcome::TooFar(..) | Outcome::Full(..) => {
                        let refusal = self.refusal(outcome);
                        self.refuse_without_slot(cost, &refusal);
                    }
                }
            }
        }
        for arrival in arrivals {
            match outcomes.next() {
                Some(Outcome::Booked(at)) => self.join(arrival, slot(at)),
                Some(outcome) => self.refuse(arrival, self.refusal(outcome)),
                None => self.refuse(arrival, self.store_unavailable()),
            }
        }
    }

    fn join(&mut self, arrival: Arrival, slot: Slot) {
        let Arrival { cost, arrived, deadline, entry } = arrival;
        let lane = self.lanes.entry(cost).or_default();
        lane.join(Waiter { arrived, deadline, late: 0, stage: Stage::Asking(entry) });
        lane.hold(slot);
    }

    fn refuse(&self, arrival: Arrival, refusal: Refusal) {
        self.shared.count_refused(arrival.cost.get());
        // An error means that the request has left.
        let _ = arrival.entry.send(Err(refusal));
    }

    /// One wanted slot will not come: the last request of the lane goes without.
    fn refuse_without_slot(&mut self, cost: Permits, refusal: &Refusal) {
        let Some(lane) = self.lanes.get_mut(&cost) else { return };
        lane.wanted = lane.wanted.saturating_sub(1);
        for waiter in lane.take_without_slot() {
            self.shared.count_refused(cost.get());
            waiter.refuse(refusal.clone());
        }
    }

    /// Refuses those who no longer fit into their wait.
    fn refuse_overdue(&mut self, now: Instant) {
        let mut overdue = Vec::new();
        for (cost, lane) in &mut self.lanes {
            overdue.extend(lane.take_overdue().into_iter().map(|(waiter, due)| (*cost, waiter, due)));
        }
        for (cost, waiter, due) in overdue {
            self.shared.count_refused(cost.get());
            let delay = Micros::from(due.saturating_duration_since(now)).max(Micros::ONE);
            waiter.refuse(self.too_far(Some(delay)));
        }
    }

    /// What those are told who no longer fit into their wait.
    fn too_far(&self, delay: Option<Micros>) -> Refusal {
        let delay = delay.unwrap_or(Micros::from(self.store.lease().to_duration()));
        self.refusal(Outcome::TooFar(Away { delay, told: delay, violated: Violated::default() }))
    }

    fn refusal(&self, outcome: Outcome) -> Refusal {
        let limiter =
            |violated: Violated| self.subjects[violated.limiter.min(self.subjects.len() - 1)].name.clone();
        match outcome {
            Outcome::Full(Away { told, violated, .. }) => {
                Refusal::QueueFull { limiter: limiter(violated), limit: violated.limit, retry_after: told }
            }
            Outcome::TooFar(Away { told, violated, .. }) => {
                Refusal::RateLimited { limiter: limiter(violated), limit: violated.limit, retry_after: told }
            }
            Outcome::Booked(_) => self.store_unavailable(),
        }
    }

    fn store_unavailable(&self) -> Refusal {
        Refusal::StoreUnavailable { limiter: self.shared.limiter.load().name.clone() }
    }

    /// The store did not answer: whoever was in the call is served by the limiter's policy.
    ///
    /// Slots booked before stay good. Those that were being given back or exchanged may or may not have been: they
    /// are left charged, unless the store was not asked at all.
    fn settle_failure(&mut self, sent: Sent, error: &StoreError) {
        let Sent { call, exchange, mut replace, arrivals, .. } = sent;
        if matches!(error, StoreError::Away) {
            let known: Arc<[u64]> = call.known.into();
            let unsaid: Vec<_> = call.give_back.into_iter().map(|holding| (holding, known.clone())).collect();
            unsaid.into_iter().rev().for_each(|unsaid| self.give_back.push_front(unsaid));
        } else {
            warn!(limiter = %self.subjects[0].name, %error, "store call failed");
        }
        for (_, cost) in exchange.into_iter().chain(self.void.drain(..)) {
            replace.push((cost, 1));
        }
        let was_local = std::mem::replace(&mut self.is_local, true);
        if !was_local {
            self.begin_locally();
        }
        self.heard = Instant::now();
        match self.shared.limiter.load().on_store_failure {
            OnStoreFailure::Reject => {
                let refusal = self.store_unavailable();
                for (cost, count) in replace {
                    (0..count).for_each(|_| self.refuse_without_slot(cost, &refusal));
                }
                arrivals.into_iter().for_each(|arrival| self.refuse(arrival, refusal.clone()));
            }
            OnStoreFailure::Allow => {
                let now = Instant::now();
                let slot = Slot { at: Micros::ZERO, due: now, source: Source::Unlimited };
                for (cost, count) in replace {
                    (0..count).for_each(|_| self.arrived_slot(cost, slot));
                }
                arrivals.into_iter().for_each(|arrival| self.join(arrival, slot));
            }
            OnStoreFailure::Local => self.settle_locally(replace, arrivals),
        }
    }

    /// Charges this replica's memory with what is known of the window that is running: its part of what the fleet had
    /// used when the store was last heard, and the slots that it still holds.
    ///
    /// A share is the limit divided by the fleet, so a part of the use is the use divided by the fleet: what all
    /// replicas together have left is what the fleet had left.
    fn begin_locally(&self) {
        let Fallback { store, clock, fleet_size, replica } = &*self.fallback;
        let subject = share(&self.subjects[0], *fleet_size);
        let used = self.used.iter().max().map_or(0, |used| used.div_ceil(*fleet_size));
        let mut permits = vec![(clock.at(self.heard), used)];
        for (cost, lane) in &self.lanes {
            permits.extend(lane.dues_stored().map(|due| (clock.at(due), cost.get())));
        }
        permits.retain(|(_, permits)| *permits > 0);
        permits.sort_unstable();
        store.charge_at(clock.now(), &subject, &permits, *replica);
    }

    /// Enforces this replica's share of the limits in its own memory.
    fn settle_locally(&mut self, replace: Vec<(Permits, usize)>, arrivals: Vec<Arrival>) {
        let now = Instant::now();
        let call = Call {
            replica: self.fallback.replica,
            known: vec![0; self.subjects.len()],
            runs: self.runs(now, &replace, &arrivals),
            room: self.room() + replace.iter().map(|(_, count)| *count as u64).sum::<u64>(),
            ..Call::default()
        };
        let answer = self.ask_fallback(&call);
        let clock = self.clock_of(Source::Local, Instant::now());
        let slot = |at: Micros| Slot { at, due: clock.due(at), source: Source::Local };
        self.settle_outcomes(replace, arrivals, &answer.outcomes, slot);
    }

    pub(super) fn ask_fallback(&self, call: &Call) -> Answer {
        let fleet_size = self.fallback.fleet_size;
        let subjects: Vec<Subject> = self.subjects.iter().map(|subject| share(subject, fleet_size)).collect();
        self.fallback.store.reserve_at(self.fallback.clock.now(), &subjects, call)
    }
}

/// A count that is zipped with requests at hand, so a cut changes nothing.
fn to_usize(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
