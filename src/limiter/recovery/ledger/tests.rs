//! The ledger by itself: what it says that the store knows, and what it has to write back.

mod cells;
mod resets;

use super::*;
use crate::limiter::arithmetic::algorithm::bucket::Bucket;
use crate::limiter::arithmetic::algorithm::kind::Kind;
use crate::limiter::arithmetic::share::Share;
use crate::limiter::model::{
    CLASSES_MAX, Dealt, Generation, LineAnswer, LineCall, Outcome, RetryDelay, Run, Unused,
};
use crate::limiter::tests;

const MILLI: u64 = 1000;

/// An instant of the store's clock.
fn at(millis: u64) -> Micros {
    Micros((1_000_000 + millis) * MILLI)
}

/// Returns a limiter of whose grants each matters for so many seconds.
fn limiter_ref(name: &str, seconds: u64) -> LimiterRef {
    let window = Micros(seconds * 1000 * MILLI);
    let rule = Rule { rate: 10, window, cell: Micros::ONE, kind: Kind::Bucket(Bucket { burst: 1 }) };
    let name = LimiterName::parse(name).unwrap();
    LimiterRef { name, partition: None, group: "".into(), rules: [rule].into(), valid_until: None }
}

fn holding(slot: Micros, cost: u64, count: u64) -> Holding {
    Holding { slot, cost, count }
}

/// Records a call that books each of these, at an instant, for one request.
fn book(ledger: &mut Ledger, refs: &[LimiterRef], now: Micros, booked: &[(Micros, u64)]) {
    let runs = booked.iter().map(|(_, cost)| Run { cost: *cost, wait_max: Micros::ZERO, count: 1 });
    let call = Call { runs: runs.collect(), ..Call::default() };
    let outcomes = booked.iter().map(|(at, _)| (1, Outcome::Booked(*at))).collect();
    ledger.record(refs, &call, &Answer { now, outcomes, ..Answer::default() });
}

/// Returns what the ledger says that the store knows: of each limiter the instants and the permits.
fn known(ledger: &Ledger, now: Micros) -> Vec<(String, Vec<(Micros, u64)>)> {
    let text = ledger.copy(now, usize::MAX).text;
    let mut known: Vec<_> = text.split('\n').skip(1).map(line_of).collect();
    known.sort();
    known
}

fn line_of(line: &str) -> (String, Vec<(Micros, u64)>) {
    let mut parts = line.split(' ');
    let name = parts.next().unwrap_or_default().to_owned();
    let mut instant = 0;
    let grants = parts.map(|part| {
        let (after, permits) = part.split_once(':').unwrap();
        instant += after.parse::<u64>().unwrap();
        (Micros(instant), permits.parse().unwrap())
    });
    (name, grants.collect())
}

/// Returns what the ledger has to write back of a limiter, at an instant of this process's clock.
fn unreported(ledger: &mut Ledger, of: &LimiterRef, now: Micros) -> Vec<(Micros, u64)> {
    let part = ledger.next_unreported(of, now);
    let entries = match part {
        Some(Unreported::Forgotten { entries, .. }) => entries,
        Some(Unreported::Offline(part)) => part.entries,
        None => Vec::new(),
    };
    entries.iter().map(|entry| (entry.at, entry.permits)).collect()
}

fn confirm(ledger: &mut Ledger, of: &LimiterRef, store_now: Micros, now: Micros) {
    let part = ledger.next_unreported(of, now).unwrap();
    ledger.confirm_report(of, &part, store_now, now);
}

fn part_of(whole: &LimiterRef) -> OwnPart {
    let share = whole.share(Share { parts: 1, place: Some(0), clock_ahead: 0 }).unwrap();
    OwnPart { whole: whole.clone(), share, lacking: (at(0), vec![0]) }
}

