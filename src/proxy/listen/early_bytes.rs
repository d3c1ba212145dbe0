//! Reads on, on a connection of HTTP/1, while its request waits for its turn: a client that has left is seen only behind the bytes
//! that it sent before.
//!
//! hyper reads a body when somebody wants it, and no further request before this one is answered. So what else has arrived is held here
//! until hyper reads it, within [`BodyMemory`]. Knows nothing of HTTP.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop::has_budget_remaining;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::io::poll_read_buf;

use super::tls::{Wire, tcp_of};
use crate::proxy::net::body_memory::{Asking, BodyMemory, Part, Room, Used};
use crate::proxy::net::stream::READ_MAX;

/// The largest block of memory.
const BLOCK: usize = 64 * 1024;
/// The most bytes that are read of one request when its turn is near. Before the end of a client that has left stands what its kernel
/// holds, 4 MiB by Linux's defaults, and what weir's does.
const TURN_MAX: u64 = 8 * 1024 * 1024;
/// The longest time that a request whose turn has come waits for memory to look.
const LOOK_TIME_MAX: Duration = Duration::from_secs(1);
/// So many bytes that have waited to be read may have filled the window of their client, whose kernel sends the rest, and the end, only now:
/// Linux begins with windows of some 64 KiB, of which the head takes a part.
const HELD_UP: u64 = 32 * 1024;
/// The time in which that arrives.
const ARRIVES_IN: Duration = Duration::from_millis(20);

/// A client's stream, which hyper and a waiting request share.
#[derive(Clone)]
pub(crate) struct ClientWire(Arc<Mutex<Shared>>);

struct Shared {
    wire: Wire,
    early: Early,
}

/// The bytes that were read early, and the memory for more.
struct Early {
    blocks: VecDeque<Block>,
    /// Memory for further blocks.
    room: Room,
    asking: Option<Asking>,
    part: Part,
    /// The bytes of the body that are still to come, as far as that is known.
    expected: u64,
    /// The bytes that may still be read because the turn is near.
    turn_left: u64,
    /// Until when more may arrive of what was held up before the turn was near; `None` before the first look.
    held_up_until: Option<Instant>,
    seen: StreamEnd,
}

/// The known state of the end of the client's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamEnd {
    /// It may stand behind bytes that were not read.
    Unknown,
    /// All that has arrived was read since the turn is near, or as much as may be.
    Looked,
    /// The client will send nothing more.
    Ended,
}

/// Bytes that were read, with the memory that they take.
struct Block {
    bytes: BytesMut,
    _used: Used,
}

impl Block {
    fn is_full(&self) -> bool {
        // A read of fewer bytes is not worth its price.
        self.bytes.capacity() - self.bytes.len() < 1024
    }
}

impl Early {
    fn new() -> Early {
        Early {
            blocks: VecDeque::new(),
            room: Room::default(),
            asking: None,
            part: Part::Waiting,
            expected: 0,
            turn_left: 0,
            held_up_until: None,
            seen: StreamEnd::Unknown,
        }
    }

    /// Begins for a request of whose body `expected` bytes are still to come.
    fn begin(&mut self, expected: u64) {
        (self.part, self.expected, self.turn_left) = (Part::Waiting, expected, 0);
        self.look_again();
    }

    /// Forgets that all was read: more may have arrived.
    fn look_again(&mut self) {
        if self.seen != StreamEnd::Ended {
            self.seen = StreamEnd::Unknown;
        }
    }

    fn turn_is_near(&mut self) {
        (self.part, self.turn_left, self.asking) = (Part::Turn, TURN_MAX, None);
        self.held_up_until = None;
    }

    /// Notes that all which has arrived was read, or as much as may be. By how much that was at first, and by nothing that comes later, one
    /// can tell that it was held up.
    fn looked(&mut self) {
        self.seen = StreamEnd::Looked;
        let was_held_up = TURN_MAX - self.turn_left >= HELD_UP && self.turn_left > 0;
        let more = if was_held_up { ARRIVES_IN } else { Duration::ZERO };
        self.held_up_until.get_or_insert_with(|| Instant::now() + more);
    }

    /// Gives back what is not used.
    fn end(&mut self) {
        (self.room, self.asking) = (Room::default(), None);
    }

