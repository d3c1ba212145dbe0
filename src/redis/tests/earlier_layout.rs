//! Replicas of the layout of keys before this one beside those of this one, on a real Redis: one quota.

use serde::Deserialize;

use crate::clock::Micros;
use crate::limiter::Partition;
use crate::limiter::arithmetic::algorithm::bucket::Bucket;
use crate::limiter::arithmetic::algorithm::kind::Kind;
use crate::limiter::arithmetic::algorithm::sliding_window::SlidingWindow;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::model::call::{Call, Holding, Run};
use crate::limiter::model::heartbeat::Reported;
use crate::limiter::model::limit::LimiterName;
use crate::redis::arguments::Context;
use crate::redis::tests::fleet::{Fleet, SECOND, granted, slots};
use crate::redis::tests::{LEASE, START};
use crate::redis::{answers, arguments, keys};
use crate::telemetry::StoreOp;

/// The script of layout v1 that books, as the last version of that layout sent it.
const RESERVE: &str = include_str!("../../../tests/fixtures/layout_v1/reserve.lua");

const SLIDING: Kind = Kind::SlidingWindow(SlidingWindow);

/// The answer of that script. The rows of limiters and outcomes are lists of numbers here.
#[derive(Deserialize)]
struct EarlierAnswer {
    epoch: (u64, u64, u64, u64),
    _limiters: Vec<(u64, u64, u64, Vec<u64>, u64, u64)>,
    _last: u64,
    _freed: (u64, u64),
    _rescheduled: Vec<(u64, u64)>,
    outcomes: Vec<Vec<u64>>,
}

/// A replica of the earlier layout.
struct EarlierReplica {
    id: u64,
    known_epoch: u64,
}

impl EarlierReplica {
    /// Starts a replica, at an instant after the start. Its epoch settles half a second later.
    fn start(fleet: &mut Fleet, after: u64) -> EarlierReplica {
        let mut replica = EarlierReplica { id: 71, known_epoch: 0 };
        let limiter_ref = fleet.limiter_ref.clone();
        assert!(replica.ask(fleet, after, &limiter_ref, (1, 0)).is_empty(), "nothing is granted yet");
        replica
    }

    /// Asks for permits that may wait for so long. Returns the slots that were booked, one for each permit.
    fn ask(
        &mut self,
        fleet: &mut Fleet,
        after: u64,
        limiter_ref: &LimiterRef,
        (count, wait): (u64, u64),
    ) -> Vec<u64> {
        let (context, none) = (fleet.context(after), Vec::<u64>::new());
        let state = keys::earlier_limiter(context.prefix, limiter_ref);
        let order = state.replace(":limiter:", ":queue:");
        let callers = (limiter_ref.rules_text(), 0, 0);
        let head = (context.now.0, LEASE.0, self.id, 0, self.known_epoch, context.run, LEASE.0, "");
        let tail = (callers, &none, &none, 0, vec![1, wait, count], 100, 0);
        let mut packed = rmp_serde::to_vec(&head).unwrap().split_off(1);
        packed.extend(&rmp_serde::to_vec(&tail).unwrap()[1..]);
        let mut command = redis::cmd("EVAL");
        command.arg(RESERVE).arg(3).arg(state).arg(order).arg(context.earlier_epoch).arg(packed);
        let answer: Vec<u8> = command.query(&mut fleet.store.connection).unwrap();
        let answer: EarlierAnswer = rmp_serde::from_slice(&answer).unwrap();
        self.known_epoch = answer.epoch.1;
        let booked = answer.outcomes.iter().filter(|row| row.len() == 2);
        booked.flat_map(|row| vec![row[1] - START; usize::try_from(row[0]).unwrap()]).collect()
    }
}

/// Asks for permits as a replica of this layout. Returns the slots that were booked.
fn ask(fleet: &mut Fleet, after: u64, epoch: u64, (count, wait): (u64, u64)) -> Vec<u64> {
    let runs = vec![Run { cost: 1, wait_max: Micros(wait), count }];
    let call =
        Call { replica: 1, epoch, generations: vec![0], runs, queue_slots_left: 100, ..Call::default() };
    slots(&fleet.call(after, &call))
}

/// Hands all states over, call by call. Returns how many calls that took.
fn hand_over(fleet: &mut Fleet, after: u64) -> usize {
    let (context, limiter_ref) =
        (fleet.context(after), LimiterRef { partition: None, ..fleet.limiter_ref.clone() });
    let (mut next, mut calls) = (Some(0), 0);
    while let Some(from) = next {
        let arguments = arguments::hand_over(&context, std::slice::from_ref(&limiter_ref), from);
        let value = fleet.store.call(StoreOp::HandOver, &arguments).unwrap();
        next = answers::hand_over(&value).expect("a well-formed answer");
        calls += 1;
    }
    calls
}

