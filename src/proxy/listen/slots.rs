//! Counts the connections of clients, to hold them below `server.max_connections`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::Notify;

/// The number of connections.
#[derive(Default)]
pub(crate) struct Slots {
    taken: AtomicU32,
    /// The connections among them that have not begun to speak HTTP.
    silent: AtomicU32,
    /// The connections among them that are only read to their end.
    lingering: AtomicU32,
    freed: Notify,
}

impl Slots {
    /// Counts one more connection.
    pub(crate) fn take(this: &Arc<Slots>) -> Slot {
        this.taken.fetch_add(1, Ordering::AcqRel);
        this.silent.fetch_add(1, Ordering::AcqRel);
        Slot { slots: Arc::clone(this), silent: true }
    }

    /// Counts a connection that is only read to its end; `None` if half of `connections_max` are, so that the other half stays free.
    pub(crate) fn linger(this: &Arc<Slots>, connections_max: u32) -> Option<LingerPlace> {
        let more = |count| Some(count + 1).filter(|count| *count <= connections_max.div_ceil(2));
        this.lingering.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).ok()?;
        Some(LingerPlace(Arc::clone(this)))
    }

    /// Returns the number of connections.
    pub(crate) fn taken(&self) -> u32 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Returns the number of connections that have not begun to speak HTTP.
    pub(crate) fn silent(&self) -> u32 {
        self.silent.load(Ordering::Acquire)
    }

    /// Waits until a connection has ended.
    pub(crate) async fn freed(&self) {
        self.freed.notified().await;
    }

    /// Waits until there are fewer connections than `max`, which a reload may change.
    pub(crate) async fn below(&self, max: impl Fn() -> u32) {
        while self.taken.load(Ordering::Acquire) >= max() {
            self.freed.notified().await;
        }
    }
}

/// The place of one connection, freed on drop.
pub(crate) struct Slot {
    slots: Arc<Slots>,
    silent: bool,
}

impl Slot {
    /// Counts the connection among those that are only read to their end, unless those are too many.
    pub(crate) fn linger(&self, connections_max: u32) -> Option<LingerPlace> {
        Slots::linger(&self.slots, connections_max)
    }

    /// Notes that the connection has begun to speak HTTP.
    pub(crate) fn speaks(&mut self) {
        if std::mem::take(&mut self.silent) {
            self.slots.silent.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.speaks();
        self.slots.taken.fetch_sub(1, Ordering::AcqRel);
        // The only waiter is the accept loop. `Notify` keeps one permit for it, so no wake-up is lost.
        self.slots.freed.notify_one();
    }
}

/// The place of a connection that is only read to its end, freed on drop.
pub(crate) struct LingerPlace(Arc<Slots>);

impl Drop for LingerPlace {
    fn drop(&mut self) {
        self.0.lingering.fetch_sub(1, Ordering::AcqRel);
    }
}
