//! The core by itself: what it does on an event, and that a record of events can be replayed.

mod burst;
mod closing;
mod given_back;
mod invariants;
mod late_slots;
mod leaving;
mod moves;
mod refunds;
mod share;
mod too_costly;

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::process::Command;

use super::BookedCore;
use crate::clock::{Clock, Micros, Moment};
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::{Answer, Call, Epoch, Flow, Limiter, OnStoreFailure, Outcome, Permits, Refusal};
use crate::limiter::queue::pause::Paused;
use crate::limiter::queue::prefetch::{Batch, PrefetchSnapshot};
use crate::limiter::queue::request::{Arrival, Asker, Holder, RequestId, Unusable};
use crate::limiter::queue::slot::{Slot, Source};
use crate::limiter::queue::worker::events::{Action, Context, Event, LocalAnswer, ReturnReason};
use crate::limiter::queue::worker::limits::Limits;
use crate::limiter::recovery::link::{Link, Terms};
use crate::limiter::store::clock::StoreClock;
use crate::limiter::store::memory::MemoryStore;
use crate::limiter::tests;

const SECOND: Micros = Micros::from_millis(1000);
const START: Moment = Moment(10_000_000);
/// The store's time at [`START`].
const SHOWN: Micros = Micros(1_800_000_000_000_000);

fn after(millis: u64) -> Moment {
    START + Micros::from_millis(millis)
}

fn shown(moment: Moment) -> Micros {
    SHOWN + (moment - START)
}

fn limits(rate: u64, wait_seconds: u32, policy: OnStoreFailure) -> Limits {
    let limiter = tests::limiter(rate, SECOND.to_duration(), SECOND.to_duration() * wait_seconds);
    Limits {
        refs: vec![LimiterRef::new(&limiter, None, SHOWN)],
        policies: vec![policy],
        guard: Micros::from(Limiter::clone(&limiter).guard),
        costs_max: vec![Permits::new(rate).unwrap()],
        too_costly: Refusal::CostExceedsLimit { limiter: limiter.name.clone(), cost_max: Permits::ONE },
        max_waiting: 1000,
        terms: Terms::new(Micros::from_millis(500), Micros::from_millis(100)),
        shared: None,
    }
}

fn context(now: Moment) -> Context {
    let clock = StoreClock::new(now, now, shown(now));
    Context { now, clock, wall: shown(now), latency: Micros::ZERO, memory: 0, in_flight_left: 128 }
}

fn arrival(request: u32, now: Moment, wait_millis: u64) -> Event {
    let deadline = now + Micros::from_millis(wait_millis);
    Event::Arrived(Arrival {
        asker: Asker::Request(RequestId(request)),
        costs: Permits::ONE.into(),
        arrived: now,
        deadline,
        flow: Flow::default(),
    })
}

/// Returns the answer that books each of these slots for one request.
fn booked(now: Moment, slots: &[Micros]) -> Event {
    let answer = Answer {
        now: shown(now),
        outcomes: slots.iter().map(|at| (1, Outcome::Booked(*at))).collect(),
        ..Answer::default()
    };
    Event::Answered { answer: Box::new(answer), refusal_budget: 0, sent: now }
}

/// Returns the same answer of this replica's own memory.
fn booked_locally(now: Moment, slots: &[Micros]) -> Event {
    let outcomes = slots.iter().map(|at| (1, Outcome::Booked(*at))).collect();
    let answer = Answer { now: shown(now), outcomes, ..Answer::default() };
    answered_locally(answer, Micros(u64::MAX))
}

fn answered_locally(answer: Answer, known_within: Micros) -> Event {
    Event::AnsweredLocally(Box::new(LocalAnswer { answer, costs_max: vec![10], known_within }))
}

struct Driven(BookedCore);

impl Driven {
    fn new(policy: OnStoreFailure) -> Driven {
        Driven(BookedCore::new(limits(10, 1, policy), SECOND, START))
    }

    fn on(&mut self, now: Moment, events: Vec<Event>) -> Vec<Action> {
        let mut out = Vec::new();
        self.0.on(events, &context(now), &mut out);
        invariants::hold(&self.0);
        out
    }

    /// Returns when the core wants to be woken.
    fn wakes_at(&self, now: Moment) -> Moment {
        self.0.wakes_at(&context(now))
    }
}

fn is_granted(actions: &[Action]) -> bool {
    actions.iter().any(|action| matches!(action, Action::Grant(..)))
}