    /// Waits until the last block has room.
    fn poll_block(&mut self, memory: &BodyMemory, context: &mut Context<'_>) -> Poll<()> {
        if self.blocks.back().is_some_and(|block| !block.is_full()) {
            return Poll::Ready(());
        }
        loop {
            ready!(self.room.poll(&mut self.asking, context));
            if let Some((used, size)) = self.room.take(BLOCK) {
                self.blocks.push_back(Block { bytes: BytesMut::with_capacity(size), _used: used });
                return Poll::Ready(());
            }
            let wanted = match (self.part, self.expected) {
                (Part::Turn, 0) => self.turn_left,
                (Part::Turn, expected) => expected,
                (Part::Waiting, 0) => BLOCK as u64,
                // One block at a time: what is announced may never be sent, and others wait for that memory.
                (Part::Waiting, expected) => expected.min(BLOCK as u64),
            };
            self.asking = Some(memory.ask(self.part, wanted));
        }
    }

    /// Reads what has arrived. Ready at the end of the stream.
    fn poll(&mut self, wire: &mut Wire, memory: &BodyMemory, context: &mut Context<'_>) -> Poll<()> {
        let (mut has_read, is_near) = (false, self.part == Part::Turn);
        while self.seen != StreamEnd::Ended {
            // No memory is asked for before there is something to read.
            let has_arrived = tcp_of(wire).poll_read_ready(context).is_ready();
            if !has_arrived || (is_near && self.turn_left == 0) {
                // The runtime makes a task wait that has done much at once, whatever has arrived, and tells of the rest a moment later.
                let is_all = self.turn_left == 0 || tcp_of(wire).is_silent();
                if is_near && has_budget_remaining() && is_all {
                    self.looked();
                }
                break;
            }
            if self.poll_block(memory, context).is_pending() {
                break;
            }
            let Some(block) = self.blocks.back_mut() else { break };
            let Poll::Ready(read) = poll_read_buf(Pin::new(&mut *wire), context, &mut block.bytes) else {
                continue;
            };
            let count = read.unwrap_or(0) as u64;
            if count == 0 {
                self.seen = StreamEnd::Ended;
            }
            has_read = true;
            self.expected = self.expected.saturating_sub(count);
            self.turn_left = self.turn_left.saturating_sub(count);
        }
        if self.blocks.back().is_some_and(|block| block.bytes.is_empty()) {
            self.blocks.pop_back();
        }
        if has_read {
            // hyper may wait for these bytes.
            context.waker().wake_by_ref();
        }
        if self.seen == StreamEnd::Ended { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Moves bytes into a reader's buffer; returns whether there were any.
    fn give(&mut self, buffer: &mut ReadBuf<'_>) -> bool {
        let Some(block) = self.blocks.front_mut() else { return false };
        let count = block.bytes.len().min(buffer.remaining()).min(READ_MAX);
        buffer.put_slice(block.bytes.get(..count).unwrap_or_default());
        block.bytes.advance(count);
        if block.bytes.is_empty() {
            self.blocks.pop_front();
        }
        true
    }
}

impl ClientWire {
    /// Takes a stream over.
    pub(crate) fn new(wire: Wire) -> ClientWire {
        ClientWire(Arc::new(Mutex::new(Shared { wire, early: Early::new() })))
    }

    /// Returns a reader that does not keep the stream open.
    pub(crate) fn reader(&self, memory: Arc<BodyMemory>) -> EarlyReader {
        EarlyReader { wire: Arc::downgrade(&self.0), memory: Some(memory) }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        lock(&self.0)
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl AsyncRead for ClientWire {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let shared = &mut *self.lock();
        if shared.early.give(buffer) {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut shared.wire).poll_read(context, buffer)
    }
}

impl AsyncWrite for ClientWire {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.lock().wire).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.lock().wire).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.lock().wire.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.lock().wire).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.lock().wire).poll_shutdown(context)
    }
}

/// Reads early for the requests of one connection; does nothing over HTTP/2, where the connection itself reads on.
#[derive(Default)]
pub(crate) struct EarlyReader {
    wire: Weak<Mutex<Shared>>,
    memory: Option<Arc<BodyMemory>>,
}

impl EarlyReader {
    /// Begins to read early for a request that waits, of whose body `expected` bytes are still to come. A drop ends it.
    pub(crate) fn begin(&self, expected: u64) -> Option<EarlyReading<'_>> {
        let (wire, memory) = (self.wire.upgrade()?, self.memory.as_ref()?);
        lock(&wire).early.begin(expected);
        Some(EarlyReading { wire, memory })
    }
}

/// The early reading for one request.
pub(crate) struct EarlyReading<'a> {
    wire: Arc<Mutex<Shared>>,
    memory: &'a BodyMemory,
}

