//! Values that cannot be wrong, and the values that pass between rooms: limits, partitions, calls and their answers,
//! refusals.
//!
//! Knows no state of a limiter, no store and no queue.

pub mod calendar_windows;
pub mod call;
pub mod clock_step;
pub mod costs;
pub mod epoch;
pub mod generations;
pub mod grant_copy;
pub mod heartbeat;
pub mod limit;
pub mod line;
pub mod outcome;
pub mod partition;
pub mod pause;
pub mod queue_limits;
pub mod quota_share;
pub mod refusal;
pub mod replica;
pub mod upstream_report;
pub mod write_back;

pub use calendar_windows::{CalendarWindows, Period, Stretch, window_of};
pub use call::{Answer, CALL_KEPT, Call, Freed, Generation, Holding, Run};
pub use clock_step::{Step, stepped};
pub use costs::{Costs, TrueCost};
pub use epoch::{Epoch, Reset};
pub use generations::{Generations, NO_GENERATION, UNKNOWN_GENERATION};
pub use grant_copy::{CopyExchange, GrantCopy};
pub use heartbeat::{Heartbeat, HeartbeatAnswer, Member, Moved, Reported, Reports};
pub use limit::{
    Algorithm, Limit, Limiter, LimiterName, Mode, OnStoreFailure, Order, Overrides, Partitioned, PausePolicy,
    Permits, RATE_MAX, Scope,
};
pub use line::{
    CLASSES_MAX, Dealt, FLOW_MIN, FLOWS_MAX, Last, LineAnswer, LineCall, NotTaken, Unused, WEIGHT_MAX,
    Waiting, Want,
};
pub use outcome::{Outcome, RetryDelay, Violated};
pub use partition::Partition;
pub use pause::{ActionByHand, Cause, Lasting, PAUSE_MAX, PauseByHand, PauseRequest, PauseStretch, Reason};
pub use queue_limits::QueueLimits;
pub use quota_share::{Bound, Class, Flow, Member as ClassMember, QuotaShare};
pub use refusal::Refusal;
pub use replica::{Replica, replica_name};
pub use upstream_report::{Remaining, ReportResult, UpstreamReport};
pub use write_back::{Unknown, WriteBack};
