//! Builds the next call to the store.

use crate::clock::{Micros, Moment};
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::model::{Call, Freed, Generations, Holding, Permits, Run};
use crate::limiter::queue::cost_queue::{CostQueue, DEADLINE_SLACK};
use crate::limiter::queue::request::Arrival;
use crate::limiter::queue::slot::{Slot, Source};
use crate::limiter::recovery::link::{Link, Terms};

use super::refunds::Refunds;
use super::{BookedCore, Sent};
use crate::limiter::queue::worker::common::return_locally;
use crate::limiter::queue::worker::events::{Action, Context};

/// The most requests in one call. The server does nothing else meanwhile: some milliseconds, if each has a slot of its own
/// (`benches/lua.rs`).
const BATCH_MAX: usize = 1000;

/// The requests for which one call books at least, where so many wait.
const BATCH_LEAST: usize = 16;

/// The part of the waiting requests for which one call books, where that is more: with very many, none waits for more than some calls.
const BATCH_PART: usize = 8;

/// The time in which the limits grant as much as one call books at least.
const BATCH_TIME: Micros = Micros::from_millis(50);

/// The most slots in one call that are given back, or that a change has moved, under one limit; under several the part of each. Each slot
/// may be an instant of its own in every limiter, far among thousands of others, and a server does nothing else meanwhile. A cost queue is
/// booked anew up to there. The later slots of a longer one stay, and up to a window is lost between the two parts.
const SLOTS_MAX: usize = 120;

/// So many slots go with one call in any case.
const SLOTS_LEAST: usize = 16;

/// Requests whose waits differ by less go into one run, with the shortest of their waits.
const RUN_SPREAD: Micros = Micros::from_millis(1);

/// Slots that are due sooner are about to be used, and are neither booked anew nor traded.
const REBOOK_MARGIN: Micros = Micros::from_millis(20);

/// The interval at which the store is asked while no slot is near.
const FAR_INTERVAL: Micros = Micros::from_millis(2000);

/// So many slots may come without a call. A call takes in what was used since the one before, and a server does nothing else meanwhile.
const PASSED_MAX: usize = 512;

/// The most slots traded in one call.
const TRADE_MAX: usize = 16;

impl BookedCore {
    /// Returns whether a call may be made now. A store that is away is asked, too: after `not_before` the first arrival goes to the store,
    /// and so does the heartbeat. What else comes while that call is under way is served by the policies.
    pub(super) fn may_call(&self, now: Moment) -> bool {
        let is_reported = self.pause.is_reported && !self.stay.is_closing();
        self.calls.under_way.is_none()
            && !is_reported
            && !self.prefetch.is_withdrawn
            && !self.link.is_settling()
            && now >= self.calls.not_before
    }

    /// Returns whether the store must be heard again and again: by calls, or by heartbeats that spare them.
    fn needs_contact(&self) -> bool {
        !self.owed.reschedule.slots.is_empty()
            || !self.owed.give_back.is_empty()
            || !self.owed.refunds.slots.is_empty()
            || self.cost_queues.values().any(CostQueue::holds_booked)
    }

    /// Returns when a call is to be made if there is no other reason for one than to hear the store.
    fn next_contact_at(&self) -> Moment {
        let Terms { heartbeat, .. } = self.limits.terms;
        // A heartbeat that spares the call is followed by the next one within two intervals, or else by the call.
        let by_call = self.calls.contact.map(|contact| contact + heartbeat);
        let is_spared = self.calls.passed < PASSED_MAX;
        let by_heartbeat = self.calls.unmoved_at.filter(|_| is_spared).map(|at| at + heartbeat + heartbeat);
        by_call.max(by_heartbeat).max(self.idle_until()).unwrap_or(Moment(0))
    }

    /// Returns until when no call is needed because no slot is near, so that the lease may end meanwhile: two leases before the first one.
    /// By then a heartbeat tells of a move of the bookings, or the answer to a call does.
    fn idle_until(&self) -> Option<Moment> {
        let first = self.cost_queues.values().filter_map(CostQueue::next_slot).map(|slot| slot.due).min()?;
        let near = Moment(first.0.saturating_sub(2 * self.limits.terms.lease.0));
        Some(near.min(self.calls.contact? + FAR_INTERVAL))
    }

