//! What the worker does with an answer of the store, or without one.

use std::collections::VecDeque;
use std::iter::repeat_n;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::FutureExt;
use tokio::time::{Duration, Instant};
use tracing::{info, warn};

use super::{Fallback, Seen, Sent, Worker};
use crate::clock::Micros;
use crate::limiter::arithmetic::reserve::{Answer, Call, Holding, Outcome, RetryDelay, Violated};
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::model::limit::{OnStoreFailure, Permits};
use crate::limiter::model::refusal::Refusal;
use crate::limiter::queue::cost_queue::{Stage, Waiter};
use crate::limiter::queue::handle::{Arrival, Asker};
use crate::limiter::queue::permit::{Slot, Source};
use crate::limiter::queue::prefetch::{self, Batch};
use crate::limiter::queue::refusal_cache::RefusalCache;
use crate::limiter::recovery::ledger::{SAID_AHEAD, booked, granted};
use crate::limiter::store::memory::share;
use crate::limiter::store::{Failure, LimiterRef, StoreError};

/// The most limiters and partitions whose use is remembered for a time without a store after their queues have ended: some
/// 30 MB. Beyond it, one begins such a time as if it had not been used.
const REMEMBERED_MAX: usize = 100_000;

/// How often a queue tells of the same error of the store.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// The most calls of a queue that were given up and may be answered yet: a store that has failed three times is not asked.
const LATE_CALLS_MAX: usize = 16;

impl Worker {
    pub(super) fn settle(&mut self, sent: Sent, result: Result<Answer, Failure>) {
        match result {
            Ok(answer) => self.settle_answer(sent, &answer),
            Err(Failure { error, late }) => {
                if let Some(late) = late.filter(|_| self.late.len() < LATE_CALLS_MAX) {
                    let (limiter_refs, call) = (sent.limiter_refs.clone(), sent.call.clone());
                    self.late.push(late.map(|answer| (limiter_refs, call, answer)).boxed());
                }
                self.settle_failure(sent, &error);
            }
        }
        self.hand_out(Instant::now());
        self.tell_waiting();
    }

    fn settle_answer(&mut self, sent: Sent, answer: &Answer) {
        let now = Instant::now();
        self.clock = self.session.hear_clock(sent.at, now, answer.now);
        self.heard = sent.at;
        self.is_local = false;
        if self.session.meet_epoch(answer.epoch) {
            self.queues.wake_all();
        }
        self.notice_loss();
        if answer.epoch.id < self.session.epoch_least() {
            return self.ask_again(sent, None);
        }
        self.epoch = answer.epoch.id;
        self.seen = Seen { at: answer.now, until: answer.lives_until.clone() };
        self.learn_pauses(answer.now, &answer.paused);
        let moved = self.learn_generations(answer);
        if answer.epoch.settles_until.is_some() {
            return self.ask_again(sent, answer.epoch.settles_until);
        }
        if self.session.store.may_fail() {
            self.session.ledger.remember(&sent.limiter_refs, &sent.call, answer);
        }
        self.outage_fence.learn(sent.at, answer.now, answer.last);
        if std::mem::take(&mut self.has_served_locally) {
            self.return_to_store(sent.at);
        }
        let clock = self.clock;
        let slot = |at: Micros| Slot { at, due: clock.due(at), source: Source::Store };
        for cost_queue in self.cost_queues.values_mut() {
            cost_queue
                .refresh(|held| if held.source == Source::Store { clock.due(held.at) } else { held.due });
        }
        let exchanged = answer.exchanged.iter().flat_map(|(count, at)| repeat_n(*at, to_usize(*count)));
        for ((_, cost), at) in sent.exchange.iter().zip(exchanged) {
            match at {
                Some(at) => self.arrived_slot(*cost, slot(at)),
                None => self.refuse_without_slot(*cost, &self.too_far(None)),
            }
        }
        let replaced = !sent.replace.is_empty();
        let mut outcomes = each(answer);
        let first =
            self.settle_outcomes(sent.replace, sent.arrivals, (answer, &mut outcomes), sent.call.spare, slot);
        if let Some(cost) = sent.stock {
            self.put_in_stock(cost, outcomes);
        }
        self.room = answer.room;
        let is_fruitless = sent.traded.is_some_and(|traded| first.is_none_or(|first| first >= traded));
        self.fruitless = if is_fruitless { answer.room } else { self.fruitless };
        if moved || replaced || !sent.exchange.is_empty() {
            self.refuse_overdue(now);
        }
        self.learn_use(answer);
    }

