//! Who has used what: permits by client, route and limiter, in hours and days, of the whole fleet.
//!
//! - `counts`: what is counted, and of whom; `period`: an hour or a day.
//! - `tally`: the counters that requests add to.
//! - `ledger`: what is not in the store yet, pure.
//! - `store`: the place for the fleet's counts, and one in this process.
//! - `book`: takes the counters to the store once a minute, and reads the fleet's counts.
//!
//! Knows no request, no Redis and no HTTP.

mod book;
mod counts;
mod ledger;
mod period;
mod store;
mod tally;

pub use self::book::{Book, Report};
pub use self::counts::{By, Counts, Key};
pub use self::ledger::Batch;
pub use self::period::{Per, Period};
pub use self::store::{KEPT_FOR, MemoryUsage, Record, Stamp, UsageError, UsageStore};
pub use self::tally::{Cell, Usage};
