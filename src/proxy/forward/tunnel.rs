//! A connection that has switched to another protocol: carries bytes both ways until both sides are done.
//!
//! Knows nothing of the protocol.

use std::io;

use futures_util::future::try_join;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};

use crate::proxy::forward::record::Record;
use crate::proxy::listen::client::Client;
use crate::proxy::upstream::lease::Lease;
use crate::telemetry::Outcome;

/// The most bytes read of one side before they are written to the other.
const PIECE_BYTES: usize = 8 * 1024;

/// A tunnel whose sides are not connected yet.
pub(crate) struct Tunnel {
    client: OnUpgrade,
    upstream: OnUpgrade,
    /// Kept until both sides have switched.
    lease: Lease,
}

impl Tunnel {
    /// Creates a tunnel. The client's side opens once the response that announces the switch has been written.
    pub(crate) fn new(client: OnUpgrade, upstream: OnUpgrade, lease: Lease) -> Tunnel {
        Tunnel { client, upstream, lease }
    }

    /// Carries bytes in a task of the client's listener, until one side fails, both have ended, or weir shuts down. The request ends
    /// with the tunnel.
    pub(crate) fn open(self, mut record: Box<Record>, client: &Client) {
        let cut = client.signals.cut.clone();
        client.tasks.spawn(async move {
            let carried = async {
                let (client, upstream) = try_join(self.client, self.upstream).await?;
                drop(self.lease);
                let (client_read, client_write) = split(TokioIo::new(client));
                let (upstream_read, upstream_write) = split(TokioIo::new(upstream));
                let there = carry(client_read, upstream_write);
                let back = carry(upstream_read, client_write);
                Ok::<_, hyper::Error>(try_join(there, back).await)
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
async fn carry(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> io::Result<u64> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut carried = 0;
    loop {
        let read = from.read(&mut piece).await?;
        let bytes = piece.get(..read).unwrap_or_default();
        if bytes.is_empty() {
            let _ = to.shutdown().await;
            return Ok(carried);
        }
        if to.write_all(bytes).await.is_err() || to.flush().await.is_err() {
            return Ok(carried);
        }
        carried += read as u64;
    }
}