fn is_booking(actions: &[Action]) -> bool {
    actions.iter().any(|action| matches!(action, Action::Book(_)))
}

/// Returns how many slots are asked for in this replica's own memory.
fn locally_booked(actions: &[Action]) -> Option<u64> {
    actions.iter().find_map(|action| match action {
        Action::BookLocally(call) => Some(call.runs.iter().map(|run| run.count).sum()),
        _ => None,
    })
}

fn refusal(actions: &[Action]) -> Option<&Refusal> {
    actions
        .iter()
        .find_map(|action| if let Action::Refuse(_, _, refusal) = action { Some(refusal) } else { None })
}

#[test]
fn a_waiting_request_is_refused_at_its_end_whatever_the_state_is() {
    let pause = Paused {
        limiter: limits(1, 1, OnStoreFailure::Reject).refs[0].name.clone(),
        from: START,
        until: after(9000),
    };
    let far = Moment(u64::MAX);
    let states = [
        vec![],
        vec![Event::Linked(Link::Held { epoch: 0, until: far })],
        vec![Event::Reporting(true)],
        vec![Event::Paused(Some(pause)), Event::Linked(Link::Held { epoch: 0, until: far })],
        vec![Event::Linked(Link::Settling { epoch: 2, opens: after(1100) })],
    ];
    for state in states {
        let mut core = Driven::new(OnStoreFailure::Reject);
        core.on(START, vec![arrival(0, START, 1000)]);
        let slot = shown(after(900));
        assert!(
            core.on(after(1), vec![booked(after(1), &[slot])]).contains(&Action::Wait(RequestId(0), None))
        );
        // No answer comes any more, and the lease is over when the slot is due.
        let mut actions = core.on(after(2), state.clone());
        let mut now = after(2);
        let ended = loop {
            if refusal(&actions).is_some() {
                break now;
            }
            assert!(now < after(2000), "{state:?}: nobody is refused");
            now = core.wakes_at(now).max(now + Micros::ONE);
            actions = core.on(now, Vec::new());
        };
        assert!(ended <= after(1098), "{state:?}: {ended:?}");
    }
}

#[test]
fn a_request_in_a_call_is_refused_when_the_store_has_had_its_time() {
    let mut core = Driven::new(OnStoreFailure::Local);
    assert!(is_booking(&core.on(START, vec![arrival(0, START, 0)])));
    assert_eq!(core.wakes_at(START), after(615));
    assert_eq!(refusal(&core.on(after(614), Vec::new())), None);
    let actions = core.on(after(615), Vec::new());
    assert!(matches!(refusal(&actions), Some(Refusal::StoreUnavailable { .. })), "{actions:?}");
    // The permits that the call has booked after all are given back.
    let actions = core.on(after(620), vec![booked(after(620), &[shown(after(620))])]);
    let Some(Action::Book(call)) = actions.iter().find(|action| matches!(action, Action::Book(_))) else {
        panic!("{actions:?}")
    };
    assert_eq!(call.give_back[0].slot, shown(after(620)));
}

#[test]
fn a_slot_is_handed_out_within_the_lease_alone() {
    let mut core = Driven::new(OnStoreFailure::Reject);
    core.on(START, vec![arrival(0, START, 1000), arrival(1, START, 1000)]);
    let slots = [shown(after(400)), shown(after(495))];
    core.on(after(1), vec![booked(after(1), &slots)]);
    core.on(after(2), vec![Event::Linked(Link::Held { epoch: 0, until: after(800) })]);
    assert!(is_granted(&core.on(after(401), Vec::new())));
    assert!(!is_granted(&core.on(after(496), Vec::new())), "the lease is over");
    // The call at the heartbeat is answered in the same epoch: the slot is good again.
    assert!(is_granted(
        &core.on(after(497), vec![Event::Linked(Link::Up { epoch: 0 }), booked(after(497), &[])])
    ));
}

