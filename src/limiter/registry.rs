//! Stand-in until the real one is merged.

use std::sync::Arc;

use super::limit::{Limiter, LimiterName};

/// Live state.
#[derive(Clone, Debug)]
pub struct LimiterState {
    /// limiter
    pub limiter: Arc<Limiter>,
    /// waiting
    pub waiting: u32,
    /// granted
    pub granted: u64,
    /// refused
    pub refused: u64,
    /// available
    pub available: Option<Vec<u64>>,
}

/// All limiters.
#[derive(Clone, Default)]
pub struct Limiters;

impl Limiters {
    /// all
    pub async fn inspect(&self) -> Vec<LimiterState> {
        Vec::new()
    }
    /// one
    pub async fn inspect_one(&self, _name: &LimiterName) -> Option<LimiterState> {
        None
    }
    /// ready
    pub fn ready(&self) -> bool {
        true
    }
    /// up
    pub fn store_up(&self) -> bool {
        true
    }
}
