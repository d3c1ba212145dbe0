//! The two kinds of a worker's core: one whose slots are booked when requests come, and one for callers that share the quota.

use super::events::{Action, Context, Event};
use super::limits::Limits;
use super::{core, line};
use crate::clock::{Micros, Moment};
use crate::limiter::queue::waiting::WaitingNow;

/// The core of a worker.
pub(super) enum Core {
    /// First come, first served.
    Booked(Box<core::BookedCore>),
    /// By classes and weights.
    Line(Box<line::LineCore>),
}

impl Core {
    /// Creates the core that these limits need. Its worker stays for `linger` when it has nothing to do.
    pub(super) fn new(limits: Limits, linger: Micros, now: Moment) -> Core {
        if limits.shared.is_some() {
            Core::Line(Box::new(line::LineCore::new(limits, linger, now)))
        } else {
            Core::Booked(Box::new(core::BookedCore::new(limits, linger, now)))
        }
    }

    /// Returns whether these limits need a core of the other kind.
    pub(super) fn is_other(&self, limits: &Limits) -> bool {
        matches!(self, Core::Line(_)) != limits.shared.is_some()
    }

    /// Puts the core that these limits need in the place of this one. All that wait keep their place by age; what is held is given back.
    pub(super) fn replace(&mut self, limits: Limits, now: Moment) {
        let linger = match self {
            Core::Booked(core) => core.linger(),
            Core::Line(core) => core.linger(),
        };
        let carryover = match std::mem::replace(self, Core::new(limits, linger, now)) {
            Core::Booked(core) => core.into_carryover(),
            Core::Line(core) => core.into_carryover(),
        };
        match self {
            Core::Booked(core) => core.take_over(carryover),
            Core::Line(core) => core.take_over(carryover, now),
        }
    }

    /// Takes in events that came together. The only entrance.
    pub(super) fn on(
        &mut self,
        events: impl IntoIterator<Item = Event>,
        context: &Context,
        out: &mut Vec<Action>,
    ) {
        match self {
            Core::Booked(core) => core.on(events, context, out),
            Core::Line(core) => core.on(events, context, out),
        }
    }

    /// Returns the next moment at which something happens by itself.
    pub(super) fn wakes_at(&self, context: &Context) -> Moment {
        match self {
            Core::Booked(core) => core.wakes_at(context),
            Core::Line(core) => core.wakes_at(context),
        }
    }

    /// Returns how many requests wait.
    pub(super) fn waiting(&self) -> usize {
        match self {
            Core::Booked(core) => core.waiting(),
            Core::Line(core) => core.waiting(),
        }
    }

    /// Returns when the first waiting request arrived.
    pub(super) fn first_arrived(&self) -> Option<Moment> {
        match self {
            Core::Booked(core) => core.first_arrived(),
            Core::Line(core) => core.first_arrived(),
        }
    }

    /// Shows which flows wait, where callers share the quota.
    pub(super) fn show_flows(&self, waiting: &WaitingNow) {
        match self {
            Core::Booked(_) => {}
            Core::Line(core) => waiting.set_flows(core.flows()),
        }
    }

    /// Returns when the first of those arrived for whom the call under way is; `None` if it is for nobody.
    pub(super) fn first_asked(&self) -> Option<Moment> {
        match self {
            Core::Booked(core) => core.first_asked(),
            Core::Line(core) => core.first_arrived(),
        }
    }

    /// Returns how many requests wait for the next call.
    pub(super) fn pending(&self) -> usize {
        match self {
            Core::Booked(core) => core.pending(),
            Core::Line(core) => core.pending(),
        }
    }

    /// Returns whether the core asks a store that is away for its queue alone, and so learns that it is back.
    pub(super) fn asks_while_away(&self) -> bool {
        matches!(self, Core::Booked(_))
    }

    /// Returns until when slots of the store may be used.
    pub(super) fn lease(&self) -> Moment {
        match self {
            Core::Booked(core) => core.lease(),
            Core::Line(core) => core.lease(),
        }
    }

    /// Returns the number of the outage whose local slots may be used; zero for none.
    pub(super) fn outage(&self) -> u64 {
        match self {
            Core::Booked(core) => core.outage(),
            Core::Line(core) => core.outage(),
        }
    }
}
