//! Limits so large that the past is kept in cells.

use super::*;
use crate::limiter::arithmetic::algorithm::sliding_window::SlidingWindow;

/// A bucket of this size is kept in cells of 7 s. What was used in a cell went with the slots ahead in it, and the bucket was full again.
#[test]
fn used_permits_are_told_though_slots_ahead_in_their_cell_are_void() {
    let rule = |kind, cell| Rule { rate: 10_000, window: Micros(3600 * 1000 * MILLI), cell, kind };
    let rules = [
        rule(Kind::Bucket(Bucket { burst: 1000 }), Micros::ONE),
        rule(Kind::SlidingWindow(SlidingWindow), Micros(14_062 * MILLI)),
    ];
    for rule in rules {
        let a = LimiterRef { rules: [rule].into(), ..limiter_ref("a", 1) };
        let refs = std::slice::from_ref(&a);
        let ahead = |from: u64| (1..=5).map(move |step| (at(from + 400 * step), 1));
        let mut ledger = Ledger::default();
        let booked: Vec<_> = std::iter::once((at(0), 1000)).chain(ahead(0)).collect();
        book(&mut ledger, refs, at(0), &booked);
        // The first two have come; one that waited has left, and others have come.
        let gone = Call { give_back: vec![holding(at(1600), 1, 1)], ..Call::default() };
        ledger.record(refs, &gone, &Answer { now: at(1000), ..Answer::default() });
        book(&mut ledger, refs, at(1000), &ahead(1600).collect::<Vec<_>>());
        ledger.mark_forgotten(7, at(1100));
        let written: u64 = unreported(&mut ledger, &a, at(0)).iter().map(|(_, permits)| permits).sum();
        assert_eq!(written, 1002);
    }
}

/// Of two outages within a cell, the first one's grants are written back when one of its requests gives something back.
#[test]
fn what_was_written_back_is_not_taken_out_of_later_grants() {
    let rule = Rule {
        rate: 1000,
        window: Micros(60_000 * MILLI),
        cell: Micros(4000 * MILLI),
        kind: Kind::SlidingWindow(SlidingWindow),
    };
    let a = LimiterRef { rules: [rule].into(), ..limiter_ref("a", 1) };
    let refs = std::slice::from_ref(&a);
    for is_confirmed in [true, false] {
        let mut ledger = Ledger::default();
        ledger.record_offline(at(0), &[part_of(&a)], &[(at(0), 6)]);
        assert_eq!(unreported(&mut ledger, &a, at(100)), [(at(0), 6)]);
        if is_confirmed {
            confirm(&mut ledger, &a, at(100), at(100));
        }
        ledger.record_offline(at(1000), &[part_of(&a)], &[(at(1000), 7)]);
        ledger.remove_offline(refs, &[holding(at(0), 1, 6)]);
        if !is_confirmed {
            confirm(&mut ledger, &a, at(1100), at(1100));
        }
        ledger.remove_offline(refs, &[holding(at(1000), 1, 2)]);
        assert_eq!(unreported(&mut ledger, &a, at(1200)), [(at(1000), 5)]);
    }
    // Nor out of those from behind a reset.
    let mut ledger = Ledger::default();
    ledger.record_offline(at(0), &[part_of(&a)], &[(at(0), 6)]);
    ledger.reset(&Reset { name: a.name.clone(), partition: None, at: at(100) }, at(100));
    ledger.record_offline(at(1000), &[part_of(&a)], &[(at(1000), 7)]);
    ledger.remove_offline(refs, &[holding(at(0), 1, 6)]);
    assert_eq!(unreported(&mut ledger, &a, at(1200)), [(at(1000), 7)]);
}

#[test]
fn past_slots_are_kept_in_cells_and_each_one_ahead_by_itself() {
    let rule = Rule {
        rate: 1000,
        window: Micros(10_000 * MILLI),
        cell: Micros(100 * MILLI),
        kind: Kind::SlidingWindow(SlidingWindow),
    };
    let a = LimiterRef { rules: [rule].into(), ..limiter_ref("a", 1) };
    let refs = std::slice::from_ref(&a);
    let mut ledger = Ledger::default();
    let booked: Vec<_> = (0..200).map(|step| (at(step), 1)).collect();
    book(&mut ledger, refs, at(0), &booked);
    let of = |ledger: &Ledger| known(ledger, at(0))[0].1.clone();
    assert_eq!(of(&ledger).len(), 200);
    book(&mut ledger, refs, at(149), &[]);
    book(&mut ledger, refs, at(149), &[(at(149), 1)]);
    let kept = of(&ledger);
    assert_eq!((kept.len(), &kept[..3]), (52, &[(at(99), 100), (at(149), 51), (at(150), 1)][..]));
    let back = Call { give_back: vec![holding(at(120), 1, 1), holding(at(170), 1, 1)], ..Call::default() };
    ledger.record(refs, &back, &Answer { now: at(150), ..Answer::default() });
    assert_eq!((of(&ledger)[1], of(&ledger).len()), ((at(150), 51), 50));
}

/// Permits from before a reset come back behind it, and what was booked since stands in the cell where they were.
#[test]
fn what_a_reset_has_forgotten_is_not_given_back() {
    let cell = Micros(4_000 * MILLI);
    let kind = Kind::SlidingWindow(SlidingWindow);
    let rule = Rule { rate: 1000, window: Micros(10_000 * MILLI), cell, kind };
    let a = LimiterRef { rules: [rule].into(), ..limiter_ref("a", 1) };
    let refs = std::slice::from_ref(&a);
    let mut ledger = Ledger::default();
    book(&mut ledger, refs, at(0), &[(at(0), 6)]);
    ledger.reset(&Reset { name: a.name.clone(), partition: None, at: at(1) }, at(1));
    book(&mut ledger, refs, at(2), &[(at(2), 7)]);
    let back = Call { give_back: vec![holding(at(0), 6, 1), holding(at(2), 2, 1)], ..Call::default() };
    ledger.record(refs, &back, &Answer { now: at(3), ..Answer::default() });
    assert_eq!(ledger.granted_since(&a, at(0)), 5);
}