    /// Nothing was booked, or in an epoch that is over: everything is asked for anew, when the store grants again.
    fn ask_again(&mut self, sent: Sent, settles_until: Option<Micros>) {
        let exchange = sent.exchange.into_iter().map(|(_, cost)| (cost, 1));
        for (cost, count) in exchange.chain(sent.replace) {
            *self.replace.entry(cost).or_default() += count;
        }
        sent.arrivals.into_iter().rev().for_each(|arrival| self.pending.push_front(arrival));
        self.settles_until = settles_until.map(|until| self.clock.due(until));
        self.refuse_who_cannot_wait(Instant::now());
    }

    /// Gives back what a call has booked for which nobody waited any more. Where the store has lost its memory meanwhile, or
    /// grants nothing yet, there is nothing to give back.
    pub(super) fn settle_late(&mut self, limiter_refs: &[LimiterRef], call: &Call, answer: &Answer) {
        if self.session.meet_epoch(answer.epoch) {
            self.queues.wake_all();
        }
        let is_current = answer.epoch.id >= self.session.epoch.load(Ordering::Acquire);
        if !is_current || answer.epoch.settles_until.is_some() {
            return;
        }
        self.session.ledger.remember(limiter_refs, call, answer);
        let known: Arc<[u64]> = answer.generations.iter().map(|generation| generation.number).collect();
        let unused = granted(call, answer).map(|(slot, cost)| Holding { slot, cost, count: 1 });
        self.give_back.extend(unused.map(|holding| (holding, known.clone())));
    }

    /// Asks the store for what was booked while it was away, but for what it has surely heard of with a call that was sent at
    /// that instant: so that whoever waits stands in the order of the fleet again. A slot that it has not heard of may be
    /// another's by then.
    fn return_to_store(&mut self, sent: Instant) {
        let told = sent + SAID_AHEAD.to_duration();
        let mut returned = Vec::new();
        for (cost, cost_queue) in &mut self.cost_queues {
            let slots = cost_queue.take_slots(|slot| slot.source == Source::Local && slot.due > told);
            returned.extend(slots.into_iter().map(|slot| (slot, *cost)));
        }
        for (slot, cost) in returned {
            self.give_back(slot, cost);
            self.want(cost);
        }
    }

    /// Puts what was booked for nobody yet where the next requests find it.
    fn put_in_stock(&mut self, cost: Permits, outcomes: impl Iterator<Item = Outcome>) {
        let mut booked: Vec<(Micros, u64)> = Vec::new();
        for outcome in outcomes {
            match (outcome, booked.last_mut()) {
                (Outcome::Booked(at), Some((last, count))) if *last == at => *count += 1,
                (Outcome::Booked(at), _) => booked.push((at, 1)),
                _ => break,
            }
        }
        for (at, count) in booked {
            let known = self.known.clone();
            match Batch::new(at, (cost, count), known, self.clock, self.shared.guard()) {
                Ok(batch) => {
                    self.stocked += count;
                    self.stocked_until = self.stocked_until.or(Some(batch.until()));
                    self.shared.stock(batch, self.pace.low());
                }
                Err(batch) => {
                    self.pace.slow();
                    self.give_back_batch(batch);
                }
            }
        }
    }

    /// What the fleet has left, and so has used.
    fn learn_use(&mut self, answer: &Answer) {
        let limits = answer.available.iter().zip(self.limiter_refs.iter());
        let limits = limits.flat_map(|(left, limiter_ref)| limiter_ref.rules.iter().zip(left));
        self.spare =
            limits.map(|(rule, left)| prefetch::spare(rule.holds(), *left)).min().unwrap_or_default();
        let instances = self.shared.instances.iter().zip(&answer.available).zip(self.limiter_refs.iter());
        let used = instances.map(|((instance, available), limiter_ref)| {
            instance.active.answered(instance.partition, available);
            let rules = limiter_ref.rules.iter().zip(available);
            rules.map(|(rule, left)| rule.holds().saturating_sub(*left)).max().unwrap_or_default()
        });
        self.used = used.collect();
    }