#[test]
fn bookings_of_a_call_are_known_until_they_matter_no_more() {
    let (mut ledger, a, b) = (Ledger::default(), limiter_ref("a", 2), limiter_ref("b", 60));
    let refs = [a, b.clone()];
    book(&mut ledger, &refs, at(0), &[(at(0), 1), (at(0), 2), (at(300), 4)]);
    let grants = vec![(at(0), 3), (at(300), 4)];
    assert_eq!(known(&ledger, at(100)), [("a".into(), grants.clone()), ("b".into(), grants.clone())]);
    // A grant matters for less than its window behind its instant.
    let late = vec![(at(300), 4)];
    assert_eq!(known(&ledger, at(2000)), [("a".into(), late), ("b".into(), grants.clone())]);
    assert_eq!(known(&ledger, at(2300)), [("b".into(), grants)]);
    assert_eq!(ledger.granted_since(&b, at(300)), 4);
    assert_eq!((ledger.granted_since(&b, at(301)), ledger.granted_since(&b, at(0))), (0, 7));
    assert_eq!(ledger.expires(), Some(at(60_300)));
    ledger.sweep(at(2299));
    assert_eq!(ledger.copy(at(0), usize::MAX).pages, 2);
    ledger.sweep(at(2300));
    assert_eq!(ledger.copy(at(0), usize::MAX).pages, 1);
    ledger.sweep(at(60_300));
    assert_eq!((ledger.copy(at(0), usize::MAX).pages, ledger.expires()), (0, None));
    assert!(!ledger.has_unreported() && ledger.unreported().is_empty());
}

#[test]
fn a_call_that_grants_nothing_is_no_change() {
    let (mut ledger, a) = (Ledger::default(), limiter_ref("a", 2));
    let (call, mut answer) = (Call::default(), Answer { now: at(0), ..Answer::default() });
    answer.generations = vec![Generation::default()];
    let before = ledger.changes();
    assert!(before > 0);
    ledger.record(std::slice::from_ref(&a), &call, &answer);
    assert_eq!((ledger.changes(), known(&ledger, at(0))), (before, vec![]));
    let refused = Answer { outcomes: vec![(1, Outcome::TooFar(RetryDelay::default()))], ..answer };
    let call = Call { runs: vec![Run { cost: 1, wait_max: Micros::ZERO, count: 1 }], ..call };
    ledger.record(std::slice::from_ref(&a), &call, &refused);
    assert_eq!((known(&ledger, at(0)), ledger.copy(at(0), 0).pages), (vec![], 0), "no page for a refusal");
    book(&mut ledger, std::slice::from_ref(&a), at(0), &[(at(0), 1)]);
    assert!(ledger.changes() > before, "other replicas are to know");
}

#[test]
fn a_page_is_kept_for_as_long_as_the_limits_of_the_latest_call_say() {
    let (mut ledger, short) = (Ledger::default(), limiter_ref("a", 2));
    book(&mut ledger, std::slice::from_ref(&short), at(0), &[(at(0), 1)]);
    assert_eq!(ledger.expires(), Some(at(2000)));
    book(&mut ledger, &[limiter_ref("a", 60)], at(1000), &[(at(1000), 1)]);
    assert_eq!(ledger.expires(), Some(at(61_000)));
    assert_eq!(known(&ledger, at(59_999)), [("a".into(), vec![(at(0), 1), (at(1000), 1)])]);
    book(&mut ledger, &[short], at(1500), &[(at(1500), 1)]);
    assert_eq!(ledger.expires(), Some(at(3500)));
    // The grants that matter to no limit any more go with the next call.
    book(&mut ledger, &[limiter_ref("a", 2)], at(3200), &[(at(3200), 1)]);
    assert_eq!(ledger.granted_since(&limiter_ref("a", 2), at(0)), 2);
}

#[test]
fn returned_and_rescheduled_slots_leave_the_ledger() {
    let (mut ledger, refs) = (Ledger::default(), [limiter_ref("a", 60), limiter_ref("b", 60)]);
    book(&mut ledger, &refs, at(0), &[(at(0), 2), (at(0), 2), (at(0), 2), (at(500), 1), (at(900), 1)]);
    let answer = Answer { now: at(10), ..Answer::default() };
    let give_back = vec![holding(at(0), 2, 2)];
    ledger.record(&refs, &Call { give_back, ..Call::default() }, &answer);
    let left = vec![(at(0), 2), (at(500), 1), (at(900), 1)];
    assert_eq!(known(&ledger, at(10)), [("a".into(), left.clone()), ("b".into(), left)]);
    // Two slots are rescheduled: one has a new place, the other none. The bookings of `b` have not moved, and are left alone.
    let reschedule = vec![holding(at(500), 1, 1), holding(at(900), 1, 1)];
    let call = Call { generations: vec![7, NO_GENERATION], reschedule, ..Call::default() };
    ledger.record(&refs, &call, &Answer { rescheduled: vec![(1, Some(at(700))), (1, None)], ..answer });
    let moved = vec![(at(0), 2), (at(700), 1)];
    let (_, of_b) = known(&ledger, at(10)).pop().unwrap();
    assert_eq!(known(&ledger, at(10))[0], ("a".into(), moved));
    assert_eq!(of_b, [(at(0), 2), (at(500), 1), (at(700), 1), (at(900), 1)]);
}

