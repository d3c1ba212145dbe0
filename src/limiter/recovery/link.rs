//! One part of a store as this replica knows it: its clock, its epoch, and whether it answers. Pure: an event and the present
//! moment in, actions out.

use crate::clock::{Micros, Moment};
use crate::limiter::model::{Epoch, Step};
use crate::limiter::store::clock::{ClockWatch, StoreClock};

/// How long before its end a lease is no longer used: longer than clocks drift apart in a lease, or a timer is late. So what
/// follows the last lease of all can begin this much earlier.
const LEASE_MARGIN: Micros = Micros::from_millis(5);
/// How long after a request's arrival its call is sent at most, and after the begin of an outage the worker takes it in.
const OUTAGE_LEARNT: Micros = Micros::from_millis(20);
/// The longest lateness of a replica that asks a store which cannot fail. With a thousand requests at
/// once their worker may have its turn a second after they came.
const OWN_LATENESS_MAX: Micros = Micros::from_millis(10_000);

/// The state of the store, as this replica has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::limiter) enum Link {
    /// The store answers. Slots of this epoch may be used, each within the lease of its queue.
    Up {
        /// The epoch.
        epoch: u64,
    },
    /// A call has failed, or the store's clock was stepped. Slots of this epoch may be used within the lease, and what was asked
    /// is asked again.
    Held {
        /// The least epoch that the next answer must have.
        epoch: u64,
        /// When the store counts as away: every lease of every replica is over then.
        until: Moment,
    },
    /// A new epoch has begun: all earlier slots are void, and nothing is booked yet.
    Settling {
        /// The epoch.
        epoch: u64,
        /// When the store grants again.
        opens: Moment,
    },
    /// The store does not answer. All its slots are void, and limiters go by their policies.
    Away {
        /// The number of the outage. Local slots are good in it alone.
        outage: u64,
    },
}

impl Link {
    /// Returns the moment at which the link changes without an answer.
    pub(in crate::limiter) fn changes_at(self) -> Option<Moment> {
        match self {
            Link::Held { until, .. } => Some(until),
            Link::Settling { opens, .. } => Some(opens),
            Link::Up { .. } | Link::Away { .. } => None,
        }
    }

    /// Returns whether the store's epoch is not open yet.
    pub(in crate::limiter) fn is_settling(self) -> bool {
        matches!(self, Link::Settling { .. })
    }

    /// Returns the epoch whose slots may be used within their lease.
    pub(in crate::limiter) fn usable_epoch(self) -> Option<u64> {
        match self {
            Link::Up { epoch } | Link::Held { epoch, .. } => Some(epoch),
            Link::Settling { .. } | Link::Away { .. } => None,
        }
    }
}

/// The promises of a store about its calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::limiter) struct Terms {
    /// How long after the sending of an answered call its slots may be used.
    pub(in crate::limiter) lease: Micros,
    /// How long after the sending of its first failed call a store counts as away: a call's deadline and a lease.
    pub(in crate::limiter) away_after: Micros,
    /// How long an answer may take, and its slots be good: a call's deadline and a lease, and nothing of a store that cannot fail.
    pub(in crate::limiter) answer_max: Micros,
    /// The interval at which the store is asked while slots of it are held.
    pub(in crate::limiter) heartbeat: Micros,
}

impl Terms {
    /// Creates the terms of a store with this lease, whose calls fail after `timeout`.
    pub(in crate::limiter) fn new(lease: Micros, timeout: Micros) -> Terms {
        let used = lease - LEASE_MARGIN;
        let answer_max = timeout + used;
        // More than twice in each lease.
        let heartbeat = Micros(lease.0 * 2 / 5);
        Terms { lease: used, away_after: answer_max, answer_max, heartbeat }
    }

    /// Returns how long a request waits for the store's answer at least: until an outage that began with its call has begun for its worker, too,
    /// so that the policies decide.
    pub(in crate::limiter) fn answer_wait(&self) -> Micros {
        self.away_after + OUTAGE_LEARNT
    }

    /// Returns the same terms of a store that cannot fail: whoever waits for its answer waits for this replica alone.
    pub(in crate::limiter) fn without_failures(self) -> Terms {
        Terms { away_after: OWN_LATENESS_MAX, answer_max: Micros::ZERO, ..self }
    }
}