    /// A slot that was wanted has come.
    fn arrived_slot(&mut self, cost: Permits, slot: Slot) {
        let cost_queue = self.cost_queues.entry(cost).or_default();
        cost_queue.wanted = cost_queue.wanted.saturating_sub(1);
        cost_queue.hold(slot);
    }

    /// Takes void slots out of the cost_queues, to be exchanged by the next call. Returns whether there are any.
    fn learn_generations(&mut self, answer: &Answer) -> bool {
        let numbers: Arc<[u64]> = answer.generations.iter().map(|generation| generation.number).collect();
        if numbers == self.known {
            return false;
        }
        self.clear_stock();
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
        for (cost, cost_queue) in &mut self.cost_queues {
            let gone = cost_queue.take_void(|slot| slot.at >= void_from);
            cost_queue.wanted += gone.len();
            void.extend(gone.into_iter().map(|slot| (slot, *cost)));
        }
        void.sort_by_key(|(slot, _)| slot.at);
        if !void.is_empty() {
            info!(limiter = %self.limiter_refs[0].name, slots = void.len(), "limits changed: moving what waits");
        }
        // What was still to be exchanged for a change before this one has lost its place: it is asked for anew.
        for (_, cost) in self.void.drain(..) {
            *self.replace.entry(cost).or_default() += 1;
        }
        self.void_known = std::mem::replace(&mut self.known, numbers);
        self.void = VecDeque::from(void);
        !self.void.is_empty()
    }

    /// Puts booked requests into their cost_queues and refuses the others. Returns the earliest slot in place of another.
    fn settle_outcomes(
        &mut self,
        replace: Vec<(Permits, usize)>,
        arrivals: Vec<Arrival>,
        (answer, outcomes): (&Answer, &mut impl Iterator<Item = Outcome>),
        mut spare: u64,
        slot: impl Fn(Micros) -> Slot,
    ) -> Option<Micros> {
        let mut first: Option<Micros> = None;
        for (cost, count) in replace {
            for outcome in outcomes.by_ref().take(count) {
                match outcome {
                    Outcome::Booked(at) => {
                        first = Some(first.map_or(at, |first| first.min(at)));
                        self.arrived_slot(cost, slot(at));
                    }
                    Outcome::TooFar(away) | Outcome::Full(away) => {
                        spare = 0;
                        let refusal = self.refusal(outcome, away.told);
                        self.refuse_without_slot(cost, &refusal);
                    }
                }
            }
        }
        // The first refusal comes with what the store left to be told without asking; the others with what they are told.
        let (mut first_learnt, mut learnt): (Option<Box<RefusalCache>>, Option<Box<RefusalCache>>) =
            (None, None);
        let mut refused = 0;
        for arrival in arrivals {
            match outcomes.next() {
                Some(Outcome::Booked(at)) => self.join(arrival, slot(at)),
                Some(outcome @ (Outcome::TooFar(away) | Outcome::Full(away))) => {
                    let cost = arrival.cost;
                    if !learnt.as_ref().is_some_and(|learnt| learnt.is_of(cost, &away, answer.now)) {
                        first_learnt = first_learnt.or(learnt);
                        learnt = self.learnt(cost, away, answer.now);
                    }
                    refused += 1;
                    let told = learnt.as_mut().map_or(away.told, |learnt| learnt.tell(cost));
                    let refusal = self.refusal(outcome, told);
                    let refusal = refusal.in_pause(self.paused.as_ref(), arrival.deadline);
                    self.refuse(arrival, refusal);
                }
                None => self.refuse(arrival, self.store_unavailable()),
            }
        }
        if refused > 0 && !self.is_local {
            self.shared.count_refused_by_store(refused);
        }
        if let Some(learnt) = first_learnt.or(learnt)
            && !self.is_local
            && self.give_back.is_empty()
        {
            self.shared.learn(learnt.spare(spare));
        }
        first
    }

    /// What a refusal teaches.
    fn learnt(&self, cost: Permits, away: RetryDelay, now: Micros) -> Option<Box<RefusalCache>> {
        let limiter_ref = self.limiter_refs.get(away.violated.limiter)?;
        let rule = limiter_ref.rules.get(away.violated.limit)?.clone();
        let source = if self.is_local { Source::Local } else { Source::Store };
        let clock = self.clock_of(source, Instant::now());
        Some(Box::new(RefusalCache::new(limiter_ref.name.clone(), rule, cost, away, now, clock)))
    }

