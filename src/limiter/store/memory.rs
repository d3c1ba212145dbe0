//! The memory store: limiter state in this process, on this process's clock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::{BoxFuture, FutureExt, ready};

use crate::clock::{Clock, Micros};
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::arithmetic::queue_order::QueueOrder;
use crate::limiter::arithmetic::reserve::{report_upstream, reserve};
use crate::limiter::arithmetic::rule::Kind;
use crate::limiter::arithmetic::state::LimiterState;
use crate::limiter::model::call::{Answer, Call};
use crate::limiter::model::epoch::Epoch;
use crate::limiter::model::limit::LimiterName;
use crate::limiter::model::partition::Partition;
use crate::limiter::model::pause::PAUSE_MAX;
use crate::limiter::model::upstream_report::{ReportResult, UpstreamReport};
use crate::limiter::store::expiry::Expiring;
use crate::limiter::store::{Failure, StateView, Store, StoreError};

/// Callers share the process, so they hear of changed limits within one heartbeat.
const LEASE: Micros = Micros::from_millis(100);

/// The most pauses by hand that are kept.
const BY_HAND_MAX: usize = 64;

/// Whose state it is.
type StateKey = (LimiterName, Option<Partition>);

/// Limiter state in memory.
#[derive(Debug)]
pub struct MemoryStore {
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Default, Debug)]
struct State {
    books: Expiring<StateKey, LimiterState>,
    /// How many books each limiter has.
    counts: HashMap<LimiterName, u32>,
    queues: Expiring<Vec<StateKey>, QueueOrder>,
    /// What was paused by hand, or let go on, ascending. A book follows when it is asked for next.
    by_hand: Vec<ByHand>,
}

/// A limiter, or one of its partitions, was paused by hand.
#[derive(Debug)]
struct ByHand {
    name: LimiterName,
    partition: Option<Partition>,
    at: Micros,
    /// Zero: it goes on.
    until: Micros,
    /// Over which replica.
    replica: u64,
    /// No book is paused for longer.
    kept_until: Micros,
}

impl ByHand {
    fn is_of(&self, (name, partition): &StateKey) -> bool {
        self.name == *name && (self.partition.is_none() || self.partition == *partition)
    }
}

impl MemoryStore {
    /// An empty store on this clock.
    pub fn new(clock: Clock) -> MemoryStore {
        MemoryStore { clock, state: Mutex::default() }
    }

    /// [`Store::reserve`] at a given instant.
    pub fn reserve_at(&self, now: Micros, limiter_refs: &[LimiterRef], call: &Call) -> Answer {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.reserve(now, limiter_refs, call)
    }

    /// [`Store::reserve`] at the present. The clock is read under the lock: of two calls the later one has the later instant.
    pub fn reserve_now(&self, limiter_refs: &[LimiterRef], call: &Call) -> Answer {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.reserve(self.clock.now(), limiter_refs, call)
    }

    /// Books permits that are used elsewhere, for the limiter to count with: so many count as used at the instant of `used` or
    /// since, or, where it lies ahead, from then on. Nothing is granted before that.
    pub fn charge_at(&self, now: Micros, limiter_ref: &LimiterRef, used: (Micros, u64), replica: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut book = state.books.take(&key(limiter_ref)).unwrap_or_default();
        book.open(now, &limiter_ref.rules, LEASE, replica);
        book.close_until(used.0);
        book.charge_missing(now, used.0, used.1);
        let expires = book.expires();
        state.put(key(limiter_ref), book, expires);
    }

    /// Forgets what was used of a limiter until an instant, or of one of its partitions.
    pub fn reset_at(&self, at: Micros, name: &LimiterName, partition: Option<Partition>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_meant = |key: &StateKey| key.0 == *name && partition.is_none_or(|one| key.1 == Some(one));
        state.books.iter_mut().filter(|(key, _)| is_meant(key)).for_each(|(_, book)| book.reset(at));
    }

    /// [`Store::hear`] at a given instant.
    pub fn hear_at(&self, now: Micros, limiter_ref: &LimiterRef, said: &UpstreamReport) -> ReportResult {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut book = state.take(now, limiter_ref, said.replica);
        let heard = report_upstream(&mut book, now, LEASE, limiter_ref, said);
        let expires = book.expires();
        state.put(key(limiter_ref), book, expires);
        heard
    }

