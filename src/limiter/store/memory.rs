//! The memory store: limiter state in this process, on this process's clock.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::{BoxFuture, FutureExt, ready};

use crate::clock::{Clock, Micros};
use crate::limiter::arithmetic::deal::deal;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::arithmetic::line::Line;
use crate::limiter::arithmetic::queue_order::QueueOrder;
use crate::limiter::arithmetic::reschedule::Cursor;
use crate::limiter::arithmetic::reserve::{report_upstream, reserve};
use crate::limiter::arithmetic::state::LimiterState;
use crate::limiter::model::{
    Answer, Call, Epoch, LimiterName, PAUSE_MAX, Partition, PauseByHand, ReportResult, UpstreamReport,
};
use crate::limiter::store::expiry::Expiring;
use crate::limiter::store::{Failure, StateView, Store, StoreError};

/// Callers share the process, so all of them know changed limits within one heartbeat.
const LEASE: Micros = Micros::from_millis(100);

/// The most pauses by hand that are kept at once.
const BY_HAND_MAX: usize = 64;

/// A limiter, or one of its partitions.
type StateKey = (LimiterName, Option<Partition>);

/// Limiter state in memory.
#[derive(Debug)]
pub struct MemoryStore {
    clock: Clock,
    contents: Mutex<Contents>,
}

#[derive(Default, Debug)]
struct Contents {
    states: Expiring<StateKey, LimiterState>,
    /// The number of states of each limiter, without those of ceilings.
    counts: HashMap<LimiterName, u32>,
    /// The states of ceilings, which are no partitions.
    ceilings: HashSet<StateKey>,
    queues: Expiring<Vec<StateKey>, QueueOrder>,
    lines: Expiring<Vec<StateKey>, Line>,
    /// The pauses by hand, set or lifted, ascending. A state follows them when it is used next.
    by_hand: Vec<ByHand>,
    /// True where those who hold bookings do not hear that these have moved.
    is_unheard: bool,
    /// The charges of states for grants to others of which nobody knew: the instant, and the permits.
    unknown: HashMap<StateKey, (Micros, u64)>,
}

/// A pause by hand of a limiter, or of one of its partitions.
#[derive(Debug)]
struct ByHand {
    name: LimiterName,
    partition: Option<Partition>,
    at: Micros,
    /// The end of the pause; zero where it was lifted.
    until: Micros,
    /// The replica through which the pause was set.
    replica: u64,
    /// The instant from which no state is paused any more.
    kept_until: Micros,
}

impl ByHand {
    fn is_of(&self, (name, partition): &StateKey) -> bool {
        self.name == *name && (self.partition.is_none() || self.partition == *partition)
    }
}

impl MemoryStore {
    /// Returns an empty store on this clock.
    pub fn new(clock: Clock) -> MemoryStore {
        MemoryStore { clock, contents: Mutex::default() }
    }

    /// Returns an empty store for what a replica grants by itself in an outage. Those who hold slots of it do not hear that they have moved:
    /// permits would be granted in their places once more. So nothing moves them, and their holders give them back to have others.
    pub(in crate::limiter) fn for_outages(clock: Clock) -> MemoryStore {
        let contents = Contents { is_unheard: true, ..Contents::default() };
        MemoryStore { clock, contents: Mutex::new(contents) }
    }

    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out [`Store::reserve`] at a given instant.
    #[cfg(test)]
    pub fn reserve_at(&self, now: Micros, limiter_refs: &[LimiterRef], call: &Call) -> Answer {
        let mut contents = self.lock();
        contents.reserve(now, limiter_refs, call)
    }

    /// Carries out [`Store::reserve`] now. The clock is read under the lock: the later of two calls has the later instant.
    pub fn reserve_now(&self, limiter_refs: &[LimiterRef], call: &Call) -> Answer {
        let mut contents = self.lock();
        contents.reserve(self.clock.now(), limiter_refs, call)
    }

    /// Charges permits that are used elsewhere. At least as many count as used at the instant of `used` or since, or from
    /// then on if it lies ahead. Nothing is granted before that instant.
    pub fn charge_at(&self, now: Micros, limiter_ref: &LimiterRef, used: (Micros, u64), replica: u64) {
        self.lock().charge(now, limiter_ref, used, replica);
    }

