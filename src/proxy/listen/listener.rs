//! Accepts the connections of clients, and drains them at shutdown.
//!
//! An error in accepting one connection does not concern the next, so the loop never ends by itself. Knows nothing of protocols.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::client::{Client, Signals};
use super::connection;
use super::service::Service;
use super::slots::Slots;
use crate::proxy::net::stream::Stream;

/// The pause after an error that would occur again at once, such as too many open files.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
/// The interval in which idle upstream connections are checked.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);
/// The time for writing the last responses, after the drain time.
const LAST_RESPONSES_TIME_MAX: Duration = Duration::from_secs(1);

/// The way in which serving ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// Every request under way or waiting has finished.
    Clean,
    /// The drain time was over before every request had finished.
    Cut,
}

/// Serves until `shutdown` is cancelled, then drains.
///
/// For `drain_delay` nothing changes. Then no connection is accepted, and requests under way or waiting may finish within
/// `drain_timeout`. After that, requests that still wait are answered `draining`, and the rest is cut.
pub(crate) async fn serve(
    listener: TcpListener,
    service: impl Service,
    shutdown: CancellationToken,
) -> Drained {
    let acceptor = Acceptor {
        service,
        signals: Signals::default(),
        slots: Arc::new(Slots::default()),
        tasks: TaskTracker::new(),
    };
    acceptor.accept_until(&listener, shutdown.cancelled()).await;
    let drain_delay = acceptor.service.settings().server.drain_delay;
    acceptor.accept_until(&listener, sleep(drain_delay)).await;
    // Closing the listener would reset the connections that the kernel has accepted already.
    while let Some(Ok((tcp, _))) = listener.accept().now_or_never() {
        acceptor.start(tcp);
    }
    drop(listener);
    acceptor.drain().await
}

struct Acceptor<S> {
    service: S,
    signals: Signals,
    slots: Arc<Slots>,
    tasks: TaskTracker,
}

impl<S: Service> Acceptor<S> {
    async fn accept_until(&self, listener: &TcpListener, end: impl Future<Output = ()>) {
        let mut end = std::pin::pin!(end);
        let mut sweep = interval(SWEEP_INTERVAL);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = &mut end => return,
                _ = sweep.tick() => self.service.sweep(),
                accepted = self.accept(listener) => match accepted {
                    Ok(tcp) => self.start(tcp),
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        sleep(ACCEPT_BACKOFF).await;
                    }
                },
            }
        }
    }

    /// Accepts a connection when there are fewer than the maximum; until then the kernel's backlog holds it.
    async fn accept(&self, listener: &TcpListener) -> std::io::Result<TcpStream> {
        self.slots.below(|| self.service.settings().server.max_connections).await;
        loop {
            match listener.accept().await {
                Ok((tcp, _)) => return Ok(tcp),
                Err(error) if is_about_one_connection(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn start(&self, tcp: TcpStream) {
        // A peer without an address has left already.
        let Ok(peer) = tcp.peer_addr() else { return };
        let stream = Stream::new(tcp);
        let slot = Slots::take(&self.slots);
        let client = Client::new(peer.ip(), &stream, self.signals.clone(), self.tasks.clone(), slot);
        self.tasks.spawn(connection::serve(stream, client, self.service.clone()));
    }

    async fn drain(&self) -> Drained {
        self.tasks.close();
        self.signals.drain.cancel();
        let drain_timeout = self.service.settings().server.drain_timeout;
        if timeout(drain_timeout, self.tasks.wait()).await.is_ok() {
            return Drained::Clean;
        }
        tracing::warn!(connections = self.slots.taken(), "the drain time is over");
        self.signals.refuse.cancel();
        let _ = timeout(LAST_RESPONSES_TIME_MAX, self.tasks.wait()).await;
        self.signals.cut.cancel();
        let _ = timeout(LAST_RESPONSES_TIME_MAX, self.tasks.wait()).await;
        Drained::Cut
    }
}

/// Returns whether the client gave up between its SYN and the accept.
fn is_about_one_connection(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