#[test]
fn a_reschedule_that_is_not_carried_out_yet_moves_nothing() {
    let (mut ledger, a) = (Ledger::default(), limiter_ref("a", 60));
    book(&mut ledger, std::slice::from_ref(&a), at(0), &[(at(500), 1), (at(600), 1)]);
    let (give_back, reschedule) = (vec![holding(at(600), 1, 1)], vec![holding(at(500), 1, 1)]);
    let call = Call { give_back, reschedule, ..Call::default() };
    ledger.record(&[a], &call, &Answer { now: at(10), ..Answer::default() });
    assert_eq!(known(&ledger, at(10)), [("a".into(), vec![(at(500), 1)])]);
}

#[test]
fn a_line_charges_each_limiter_with_its_own_cost() {
    let (mut ledger, refs) = (Ledger::default(), [limiter_ref("a", 60), limiter_ref("b", 60)]);
    let line_call = LineCall { places: [0; CLASSES_MAX], ..LineCall::default() };
    let call = Call { line: Some(Box::new(line_call.clone())), ..Call::default() };
    let dealt =
        |slot, count, costs: [u64; 2]| Dealt { flow: 1, class: 0, slot, count, costs: costs.to_vec() };
    let line = LineAnswer {
        dealt: vec![dealt(at(100), 3, [1, 5]), dealt(at(200), 1, [1, 0])],
        ..LineAnswer::default()
    };
    let answer = Answer { now: at(0), line: Some(Box::new(line)), ..Answer::default() };
    ledger.record(&refs, &call, &answer);
    let dealt = [("a".into(), vec![(at(100), 3), (at(200), 1)]), ("b".into(), vec![(at(100), 15)])];
    assert_eq!(known(&ledger, at(0)), dealt);
    let unused =
        |slot, count, costs: [u64; 2]| Unused { flow: 1, class: 0, slot, count, costs: costs.to_vec() };
    let given_back = vec![unused(at(100), 2, [1, 5]), unused(at(200), 1, [1, 0])];
    let call = Call { line: Some(Box::new(LineCall { unused: given_back, ..line_call })), ..Call::default() };
    let before = ledger.changes();
    ledger.record(&refs, &call, &Answer { now: at(10), ..Answer::default() });
    assert_eq!(known(&ledger, at(10)), [("a".into(), vec![(at(100), 1)]), ("b".into(), vec![(at(100), 5)])]);
    assert!(ledger.changes() > before);
}

#[test]
fn a_cost_beyond_its_permits_is_told_to_a_store_that_has_lost_its_memory() {
    let (mut ledger, a) = (Ledger::default(), limiter_ref("a", 60));
    book(&mut ledger, std::slice::from_ref(&a), at(0), &[(at(0), 2)]);
    let before = ledger.changes();
    ledger.charge(&a, at(300), 5);
    assert!(ledger.changes() > before, "other replicas are to know");
    ledger.charge(&limiter_ref("b", 60), at(400), 1);
    ledger.mark_forgotten(2, at(500));
    assert_eq!(unreported(&mut ledger, &a, at(500)), [(at(0), 2), (at(300), 5)]);
    assert_eq!(unreported(&mut ledger, &limiter_ref("b", 60), at(500)), [(at(400), 1)]);
}

