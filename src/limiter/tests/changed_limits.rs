//! Limits that change: what flowed into a bucket before did so at the pace of the limits before.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Micros;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::arithmetic::state::LimiterState;
use crate::limiter::model::{Algorithm, Limit, Permits};
use crate::limiter::tests::oracle::{LEASE, START};

fn bucket(rate: u64) -> Arc<[Rule]> {
    let limit = Limit {
        rate: Permits::new(rate).unwrap(),
        per: Duration::from_secs(8),
        algorithm: Algorithm::TokenBucket { burst: Permits::new(20).unwrap() },
        label: "limit".into(),
    };
    [Rule::new(&limit, Micros::ZERO, START).0].into()
}

/// Takes all that there is at an instant.
fn drain(state: &mut LimiterState, now: Micros) -> u64 {
    let mut taken = 0;
    while state.search(now).earliest(1).at == now {
        state.charge(now, 1);
        taken += 1;
    }
    taken
}

#[test]
fn a_bucket_in_use_that_is_filled_faster_holds_no_more_at_once() {
    // A window is a few microseconds longer than the limit says.
    let (second, mut state) = (Micros(1_000_010), LimiterState::default());
    state.open(START, &bucket(8), LEASE, 1);
    assert_eq!(drain(&mut state, START), 20);
    // One permit in a second, each taken.
    for after in 1..=20 {
        let now = START + Micros(after * second.0);
        state.open(now, &bucket(8), LEASE, 1);
        assert_eq!(drain(&mut state, now), 1);
    }
    let now = START + Micros(20 * second.0);
    state.open(now, &bucket(80), LEASE, 1);
    assert_eq!(drain(&mut state, now), 0, "nothing of the time before");
    let later = now + second;
    state.open(later, &bucket(80), LEASE, 1);
    assert_eq!(drain(&mut state, later), 10);
}
