//! The warm-up beside Guava's published formula, computed here on its own with floating point numbers.

use std::sync::Arc;

use proptest::prelude::*;

use crate::clock::Micros;
use crate::limiter::arithmetic::algorithm::kind::Kind;
use crate::limiter::arithmetic::algorithm::warm_up::WarmUp;
use crate::limiter::arithmetic::queue_order::QueueOrder;
use crate::limiter::arithmetic::reserve::reserve;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::arithmetic::state::LimiterState;
use crate::limiter::model::call::{Call, Holding, Outcome, Run};
use crate::limiter::model::pause::PauseRequest;
use crate::limiter::tests::oracle::{LEASE, START, rule};

const SECOND: u64 = 1_000_000;
const FOREVER: Micros = Micros(u64::MAX / 2);

/// Runs of `RateLimiter` of Guava 33.4.8 with a warm-up, on a clock of its own. Each line has the rate, the warm-up in microseconds and
/// `cold`, then steps: the idle time before a request, its permits, and the time that Guava let it wait, in microseconds. After
/// a step that ends in `-` the next request does not wait for this one.
const GUAVA_RUNS: &str = include_str!("guava_runs.txt");

fn warm_up(rate: u64, window: u64, cell: u64, warm_up: u64, cold: u64) -> Rule {
    rule(rate, window, cell, Kind::WarmUp(WarmUp { warm_up: Micros(warm_up), cold }))
}

/// Guava's `SmoothWarmingUp`: one permit every `interval`, in microseconds.
struct Guava {
    interval: f64,
    warm_up: f64,
    cold: f64,
    stored: f64,
    next: f64,
}

impl Guava {
    fn new(interval: f64, warm_up: f64, cold: f64) -> Guava {
        let mut guava = Guava { interval, warm_up, cold, stored: 0.0, next: 0.0 };
        guava.stored = guava.stored_max();
        guava
    }

    fn threshold(&self) -> f64 {
        0.5 * self.warm_up / self.interval
    }

    fn stored_max(&self) -> f64 {
        self.threshold() + 2.0 * self.warm_up / (self.interval + self.cold * self.interval)
    }

    /// Returns the price of a permit where so many beyond the threshold are stored.
    fn price(&self, above: f64) -> f64 {
        let slope = (self.cold - 1.0) * self.interval / (self.stored_max() - self.threshold());
        self.interval + above * slope
    }

    /// Takes permits at an instant. Returns when they go.
    fn acquire(&mut self, now: f64, permits: f64) -> f64 {
        if now > self.next {
            let refilled = (now - self.next) / (self.warm_up / self.stored_max());
            self.stored = self.stored_max().min(self.stored + refilled);
            self.next = now;
        }
        let goes = self.next;
        let spent = permits.min(self.stored);
        let above = self.stored - self.threshold();
        let sloped = above.max(0.0).min(spent);
        if sloped > 0.0 {
            self.next += sloped * (self.price(above) + self.price(above - sloped)) / 2.0;
        }
        self.next += self.interval * (permits - sloped);
        self.stored -= spent;
        goes
    }
}

/// A limiter with one rule and one queue.
struct Model {
    now: Micros,
    rules: Arc<[Rule]>,
    state: LimiterState,
    order: QueueOrder,
}

impl Model {
    fn new(rule: Rule) -> Model {
        Model {
            now: START,
            rules: [rule].into(),
            state: LimiterState::default(),
            order: QueueOrder::default(),
        }
    }

    fn call(&mut self, call: Call) -> Vec<(u64, Outcome)> {
        let generations = vec![self.state.generation().number];
        let call = Call { generations, queue_slots_left: 1_000_000, ..call };
        reserve(self.now, LEASE, &mut [(&mut self.state, self.rules.clone())], &mut self.order, &call)
            .outcomes
    }