fn fullest_window(slots: &mut [u64], window: u64) -> usize {
    slots.sort_unstable();
    let within = |from: &u64| slots.iter().filter(|at| (*from..from + window).contains(at)).count();
    slots.iter().map(within).max().unwrap_or_default()
}

#[test]
fn permits_granted_in_either_layout_count_in_the_other() {
    let mut fleet = Fleet::new(SLIDING);
    let limiter_ref = fleet.limiter_ref.clone();
    let mut earlier = EarlierReplica::start(&mut fleet, 0);
    assert_eq!(earlier.ask(&mut fleet, SECOND, &limiter_ref, (6, 0)).len(), 6);
    let epoch = fleet.begin(SECOND);
    // Four at once, and the others when the first six have left the window.
    let answer = fleet.ask(2 * SECOND, epoch, 8);
    assert_eq!(granted(&answer), (4, Some(11 * SECOND)));
    assert!(earlier.ask(&mut fleet, 3 * SECOND, &limiter_ref, (1, 0)).is_empty());
    // Four of two seconds, four that are booked.
    assert_eq!(earlier.ask(&mut fleet, 11 * SECOND, &limiter_ref, (9, 0)).len(), 2);
    assert_eq!(fleet.available(11 * SECOND), 2, "an inspection shows the last call of this layout");
    assert!(ask(&mut fleet, 11 * SECOND, epoch, (9, 0)).is_empty());
}

#[test]
fn a_replica_of_the_earlier_layout_that_starts_finds_what_was_granted() {
    let mut fleet = Fleet::new(SLIDING);
    let limiter_ref = fleet.limiter_ref.clone();
    let epoch = fleet.begin(0);
    assert_eq!(ask(&mut fleet, SECOND, epoch, (7, 0)).len(), 7);
    assert_eq!(fleet.beat(SECOND, 1, epoch, Reported::default()).earlier_epoch, 0);
    let mut earlier = EarlierReplica::start(&mut fleet, 5 * SECOND);
    let heard = fleet.beat(5 * SECOND + 200_000, 1, epoch, Reported::default()).earlier_epoch;
    assert_eq!(heard, earlier.known_epoch);
    assert_eq!(hand_over(&mut fleet, 5 * SECOND + 200_000), 1);
    assert_eq!(earlier.ask(&mut fleet, 6 * SECOND, &limiter_ref, (9, 0)).len(), 3);
    assert!(ask(&mut fleet, 6 * SECOND, epoch, (1, 0)).is_empty());
}

#[test]
fn states_that_nobody_calls_for_are_handed_over_before_anything_is_granted() {
    const PARTITIONS: u64 = 120;
    let mut fleet = Fleet::new(SLIDING);
    let epoch = fleet.begin(0);
    let whole = fleet.limiter_ref.clone();
    let of = |number: u64| LimiterRef {
        partition: Some(Partition::of([Some(&number.to_be_bytes()[..])])),
        ..whole.clone()
    };
    for number in 0..PARTITIONS {
        fleet.limiter_ref = of(number);
        assert_eq!(ask(&mut fleet, SECOND + number, epoch, (8, 0)).len(), 8);
    }
    let mut earlier = EarlierReplica::start(&mut fleet, 2 * SECOND);
    assert_eq!(hand_over(&mut fleet, 2 * SECOND + 300_000), 3);
    // The second call of three held the epoch for another half a second.
    assert!(earlier.ask(&mut fleet, 2 * SECOND + 700_000, &of(0), (9, 0)).is_empty());
    for number in 0..PARTITIONS {
        assert_eq!(earlier.ask(&mut fleet, 2 * SECOND + 900_000, &of(number), (9, 0)).len(), 2, "{number}");
    }
    assert_eq!(hand_over(&mut fleet, 3 * SECOND), 3, "once more, it changes nothing");
    assert!(earlier.ask(&mut fleet, 3 * SECOND, &of(7), (9, 0)).is_empty());
}

