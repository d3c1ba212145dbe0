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
use crate::limiter::arithmetic::external_usage::Remaining;
use crate::limiter::arithmetic::pause::{Cause, Lasting, PauseRequest};
use crate::limiter::arithmetic::queue_order::Freed;
use crate::limiter::arithmetic::reserve::{Answer, Call};
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::model::limit::{Limiter, LimiterName};
use crate::limiter::model::partition::Partition;
use crate::limiter::recovery::members::Replica;

/// The part of a limiter that a store needs: where its state is, and its rules.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LimiterRef {
    /// The limiter.
    pub name: LimiterName,
    /// Which of its partitions, if it has any.
    pub partition: Option<Partition>,
    /// Its group: what is taken together lives together.
    pub group: Arc<str>,
    /// Its limits, widened by its guard.
    pub rules: Arc<[Rule]>,
    /// From when on, by the store's clock, they must be made anew, because windows of a calendar go on; `None`: never.
    pub valid_until: Option<Micros>,
}

impl LimiterRef {
    /// The limiter_ref of a limiter, or of one of its partitions, as of `now` by the store's clock.
    pub fn new(limiter: &Limiter, partition: Option<Partition>, now: Micros) -> LimiterRef {
        let guard = Micros::from(limiter.guard);
        let (rules, valid_until): (Vec<_>, Vec<_>) =
            limiter.limits.iter().map(|limit| Rule::new(limit, guard, now)).unzip();
        LimiterRef {
            name: limiter.name.clone(),
            partition,
            group: limiter.group.clone(),
            rules: rules.into(),
            valid_until: valid_until.into_iter().flatten().min(),
        }
    }
}

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

/// No slot between these instants of the store's clock may be used. None at all lies between them where a pause was lifted.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct PauseStretch {
    /// When the pause was heard of.
    pub from: Micros,
    /// When it ends.
    pub until: Micros,
}

/// What an upstream said of its quota, for one limiter.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct UpstreamReport {
    /// The replica that heard it.
    pub replica: u64,
    /// The latest epoch of the store that it has heard of.
    pub known: u64,
    /// The upstream asks to be left alone.
    pub pause: Option<PauseRequest>,
    /// The slots of permits that it refused, and how many, where it matters what it counts.
    pub refused: Vec<(Micros, u64)>,
    /// Permits that a request has cost beyond what it had taken.
    pub cost: u64,
    /// How much it leaves, of rules by their place in the limiter_ref.
    pub remaining: Vec<(usize, Remaining)>,
}

/// What came of that.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ReportResult {
    /// The store's memory.
    pub epoch: Epoch,
    /// Until when nothing is booked, by the store's clock; zero if it is not paused.
    pub paused_until: Micros,
    /// How many permits were charged because the upstream leaves less than was thought.
    pub drift: u64,
}

/// The time between two losses of a store's memory.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Epoch {
    /// The store's clock when it was asked.
    pub now: Micros,
    /// Which: a later one has a greater number. Zero where nothing is ever lost.
    pub id: u64,
    /// Until when, by the store's clock, nothing is granted in it.
    pub settles_until: Option<Micros>,
    /// When a limiter was last reset, by the store's clock; zero if none was of late.
    pub reset_at: Micros,
}

/// A limiter was reset, or one of its partitions: what was used before no longer counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reset {
    /// The limiter.
    pub name: LimiterName,
    /// Which of its partitions; all if none.
    pub partition: Option<Partition>,
    /// When, by the store's clock.
    pub at: Micros,
}

/// Why a store does not know what a replica was granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unknown {
    /// It has lost it.
    Lost,
    /// It was away, and permits may have been granted without it from so long ago on.
    Away(Micros),
}

/// What a replica was granted under one limiter, for a store that does not know it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WriteBack {
    /// The replica.
    pub replica: u64,
    /// Why the store does not know it.
    pub unknown: Unknown,
    /// Grows with each write of a replica that is unknown for that reason: what comes twice counts once.
    pub number: u64,
    /// The epoch that the replica has heard of.
    pub known: u64,
    /// How much of the limiter's tightest limit was lately seen in use, by whomever.
    pub seen: u64,
    /// What the store's clock showed when this was made, as far as is known: it may be carried out much later. Zero if it
    /// has not been heard.
    pub sent: Micros,
    /// How many microseconds before that permits were used, the longest first, and how many; less than zero: will be used.
    pub entries: Vec<(i64, u64)>,
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
