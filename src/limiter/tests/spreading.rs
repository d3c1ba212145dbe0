//! Simulates refused callers against the arithmetic, on a clock of its own: a crowd is spread, and a caller alone is not sent away by
//! asking again.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{enter, granted, limiter, limiters};
use crate::clock::Micros;
use crate::limiter::Refusal;
use crate::limiter::arithmetic::queue_order::QueueOrder;
use crate::limiter::arithmetic::reserve::reserve;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::arithmetic::state::LimiterState;
use crate::limiter::model::{Call, Holding, Outcome, RetryDelay, Run};
use crate::limiter::tests::oracle::{LEASE, SLIDING, START, fixed, rule};

const SECOND: u64 = 1_000_000;

/// A limiter of one limit.
struct Limiter {
    rules: Arc<[Rule]>,
    state: LimiterState,
    order: QueueOrder,
}

impl Limiter {
    fn new(rule: Rule) -> Limiter {
        Limiter { rules: [rule].into(), state: LimiterState::default(), order: QueueOrder::default() }
    }

    /// Returns the outcomes of a call for so many requests, as counts.
    fn call(&mut self, now: Micros, wait_max: Micros, count: u64) -> Vec<(u64, Outcome)> {
        let runs = vec![Run { cost: 1, wait_max, count }];
        self.make(now, Call { runs, ..Call::default() })
    }

    fn make(&mut self, now: Micros, call: Call) -> Vec<(u64, Outcome)> {
        let call = Call { generations: vec![0], queue_slots_left: 1000, ..call };
        let states = &mut [(&mut self.state, self.rules.clone())];
        reserve(now, LEASE, states, &mut self.order, &call).outcomes
    }

    /// Exchanges a late slot for one of the present.
    fn exchange(&mut self, now: Micros, slot: Micros) -> Outcome {
        let give_back = vec![Holding { slot, cost: 1, count: 1 }];
        let runs = vec![Run { cost: 1, wait_max: Micros::ZERO, count: 1 }];
        self.make(now, Call { give_back, runs, replacing_runs: 1, ..Call::default() })[0].1
    }

    fn refused(&mut self, now: Micros) -> RetryDelay {
        self.refused_together(now, 1)
    }

    fn refused_together(&mut self, now: Micros, count: u64) -> RetryDelay {
        match self.call(now, Micros::ZERO, count)[..] {
            [(of, Outcome::TooFar(away))] if of == count => away,
            ref other => panic!("{other:?}"),
        }
    }
}

/// Clients that obey: they come at once, and come back when they are advised to.
#[derive(Clone, Copy, Debug)]
struct Obedient {
    clients: u64,
    replicas: usize,
    /// True if a client that was served asks again at once.
    is_closed: bool,
    /// True if clients wait for whole seconds.
    waits_whole_seconds: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A client asks.
    Asks(u64),
    /// A call of a replica reaches the store.
    Calls(usize),
}

/// A replica that makes one call at a time.
#[derive(Clone, Default)]
struct Replica {
    arrivals: VecDeque<u64>,
    under_way: Vec<u64>,
    /// The instant that is told to everybody until another one.
    refusal: Option<(Micros, Micros)>,
}

/// How long a call takes, there and back.
const CALL: Micros = Micros(1000);

/// A simulation of clients that obey.
struct Simulation {
    clients: Obedient,
    limiter: Limiter,
    replicas: Vec<Replica>,
    events: BinaryHeap<Reverse<(Micros, Event)>>,
    attempts: u64,
    served: u64,
    last: Micros,
}

impl Simulation {
    fn new(clients: Obedient, rule: Rule) -> Simulation {
        // All come within the first 10 ms.
        let at = |client| START + Micros(client * 10_000 / clients.clients);
        let events = (0..clients.clients).map(|client| Reverse((at(client), Event::Asks(client))));
        Simulation {
            clients,
            limiter: Limiter::new(rule),
            replicas: vec![Replica::default(); clients.replicas],
            events: events.collect(),
            attempts: 0,
            served: 0,
            last: START,
        }
    }

