//! Reads on behind the last response of an HTTP/1 connection, while the client is still sending a body that nobody wants.
//!
//! A socket that is closed with unread bytes resets the connection, and the client loses the response. Most clients read it only when
//! they have sent everything. Knows nothing of requests.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Instant;

use super::slots::LingerPlace;
use crate::proxy::net::driver::Alarm;

/// The most bytes that are read and dropped. An upload of 30 MB ends within.
const BYTES_MAX: u64 = 64 * 1024 * 1024;
/// The longest time for them.
const TIME_MAX: Duration = Duration::from_secs(60);
/// The longest time without a byte.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// The time that is left at shutdown.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(1);
/// The bytes of one read.
const PIECE: usize = 16 * 1024;

/// The end of a connection whose sending side is closed.
pub(crate) struct Linger {
    bytes_left: u64,
    ends_at: Instant,
    heard_at: Instant,
    alarm: Alarm,
    _place: LingerPlace,
}

impl Linger {
    /// Begins to read on, in a place among the connections that do.
    pub(crate) fn new(place: LingerPlace) -> Linger {
        let now = Instant::now();
        let (ends_at, alarm) = (now + TIME_MAX, Alarm::default());
        Linger { bytes_left: BYTES_MAX, ends_at, heard_at: now, alarm, _place: place }
    }

    /// Reads and drops what has arrived. Ready when the client has closed its side, or a bound is reached.
    pub(crate) fn poll(
        &mut self,
        mut wire: Pin<&mut impl AsyncRead>,
        context: &mut Context<'_>,
        is_draining: bool,
    ) -> Poll<io::Result<()>> {
        let mut space = [MaybeUninit::uninit(); PIECE];
        let mut has_heard = false;
        loop {
            let mut piece = ReadBuf::uninit(&mut space);
            match wire.as_mut().poll_read(context, &mut piece) {
                Poll::Pending => break,
                Poll::Ready(Err(_)) => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(())) => {}
            }
            let length = piece.filled().len() as u64;
            match self.bytes_left.checked_sub(length).filter(|_| length > 0) {
                Some(left) => self.bytes_left = left,
                None => return Poll::Ready(Ok(())),
            }
            has_heard = true;
        }
        if has_heard {
            self.heard_at = Instant::now();
        }
        if is_draining {
            self.ends_at = self.ends_at.min(Instant::now() + DRAIN_TIME_MAX);
        }
        self.alarm.poll(context, self.ends_at.min(self.heard_at + SILENCE_MAX)).map(Ok)
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

    #[tokio::test(start_paused = true)]
    async fn a_client_that_goes_on_slowly_is_left() {
        let (mut client, wire) = duplex(PIECE);
        let sending = tokio::spawn(async move {
            while client.write_all(b"x").await.is_ok() {
                tokio::time::sleep(SILENCE_MAX / 2).await;
            }
        });
        assert_eq!(end(wire, false).await, TIME_MAX);
        sending.await.unwrap();
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
        assert!((BYTES_MAX..=BYTES_MAX + 2 * PIECE as u64).contains(&sent), "{sent}");
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