    /// [`Store::pause`] at a given instant; `None` if too many are kept already.
    pub fn pause_at(
        &self,
        now: Micros,
        limiter_ref: &LimiterRef,
        lasting: Micros,
        replica: u64,
    ) -> Option<ReportResult> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (name, partition) = key(limiter_ref);
        let at = state.by_hand.last().map_or(now, |last| now.max(last.at + Micros::ONE));
        let whole = ByHand {
            until: if lasting > Micros::ZERO { now + lasting } else { Micros::ZERO },
            kept_until: now + lasting.max(PAUSE_MAX),
            replica,
            name,
            partition,
            at,
        };
        state.by_hand.retain(|before| {
            let is_part = before.name == whole.name
                && (whole.partition.is_none() || before.partition == whole.partition);
            before.kept_until > now && !is_part
        });
        let paused_until = whole.until;
        if state.by_hand.len() >= BY_HAND_MAX {
            return None;
        }
        state.by_hand.push(whole);
        Some(ReportResult { epoch: Epoch { now, ..Epoch::default() }, paused_until, drift: 0 })
    }

    /// The number of limiters and partitions of which something is kept.
    pub fn len(&self) -> usize {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).books.len()
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// [`Store::inspect`] at a given instant.
    pub fn inspect_at(&self, now: Micros, limiter_ref: &LimiterRef) -> StateView {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let key = key(limiter_ref);
        let mut book = state.books.get(&key).cloned().unwrap_or_default();
        book.follow_reset();
        state.follow_by_hand(now, &key, &mut book);
        let last = book.calendar().last().unwrap_or_default();
        let available = book.available(now, &limiter_ref.rules);
        StateView { now, last, pause: book.pause(now), available }
    }
}

fn key(limiter_ref: &LimiterRef) -> StateKey {
    (limiter_ref.name.clone(), limiter_ref.partition)
}

impl State {
    fn reserve(&mut self, now: Micros, limiter_refs: &[LimiterRef], call: &Call) -> Answer {
        self.sweep(now);
        let queue: Vec<StateKey> = limiter_refs.iter().map(key).collect();
        let mut order = self.queues.take(&queue).unwrap_or_default();
        let mut taken: Vec<LimiterState> =
            limiter_refs.iter().map(|limiter_ref| self.take(now, limiter_ref, call.replica)).collect();
        let mut books: Vec<_> = taken
            .iter_mut()
            .zip(limiter_refs)
            .map(|(book, limiter_ref)| (book, limiter_ref.rules.clone()))
            .collect();
        let answer = reserve(now, LEASE, &mut books, &mut order, call);
        for (key, book) in queue.iter().zip(taken) {
            let expires = book.expires();
            if expires > now {
                self.put(key.clone(), book, expires);
            }
        }
        if order.expires() > now {
            self.queues.put(queue, order, order.expires());
        }
        answer
    }

    /// A book, open and to be put back, which has followed what was done by hand.
    fn take(&mut self, now: Micros, limiter_ref: &LimiterRef, replica: u64) -> LimiterState {
        let key = key(limiter_ref);
        let mut book = self.books.take(&key).unwrap_or_default();
        book.open(now, &limiter_ref.rules, LEASE, replica);
        self.follow_by_hand(now, &key, &mut book);
        book
    }

    fn follow_by_hand(&self, now: Micros, key: &StateKey, book: &mut LimiterState) {
        if let Some(last) = self.by_hand.iter().rev().find(|by_hand| by_hand.is_of(key)) {
            book.pause_by_hand(now, LEASE, last.at, last.until, last.replica);
        }
    }

    /// Forgets some of what has expired.
    fn sweep(&mut self, now: Micros) {
        for (name, _) in self.books.sweep(now, LimiterState::expires) {
            if let Some(count) = self.counts.get_mut(&name) {
                *count -= 1;
            }
        }
        self.counts.retain(|_, count| *count > 0);
        self.queues.sweep(now, QueueOrder::expires);
    }

