//! Where limiter state lives, as the limiter sees it.
//!
//! A store carries out a [`Call`] atomically on its own clock. The limiter neither knows nor cares which store it is.

pub mod clock;
pub(in crate::limiter) mod expiry;
pub mod memory;

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt, ready};
use tokio::sync::broadcast;

use crate::clock::Micros;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::call::Freed;
use crate::limiter::model::call::{Answer, Call};
use crate::limiter::model::epoch::{Epoch, Reset};
use crate::limiter::model::limit::LimiterName;
use crate::limiter::model::partition::Partition;
use crate::limiter::model::pause::PauseStretch;
use crate::limiter::model::pause::{Cause, Lasting};
use crate::limiter::model::replica::Replica;
use crate::limiter::model::upstream_report::{ReportResult, UpstreamReport};
use crate::limiter::model::write_back::WriteBack;

/// What is left of a limiter.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct StateView {
    /// The store's clock.
    pub now: Micros,
    /// The last booked slot; zero if nothing is booked.
    pub last: Micros,
    /// The pause that it is in.
    pub pause: Option<Lasting>,
    /// Permits that could be used at once, for each limit.
    pub available: Vec<u64>,
}

/// Why a store did not answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// No answer within the deadline. The call may have been carried out.
    #[error("the store did not answer within {}ms", .0.as_millis())]
    Timeout(std::time::Duration),
    /// The store is known to be away; it was not asked.
    #[error("the store is away")]
    Away,
    /// It could not be reached, or the connection broke.
    #[error("cannot reach the store: {0}")]
    Connection(String),
    /// It answered with an error.
    #[error("the store refused the call: {0}")]
    Refused(String),
    /// It holds something that is not weir's under a key of weir's. What is under other keys may be all right.
    #[error("the store holds what is not weir's: {0}")]
    Unreadable(String),
    /// It answered with something that is not an answer.
    #[error("the store's answer is not understood: {0}")]
    Malformed(&'static str),
}

/// A call that came to nothing as far as those are concerned for whom it was made.
pub struct Failure {
    /// Why.
    pub error: StoreError,
    /// What became of a call that was not answered in time: it may be answered yet.
    pub late: Option<LateAnswer>,
}

/// Ends when a call is answered for which nobody waits any more, or when it no longer will be.
pub type LateAnswer = BoxFuture<'static, Option<Answer>>;

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        Failure { error, late: None }
    }
}

/// News from whichever replica caused it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Announcement {
    /// Freed was given back before the last slot of a queue.
    Freed {
        /// Whose limiters and partitions the queue takes together.
        queue: Vec<(LimiterName, Option<Partition>)>,
        /// Where.
        room: Freed,
    },
    /// A limiter is paused, or goes on.
    Pause {
        /// The limiter.
        name: LimiterName,
        /// Which of its partitions; all if none.
        partition: Option<Partition>,
        /// By the store's clock.
        stretch: PauseStretch,
        /// Why, and by whom.
        cause: Cause,
    },
}

/// A place for limiter state.
pub trait Store: Send + Sync + 'static {
    /// Carries out a call for the queue that takes all of `limiter_refs` at once.
    fn reserve<'a>(
        &'a self,
        limiter_refs: &'a Arc<[LimiterRef]>,
        call: &'a Arc<Call>,
    ) -> BoxFuture<'a, Result<Answer, Failure>>;

    /// Reads what is left, and changes nothing.
    fn inspect<'a>(&'a self, limiter_ref: &'a LimiterRef) -> BoxFuture<'a, Result<StateView, StoreError>>;

    /// Keeps the store's epoch alive and tells which it is, for a caller that knows of no later one than `known`; and what has been
    /// reset of late, ascending.
    fn epoch(&self, _known: u64) -> BoxFuture<'_, Result<(Epoch, Vec<Reset>), StoreError>> {
        ready(Ok((Epoch::default(), Vec::new()))).boxed()
    }

    /// Forgets what was used of a limiter until now, in all its partitions if the limiter_ref names none.
    fn reset<'a>(&'a self, limiter_ref: &'a LimiterRef) -> BoxFuture<'a, Result<Epoch, StoreError>>;

    /// Hears what an upstream said, and tells all who share the limiter if it is paused.
    fn report_upstream<'a>(
        &'a self,
        limiter_ref: &'a LimiterRef,
        said: &'a UpstreamReport,
    ) -> BoxFuture<'a, Result<ReportResult, StoreError>>;

    /// Pauses a limiter by hand for so long, over a replica, in all its partitions if the limiter_ref names none; for no time: it
    /// goes on. Tells all who share it.
    fn pause<'a>(
        &'a self,
        limiter_ref: &'a LimiterRef,
        lasting: Micros,
        replica: u64,
    ) -> BoxFuture<'a, Result<ReportResult, StoreError>>;

    /// Charges what was granted before the store lost it.
    fn write_back<'a>(
        &'a self,
        _subject: &'a LimiterRef,
        _write: &'a WriteBack,
    ) -> BoxFuture<'a, Result<Epoch, StoreError>> {
        ready(Ok(Epoch::default())).boxed()
    }

    /// Says that a replica is there, or that it leaves, and tells who is there.
    fn register_replica<'a>(
        &'a self,
        me: &'a Replica,
        leaves: bool,
    ) -> BoxFuture<'a, Result<Vec<Replica>, StoreError>> {
        ready(Ok(if leaves { Vec::new() } else { vec![me.clone()] })).boxed()
    }

    /// What other replicas do, told without being asked; `None` where there are no others.
    fn announcements(&self) -> Option<broadcast::Receiver<Announcement>> {
        None
    }

    /// The store for the limiters of a group, where each group may be lost by itself; `None` where there is one memory for all.
    fn part(&self, _group: &str) -> Option<Arc<dyn Store>> {
        None
    }

    /// Whether there is room for the state of a partition of a limiter that may have so many of them.
    fn has_room(&self, _limiter: &LimiterName, _partition: Partition, _partitions_max: u32) -> bool {
        true
    }

    /// For how long after its last answered call a caller may trust what it was told of changed limits.
    fn lease(&self) -> Micros;

    /// Whether the store answers, as far as is known.
    fn is_up(&self) -> bool;

    /// Whether it could ever be away.
    fn may_fail(&self) -> bool {
        true
    }
}
