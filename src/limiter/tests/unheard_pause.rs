//! A pause that one replica does not hear of: it uses its slots for a lease. What others get must leave room for these.

use crate::clock::Micros;
use crate::limiter::arithmetic::algorithm::bucket::Bucket;
use crate::limiter::arithmetic::algorithm::kind::Kind;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::arithmetic::queue_order::QueueOrder;
use crate::limiter::arithmetic::reserve::{report_upstream, reserve};
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::arithmetic::state::LimiterState;
use crate::limiter::model::{Answer, Call, Holding, LimiterName, Outcome, Run, UpstreamReport};
use crate::limiter::tests::pause_of;

const SECOND: Micros = Micros::from_millis(1000);
const START: Micros = Micros::from_millis(1_000_000);
const LEASE: Micros = Micros::from_millis(500);
const RATE: u64 = 100;
/// The distance of two permits, less a cell.
const SPACING: Micros = Micros(SECOND.0 / RATE - 1);

/// A limiter that spaces permits, and its queue.
struct Spaced {
    limiter_ref: LimiterRef,
    state: LimiterState,
    order: QueueOrder,
}

impl Spaced {
    fn new() -> Spaced {
        let kind = Kind::Bucket(Bucket { burst: 1 });
        let rule = Rule { rate: RATE, window: SECOND, cell: Micros::ONE, kind };
        let limiter_ref = LimiterRef {
            name: LimiterName::parse("api").unwrap(),
            partition: None,
            valid_until: None,
            group: "api".into(),
            rules: [rule].into(),
        };
        Spaced { limiter_ref, state: LimiterState::default(), order: QueueOrder::default() }
    }

    fn call(&mut self, now: Micros, call: &Call) -> Answer {
        let rules = self.limiter_ref.rules.clone();
        reserve(now, LEASE, &mut [(&mut self.state, rules)], &mut self.order, call)
    }

    /// Books a permit for a new request of a replica, and returns its slot.
    fn book(&mut self, now: Micros, replica: u64) -> Micros {
        let run = Run { cost: 1, wait_max: SECOND + SECOND, count: 1 };
        let generations = vec![self.state.generation().number];
        let call = Call { replica, generations, runs: vec![run], queue_slots_left: 1, ..Call::default() };
        match self.call(now, &call).outcomes[..] {
            [(1, Outcome::Booked(at))] => at,
            ref other => panic!("{other:?}"),
        }
    }

    /// Takes the new places of void slots, which a replica has from before any change.
    fn claim(&mut self, now: Micros, replica: u64, slots: &[Micros]) -> Vec<Micros> {
        let reschedule = slots.iter().map(|slot| Holding { slot: *slot, cost: 1, count: 1 }).collect();
        let call = Call {
            replica,
            generations: vec![0],
            reschedule,
            reschedule_wait: Micros(60 * SECOND.0),
            ..Call::default()
        };
        let answer = self.call(now, &call);
        let places = answer.rescheduled.iter().flat_map(|(count, place)| (0..*count).map(|_| place.unwrap()));
        places.collect()
    }

    fn pause(&mut self, now: Micros, wait: Micros) {
        let report = UpstreamReport { replica: 1, pause: Some(pause_of(wait)), ..UpstreamReport::default() };
        self.state.open(now, &self.limiter_ref.rules, LEASE, 1);
        report_upstream(&mut self.state, now, LEASE, &self.limiter_ref, &report);
    }

    fn resume(&mut self, now: Micros) {
        self.state.open(now, &self.limiter_ref.rules, LEASE, 1);
        self.state.pause_by_hand(now, LEASE, now, Micros::ZERO, 1);
    }
}

/// Lets two replicas hold every other slot, pauses the limiter `wait` long, and lifts the pause after `lifted`, if at all. Only the
/// first replica hears of it: it takes the new places of its slots once the limiter is open. Returns the slots that are used: from the
/// pause on, of the other replica those of a lease.
fn used(wait: Micros, lifted: Option<Micros>) -> Vec<Micros> {
    let mut spaced = Spaced::new();
    let paused_at = START + Micros::from_millis(105);
    let (mut heard, mut unheard) = (Vec::new(), Vec::new());
    for _ in 0..RATE / 2 {
        heard.push(spaced.book(START, 1));
        unheard.push(spaced.book(START, 2));
    }
    heard.retain(|slot| *slot > paused_at);
    unheard.retain(|slot| *slot > paused_at && *slot < paused_at + LEASE);
    assert!(!heard.is_empty() && !unheard.is_empty());
    spaced.pause(paused_at, wait);
    let open_from = paused_at + lifted.unwrap_or(wait);
    if let Some(lifted) = lifted {
        spaced.resume(paused_at + lifted);
    }
    let mut used = spaced.claim(open_from, 1, &heard);
    assert_eq!(used.len(), heard.len());
    used.extend(unheard);
    used.extend((0..50).map(|step| spaced.book(open_from + Micros(step * SECOND.0 / 50), 1)));
    used.sort_unstable();
    used
}

fn assert_spaced(used: &[Micros]) {
    let close = used.windows(2).find(|pair| pair[1] - pair[0] < SPACING);
    assert_eq!(close, None, "of {used:?}");
}

#[test]
fn slots_behind_a_short_pause_leave_room_for_those_of_a_replica_that_has_not_heard() {
    for wait in [1, 100, 300, 400] {
        assert_spaced(&used(Micros::from_millis(wait), None));
    }
}

#[test]
fn slots_behind_a_pause_that_is_lifted_at_once_do_so_too() {
    for lifted in [1, 100, 400] {
        assert_spaced(&used(Micros(30 * SECOND.0), Some(Micros::from_millis(lifted))));
    }
}