    /// Returns whether there is a reason for a call at once, and not only at [`Self::next_contact_at`].
    fn has_reason(&self, now: Moment) -> bool {
        // An idle queue that nobody keeps waits for its next request: there may be very many such queues.
        (self.calls.is_outdated && (self.stay.is_kept || self.needs_contact()))
            || !self.arrivals.list.is_empty()
            // To a store that is away they go with each heartbeat, which `needs_contact` asks for.
            || (self.gives_back() && !matches!(self.link, Link::Away { .. }))
            || self.may_reschedule(now)
            || !self.owed.replace.is_empty()
            || self.prefetch_wanted(now).is_some()
            || self.can_trade(now)
    }

    /// Returns whether anything is to be given back to the store.
    pub(super) fn gives_back(&self) -> bool {
        !self.owed.give_back.is_empty() || !self.owed.refunds.slots.is_empty()
    }

    /// Makes the next call, if there is a reason for one and none is under way.
    pub(super) fn ask(&mut self, context: &Context, out: &mut Vec<Action>) {
        let now = context.now;
        let is_due = || self.needs_contact() && now >= self.next_contact_at();
        if self.may_call(now) && (self.has_reason(now) || is_due()) {
            (self.calls.is_outdated, self.calls.passed) = (false, 0);
            let call = self.make_call(context, out);
            out.push(Action::Book(Box::new(call)));
        }
    }

    /// Returns when a call is to be made without another event.
    pub(super) fn next_call(&self, now: Moment) -> Option<Moment> {
        if !self.may_call(now.max(self.calls.not_before)) {
            return None;
        }
        if self.has_reason(now) {
            return Some(self.calls.not_before.max(now));
        }
        let reschedules_at = (!self.owed.reschedule.slots.is_empty()).then_some(self.owed.reschedule.from);
        let next = self.needs_contact().then(|| self.next_contact_at());
        next.into_iter().chain(reschedules_at).min().map(|at| at.max(self.calls.not_before))
    }

    /// Returns whether void slots may be rescheduled now. They stand in the way of each other's new places until they are given back
    /// where nothing has moved.
    fn may_reschedule(&self, now: Moment) -> bool {
        let has_released = || !self.owed.give_back.iter().any(|(_, generations)| generations.is_partial());
        !self.owed.reschedule.slots.is_empty() && now >= self.owed.reschedule.from && has_released()
    }

    /// Replaces the slots of the cost queues in which one came too late.
    ///
    /// No more than fits into this call, and the first ones: others would be booked behind slots that are given back later.
    fn rebook(&mut self, now: Moment, out: &mut Vec<Action>) {
        // In an outage the slots are those of the share.
        let is_away = self.outage() != 0;
        if is_away || self.owed.give_back.iter().any(|(_, generations)| *generations != self.owed.generations)
        {
            return;
        }
        let slots_max = self.slots_max();
        for cost in std::mem::take(&mut self.owed.rebook) {
            let Some(cost_queue) = self.cost_queues.get_mut(&cost) else { continue };
            let mut space = slots_max.saturating_sub(self.owed.give_back.len());
            let mut last = None;
            let slots = cost_queue.take_stored(|slot| {
                // Slots of one instant are given back as one.
                let is_another = last != Some(slot.at);
                if slot.due <= now + REBOOK_MARGIN || (is_another && space == 0) {
                    return false;
                }
                space -= usize::from(is_another);
                last = Some(slot.at);
                true
            });
            slots.into_iter().for_each(|slot| self.replace_slot(slot, cost, out));
        }
    }

    /// Replaces the slots of this replica's share in the cost queues in which one came too late: no more than requests wait. The
    /// share answers at once, so that the request of a late slot gets one of the present, and the others keep theirs where they can.
    pub(super) fn rebook_share(&mut self, now: Moment, out: &mut Vec<Action>) {
        for cost in std::mem::take(&mut self.owed.rebook) {
            let Some(cost_queue) = self.cost_queues.get_mut(&cost) else { continue };
            let is_ahead = |slot: &Slot| matches!(slot.source, Source::Local(_)) && slot.due > now;
            let slots = cost_queue.take_slots(is_ahead);
            slots.into_iter().for_each(|slot| self.replace_slot(slot, cost, out));
        }
    }

    /// Returns the test of whether a slot lies behind freed permits, so that it can be traded for them.
    fn is_later(freed: Freed, now: Moment) -> impl Fn(&Slot) -> bool {
        move |slot| slot.at > freed.at && slot.due > now + REBOOK_MARGIN
    }

