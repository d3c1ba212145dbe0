//! The loops of recovery beside a store whose answers are written down: what they tell it, and what they make of its answers.

mod others;
mod session;
mod writing_back;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, ready};

use crate::clock::{Clock, Micros};
use crate::entropy::Entropy;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::arithmetic::share::Share;
use crate::limiter::model::replica::Replica;
use crate::limiter::model::{
    ActionByHand, Answer, Call, Epoch, GrantCopy, Heartbeat, HeartbeatAnswer, Limiter, Member, Outcome,
    PauseByHand, PauseStretch, ReportResult, Reported, Reports, Reset, Run, Unknown, UpstreamReport,
    WriteBack,
};
use crate::limiter::recovery::fallback::Fallback;
use crate::limiter::recovery::fleet::{Fleet, MEMBERSHIP_TTL};
use crate::limiter::recovery::heartbeat::{HeartbeatNotice, Recovery, beat, leave};
use crate::limiter::recovery::link::{Link, SessionEvent};
use crate::limiter::recovery::offline_grants::OwnPart;
use crate::limiter::recovery::session::StoreSession;
use crate::limiter::recovery::write_back::{report_offline_grants, write_back};
use crate::limiter::store::memory::MemoryStore;
use crate::limiter::store::{Failure, StateView, Store, StoreError};
use crate::limiter::tests::limiter;

const ME: u64 = 1;
const OTHER: u64 = 2;
const LEASE: Micros = Micros::from_millis(500);
const TIMEOUT: Micros = Micros::from_millis(100);

/// The answers of a store, and all that it was told.
#[derive(Default)]
struct Script {
    answer: HeartbeatAnswer,
    /// The epoch of the answers to write-backs, where it is another one.
    written_in: Option<Epoch>,
    is_away: bool,
    is_unreadable: bool,
    replicas: Vec<Replica>,
    heartbeats: Vec<Heartbeat>,
    writes: Vec<WriteBack>,
    handed_over: Vec<LimiterRef>,
    registered: Vec<(u64, bool)>,
}

/// A store whose answers are written down. Its clock is this process's.
struct Scripted {
    clock: Clock,
    memory: MemoryStore,
    script: Mutex<Script>,
}

impl Scripted {
    fn answer<T>(&self, answer: impl FnOnce(&mut Script) -> T) -> Result<T, StoreError> {
        let mut script = self.script.lock().unwrap();
        script.answer.epoch.now = self.clock.now();
        let is_away = script.is_away;
        let answer = answer(&mut script);
        if is_away { Err(StoreError::Timeout(Duration::ZERO)) } else { Ok(answer) }
    }
}

