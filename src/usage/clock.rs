//! The store's clock, as it was told with its last answer.

use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

use super::store::unix_us;
use crate::clock::Micros;

/// The store's clock; this machine's until the store has answered.
#[derive(Default)]
pub struct StoreTime(Mutex<Option<(Instant, u64)>>);

impl StoreTime {
    /// Returns the present instant in microseconds since the Unix epoch.
    pub fn now_us(&self) -> u64 {
        let told = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.map_or_else(unix_us, |(at, now_us)| now_us.saturating_add(Micros::from(at.elapsed()).0))
    }

    /// Takes in what the store has told just now.
    pub(super) fn set(&self, now_us: u64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), now_us));
    }
}
