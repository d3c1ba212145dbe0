//! Bursts: the order in which several replicas serve one, and a worker whose turn comes late in one.

use super::*;

const REPLICAS: usize = 3;
const BURST: usize = 900;

/// How long a call, or its answer, is under way.
const LATENCY: Micros = Micros(250);

/// How long the store works on a call, and on each of its requests.
const WORK: (Micros, Micros) = (Micros(200), Micros(10));

/// A replica: its core, and its call under way.
struct Fresh {
    core: BookedCore,
    /// When the call reaches the store.
    asked: Option<(Moment, Call)>,
    /// When the answer comes, and how many requests it is for.
    answered: Option<(Moment, Answer, usize)>,
    /// Prefetched permits, which no request takes.
    offered: Vec<Batch>,
    /// The moments of arrival, in order.
    arrived: Vec<Moment>,
    slots: Vec<Micros>,
}

impl Fresh {
    fn on(&mut self, now: Moment, mut events: Vec<Event>) {
        while !events.is_empty() {
            let mut out = Vec::new();
            self.core.on(std::mem::take(&mut events), &context(now), &mut out);
            for action in out {
                match action {
                    Action::Book(call) => self.asked = Some((now + LATENCY, *call)),
                    Action::Offer(batch, _) => self.offered.push(*batch),
                    Action::Withdraw => {
                        let stale = std::mem::take(&mut self.offered);
                        let seen = PrefetchSnapshot { stale, ..PrefetchSnapshot::default() };
                        events.push(Event::Prefetched(seen));
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Sends a burst, evenly and in turn, to replicas that have seen no request. Returns each moment of arrival with the slot of the request,
/// in order of arrival.
fn burst(lasts: Micros) -> Vec<(Moment, Micros)> {
    let limits = Limits { guard: Micros::from_millis(10), ..limits(100, 30, OnStoreFailure::Local) };
    let store = MemoryStore::new(Clock::of_runtime());
    let fresh = || Fresh {
        core: BookedCore::new(limits.clone(), SECOND, START),
        asked: None,
        answered: None,
        offered: Vec::new(),
        arrived: Vec::new(),
        slots: Vec::new(),
    };
    let mut replicas: Vec<Fresh> = (0..REPLICAS).map(|_| fresh()).collect();
    let (mut sent, mut free) = (0, START);
    let mut now = START;
    while replicas.iter().map(|replica| replica.slots.len()).sum::<usize>() < BURST {
        now = now + Micros(50);
        while sent < BURST && START + Micros(lasts.0 * sent as u64 / BURST as u64) <= now {
            let replica = &mut replicas[sent % REPLICAS];
            replica.arrived.push(now);
            replica.on(now, vec![arrival(u32::try_from(sent).unwrap(), now, 30_000)]);
            sent += 1;
        }
        // The store takes one call after the other.
        let next = replicas.iter_mut().filter(|it| it.asked.as_ref().is_some_and(|(at, _)| *at <= now));
        if free <= now
            && let Some(replica) = next.min_by_key(|it| it.asked.as_ref().map(|(at, _)| *at))
            && let Some((_, call)) = replica.asked.take()
        {
            let waiting = call.runs.iter().filter(|run| run.wait_max > Micros::ZERO);
            let requests: u64 = waiting.map(|run| run.count).sum();
            free = now + WORK.0 + Micros(WORK.1.0 * requests);
            let answer = store.reserve_at(shown(now), &limits.refs, &call);
            replica.answered = Some((free + LATENCY, answer, usize::try_from(requests).unwrap()));
        }
        for replica in &mut replicas {
            if let Some((_, answer, requests)) = replica.answered.take_if(|(at, ..)| *at <= now) {
                // Those of prefetched permits come last.
                let booked = super::super::answers::each(&answer).take(requests);
                replica.slots.extend(booked.map(|outcome| match outcome {
                    Outcome::Booked(at) => at,
                    other => panic!("{other:?}"),
                }));
                replica.on(
                    now,
                    vec![Event::Answered { answer: Box::new(answer), refusal_budget: 0, sent: now }],
                );
            }
        }
        assert!(now < after(9000), "no end");
    }
    let mut all: Vec<_> = Vec::new();
    for replica in &mut replicas {
        // Slots belong to the queue: the first request gets the first one.
        replica.slots.sort_unstable();
        all.extend(replica.arrived.iter().copied().zip(replica.slots.iter().copied()));
    }
    all.sort_unstable_by_key(|(arrived, _)| *arrived);
    all
}

/// Returns how many of a thousand pairs that arrived further apart than `slack` are served in the other order.
fn disorder(served: &[(Moment, Micros)], slack: Micros) -> usize {
    let (mut pairs, mut wrong) = (0, 0);
    for (index, (arrived, slot)) in served.iter().enumerate() {
        for (later, later_slot) in &served[index + 1..] {
            if *later - *arrived > slack {
                pairs += 1;
                wrong += usize::from(later_slot < slot);
            }
        }
    }
    1000 * wrong / pairs.max(1)
}

#[tokio::test(start_paused = true)]
async fn a_burst_at_fresh_replicas_is_served_in_the_order_of_arrival() {
    for millis in [1, 5, 10, 30, 100] {
        let served = burst(Micros::from_millis(millis));
        let (all, far) = (disorder(&served, Micros::ZERO), disorder(&served, Micros::from_millis(3)));
        println!("burst of {millis} ms: {all} per mille, {far} of those 3 ms apart");
        // Arrivals within the time of a call have no order.
        assert!(all < 20 && far < 5, "burst of {millis} ms: {all} per mille, {far} of those 3 ms apart");
    }
}

#[test]
fn a_worker_that_is_late_does_not_blame_a_store_that_cannot_fail() {
    let mut core = Driven::new(OnStoreFailure::Reject);
    core.0.limits.terms = Terms::new(Micros::from_millis(500), Micros::ZERO).without_failures();
    let asked = core.on(after(3000), vec![arrival(0, START, 0)]);
    assert!(is_booking(&asked) && refusal(&asked).is_none());
    let asked = core.on(after(3001), vec![arrival(1, START, 0)]);
    assert!(refusal(&asked).is_none());
    assert!(is_granted(&core.on(after(3002), vec![booked(after(3001), &[shown(after(3001))])])));
}

/// Returns how far ahead the next call books.
fn lead(actions: &[Action]) -> Option<Micros> {
    actions.iter().find_map(|action| if let Action::Book(call) = action { Some(call.lead) } else { None })
}

#[test]
fn a_burst_is_booked_as_far_ahead_as_it_takes_to_read_it() {
    const AHEAD: Micros = Micros::from_millis(20);
    let mut core = Driven(BookedCore::new(limits(100, 30, OnStoreFailure::Local), SECOND, START));
    let burst = |from: u32, now| (from..from + 16).map(|request| arrival(request, now, 30_000)).collect();
    let all = |at: Moment| booked(at, &[shown(at); 16]);
    assert_eq!(lead(&core.on(START, vec![arrival(0, START, 30_000)])), Some(Micros::ZERO), "one alone");
    core.on(after(1), burst(1, after(1)));
    let asked = core.on(after(2), vec![booked(START, &[shown(START)])]);
    assert_eq!(lead(&asked), Some(AHEAD));
    assert!(is_granted(&core.on(after(3), vec![all(after(3))])));
    // None of them was late.
    core.on(after(300), vec![]);
    let asked = core.on(after(1500), burst(17, after(1500)));
    assert_eq!(lead(&asked), Some(Micros::ZERO));
    // These are.
    let asked = core.on(after(1600), vec![all(after(1500))]);
    assert_eq!(lead(&asked), Some(AHEAD), "those asked for in their place");
    // Where so many may not wait, they take what comes.
    core = Driven(BookedCore::new(
        Limits { max_waiting: 15, ..limits(100, 30, OnStoreFailure::Local) },
        SECOND,
        START,
    ));
    assert_eq!(lead(&core.on(START, burst(0, START))), Some(Micros::ZERO));
}

#[test]
fn a_burst_is_not_booked_ahead_where_most_of_the_limit_is_left() {
    for (left, ahead) in [(64, 20), (1000, 0)] {
        let mut core = Driven(BookedCore::new(limits(1000, 30, OnStoreFailure::Local), SECOND, START));
        core.on(START, vec![arrival(0, START, 30_000)]);
        let answer = Answer {
            now: shown(START),
            outcomes: vec![(1, Outcome::Booked(shown(START)))],
            available: vec![vec![left]],
            ..Answer::default()
        };
        core.on(START, vec![Event::Answered { answer: Box::new(answer), refusal_budget: 0, sent: START }]);
        let burst = (1..17).map(|request| arrival(request, after(1), 30_000)).collect();
        assert_eq!(lead(&core.on(after(1), burst)), Some(Micros::from_millis(ahead)), "{left} left");
    }
}
