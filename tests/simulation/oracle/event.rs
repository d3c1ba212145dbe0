//! The input of the oracle: limiters as configured, and events in order of time.
//!
//! Every instant and duration is in whole microseconds of true time, unless it is named after the store's clock.

/// The algorithm of a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Algorithm {
    /// Every interval of length `per` holds at most `rate` permits.
    SlidingWindow,
    /// `burst` permits at once, then `rate` per `per`.
    TokenBucket {
        /// The permits in a full bucket.
        burst: u64,
    },
    /// One permit every `per / rate`.
    LeakyBucket,
    /// Windows of length `per`, aligned to zero of the store's clock.
    FixedWindow,
    /// A leaky bucket whose permits lie up to `cold` times as far apart after an idle time.
    WarmUp {
        /// The widest spacing, in multiples of `per / rate`.
        cold: u64,
    },
}

/// `rate` permits per window `per`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LimitModel {
    /// Permits in a window.
    pub(crate) rate: u64,
    /// The length of the window.
    pub(crate) per: u64,
    /// The algorithm.
    pub(crate) algorithm: Algorithm,
}

/// The policy of a limiter while the store cannot be asked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Policy {
    /// Requests are refused.
    Reject,
    /// Each replica enforces its share.
    Local,
    /// Requests pass unlimited.
    Allow,
}

/// A limiter as configured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LimiterModel {
    /// The number by which states name the limiter. A reload that changes its limits, queue, group or key keeps it.
    pub(crate) id: u32,
    /// The name, for findings.
    pub(crate) name: String,
    /// The limits, all of which hold.
    pub(crate) limits: Vec<LimitModel>,
    /// The timeout of the queue; `None`: no queue.
    pub(crate) wait_max: Option<u64>,
    /// The most requests that wait at once in one queue of one replica.
    pub(crate) max_waiting: u64,
    /// How many may wait beside these because they have a slot.
    pub(crate) slots_max: u64,
    /// How long after its slot a permit stays good; every window is widened by it.
    pub(crate) guard: u64,
    /// The policy while the store cannot be asked.
    pub(crate) policy: Policy,
    /// True if the limiter only counts.
    pub(crate) is_shadow: bool,
    /// True if each replica enforces the limiter by itself.
    pub(crate) is_per_replica: bool,
    /// False for limiters whose room depends on more than what is sent: external usage, costs that are settled upwards.
    /// They are not judged for [`What::Unused`](super::What), `NotBack` and `RefusedWithRoom`.
    pub(crate) judges_room: bool,
    /// True if callers share it: who came first does not go first.
    pub(crate) is_shared: bool,
    /// True if more partitions are asked for than a replica may have: a request may be refused for that, as for a full queue.
    pub(crate) is_crowded: bool,
}

impl LimiterModel {
    /// Returns the largest cost that every limit can ever hold.
    pub(crate) fn cost_max(&self) -> u64 {
        let of = |limit: &LimitModel| match limit.algorithm {
            Algorithm::TokenBucket { burst } => burst,
            _ => limit.rate,
        };
        self.limits.iter().map(of).min().unwrap_or(u64::MAX)
    }

    /// Returns how many replicas at most have a share of the limits: no more than there are permits at one instant.
    pub(crate) fn shares_max(&self) -> u64 {
        let at_once = self.limits.iter().map(|limit| match limit.algorithm {
            Algorithm::SlidingWindow | Algorithm::FixedWindow => limit.rate,
            Algorithm::TokenBucket { burst } => burst.min(limit.rate),
            Algorithm::LeakyBucket | Algorithm::WarmUp { .. } => 1,
        });
        at_once.min().unwrap_or(u64::MAX)
    }
}

/// A limiter and one of its partitions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct State {
    /// The number of the limiter.
    pub(crate) limiter: u32,
    /// The partition; `None`: the limiter has no key.
    pub(crate) partition: Option<u64>,
}

/// The states that a pause or a reset is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Scope {
    /// All states of a limiter.
    Limiter(u32),
    /// One state.
    State(State),
}

impl Scope {
    /// Returns the number of the limiter.
    pub(crate) fn limiter(self) -> u32 {
        match self {
            Scope::Limiter(limiter) | Scope::State(State { limiter, .. }) => limiter,
        }
    }
}

