//! The common parts of both cores of a worker: its end, the pauses, when a slot may be used, and when it is void. Pure.
//!
//! Knows no call and no queue of requests.

use crate::clock::{Micros, Moment};
use crate::limiter::model::{Costs, Generation};
use crate::limiter::queue::cost_queue::{Stage, Waiter};
use crate::limiter::queue::pause::Paused;
use crate::limiter::queue::request::{Holder, RequestId, Unusable};
use crate::limiter::queue::slot::{Slot, Source};
use crate::limiter::queue::worker::events::Action;
use crate::limiter::recovery::link::Link;

/// How long a worker sleeps when nothing is due. Any event wakes it earlier.
pub(super) const IDLE: Micros = Micros::from_millis(3_600_000);

/// The reason for which a worker stays or ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Stay {
    phase: Phase,
    /// True while a guard keeps the queue.
    pub(super) is_kept: bool,
    /// How long the worker stays when it has nothing to do and nobody keeps its queue.
    pub(super) linger: Micros,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Busy,
    /// There has been nothing to do since this moment.
    Idle(Moment),
    Closing,
}

/// The next step of a worker that has nothing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum IdleStep {
    /// It has something to do, or waits for something to come.
    None,
    /// It has just run out of things to do.
    Began,
    /// It has had nothing to do for long enough.
    Over,
}

impl Stay {
    pub(super) fn new(linger: Micros) -> Stay {
        Stay { phase: Phase::Busy, is_kept: false, linger }
    }

    pub(super) fn close(&mut self) {
        self.phase = Phase::Closing;
    }

    /// Returns whether weir is shutting down.
    pub(super) fn is_closing(&self) -> bool {
        self.phase == Phase::Closing
    }

    /// Returns when the worker has had nothing to do for long enough.
    pub(super) fn ends_at(&self) -> Option<Moment> {
        match self.phase {
            Phase::Idle(since) => Some(since + self.linger),
            Phase::Busy | Phase::Closing => None,
        }
    }

    /// Takes in whether a worker that is not closing has something to do.
    pub(super) fn update(&mut self, is_busy: bool, now: Moment) -> IdleStep {
        let before = std::mem::replace(&mut self.phase, Phase::Busy);
        if is_busy || self.is_kept {
            return IdleStep::None;
        }
        match before {
            Phase::Idle(since) if now < since + self.linger => {
                self.phase = before;
                IdleStep::None
            }
            Phase::Idle(_) => {
                // A permit that is out may come back.
                self.phase = Phase::Idle(now);
                IdleStep::Over
            }
            Phase::Busy | Phase::Closing => {
                self.phase = Phase::Idle(now);
                IdleStep::Began
            }
        }
    }
}

/// Pauses, as the worker keeps to them.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Pause {
    /// The pause in which no slot may be used.
    pub(super) now: Option<Paused>,
    /// True while a pause is being reported. Nothing is booked meanwhile.
    pub(super) is_reported: bool,
}

impl Pause {
    /// Returns whether a slot lies in a pause that has not ended.
    pub(super) fn holds(&self, due: Moment) -> bool {
        self.now.as_ref().is_some_and(|paused| paused.holds(due))
    }

    /// Returns when a slot may be used: in a pause, at its end.
    pub(super) fn opens(&self, due: Moment) -> Moment {
        self.now.as_ref().filter(|paused| paused.holds(due)).map_or(due, |paused| paused.until)
    }
}

/// Returns whether a slot may be used as far as the link and the lease go: whether it is due, or in a pause, is another question.
pub(super) fn is_usable(slot: &Slot, link: Link, lease: Moment, now: Moment) -> bool {
    match slot.source {
        Source::Store(epoch) => link.usable_epoch() == Some(epoch) && now < lease,
        Source::Local(outage) => outage_of(link) == outage,
        // A request that is kept back, by a pause say, is allowed nothing more when the store is there again.
        Source::Unlimited => outage_of(link) != 0,
    }
}

/// Returns whether slots of a source are of the present epoch or outage, so that they stay booked where the lease is over.
pub(super) fn is_current(source: Source, link: Link, epoch: u64) -> bool {
    match source {
        Source::Store(of) => outage_of(link) == 0 && of == epoch,
        Source::Local(outage) => outage == outage_of(link),
        Source::Unlimited => outage_of(link) != 0,
    }
}

/// Returns the instant from which a change of generations voids slots.
pub(super) fn void_from(generations: &[Generation], known: &[u64]) -> Micros {
    let changed = generations.iter().zip(known).filter(|(generation, known)| generation.number != **known);
    // A replica that has missed a change loses all its slots.
    let void_from =
        changed.map(|(change, known)| if change.before == *known { change.void_from } else { Micros::ZERO });
    void_from.min().unwrap_or_default()
}

/// Gives a slot back to this replica's own memory, with those that were given back right before.
pub(super) fn return_locally(slot: Micros, costs: Costs, out: &mut Vec<Action>) {
    match out.last_mut() {
        Some(Action::ReturnLocally(all)) => all.push((slot, costs)),
        _ => out.push(Action::ReturnLocally(vec![(slot, costs)])),
    }
}

/// Returns the number of the outage whose local slots may be used; zero for none.
pub(super) fn outage_of(link: Link) -> u64 {
    if let Link::Away { outage } = link { outage } else { 0 }
}

/// Returns the request of a permit that could not be used, as it waits again. `ends` tells when a request is refused that was asked for at
/// a moment and has a deadline.
///
/// A request that missed its slot, because the processor was busy or a connection took long to open, gets the next slot if that
/// comes at once, even after its wait has ended.
pub(super) fn waiter_again(
    slot: &Slot,
    (request, mut holder, why): (RequestId, Holder, Unusable),
    ends: impl Fn(Moment, Moment) -> Moment,
    now: Moment,
) -> Waiter {
    let own_end = ends(holder.arrived, holder.deadline);
    // The time by which its slot lay behind its wait is used up: otherwise each late slot would push the deadline back by the whole slack.
    let behind = slot.due - holder.deadline;
    holder.deadline = holder.deadline.max(now - behind);
    // The time until its slot counts as waited, the time for its connection does not.
    let waited = slot.due - holder.arrived;
    let has_missed = matches!(why, Unusable::Late | Unusable::SetAside);
    let ends = if has_missed { ends(now - waited, holder.deadline) } else { own_end };
    Waiter { request, holder, ends, stage: Stage::Approached }
}
