//! The memory for bytes that are read ahead of requests that wait, shared by all connections of a replica.
//!
//! Knows nothing of requests and of sockets.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

/// The unit in which memory is counted: a page, so that no block of it is much smaller than what the allocator takes.
const UNIT: usize = 4096;

/// The most bytes that are held for requests whose turn is near, beside `server.body_memory`. Without them a full memory would hide
/// departures until the permits of those requests are spent.
const TURN_BYTES: usize = 32 * 1024 * 1024;

/// The memory for bytes that are read ahead.
pub(crate) struct BodyMemory {
    /// `server.body_memory`.
    waiting: Arc<Semaphore>,
    /// [`TURN_BYTES`].
    turn: Arc<Semaphore>,
    /// The size of `waiting`, in units.
    size: Mutex<usize>,
}

/// The part of the memory from which bytes are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// For all requests that wait.
    Waiting,
    /// For requests whose turn is near.
    Turn,
}

/// Bytes of the memory that are not used yet. A drop gives them back.
#[derive(Default)]
pub(crate) struct Room(Option<OwnedSemaphorePermit>);

/// Bytes of the memory that are in use. A drop gives them back.
pub(crate) struct Used(#[expect(dead_code, reason = "only held")] OwnedSemaphorePermit);

/// A wait for room, first come, first served.
pub(crate) type Asking = Pin<Box<dyn Future<Output = Room> + Send>>;

impl BodyMemory {
    /// Creates a memory of `bytes`.
    pub(crate) fn new(bytes: u64) -> BodyMemory {
        let size = units(bytes);
        let (waiting, turn) = (Arc::new(Semaphore::new(size)), Arc::new(Semaphore::new(TURN_BYTES / UNIT)));
        BodyMemory { waiting, turn, size: Mutex::new(size) }
    }

    /// Changes the size. A smaller one takes what is free at once, and in one of `tasks` the rest when it is given back.
    pub(crate) fn resize(&self, bytes: u64, tasks: &TaskTracker) {
        let size = units(bytes);
        let mut present = self.size.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *present, size);
        if size >= before {
            self.waiting.add_permits(size - before);
            return;
        }
        let missing = before - size - self.waiting.forget_permits(before - size);
        let Some(missing) = u32::try_from(missing).ok().filter(|missing| *missing > 0) else { return };
        let waiting = Arc::clone(&self.waiting);
        tasks.spawn(async move {
            if let Ok(rest) = waiting.acquire_many_owned(missing).await {
                rest.forget();
            }
        });
    }

    /// Asks for room for `bytes`, at most for a quarter of the part, so that no request has all of it.
    pub(crate) fn ask(&self, part: Part, bytes: u64) -> Asking {
        let (memory, size) = match part {
            Part::Waiting => (&self.waiting, *self.size.lock().unwrap_or_else(PoisonError::into_inner)),
            Part::Turn => (&self.turn, TURN_BYTES / UNIT),
        };
        let wanted = units(bytes).min(size / 4).max(1);
        let (memory, wanted) = (Arc::clone(memory), u32::try_from(wanted).unwrap_or(u32::MAX));
        Box::pin(async move { Room(memory.acquire_many_owned(wanted).await.ok()) })
    }
}

impl BodyMemory {
    /// Takes room for a block of `bytes` of a body that a decision needs, if there is any now.
    pub(crate) fn take_now(&self, bytes: usize) -> Option<Used> {
        let wanted = u32::try_from(units(bytes as u64)).ok()?;
        Some(Used(Arc::clone(&self.waiting).try_acquire_many_owned(wanted).ok()?))
    }
}

/// Returns how many units hold these bytes, at most what a semaphore can count.
fn units(bytes: u64) -> usize {
    usize::try_from(bytes.div_ceil(UNIT as u64)).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS)
}

impl Room {
    /// Takes up to `bytes_max` of the room for a block; `None` if there is none. Returns the size of the block, too.
    pub(crate) fn take(&mut self, bytes_max: usize) -> Option<(Used, usize)> {
        let room = self.0.as_mut()?;
        let count = room.num_permits().min(bytes_max.div_ceil(UNIT).max(1));
        Some((Used(room.split(count).filter(|_| count > 0)?), count * UNIT))
    }

    /// Waits for the room that was asked for.
    pub(crate) fn poll(&mut self, asking: &mut Option<Asking>, context: &mut Context<'_>) -> Poll<()> {
        if let Some(asked) = asking {
            *self = ready!(asked.as_mut().poll(context));
            *asking = None;
        }
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const MIB: u64 = 1024 * 1024;

    #[tokio::test]
    async fn room_is_given_back_and_goes_to_the_first_that_asked() {
        let memory = BodyMemory::new(4 * MIB);
        let mut rooms = Vec::new();
        for _ in 0..4 {
            rooms.push(memory.ask(Part::Waiting, 100 * MIB).now_or_never().expect("a quarter"));
        }
        let mut asking = memory.ask(Part::Waiting, 1);
        assert!((&mut asking).now_or_never().is_none());
        assert!(memory.ask(Part::Turn, 1).now_or_never().is_some());
        assert!(memory.take_now(1).is_none());
        let (used, bytes) = rooms[0].take(10_000).expect("room");
        assert_eq!(bytes, 3 * UNIT);
        rooms.remove(0);
        assert!((&mut asking).now_or_never().is_some(), "the rest of the room is back");
        drop(used);
    }

    #[tokio::test]
    async fn a_smaller_memory_is_smaller_when_what_is_used_has_come_back() {
        let (memory, tasks) = (BodyMemory::new(8 * MIB), TaskTracker::new());
        let rooms: Vec<_> =
            (0..4).filter_map(|_| memory.ask(Part::Waiting, 2 * MIB).now_or_never()).collect();
        assert_eq!(rooms.len(), 4);
        memory.resize(4 * MIB, &tasks);
        drop(rooms);
        tasks.close();
        tasks.wait().await;
        assert_eq!(memory.waiting.available_permits(), units(4 * MIB));
        memory.resize(6 * MIB, &tasks);
        assert_eq!(memory.waiting.available_permits(), units(6 * MIB));
    }
}
