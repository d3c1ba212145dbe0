//! The counts of use, by client, route and limiter.

use std::ops::AddAssign;
use std::sync::Arc;

/// A way to divide the use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum By {
    /// By the names of `clients`, `other` and `none`.
    Client,
    /// By route.
    Route,
    /// By limiter.
    Limiter,
}

impl By {
    /// All of them.
    pub const ALL: [By; 3] = [By::Client, By::Route, By::Limiter];

    /// Returns its name.
    pub fn as_str(self) -> &'static str {
        match self {
            By::Client => "client",
            By::Route => "route",
            By::Limiter => "limiter",
        }
    }

    /// Returns the one of this name.
    pub fn named(name: &str) -> Option<By> {
        By::ALL.into_iter().find(|by| by.as_str() == name)
    }
}

/// A client, a route or a limiter.
pub type Key = (By, Arc<str>);

/// Permits, counted in cost. A request to a route without limiters counts with its cost, too.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Of requests that went upstream.
    pub granted: u64,
    /// Of requests that a limiter refused.
    pub refused: u64,
    /// Of requests that went upstream after a wait: a part of `granted`.
    pub waited: u64,
    /// Of requests that ended before they were sent.
    pub cancelled: u64,
}

impl Counts {
    /// Returns whether nothing was counted.
    pub fn is_zero(&self) -> bool {
        *self == Counts::default()
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, more: Counts) {
        self.granted += more.granted;
        self.refused += more.refused;
        self.waited += more.waited;
        self.cancelled += more.cancelled;
    }
}