#[test]
fn a_store_that_has_lost_its_memory_is_told_what_it_had_granted() {
    let (mut ledger, a, b) = (Ledger::default(), limiter_ref("a", 60), limiter_ref("b", 60));
    book(&mut ledger, &[a.clone(), b.clone()], at(0), &[(at(0), 1), (at(500), 2), (at(501), 4)]);
    let before = ledger.changes();
    // No slot behind the last lease was used, so it is void.
    ledger.mark_forgotten(7, at(500));
    let used = vec![(at(0), 1), (at(500), 2)];
    assert!(ledger.has_unreported() && ledger.lacks(&[limiter_ref("c", 60), a.clone()]));
    assert!(!ledger.lacks(&[limiter_ref("c", 60)]) && ledger.changes() > before);
    assert_eq!(ledger.unreported(), [a.clone(), b.clone()]);
    assert_eq!(unreported(&mut ledger, &a, at(0)), used);
    assert!(
        known(&ledger, at(10)).iter().all(|(_, grants)| grants.is_empty()),
        "{:?}",
        known(&ledger, at(10))
    );
    assert!(!ledger.copy(at(10), usize::MAX).is_whole);
    let before = ledger.changes();
    confirm(&mut ledger, &a, at(10), at(0));
    assert_eq!((known(&ledger, at(10))[0].1.clone(), ledger.changes() > before), (used, true));
    assert_eq!((ledger.unreported(), ledger.has_unreported()), (vec![b.clone()], true));
    assert!(!ledger.lacks(&[a]));
    confirm(&mut ledger, &b, at(10), at(0));
    assert_eq!((ledger.unreported(), ledger.has_unreported()), (vec![], false));
    assert!(ledger.copy(at(10), usize::MAX).is_whole);
}

#[test]
fn a_report_to_a_memory_that_is_lost_meanwhile_is_made_again() {
    let (mut ledger, a) = (Ledger::default(), limiter_ref("a", 60));
    book(&mut ledger, std::slice::from_ref(&a), at(0), &[(at(0), 1)]);
    ledger.mark_forgotten(7, at(500));
    let part = ledger.next_unreported(&a, at(0)).unwrap();
    assert!(matches!(part, Unreported::Forgotten { memory: 7, .. }));
    ledger.mark_forgotten(8, at(600));
    ledger.confirm_report(&a, &part, at(700), at(0));
    assert_eq!(
        (unreported(&mut ledger, &a, at(0)), ledger.lacks(std::slice::from_ref(&a))),
        (vec![(at(0), 1)], true)
    );
    // Grants of meanwhile are known to the store.
    book(&mut ledger, std::slice::from_ref(&a), at(800), &[(at(800), 1)]);
    assert_eq!(known(&ledger, at(800)), [("a".into(), vec![(at(800), 1)])]);
    assert_eq!(ledger.expires(), Some(at(60_800)));
}

#[test]
fn bookings_behind_a_doubt_are_void() {
    let (mut ledger, a) = (Ledger::default(), limiter_ref("a", 60));
    book(&mut ledger, std::slice::from_ref(&a), at(0), &[(at(0), 1), (at(500), 2), (at(501), 4)]);
    let before = ledger.changes();
    ledger.void_after(at(500));
    assert_eq!(known(&ledger, at(0)), [("a".into(), vec![(at(0), 1), (at(500), 2)])]);
    assert!(ledger.changes() > before && !ledger.has_unreported());
}

#[test]
fn all_grants_go_with_a_step_of_the_clock() {
    let (mut ledger, a) = (Ledger::default(), limiter_ref("a", 60));
    book(&mut ledger, std::slice::from_ref(&a), at(0), &[(at(0), 1)]);
    ledger.mark_forgotten(7, at(500));
    book(&mut ledger, std::slice::from_ref(&a), at(600), &[(at(600), 1)]);
    let before = ledger.changes();
    ledger.step(Step::Forward(Micros(5000 * MILLI)));
    assert_eq!(known(&ledger, at(5600)), [("a".into(), vec![(at(5600), 1)])]);
    assert_eq!(unreported(&mut ledger, &a, at(0)), [(at(5000), 1)]);
    ledger.step(Step::Back(Micros(4000 * MILLI)));
    assert_eq!(known(&ledger, at(1600)), [("a".into(), vec![(at(1600), 1)])]);
    // Nobody charges a slot that had not come when its replica was last heard.
    assert_eq!(known(&ledger, at(600)), [("a".into(), vec![(at(1600), 1)])]);
    assert_eq!(known(&ledger, at(599)), [("a".into(), vec![])]);
    assert!(ledger.changes() > before + 1);
}

