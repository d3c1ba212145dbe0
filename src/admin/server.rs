//! The admin listener: plain HTTP/1.1 on a thread of its own, with bounds on the number, the lifetime and the headers of connections.
//!
//! Health and metrics are answered whatever the rest of weir is doing: they wait for none of its workers, for no other connection and
//! for no free descriptor. Everything else is answered by the workers, because it may ask the store. Endpoints that read a body bound
//! it themselves. A reading ends with its connection; an action by hand runs to its end, also when its client hangs up.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::audit::PeerAddress;
use super::connections::{Connections, Spare, Watch, watched};
use super::events;
use super::response::{self, Response};
use super::router;
use super::state::AdminState;

/// The longest time to receive a request's head, and to stay idle.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes of a request's head.
const HEADER_BYTES_MAX: usize = 16 * 1024;
/// The longest life of a connection. A client that has stopped reading must not hold its place for ever.
const CONNECTION_AGE_MAX: Duration = Duration::from_secs(300);
/// The time that requests in flight have to finish when their connection or the process ends.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);
/// The silence after which a connection gives its descriptor to another one: longer than an answer to a probe takes.
const SILENCE: Duration = Duration::from_millis(30);
/// The pause after a failed `accept`.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Serves `listener` until `shutdown`, then lets requests in flight finish for some seconds. Blocks its thread.
///
/// # Errors
/// If the thread can have no runtime of its own.
pub fn serve(
    listener: std::net::TcpListener,
    state: AdminState,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let server = Server::new(TcpListener::from_std(listener)?, state, shutdown);
        server.run().await;
        Ok(())
    })
}

/// The parts that all connections share.
struct Server {
    listener: TcpListener,
    connection: Arc<Shared>,
    shutdown: CancellationToken,
}

struct Shared {
    state: Arc<AdminState>,
    loopback: bool,
    /// The actions by hand that are being carried out, each within the bounds of its endpoint.
    actions: TaskTracker,
}

impl Server {
    fn new(listener: TcpListener, state: AdminState, shutdown: CancellationToken) -> Server {
        let loopback = listener.local_addr().is_ok_and(|address| address.ip().to_canonical().is_loopback());
        let connection = Shared { state: Arc::new(state), loopback, actions: TaskTracker::new() };
        Server { listener, connection: Arc::new(connection), shutdown }
    }

    async fn run(&self) {
        let (mut connections, mut spare) = (Connections::default(), Spare::new());
        let state = &self.connection.state;
        let sampling = state.dashboard.sample(|| events::snapshot(state));
        tokio::pin!(sampling);
        loop {
            tokio::select! {
                () = self.shutdown.cancelled() => break,
                () = &mut sampling => {}
                () = connections.ended() => spare.refill(),
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        let (watch, shared) = (Arc::new(Watch::new()), Arc::clone(&self.connection));
                        let serving = connection(stream, Arc::clone(&watch), shared, self.shutdown.clone());
                        connections.add(watch, serving);
                        spare.refill();
                    }
                    Err(error) if is_lack_of_descriptors(&error) => {
                        // Linux wants a descriptor before it looks for a connection, so there may be none to make room for.
                        if spare.free() || connections.drop_one(SILENCE) {
                            tokio::task::yield_now().await;
                        } else {
                            tokio::time::sleep(ACCEPT_PAUSE).await;
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept an admin connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        // Each connection ends within a bounded time from here on. An action may outlive its own.
        let deadline = Instant::now() + FINISH_TIMEOUT;
        connections.all_ended().await;
        let Shared { actions, .. } = &*self.connection;
        actions.close();
        if timeout_at(deadline, actions.wait()).await.is_err() {
            tracing::warn!(count = actions.len(), "actions by hand had no time to end");
        }
    }
}

fn is_lack_of_descriptors(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(rustix::io::Errno::from_raw_os_error);
    matches!(code, Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE))
}

async fn connection(stream: TcpStream, watch: Arc<Watch>, shared: Arc<Shared>, shutdown: CancellationToken) {
    let peer = stream.peer_addr().ok().map(|address| PeerAddress(address.ip().to_canonical()));
    let service = service_fn(|request: Request<Incoming>| {
        let (shared, watch) = (Arc::clone(&shared), Arc::clone(&watch));
        async move {
            let (mut parts, body) = request.into_parts();
            if let Some(peer) = peer {
                parts.extensions.insert(peer);
            }
            let _answering = watch.answers();
            Ok::<_, Infallible>(answer(&shared, parts, body).await)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEADER_BYTES_MAX)
        .serve_connection(TokioIo::new(watched(stream, Arc::clone(&watch))), service);
    tokio::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        () = tokio::time::sleep(CONNECTION_AGE_MAX) => {}
        () = shutdown.cancelled() => {}
    }
    connection.as_mut().graceful_shutdown();
    // A failed connection concerns its client alone.
    let _ = tokio::time::timeout(FINISH_TIMEOUT, connection).await;
}

async fn answer(shared: &Shared, parts: http::request::Parts, body: Incoming) -> Response {
    let (state, loopback) = (Arc::clone(&shared.state), shared.loopback);
    if router::is_vital(parts.uri.path()) {
        return router::respond(&state, loopback, &parts, body).await;
    }
    let acts = router::acts(parts.uri.path());
    let answering = async move { router::respond(&state, loopback, &parts, body).await };
    let workers = &shared.state.workers;
    let answered = if acts {
        // The client may hang up, and the action must still have all its effects, the audit line included.
        shared.actions.spawn_on(answering, workers).await
    } else {
        AbortOnDropHandle::new(workers.spawn(answering)).await
    };
    answered.unwrap_or_else(|error| {
        response::problem(StatusCode::INTERNAL_SERVER_ERROR, &format!("not answered: {error}"))
    })
}

#[cfg(test)]
mod tests;
