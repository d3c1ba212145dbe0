//! A connection that has changed to another protocol: bytes go both ways until both sides are done.

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use super::connection::Client;
use super::record::Record;
use super::upstream::Lease;
use crate::telemetry::Outcome;

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
                let (client, upstream) = futures_util::future::try_join(self.client, self.upstream).await?;
                drop(self.lease);
                let carried =
                    copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(upstream)).await;
                Ok::<_, hyper::Error>(carried)
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
