//! The script of the line where its twin has nothing like it: calls that come twice or late.

use crate::clock::Micros;
use crate::limiter::arithmetic::algorithm::kind::Kind;
use crate::limiter::arithmetic::algorithm::sliding_window::SlidingWindow;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::call::{Answer, Call};
use crate::limiter::model::heartbeat::Reported;
use crate::limiter::model::limit::LimiterName;
use crate::limiter::model::line::{LineCall, Unused, Waiting, Want};
use crate::redis::keys;
use crate::redis::tests::fleet::{Fleet, SECOND};
use crate::redis::tests::lua_parity::rules;
use crate::redis::tests::{START, TestStore, at};

/// Ten permits in ten seconds.
fn refs() -> Vec<LimiterRef> {
    let name = LimiterName::parse("a").unwrap();
    vec![LimiterRef { name, partition: None, valid_until: None, group: "model".into(), rules: rules(0) }]
}

fn want(flow: u64, count: u64) -> Want {
    let waiting = Waiting { oldest: Micros::ZERO, newest: Micros::ZERO, wait_max: Micros(60_000_000), count };
    Want { flow, class: 0, weight: 1, costs: vec![1], waiting: vec![waiting], ..Want::default() }
}

fn call(known: u64, wants: Vec<Want>, unused: Vec<Unused>) -> Call {
    let ahead = Micros::from_millis(250);
    let line = LineCall { ahead, known, places: [1000; 4], unused, wants, ..LineCall::default() };
    Call { replica: 1, generations: vec![0], line: Some(Box::new(line)), ..Call::default() }
}

fn dealt(answer: &Answer) -> u64 {
    answer.line.as_ref().unwrap().dealt.iter().map(|dealt| dealt.count).sum()
}

#[test]
fn a_call_that_comes_twice_is_carried_out_once_however_large_its_answer_is() {
    let (mut store, refs) = (TestStore::start(), refs());
    let mut deal =
        |now: u64, call: &Call, number| store.deal(&at(Micros(START + now)), &refs, call, number).unwrap();
    let first = deal(0, &call(0, vec![want(20, 7)], Vec::new()), 1);
    let line = first.line.as_ref().unwrap();
    assert_eq!((dealt(&first), first.available[0][0]), (7, 3));
    // Four slots are given back, and as many requests come. They get the same ones.
    let unused = Unused { flow: 20, class: 0, slot: line.dealt[0].slot, count: 4, costs: vec![1] };
    let again = call(line.deal, vec![want(20, 4)], vec![unused]);
    let second = deal(1000, &again, 2);
    assert_eq!((dealt(&second), second.available[0][0]), (4, 3));
    for _ in 0..3 {
        let repeated = deal(2000, &again, 2);
        assert_eq!((dealt(&repeated), repeated.available[0][0]), (4, 3));
        assert_eq!(repeated.line.unwrap().dealt, second.line.as_ref().unwrap().dealt);
    }
    // Four hundred flows that are dealt one slot each, by many calls whose answers are lost, are far more than eight kilobytes.
    store.flush();
    let mut refs = refs;
    refs[0].rules = rules(3);
    let mut deal = |call: &Call, number| store.deal(&at(Micros(START)), &refs, call, number).unwrap();
    let calls = (1..=34).map(|number: u64| {
        let flows = (number - 1) % 17 * 24..((number - 1) % 17 * 24 + 24).min(400);
        (number, call(0, flows.map(|flow| want(20 + flow, 1)).collect(), Vec::new()))
    });
    let (number, many, last) =
        calls.map(|(number, call)| (number, call.clone(), deal(&call, number))).last().unwrap();
    assert_eq!(dealt(&last), 400);
    assert_eq!(deal(&many, number).line.unwrap().dealt, last.line.unwrap().dealt);
}

#[test]
fn a_call_with_many_flows_tells_of_newcomers_and_of_few_others() {
    let (mut store, mut refs) = (TestStore::start(), refs());
    refs[0].rules = rules(3);
    let mut deal = |call: &Call, number| store.deal(&at(Micros(START)), &refs, call, number).unwrap();
    let told = |answer: &Answer| -> Vec<bool> {
        answer.line.as_ref().unwrap().lasts.iter().map(Option::is_some).collect()
    };
    let many = |count| call(0, (0..64).map(|flow| want(20 + flow, count)).collect(), Vec::new());
    // The first call takes eight newcomers, and leaves the others to those that follow.
    let first = told(&deal(&many(5), 1));
    assert_eq!(first.iter().filter(|told| **told).count(), 8 + 4);
    (2..=8).for_each(|number| drop(deal(&many(5), number)));
    let later = told(&deal(&many(5), 9));
    assert_eq!(later.iter().filter(|told| **told).count(), 4, "{later:?}");
    assert!(later[..4].iter().all(|told| *told), "the first ones, which have waited longest to be told of");
}