    fn join(&mut self, arrival: Arrival, slot: Slot) {
        let Arrival { cost, arrived, deadline, asker } = arrival;
        let Asker::Request(entry) = asker else {
            // Its request is on its way already.
            return self.shared.count_used(slot.source, cost);
        };
        let cost_queue = self.cost_queues.entry(cost).or_default();
        cost_queue.join(Waiter { arrived, deadline, late: 0, stage: Stage::Asking(entry) });
        cost_queue.hold(slot);
    }

    pub(super) fn refuse(&self, arrival: Arrival, refusal: Refusal) {
        let is_shadow = matches!(arrival.asker, Asker::Shadow);
        self.shared.count_refused(&refusal, arrival.cost, is_shadow);
        if let Asker::Request(entry) = arrival.asker {
            // An error means that the request has left.
            let _ = entry.send(Err(refusal));
        }
    }

    /// One wanted slot will not come: the last request of the cost_queue goes without.
    fn refuse_without_slot(&mut self, cost: Permits, refusal: &Refusal) {
        let Some(cost_queue) = self.cost_queues.get_mut(&cost) else { return };
        cost_queue.wanted = cost_queue.wanted.saturating_sub(1);
        for waiter in cost_queue.take_without_slot() {
            self.shared.count_refused(refusal, cost, false);
            waiter.refuse(refusal.clone());
        }
    }

    /// Refuses those who no longer fit into their wait.
    fn refuse_overdue(&mut self, now: Instant) {
        let mut overdue = Vec::new();
        for (cost, cost_queue) in &mut self.cost_queues {
            overdue
                .extend(cost_queue.take_overdue(now).into_iter().map(|(waiter, due)| (*cost, waiter, due)));
        }
        for (cost, waiter, due) in overdue {
            let delay = Micros::from(due.saturating_duration_since(now)).max(Micros::ONE);
            let refusal = self.too_far(Some(delay)).in_pause(self.paused.as_ref(), waiter.deadline);
            self.shared.count_refused(&refusal, cost, false);
            waiter.refuse(refusal);
        }
    }

    /// What those are told who no longer fit into their wait.
    pub(super) fn too_far(&self, delay: Option<Micros>) -> Refusal {
        let delay = delay.unwrap_or(Micros::from(self.session.store.lease().to_duration()));
        self.refusal(Outcome::TooFar(RetryDelay { delay, told: delay, violated: Violated::default() }), delay)
    }

    fn refusal(&self, outcome: Outcome, retry_after: Micros) -> Refusal {
        let limiter = |violated: Violated| {
            self.limiter_refs[violated.limiter.min(self.limiter_refs.len() - 1)].name.clone()
        };
        match outcome {
            Outcome::Full(RetryDelay { violated, .. }) => {
                Refusal::QueueFull { limiter: limiter(violated), limit: violated.limit, retry_after }
            }
            Outcome::TooFar(RetryDelay { violated, .. }) => {
                Refusal::RateLimited { limiter: limiter(violated), limit: violated.limit, retry_after }
            }
            Outcome::Booked(_) => self.store_unavailable(),
        }
    }

    /// Names the limiter that refuses without a store.
    fn store_unavailable(&self) -> Refusal {
        let place = self.shared.with_policy(OnStoreFailure::Reject).next().unwrap_or_default();
        Refusal::StoreUnavailable { limiter: self.limiter_refs[place].name.clone() }
    }