    /// Charges, as [`MemoryStore::charge_at`] does, permits of which nobody knows whether they were granted to others, until
    /// [`MemoryStore::forget_unknown`].
    pub fn charge_unknown_at(
        &self,
        now: Micros,
        limiter_ref: &LimiterRef,
        used: (Micros, u64),
        replica: u64,
    ) {
        let mut contents = self.lock();
        let charged = contents.charge(now, limiter_ref, used, replica);
        if charged > 0 {
            // Those that were charged before have moved up among them.
            contents.unknown.insert(key(limiter_ref), (used.0, charged));
        }
    }

    /// Takes back what was charged because nobody knew better. Returns whether there was any. A bucket from which it has begun to flow out
    /// keeps it.
    pub fn forget_unknown(&self, limiter_ref: &LimiterRef) -> bool {
        let (mut contents, key) = (self.lock(), key(limiter_ref));
        let Some((slot, permits)) = contents.unknown.remove(&key) else { return false };
        if let Some(state) = contents.states.get_mut(&key) {
            state.give_back(&mut Cursor::Here { slot }, permits);
        }
        true
    }

    /// Returns how many permits each limit lacks at an instant, or when the first one can be granted if that is later; and that instant.
    pub fn lacking_at(&self, now: Micros, limiter_ref: &LimiterRef) -> (Micros, Vec<u64>) {
        let contents = self.lock();
        let state = contents.states.get(&key(limiter_ref));
        let at = state.map_or(now, |state| now.max(state.opens_at()));
        let lacking = state.map(|state| state.lacking(at, &limiter_ref.rules));
        (at, lacking.unwrap_or_else(|| vec![0; limiter_ref.rules.len()]))
    }

    /// Forgets the permits of a limiter, or of one of its partitions, that were used until an instant.
    pub fn reset_at(&self, at: Micros, name: &LimiterName, partition: Option<Partition>) {
        let mut contents = self.lock();
        let is_meant = |key: &StateKey| key.0 == *name && partition.is_none_or(|one| key.1 == Some(one));
        contents.states.iter_mut().filter(|(key, _)| is_meant(key)).for_each(|(_, state)| state.reset(at));
    }

    /// Carries out [`Store::report_upstream`] at a given instant.
    pub fn report_upstream_at(
        &self,
        now: Micros,
        limiter_ref: &LimiterRef,
        report: &UpstreamReport,
    ) -> ReportResult {
        let mut contents = self.lock();
        let mut state = contents.take(now, limiter_ref, report.replica);
        let result = report_upstream(&mut state, now, LEASE, limiter_ref, report);
        if report.pause.is_some() {
            contents.forget_order(|queued| *queued == key(limiter_ref));
        }
        let expires = state.expires();
        contents.put(key(limiter_ref), state, expires);
        result
    }

    /// Carries out [`Store::pause`] at a given instant; `None` if too many pauses are kept already.
    pub fn pause_at(
        &self,
        now: Micros,
        limiter_ref: &LimiterRef,
        pause: &PauseByHand,
    ) -> Option<ReportResult> {
        let PauseByHand { lasting, ago, replica } = *pause;
        let mut contents = self.lock();
        let (name, partition) = key(limiter_ref);
        let last = contents.by_hand.last().map_or(now, |last| now.max(last.at + Micros::ONE));
        let at = if ago > Micros::ZERO { now - ago } else { last };
        let until = if lasting > Micros::ZERO { now + lasting } else { Micros::ZERO };
        let whole = ByHand { until, kept_until: now + lasting.max(PAUSE_MAX), replica, name, partition, at };
        if !contents.by_hand.iter().any(|later| later.at > at && later.is_of(&key(limiter_ref))) {
            contents.by_hand.retain(|before| {
                let is_part = before.name == whole.name
                    && (whole.partition.is_none() || before.partition == whole.partition);
                before.kept_until > now && (before.at > at || !is_part)
            });
            if contents.by_hand.len() >= BY_HAND_MAX {
                return None;
            }
            contents.forget_order(|queued| whole.is_of(queued));
            let place = contents.by_hand.partition_point(|before| before.at <= at);
            contents.by_hand.insert(place, whole);
        }
        let paused_until = contents.by_hand_of(&key(limiter_ref)).map_or(until, |last| last.until);
        Some(ReportResult { epoch: Epoch { now, ..Epoch::default() }, paused_until, external_usage: 0 })
    }