impl Store for Scripted {
    fn reserve<'a>(
        &'a self,
        limiter_refs: &'a Arc<[LimiterRef]>,
        call: &'a Arc<Call>,
    ) -> BoxFuture<'a, Result<Answer, Failure>> {
        self.memory.reserve(limiter_refs, call)
    }

    fn inspect<'a>(&'a self, limiter_ref: &'a LimiterRef) -> BoxFuture<'a, Result<StateView, StoreError>> {
        self.memory.inspect(limiter_ref)
    }

    fn heartbeat<'a>(
        &'a self,
        heartbeat: &'a Heartbeat,
    ) -> BoxFuture<'a, Result<HeartbeatAnswer, StoreError>> {
        let answer = self.answer(|script| {
            script.heartbeats.push(heartbeat.clone());
            script.answer.clone()
        });
        ready(answer).boxed()
    }

    fn hand_over<'a>(&'a self, limiter_refs: &'a [LimiterRef]) -> BoxFuture<'a, Result<(), StoreError>> {
        ready(self.answer(|script| script.handed_over.extend_from_slice(limiter_refs))).boxed()
    }

    fn reset<'a>(
        &'a self,
        limiter_ref: &'a LimiterRef,
        seen_for: Micros,
    ) -> BoxFuture<'a, Result<Epoch, StoreError>> {
        self.memory.reset(limiter_ref, seen_for)
    }

    fn report_upstream<'a>(
        &'a self,
        limiter_ref: &'a LimiterRef,
        report: &'a UpstreamReport,
    ) -> BoxFuture<'a, Result<ReportResult, Failure<ReportResult>>> {
        self.memory.report_upstream(limiter_ref, report)
    }

    fn pause<'a>(
        &'a self,
        limiter_ref: &'a LimiterRef,
        pause: &'a PauseByHand,
    ) -> BoxFuture<'a, Result<ReportResult, StoreError>> {
        self.memory.pause(limiter_ref, pause)
    }

    fn write_back<'a>(
        &'a self,
        _: &'a LimiterRef,
        write: &'a WriteBack,
    ) -> BoxFuture<'a, Result<Epoch, StoreError>> {
        let answer = self.answer(|script| {
            script.writes.push(write.clone());
            let epoch = script.answer.epoch;
            let written_in = script.written_in.map_or(epoch, |other| Epoch { now: epoch.now, ..other });
            if script.is_unreadable { Err(StoreError::Unreadable("key".to_owned())) } else { Ok(written_in) }
        });
        ready(answer.and_then(|answer| answer)).boxed()
    }

    fn register_replica<'a>(
        &'a self,
        me: &'a Replica,
        leaves: bool,
    ) -> BoxFuture<'a, Result<Vec<Replica>, StoreError>> {
        let answer = self.answer(|script| {
            script.registered.push((me.id, leaves));
            script.replicas.clone()
        });
        ready(answer).boxed()
    }

    fn lease(&self) -> Micros {
        LEASE
    }

    fn timeout(&self) -> Micros {
        TIMEOUT
    }

    fn is_up(&self) -> bool {
        true
    }
}

/// A replica, and the store that it talks to.
struct Stage {
    store: Arc<Scripted>,
    session: Arc<StoreSession>,
    fallback: Arc<Fallback>,
    notices: Arc<Mutex<Vec<String>>>,
}

impl Stage {
    fn new() -> Stage {
        let clock = Clock::of_runtime();
        let store = Arc::new(Scripted { clock, memory: MemoryStore::new(clock), script: Mutex::default() });
        let fallback = Fallback {
            replica: ME,
            store: MemoryStore::for_outages(clock),
            clock,
            entropy: Entropy::new(|| 7),
            fleet: Fleet::new(ME, 0),
        };
        let session = Arc::new(StoreSession::new(store.clone(), clock));
        Stage { store, session, fallback: Arc::new(fallback), notices: Arc::default() }
    }

    /// Returns a replica that has reported to the first memory of its store, of which another one is a member.
    async fn settled() -> Stage {
        let stage = Stage::new();
        stage.change(|script| {
            script.answer.members = vec![member(ME), member(OTHER)];
            script.answer.moved = Some(Vec::new());
            script.answer.reports = Reports::Complete;
        });
        stage.begin(3, 3);
        stage.beats().await.unwrap();
        stage.told();
        stage.notices();
        // Its heartbeat was woken by the new memory.
        let _ = stage.session.changed().now_or_never();
        stage
    }

