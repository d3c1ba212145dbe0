//! What the worker asks the store: building the next call.

use std::sync::Arc;

use tokio::time::{Duration, Instant};

use super::state::{BATCH_MAX, Sent, Worker};
use crate::clock::Micros;
use crate::limiter::model::call::Freed;
use crate::limiter::model::call::{Call, Holding, Run};
use crate::limiter::model::limit::Permits;
use crate::limiter::queue::cost_queue::{CostQueue, DEADLINE_SLACK};
use crate::limiter::queue::inbox::Arrival;
use crate::limiter::queue::slot::{Slot, Source};
use crate::limiter::recovery::write_back::report_offline_grants;

/// Requests whose waits differ by less go into one run, which waits as long as the shortest of them.
const RUN_SPREAD: Duration = Duration::from_millis(1);

/// Slots that are due sooner are about to be used, and are not booked anew.
const REBOOK_MARGIN: Duration = Duration::from_millis(20);

/// The most instants from which slots are given back in one call. A cost_queue is booked anew as a whole up to there; of a longer
/// one what lies behind stays, and up to a window is lost between the two.
const GIVE_BACK_MAX: usize = 4000;

/// The most slots that are traded in one call.
const TRADE_MAX: usize = 16;

impl Worker {
    /// Sends the next call if there is anything to say and none is under way.
    pub(super) fn start_call(&mut self, now: Instant) {
        let heartbeat_is_due = self.must_hear() && now >= self.heard + self.session.heartbeat();
        // An idle queue that nobody holds tells its next request's call; there may be very many of them.
        let must_tell = self.limits_changed && (self.is_kept || self.must_hear());
        let anything = must_tell
            || heartbeat_is_due
            || !self.pending.is_empty()
            || (!self.give_back.is_empty() && !self.is_local)
            || !self.void.is_empty()
            || !self.replace.is_empty()
            || self.stock_wanted(now).is_some()
            || self.can_trade(now);
        let settles = self.settles_until.is_some_and(|until| now < until);
        if self.call.is_some() || self.is_pausing || settles || !anything {
            return;
        }
        self.limits_changed = false;
        let store_now = self.session.now();
        if self
            .limiter_refs
            .iter()
            .any(|limiter_ref| limiter_ref.valid_until.is_some_and(|until| store_now >= until))
        {
            self.make_limiter_refs();
        }
        let sent = self.next_call(now);
        let (session, fallback) = (self.session.clone(), self.fallback.clone());
        self.call = Some(Box::pin(async move {
            let result = match report_offline_grants(&session, &sent.limiter_refs, &fallback).await {
                Ok(()) => session.store.reserve(&sent.limiter_refs, &sent.call).await,
                Err(error) => Err(error.into()),
            };
            (sent, result)
        }));
    }

    /// Gives back what the cost_queues to be booked anew hold, and asks for as much: no more than goes into this call, or what is
    /// asked for would be booked behind what is still to be given back. The first slots, where there are more.
    fn rebook(&mut self, now: Instant) {
        if self.give_back.iter().any(|(_, known)| *known != self.known) {
            return;
        }
        for cost in std::mem::take(&mut self.rebook) {
            let Some(cost_queue) = self.cost_queues.get_mut(&cost) else { continue };
            let mut space = GIVE_BACK_MAX.saturating_sub(self.give_back.len());
            let mut last = None;
            let slots = cost_queue.take_void(|slot| {
                // Slots of one instant are given back as one.
                let is_another = last != Some(slot.at);
                if slot.due <= now + REBOOK_MARGIN || (is_another && space == 0) {
                    return false;
                }
                space -= usize::from(is_another);
                last = Some(slot.at);
                true
            });
            for slot in slots {
                self.give_back(slot, cost);
                self.want(cost);
            }
        }
    }

    /// Whether a slot can be used earlier, in room that was given back.
    fn is_later(room: Freed, now: Instant) -> impl Fn(&Slot) -> bool {
        move |slot| slot.at > room.at && slot.due > now + REBOOK_MARGIN
    }

    fn can_trade(&self, now: Instant) -> bool {
        let Some(room) = self.room.filter(|room| Some(*room) != self.fruitless) else { return false };
        self.cost_queues.iter().any(|(cost, cost_queue)| {
            room.permits >= cost.get() && cost_queue.last_stored().is_some_and(Self::is_later(room, now))
        })
    }

    /// Gives back the last slots of one cost_queue and asks for as many from the room on: those in it move up. Returns the
    /// earliest of them.
    ///
    /// A few at a time, so that replicas share the room; and of one cost, with nothing else to replace, so that what is given
    /// back is there to be had again. The store does both in one call, so a trade loses nothing.
    fn trade(&mut self, now: Instant) -> Option<Micros> {
        let goes_along = self.give_back.len() < BATCH_MAX - TRADE_MAX
            && self.give_back.iter().all(|(_, known)| *known == self.known);
        if !self.replace.is_empty() || !goes_along || !self.can_trade(now) {
            return None;
        }
        let room = self.room?;
        let is_later = Self::is_later(room, now);
        let (cost, slots) = self.cost_queues.iter_mut().find_map(|(cost, cost_queue)| {
            let count = usize::try_from(room.permits / cost.get()).unwrap_or(usize::MAX).min(TRADE_MAX);
            let slots = cost_queue.take_last(count, &is_later);
            (!slots.is_empty()).then_some((*cost, slots))
        })?;
        let first = slots.front().map(|slot| slot.at);
        for slot in slots {
            self.give_back(slot, cost);
            self.want(cost);
        }
        first
    }

