//! A replica's heartbeat to a store, and the answer: what each knows of the other, and of the members of the fleet.

use crate::clock::Micros;
use crate::limiter::model::epoch::{Epoch, Reset};
use crate::limiter::model::grant_copy::{CopyExchange, GrantCopy};
use crate::limiter::model::limit::LimiterName;
use crate::limiter::model::partition::Partition;
use crate::limiter::model::pause::ActionByHand;

/// A replica that shares a store, as another one knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// The replica.
    pub replica: u64,
    /// For how long permits that it was granted may matter.
    pub matters_for: Micros,
    /// True if limits are divided by it, too, while the store is away.
    pub is_counted: bool,
}

/// The grants that a replica has told a store of.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Reported {
    /// The store's memory to which it has reported all that it was granted before; zero: it is new, and was granted nothing.
    pub memory: u64,
    /// The epoch to which it has reported what it granted without the store.
    pub epoch: u64,
}

/// The message that a replica sends to a store again and again.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Heartbeat {
    /// The replica; zero: nobody, who only keeps the epoch alive.
    pub replica: u64,
    /// The earliest epoch whose answers it accepts.
    pub known_epoch: u64,
    /// The instant of the store's last answer that it got; zero: none yet.
    pub heard: Micros,
    /// For how long its permits may matter from now on.
    pub matters_for: Micros,
    /// The grants that the store knows of.
    pub reported: Reported,
    /// The version of the members that it knows.
    pub version: u64,
    /// True if it ends.
    pub leaves: bool,
    /// The instant until which it has followed which bookings were moved; zero: it has to begin.
    pub followed: Micros,
    /// The other members that it knows.
    pub members: Vec<Member>,
    /// Copies of what members were granted.
    pub copies: CopyExchange,
}

/// The answer to a [`Heartbeat`].
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct HeartbeatAnswer {
    /// The epoch.
    pub epoch: Epoch,
    /// The latest resets, ascending.
    pub resets: Vec<Reset>,
    /// The version of the counted members. It grows when they change.
    pub version: u64,
    /// True if every counted member knows this version.
    pub is_known_to_all: bool,
    /// All members, the caller among them.
    pub members: Vec<Member>,
    /// The reports that members still owe.
    pub reports: Reports,
    /// The limiters, and partitions if not all, whose bookings were moved, or are to be moved by the next call, since the instant that
    /// the caller had followed; `None` if that is too long ago, or they are too many.
    pub moved: Option<Vec<Moved>>,
    /// The epoch of the layout before, which lives while replicas of it may run; zero: none.
    pub earlier_epoch: u64,
    /// The other members that have not reported what they were granted to the store's present memory.
    pub awaited: Vec<u64>,
    /// Later copies of what members were granted than the caller has.
    pub copies: Vec<GrantCopy>,
    /// The last actions by hand, ascending.
    pub by_hand: Vec<ActionByHand>,
}

/// The reports that members still owe to a store.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum Reports {
    /// A member has not reported what it was granted and the store does not know.
    #[default]
    Awaited,
    /// Nothing.
    Complete,
}

/// A limiter, or one of its partitions, whose bookings were moved; all partitions if `None`.
pub type Moved = (LimiterName, Option<Partition>);