impl EarlyReading<'_> {
    fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        let Shared { wire, early } = &mut *lock(&self.wire);
        early.poll(wire, self.memory, context)
    }

    /// Reads what arrives until the client's stream has ended.
    pub(crate) async fn run(&self) {
        poll_fn(|context| self.poll(context)).await;
    }

    /// Looks behind what could not be read before, because the turn of the request is near.
    pub(crate) fn turn_is_near(&self) {
        lock(&self.wire).early.turn_is_near();
    }

    /// Waits until all that has arrived was read, or as much as may be. Returns whether the client's stream has ended.
    pub(crate) async fn look(&self) -> bool {
        let looked = async {
            self.look_now().await;
            let held_up_until = lock(&self.wire).early.held_up_until;
            if let Some(until) = held_up_until.filter(|until| *until > Instant::now()) {
                sleep_until(until).await;
                lock(&self.wire).early.look_again();
                self.look_now().await;
            }
        };
        // Later the memory is held by requests that go upstream slowly.
        let _ = timeout(LOOK_TIME_MAX, looked).await;
        lock(&self.wire).early.seen == StreamEnd::Ended
    }

    /// Reads what has arrived.
    async fn look_now(&self) {
        poll_fn(|context| {
            let _ = self.poll(context);
            if lock(&self.wire).early.seen == StreamEnd::Unknown { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }
}

impl Drop for EarlyReading<'_> {
    fn drop(&mut self) {
        lock(&self.wire).early.end();
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::sleep;

    use super::*;
    use crate::proxy::net::stream::Stream;

    async fn connection(memory: &Arc<BodyMemory>) -> (TcpStream, EarlyReader, ClientWire) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let wire = ClientWire::new(Wire::Left(Stream::new(
            listener.accept().await.unwrap().0,
            Duration::from_secs(60),
        )));
        (client, wire.reader(Arc::clone(memory)), wire)
    }

    /// Waits until something is there to be read.
    async fn has_arrived(wire: &ClientWire) {
        poll_fn(|context| tcp_of(&wire.lock().wire).poll_read_ready(context)).await.unwrap();
    }

    /// As behind a window that was full until now.
    #[tokio::test]
    async fn an_end_that_arrives_a_moment_behind_many_bytes_is_seen() {
        let memory = Arc::new(BodyMemory::new(0));
        let (mut client, reader, wire) = connection(&memory).await;
        client.write_all(&[b'x'; 100_000]).await.unwrap();
        has_arrived(&wire).await;
        let reading = reader.begin(1_000_000).expect("a wire");
        reading.turn_is_near();
        reading.look_now().await;
        let rest = async {
            sleep(Duration::from_millis(2)).await;
            client.write_all(&[b'x'; 100_000]).await.unwrap();
            drop(client);
        };
        let (has_ended, ()) = tokio::join!(reading.look(), rest);
        assert!(has_ended);
    }

    #[tokio::test]
    async fn an_upload_that_goes_on_is_not_waited_for_at_its_slot() {
        let memory = Arc::new(BodyMemory::new(0));
        let (mut client, reader, wire) = connection(&memory).await;
        let reading = reader.begin(1_000_000).expect("a wire");
        client.write_all(&[b'x'; 100_000]).await.unwrap();
        has_arrived(&wire).await;
        reading.turn_is_near();
        reading.look_now().await;
        // Its slot comes later than what was held up.
        sleep(ARRIVES_IN * 2).await;
        client.write_all(&[b'x'; 100_000]).await.unwrap();
        has_arrived(&wire).await;
        let begin = Instant::now();
        assert!(!reading.look().await);
        assert!(begin.elapsed() < ARRIVES_IN, "{:?}", begin.elapsed());
    }

    #[tokio::test]
    async fn announced_bytes_that_are_not_sent_take_no_memory() {
        const MIB: u64 = 1024 * 1024;
        let (memory, mut connections) = (Arc::new(BodyMemory::new(4 * MIB)), Vec::new());
        for _ in 0..4 {
            let (mut client, reader, wire) = connection(&memory).await;
            client.write_all(b"begin").await.unwrap();
            has_arrived(&wire).await;
            connections.push((client, reader, wire));
        }
        let readings: Vec<_> =
            connections.iter().filter_map(|(_, reader, _)| reader.begin(100 * MIB)).collect();
        for reading in &readings {
            poll_fn(|context| Poll::Ready(reading.poll(context).is_ready())).await;
        }
        assert!(connections.iter().all(|(.., wire)| !wire.lock().early.blocks.is_empty()), "they were read");
        assert!(memory.take_now(3 * 1024 * 1024).is_some());
    }
}