    fn next_call(&mut self, now: Instant) -> Sent {
        let mut traded = None;
        if self.void.is_empty() {
            self.rebook(now);
            traded = self.trade(now);
        }
        let known = match self.give_back.front() {
            _ if !self.void.is_empty() => self.void_known.clone(),
            Some((_, known)) => known.clone(),
            None => self.known.clone(),
        };
        let give_back = self.take_give_back(&known);
        let exchange: Vec<_> = self.void.drain(..self.void.len().min(BATCH_MAX)).collect();
        let replace: Vec<_> = std::mem::take(&mut self.replace).into_iter().collect();
        let arrivals: Vec<_> = self.pending.drain(..self.pending.len().min(BATCH_MAX)).collect();
        let replaced: usize = replace.iter().map(|(_, count)| count).sum();
        let mut runs = self.runs(now, &replace, &arrivals);
        // Nobody wants those who come next to wait for it.
        let wanted = self.stock_wanted(now).filter(|_| replace.is_empty());
        runs.extend(wanted.map(|(cost, count)| Run { cost: cost.get(), wait_max: Micros::ZERO, count }));
        let stock = wanted.map(|(cost, _)| cost);
        let call = Call {
            replica: self.fallback.replica,
            epoch: self.session.epoch_least(),
            generations: known.to_vec(),
            state_seen_at: self.seen(now),
            give_back,
            reschedule: holdings(&exchange),
            reschedule_wait: self.longest_wait(now),
            refusal_budget: self.shared.spare(now),
            runs,
            queue_slots_left: self.room() + replaced as u64,
        };
        let (call, limiter_refs) = (Arc::new(call), self.limiter_refs.clone());
        Sent { call, limiter_refs, at: now, exchange, replace, arrivals, traded, stock }
    }

    /// When each limiter's state was last seen, where it should still be there.
    fn seen(&self, now: Instant) -> Vec<Micros> {
        let now = self.clock.latest(now);
        let until = self.seen.until.iter();
        until.map(|until| if *until > now { self.seen.at } else { Micros::ZERO }).collect()
    }

    /// The holdings of one generation: those of another go with the next call.
    fn take_give_back(&mut self, known: &Arc<[u64]>) -> Vec<Holding> {
        let mut taken = Vec::new();
        while taken.len() < GIVE_BACK_MAX
            && let Some((holding, _)) = self.give_back.pop_front_if(|(_, of)| of == known)
        {
            taken.push(holding);
        }
        taken
    }

    /// How long the most patient of those who wait will.
    fn longest_wait(&self, now: Instant) -> Micros {
        let deadline = self.cost_queues.values().filter_map(CostQueue::last_deadline).max().unwrap_or(now);
        Micros::from(deadline.saturating_duration_since(now) + DEADLINE_SLACK)
    }

    /// How many more requests may wait.
    pub(super) fn room(&self) -> u64 {
        u64::from(self.shared.max_waiting()).saturating_sub(self.waiting() as u64)
    }

    /// The requests as runs of one cost and one wait.
    pub(super) fn runs(&self, now: Instant, replace: &[(Permits, usize)], arrivals: &[Arrival]) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for (cost, count) in replace {
            let deadline =
                self.cost_queues.get(cost).and_then(|cost_queue| cost_queue.last_deadline()).unwrap_or(now);
            let wait_max = Micros::from(deadline.saturating_duration_since(now) + DEADLINE_SLACK);
            runs.push(Run { cost: cost.get(), wait_max, count: *count as u64 });
        }
        let replaced = runs.len();
        let mut first_wait = Duration::ZERO;
        for arrival in arrivals {
            let (cost, wait) = (arrival.cost.get(), arrival.deadline.saturating_duration_since(now));
            match runs[replaced..].last_mut() {
                Some(run) if run.cost == cost && wait.abs_diff(first_wait) < RUN_SPREAD => {
                    run.count += 1;
                    run.wait_max = run.wait_max.min(Micros::from(wait));
                }
                _ => {
                    first_wait = wait;
                    runs.push(Run { cost, wait_max: Micros::from(wait), count: 1 });
                }
            }
        }
        runs
    }

    /// Gives a slot back to where it was booked.
    pub(super) fn give_back(&mut self, slot: Slot, cost: Permits) {
        let holding = Holding { slot: slot.at, cost: cost.get(), count: 1 };
        match slot.source {
            Source::Unlimited => {}
            Source::Local => {
                self.session.ledger.forget_away(&self.limiter_refs, slot.at, cost.get());
                self.ask_fallback(Call { give_back: vec![holding], ..Call::default() });
            }
            Source::Store => {
                // There will be room where it was thought that there was none.
                self.shared.learn(None);
                let again = |(last, known): &&mut (Holding, Arc<[u64]>)| {
                    (last.slot, last.cost) == (holding.slot, holding.cost) && *known == self.known
                };
                match self.give_back.back_mut().filter(again) {
                    Some((last, _)) => last.count += 1,
                    None => self.give_back.push_back((holding, self.known.clone())),
                }
            }
        }
    }
}

/// Slots as holdings, equal ones together.
fn holdings(slots: &[(Slot, Permits)]) -> Vec<Holding> {
    let mut holdings: Vec<Holding> = Vec::new();
    for (slot, cost) in slots {
        match holdings.last_mut() {
            Some(last) if (last.slot, last.cost) == (slot.at, cost.get()) => last.count += 1,
            _ => holdings.push(Holding { slot: slot.at, cost: cost.get(), count: 1 }),
        }
    }
    holdings
}
