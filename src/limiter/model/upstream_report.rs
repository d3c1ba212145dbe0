//! An upstream's answers about its quota, on their way to the store.

use crate::clock::Micros;
use crate::limiter::model::epoch::Epoch;
use crate::limiter::model::pause::PauseRequest;

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

/// How much an upstream leaves of a limit, in an answer.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Remaining {
    /// Permits.
    pub permits: u64,
    /// How long the upstream's window is: as long as the limit's, without the guard.
    pub per: Micros,
    /// The slot of its request.
    pub slot: Micros,
    /// How long after that the answer was there.
    pub took: Micros,
}