#[test]
fn a_failed_call_is_made_again_and_then_the_policy_decides() {
    let held = Link::Held { epoch: 0, until: after(595) };
    let fail = |core: &mut Driven, now| {
        let actions = core.on(now, vec![Event::Linked(held), Event::Failed { is_unsent: true }]);
        assert_eq!(refusal(&actions), None);
    };
    for policy in [OnStoreFailure::Reject, OnStoreFailure::Allow, OnStoreFailure::Local] {
        let mut core = Driven::new(policy);
        // It came a moment before the call whose failure shows the outage.
        let came = Moment(START.0 - 500);
        core.on(START, vec![arrival(0, came, 0)]);
        fail(&mut core, after(1));
        assert_eq!(core.wakes_at(after(1)), after(200));
        assert!(is_booking(&core.on(after(200), Vec::new())));
        fail(&mut core, after(201));
        assert_eq!(refusal(&core.on(Moment(after(595).0 - 1), Vec::new())), None);
        let actions = core.on(after(595), vec![Event::Linked(Link::Away { outage: 1 })]);
        match policy {
            OnStoreFailure::Reject => {
                assert!(matches!(refusal(&actions), Some(Refusal::StoreUnavailable { .. })), "{actions:?}");
            }
            OnStoreFailure::Allow => assert!(is_granted(&actions), "{actions:?}"),
            OnStoreFailure::Local => {
                assert!(actions.iter().any(|action| matches!(action, Action::BookLocally(_))), "{actions:?}");
            }
        }
    }
}

#[test]
fn requests_that_an_answer_leaves_out_are_asked_for_again_in_their_order() {
    let mut core = Driven::new(OnStoreFailure::Reject);
    let arrivals: Vec<_> = (0..5).map(|request| arrival(request, START, 9000)).collect();
    core.on(START, arrivals);
    let actions =
        core.on(after(1), vec![arrival(5, after(1), 9000), booked(after(1), &[shown(after(500)); 2])]);
    assert_eq!(refusal(&actions), None);
    let asked = actions.iter().find_map(|action| match action {
        Action::Book(call) => Some(call.runs.iter().map(|run| run.count).sum::<u64>()),
        _ => None,
    });
    assert_eq!(asked, Some(4), "three that were left out, and the one that came meanwhile");
    let sent = core.0.calls.under_way.as_ref().unwrap();
    let order: Vec<_> = sent.arrivals.iter().map(|arrival| arrival.asker).collect();
    assert_eq!(order, [2, 3, 4, 5].map(|request| Asker::Request(RequestId(request))));
}

#[test]
fn no_more_wait_for_the_end_of_a_pause_than_may_where_all_are_let_through() {
    let mut core = Driven::new(OnStoreFailure::Allow);
    let limits = Limits { max_waiting: 2, ..limits(10, 1, OnStoreFailure::Allow) };
    let pause = Paused { limiter: limits.refs[0].name.clone(), from: START, until: after(900) };
    let away = Event::Linked(Link::Away { outage: 1 });
    core.on(after(1), vec![Event::Reconfigured(Box::new(limits)), Event::Paused(Some(pause)), away]);
    let arrivals: Vec<_> = (0..5).map(|request| arrival(request, after(2), 1000)).collect();
    let actions = core.on(after(2), arrivals);
    let refused = actions.iter().filter(|action| matches!(action, Action::Refuse(..))).count();
    assert_eq!((refused, is_granted(&actions)), (3, false), "{actions:?}");
    assert!(matches!(refusal(&actions), Some(Refusal::QueueFull { .. })));
    assert!(is_granted(&core.on(after(900), Vec::new())));
}

#[test]
fn an_unlimited_slot_held_by_a_pause_is_void_when_the_store_returns() {
    let mut core = Driven::new(OnStoreFailure::Allow);
    let limits = limits(10, 1, OnStoreFailure::Allow);
    let pause = Paused { limiter: limits.refs[0].name.clone(), from: START, until: after(500) };
    core.on(after(1), vec![Event::Paused(Some(pause)), Event::Linked(Link::Away { outage: 1 })]);
    assert!(!is_granted(&core.on(after(2), vec![arrival(0, after(2), 1000)])));
    assert!(is_booking(&core.on(after(300), vec![Event::Linked(Link::Up { epoch: 0 })])));
    assert!(!is_granted(&core.on(after(501), Vec::new())));
}

#[test]
fn slots_of_another_epoch_are_void_and_asked_for_anew() {
    let mut core = Driven::new(OnStoreFailure::Reject);
    core.on(START, vec![arrival(0, START, 1000)]);
    core.on(after(1), vec![booked(after(1), &[shown(after(100))])]);
    let settling = Link::Settling { epoch: 2, opens: after(550) };
    assert!(!is_booking(&core.on(after(50), vec![Event::Linked(settling)])));
    assert!(!is_granted(&core.on(after(101), Vec::new())));
    assert_eq!(core.wakes_at(after(101)), after(550));
    let actions = core.on(after(550), vec![Event::Linked(Link::Up { epoch: 2 })]);
    let Some(Action::Book(call)) = actions.first() else { panic!("{actions:?}") };
    assert_eq!((call.runs[0].count, call.give_back.len()), (1, 0));
}