    /// Returns the number of limiters and partitions that have a state.
    pub fn len(&self) -> usize {
        self.lock().states.len()
    }

    /// Returns whether no limiter has a state.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Carries out [`Store::inspect`] at a given instant.
    pub fn inspect_at(&self, now: Micros, limiter_ref: &LimiterRef) -> StateView {
        let contents = self.lock();
        let key = key(limiter_ref);
        let mut state = contents.states.get(&key).cloned().unwrap_or_default();
        state.follow_reset();
        contents.follow_by_hand(now, &key, &mut state);
        let last = state.timeline().last().unwrap_or_default();
        let available = state.available(now, &limiter_ref.rules);
        StateView { now, last, pause: state.pause(now), available }
    }
}

fn key(limiter_ref: &LimiterRef) -> StateKey {
    (limiter_ref.name.clone(), limiter_ref.partition)
}

impl Contents {
    fn reserve(&mut self, now: Micros, limiter_refs: &[LimiterRef], call: &Call) -> Answer {
        self.sweep(now);
        let queue: Vec<StateKey> = limiter_refs.iter().map(key).collect();
        let mut taken: Vec<LimiterState> =
            limiter_refs.iter().map(|limiter_ref| self.take(now, limiter_ref, call.replica)).collect();
        let mut states: Vec<_> = taken
            .iter_mut()
            .zip(limiter_refs)
            .map(|(state, limiter_ref)| (state, limiter_ref.rules.clone()))
            .collect();
        let answer = if let Some(asked) = &call.line {
            let mut line = self.lines.take(&queue).unwrap_or_default();
            let answer = deal(now, LEASE, &mut states, &mut line, call, asked);
            let expires = line.expires();
            self.lines.put(queue.clone(), line, expires);
            answer
        } else {
            let mut order = self.queues.take(&queue).unwrap_or_default();
            let answer = reserve(now, LEASE, &mut states, &mut order, call);
            if order.expires() > now {
                self.queues.put(queue.clone(), order, order.expires());
            }
            answer
        };
        let limiters = limiter_refs.len() - call.line.as_ref().map_or(0, |line| line.ceilings);
        for (place, (key, state)) in queue.into_iter().zip(taken).enumerate() {
            let expires = state.expires();
            if expires > now {
                if place < limiters {
                    self.put(key, state, expires);
                } else if self.states.put(key.clone(), state, expires) {
                    self.ceilings.insert(key);
                }
            }
        }
        answer
    }

    /// Lets those who ask for other slots because of a pause have the first ones, where no generation tells the queue that they were moved.
    fn forget_order(&mut self, is_paused: impl Fn(&StateKey) -> bool) {
        if self.is_unheard {
            let queues = self.queues.iter_mut().filter(|(queue, _)| queue.iter().any(&is_paused));
            queues.for_each(|(_, order)| *order = QueueOrder::default());
        }
    }

    /// Returns how many permits were charged. Forgets some expired states: while the store is there nobody else calls, and each queue of a
    /// partition that ends leaves one.
    fn charge(&mut self, now: Micros, limiter_ref: &LimiterRef, used: (Micros, u64), replica: u64) -> u64 {
        self.sweep(now);
        let mut state = self.states.take(&key(limiter_ref)).unwrap_or_default();
        state.set_unheard(self.is_unheard);
        // As of that instant: a later one would fold bookings up to then away, and the charge would not be seen. But what has changed since,
        // the limits or a pause, must not take bookings out whose slots have come: they may have been used.
        let passed = state.timeline().entries().iter().rev().map(|entry| entry.at).find(|at| *at <= now);
        let opened = now.min(used.0).max(passed.unwrap_or_default());
        state.open(opened, &limiter_ref.rules, LEASE, replica);
        state.close_until(used.0);
        let charged = state.charge_missing(now, used.0, used.1);
        let expires = state.expires();
        self.put(key(limiter_ref), state, expires);
        charged
    }

