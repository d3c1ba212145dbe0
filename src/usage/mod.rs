//! The use of quotas: permits by client, route and limiter, in hours and days, of the whole fleet.
//!
//! - `counts`: what is counted, and of whom; `period`: an hour or a day.
//! - `counters`: the counters that requests add to.
//! - `unstored`: what is not in the store yet, pure.
//! - `store`: the place for the fleet's counts, and one in this process.
//! - `fleet`: what replicas tell each other of the present: rates, waiting requests, and when a limit is spent. `figures`: its form;
//!   `pace` and `forecast`, pure.
//! - `partitions`: the partitions of a limiter that matter, pure; by `largest`, a sketch.
//! - `clock`: the store's clock. `recorder`: takes the counters to the store once a minute, and reads the fleet's counts.
//!
//! Knows no request, no Redis and no HTTP.

mod clock;
mod counters;
mod counts;
mod figures;
mod fleet;
mod forecast;
mod largest;
mod numbers;
mod pace;
mod partitions;
mod period;
mod recorder;
mod store;
mod unstored;
mod waits;

pub use self::clock::StoreTime;
pub use self::counters::{Counters, Usage};
pub use self::counts::{By, Counts, Key};
pub use self::figures::{Depth, LimitReading, Reading, Sharing, UpstreamCount};
pub use self::fleet::{Fleet, FleetLimiter};
pub use self::forecast::Refill;
pub(crate) use self::numbers::float;
pub use self::partitions::{PartitionLeft, PartitionReading, PartitionUse, TopPartitions};
pub use self::period::{Per, Period};
pub use self::recorder::{Recorder, Report};
pub use self::store::{KEPT_FOR, MemoryUsage, Record, ReplicaFigures, Stamp, UsageError, UsageStore};
pub use self::unstored::Batch;
pub use self::waits::quantiles;