#[test]
fn a_reset_takes_what_was_granted_until_then() {
    let of = |partition: &str| LimiterRef {
        partition: Some(Partition::of([Some(partition.as_bytes())])),
        ..limiter_ref("a", 60)
    };
    let (one, other, b) = (of("one"), of("other"), limiter_ref("b", 60));
    let partition = one.partition;
    let everything = [one, other, b];
    let filled = || {
        let mut ledger = Ledger::default();
        book(&mut ledger, &everything, at(0), &[(at(0), 1), (at(100), 2)]);
        ledger.mark_forgotten(7, at(500));
        book(&mut ledger, &everything, at(600), &[(at(600), 1), (at(700), 2)]);
        let parts: Vec<OwnPart> = everything.iter().map(part_of).collect();
        ledger.record_offline(at(800), &parts, &[(at(800), 1), (at(900), 1)]);
        ledger
    };
    let name = LimiterName::parse("a").unwrap();
    let reset = |ledger: &mut Ledger, partition, millis| {
        ledger.reset(&Reset { name: name.clone(), partition, at: at(millis) }, at(millis));
    };
    let sums = |ledger: &mut Ledger| -> Vec<(u64, u64)> {
        let of = |one: &LimiterRef, ledger: &mut Ledger| {
            let forgotten = unreported(ledger, one, at(1000)).iter().map(|(_, permits)| permits).sum();
            (ledger.granted_since(one, at(0)), forgotten)
        };
        everything.iter().map(|one| of(one, ledger)).collect()
    };
    assert_eq!(sums(&mut filled()), [(3, 3); 3]);
    let mut ledger = filled();
    let before = ledger.changes();
    reset(&mut ledger, partition, 0);
    assert_eq!((sums(&mut ledger), ledger.changes() > before), (vec![(3, 2), (3, 3), (3, 3)], true));
    reset(&mut ledger, None, 600);
    // Then only grants of the outage are left to report.
    assert_eq!(sums(&mut ledger), [(2, 2), (2, 2), (3, 3)]);
    let mut ledger = filled();
    reset(&mut ledger, partition, 800);
    assert_eq!(sums(&mut ledger), [(0, 1), (3, 3), (3, 3)]);
}

#[test]
fn grants_of_an_outage_are_the_stores_when_they_are_written_back() {
    let (mut ledger, a, b) = (Ledger::default(), limiter_ref("a", 60), limiter_ref("b", 60));
    assert!(!ledger.has_unreported());
    ledger.record_offline(at(0), &[part_of(&a), part_of(&b)], &[(at(0), 1), (at(100), 4)]);
    assert!(ledger.has_unreported() && ledger.lacks(std::slice::from_ref(&a)));
    ledger.remove_offline(std::slice::from_ref(&a), &[holding(at(100), 1, 3)]);
    assert_eq!(unreported(&mut ledger, &b, at(200)), [(at(0), 1), (at(100), 4)]);
    assert_eq!(unreported(&mut ledger, &a, at(200)), [(at(0), 1), (at(100), 1)]);
    // The store's clock is 50 ms ahead of this process's.
    confirm(&mut ledger, &a, at(250), at(200));
    assert_eq!(known(&ledger, at(250))[0], ("a".into(), vec![(at(50), 1), (at(150), 1)]));
    assert!(!ledger.lacks(std::slice::from_ref(&a)) && ledger.lacks(&[b]));
    // They are kept for a day longer than they matter: the store may be away for as long.
    let day = Micros(24 * 3_600_000 * MILLI);
    assert_eq!(ledger.expires(), Some(at(60_100) + day));
}

#[test]
fn an_outage_without_grants_has_nothing_to_write_back() {
    let (mut ledger, a) = (Ledger::default(), limiter_ref("a", 60));
    ledger.record_offline(at(0), &[part_of(&a)], &[]);
    assert!(ledger.has_unreported() && !ledger.lacks(std::slice::from_ref(&a)));
    assert!(ledger.next_unreported(&a, at(10)).is_none() && ledger.unreported().is_empty());
    assert!(!ledger.has_unreported());
}