/// Each permit has an instant of its own, of more than are stored as differences. Some are given back, and some have left their window.
#[test]
fn a_replica_of_the_earlier_layout_reads_a_long_queue() {
    const SPACING: u64 = 100_000;
    let mut fleet = Fleet::new(SLIDING);
    let rule = Rule { rate: 1, window: Micros(SPACING), cell: Micros::ONE, kind: SLIDING };
    fleet.limiter_ref.rules = [rule].into();
    let limiter_ref = fleet.limiter_ref.clone();
    let mut earlier = EarlierReplica::start(&mut fleet, 0);
    let epoch = fleet.begin(SECOND);
    let wait = 200 * SECOND;
    let mut booked = Vec::new();
    while booked.len() < 700 {
        booked.extend(ask(&mut fleet, 2 * SECOND, epoch, (100, wait)));
    }
    let last = *booked.last().unwrap();
    assert_eq!(
        earlier.ask(&mut fleet, 2 * SECOND, &limiter_ref, (2, wait)),
        [1, 2].map(|n| last + n * SPACING)
    );
    // A third of the first hundred is given back, and forty have left their window.
    let give_back: Vec<_> = booked.iter().take(100).skip(60).step_by(3).copied().collect();
    let holdings = give_back.iter().map(|slot| Holding { slot: Micros(START + slot), cost: 1, count: 1 });
    let call =
        Call { replica: 1, epoch, generations: vec![0], give_back: holdings.collect(), ..Call::default() };
    fleet.call(6 * SECOND, &call);
    assert_eq!(earlier.ask(&mut fleet, 6 * SECOND, &limiter_ref, (1, wait)), [last + 3 * SPACING], "order");
}

/// Deletes keys of the earlier layout.
fn lose(fleet: &mut Fleet, keys: &[&str]) {
    redis::cmd("DEL").arg(keys).exec(&mut fleet.store.connection).unwrap();
}

const EARLIER_EPOCH: &str = "p:earlier";
const EARLIER_STATE: &str = "p:{a}:v1:limiter:a";

#[test]
fn a_loss_of_the_earlier_keys_forgets_nothing_that_this_layout_has_seen() {
    // A bucket of ten gets one a second.
    for (kind, left) in [(SLIDING, 3), (Kind::Bucket(Bucket { burst: 10 }), 4)] {
        for lost in [&[EARLIER_EPOCH, EARLIER_STATE][..], &[EARLIER_EPOCH]] {
            let mut fleet = Fleet::new(kind.clone());
            let limiter_ref = fleet.limiter_ref.clone();
            let mut earlier = EarlierReplica::start(&mut fleet, 0);
            assert_eq!(earlier.ask(&mut fleet, SECOND, &limiter_ref, (3, 0)).len(), 3);
            let epoch = fleet.begin(SECOND);
            assert_eq!(ask(&mut fleet, 2 * SECOND, epoch, (4, 0)).len(), 4);
            lose(&mut fleet, lost);
            // The epoch begins anew, and settles. The earlier replica has not written anything back yet.
            assert!(earlier.ask(&mut fleet, 2 * SECOND, &limiter_ref, (9, 0)).is_empty());
            let asked = ask(&mut fleet, 2 * SECOND, epoch, (2, 0)).len();
            hand_over(&mut fleet, 2 * SECOND + 100_000);
            let got = earlier.ask(&mut fleet, 2 * SECOND + 600_000, &limiter_ref, (9, 0)).len();
            assert!((2..=left).contains(&(asked + got)), "{asked} and {got} after {lost:?}");
            assert!(ask(&mut fleet, 2 * SECOND + 600_000, epoch, (9, 0)).is_empty());
        }
    }
}

#[test]
fn a_state_that_an_older_epoch_has_left_is_written_anew() {
    let mut fleet = Fleet::new(SLIDING);
    let limiter_ref = fleet.limiter_ref.clone();
    let mut earlier = EarlierReplica::start(&mut fleet, 0);
    assert_eq!(earlier.ask(&mut fleet, SECOND, &limiter_ref, (2, 0)).len(), 2);
    let epoch = fleet.begin(SECOND);
    assert_eq!(ask(&mut fleet, 2 * SECOND, epoch, (2, 0)).len(), 2);
    // Without its epoch the earlier layout is not kept any more.
    lose(&mut fleet, &[EARLIER_EPOCH]);
    assert_eq!(ask(&mut fleet, 3 * SECOND, epoch, (4, 0)).len(), 4);
    // A replica of it starts by another limiter.
    fleet.limiter_ref.name = LimiterName::parse("b").unwrap();
    let mut earlier = EarlierReplica::start(&mut fleet, 4 * SECOND);
    fleet.limiter_ref = limiter_ref.clone();
    hand_over(&mut fleet, 4 * SECOND + 100_000);
    assert_eq!(earlier.ask(&mut fleet, 5 * SECOND, &limiter_ref, (9, 0)).len(), 2);
}

