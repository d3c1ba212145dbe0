//! The connections of the admin listener: a bounded number, of which the one that has been idle for longest makes room for a new one.
//!
//! Knows nothing of requests.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::{AbortHandle, Id, JoinSet};
use tokio::time::Instant;
use tokio_util::io::{InspectReader, InspectWriter};

use crate::clock::millis;

/// The most connections: enough for scrapers, operators and, beside them, a probe.
const CONNECTIONS_MAX: usize = 256;

/// The state of one connection, for the choice of the one that makes room.
pub(super) struct Watch {
    opened: Instant,
    /// When bytes last went either way, in milliseconds since it was opened.
    moved_ms: AtomicU64,
    /// The requests that are being answered.
    answering: AtomicU32,
}

impl Watch {
    /// Begins to watch a connection.
    pub(super) fn new() -> Watch {
        Watch { opened: Instant::now(), moved_ms: AtomicU64::new(0), answering: AtomicU32::new(0) }
    }

    fn moves(&self) {
        self.moved_ms.store(millis(self.opened.elapsed()), Ordering::Relaxed);
    }

    /// Notes that a request is being answered, until the result is dropped.
    pub(super) fn answers(&self) -> Answering<'_> {
        self.answering.fetch_add(1, Ordering::Relaxed);
        Answering(self)
    }

    /// Returns the order in which connections make room: idle ones first, and of those the ones that have been so for longest. A client
    /// that does not read its answer is idle, too.
    fn rank(&self) -> (bool, Instant) {
        let moved = Duration::from_millis(self.moved_ms.load(Ordering::Relaxed));
        (self.answering.load(Ordering::Relaxed) > 0, self.opened + moved)
    }
}

/// A request that is being answered.
pub(super) struct Answering<'a>(&'a Watch);

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.0.answering.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The open connections.
#[derive(Default)]
pub(super) struct Connections {
    tasks: JoinSet<()>,
    open: HashMap<Id, (AbortHandle, Arc<Watch>)>,
}

impl Connections {
    /// Adds a connection. If there are too many, another one makes room.
    pub(super) fn add(&mut self, watch: Arc<Watch>, serving: impl Future<Output = ()> + Send + 'static) {
        while self.open.len() >= CONNECTIONS_MAX && self.drop_one(Duration::ZERO) {}
        let task = self.tasks.spawn(serving);
        self.open.insert(task.id(), (task, watch));
    }

    /// Closes the connection that has been idle for longest, or else a busy one; false if none has been silent for `silence`.
    pub(super) fn drop_one(&mut self, silence: Duration) -> bool {
        let ranked = self.open.iter().map(|(id, (_, watch))| (watch.rank(), *id));
        let ranked = ranked.filter(|((_, moved), _)| moved.elapsed() >= silence);
        let first = ranked.min_by_key(|(rank, _)| *rank).map(|(_, id)| id);
        let Some((task, _)) = first.and_then(|id| self.open.remove(&id)) else { return false };
        task.abort();
        true
    }

    /// Waits until a connection has ended; for ever without one.
    pub(super) async fn ended(&mut self) {
        match self.tasks.join_next_with_id().await {
            None => std::future::pending().await,
            Some(Ok((id, ()))) => drop(self.open.remove(&id)),
            Some(Err(error)) => drop(self.open.remove(&error.id())),
        }
    }

    /// Waits until all have ended.
    pub(super) async fn all_ended(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

/// A descriptor that is kept for a connection when there is no other one.
pub(super) struct Spare(Option<File>);

impl Spare {
    /// Takes a descriptor, if there is one.
    pub(super) fn new() -> Spare {
        Spare(Spare::open())
    }

    fn open() -> Option<File> {
        File::open("/dev/null").ok()
    }

    /// Makes the descriptor free; false if it is not there.
    pub(super) fn free(&mut self) -> bool {
        self.0.take().is_some()
    }

    /// Takes a descriptor again, if it was used and there is one.
    pub(super) fn refill(&mut self) {
        self.0 = self.0.take().or_else(Spare::open);
    }
}

/// Returns a stream that tells its watch when bytes move.
pub(super) fn watched(
    stream: TcpStream,
    watch: Arc<Watch>,
) -> impl AsyncRead + AsyncWrite + Unpin + Send + 'static {
    let of_reader = Arc::clone(&watch);
    InspectReader::new(InspectWriter::new(stream, move |_| watch.moves()), move |_| of_reader.moves())
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_one_that_was_idle_for_longest_makes_room() {
        let mut connections = Connections::default();
        let mut watches = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            let watch = Arc::new(Watch::new());
            connections.add(Arc::clone(&watch), std::future::pending());
            watches.push(watch);
            sleep(Duration::from_millis(1)).await;
        }
        // The first is busy and the second has moved; so the third has been idle for longest.
        let _answering = watches[0].answers();
        watches[1].moves();
        connections.add(Arc::new(Watch::new()), std::future::pending());
        let is_open =
            |watch: &Arc<Watch>| connections.open.values().any(|(_, open)| Arc::ptr_eq(open, watch));
        let gone: Vec<_> = (0..CONNECTIONS_MAX).filter(|index| !is_open(&watches[*index])).collect();
        assert_eq!(gone, [2]);
        assert_eq!(connections.open.len(), CONNECTIONS_MAX);
    }
}