#[test]
fn a_limiter_that_moves_to_another_part_of_the_store_takes_its_grants_along() {
    let (mut before, a, b) = (Ledger::default(), limiter_ref("a", 60), limiter_ref("b", 60));
    book(&mut before, &[a.clone(), b], at(0), &[(at(0), 1)]);
    before.mark_forgotten(7, at(500));
    book(&mut before, std::slice::from_ref(&a), at(600), &[(at(600), 2)]);
    let mut limiter =
        Limiter::clone(&tests::limiter(10, std::time::Duration::from_secs(1), std::time::Duration::ZERO));
    (limiter.name, limiter.group) = (a.name.clone(), "other".into());
    let mut ledger = Ledger::default();
    let changes = ledger.changes();
    ledger.take_over(&limiter, &before);
    assert!(ledger.has_unreported());
    let moved = LimiterRef { group: "other".into(), ..a.clone() };
    assert_eq!((ledger.unreported(), ledger.changes() > changes), (vec![moved], true));
    assert_eq!(unreported(&mut ledger, &a, at(0)), [(at(0), 1), (at(600), 2)]);
    // A page that is there has its own limits.
    let mut ledger = Ledger::default();
    book(&mut ledger, &[limiter_ref("a", 2)], at(700), &[(at(700), 1)]);
    ledger.take_over(&limiter, &before);
    assert_eq!(ledger.unreported(), [limiter_ref("a", 2)]);
    assert_eq!(ledger.expires(), Some(at(2700)));
}

/// A limiter's group is changed, and changed back: the part of the store has the first grants, and not those of meanwhile.
#[test]
fn grants_taken_over_later_are_written_under_a_later_number() {
    let (a, name) = (limiter_ref("a", 60), limiter_ref("a", 60).name);
    let mut limiter =
        Limiter::clone(&tests::limiter(10, std::time::Duration::from_secs(1), std::time::Duration::ZERO));
    limiter.name = name;
    let (mut ledger, mut other) = (Ledger::default(), Ledger::default());
    ledger.mark_forgotten(7, at(0));
    let number = |ledger: &mut Ledger| match ledger.next_unreported(&a, at(0)) {
        Some(Unreported::Forgotten { number, .. }) => Some(number),
        _ => None,
    };
    let mut numbers = Vec::new();
    for step in 0..2 {
        book(&mut other, std::slice::from_ref(&a), at(step), &[(at(step), 1)]);
        ledger.take_over(&limiter, &other);
        numbers.extend(number(&mut ledger));
        confirm(&mut ledger, &a, at(10), at(0));
        assert_eq!(number(&mut ledger), None);
    }
    assert!(numbers[0] >= 7 && numbers[1] > numbers[0], "{numbers:?}");
    // A figure that a write-back told while more was taken over is not told again.
    ledger.take_over(&limiter, &other);
    let part = ledger.next_unreported(&a, at(0)).unwrap();
    ledger.take_over(&limiter, &other);
    ledger.confirm_report(&a, &part, at(20), at(0));
    assert!(number(&mut ledger) > Some(numbers[1]));
    let left: u64 = unreported(&mut ledger, &a, at(0)).iter().map(|(_, permits)| permits).sum();
    assert_eq!(left, 2, "of the second time");
    // Two callers may have written the same.
    let part = ledger.next_unreported(&a, at(0)).unwrap();
    ledger.confirm_report(&a, &part, at(20), at(0));
    let granted = ledger.granted_since(&a, at(0));
    ledger.confirm_report(&a, &part, at(20), at(0));
    assert_eq!((granted, ledger.granted_since(&a, at(0))), (7, 7));
    // The next memory begins later than so few microseconds ahead.
    ledger.mark_forgotten(1_000_000, at(100));
    assert!(number(&mut ledger).is_some_and(|number| (1_000_000..1_000_010).contains(&number)));
}