    /// Returns whether a slot can be traded for freed permits.
    fn can_trade(&self, now: Moment) -> bool {
        let Some(freed) = self.trade.freed.filter(|freed| Some(*freed) != self.trade.fruitless) else {
            return false;
        };
        self.cost_queues.iter().any(|(cost, cost_queue)| {
            freed.permits >= cost.get() && cost_queue.last_stored().is_some_and(Self::is_later(freed, now))
        })
    }

    /// Trades the last slots of one cost queue for freed permits: replaces them, so that all requests behind the freed permits move up.
    /// Returns the earliest slot given back.
    ///
    /// A few at a time, so that replicas share the freed permits. Only slots of one cost, and with nothing else to replace, so
    /// that no other request takes the slots given back. The store does both in one call, so a trade loses nothing.
    fn trade(&mut self, now: Moment, out: &mut Vec<Action>) -> Option<Micros> {
        let trade_max = TRADE_MAX.min(self.slots_max() / 2);
        let fits = self.owed.give_back.len() < self.slots_max() - trade_max
            && self.owed.give_back.iter().all(|(_, generations)| *generations == self.owed.generations);
        if !self.owed.replace.is_empty() || !fits || !self.can_trade(now) {
            return None;
        }
        let freed = self.trade.freed?;
        let is_later = Self::is_later(freed, now);
        let (cost, slots) = self.cost_queues.iter_mut().find_map(|(cost, cost_queue)| {
            let count = usize::try_from(freed.permits / cost.get()).unwrap_or(usize::MAX).min(trade_max);
            let slots = cost_queue.take_last(count, &is_later);
            (!slots.is_empty()).then_some((*cost, slots))
        })?;
        let first = slots.front().map(|slot| slot.at);
        slots.into_iter().for_each(|slot| self.replace_slot(slot, cost, out));
        first
    }

    /// Builds the next call, and takes everything that goes with it.
    fn make_call(&mut self, context: &Context, out: &mut Vec<Action>) -> Call {
        let now = context.now;
        let mut traded = None;
        if self.owed.reschedule.slots.is_empty() {
            self.rebook(now, out);
            traded = self.trade(now, out);
        }
        let may_reschedule = self.may_reschedule(now);
        let generations = match self.owed.give_back.front() {
            _ if may_reschedule => self.owed.reschedule.generations.clone(),
            Some((_, generations)) => generations.clone(),
            None => self.owed.generations.clone(),
        };
        let give_back = self.take_give_back(&generations);
        let refunds = self.take_refunds(&generations, self.slots_max().saturating_sub(give_back.len()));
        let fits = if may_reschedule { self.owed.reschedule.slots.len().min(self.slots_max()) } else { 0 };
        let reschedule: Vec<_> = self.owed.reschedule.slots.drain(..fits).collect();
        // Those who have no place yet stand behind those who are being moved.
        let is_moving = may_reschedule && !self.owed.reschedule.slots.is_empty();
        let replace = if is_moving { Default::default() } else { std::mem::take(&mut self.owed.replace) };
        let replace: Vec<_> = replace.into_iter().collect();
        let arrivals = if is_moving { 0 } else { self.batch() };
        let arrivals: Vec<_> = self.arrivals.list.drain(..arrivals).collect();
        let replaced_requests: usize = replace.iter().map(|(_, count)| count).sum();
        let mut runs = self.runs(now, &replace, &arrivals);
        // Permits are prefetched only where they can be used at once, and pass nobody.
        let lead = self.lead(context, &replace, &arrivals);
        let is_calm = replace.is_empty() && self.arrivals.list.is_empty() && lead == Micros::ZERO;
        let wanted = self.prefetch_wanted(now).filter(|_| is_calm);
        runs.extend(wanted.map(|(cost, count)| Run { cost: cost.get(), wait_max: Micros::ZERO, count }));
        let prefetch = wanted.map(|(cost, _)| cost);
        let call = Call {
            generations: generations.to_vec(),
            give_back: give_back.iter().copied().chain(holdings(&refunds)).collect(),
            reschedule: holdings(&reschedule),
            reschedule_wait: self.longest_wait(now),
            runs,
            replacing_runs: replace.len(),
            prefetching_runs: usize::from(prefetch.is_some()),
            lead,
            queue_slots_left: self.queue_slots_left() + replaced_requests as u64,
            ..Call::default()
        };
        self.calls.under_way = Some(Sent {
            built: now,
            reschedule,
            replace,
            arrivals,
            traded,
            prefetch,
            give_back,
            generations,
            refunds,
        });
        call
    }

