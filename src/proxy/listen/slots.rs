//! Counts the connections of clients, to hold them below `server.max_connections`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::Notify;

/// The number of connections.
#[derive(Default)]
pub(crate) struct Slots {
    taken: AtomicU32,
    freed: Notify,
}

impl Slots {
    /// Counts one more connection.
    pub(crate) fn take(this: &Arc<Slots>) -> Slot {
        this.taken.fetch_add(1, Ordering::AcqRel);
        Slot(Arc::clone(this))
    }

    /// Returns the number of connections.
    pub(crate) fn taken(&self) -> u32 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Waits until there are fewer connections than `max`, which a reload may change.
    pub(crate) async fn below(&self, max: impl Fn() -> u32) {
        while self.taken.load(Ordering::Acquire) >= max() {
            self.freed.notified().await;
        }
    }
}

/// The place of one connection, freed on drop.
pub(crate) struct Slot(Arc<Slots>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::AcqRel);
        // The only waiter is the accept loop. `Notify` keeps one permit for it, so no wake-up is lost.
        self.0.freed.notify_one();
    }
}
