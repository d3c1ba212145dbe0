//! The order of requests that wait on two limiters, while a pause moves their bookings.

use crate::clock::Micros;
use crate::limiter::arithmetic::algorithm::kind::Kind;
use crate::limiter::arithmetic::algorithm::sliding_window::SlidingWindow;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::arithmetic::queue_order::QueueOrder;
use crate::limiter::arithmetic::reserve::{report_upstream, reserve};
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::arithmetic::state::LimiterState;
use crate::limiter::model::{
    Answer, Call, Holding, LimiterName, NO_GENERATION, Outcome, Run, UpstreamReport,
};
use crate::limiter::tests::pause_of;

const SECOND: Micros = Micros::from_millis(1000);
const START: Micros = Micros::from_millis(1_000_000);
const LEASE: Micros = Micros::from_millis(500);
/// How many requests come to each replica.
const ROUNDS: u64 = 30;
const RATE: u64 = 20;

/// Two limiters of one rate, and the queue of those who need both.
struct Two {
    now: Micros,
    limiter_ref: LimiterRef,
    states: [LimiterState; 2],
    order: QueueOrder,
}

impl Two {
    fn new() -> Two {
        let rule =
            Rule { rate: RATE, window: SECOND, cell: Micros::ONE, kind: Kind::SlidingWindow(SlidingWindow) };
        let limiter_ref = LimiterRef {
            name: LimiterName::parse("api").unwrap(),
            partition: None,
            valid_until: None,
            group: "api".into(),
            rules: [rule].into(),
        };
        Two { now: START, limiter_ref, states: Default::default(), order: QueueOrder::default() }
    }

    fn reserve(&mut self, replica: u64, generations: [u64; 2], call: Call) -> Answer {
        let rules = self.limiter_ref.rules.clone();
        let mut states: Vec<_> = self.states.iter_mut().map(|state| (state, rules.clone())).collect();
        let call = Call { replica, generations: generations.to_vec(), ..call };
        reserve(self.now, LEASE, &mut states, &mut self.order, &call)
    }

    fn pause(&mut self) {
        let report = UpstreamReport {
            replica: 1,
            pause: Some(pause_of(Micros(3 * SECOND.0))),
            ..UpstreamReport::default()
        };
        for state in &mut self.states {
            state.open(self.now, &self.limiter_ref.rules, LEASE, 1);
            report_upstream(state, self.now, LEASE, &self.limiter_ref, &report);
            // The store carries the reports out one after the other.
            self.now.0 += 30;
        }
    }
}

/// Returns an instant for each of `count` permits.
fn each<T: Copy>(at: T, count: u64) -> impl Iterator<Item = T> {
    (0..count).map(move |_| at)
}

/// Returns the instants of an answer, one for each permit.
fn instants(answer: &Answer) -> Vec<Micros> {
    let places = answer.rescheduled.iter().flat_map(|(count, at)| each(at.expect("a place"), *count));
    let booked = answer.outcomes.iter().flat_map(|(count, outcome)| {
        let Outcome::Booked(at) = outcome else { panic!("{outcome:?}") };
        each(*at, *count)
    });
    places.chain(booked).collect()
}

/// Permits come one by one behind a pause. The first replica to claim its places must not push those of the others back.
#[test]
fn replicas_claim_their_places_behind_the_pause_of_two_limiters_in_order() {
    let mut two = Two::new();
    let wait_max = Micros(60 * SECOND.0);
    let mut held: [Vec<Holding>; 3] = Default::default();
    for _ in 0..ROUNDS {
        for (replica, held) in (1..).zip(&mut held) {
            let run = Run { cost: 1, wait_max, count: 1 };
            let call = Call { runs: vec![run], queue_slots_left: 1, ..Call::default() };
            let slot = instants(&two.reserve(replica, [0; 2], call))[0];
            match held.last_mut() {
                Some(last) if last.slot == slot => last.count += 1,
                _ => held.push(Holding { slot, cost: 1, count: 1 }),
            }
        }
    }
    two.now.0 += 10_000;
    two.pause();
    let void_from = two.states.each_ref().map(|state| state.generation().void_from);
    let void_from = void_from[0].min(void_from[1]);
    held.iter_mut().for_each(|held| held.retain(|holding| holding.slot >= void_from));
    for (replica, held) in (1..).zip(&held) {
        let release = Call { give_back: held.clone(), ..Call::default() };
        two.reserve(replica, [0, NO_GENERATION], release);
    }
    two.now.0 += 200_000;
    let mut places: Vec<(Micros, Micros)> = Vec::new();
    for (replica, held) in [(3, &held[2]), (1, &held[0]), (2, &held[1])] {
        let reschedule = Call { reschedule: held.clone(), reschedule_wait: wait_max, ..Call::default() };
        let answer = two.reserve(replica, [NO_GENERATION, 0], reschedule);
        let slots = held.iter().flat_map(|holding| each(holding.slot, holding.count));
        places.extend(slots.zip(instants(&answer)));
    }
    places.sort_unstable();
    let moved = 3 * ROUNDS - RATE;
    assert_eq!(places.len() as u64, moved, "those of the first window have been sent");
    assert!(places.windows(2).all(|pair| pair[0].1 < pair[1].1), "{places:?}");
    let last = places.last().map(|(_, place)| place.0);
    assert_eq!(last, Some(places[0].1.0 + (moved - 1) * SECOND.0 / RATE), "no place is left out");
}