    /// Takes a state out, opens it and lets it follow pauses by hand. It must be put back.
    fn take(&mut self, now: Micros, limiter_ref: &LimiterRef, replica: u64) -> LimiterState {
        let key = key(limiter_ref);
        let mut state = self.states.take(&key).unwrap_or_default();
        state.set_unheard(self.is_unheard);
        state.open(now, &limiter_ref.rules, LEASE, replica);
        self.follow_by_hand(now, &key, &mut state);
        state
    }

    /// Returns the last action by hand that concerns a limiter or partition.
    fn by_hand_of(&self, key: &StateKey) -> Option<&ByHand> {
        self.by_hand.iter().rev().find(|by_hand| by_hand.is_of(key))
    }

    fn follow_by_hand(&self, now: Micros, key: &StateKey, state: &mut LimiterState) {
        if let Some(last) = self.by_hand_of(key) {
            state.pause_by_hand(now, LEASE, last.at, last.until, last.replica);
        }
    }

    /// Forgets some expired states and queues.
    fn sweep(&mut self, now: Micros) {
        for key in self.states.sweep(now, LimiterState::expires) {
            self.unknown.remove(&key);
            let is_partition = !self.ceilings.remove(&key);
            self.counts.entry(key.0).and_modify(|count| *count -= u32::from(is_partition));
        }
        self.counts.retain(|_, count| *count > 0);
        self.queues.sweep(now, QueueOrder::expires);
        self.lines.sweep(now, Line::expires);
    }

    fn put(&mut self, key: StateKey, state: LimiterState, expires: Micros) {
        let name = key.0.clone();
        if self.states.put(key, state, expires) {
            *self.counts.entry(name).or_default() += 1;
        }
    }
}

impl Store for MemoryStore {
    fn reserve<'a>(
        &'a self,
        limiter_refs: &'a Arc<[LimiterRef]>,
        call: &'a Arc<Call>,
    ) -> BoxFuture<'a, Result<Answer, Failure>> {
        ready(Ok(self.reserve_now(limiter_refs, call))).boxed()
    }

    fn inspect<'a>(&'a self, limiter_ref: &'a LimiterRef) -> BoxFuture<'a, Result<StateView, StoreError>> {
        ready(Ok(self.inspect_at(self.clock.now(), limiter_ref))).boxed()
    }

    fn reset<'a>(
        &'a self,
        limiter_ref: &'a LimiterRef,
        _: Micros,
    ) -> BoxFuture<'a, Result<Epoch, StoreError>> {
        self.reset_at(self.clock.now(), &limiter_ref.name, limiter_ref.partition);
        ready(Ok(Epoch::default())).boxed()
    }

    fn report_upstream<'a>(
        &'a self,
        limiter_ref: &'a LimiterRef,
        report: &'a UpstreamReport,
    ) -> BoxFuture<'a, Result<ReportResult, Failure<ReportResult>>> {
        ready(Ok(self.report_upstream_at(self.clock.now(), limiter_ref, report))).boxed()
    }

    fn pause<'a>(
        &'a self,
        limiter_ref: &'a LimiterRef,
        pause: &'a PauseByHand,
    ) -> BoxFuture<'a, Result<ReportResult, StoreError>> {
        let result = self.pause_at(self.clock.now(), limiter_ref, pause);
        let full = || StoreError::Full(format!("{BY_HAND_MAX} pauses are kept already"));
        ready(result.ok_or_else(full)).boxed()
    }

    fn lease(&self) -> Micros {
        LEASE
    }

    fn is_up(&self) -> bool {
        true
    }

    fn has_room(&self, limiter: &LimiterName, partition: Partition, partitions_max: u32) -> bool {
        let mut contents = self.lock();
        contents.sweep(self.clock.now());
        let count = contents.counts.get(limiter).copied().unwrap_or_default();
        count < partitions_max || contents.states.get(&(limiter.clone(), Some(partition))).is_some()
    }

    fn may_fail(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests;
