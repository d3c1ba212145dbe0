//! An upstream's answers about its quota, on their way to the store.

use crate::clock::Micros;
use crate::limiter::model::epoch::Epoch;
use crate::limiter::model::pause::PauseRequest;

/// An upstream's answers about the quota of one limiter, taken together.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct UpstreamReport {
    /// The replica that got the answers.
    pub replica: u64,
    /// The latest epoch of the store that the replica knows.
    pub known_epoch: u64,
    /// The pause that the upstream asks for, if any.
    pub pause: Option<PauseRequest>,
    /// The slots of permits that the upstream refused, and how many; only where its count of permits is followed.
    pub refused: Vec<(Micros, u64)>,
    /// Permits that requests have cost beyond those that they had taken.
    pub cost: u64,
    /// The permits that the upstream leaves of rules, by their place in the limiter.
    pub remaining: Vec<(usize, Remaining)>,
}

/// The result of a report.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ReportResult {
    /// The store's epoch.
    pub epoch: Epoch,
    /// The instant of the store's clock before which nothing is booked; zero without a pause.
    pub paused_until: Micros,
    /// Permits that others have used beyond what was expected of them.
    pub external_usage: u64,
}

/// The permits that an upstream leaves of a limit, by one answer.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Remaining {
    /// The number of permits left.
    pub permits: u64,
    /// The length of the upstream's window: that of the limit, without the guard.
    pub per: Micros,
    /// The slot of the answered request.
    pub slot: Micros,
    /// How long after the slot the answer came.
    pub took: Micros,
}