#[test]
fn both_layouts_together_go_over_no_window() {
    for seed in 0..20 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let kind = if seed % 3 == 0 { Kind::Bucket(Bucket { burst: 6 }) } else { SLIDING };
        let most = if seed % 3 == 0 { 16 } else { 10 };
        let mut fleet = Fleet::new(kind);
        let limiter_ref = fleet.limiter_ref.clone();
        let mut earlier = None;
        let (epoch, mut now, mut booked) = (fleet.begin(0), SECOND, Vec::new());
        for step in 0..120 {
            now += rng.u64(0..900_000);
            let asked = (rng.u64(1..5), if rng.bool() { 0 } else { rng.u64(0..8 * SECOND) });
            if step == 30 {
                earlier = Some(EarlierReplica::start(&mut fleet, now));
                hand_over(&mut fleet, now);
            }
            // The replicas of the earlier layout have gone, and later their epoch.
            if step == 80 {
                now += 30 * SECOND;
                lose(&mut fleet, &[EARLIER_EPOCH]);
                earlier = None;
            }
            match &mut earlier {
                Some(earlier) if rng.bool() => {
                    booked.extend(earlier.ask(&mut fleet, now, &limiter_ref, asked));
                }
                _ => booked.extend(ask(&mut fleet, now, epoch, asked)),
            }
        }
        let fullest = fullest_window(&mut booked, 10 * SECOND);
        assert!((8..=most).contains(&fullest), "seed {seed}: {fullest}");
    }
}

/// The keys that the last version of layout v1 left after some calls (`scripts/upgrade --record`), and when: `now MICROSECONDS`, then a key
/// and its value in each line.
const RECORDED: &str = include_str!("../../../tests/fixtures/layout_v1/keys.txt");

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
    (0..hex.len() / 2).map(digit).collect()
}

#[test]
fn permits_that_the_last_version_of_the_earlier_layout_granted_count() {
    let mut fleet = Fleet::new(SLIDING);
    let mut lines = RECORDED.lines().map(|line| line.split_once(' ').unwrap());
    let now: u64 = lines.next().unwrap().1.parse().unwrap();
    for (key, value) in lines {
        redis::cmd("SET").arg(key).arg(bytes(value)).exec(&mut fleet.store.connection).unwrap();
    }
    let rule = |rate, kind| Rule { rate, window: Micros(60_020_000), cell: Micros::ONE, kind };
    let of = |name: &str, partition: Option<&[u8]>, rule| LimiterRef {
        name: LimiterName::parse(name).unwrap(),
        partition: partition.map(|part| Partition::of([Some(part)])),
        group: "g".into(),
        rules: [rule].into(),
        valid_until: None,
    };
    let limiter_refs = [
        of("window", None, rule(10, SLIDING)),
        of("bucket", None, rule(10, Kind::Bucket(Bucket { burst: 8 }))),
        of("tenant", Some(b"1"), rule(5, SLIDING)),
        of("tenant", Some(b"2"), rule(5, SLIDING)),
    ];
    let context = |after| Context {
        prefix: "weir",
        epoch: "weir:v2:epoch",
        live: "weir:v2:live",
        earlier_epoch: "weir:v1:epoch",
        is_cluster: false,
        now: Micros(now + after),
        ..fleet.context(0)
    };
    let [first, second] = [0, 1_000_000].map(context);
    // The first call begins the epoch of this layout, and the next one shows that somebody has heard of it.
    let call = Call { replica: 1, generations: vec![0; 4], queue_slots_left: 100, ..Call::default() };
    let epoch = fleet.store.reserve(&first, &limiter_refs, &call).epoch.id;
    let call = Call { epoch, ..call };
    fleet.store.reserve(&first, &limiter_refs, &call);
    let answer = fleet.store.reserve(&second, &limiter_refs, &call);
    assert_eq!(answer.available, [[6], [4], [2], [4]]);
    // Without them all is there, but for a bucket, which was empty for all that is known.
    fleet.store.flush();
    let epoch = fleet.store.reserve(&first, &limiter_refs, &Call { epoch: 0, ..call.clone() }).epoch.id;
    fleet.store.reserve(&first, &limiter_refs, &Call { epoch, ..call.clone() });
    let answer = fleet.store.reserve(&second, &limiter_refs, &Call { epoch, ..call });
    let [window, _, tenants @ ..] = &answer.available[..] else { panic!("four limiters") };
    assert_eq!((&window[..], tenants), (&[10][..], &[vec![5], vec![5]][..]));
}
