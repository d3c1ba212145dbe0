//! A server and its callers, for the tests of what is lost: limits, calls and what they grant.

use crate::clock::Micros;
use crate::limiter::arithmetic::algorithm::kind::Kind;
use crate::limiter::arithmetic::algorithm::sliding_window::SlidingWindow;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::model::call::{Answer, Call, Outcome, Run};
use crate::limiter::model::epoch::Epoch;
use crate::limiter::model::heartbeat::{Heartbeat, HeartbeatAnswer, Reported};
use crate::limiter::model::limit::LimiterName;
use crate::limiter::model::write_back::{Unknown, WriteBack};
use crate::redis::arguments::Context;
use crate::redis::tests::{LEASE, START, TestStore};

pub(super) const SECOND: u64 = 1_000_000;

/// A server, and its run as the callers know it.
pub(super) struct Fleet {
    pub(super) store: TestStore,
    pub(super) run: &'static str,
    pub(super) limiter_ref: LimiterRef,
}

impl Fleet {
    /// Ten permits in ten seconds.
    pub(super) fn new(kind: Kind) -> Fleet {
        let rule = Rule { rate: 10, window: Micros(10 * SECOND), cell: Micros::ONE, kind };
        let limiter_ref = LimiterRef {
            name: LimiterName::parse("a").unwrap(),
            partition: None,
            valid_until: None,
            group: "a".into(),
            rules: [rule].into(),
        };
        Fleet { store: TestStore::start(), run: "one", limiter_ref }
    }

    /// As many in a window whose bookings are kept in cells of four seconds.
    pub(super) fn with_cells() -> Fleet {
        let mut fleet = Fleet::new(Kind::SlidingWindow(SlidingWindow));
        let rules = fleet.limiter_ref.rules.iter();
        fleet.limiter_ref.rules =
            rules.map(|rule| Rule { cell: Micros(4 * SECOND), ..rule.clone() }).collect();
        fleet
    }

    /// Asks for permits that may wait for ten seconds, so many microseconds after the start.
    pub(super) fn ask(&mut self, after: u64, known_epoch: u64, count: u64) -> Answer {
        let run = Run { cost: 1, wait_max: Micros(10 * SECOND), count };
        let call = Call {
            replica: 1,
            epoch: known_epoch,
            generations: vec![0],
            runs: vec![run],
            queue_slots_left: 100,
            ..Call::default()
        };
        self.call(after, &call)
    }

    pub(super) fn context(&self, after: u64) -> Context<'static> {
        let (run, now) = (self.run, Micros(START + after));
        Context {
            prefix: "p",
            epoch: "p:epoch",
            live: "p:live",
            moved: "p:moved",
            earlier_epoch: "p:earlier",
            is_cluster: true,
            channel: "",
            run,
            settle: LEASE,
            lease: LEASE,
            now,
        }
    }

    pub(super) fn call(&mut self, after: u64, call: &Call) -> Answer {
        self.store.reserve(&self.context(after), std::slice::from_ref(&self.limiter_ref), call)
    }

    /// Begins an epoch and returns its number.
    pub(super) fn begin(&mut self, after: u64) -> u64 {
        let answer = self.ask(after, 0, 1);
        assert_eq!(answer.epoch.settles_until, Some(Micros(START + after) + LEASE));
        assert!(answer.outcomes.is_empty(), "nothing is granted yet");
        self.hear(after, answer.epoch.id)
    }

    /// Returns the epoch that begins with a call of a caller who knows an earlier one.
    pub(super) fn renew(&mut self, after: u64, known_epoch: u64) -> u64 {
        let epoch = self.ask(after, known_epoch, 1).epoch.id;
        assert!(epoch > known_epoch);
        self.hear(after, epoch)
    }

    /// Makes a call that shows that its caller has heard of an epoch.
    pub(super) fn hear(&mut self, after: u64, epoch: u64) -> u64 {
        self.call(after, &Call { replica: 1, epoch, generations: vec![0], ..Call::default() }).epoch.id
    }

    pub(super) fn write_back(&mut self, after: u64, write: &WriteBack) -> Epoch {
        self.store.write_back(&self.context(after), &self.limiter_ref, write)
    }

    /// Makes the heartbeat of a replica that has heard the server just now, and has reported to these.
    pub(super) fn beat(
        &mut self,
        after: u64,
        replica: u64,
        known_epoch: u64,
        reported: Reported,
    ) -> HeartbeatAnswer {
        self.send(after, &heartbeat(after, replica, known_epoch, reported))
    }

    pub(super) fn send(&mut self, after: u64, heartbeat: &Heartbeat) -> HeartbeatAnswer {
        self.store.heartbeat(&self.context(after), heartbeat)
    }

    /// Makes heartbeats of the first replica, so that there is no silence.
    pub(super) fn keep_alive(&mut self, from: u64, until: u64, epoch: u64) {
        for after in (from..=until).step_by(400_000) {
            self.beat(after, 1, epoch, Reported { memory: epoch, epoch });
        }
    }

    pub(super) fn reset(&mut self, after: u64) -> Result<Epoch, redis::RedisError> {
        self.store.reset(&self.context(after), &self.limiter_ref)
    }

    /// Returns the permits that could be used at once.
    pub(super) fn available(&mut self, after: u64) -> u64 {
        self.store.inspect(&self.context(after), &self.limiter_ref).available[0]
    }

    pub(super) fn lose_everything(&mut self) {
        self.store.flush();
    }
}

/// Returns the heartbeat of a replica that has heard the server just now, and has reported to these.
pub(super) fn heartbeat(after: u64, replica: u64, known_epoch: u64, reported: Reported) -> Heartbeat {
    Heartbeat {
        replica,
        known_epoch,
        heard: Micros(START + after),
        matters_for: Micros(10 * SECOND),
        reported,
        ..Heartbeat::default()
    }
}

pub(super) fn lost(replica: u64, epoch: u64, entries: &[(i64, u64)]) -> WriteBack {
    let entries = entries.to_vec();
    WriteBack { replica, unknown: Unknown::Lost, number: epoch, epoch, sent: Micros::ZERO, entries }
}

/// Returns how many permits were granted at once, and when the first later one may be used.
pub(super) fn granted(answer: &Answer) -> (u64, Option<u64>) {
    let at = |outcome: &Outcome| match outcome {
        Outcome::Booked(at) => Some(at.0 - START),
        _ => None,
    };
    let now = answer.now.0 - START;
    let at_once = answer.outcomes.iter().filter(|(_, outcome)| at(outcome) == Some(now));
    let later = answer.outcomes.iter().filter_map(|(_, outcome)| at(outcome)).find(|at| *at > now);
    (at_once.map(|(count, _)| count).sum(), later)
}

/// Returns the slots that were booked, one for each permit.
pub(super) fn slots(answer: &Answer) -> Vec<u64> {
    let of = |(count, outcome): &(u64, Outcome)| match outcome {
        Outcome::Booked(at) => vec![at.0 - START; usize::try_from(*count).unwrap()],
        _ => Vec::new(),
    };
    answer.outcomes.iter().flat_map(of).collect()
}