    fn put(&mut self, key: StateKey, book: LimiterState, expires: Micros) {
        let name = key.0.clone();
        if self.books.put(key, book, expires) {
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

    fn reset<'a>(&'a self, limiter_ref: &'a LimiterRef) -> BoxFuture<'a, Result<Epoch, StoreError>> {
        self.reset_at(self.clock.now(), &limiter_ref.name, limiter_ref.partition);
        ready(Ok(Epoch::default())).boxed()
    }

    fn report_upstream<'a>(
        &'a self,
        limiter_ref: &'a LimiterRef,
        said: &'a UpstreamReport,
    ) -> BoxFuture<'a, Result<ReportResult, StoreError>> {
        ready(Ok(self.hear_at(self.clock.now(), limiter_ref, said))).boxed()
    }

    fn pause<'a>(
        &'a self,
        limiter_ref: &'a LimiterRef,
        lasting: Micros,
        replica: u64,
    ) -> BoxFuture<'a, Result<ReportResult, StoreError>> {
        let heard = self.pause_at(self.clock.now(), limiter_ref, lasting, replica);
        let full = || StoreError::Refused(format!("{BY_HAND_MAX} pauses are kept already"));
        ready(heard.ok_or_else(full)).boxed()
    }

    fn lease(&self) -> Micros {
        LEASE
    }

    fn is_up(&self) -> bool {
        true
    }

    fn has_room(&self, limiter: &LimiterName, partition: Partition, partitions_max: u32) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.sweep(self.clock.now());
        let count = state.counts.get(limiter).copied().unwrap_or_default();
        count < partitions_max || state.books.get(&(limiter.clone(), Some(partition))).is_some()
    }

    fn may_fail(&self) -> bool {
        false
    }
}