    /// Books requests of a cost. Returns their slots.
    fn book(&mut self, cost: u64, count: u64) -> Vec<Micros> {
        let outcomes =
            self.call(Call { runs: vec![Run { cost, wait_max: FOREVER, count }], ..Call::default() });
        let slots = outcomes.into_iter().flat_map(|(count, outcome)| {
            let Outcome::Booked(slot) = outcome else { panic!("{outcome:?}") };
            std::iter::repeat_n(slot, usize::try_from(count).unwrap())
        });
        slots.collect()
    }

    /// Returns how long the second of two requests waits for the first one.
    fn price(&mut self) -> Micros {
        let slots = self.book(1, 2);
        slots[1] - slots[0]
    }

    fn give_back(&mut self, slot: Micros) {
        self.call(Call { give_back: vec![Holding { slot, cost: 1, count: 1 }], ..Call::default() });
    }
}

#[allow(clippy::cast_precision_loss)]
fn float(number: u64) -> f64 {
    number as f64
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn slots_are_guavas(
        rate in 1..=512_u64,
        window in prop_oneof![SECOND..2 * SECOND, SECOND..60 * SECOND],
        length in prop_oneof![1_000..SECOND, SECOND..100 * SECOND],
        cold in prop_oneof![Just(3), 1..=100_u64],
        steps in prop::collection::vec((0..4_u64, 0.0..2.0_f64, 1..6_u64, 1..20_u64), 1..100),
    ) {
        let mut model = Model::new(warm_up(rate, window, 1, length, cold));
        let mut guava = Guava::new(float(window) / float(rate), float(length), float(cold));
        for (idles, part, cost, count) in steps {
            if idles == 0 {
                // From the last slot on, as long as a part of the warm-up.
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                let idle = (part * float(length)) as u64;
                model.now = model.now.max(model.state.timeline().last().unwrap_or_default()) + Micros(idle);
            }
            let now = float((model.now - START).0);
            for slot in model.book(cost, count) {
                let slot = float((slot - START).0);
                let expected = guava.acquire(now, float(cost));
                let error = (slot - expected).abs();
                prop_assert!(error <= slot / 1000.0 + 2.0, "{slot} in place of {expected}");
            }
        }
    }
}

#[test]
fn slots_are_those_of_recorded_runs_of_guava() {
    for run in GUAVA_RUNS.lines() {
        let (numbers, steps): (Vec<&str>, Vec<&str>) = run.split(' ').partition(|word| !word.contains(':'));
        let numbers: Vec<u64> = numbers.iter().map(|number| number.parse().unwrap()).collect();
        let [rate, length, cold] = numbers[..] else { panic!("{run}") };
        let mut model = Model::new(warm_up(rate, SECOND, 1, length, cold));
        for step in steps {
            let parts = step.trim_end_matches('-').split(':');
            let parts: Vec<u64> = parts.map(|part| part.parse().unwrap()).collect();
            let [idle, permits, wait] = parts[..] else { panic!("{run}: {step}") };
            model.now = model.now + Micros(idle);
            let waits = (model.book(permits, 1)[0] - model.now).0;
            // Guava cuts each price to whole microseconds.
            assert!(waits.abs_diff(wait) <= wait / 1000 + 3, "{waits} us in {step} of {run}");
            if !step.ends_with('-') {
                model.now = model.now + Micros(wait);
            }
        }
    }
}

#[test]
fn a_cold_limit_takes_its_warm_up_to_reach_its_rate() {
    let mut model = Model::new(warm_up(100, SECOND, 1, 10 * SECOND, 3));
    let slots = model.book(1, 1500);
    let granted = |seconds| slots.iter().filter(|slot| **slot <= START + Micros(seconds * SECOND)).count();
    // As many as Guava grants.
    assert_eq!([granted(5), granted(10), granted(15)], [191, 501, 1001]);
}

#[test]
fn permits_given_back_leave_no_trace() {
    let mut model = Model::new(warm_up(100, SECOND, 1, 10 * SECOND, 3));
    let slots = model.book(1, 10);
    for slot in &slots {
        model.give_back(*slot);
    }
    assert_eq!(model.book(1, 10), slots, "as warm as before, and as early");
    // One in the midst of others: its place is free, and those behind it stay where they are.
    model.give_back(slots[4]);
    let again = model.book(1, 1)[0];
    assert!(again >= slots[4]);
}

