//! A connection that has switched to another protocol: carries bytes both ways until both sides are done.
//!
//! Knows nothing of the protocol.

use std::io::{self, Cursor};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::TryFutureExt;
use futures_util::future::try_join;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use crate::proxy::forward::record::Record;
use crate::proxy::listen::client::Client;
use crate::proxy::listen::switch::Switched;
use crate::proxy::upstream::lease::Lease;
use crate::telemetry::Outcome;

/// The most bytes read of one side before they are written to the other.
const PIECE_BYTES: usize = 8 * 1024;

/// A tunnel whose sides are not connected yet.
pub(crate) struct Tunnel {
    client: oneshot::Receiver<Switched>,
    upstream: OnUpgrade,
    /// Kept until both sides have switched.
    lease: Lease,
    /// The longest time without a byte either way.
    timeout: Duration,
}

impl Tunnel {
    /// Creates a tunnel. The client's side opens once the response that announces the switch has been written.
    pub(crate) fn new(
        client: oneshot::Receiver<Switched>,
        upstream: OnUpgrade,
        lease: Lease,
        timeout: Duration,
    ) -> Tunnel {
        Tunnel { client, upstream, lease, timeout }
    }

    /// Carries bytes in a task of the client's listener, until one side fails, both have ended, both are silent for too long, or weir
    /// shuts down. The request ends with the tunnel.
    pub(crate) fn open(self, mut record: Box<Record>, client: &Client) {
        let cut = client.signals.cut.clone();
        client.tasks.spawn(async move {
            let carried = async {
                let client = self.client.map_err(io::Error::other);
                let upstream = self.upstream.map_err(io::Error::other);
                let ((client, first), upstream) = try_join(client, upstream).await?;
                drop(self.lease);
                let (client_read, client_write) = split(client);
                let client_read = Cursor::new(first).chain(client_read);
                let (upstream_read, upstream_write) = split(TokioIo::new(upstream));
                let last_byte = LastByte::new();
                let there = carry(client_read, upstream_write, &last_byte);
                let back = carry(upstream_read, client_write, &last_byte);
                tokio::select! {
                    carried = try_join(there, back) => Ok::<_, io::Error>(carried),
                    () = last_byte.is_older_than(self.timeout) => Ok(Err(io::ErrorKind::TimedOut.into())),
                }
            };
            let ended = tokio::select! {
                carried = carried => carried,
                () = cut.cancelled() => return,
            };
            match ended {
                Ok(carried) => {
                    record.end.outcome = Outcome::Forwarded;
                    tracing::debug!(?carried, "a tunnel ended");
                }
                Err(error) => {
                    record.end.outcome = Outcome::Failed;
                    tracing::debug!(%error, "a connection did not switch to another protocol");
                }
            }
        });
    }
}

/// Carries bytes one way until their end, and returns their number.
///
/// A failed read is an error, which ends the other way as well, because that side has left. A failed write is none: the side may have
/// sent its last bytes before it closed, so the other way goes on to its own end.
async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    last_byte: &LastByte,
) -> io::Result<u64> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut carried = 0;
    loop {
        let read = from.read(&mut piece).await?;
        last_byte.is_now();
        let bytes = piece.get(..read).unwrap_or_default();
        if bytes.is_empty() {
            let _ = to.shutdown().await;
            return Ok(carried);
        }
        if to.write_all(bytes).await.is_err() || to.flush().await.is_err() {
            return Ok(carried);
        }
        last_byte.is_now();
        carried += read as u64;
    }
}

/// The instant of a tunnel's last byte.
struct LastByte(Mutex<Instant>);

impl LastByte {
    fn new() -> LastByte {
        LastByte(Mutex::new(Instant::now()))
    }

    fn is_now(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    async fn is_older_than(&self, timeout: Duration) {
        loop {
            let end = *self.0.lock().unwrap_or_else(PoisonError::into_inner) + timeout;
            if end <= Instant::now() {
                return;
            }
            sleep_until(end).await;
        }
    }
}