    /// Runs until an instant. Returns the attempts for each success, and the part of the quota of 10/s that was used.
    fn run(mut self, until: Micros) -> (f64, f64) {
        while let Some(Reverse((now, event))) = self.events.pop()
            && now < until
        {
            match event {
                Event::Asks(client) => self.ask(client, now),
                Event::Calls(replica) => self.carry_out(replica, now),
            }
        }
        let end = if self.clients.is_closed { until } else { self.last };
        let float = |number: u64| f64::from(u32::try_from(number).unwrap());
        let capacity = 10.0 * float((end - START).0 / 1000) / 1000.0;
        (float(self.attempts) / float(self.served), float(self.served) / capacity)
    }

    fn ask(&mut self, client: u64, now: Micros) {
        self.attempts += 1;
        let index = usize::try_from(client).unwrap() % self.replicas.len();
        let replica = &mut self.replicas[index];
        if let Some((advised, until)) = replica.refusal
            && now < until
        {
            return self.come_back(client, now, advised);
        }
        replica.arrivals.push_back(client);
        if replica.under_way.is_empty() {
            self.send(index, now + Micros(CALL.0 / 2));
        }
    }

    /// Sends some of the arrivals with a call, as a worker does.
    fn send(&mut self, index: usize, at: Micros) {
        let replica = &mut self.replicas[index];
        let waiting = replica.arrivals.len();
        replica.under_way = replica.arrivals.drain(..waiting.min(16.max(waiting / 8))).collect();
        if !replica.under_way.is_empty() {
            self.events.push(Reverse((at, Event::Calls(index))));
        }
    }

    fn carry_out(&mut self, index: usize, now: Micros) {
        let clients = std::mem::take(&mut self.replicas[index].under_way);
        let outcomes = self.limiter.call(now, Micros(50_000), clients.len() as u64);
        let mut clients = clients.into_iter();
        let answered = now + Micros(CALL.0 / 2);
        for (count, outcome) in outcomes {
            let clients = clients.by_ref().take(usize::try_from(count).unwrap());
            match outcome {
                Outcome::Booked(slot) => clients.for_each(|client| self.serve(client, answered.max(slot))),
                Outcome::TooFar(away) => self.refuse(index, clients, answered, (now, away)),
                Outcome::Full(_) => panic!("the queue is long enough"),
            }
        }
        self.send(index, now + CALL);
    }

    fn serve(&mut self, client: u64, at: Micros) {
        (self.served, self.last) = (self.served + 1, self.last.max(at));
        if self.clients.is_closed {
            self.events.push(Reverse((at + Micros(500 + client % 1000), Event::Asks(client))));
        }
    }

    fn refuse(
        &mut self,
        index: usize,
        clients: impl Iterator<Item = u64>,
        now: Micros,
        (called, away): (Micros, RetryDelay),
    ) {
        let (slot, rule) = (called + away.delay, self.limiter.rules[0].clone());
        let mut advised = called + away.advised;
        for client in clients {
            self.come_back(client, now, advised);
            advised = if away.is_spread { rule.advised_next(slot, advised, 1) } else { advised };
        }
        self.replicas[index].refusal = (!away.is_spread).then_some((advised, now + Micros(100_000)));
    }

    fn come_back(&mut self, client: u64, now: Micros, advised: Micros) {
        let unit = if self.clients.waits_whole_seconds { SECOND } else { 1000 };
        let waits = Micros((advised - now).0.max(1).div_ceil(unit) * unit);
        // A network delays them.
        let late = Micros(300 + client * 7919 % 5000);
        self.events.push(Reverse((now + waits + late, Event::Asks(client))));
    }
}

#[test]
fn a_thousand_obedient_callers_need_three_attempts_for_each_success() {
    for replicas in [1, 3] {
        for is_closed in [true, false] {
            for waits_whole_seconds in [false, true] {
                let clients = Obedient { clients: 1000, replicas, is_closed, waits_whole_seconds };
                let until = START + Micros(if is_closed { 180 } else { 600 } * SECOND);
                let (attempts, used) = Simulation::new(clients, rule(10, 1_010_000, 1, SLIDING)).run(until);
                println!("{clients:?}: {attempts:.2} attempts, {:.1} % of the quota", used * 100.0);
                assert!(attempts <= 3.0, "{attempts} of {clients:?}");
                // Callers who all come at the same part of a second miss a window that is a guard longer than one.
                assert!(used >= if waits_whole_seconds { 0.8 } else { 0.95 }, "{used} of {clients:?}");
            }
        }
    }
}