    fn change(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.store.script.lock().unwrap());
    }

    /// Begins an epoch of a memory.
    fn begin(&self, id: u64, memory: u64) {
        self.change(|script| script.answer.epoch = Epoch { id, memory, ..Epoch::default() });
    }

    async fn beats(&self) -> Result<(), StoreError> {
        beat(&self.session, &self.fallback, &self.tell()).await
    }

    fn tell(&self) -> impl Fn(HeartbeatNotice<'_>) + Send + 'static {
        let notices = self.notices.clone();
        move |told| {
            let told = match told {
                HeartbeatNotice::LinkChanged => "link changed".to_owned(),
                HeartbeatNotice::Moved(_, moved, _) => format!("moved {}", moved[0].0),
                HeartbeatNotice::AllMoved(..) => "all moved".to_owned(),
                HeartbeatNotice::ByHand(_, actions) => format!("by hand {}", actions.len()),
            };
            notices.lock().unwrap().push(told);
        }
    }

    /// Takes the heartbeats and write-backs that the store was told.
    fn told(&self) -> (Vec<Heartbeat>, Vec<WriteBack>) {
        let mut script = self.store.script.lock().unwrap();
        (std::mem::take(&mut script.heartbeats), std::mem::take(&mut script.writes))
    }

    fn notices(&self) -> Vec<String> {
        std::mem::take(&mut self.notices.lock().unwrap())
    }

    /// Grants permits of the store, now.
    fn grant(&self, limiter_ref: &LimiterRef, permits: u64) {
        let (now, wait_max) = (self.store.clock.now(), Micros::ZERO);
        let call = Call { runs: vec![Run { cost: permits, wait_max, count: 1 }], ..Call::default() };
        let answer = Answer { now, outcomes: vec![(1, Outcome::Booked(now))], ..Answer::default() };
        self.session.ledger().record(std::slice::from_ref(limiter_ref), &call, &answer);
    }

    /// Grants permits without the store, now.
    fn grant_offline(&self, limiter_ref: &LimiterRef, permits: u64) {
        let now = self.store.clock.now();
        let share = limiter_ref.share(Share { parts: 1, place: Some(0), clock_ahead: 0 }).unwrap();
        let part = OwnPart { whole: limiter_ref.clone(), share, lacking: (now, vec![0]) };
        self.session.ledger().record_offline(now, &[part], &[(now, permits)]);
    }
}

fn member(replica: u64) -> Member {
    Member { replica, matters_for: Micros::from_millis(60_000), is_counted: true }
}

fn reported(memory: u64, epoch: u64) -> Reported {
    Reported { memory, epoch }
}

fn any_limiter() -> (Arc<Limiter>, LimiterRef) {
    let limiter = Arc::new(Limiter::clone(&limiter(10, Duration::from_secs(60), Duration::ZERO)));
    let limiter_ref = LimiterRef::new(&limiter, None, Micros::ZERO);
    (limiter, limiter_ref)
}

