//! The places for limiter state. A store carries out a [`Call`] atomically, on its own clock.
//!
//! Holds the trait, the store in this process, and what a replica knows of a store's clock. Knows no Redis and no queue.

pub(in crate::limiter) mod call_gate;
pub mod clock;
pub(in crate::limiter) mod expiry;
pub mod memory;

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt, ready};
use tokio::sync::broadcast;

use crate::clock::Micros;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::{
    Answer, Call, Cause, Epoch, Freed, Heartbeat, HeartbeatAnswer, Lasting, LimiterName, Partition,
    PauseByHand, PauseStretch, Replica, ReportResult, UpstreamReport, WriteBack,
};

/// The state of a limiter as it is shown.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct StateView {
    /// The store's clock.
    pub now: Micros,
    /// The last booked slot; zero without bookings.
    pub last: Micros,
    /// The pause in force.
    pub pause: Option<Lasting>,
    /// For each limit: the permits that could be used at once.
    pub available: Vec<u64>,
}

/// The reason why a store did not answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// No answer within the deadline. The call may have been carried out.
    #[error("the store did not answer within {}ms", .0.as_millis())]
    Timeout(std::time::Duration),
    /// The circuit is open: the store is known to be away, and was not asked.
    #[error("the store is away")]
    Away,
    /// The store could not be reached, or the connection broke.
    #[error("cannot reach the store: {0}")]
    Connection(String),
    /// The server of the store takes no writes, or no more: another one may.
    #[error("cannot reach the store: {0}")]
    NotPrimary(String),
    /// The store answered with an error.
    #[error("the store refused the call: {0}")]
    Refused(String),
    /// A key of weir's holds something that weir has not written. Other keys may be all right.
    #[error("the store holds a foreign value: {0}")]
    Unreadable(String),
    /// The store has carried the call out, but no replica of it has confirmed that in time.
    #[error("no replica of the store has confirmed the call in time")]
    Unconfirmed,
    /// The store keeps as many actions by hand as it may. Nothing has changed.
    #[error("{0}")]
    Full(String),
    /// The answer does not have the form of one.
    #[error("the store's answer is not understood: {0}")]
    Malformed(&'static str),
}

impl StoreError {
    /// Returns whether a call over another connection may do better.
    pub fn is_of_connection(&self) -> bool {
        matches!(self, StoreError::Connection(_) | StoreError::NotPrimary(_))
    }
}

/// A failed call. It may still complete late.
pub struct Failure<T = Answer> {
    /// The reason.
    pub error: StoreError,
    /// The late answer to a call that was not answered in time.
    pub late: Option<LateAnswer<T>>,
}

/// Resolves to the answer to a call that nobody waits for any more; `None` if none came.
pub type LateAnswer<T = Answer> = BoxFuture<'static, Option<T>>;

impl<T: Send + 'static> Failure<T> {
    /// Returns the failure with a late answer that was read; `None` is one that cannot be read.
    pub fn read<U>(self, read: impl FnOnce(T) -> Option<U> + Send + 'static) -> Failure<U> {
        let late = self.late.map(|late| -> LateAnswer<U> { async move { read(late.await?) }.boxed() });
        Failure { error: self.error, late }
    }
}

impl<T> From<StoreError> for Failure<T> {
    fn from(error: StoreError) -> Failure<T> {
        Failure { error, late: None }
    }
}

/// An event that a replica announces to all others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Announcement {
    /// Permits were given back before the last slot of a queue.
    Freed {
        /// The limiters and partitions that the queue takes together.
        queue: Vec<(LimiterName, Option<Partition>)>,
        /// The slot, and how many permits.
        freed: Freed,
    },
    /// A limiter was paused, or its pause was lifted.
    Pause {
        /// The limiter.
        name: LimiterName,
        /// The partition; all of them if `None`.
        partition: Option<Partition>,
        /// The instants of the pause, by the store's clock.
        stretch: PauseStretch,
        /// The reason, and the replica.
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

    /// Returns the state of a limiter, and changes nothing.
    fn inspect<'a>(&'a self, limiter_ref: &'a LimiterRef) -> BoxFuture<'a, Result<StateView, StoreError>>;

    /// Keeps the store's epoch alive, tells the store of a replica, and returns what a replica must know.
    fn heartbeat<'a>(
        &'a self,
        _heartbeat: &'a Heartbeat,
    ) -> BoxFuture<'a, Result<HeartbeatAnswer, StoreError>> {
        ready(Ok(HeartbeatAnswer::default())).boxed()
    }

    /// Writes the states of these limiters, all partitions included, for replicas of the layout before.
    fn hand_over<'a>(&'a self, _limiter_refs: &'a [LimiterRef]) -> BoxFuture<'a, Result<(), StoreError>> {
        ready(Ok(())).boxed()
    }

    /// Forgets the permits used of a limiter until now, in all partitions if `limiter_ref` names none. They matter for `seen_for` at most.
    fn reset<'a>(
        &'a self,
        limiter_ref: &'a LimiterRef,
        seen_for: Micros,
    ) -> BoxFuture<'a, Result<Epoch, StoreError>>;

    /// Applies an upstream's report to a limiter, and announces a pause to all replicas.
    fn report_upstream<'a>(
        &'a self,
        limiter_ref: &'a LimiterRef,
        report: &'a UpstreamReport,
    ) -> BoxFuture<'a, Result<ReportResult, Failure<ReportResult>>>;

    /// Pauses a limiter by hand, or lifts its pause, in all partitions if `limiter_ref` names none, and announces it to all
    /// replicas. Returns the pause that is in force then: a later action by hand stays.
    fn pause<'a>(
        &'a self,
        limiter_ref: &'a LimiterRef,
        pause: &'a PauseByHand,
    ) -> BoxFuture<'a, Result<ReportResult, StoreError>>;

    /// Charges grants that the store does not know.
    fn write_back<'a>(
        &'a self,
        _limiter_ref: &'a LimiterRef,
        _write: &'a WriteBack,
    ) -> BoxFuture<'a, Result<Epoch, StoreError>> {
        ready(Ok(Epoch::default())).boxed()
    }

    /// Registers a replica, or removes it if it leaves. Returns the registered replicas.
    fn register_replica<'a>(
        &'a self,
        me: &'a Replica,
        leaves: bool,
    ) -> BoxFuture<'a, Result<Vec<Replica>, StoreError>> {
        ready(Ok(if leaves { Vec::new() } else { vec![me.clone()] })).boxed()
    }

    /// Subscribes to the announcements of other replicas; `None` if the store is not shared.
    fn announcements(&self) -> Option<broadcast::Receiver<Announcement>> {
        None
    }

    /// Returns the part of the store for a group of limiters; `None` if all groups live and fail together.
    fn part(&self, _group: &str) -> Option<Arc<dyn Store>> {
        None
    }

    /// Returns whether the store may keep the state of a further partition of a limiter, or has it already.
    fn has_room(&self, _limiter: &LimiterName, _partition: Partition, _partitions_max: u32) -> bool {
        true
    }

    /// Returns how long after its last answered call a caller may rely on the limits that it knows.
    fn lease(&self) -> Micros;

    /// Returns how long after its sending a call has been answered or has failed; zero where calls are answered at once.
    fn timeout(&self) -> Micros {
        Micros::ZERO
    }

    /// Returns whether the store answered lately.
    fn is_up(&self) -> bool;

    /// Returns whether the store could ever be unreachable.
    fn may_fail(&self) -> bool {
        true
    }
}
