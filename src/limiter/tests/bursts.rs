//! Books as fast as a limit allows, on a clock of its own: a bucket gives its burst at once, and no more.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Micros;
use crate::limiter::arithmetic::queue_order::QueueOrder;
use crate::limiter::arithmetic::reserve::reserve;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::arithmetic::state::LimiterState;
use crate::limiter::model::{Algorithm, Call, Limit, Limiter, Outcome, Permits, Run};
use crate::limiter::tests::oracle::{LEASE, SLIDING, START, rule};

/// The bookings that are compared with each later one.
const COMPARED: usize = 200;

/// Checks how many permits a bucket gives at once, and how many bookings are kept.
fn judge(rate: u64, per: Duration, burst: u64) {
    let algorithm = match burst {
        1 => Algorithm::LeakyBucket,
        _ => Algorithm::TokenBucket { burst: Permits::new(burst).unwrap() },
    };
    let limits = vec![Limit { rate: Permits::new(rate).unwrap(), per, algorithm, label: "limit".into() }];
    let guard = Micros::from(Limiter::default_guard(&limits));
    let (limit, per) = (&limits[0], Micros::from(per));
    let rules: Arc<[Rule]> = [Rule::new(limit, guard, START).0].into();
    let (mut state, mut order) = (LimiterState::default(), QueueOrder::default());
    let mut booked: VecDeque<(Micros, u64)> = VecDeque::new();
    for batch in 0..3000_u64 {
        let now = START + Micros(batch * per.0 / 2000);
        let runs = vec![Run { cost: 1, wait_max: Micros(per.0 / 1000), count: rate / 1500 }];
        let call = Call { generations: vec![0], runs, queue_slots_left: u64::MAX / 2, ..Call::default() };
        let answer = reserve(now, LEASE, &mut [(&mut state, rules.clone())], &mut order, &call);
        for (count, outcome) in answer.outcomes {
            let Outcome::Booked(slot) = outcome else { break };
            booked.push_back((slot, count));
            // Every interval that ends here holds the burst, and what flows in meanwhile and within a guard.
            let mut held = 0;
            for (from, count) in booked.iter().rev() {
                held += u128::from(*count) * u128::from(per.0);
                let flows = u128::from(rate) * u128::from((slot - *from + guard).0);
                let holds = u128::from(burst) * u128::from(per.0) + flows;
                assert!(held <= holds, "{} of {limit:?} from {from:?} to {slot:?}", held / u128::from(per.0));
            }
            booked.drain(..booked.len().saturating_sub(COMPARED));
        }
        let past = state.timeline().entries().partition_point(|entry| entry.at <= now);
        assert!(past <= 512 + 512 + 2, "{past} past bookings of {limit:?} are kept");
    }
}

#[test]
fn a_burst_is_a_burst_at_any_rate() {
    let [second, minute, day] = [1, 60, 86_400].map(Duration::from_secs);
    for (rate, per, burst) in [
        (100_000, day, 1),
        (1_000_000, day, 10),
        (6000, minute, 1),
        (60_000, minute, 1),
        (60_000, minute, 50),
        (1_200_000, minute, 1),
        (20_000, second, 1),
    ] {
        judge(rate, per, burst);
    }
}

/// A request whose slot came too late is booked as far ahead as its answer takes. Where there is no queue, nobody is refused for that.
#[test]
fn a_request_booked_ahead_only_for_its_answer_delays_no_other() {
    let second = Micros(1_000_000);
    let rules: Arc<[Rule]> = [rule(10, second.0, 1, SLIDING)].into();
    let (mut state, mut order) = (LimiterState::default(), QueueOrder::default());
    let mut ask = |lead: u64, count: u64, wait_max: u64| {
        let runs = vec![Run { cost: 1, wait_max: Micros(wait_max), count }];
        let lead = Micros(lead);
        let call = Call { generations: vec![0], runs, lead, queue_slots_left: 100, ..Call::default() };
        let outcomes = reserve(START, LEASE, &mut [(&mut state, rules.clone())], &mut order, &call).outcomes;
        let [(_, Outcome::Booked(slot))] = outcomes[..] else { panic!("{outcomes:?}") };
        slot - START
    };
    let lead = Micros(20_000);
    assert_eq!(ask(lead.0, 1, second.0), lead);
    assert_eq!(ask(0, 9, 0), Micros::ZERO);
    // A request that waits for room keeps its place.
    let last = ask(lead.0, 1, 2 * second.0);
    assert!(last > lead);
    assert!(ask(0, 1, 2 * second.0) >= last);
}
