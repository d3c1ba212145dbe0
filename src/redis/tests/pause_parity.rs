//! The pauses of the scripts on a real Redis equal those of the store in memory, step by step.

use std::cell::RefCell;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::clock::{Clock, Micros};
use crate::limiter::Partition;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::limit::LimiterName;
use crate::limiter::model::pause::{PauseByHand, PauseRequest};
use crate::limiter::model::upstream_report::UpstreamReport;
use crate::limiter::store::memory::MemoryStore;
use crate::redis::arguments::Context;
use crate::redis::tests::lua_parity::{pause_request, rules};
use crate::redis::tests::{START, TestStore, at};

/// A step in the life of a pause of a limiter, or of its only partition.
#[derive(Clone, Debug)]
enum PauseStep {
    Advance(u64),
    /// An upstream asks a replica for a pause.
    Ask(u64, PauseRequest),
    /// An operator pauses the partition, or the whole limiter, through a replica; no time at all lifts the pause. The store may hear of
    /// it later.
    ByHand {
        pause: PauseByHand,
        is_whole: bool,
    },
}

fn pause_step() -> impl Strategy<Value = PauseStep> {
    let advance = prop_oneof![0..10_u64, 0..30_000_000_u64, Just(90_000_000_000)];
    let ago = prop_oneof![2 => Just(0), 1 => 1..40_000_000_u64];
    let by_hand = (1..4_u64, prop_oneof![Just(0), 1..30_000_000_u64], ago);
    let by_hand = by_hand.prop_map(|(replica, lasting, ago)| PauseByHand {
        lasting: Micros(lasting),
        ago: Micros(ago),
        replica,
    });
    prop_oneof![
        advance.prop_map(PauseStep::Advance),
        (1..4_u64, pause_request()).prop_map(|(replica, request)| PauseStep::Ask(replica, request)),
        (by_hand, any::<bool>()).prop_map(|(pause, is_whole)| PauseStep::ByHand { pause, is_whole }),
    ]
}

/// Ends, reasons and replicas of the pauses are the same on both sides.
#[test]
fn lua_pauses_a_limiter_for_the_same_reasons_as_rust() {
    let store = RefCell::new(TestStore::start());
    let limiter_ref = |partition| LimiterRef {
        name: LimiterName::parse("a").unwrap(),
        partition,
        valid_until: None,
        group: "model".into(),
        rules: rules(0),
    };
    let (whole, part) = (limiter_ref(None), limiter_ref(Some(Partition::of([Some(&b"tenant"[..])]))));
    let mut runner = TestRunner::new(Config { cases: 1000, failure_persistence: None, ..Config::default() });
    runner
        .run(&prop::collection::vec(pause_step(), 1..30), |steps| {
            let store = &mut *store.borrow_mut();
            store.flush();
            let (memory, mut now) = (MemoryStore::new(Clock::of_runtime()), Micros(START));
            for step in steps {
                match &step {
                    PauseStep::Advance(by) => now = now + Micros(*by),
                    PauseStep::Ask(replica, request) => {
                        let report = UpstreamReport {
                            replica: *replica,
                            pause: Some(*request),
                            ..UpstreamReport::default()
                        };
                        let expected = memory.report_upstream_at(now, &part, &report).paused_until;
                        let context = Context { settle: Micros::ONE, ..at(now) };
                        let result = store.report_upstream(&context, &part, &report);
                        assert_eq!(result.paused_until, expected, "{step:?}");
                    }
                    PauseStep::ByHand { pause, is_whole } => {
                        let limiter_ref = if *is_whole { &whole } else { &part };
                        let expected = memory.pause_at(now, limiter_ref, pause).unwrap();
                        let context = Context { settle: Micros::ONE, ..at(now) };
                        let result = store.pause(&context, limiter_ref, pause);
                        assert_eq!(result.paused_until, expected.paused_until, "{step:?}");
                    }
                }
                for limiter_ref in [&whole, &part] {
                    let shown = store.inspect(&at(now), limiter_ref).pause;
                    assert_eq!(shown, memory.inspect_at(now, limiter_ref).pause, "{step:?}");
                }
            }
            Ok(())
        })
        .unwrap();
}