    /// The store did not answer in time: whoever was in the call is served by the limiters' policies. One that rejects decides for
    /// all; those that allow everything are otherwise left out.
    ///
    /// Slots booked before stay good, where every replica knows of them. Those that were being given back or exchanged may or
    /// may not have been: they are left charged, unless the store was not asked at all.
    fn settle_failure(&mut self, sent: Sent, error: &StoreError) {
        let Sent { call, exchange, mut replace, arrivals, .. } = sent;
        if matches!(error, StoreError::Away) {
            let known: Arc<[u64]> = call.known.as_slice().into();
            let unsaid: Vec<_> = call.give_back.iter().map(|holding| (*holding, known.clone())).collect();
            unsaid.into_iter().rev().for_each(|unsaid| self.give_back.push_front(unsaid));
        } else {
            self.tell(error);
        }
        for (_, cost) in exchange.into_iter().chain(self.void.drain(..)) {
            replace.push((cost, 1));
        }
        let was_local = std::mem::replace(&mut self.is_local, true);
        if !was_local {
            replace.extend(self.leave_local_slots());
            self.begin_locally();
        }
        self.heard = Instant::now();
        self.room = None;
        self.shared.learn(None);
        if self.shared.with_policy(OnStoreFailure::Reject).next().is_some() {
            let refusal = self.store_unavailable();
            for (cost, count) in replace {
                (0..count).for_each(|_| self.refuse_without_slot(cost, &refusal));
            }
            arrivals.into_iter().for_each(|arrival| self.refuse(arrival, refusal.clone()));
        } else if self.shared.with_policy(OnStoreFailure::Local).next().is_some() {
            replace.extend(self.leave_what_others_do_not_know());
            self.settle_locally(replace, arrivals);
        } else {
            let slot = Slot { at: Micros::ZERO, due: Instant::now(), source: Source::Unlimited };
            let costs = replace.iter().map(|(cost, count)| cost.get() * *count as u64);
            let permits = costs.chain(arrivals.iter().map(|arrival| arrival.cost.get())).sum::<u64>();
            let now = self.queues.fallback.clock.now();
            let granted = Some((now, permits)).filter(|(_, permits)| *permits > 0);
            self.session.ledger.remember_away(now, &self.limiter_refs, granted.as_slice());
            for (cost, count) in replace {
                (0..count).for_each(|_| self.arrived_slot(cost, slot));
            }
            arrivals.into_iter().for_each(|arrival| self.join(arrival, slot));
        }
    }

    /// Tells of a failed call. Some errors stay until somebody does something about them: the same one is not told of with each
    /// call.
    fn tell(&mut self, error: &StoreError) {
        let text = error.to_string();
        if self.told.as_ref().is_some_and(|(at, told)| *told == text && at.elapsed() < TELL_EVERY) {
            return;
        }
        warn!(limiter = %self.limiter_refs[0].name, error = text, "store call failed");
        self.told = Some((Instant::now(), text));
    }

    /// Leaves the slots that were booked so lately that other replicas may not have heard how far ahead the store is booked by
    /// them: theirs may serve locally beside them. Returns what is to be asked for in their place.
    ///
    /// What is used of the store's slots from then on, by whomever, lies no later than the last slot that every replica
    /// has heard of, and each begins to serve locally when a window has passed since that.
    fn leave_what_others_do_not_know(&mut self) -> Vec<(Permits, usize)> {
        let known = self.outage_fence.known_to_all();
        self.leave(|slot| slot.source == Source::Store && slot.at > known)
    }

    /// Leaves the local slots that are left from another time without the store: what it has granted since was not known when
    /// they were booked. Returns what is to be asked for in their place.
    fn leave_local_slots(&mut self) -> Vec<(Permits, usize)> {
        self.leave(|slot| slot.source == Source::Local)
    }

    /// Gives back the slots for which `gone` holds; returns what is to be asked for in their place.
    fn leave(&mut self, mut gone: impl FnMut(&Slot) -> bool) -> Vec<(Permits, usize)> {
        let mut left = Vec::new();
        for (cost, cost_queue) in &mut self.cost_queues {
            let slots = cost_queue.take_slots(&mut gone);
            cost_queue.wanted += slots.len();
            left.push((*cost, slots));
        }
        let wanted = left.iter().map(|(cost, slots)| (*cost, slots.len())).collect();
        for (cost, slots) in left {
            slots.into_iter().for_each(|slot| self.give_back(slot, cost));
        }
        wanted
    }

    /// Charges this replica's memory with what is known of the window that is running: its part of what the fleet had
    /// used when the store was last heard.
    ///
    /// A share is the limit divided by the fleet, so a part of the use is the use divided by the fleet: what all
    /// replicas together have left is what the fleet had left. Where it had booked ahead, nothing is granted before the last
    /// of that, and the tightest limit counts as full then. It counts as full when the store was last heard, too, if that granted
    /// nothing yet since it was away: others may have been granted all. Other queues of a limiter may have charged its use already.
    fn begin_locally(&self) {
        let Fallback { store, clock, fleet, replica } = &self.queues.fallback;
        let fleet_size = fleet.size();
        for place in self.shared.with_policy(OnStoreFailure::Local) {
            let limiter_ref = share(&self.limiter_refs[place], fleet_size);
            let used = self.used.get(place).map_or(0, |used| used.div_ceil(fleet_size));
            let full = limiter_ref.rules.iter().map(Rule::holds).min().unwrap_or_default();
            let used = match self.outage_fence.last() {
                Some(last) => (clock.at(self.clock.due(last)), used.max(full)),
                None if self.has_served_locally => (clock.at(self.heard), used.max(full)),
                None => (clock.at(self.heard), used),
            };
            store.charge_at(clock.now(), &limiter_ref, used, *replica);
        }
    }