    /// Returns how far ahead the next call books. Where an answer takes longer than a slot stays good, slots that begin with the call
    /// are late when the answer comes, and so are those of a burst when it is sent. Zero where one of the requests would not wait so
    /// long, and where nobody may wait: they take what comes. One whose slot came too late waits for another in any case.
    fn lead(&self, context: &Context, replace: &[(Permits, usize)], arrivals: &[Arrival]) -> Micros {
        let Context { now, latency, .. } = *context;
        let wait_left = |(cost, _): &(Permits, usize)| self.cost_queues.get(cost)?.wait_left(now);
        let least = replace.iter().filter_map(wait_left).min().unwrap_or(Micros(u64::MAX));
        let burst = self.burst_lead(replace, arrivals);
        let slow = if latency > self.limits.guard { latency } else { Micros::ZERO };
        let lead = slow.max(burst);
        // Where nobody may wait, the store refuses the wait of one that is booked ahead.
        let is_none_refused =
            self.limits.max_waiting > 0 || arrivals.iter().all(|arrival| arrival.deadline <= now);
        if lead <= least && is_none_refused { lead } else { Micros::ZERO }
    }

    /// Returns how far ahead a burst is booked. Not where not all may wait, nor where most of the limits is left: a slot that comes late is
    /// replaced at once there.
    fn burst_lead(&self, replace: &[(Permits, usize)], arrivals: &[Arrival]) -> Micros {
        let each = arrivals.iter().map(|arrival| (arrival.cost(), 1)).chain(replace.iter().copied());
        let (mut asked, mut permits) = (0, 0_u64);
        for (cost, count) in each {
            asked += count;
            permits = permits.saturating_add(cost.get().saturating_mul(count as u64));
        }
        let all_may_wait = arrivals.len() as u64 <= self.queue_slots_left();
        if !all_may_wait || permits <= self.prefetch.budget {
            return Micros::ZERO;
        }
        self.calls.bursts.lead(asked.min(self.at_once()))
    }

    /// Returns how many permits the limits grant at one instant.
    fn at_once(&self) -> usize {
        let rules = self.limits.refs.iter().flat_map(|limiter| limiter.rules.iter());
        let least = rules.map(Rule::capacity).min().unwrap_or(u64::MAX);
        usize::try_from(least).unwrap_or(usize::MAX)
    }

    /// Returns how many arrivals go with the next call. A burst reaches all replicas at once, and the replica that calls first is served
    /// first. So each call takes few slots, and those of other replicas come between.
    fn batch(&self) -> usize {
        let granted = |rule: &Rule| {
            let granted = u128::from(rule.rate) * u128::from(BATCH_TIME.0) / u128::from(rule.window.0.max(1));
            usize::try_from(granted).unwrap_or(usize::MAX)
        };
        let rules = self.limits.refs.iter().flat_map(|limiter| limiter.rules.iter());
        let in_time = rules.map(granted).min().unwrap_or(BATCH_MAX);
        let waiting = self.arrivals.list.len();
        in_time.max(BATCH_LEAST).max(waiting / BATCH_PART).min(BATCH_MAX).min(waiting)
    }

    /// Returns how many slots one call gives back or moves at most.
    fn slots_max(&self) -> usize {
        let limits: usize = self.limits.refs.iter().map(|limiter| limiter.rules.len()).sum();
        (SLOTS_MAX / limits.max(1)).max(SLOTS_LEAST)
    }

    /// Takes the slots to give back that were booked under these generations; others go with the next call.
    fn take_give_back(&mut self, generations: &Generations) -> Vec<Holding> {
        let (mut taken, slots_max) = (Vec::new(), self.slots_max());
        while taken.len() < slots_max
            && let Some((holding, _)) = self.owed.give_back.pop_front_if(|(_, of)| of == generations)
        {
            taken.push(holding);
        }
        taken
    }