/// A small world around a core: two stores in memory, and draws from a seed.
struct World {
    core: BookedCore,
    store: MemoryStore,
    local: MemoryStore,
    limits: Limits,
    draws: u64,
    now: Moment,
    link: Link,
    call: Option<Call>,
    offered: VecDeque<Batch>,
    granted: Vec<(Slot, Permits, Holder)>,
    requests: u32,
}

/// Events that came together, and what surrounded them.
type Record = Vec<(Vec<Event>, Context)>;

impl World {
    fn new() -> World {
        let (limits, memory) =
            (limits(40, 2, OnStoreFailure::Local), || MemoryStore::new(Clock::of_runtime()));
        World {
            core: BookedCore::new(limits.clone(), SECOND, START),
            store: memory(),
            local: memory(),
            limits,
            draws: 7,
            now: START,
            link: Link::Up { epoch: 1 },
            call: None,
            offered: VecDeque::new(),
            granted: Vec::new(),
            requests: 0,
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.draws =
            self.draws.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.draws >> 33) % below
    }

    fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }

    /// Returns what happens next.
    fn events(&mut self) -> Vec<Event> {
        self.now = self.now + Micros(self.draw(9000));
        let mut events = vec![Event::Linked(self.link)];
        match self.draw(100) {
            0 => self.link = Link::Held { epoch: 1, until: Moment(u64::MAX) },
            1 => self.link = Link::Away { outage: self.now.0 },
            2..=5 => self.link = Link::Up { epoch: 1 + self.now.0 / 3_000_000 },
            6 => {
                let rate = 20 + self.draw(40);
                self.limits = limits(rate, 2, OnStoreFailure::Local);
                events.push(Event::Reconfigured(Box::new(self.limits.clone())));
            }
            7 => {
                let until = self.now + Micros(self.draw(200_000));
                let limiter = self.limits.refs[0].name.clone();
                events.push(Event::Paused(Some(Paused { limiter, from: self.now, until })));
            }
            8 => events.push(Event::Left(vec![RequestId(self.requests.saturating_sub(3))])),
            9 => events.push(Event::Reporting(true)),
            10..=20 => events.push(Event::Reporting(false)),
            21..=30 if !self.granted.is_empty() => {
                let (slot, cost, holder) = self.granted.swap_remove(0);
                let request = self.request();
                let reasons = [
                    ReturnReason::Unused(holder.flow),
                    ReturnReason::Refund(holder.flow),
                    ReturnReason::Exchanged(request, holder, Unusable::Late),
                ];
                let reason = reasons[usize::try_from(self.draw(3)).unwrap()];
                events.push(Event::Returned(slot, cost.into(), reason));
            }
            _ => {}
        }
        for _ in 0..self.draw(4) {
            let (request, wait, cost) = (self.request(), self.draw(2000), 1 + self.draw(3));
            let Event::Arrived(mut arrival) = arrival(request.0, self.now, wait) else { continue };
            arrival.costs = Permits::new(cost).unwrap().into();
            events.push(Event::Arrived(arrival));
        }
        if let Some(call) = self.call.take_if(|_| !self.draws.is_multiple_of(3)) {
            events.push(self.result(&call));
        }
        let stale = Vec::new();
        events.push(Event::Prefetched(PrefetchSnapshot { stale, left: 0, ..PrefetchSnapshot::default() }));
        events
    }

    /// Returns what becomes of a call.
    fn result(&mut self, call: &Call) -> Event {
        let Some(epoch) = self.link.usable_epoch().filter(|_| matches!(self.link, Link::Up { .. })) else {
            return Event::Failed { is_unsent: false };
        };
        let answer = self.store.reserve_at(shown(self.now), &self.limits.refs, call);
        let epoch = Epoch { id: epoch, ..answer.epoch };
        let answer = Box::new(Answer { epoch, ..answer });
        Event::Answered { answer, refusal_budget: 5, sent: self.now }
    }

    /// Takes the core through some time. Returns what it was told, and what it did.
    fn run(mut self) -> (Record, Vec<Vec<Action>>) {
        let (mut record, mut all) = (Vec::new(), Vec::new());
        for _ in 0..4000 {
            let mut events = self.events();
            while !events.is_empty() {
                let mut out = Vec::new();
                let surroundings = context(self.now);
                self.core.on(events.clone(), &surroundings, &mut out);
                invariants::hold(&self.core);
                record.push((std::mem::take(&mut events), surroundings));
                for action in &out {
                    self.act(action, &mut events);
                }
                all.push(out);
            }
        }
        (record, all)
    }

    fn act(&mut self, action: &Action, events: &mut Vec<Event>) {
        match action {
            Action::Book(call) => self.call = Some(Call::clone(call)),
            Action::Abandon => self.call = None,
            Action::BookLocally(call) => {
                let call = Call { generations: vec![0], ..Call::clone(call) };
                let answer = self.local.reserve_at(shown(self.now), &self.limits.refs, &call);
                events.push(answered_locally(answer, Micros(u64::MAX)));
            }
            Action::Grant(_, slot, cost, holder) => self.granted.push((*slot, cost.largest(), *holder)),
            Action::Offer(batch, _) => self.offered.push_back(Batch::clone(batch)),
            Action::Withdraw => {
                let stale = self.offered.drain(..).collect();
                events.push(Event::Prefetched(PrefetchSnapshot { stale, ..PrefetchSnapshot::default() }));
            }
            _ => {}
        }
    }
}

