//! The memory store: limiter state in this process, on this process's clock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::{BoxFuture, FutureExt, ready};

use crate::clock::{Clock, Micros};
use crate::limiter::book::Book;
use crate::limiter::limit::LimiterName;
use crate::limiter::order::QueueOrder;
use crate::limiter::reserve::{Answer, Call, reserve};
use crate::limiter::rule::Kind;
use crate::limiter::store::{Inspection, Store, StoreError, Subject};

/// Callers share the process, so they hear of changed limits within one heartbeat.
const LEASE: Micros = Micros::from_millis(100);

/// How often what has expired is looked for: after this many calls.
const SWEEP_CALLS: u32 = 1024;

/// Limiter state in memory.
#[derive(Debug)]
pub struct MemoryStore {
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Default, Debug)]
struct State {
    books: HashMap<LimiterName, Book>,
    queues: HashMap<Vec<LimiterName>, QueueOrder>,
    calls: u32,
}

impl MemoryStore {
    /// An empty store on this clock.
    pub fn new(clock: Clock) -> MemoryStore {
        MemoryStore { clock, state: Mutex::default() }
    }

    /// [`Store::reserve`] at a given instant.
    pub fn reserve_at(&self, now: Micros, subjects: &[Subject], call: &Call) -> Answer {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.reserve(now, subjects, call)
    }

    /// Books permits that are used elsewhere, each number at its instant, for the limiter to count with.
    pub fn charge_at(&self, now: Micros, subject: &Subject, permits: &[(Micros, u64)], replica: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let book = state.books.entry(subject.name.clone()).or_default();
        book.open(now, &subject.rules, LEASE, replica);
        for (at, permits) in permits {
            book.charge(*at, *permits);
        }
    }

    fn inspect_at(&self, now: Micros, subject: &Subject) -> Inspection {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let book = state.books.get(&subject.name).cloned().unwrap_or_default();
        let last = book.calendar().last().unwrap_or_default();
        Inspection { now, last, available: book.available(now, &subject.rules) }
    }
}

impl State {
    fn reserve(&mut self, now: Micros, subjects: &[Subject], call: &Call) -> Answer {
        let queue: Vec<LimiterName> = subjects.iter().map(|subject| subject.name.clone()).collect();
        let mut order = self.queues.remove(&queue).unwrap_or_default();
        let mut taken: Vec<Book> =
            queue.iter().map(|name| self.books.remove(name).unwrap_or_default()).collect();
        let mut books: Vec<_> =
            taken.iter_mut().zip(subjects).map(|(book, subject)| (book, subject.rules.clone())).collect();
        let answer = reserve(now, LEASE, &mut books, &mut order, call);
        let kept = queue.iter().cloned().zip(taken).filter(|(_, book)| book.expires() > now);
        self.books.extend(kept);
        if order.expires() > now {
            self.queues.insert(queue, order);
        }
        self.sweep(now);
        answer
    }

    fn sweep(&mut self, now: Micros) {
        self.calls = (self.calls + 1) % SWEEP_CALLS;
        if self.calls == 0 {
            self.books.retain(|_, book| book.expires() > now);
            self.queues.retain(|_, order| order.expires() > now);
        }
    }
}

impl Store for MemoryStore {
    fn reserve<'a>(
        &'a self,
        subjects: &'a [Subject],
        call: &'a Call,
    ) -> BoxFuture<'a, Result<Answer, StoreError>> {
        ready(Ok(self.reserve_at(self.clock.now(), subjects, call))).boxed()
    }

    fn inspect<'a>(&'a self, subject: &'a Subject) -> BoxFuture<'a, Result<Inspection, StoreError>> {
        ready(Ok(self.inspect_at(self.clock.now(), subject))).boxed()
    }

    fn lease(&self) -> Micros {
        LEASE
    }

    fn is_up(&self) -> bool {
        true
    }
}

/// The share of a limiter that one of `fleet_size` replicas may use by itself: every rate divided and
/// rounded down; below one permit, one permit in a window that is longer by as much.
pub fn share(subject: &Subject, fleet_size: u64) -> Subject {
    let fleet_size = fleet_size.max(1);
    let divided = subject.rules.iter().map(|rule| {
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
    Subject { rules: divided.collect::<Arc<[_]>>(), ..subject.clone() }
}