    /// Takes up to so many parts of used permits that may be given back under these generations; others go with a later call. Those of an
    /// earlier epoch wait for an answer of this one.
    fn take_refunds(&mut self, generations: &Generations, most: usize) -> Vec<(Slot, Permits)> {
        let (epoch, Refunds { slots, heard }) = (self.owed.epoch, &mut self.owed.refunds);
        let may_go = |slot: &Slot| *heard == epoch || slot.source == Source::Store(epoch);
        let mut taken = Vec::new();
        while *generations == self.owed.generations
            && taken.len() < most
            && let Some(refund) = slots.pop_front_if(|(slot, _)| may_go(slot))
        {
            taken.push(refund);
        }
        taken
    }

    /// Returns the longest remaining wait of the waiting requests.
    fn longest_wait(&self, now: Moment) -> Micros {
        let waits = self.cost_queues.values().filter_map(|cost_queue| cost_queue.wait_left(now));
        waits.max().unwrap_or(DEADLINE_SLACK)
    }

    /// Returns how many more requests may wait.
    pub(super) fn queue_slots_left(&self) -> u64 {
        u64::from(self.limits.max_waiting).saturating_sub(self.waiting() as u64)
    }

    /// Groups slots to replace, then requests, into runs of one cost and one wait.
    pub(super) fn runs(&self, now: Moment, replace: &[(Permits, usize)], arrivals: &[Arrival]) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for (cost, count) in replace {
            let wait_left = self.cost_queues.get(cost).and_then(|cost_queue| cost_queue.wait_left(now));
            let wait_max = wait_left.unwrap_or(DEADLINE_SLACK);
            runs.push(Run { cost: cost.get(), wait_max, count: *count as u64 });
        }
        let replacing_runs = runs.len();
        let mut first_wait = Micros::ZERO;
        for arrival in arrivals {
            let (cost, wait) = (arrival.cost().get(), arrival.deadline - now);
            match runs[replacing_runs..].last_mut() {
                Some(run) if run.cost == cost && wait.0.abs_diff(first_wait.0) < RUN_SPREAD.0 => {
                    run.count += 1;
                    run.wait_max = run.wait_max.min(wait);
                }
                _ => {
                    first_wait = wait;
                    runs.push(Run { cost, wait_max: wait, count: 1 });
                }
            }
        }
        runs
    }

    /// Gives back a part of a used permit. The store knows it as long as it has kept its memory since.
    pub(super) fn refund(&mut self, slot: Slot, cost: Permits, memory: u64, out: &mut Vec<Action>) {
        match slot.source {
            Source::Local(_) => return_locally(slot.at, cost.into(), out),
            Source::Store(epoch) if epoch >= memory => {
                out.push(Action::Cache(None));
                self.owed.refunds.slots.push_back((slot, cost));
            }
            Source::Store(_) | Source::Unlimited => {}
        }
    }

    /// Gives a slot back to the place where it was booked: the store or this replica's memory. A slot of an earlier epoch is lost.
    pub(super) fn give_back(&mut self, slot: Slot, cost: Permits, out: &mut Vec<Action>) {
        match slot.source {
            Source::Local(_) => return_locally(slot.at, cost.into(), out),
            Source::Store(epoch) if epoch == self.owed.epoch => {
                // The freed permits may serve requests that the cache would refuse.
                if out.last() != Some(&Action::Cache(None)) {
                    out.push(Action::Cache(None));
                }
                let holding = Holding { slot: slot.at, cost: cost.get(), count: 1 };
                let is_same = |(last, generations): &&mut (Holding, Generations)| {
                    (last.slot, last.cost) == (holding.slot, holding.cost)
                        && *generations == self.owed.generations
                };
                match self.owed.give_back.back_mut().filter(is_same) {
                    Some((last, _)) => last.count += 1,
                    None => self.owed.give_back.push_back((holding, self.owed.generations.clone())),
                }
            }
            Source::Store(_) | Source::Unlimited => {}
        }
    }
}

/// Returns slots as holdings, with equal ones merged.
pub(super) fn holdings(slots: &[(Slot, Permits)]) -> Vec<Holding> {
    let mut holdings: Vec<Holding> = Vec::new();
    for (slot, cost) in slots {
        match holdings.last_mut() {
            Some(last) if (last.slot, last.cost) == (slot.at, cost.get()) => last.count += 1,
            _ => holdings.push(Holding { slot: slot.at, cost: cost.get(), count: 1 }),
        }
    }
    holdings
}