#[test]
fn callers_refused_together_are_advised_successive_instants() {
    let mut limiter = Limiter::new(rule(10, 1_010_000, 1, SLIDING));
    limiter.call(START, Micros::ZERO, 10);
    let first = limiter.refused_together(START, 400);
    assert_eq!((first.delay, first.advised, first.is_spread), (Micros(1_010_000), first.delay, true));
    let next = limiter.refused_together(START, 400);
    assert_eq!(next.advised, first.delay + Micros(400 * 101_000));
    // No further than two minutes.
    limiter.refused_together(START, 1000);
    assert_eq!(limiter.refused_together(START, 1000).advised, first.delay + Micros(120 * SECOND));
}

#[test]
fn a_caller_that_asks_again_is_not_sent_further_away() {
    let day = 86_400 * SECOND;
    for (rate, window) in [(3, day), (3, 366 * day), (10, 5 * SECOND)] {
        for crowd in [0, 5] {
            for pace in [1, 1000, window / 25] {
                let mut limiter = Limiter::new(rule(rate, window, 1, SLIDING));
                limiter.call(START, Micros::ZERO, rate);
                if crowd > 0 {
                    limiter.refused_together(START, crowd);
                }
                let first = START + limiter.refused(START).advised;
                for question in 1..20 {
                    let now = START + Micros(question * pace);
                    let told = now + limiter.refused(now).advised;
                    assert!(told <= first, "{rate}/{window}: {told:?} after {first:?}, question {question}");
                }
            }
        }
    }
}

#[test]
fn callers_that_came_one_by_one_are_spread_when_they_come_back() {
    let mut limiter = Limiter::new(rule(10, 1_010_000, 1, SLIDING));
    limiter.call(START, Micros::ZERO, 10);
    let told: Vec<_> =
        (0..50).map(|call| START + Micros(call) + limiter.refused(START + Micros(call)).advised).collect();
    assert!(told.iter().all(|at| *at == told[0]));
    let back = limiter.call(told[0], Micros::ZERO, 50);
    assert!(matches!(back[..], [(10, Outcome::Booked(_)), (40, Outcome::TooFar(away))] if away.is_spread));
}

#[test]
fn a_crowd_stays_spread_until_its_permits_come() {
    let hour = 3600 * SECOND;
    let mut limiter = Limiter::new(rule(500, hour, 1, SLIDING));
    limiter.call(START, Micros::ZERO, 500);
    limiter.refused_together(START, 100);
    let end = limiter.refused(START).advised;
    for minute in 1..50 {
        let away = limiter.refused(START + Micros(minute * 60 * SECOND));
        assert_eq!(away.advised + Micros(minute * 60 * SECOND), end, "after {minute} minutes");
    }
}

#[test]
fn a_crowd_vouches_for_callers_that_come_alone() {
    let mut limiter = Limiter::new(rule(10, 1_010_000, 1, SLIDING));
    limiter.call(START, Micros::ZERO, 10);
    limiter.refused_together(START, 100);
    let now = START + Micros(1_010_000);
    limiter.call(now, Micros::ZERO, 10);
    let told: Vec<_> = (0..12).map(|_| limiter.refused(now).advised).collect();
    assert_eq!(told[9], told[0] + Micros(9 * 101_000));
    assert_eq!(told[11], told[10], "as many as were booked, and no more");
}

