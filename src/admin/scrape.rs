//! The last reading of the metrics, which scrapes that come at the same time share. Reads nothing itself.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

/// The last reading, for scrapes that came before it began. A clone is the same one.
#[derive(Clone, Default)]
pub struct LastScrape(Arc<Mutex<Option<(Instant, Bytes)>>>);

impl LastScrape {
    /// Returns when the last reading began, and its text. Others wait meanwhile.
    pub(super) async fn lock(&self) -> MutexGuard<'_, Option<(Instant, Bytes)>> {
        self.0.lock().await
    }
}