#[test]
fn a_copy_has_the_longest_windows_first_and_says_if_some_is_left_out() {
    let (mut ledger, refs) =
        (Ledger::default(), [limiter_ref("a", 2), limiter_ref("b", 60), limiter_ref("c", 60)]);
    book(&mut ledger, &refs, at(0), &[(at(0), 1)]);
    let copy = ledger.copy(at(0), usize::MAX);
    let grant = format!("{}:1", at(0).0);
    assert_eq!(copy.text, format!("\nb {grant}\nc {grant}\na {grant}"));
    assert!(copy.is_whole && copy.pages == 3 && copy.number == ledger.changes());
    let size = copy.text.len();
    assert!(ledger.copy(at(0), size).is_whole);
    let copy = ledger.copy(at(0), size - 1);
    assert_eq!((copy.text, copy.is_whole), (format!("\nb {grant}\nc {grant}"), false));
    let partition = Partition::of([Some("x".as_bytes())]);
    let mut ledger = Ledger::default();
    book(
        &mut ledger,
        &[LimiterRef { partition: Some(partition), ..limiter_ref("a", 2) }],
        at(0),
        &[(at(0), 1)],
    );
    assert_eq!(ledger.copy(at(0), usize::MAX).text, format!("\na:{partition} {grant}"));
}

#[test]
fn grants_that_find_no_page_are_told_of_until_they_matter_no_more() {
    let (mut ledger, a, b) = (Ledger::default(), limiter_ref("a", 60), limiter_ref("b", 2));
    for number in 0..PAGES_MAX {
        let partition = Some(Partition::of([Some(number.to_be_bytes().as_slice())]));
        book(&mut ledger, &[LimiterRef { partition, ..a.clone() }], at(0), &[(at(0), 1)]);
    }
    assert!(ledger.is_complete(at(0)));
    book(&mut ledger, std::slice::from_ref(&b), at(100), &[(at(100), 1), (at(300), 1)]);
    assert!(!ledger.is_complete(at(2299)) && ledger.is_complete(at(2300)));
    assert_eq!(ledger.granted_since(&b, at(0)), 0);
    book(&mut ledger, &[b], at(100), &[(at(200), 1)]);
    assert!(!ledger.is_complete(at(2299)), "the later one still matters");
    ledger.record_offline(at(200), &[part_of(&a)], &[(at(200), 1)]);
    assert!(ledger.next_unreported(&a, at(300)).is_none());
}

#[test]
fn a_grant_matters_for_the_longest_of_several_windows() {
    let rules: Vec<Rule> =
        [2, 60].iter().flat_map(|seconds| limiter_ref("a", *seconds).rules.to_vec()).collect();
    let both = LimiterRef { rules: rules.into(), ..limiter_ref("a", 2) };
    let mut ledger = Ledger::default();
    ledger.miss(&both, Some(at(0)));
    assert!(!ledger.is_complete(at(59_999)) && ledger.is_complete(at(60_000)));
    let mut ledger = Ledger::default();
    book(&mut ledger, std::slice::from_ref(&both), at(0), &[(at(0), 1)]);
    assert_eq!(ledger.expires(), Some(at(60_000)));
    // Any call removes pages of others that matter no more.
    book(&mut ledger, &[limiter_ref("b", 60)], at(60_000), &[(at(60_000), 1)]);
    assert_eq!(ledger.copy(at(60_000), usize::MAX).pages, 1);
}

#[test]
fn unreported_grants_are_in_the_order_of_the_names() {
    let refs: Vec<LimiterRef> = ('a'..='p').map(|name| limiter_ref(&name.to_string(), 60)).collect();
    let mut ledger = Ledger::default();
    book(&mut ledger, &refs, at(0), &[(at(0), 1)]);
    ledger.mark_forgotten(7, at(500));
    assert_eq!(ledger.unreported(), refs);
}

#[test]
fn of_many_pages_those_of_the_longest_windows_are_copied() {
    let mut ledger = Ledger::default();
    for number in 0..6000 {
        let partition = Partition::of([Some(&u64::to_be_bytes(number)[..])]);
        // A quarter, which alone would fill a copy.
        let (seconds, permits) = if number % 4 == 0 { (3600, 2) } else { (60, 1) };
        let one = LimiterRef { partition: Some(partition), ..limiter_ref("a", seconds) };
        ledger.charge(&one, at(0), permits);
    }
    let copy = ledger.copy(at(1), 64 * 1024);
    let lines: Vec<_> = copy.text.split('\n').skip(1).map(line_of).collect();
    assert!((1000..1500).contains(&lines.len()) && !copy.is_whole, "{}", lines.len());
    assert!(
        lines.iter().all(|(_, grants)| grants[..] == [(at(0), 2)]),
        "a shorter window has taken the room"
    );
    assert!(lines.is_sorted());
}