/// Gives a record to a new core. Returns what it does.
fn replay(record: &Record) -> Vec<Vec<Action>> {
    let mut core = World::new().core;
    let each = record.iter().map(|(events, context)| {
        let mut out = Vec::new();
        core.on(events.clone(), context, &mut out);
        out
    });
    each.collect()
}

fn hash(actions: &[Vec<Action>]) -> u64 {
    let mut hasher = DefaultHasher::new();
    format!("{actions:?}").hash(&mut hasher);
    hasher.finish()
}

#[tokio::test(start_paused = true)]
async fn a_record_gives_the_same_actions_each_time_and_in_another_process() {
    let (record, actions) = World::new().run();
    let count = |is: fn(&Action) -> bool| actions.iter().flatten().filter(|action| is(action)).count();
    let granted = count(|action| matches!(action, Action::Grant(..)));
    let refused = count(|action| matches!(action, Action::Refuse(..)));
    let local = count(|action| matches!(action, Action::BookLocally(_)));
    assert!(
        granted > 100 && refused > 100 && local > 10,
        "{granted} granted, {refused} refused, {local} local"
    );
    assert_eq!(replay(&record), actions);
    assert_eq!(replay(&record), actions);
    let name = format!("{}::prints_its_actions", module_path!().trim_start_matches("weir::"));
    let arguments = ["--exact", &name, "--ignored", "--nocapture"];
    let other = Command::new(std::env::current_exe().unwrap()).args(arguments).output().unwrap();
    let printed = String::from_utf8_lossy(&other.stdout);
    assert!(printed.contains(&format!("actions {:016x}", hash(&actions))), "{printed}");
}

#[tokio::test(start_paused = true)]
#[ignore = "run by the test above, in another process"]
async fn prints_its_actions() {
    println!("actions {:016x}", hash(&World::new().run().1));
}

#[test]
fn only_the_moment_and_the_source_of_a_slot_decide_whether_it_is_usable() {
    let mut core = Driven::new(OnStoreFailure::Local);
    let slot = |source| Slot { at: shown(START), due: START, source };
    assert!(!core.0.is_usable(&slot(Source::Store(0)), START), "nothing was answered");
    core.on(START, vec![arrival(0, START, 0)]);
    core.on(START, vec![booked(START, &[])]);
    assert!(core.0.is_usable(&slot(Source::Store(0)), after(494)));
    assert!(!core.0.is_usable(&slot(Source::Store(0)), after(495)));
    assert!(!core.0.is_usable(&slot(Source::Store(1)), START));
    core.on(after(1), vec![Event::Linked(Link::Away { outage: 3 })]);
    assert!(
        core.0.is_usable(&slot(Source::Local(3)), START) && !core.0.is_usable(&slot(Source::Local(2)), START)
    );
    assert!(!core.0.is_usable(&slot(Source::Store(0)), START));
}