/// An event of the session with a part of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::limiter) enum SessionEvent {
    /// The answer to a call that was sent at this moment. It names the store's clock.
    Answered {
        /// When the call was sent.
        sent: Moment,
        /// The epoch in the answer.
        epoch: Epoch,
    },
    /// An epoch from an answer that came late, or to a call that was not timed.
    Announced(Epoch),
    /// The call that was sent at this moment has failed.
    Failed {
        /// When the call was sent.
        sent: Moment,
    },
    /// The ledger has followed the resets until this instant of the store's clock.
    ResetsFollowed(Micros),
    /// All queues whose bookings were moved have been told, up to a heartbeat.
    MovesTold {
        /// When the heartbeat was sent.
        sent: Moment,
        /// Its epoch, and the instant at which it was carried out.
        epoch: Epoch,
        /// False if some may have been missed since the heartbeat before.
        is_complete: bool,
    },
    /// Nothing but the present moment is new.
    Tick,
}

/// An action after an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::limiter) enum SessionAction {
    /// The store's clock was stepped: move the ledger with it.
    Step(Step),
    /// A new epoch has begun: wake all workers and the heartbeat. Slots after an instant of the store's clock are void, and were not
    /// used.
    VoidSlots {
        /// The latest slot that can have been used.
        after: Micros,
    },
    /// The store has lost its memory of all grants up to this instant of its clock: they are to be written back to the new one.
    WriteBack {
        /// The new memory.
        memory: u64,
        /// The latest time that the store's clock may show.
        until: Micros,
    },
    /// A limiter was reset: wake the heartbeat.
    Reset,
}

/// How far queues have been told which bookings the store has moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::limiter) struct MovesTold {
    /// The instant from which on nothing was missed, by the store's clock.
    pub(in crate::limiter) from: Micros,
    /// The instant of the latest heartbeat.
    pub(in crate::limiter) until: Micros,
    /// When that heartbeat was sent.
    pub(in crate::limiter) sent: Moment,
}

/// The latest resets of limiters, by the store's clock; zero for none.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(in crate::limiter) struct Resets {
    /// The one that the store has announced.
    announced: Micros,
    /// The one that the ledger has followed.
    pub(in crate::limiter) followed: Micros,
}

/// The outages of a store.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(in crate::limiter) struct Outages {
    count: u64,
    /// When the latest began.
    pub(in crate::limiter) began: Moment,
    /// When this replica last looked. Its heartbeat does so several times in a lease.
    seen: Moment,
}

/// The session with a part of a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::limiter) struct Session {
    terms: Terms,
    /// The store's clock; `None` before its first answer.
    clock: Option<ClockWatch>,
    /// The state of the store, as this replica has it.
    pub(in crate::limiter) link: Link,
    /// When the latest answered call was sent.
    contact: Option<Moment>,
    /// The latest epoch that the store has answered; zero before its first answer.
    pub(in crate::limiter) epoch: u64,
    /// The store's memory in that epoch.
    pub(in crate::limiter) memory: u64,
    /// The epoch that the store must have reached: a new one is required after its clock was stepped.
    required_epoch: u64,
    pub(in crate::limiter) outages: Outages,
    pub(in crate::limiter) resets: Resets,
    /// How far queues have been told what was moved in this epoch; `None` before its first heartbeat.
    pub(in crate::limiter) moves_told: Option<MovesTold>,
}

impl Session {
    /// Creates the session with a store that has not answered yet.
    pub(in crate::limiter) fn new(terms: Terms) -> Session {
        Session {
            terms,
            clock: None,
            link: Link::Up { epoch: 0 },
            contact: None,
            epoch: 0,
            memory: 0,
            required_epoch: 0,
            outages: Outages::default(),
            resets: Resets::default(),
            moves_told: None,
        }
    }

    /// Returns the bounds of the store's clock; `None` before its first answer.
    pub(in crate::limiter) fn clock(&self) -> Option<StoreClock> {
        self.clock.map(|clock| clock.bounds())
    }

    /// Returns the earliest epoch whose answers are accepted.
    pub(in crate::limiter) fn epoch_least(&self) -> u64 {
        self.epoch.max(self.required_epoch)
    }

    /// Takes in an event.
    pub(in crate::limiter) fn on(&mut self, event: SessionEvent, now: Moment, out: &mut Vec<SessionAction>) {
        match event {
            SessionEvent::Answered { sent, epoch } => self.answered(sent, epoch, now, out),
            SessionEvent::Announced(epoch) => {
                if self.observe(epoch, now, out) {
                    self.link = self.link_in(epoch);
                }
            }
            SessionEvent::Failed { sent } => self.failed(sent),
            SessionEvent::ResetsFollowed(at) => self.resets.followed = self.resets.followed.max(at),
            SessionEvent::MovesTold { sent, epoch, is_complete } => self.told(sent, epoch, is_complete),
            SessionEvent::Tick => {}
        }
        self.tick(now);
    }