#[test]
fn a_call_that_a_later_one_has_overtaken_changes_nothing() {
    let (mut store, refs) = (TestStore::start(), refs());
    let mut deal = |call: &Call, number| store.deal(&at(Micros(START)), &refs, call, number);
    let answer = deal(&call(0, vec![want(20, 2)], Vec::new()), 2).unwrap();
    assert_eq!(dealt(&answer), 2);
    let error = deal(&call(0, vec![want(20, 5)], Vec::new()), 1).unwrap_err();
    assert!(error.to_string().contains("REPEATED") || error.code() == Some("REPEATED"), "{error}");
    let answer = deal(&call(answer.line.unwrap().deal, vec![want(20, 0)], Vec::new()), 3).unwrap();
    assert_eq!((dealt(&answer), answer.available[0][0]), (0, 8));
}

#[test]
fn an_answer_that_is_lost_comes_with_the_next_one() {
    let (mut store, refs) = (TestStore::start(), refs());
    let mut deal = |call: &Call, number| store.deal(&at(Micros(START)), &refs, call, number).unwrap();
    let lost = deal(&call(0, vec![want(20, 2)], Vec::new()), 1);
    // The caller still has two requests without a slot, and a third one.
    let answer = deal(&call(0, vec![want(20, 3)], Vec::new()), 2);
    assert_eq!((dealt(&lost), dealt(&answer), answer.available[0][0]), (2, 3, 7));
    // A new worker of the same replica wants nothing of what the one before was dealt.
    let mut begins = call(0, vec![want(20, 1)], Vec::new());
    begins.line.as_mut().unwrap().begins = true;
    let answer = deal(&begins, 3);
    assert_eq!((dealt(&answer), answer.available[0][0]), (1, 6));
}

/// Returns whether a line had forgotten the caller.
fn has_forgotten(answer: &Answer) -> bool {
    answer.line.as_ref().unwrap().has_forgotten
}

#[test]
fn a_replica_hears_that_its_line_was_lost_until_it_has_got_an_answer() {
    let (mut store, refs) = (TestStore::start(), refs());
    let first = {
        let mut deal = |call: &Call, number| store.deal(&at(Micros(START)), &refs, call, number).unwrap();
        // Two of twelve wait for longer than slots are dealt ahead.
        let first = deal(&call(0, vec![want(20, 6), want(21, 6)], Vec::new()), 1);
        assert_eq!((dealt(&first), has_forgotten(&first)), (10, false));
        first.line.unwrap().deal
    };
    let line = keys::line("model", &refs, true);
    assert_eq!(redis::cmd("DEL").arg(line).query::<u64>(&mut store.connection).unwrap(), 1);
    let mut deal = |call: &Call, number| store.deal(&at(Micros(START + 1000)), &refs, call, number).unwrap();
    for _ in 0..2 {
        // The first answer is lost, and the call is made once more.
        let forgotten = deal(&call(first, Vec::new(), Vec::new()), 2);
        assert_eq!((has_forgotten(&forgotten), forgotten.line.unwrap().again), (true, Micros::ZERO));
    }
    // So is the answer to the second one, and the next call has another number.
    let told = deal(&call(first, vec![want(20, 1), want(21, 1)], Vec::new()), 3).line.unwrap();
    assert!(told.has_forgotten && told.again > Micros::ZERO, "{told:?}");
    assert_eq!(told.lasts.len(), 2);
    let heard = deal(&call(told.deal, Vec::new(), Vec::new()), 4);
    assert!(!has_forgotten(&heard), "it has taken an answer in");
}

/// A line begins anew with each epoch. A permit that is given back twice is another's.
#[test]
fn a_call_that_comes_again_behind_a_silence_is_carried_out_once() {
    let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
    let first = fleet.begin(0);
    for (after, replica) in [(600_000, 1), (600_000, 2), (900_000, 1), (900_000, 2)] {
        fleet.beat(after, replica, first, Reported { memory: first, epoch: first });
    }
    let refs = [fleet.limiter_ref.clone()];
    let mut deal = |after, number, call: Call, generation| {
        let call = Call { epoch: first, generations: vec![generation], ..call };
        fleet.store.deal(&fleet.context(after), &refs, &call, number).unwrap()
    };
    let answer = deal(SECOND, 1, call(0, vec![want(20, 6)], Vec::new()), 0);
    let line = answer.line.as_ref().unwrap();
    assert_eq!((dealt(&answer), answer.available[0][0]), (6, 4));
    let (known, slot) = (answer.generations[0].number, line.dealt[0].slot);
    let back =
        |count| call(line.deal, Vec::new(), vec![Unused { flow: 20, class: 0, slot, count, costs: vec![1] }]);
    assert_eq!(deal(1_300_000, 2, back(3), known).available[0][0], 7);
    // Its answer is lost.
    let repeated = deal(1_500_000, 2, back(3), known);
    assert!(repeated.epoch.id > first);
    assert_eq!(repeated.available[0][0], 7);
    assert_eq!(deal(1_600_000, 3, back(1), known).available[0][0], 8, "another call");
}
