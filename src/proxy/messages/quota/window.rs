//! One window of an upstream's quota.

use std::time::Duration;

/// One window of an upstream's quota, with the values that the upstream reports.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QuotaWindow {
    /// The permits of the window.
    pub(crate) limit: Option<u64>,
    /// The permits left, rounded down.
    pub(crate) remaining: Option<u64>,
    /// The time until the reset; zero if it has passed.
    pub(crate) resets_in: Option<Duration>,
    /// The length of the window.
    pub(crate) length: Option<Duration>,
}