    /// Takes in an answer. One of an earlier epoch than the least, or that shows a step of the clock, does not count as contact.
    fn answered(&mut self, sent: Moment, epoch: Epoch, now: Moment, out: &mut Vec<SessionAction>) {
        let step = match &mut self.clock {
            Some(clock) => clock.learn(sent, now, epoch.now),
            none => {
                *none = Some(ClockWatch::new(sent, now, epoch.now));
                None
            }
        };
        // A store that never loses its state answers no epoch, and its clock is this process's.
        if let Some(step) = step
            && epoch.id != 0
        {
            out.push(SessionAction::Step(step));
            self.moves_told = None;
            // The times of later resets are on another clock.
            self.resets = Resets::default();
            // A new epoch in this answer is not enough, even of a new memory: it may have begun before the step, and what others
            // have written into it since is at instants of the clock before.
            self.required_epoch = self.required_epoch.max(self.epoch.max(epoch.id) + 1);
            self.link = Link::Held { epoch: self.required_epoch, until: now + self.terms.away_after };
        }
        self.observe(epoch, now, out);
        if epoch.id >= self.epoch_least() {
            self.contact = self.contact.max(Some(sent));
            self.link = self.link_in(epoch);
        }
    }

    /// Takes in that queues know what was moved up to a heartbeat.
    fn told(&mut self, sent: Moment, epoch: Epoch, is_complete: bool) {
        if epoch.id != self.epoch_least() {
            return;
        }
        let from = self.moves_told.filter(|_| is_complete).map_or(epoch.now, |told| told.from);
        self.moves_told = Some(MovesTold { from, until: epoch.now, sent });
    }

    /// Takes in the epoch of an answer. Returns whether it is later than all before.
    fn observe(&mut self, epoch: Epoch, now: Moment, out: &mut Vec<SessionAction>) -> bool {
        let before = self.epoch;
        self.epoch = before.max(epoch.id);
        // A report that says more than was used is not on the safe side: it hides as much of what others may have been granted.
        let last_use = self.contact.map_or(now, |sent| now.min(sent + self.terms.lease));
        let until = self.clock.map_or(epoch.now, |clock| clock.used_until(last_use));
        if self.memory < epoch.memory {
            self.memory = epoch.memory;
            out.push(SessionAction::WriteBack { memory: epoch.memory, until });
        }
        if before < epoch.id {
            self.moves_told = None;
        }
        if before != 0 && before < epoch.id {
            out.push(SessionAction::VoidSlots { after: until });
        }
        if epoch.reset_at > self.resets.announced {
            self.resets.announced = epoch.reset_at;
            out.push(SessionAction::Reset);
        }
        before < epoch.id && epoch.id >= self.required_epoch
    }

    /// Returns the link after an answer in the latest epoch.
    fn link_in(&self, epoch: Epoch) -> Link {
        match (epoch.settles_until, self.clock()) {
            (Some(until), Some(clock)) => Link::Settling { epoch: epoch.id, opens: clock.due(until) },
            _ => Link::Up { epoch: epoch.id },
        }
    }

    /// Takes in a failed call. One that was sent before the latest answered call says nothing new.
    fn failed(&mut self, sent: Moment) {
        let is_new = self.contact.is_none_or(|contact| sent >= contact);
        if is_new && matches!(self.link, Link::Up { .. } | Link::Settling { .. }) {
            self.link = Link::Held { epoch: self.epoch_least(), until: sent + self.terms.away_after };
        }
    }

    fn tick(&mut self, now: Moment) {
        let seen = std::mem::replace(&mut self.outages.seen, now);
        match self.link {
            // Nobody has looked at the outage for that long, because this process stood still: the store may be back, and is asked first.
            Link::Away { .. } if now >= seen + self.terms.away_after => {
                self.link = Link::Held { epoch: self.epoch_least(), until: now + self.terms.away_after };
            }
            // This process stood still, and nobody has asked the store meanwhile: it may be there, and grant all to others.
            Link::Held { epoch, until } if now >= until + self.terms.away_after => {
                self.link = Link::Held { epoch, until: now + self.terms.away_after };
            }
            Link::Held { until, .. } if now >= until => {
                self.outages = Outages { count: self.outages.count + 1, began: until, seen: now };
                self.link = Link::Away { outage: self.outages.count };
            }
            Link::Settling { epoch, opens } if now >= opens => self.link = Link::Up { epoch },
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