#[test]
fn a_place_before_others_is_free_again_when_it_is_given_back() {
    let mut model = Model::new(warm_up(20, SECOND, 1, 5 * SECOND, 3));
    let slots = model.book(1, 200);
    // The later ones stay: nearer together than a rule wants that has cooled until then.
    let (given_back, kept) = slots.split_at(180);
    for slot in given_back {
        model.give_back(*slot);
    }
    let again = model.book(1, 100);
    assert!(again.is_sorted() && again.iter().all(|slot| *slot < kept[0]), "{again:?} before {}", kept[0].0);
    let slots: Vec<Micros> = again.iter().chain(kept).copied().collect();
    assert!(slots.windows(2).all(|two| two[1] - two[0] >= Micros(SECOND / 20)), "never faster than the rate");
}

#[test]
fn a_pause_cools_like_any_idle_time() {
    for (pause, is_cold) in [(20, true), (1, false)] {
        let mut model = Model::new(warm_up(100, SECOND, 1, 10 * SECOND, 3));
        let cold = model.price();
        model.now = model.book(1, 1500)[1499];
        assert_eq!(model.price(), Micros(10_000), "warm");
        model.now = model.now + Micros(SECOND);
        let request = PauseRequest {
            wait: Some(Micros(pause * SECOND)),
            fallback: Micros(SECOND),
            max: Micros(60 * SECOND),
            sent_ago: Micros::ZERO,
            jitter: 0,
            status: 429,
            made_ago: Micros::ZERO,
        };
        model.state.ask_pause(model.now, LEASE, &request, 1);
        model.now = model.state.paused_until(model.now).max(model.now) + Micros(5 * SECOND);
        model.order = QueueOrder::default();
        let price = model.price();
        assert_eq!(price.0.abs_diff(cold.0) < 2, is_cold, "{price:?}, cold {cold:?}");
    }
}

#[test]
fn a_share_has_a_part_of_the_rate_and_the_whole_warm_up() {
    let rule = warm_up(100, SECOND, 1, 10 * SECOND, 3);
    assert_eq!(
        rule.share(crate::limiter::arithmetic::share::Share { parts: 4, place: None, clock_ahead: 0 }),
        warm_up(25, SECOND, 1, 10 * SECOND, 3)
    );
}

#[test]
fn a_state_is_kept_until_it_is_cold() {
    let rule = warm_up(100, SECOND, 1, 10 * SECOND, 3);
    let mut model = Model::new(rule.clone());
    model.now = model.book(1, 1500)[1499];
    let expires = model.state.expires();
    // Half of what a cold rule stores is left at its rate, or nothing.
    assert!(
        (model.now + Micros(10 * SECOND)..model.now + Micros(11 * SECOND)).contains(&expires),
        "{expires:?}"
    );
    let prices = [Micros(1), Micros::ZERO].map(|before| {
        let mut state = model.state.clone();
        std::mem::swap(&mut state, &mut model.state);
        (model.now, model.order) = (expires - before, QueueOrder::default());
        let price = model.price();
        model.state = state;
        price
    });
    let cold = Model::new(rule).price();
    assert!(prices.iter().all(|price| price.0.abs_diff(cold.0) < 2), "{prices:?} in place of {cold:?}");
}

#[test]
fn a_changed_limit_begins_cold() {
    let mut model = Model::new(warm_up(100, SECOND, 1, 10 * SECOND, 3));
    model.now = model.book(1, 1500)[1499] + Micros(SECOND);
    // A call takes the bookings into the level.
    model.call(Call::default());
    model.rules = [warm_up(50, SECOND, 1, 10 * SECOND, 3)].into();
    let price = model.price();
    assert!(price > Micros(59_000), "{price:?} between the first two, 60 ms is cold");
}