#[test]
fn requests_of_no_new_caller_do_not_move_the_advice() {
    let mut limiter = Limiter::new(rule(10, 1_010_000, 1, SLIDING));
    limiter.call(START, Micros::ZERO, 10);
    let run = |count| Run { cost: 1, wait_max: Micros::ZERO, count };
    let call = Call {
        runs: vec![run(3), run(1), run(4)],
        replacing_runs: 1,
        prefetching_runs: 1,
        ..Call::default()
    };
    for (_, outcome) in limiter.make(START, call) {
        assert!(matches!(outcome, Outcome::TooFar(away) if !away.is_spread && away.advised == away.delay));
    }
    let next = limiter.refused(START);
    assert_eq!(next.advised, next.delay);
}

#[test]
fn callers_that_never_come_back_are_forgotten() {
    never_come_back(0);
}

#[test]
fn late_slots_do_not_pass_for_callers_that_come_back() {
    never_come_back(2);
}

/// Refuses three hundred callers that never come back, and then some of another caller, each slot of whom is so often too late.
fn never_come_back(late: u64) {
    let mut limiter = Limiter::new(rule(10, 1_010_000, 1, SLIDING));
    limiter.call(START, Micros::ZERO, 10);
    limiter.refused_together(START, 300);
    // Another caller uses half of the quota for a while and is refused now and then.
    let mut now = START;
    for second in 0..20 {
        now = START + Micros((2 + second) * SECOND);
        for _ in 0..5 {
            let mut outcome = limiter.call(now, Micros::ZERO, 1)[0].1;
            for _ in 0..late {
                let Outcome::Booked(slot) = outcome else { panic!("{outcome:?}") };
                now = now + Micros(20_000);
                outcome = limiter.exchange(now, slot);
            }
        }
    }
    limiter.call(now, Micros::ZERO, 20);
    let refused = limiter.refused(now + Micros::ONE);
    let beyond = refused.advised - refused.delay;
    assert!(beyond < Micros(3 * SECOND), "{beyond:?} after twenty seconds");
}

#[test]
fn callers_of_a_calendar_window_are_spread_by_milliseconds() {
    let mut limiter = Limiter::new(rule(3, 2_020_000, 1, fixed(1_500_000)));
    limiter.call(START, Micros::ZERO, 3);
    let (first, third) = (limiter.refused_together(START, 2), limiter.refused(START));
    assert_eq!((first.advised, third.advised), (first.delay, first.delay + Micros(20_000)));
}

#[test]
fn refusals_without_asking_have_instants_of_their_own() {
    let mut limiter = Limiter::new(rule(10, 1_010_000, 1, SLIDING));
    limiter.call(START, Micros::ZERO, 10);
    let runs = vec![Run { cost: 1, wait_max: Micros::ZERO, count: 2 }];
    let call = Call { runs, refusal_budget: 3, ..Call::default() };
    let outcomes = limiter.make(START, call);
    let [(2, Outcome::TooFar(first))] = outcomes[..] else { panic!("{outcomes:?}") };
    assert_eq!(limiter.refused(START).advised, first.advised + Micros(5 * 101_000));
}

#[test]
fn a_refusal_says_how_many_permits_are_left() {
    let mut limiter = Limiter::new(rule(10, 1_010_000, 1, SLIDING));
    limiter.call(START, Micros::ZERO, 3);
    let runs = vec![Run { cost: 8, wait_max: Micros::ZERO, count: 1 }];
    let outcomes = limiter.make(START, Call { runs, ..Call::default() });
    assert!(matches!(outcomes[..], [(1, Outcome::TooFar(away))] if away.available == 7), "{outcomes:?}");
}

#[tokio::test(start_paused = true)]
async fn a_queue_tells_one_caller_one_instant() {
    let (_limiters, limiter_set) = limiters(&limiter(3, Duration::from_secs(86_400), Duration::ZERO));
    for _ in 0..3 {
        granted(&limiter_set).await.commit();
    }
    let mut told = Vec::new();
    for pause in (0..20).map(|question| Duration::from_millis(question * 37)) {
        let Err(Refusal::RateLimited { retry_after, available: 0, .. }) = enter(&limiter_set).await else {
            panic!("a permit")
        };
        told.push(Instant::now() + Duration::from_micros(retry_after.0));
        sleep(pause).await;
    }
    assert!(told.iter().all(|at| *at <= told[0] + Duration::from_millis(1)), "{told:?}");
}
