//! Accepts the connections of clients, and drains them at shutdown.
//!
//! An error in accepting one connection does not concern the next, so the loop never ends by itself. Knows nothing of protocols.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::backlog::{self, is_about_one_connection};
use super::client::{Client, Signals};
use super::connection;
use super::service::Service;
use super::slots::Slots;
use crate::proxy::net::descriptors::{self, User};
use crate::proxy::net::stream::Stream;
use crate::telemetry::ConnectionErrors;

/// The pause after an error that would occur again at once, such as too many open files.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
/// The interval in which idle upstream connections are checked.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);
/// The time without a new connection after which no handshake is under way any more, once no new one begins. Clients that connect
/// within it lose a second, so it is no longer than a handshake in a data centre may take.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_millis(100);
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
/// For `drain_delay` nothing changes. Then only connections are accepted that the kernel has accepted already, and requests under way
/// or waiting may finish within `drain_timeout`, as may the first request of a connection that has sent none yet. After that, requests
/// that still wait are answered `draining`, and the rest is cut.
pub(crate) async fn serve(
    listener: TcpListener,
    service: impl Service,
    shutdown: CancellationToken,
) -> Drained {
    let acceptor = Acceptor {
        errors: service.connection_errors(),
        service,
        signals: Signals::default(),
        slots: Arc::new(Slots::default()),
        tasks: TaskTracker::new(),
    };
    acceptor.accept_until(&listener, shutdown.cancelled()).await;
    let drain_delay = acceptor.service.settings().server.drain_delay;
    acceptor.accept_until(&listener, sleep(drain_delay)).await;
    acceptor.drain(listener).await
}

struct Acceptor<S> {
    service: S,
    errors: ConnectionErrors,
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
                    // Behind the other branches: whoever has been accepted is served, whatever happens meanwhile.
                    Ok(tcp) => {
                        let has_ended = {
                            let mut spared = std::pin::pin!(self.spares_descriptors(&tcp));
                            loop {
                                tokio::select! {
                                    biased;
                                    () = &mut spared => break false,
                                    () = &mut end => break true,
                                    // It gives descriptors back.
                                    _ = sweep.tick() => self.service.sweep(),
                                }
                            }
                        };
                        self.start(tcp);
                        if has_ended {
                            return;
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        sleep(ACCEPT_BACKOFF).await;
                    }
                },
            }
        }
    }

    /// Accepts the connections that the kernel has accepted, and those whose handshake is under way, and closes the listener.
    async fn accept_rest(&self, listener: TcpListener) {
        // Without a filter new clients would come for ever.
        if backlog::begin_no_handshake(&listener).is_ok() {
            loop {
                self.below_max().await;
                match timeout(HANDSHAKE_TIME_MAX, self.accept(&listener)).await {
                    Ok(Ok(tcp)) => {
                        self.spares_descriptors(&tcp).await;
                        self.start(tcp);
                    }
                    Ok(Err(error)) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        sleep(ACCEPT_BACKOFF).await;
                    }
                    Err(_) => break,
                }
            }
        }
        match backlog::take_rest(listener) {
            Ok(rest) => rest.into_iter().for_each(|tcp| self.start(tcp)),
            Err(error) => tracing::warn!(%error, "cannot accept the last connections"),
        }
    }

    /// Waits until there are fewer connections than the maximum. The kernel's backlog holds further ones.
    async fn below_max(&self) {
        self.slots.below(|| self.service.settings().server.max_connections).await;
    }

    async fn accept(&self, listener: &TcpListener) -> std::io::Result<TcpStream> {
        self.below_max().await;
        loop {
            match listener.accept().await {
                Ok((tcp, _)) => return Ok(tcp),
                Err(error) if is_about_one_connection(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Holds a connection back while its descriptor is one of the last ones.
    async fn spares_descriptors(&self, tcp: &TcpStream) {
        if !descriptors::is_reserved(tcp, User::Client) {
            return;
        }
        tracing::warn!(
            connections = self.slots.taken(),
            "no file descriptor is left for a further connection"
        );
        while descriptors::are_scarce(tcp, User::Client) {
            let _ = timeout(ACCEPT_BACKOFF, self.slots.freed()).await;
        }
    }

    fn start(&self, tcp: TcpStream) {
        // A peer without an address has left already.
        let Ok(peer) = tcp.peer_addr() else { return };
        let stream = Stream::new(tcp, self.service.settings().server.write_timeout);
        let slot = Slots::take(&self.slots);
        let (signals, tasks, errors) = (self.signals.clone(), self.tasks.clone(), self.errors.clone());
        let client = Client::new(peer.ip(), &stream, signals, tasks, errors, slot);
        self.tasks.spawn(connection::serve(stream, client, self.service.clone()));
    }

    async fn drain(&self, listener: TcpListener) -> Drained {
        self.tasks.close();
        self.signals.drain.cancel();
        let drain_timeout = self.service.settings().server.drain_timeout;
        let finished = async {
            self.accept_rest(listener).await;
            self.tasks.wait().await;
        };
        if timeout(drain_timeout, finished).await.is_ok() {
            return Drained::Clean;
        }
        // A connection that has asked for nothing lacks no answer.
        let had_requests = self.tasks.len() > self.slots.silent() as usize;
        self.signals.refuse.cancel();
        if had_requests {
            tracing::warn!(connections = self.slots.taken(), "the drain time is over");
        }
        let ended = timeout(LAST_RESPONSES_TIME_MAX, self.tasks.wait()).await;
        if ended.is_ok() && !had_requests {
            return Drained::Clean;
        }
        self.signals.cut.cancel();
        let _ = timeout(LAST_RESPONSES_TIME_MAX, self.tasks.wait()).await;
        Drained::Cut
    }
}
