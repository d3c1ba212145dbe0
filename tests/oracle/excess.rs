use super::*;

/// Lets the fleet send some permits in each second, and tells of an excess behind each. Returns what is found.
fn run(limit: LimitModel, sent: u64, excess: u64, fault_every: Option<u64>) -> Vec<What> {
    let mut court = Court::new(&[limiter(&[limit])]);
    for second in 1..=60 {
        let at = second * S;
        (0..sent).for_each(|number| court.pass(at + number * S / 10, 1));
        let more = vec![(STATE, excess)];
        court.see(at + 950 * MS, &Event::Exceeded { replica: 0, more, sent_at: at });
        if fault_every.is_some_and(|every| second.is_multiple_of(every)) {
            court.fault(at + 960 * MS, at + 970 * MS, QUIET);
        }
    }
    let mut whats = court.whats();
    whats.dedup();
    whats
}

#[test]
fn an_excess_that_is_not_left_out_is_found() {
    for algorithm in [
        Algorithm::SlidingWindow,
        Algorithm::FixedWindow,
        Algorithm::TokenBucket { burst: 10 },
        Algorithm::LeakyBucket,
    ] {
        let limit = limit(10, S, algorithm);
        assert_eq!(run(limit.clone(), 6, 4, None), [], "{algorithm:?}");
        assert_eq!(run(limit.clone(), 10, 4, None), [What::Unpaid], "{algorithm:?}");
        assert_eq!(run(limit, 10, 0, None), [], "{algorithm:?}");
    }
}

/// Permits that are booked ahead may be forgotten in a fault.
#[test]
fn an_excess_is_judged_in_calm_time() {
    assert_eq!(run(sliding(10, S), 10, 4, Some(10)), []);
}