async fn pass(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

#[tokio::test(start_paused = true)]
async fn a_new_replica_has_reported_with_its_second_heartbeat() {
    let stage = Stage::new();
    stage.begin(3, 3);
    stage.beats().await.unwrap();
    let (heartbeats, writes) = stage.told();
    assert_eq!(
        heartbeats.iter().map(|told| told.reported).collect::<Vec<_>>(),
        [reported(0, 0), reported(3, 3)]
    );
    assert_eq!((heartbeats[0].known_epoch, heartbeats[1].known_epoch, writes.len()), (0, 3, 0));
    assert!(heartbeats[1].heard > Micros::ZERO && stage.notices().is_empty());
    stage.beats().await.unwrap();
    assert_eq!(stage.told().0.len(), 1, "the store knows all");
    // The members have changed: the store learns at once that this replica knows.
    stage.change(|script| script.answer.version = 8);
    stage.beats().await.unwrap();
    assert_eq!(stage.told().0.iter().map(|told| told.version).collect::<Vec<_>>(), [0, 8]);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_never_loses_its_memory_is_told_nothing_further() {
    let stage = Stage::new();
    stage.beats().await.unwrap();
    assert_eq!(stage.told().0.len(), 1);
    assert_eq!((stage.session.epoch(), stage.session.moves_told_until()), (0, Micros::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_failed_heartbeat_is_a_doubt() {
    let stage = Stage::settled().await;
    stage.change(|script| script.is_away = true);
    pass(200).await;
    assert!(stage.beats().await.is_err());
    assert!(matches!(stage.session.advance(stage.session.moment()).link, Link::Held { .. }));
    assert_eq!(stage.session.away_since(), None);
    pass(595).await;
    assert!(matches!(stage.session.advance(stage.session.moment()).link, Link::Away { .. }));
    assert!(stage.session.away_since().is_some());
    assert!(!stage.session.is_usable(3));
}

#[tokio::test(start_paused = true)]
async fn copies_are_told_once_the_store_knows_all() {
    let (stage, (_, a)) = (Stage::settled().await, any_limiter());
    stage.grant(&a, 4);
    stage.beats().await.unwrap();
    let told: Vec<GrantCopy> = stage.told().0.into_iter().flat_map(|told| told.copies.told).collect();
    assert_eq!(told.iter().map(|copy| (copy.replica, copy.is_final)).collect::<Vec<_>>(), [(ME, false)]);
    let copy = GrantCopy {
        replica: OTHER,
        number: 4,
        is_final: false,
        shift: 0,
        written: Micros(1),
        text: "".into(),
    };
    stage.change(|script| script.answer.copies = vec![copy]);
    stage.beats().await.unwrap();
    stage.beats().await.unwrap();
    assert_eq!(stage.told().0.last().map(|told| told.copies.known.clone()), Some(vec![(OTHER, 4)]));
    // In another memory it has reported nothing yet.
    stage.grant(&a, 1);
    stage.begin(5, 5);
    stage.change(|script| script.is_unreadable = true);
    stage.beats().await.unwrap();
    let told: Vec<usize> = stage.told().0.iter().map(|told| told.copies.told.len()).collect();
    assert_eq!(told[1..], vec![0; told.len() - 1], "what could not be written is missing in a copy");
    // Nobody would hear of the copies of a replica that is alone.
    let alone = Stage::settled().await;
    alone.change(|script| script.answer.members = vec![member(ME)]);
    alone.beats().await.unwrap();
    alone.grant(&a, 4);
    alone.beats().await.unwrap();
    assert!(alone.told().0.iter().all(|told| told.copies.told.iter().all(|copy| !copy.text.contains(' '))));
}

#[tokio::test(start_paused = true)]
async fn each_action_by_hand_is_told_once() {
    let (stage, (_, a)) = (Stage::settled().await, any_limiter());
    let action = |from: u64, until: u64| {
        let stretch = PauseStretch { from: Micros(from), until: Micros(until) };
        ActionByHand { name: a.name.clone(), partition: None, stretch, replica: ME }
    };
    let mut actions = vec![action(5, 9)];
    for (more, told) in [(None, Some(1)), (None, None), (Some(action(7, 0)), Some(1)), (None, None)] {
        actions.extend(more);
        stage.change(|script| script.answer.by_hand.clone_from(&actions));
        stage.beats().await.unwrap();
        let notices = stage.notices();
        let by_hand: Vec<_> = notices.iter().filter(|notice| notice.starts_with("by hand")).collect();
        assert_eq!(by_hand, told.map(|count: u32| format!("by hand {count}")).iter().collect::<Vec<_>>());
    }
}

#[tokio::test(start_paused = true)]
async fn queues_hear_what_was_moved() {
    let (stage, (_, a)) = (Stage::settled().await, any_limiter());
    let followed = stage.session.moves_told_until();
    assert!(followed > Micros::ZERO);
    pass(100).await;
    stage.change(|script| script.answer.moved = Some(vec![(a.name.clone(), None)]));
    stage.beats().await.unwrap();
    assert_eq!(stage.notices(), [format!("moved {}", a.name)]);
    assert_eq!(stage.session.moves_told_until(), followed + Micros::from_millis(100));
    let from = |stage: &Stage| stage.session.advance(stage.session.moment()).moves_told.map(|told| told.from);
    assert_eq!(from(&stage), Some(followed));
    stage.change(|script| (script.answer.moved, script.answer.reports) = (None, Reports::Awaited));
    stage.beats().await.unwrap();
    assert_eq!((stage.notices().is_empty(), from(&stage)), (true, Some(stage.session.moves_told_until())));
    stage.change(|script| script.answer.reports = Reports::Complete);
    stage.beats().await.unwrap();
    assert_eq!(stage.notices(), ["all moved"]);
    // An answer of an epoch that is over tells of nothing.
    stage.begin(5, 5);
    stage.beats().await.unwrap();
    stage.notices();
    stage.begin(4, 4);
    stage.change(|script| script.answer.moved = Some(vec![(a.name.clone(), None)]));
    stage.beats().await.unwrap();
    assert_eq!((stage.notices(), stage.session.epoch()), (vec![], 5));
}

#[tokio::test(start_paused = true)]
async fn a_farewell_tells_the_last_copy_if_the_store_knows_all() {
    let (stage, (_, a)) = (Stage::settled().await, any_limiter());
    stage.grant(&a, 4);
    pass(1000).await;
    stage.beats().await.unwrap();
    stage.told();
    leave(&stage.session, &stage.fallback).await;
    let (heartbeats, _) = stage.told();
    let [last] = &heartbeats[..] else { panic!("{heartbeats:?}") };
    assert!(last.leaves && last.copies.told.iter().any(|copy| copy.is_final), "{last:?}");
    assert!((59_000..59_100).contains(&(last.matters_for.0 / 1000)), "{:?}", last.matters_for);
    leave(&stage.session, &stage.fallback).await;
    stage.beats().await.unwrap();
    assert_eq!(stage.told().0, [], "it is gone");
    let stage = Stage::settled().await;
    stage.grant_offline(&a, 1);
    leave(&stage.session, &stage.fallback).await;
    let (heartbeats, _) = stage.told();
    assert!(heartbeats.iter().all(|last| last.leaves && last.copies.told.is_empty()), "{heartbeats:?}");
}

/// The store has lost its memory right before.
#[tokio::test(start_paused = true)]
async fn a_farewell_that_meets_another_memory_is_said_again_behind_a_write_back() {
    let (stage, (_, a)) = (Stage::settled().await, any_limiter());
    stage.grant(&a, 4);
    pass(1000).await;
    stage.beats().await.unwrap();
    stage.told();
    stage.begin(5, 5);
    leave(&stage.session, &stage.fallback).await;
    let (heartbeats, writes) = stage.told();
    let [first, last] = &heartbeats[..] else { panic!("{heartbeats:?}") };
    assert_eq!((first.leaves, first.reported), (true, Reported { memory: 3, epoch: 3 }));
    assert_eq!((last.leaves, last.known_epoch, last.reported), (true, 5, Reported { memory: 5, epoch: 5 }));
    assert!(last.copies.told.iter().any(|copy| copy.is_final), "{last:?}");
    assert_eq!(writes.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn heartbeats_come_at_their_interval_and_sooner_where_one_failed() {
    let stage = Stage::settled().await;
    let recovery = Recovery::new(Arc::downgrade(&stage.session), stage.fallback.clone(), stage.tell());
    let running = tokio::spawn(recovery.run());
    pass(1010).await;
    let count = |stage: &Stage| stage.told().0.len();
    assert_eq!(count(&stage), 6, "at once, and each 200 ms");
    stage.change(|script| script.is_away = true);
    pass(400).await;
    let failed = count(&stage);
    assert!((4..=6).contains(&failed), "each 50 ms from the first failure on: {failed}");
    pass(700).await;
    assert!(
        stage.notices().contains(&"link changed".to_owned()),
        "the queues look at once when the store is away"
    );
    stage.change(|script| script.is_away = false);
    stage.notices();
    pass(60).await;
    assert_eq!(stage.notices(), ["link changed"], "and when it is back");
    count(&stage);
    stage.session.wake();
    pass(1).await;
    assert_eq!(count(&stage), 1, "whoever has something to write back does not wait");
    let Stage { session, .. } = stage;
    drop(session);
    pass(300).await;
    assert!(running.is_finished(), "nobody uses the session any more");
}
