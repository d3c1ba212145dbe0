//! Accepts the connections of applications, and ends them well.
//!
//! The loop never dies: what fails in accepting one connection does not concern the next. Knows nothing of what
//! is spoken on a connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::proxy::Proxy;
use crate::proxy::listen::connection::{self, Client, Signals};
use crate::proxy::net::stream::Stream;

/// How long the loop rests after an error that another try would meet again, such as too many open files.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
/// How often idle upstream connections are looked at.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);
/// After the drain time: how long the last answers may take to be written.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How serving ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// All that was under way or waiting has finished.
    Clean,
    /// The drain time was over first.
    Cut,
}

/// Serves until `shutdown` is cancelled, then drains: for `drain_delay` nothing changes, then no connection is
/// accepted any more and what is under way or waiting may finish, for `drain_timeout` at most. What still waits
/// then is answered `draining`, the rest is cut.
pub async fn serve(listener: TcpListener, proxy: Proxy, shutdown: CancellationToken) -> Drained {
    let acceptor = Acceptor {
        proxy,
        signals: Signals::default(),
        slots: Arc::new(Slots::default()),
        tasks: TaskTracker::new(),
    };
    acceptor.accept_until(&listener, shutdown.cancelled()).await;
    let drain_delay = acceptor.proxy.table().server().drain_delay;
    acceptor.accept_until(&listener, sleep(drain_delay)).await;
    // Who has been let in by the kernel already would otherwise be thrown out by it.
    while let Some(Ok((tcp, _))) = listener.accept().now_or_never() {
        acceptor.start(tcp);
    }
    drop(listener);
    acceptor.drain().await
}

struct Acceptor {
    proxy: Proxy,
    signals: Signals,
    slots: Arc<Slots>,
    tasks: TaskTracker,
}

impl Acceptor {
    async fn accept_until(&self, listener: &TcpListener, end: impl Future<Output = ()>) {
        let mut end = std::pin::pin!(end);
        let mut sweep = interval(SWEEP_INTERVAL);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = &mut end => return,
                _ = sweep.tick() => self.proxy.sweep(),
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

    /// While there are as many connections as there may be, the kernel's backlog holds the next.
    async fn accept(&self, listener: &TcpListener) -> std::io::Result<TcpStream> {
        self.slots.below(|| self.proxy.table().server().max_connections).await;
        loop {
            match listener.accept().await {
                Ok((tcp, _)) => return Ok(tcp),
                Err(error) if is_about_one_connection(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn start(&self, tcp: TcpStream) {
        // A peer without an address has gone already.
        let Ok(peer) = tcp.peer_addr() else { return };
        let stream = Stream::new(tcp);
        let slot = Slots::take(&self.slots);
        let client = Client::new(peer.ip(), &stream, self.signals.clone(), self.tasks.clone(), slot);
        self.tasks.spawn(connection::serve(stream, client, self.proxy.clone()));
    }

    async fn drain(&self) -> Drained {
        self.tasks.close();
        self.signals.drain.cancel();
        let drain_timeout = self.proxy.table().server().drain_timeout;
        if timeout(drain_timeout, self.tasks.wait()).await.is_ok() {
            return Drained::Clean;
        }
        tracing::warn!(connections = self.slots.taken.load(Ordering::Relaxed), "the drain time is over");
        self.signals.refuse.cancel();
        let _ = timeout(LAST_WORDS, self.tasks.wait()).await;
        self.signals.cut.cancel();
        let _ = timeout(LAST_WORDS, self.tasks.wait()).await;
        Drained::Cut
    }
}

/// The client gave up between its SYN and our accept.
fn is_about_one_connection(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// How many connections there are.
#[derive(Default)]
struct Slots {
    taken: AtomicU32,
    freed: Notify,
}

impl Slots {
    fn take(this: &Arc<Slots>) -> Slot {
        this.taken.fetch_add(1, Ordering::AcqRel);
        Slot(Arc::clone(this))
    }

    /// Ends when there are fewer than `max`, which a reload may change.
    async fn below(&self, max: impl Fn() -> u32) {
        while self.taken.load(Ordering::Acquire) >= max() {
            self.freed.notified().await;
        }
    }
}

/// One connection's place; given back on drop.
pub(crate) struct Slot(Arc<Slots>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::AcqRel);
        // One permit is kept for the only one who waits, so none is missed.
        self.0.freed.notify_one();
    }
}