/// The share of a limiter that one of `fleet_size` replicas may use by itself: every rate divided and
/// rounded down; below one permit, one permit in a window that is longer by as much.
pub fn share(limiter_ref: &LimiterRef, fleet_size: u64) -> LimiterRef {
    let fleet_size = fleet_size.max(1);
    let divided = limiter_ref.rules.iter().map(|rule| {
        let mut rule = rule.clone();
        if rule.rate >= fleet_size {
            rule.rate /= fleet_size;
            if let Kind::Bucket { burst } = &mut rule.kind {
                *burst = (*burst / fleet_size).max(1);
            }
        } else {
            rule.window = Micros((rule.window.0 * fleet_size).div_ceil(rule.rate));
            rule.rate = 1;
            rule.kind = Kind::Sliding;
        }
        rule
    });
    LimiterRef { rules: divided.collect::<Arc<[_]>>(), ..limiter_ref.clone() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::limiter::model::call::{Outcome, Run};
    use crate::limiter::model::limit::Limiter;
    use crate::limiter::tests::limiter;

    const SECOND: Duration = Duration::from_secs(1);

    fn partition(limiter: &Limiter, value: u64) -> LimiterRef {
        LimiterRef::new(limiter, Some(Partition::of([Some(&value.to_be_bytes()[..])])), Micros::ZERO)
    }

    #[tokio::test(start_paused = true)]
    async fn there_are_no_more_partitions_than_may_be() {
        let store = MemoryStore::new(Clock::start());
        let limiter = limiter(5, SECOND, Duration::ZERO);
        let runs = vec![Run { cost: 1, wait_max: Micros::ZERO, count: 1 }];
        let call = Call { known: vec![0], runs, ..Call::default() };
        let has_room = |value: u64| {
            let partition = partition(&limiter, value).partition.unwrap();
            store.has_room(&limiter.name, partition, 3)
        };
        for value in 0..3 {
            assert!(has_room(value), "{value}");
            store.reserve_now(&[partition(&limiter, value)], &call);
        }
        assert!(has_room(0) && !has_room(3), "one that is there goes on");
        // Nobody calls any more, and what has expired makes room all the same.
        tokio::time::advance(2 * SECOND).await;
        assert!(has_room(3));
    }

    #[tokio::test]
    async fn what_has_expired_is_forgotten_by_calls_of_others() {
        let (clock, limiter) = (Clock::start(), limiter(2, SECOND, SECOND));
        let store = MemoryStore::new(clock);
        let run = Run { cost: 1, wait_max: Micros::ZERO, count: 1 };
        let call = Call { known: vec![0], runs: vec![run], ..Call::default() };
        let now = clock.now();
        for value in 0..5000 {
            store.reserve_at(now, &[partition(&limiter, value)], &call);
        }
        assert_eq!(store.len(), 5000);
        // What is used goes on, each other call forgets a few.
        let later = now + Micros::from_millis(1500);
        for value in 0..1000 {
            store.reserve_at(later, &[partition(&limiter, value % 3)], &call);
        }
        assert_eq!(store.len(), 3);
        let state = store.state.lock().unwrap();
        assert!(state.books.places() < 1000);
    }

    #[tokio::test]
    async fn what_is_used_elsewhere_is_charged_once() {
        let (clock, limiter) = (Clock::start(), limiter(10, SECOND, SECOND));
        let (store, now) = (MemoryStore::new(clock), clock.now());
        let limiter_ref = partition(&limiter, 1);
        let left = || store.inspect_at(now, &limiter_ref).available[0];
        store.charge_at(now, &limiter_ref, (now, 4), 1);
        store.charge_at(now, &limiter_ref, (now, 4), 1);
        assert_eq!(left(), 6);
        store.charge_at(now, &limiter_ref, (now, 7), 1);
        assert_eq!(left(), 3);
    }

    #[tokio::test]
    async fn what_is_used_elsewhere_leaves_its_window_no_sooner_for_what_was_booked_here_before() {
        let (clock, limiter) = (Clock::start(), limiter(10, SECOND, SECOND));
        let (store, now) = (MemoryStore::new(clock), clock.now());
        let limiter_ref = partition(&limiter, 1);
        let after = |millis| now + Micros::from_millis(millis);
        let left = |at| store.inspect_at(at, &limiter_ref).available[0];
        let run = Run { cost: 1, wait_max: Micros::ZERO, count: 5 };
        let call = Call { room: 5, runs: vec![run], ..Call::default() };
        store.reserve_at(now, std::slice::from_ref(&limiter_ref), &call);
        // The five may be among the seven, and the other way round: nobody knows when those were used, but not later.
        store.charge_at(after(900), &limiter_ref, (after(800), 7), 1);
        assert_eq!(left(after(900)), 3);
        assert_eq!(left(now + limiter_ref.rules[0].window + Micros::from_millis(100)), 3);
        assert_eq!(left(after(800) + limiter_ref.rules[0].window + Micros::ONE), 10);
    }

    #[tokio::test]
    async fn nothing_is_granted_before_what_is_booked_elsewhere() {
        let (clock, limiter) = (Clock::start(), limiter(10, SECOND, SECOND));
        let (store, now) = (MemoryStore::new(clock), clock.now());
        let limiter_ref = partition(&limiter, 1);
        let ahead = now + Micros::from_millis(3500);
        store.charge_at(now, &limiter_ref, (ahead, 7), 1);
        let run = Run { cost: 1, wait_max: Micros::from_millis(60_000), count: 4 };
        let call = Call { room: 4, runs: vec![run], ..Call::default() };
        let answer = store.reserve_at(now, std::slice::from_ref(&limiter_ref), &call);
        let (first, then) = (answer.outcomes[0], answer.outcomes[1]);
        assert_eq!(first, (3, Outcome::Booked(ahead)));
        let window = limiter_ref.rules[0].window;
        assert_eq!(then, (1, Outcome::Booked(ahead + window)));
    }

    #[tokio::test]
    async fn what_is_in_use_now_says_nothing_of_what_is_booked_ahead() {
        let (clock, limiter) = (Clock::start(), limiter(10, SECOND, SECOND));
        let (store, now) = (MemoryStore::new(clock), clock.now());
        let limiter_ref = partition(&limiter, 1);
        let run = Run { cost: 1, wait_max: Micros::from_millis(60_000), count: 1 };
        let call = Call { room: 1, runs: vec![run], ..Call::default() };
        let after = |millis| now + Micros::from_millis(millis);
        // The store was away before, and is again a window later; the limiter's other queues have heard of a little less and more.
        store.charge_at(now, &limiter_ref, (after(900), 10), 1);
        for ahead in [3000, 3200, 3100] {
            store.charge_at(after(1000), &limiter_ref, (after(ahead), 10), 1);
        }
        let answer = store.reserve_at(after(1000), std::slice::from_ref(&limiter_ref), &call);
        let window = limiter_ref.rules[0].window;
        assert_eq!(answer.outcomes, [(1, Outcome::Booked(after(3200) + window))]);
    }
}
