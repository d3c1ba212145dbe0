//! Reads on behind the last response of an HTTP/1 connection, while the client is still sending a body that nobody wants.
//!
//! A socket that is closed with unread bytes resets the connection, and the client loses the response. Most clients read it only when
//! they have sent everything. Knows nothing of requests.

use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::task::yield_now;
use tokio::time::Instant;

use super::slots::LingerPlace;
use crate::proxy::net::driver::Alarm;
use crate::proxy::net::stream::READ_MAX;

/// The most bytes that are read and dropped. An upload of 30 MB ends within.
const BYTES_MAX: u64 = 64 * 1024 * 1024;
/// The time that a client has for however few bytes, and the bytes a second that it must have sent beyond. A bound to the whole time
/// would cut uploads off because the line is slow, or because a thousand of them share it.
const SLOW_TIME_MAX: Duration = Duration::from_secs(10);
const BYTES_PER_SECOND_MIN: u64 = 64 * 1024;
/// The longest time without a byte.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// The time that is left at shutdown.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(1);
/// The bytes of one read, after which everything else that is ready has its turn: its bytes are wanted, and these are not.
const PIECE: usize = READ_MAX;

/// The end of a connection whose sending side is closed.
pub(crate) struct Linger {
    bytes_read: u64,
    began_at: Instant,
    heard_at: Instant,
    drain_ends_at: Option<Instant>,
    alarm: Alarm,
    _place: LingerPlace,
}

impl Linger {
    /// Begins to read on, in a place among the connections that do.
    pub(crate) fn new(place: LingerPlace) -> Linger {
        let now = Instant::now();
        let (began_at, heard_at, alarm) = (now, now, Alarm::default());
        Linger { bytes_read: 0, began_at, heard_at, drain_ends_at: None, alarm, _place: place }
    }

    /// Reads and drops what has arrived. Ready when the client has closed its side, or a bound is reached.
    pub(crate) fn poll(
        &mut self,
        wire: Pin<&mut impl AsyncRead>,
        context: &mut Context<'_>,
        is_draining: bool,
    ) -> Poll<io::Result<()>> {
        let mut space = [MaybeUninit::uninit(); PIECE];
        let mut piece = ReadBuf::uninit(&mut space);
        match wire.poll_read(context, &mut piece) {
            Poll::Pending => {}
            Poll::Ready(Ok(())) if !piece.filled().is_empty() && self.bytes_read < BYTES_MAX => {
                self.bytes_read += piece.filled().len() as u64;
                self.heard_at = Instant::now();
                // This wakes the task when the worker has nothing else to do.
                let _ = pin!(yield_now()).poll(context);
            }
            Poll::Ready(_) => return Poll::Ready(Ok(())),
        }
        if is_draining {
            self.drain_ends_at.get_or_insert_with(|| Instant::now() + DRAIN_TIME_MAX);
        }
        self.alarm.poll(context, self.ends_at()).map(Ok)
    }

    /// Returns the instant at which nobody waits for further bytes.
    fn ends_at(&self) -> Instant {
        let earned = Duration::from_secs(self.bytes_read / BYTES_PER_SECOND_MIN);
        let ends_at = (self.began_at + SLOW_TIME_MAX + earned).min(self.heard_at + SILENCE_MAX);
        self.drain_ends_at.map_or(ends_at, |drained| drained.min(ends_at))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;

    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

    use super::super::slots::Slots;
    use super::*;

    fn place() -> LingerPlace {
        Slots::linger(&Arc::new(Slots::default()), 2).unwrap()
    }

    async fn end(mut wire: DuplexStream, is_draining: bool) -> Duration {
        let (mut linger, begin) = (Linger::new(place()), Instant::now());
        poll_fn(|context| linger.poll(Pin::new(&mut wire), context, is_draining)).await.unwrap();
        begin.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_client_is_waited_for_briefly() {
        let (_client, wire) = duplex(PIECE);
        assert_eq!(end(wire, false).await, SILENCE_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_waits_hardly() {
        let (_client, wire) = duplex(PIECE);
        assert_eq!(end(wire, true).await, DRAIN_TIME_MAX);
    }

    /// Sends as many bytes each second, until it is left.
    async fn end_of_sender(bytes_per_second: u64) -> (Duration, u64) {
        let (mut client, wire) = duplex(PIECE);
        let sending = tokio::spawn(async move {
            let (piece, mut sent) = (vec![b'x'; usize::try_from(bytes_per_second / 8).unwrap()], 0);
            while client.write_all(&piece).await.is_ok() {
                sent += piece.len() as u64;
                tokio::time::sleep(Duration::from_millis(125)).await;
            }
            sent
        });
        (end(wire, false).await, sending.await.unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_goes_on_slowly_is_left() {
        let (took, sent) = end_of_sender(BYTES_PER_SECOND_MIN / 2).await;
        assert!((SLOW_TIME_MAX..=SLOW_TIME_MAX * 2).contains(&took), "{took:?}");
        assert!(sent < BYTES_PER_SECOND_MIN * took.as_secs(), "{sent}");
    }

    /// As each of a thousand clients that share a line, for far longer than any one of them would take alone.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_goes_on_steadily_is_read_to_its_end() {
        let (took, sent) = end_of_sender(BYTES_PER_SECOND_MIN).await;
        assert!(sent >= BYTES_MAX, "{sent} bytes in {took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_bytes_are_bounded_and_an_upload_fits() {
        let (mut client, wire) = duplex(PIECE);
        let sending = tokio::spawn(async move {
            let (piece, mut sent) = (vec![b'x'; PIECE], 0);
            while client.write_all(&piece).await.is_ok() {
                sent += PIECE as u64;
            }
            sent
        });
        end(wire, false).await;
        let sent = sending.await.unwrap();
        assert!((BYTES_MAX..=BYTES_MAX + 3 * PIECE as u64).contains(&sent), "{sent}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_close_ends_it() {
        let (mut client, wire) = duplex(PIECE);
        client.write_all(b"the rest").await.unwrap();
        drop(client);
        assert_eq!(end(wire, false).await, Duration::ZERO);
    }

    #[test]
    fn half_of_the_connections_may_linger() {
        let slots = Arc::new(Slots::default());
        let places: Vec<_> = (0..2).filter_map(|_| Slots::linger(&slots, 4)).collect();
        assert_eq!(places.len(), 2);
        assert!(Slots::linger(&slots, 4).is_none());
        drop(places);
        assert!(Slots::linger(&slots, 4).is_some());
    }
}