    /// Leaves what is known of the use where the next worker finds it, should the store be away then.
    pub(super) fn remember_use(&self) {
        let has_any = self.used.iter().any(|used| *used > 0);
        let has_room = || self.queues.fallback.store.len() < REMEMBERED_MAX;
        if has_any && !self.is_local && self.session.store.may_fail() && has_room() {
            self.begin_locally();
        }
    }

    /// Enforces this replica's share of the limits in its own memory.
    ///
    /// What costs more than a share ever holds is refused: no replica by itself can know whether the others leave room for it.
    fn settle_locally(&mut self, replace: Vec<(Permits, usize)>, arrivals: Vec<Arrival>) {
        let now = Instant::now();
        let holds =
            |limiter_ref: LimiterRef| limiter_ref.rules.iter().map(Rule::holds).min().unwrap_or(u64::MAX);
        let cost_max = self.local_subjects().map(holds).min().unwrap_or(u64::MAX);
        let (replace, costly): (Vec<_>, Vec<_>) =
            replace.into_iter().partition(|(cost, _)| cost.get() <= cost_max);
        let (arrivals, refused): (Vec<_>, Vec<_>) =
            arrivals.into_iter().partition(|arrival| arrival.cost.get() <= cost_max);
        let refusal = self.store_unavailable();
        for (cost, count) in costly {
            (0..count).for_each(|_| self.refuse_without_slot(cost, &refusal));
        }
        refused.into_iter().for_each(|arrival| self.refuse(arrival, refusal.clone()));
        let call = Call {
            runs: self.runs(now, &replace, &arrivals),
            room: self.room() + replace.iter().map(|(_, count)| *count as u64).sum::<u64>(),
            ..Call::default()
        };
        let answer = self.ask_fallback(call.clone());
        let granted: Vec<_> = booked(&call, &answer).collect();
        self.session.ledger.remember_away(answer.now, &self.limiter_refs, &granted);
        self.has_served_locally = true;
        let clock = self.clock_of(Source::Local, Instant::now());
        let slot = |at: Micros| Slot { at, due: clock.due(at), source: Source::Local };
        self.settle_outcomes(replace, arrivals, (&answer, &mut each(&answer)), 0, slot);
    }

    /// This replica's shares of the limiters that are enforced without a store.
    fn local_subjects(&self) -> impl Iterator<Item = LimiterRef> {
        let places = self.shared.with_policy(OnStoreFailure::Local);
        places.map(|place| share(&self.limiter_refs[place], self.queues.fallback.fleet.size()))
    }

    /// Asks this replica's memory for a share of the limiters that are enforced there.
    pub(super) fn ask_fallback(&self, mut call: Call) -> Answer {
        let Fallback { store, replica, .. } = &self.queues.fallback;
        let places: Vec<usize> = self.shared.with_policy(OnStoreFailure::Local).collect();
        let limiter_refs: Vec<_> = self.local_subjects().collect();
        call.replica = *replica;
        call.known = vec![0; limiter_refs.len()];
        let mut answer = store.reserve_now(&limiter_refs, &call);
        for (_, outcome) in &mut answer.outcomes {
            if let Outcome::TooFar(RetryDelay { violated, .. }) | Outcome::Full(RetryDelay { violated, .. }) =
                outcome
            {
                violated.limiter = places.get(violated.limiter).copied().unwrap_or_default();
            }
        }
        answer
    }
}

/// What became of each request, in order.
fn each(answer: &Answer) -> impl Iterator<Item = Outcome> {
    let outcomes = answer.outcomes.iter();
    outcomes.flat_map(|(count, outcome)| repeat_n(*outcome, to_usize(*count)))
}

/// A count that is zipped with requests at hand, so a cut changes nothing.
fn to_usize(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