/// The reason of a refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Why {
    /// No permit within the wait.
    RateLimited,
    /// As many requests wait as may.
    QueueFull,
    /// The store cannot be asked, and the policy is to refuse.
    StoreUnavailable,
    /// The replica or the queue ends; also a pause that is longer than the wait.
    Closed,
    /// The cost is above what the limits ever allow.
    TooCostly,
}

/// The properties of a fault that the oracle has to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FaultKind {
    /// The name, for findings.
    pub(crate) name: &'static str,
    /// True if somebody may not know afterwards what was granted: a flush, a restart, a failover, an eviction, a replica
    /// killed or cut off, an outage long enough for local shares. For a window after it nobody is blamed for refusing.
    pub(crate) loses_knowledge: bool,
    /// True if calls to the store may fail: limiters with [`Policy::Allow`] are not judged.
    pub(crate) touches_store: bool,
    /// The replica that is cut off from the store, or hears it late: it goes by its share.
    pub(crate) apart: Option<usize>,
    /// The percentage by which limiters may go over in windows that touch the fault, because nobody can promise better.
    pub(crate) excess: Excess,
}

/// The percentages of a limit that nobody can promise to hold in a fault; [`Excess::ANY`]: the fault excuses everything.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Excess {
    /// For limiters with [`Policy::Local`]: the shares of the replicas that are cut off, two primaries (100).
    pub(crate) local: u64,
    /// For all others: two primaries (100).
    pub(crate) other: u64,
}

impl Excess {
    /// The percentage that stands for no judgement at all.
    pub(crate) const ANY: u64 = u64::MAX;
}

/// Something that happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// A start or a reload of the whole fleet, or of one replica. While replicas differ, the loosest of their
    /// configurations is judged by; the next one of the whole fleet ends that.
    Configured { replica: Option<usize>, limiters: Vec<LimiterModel> },
    /// A request has come to a replica, with its cost at each state.
    Arrived { request: u64, replica: usize, costs: Vec<(State, u64)>, wait_max: Option<u64> },
    /// A request has a place in the queue.
    Waiting { request: u64 },
    /// A request has its turn, and waits for its connection, which takes its own time.
    Connecting { request: u64 },
    /// The connection of a request is there.
    Connected { request: u64 },
    /// A request is written upstream.
    Sent { request: u64, store_clock: u64 },
    /// A request is refused.
    Refused { request: u64, why: Why, store_clock: u64 },
    /// The client went away.
    Left { request: u64 },
    /// The true cost of a request, sent at `sent_at`, was lower by `less` at each state. It is told when the request is sent.
    Settled { replica: usize, less: Vec<(State, u64)>, sent_at: u64 },
    /// The response to a request, sent at `sent_at`, has told the replica that it cost more than its estimate, by `more` at each state.
    Exceeded { replica: usize, more: Vec<(State, u64)>, sent_at: u64 },
    /// A fault begins; `fault` is its number.
    FaultBegins { fault: u64, kind: FaultKind },
    /// A fault is over.
    FaultEnds { fault: u64 },
    /// The store's clock jumps: fixed windows across this instant are not judged.
    ClockStepped,
    /// The step was made while no replica could see it: fixed windows are not judged.
    ClockHidden,
    /// Replicas can see the clock again, and have within a lease.
    ClockShown,
    /// Earlier requests no longer count.
    Reset(Scope),
    /// A pause begins, for the fleet.
    Paused(Scope),
    /// A pause is over.
    Resumed(Scope),
    /// A replica stands still (SIGSTOP): its lateness is not its fault.
    ReplicaStopped { replica: usize },
    /// A replica does nothing until an instant, because its processor is busy. That counts as waiting, but what comes meanwhile is seen
    /// then, and an answer that was due is given then.
    ReplicaStalled { replica: usize, until: u64 },
    /// A replica runs again.
    ReplicaContinued { replica: usize },
    /// A replica is killed or has ended: its requests are gone, and a process that starts in its place begins anew.
    ReplicaEnded { replica: usize },
    /// Time has passed, and demand has stopped for longer than anybody waits.
    Ended,
}
