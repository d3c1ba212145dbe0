//! A connection that has changed to another protocol: bytes go both ways until both sides are done.

use std::io;

use futures_util::future::try_join;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};

use crate::proxy::forward::record::Record;
use crate::proxy::listen::connection::Client;
use crate::proxy::upstream::upstream::Lease;
use crate::telemetry::Outcome;

/// What is read of one side before it is written to the other.
const PIECE_BYTES: usize = 8 * 1024;

/// Both sides of it, not connected yet.
pub(crate) struct Tunnel {
    client: OnUpgrade,
    upstream: OnUpgrade,
    /// Kept until the change has been made.
    lease: Lease,
}

impl Tunnel {
    /// The client's side can be had once the response that announces the change has been written.
    pub(crate) fn new(client: OnUpgrade, upstream: OnUpgrade, lease: Lease) -> Tunnel {
        Tunnel { client, upstream, lease }
    }

    /// Carries bytes in a task of the client's listener, until one side fails, both have ended, or weir does. The
    /// request is over with it.
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
                    record.outcome = Outcome::Forwarded;
                    tracing::debug!(?carried, "a tunnel ended");
                }
                Err(error) => {
                    record.outcome = Outcome::Failed;
                    tracing::debug!(%error, "a connection did not change to another protocol");
                }
            }
        });
    }
}

/// Carries bytes one way until they end, and gives their number. A side that breaks is an error, which ends the other way as well: nobody
/// is there to hear. A side that takes nothing more may have said something before it left, as one that says goodbye and closes
/// does; so that is no error, and the other way goes on to its own end.
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
