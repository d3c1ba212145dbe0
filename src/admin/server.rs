//! The admin listener: plain HTTP/1.1, with bounds on the number, the lifetime and the headers of connections.
//!
//! Endpoints that read a body bound it themselves.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::audit::PeerAddress;
use super::router;
use super::state::AdminState;

/// The most connections: enough for scrapers, operators and, beside them, a probe.
const CONNECTIONS_MAX: usize = 256;
/// The longest time to receive a request's head, and to stay idle.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes of a request's head.
const HEADER_BYTES_MAX: usize = 16 * 1024;
/// The longest life of a connection. A client that has stopped reading must not hold its place for ever.
const CONNECTION_AGE_MAX: Duration = Duration::from_secs(300);
/// The time that requests in flight have to finish when their connection or the process ends.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after a failed `accept`, mostly for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `listener` until `shutdown`, then lets requests in flight finish for some seconds.
pub async fn serve(listener: TcpListener, state: AdminState, shutdown: CancellationToken) {
    let loopback = listener.local_addr().is_ok_and(|address| address.ip().to_canonical().is_loopback());
    let state = Arc::new(state);
    let mut connections = JoinSet::new();
    let (sampled, ended) = (Arc::clone(&state), shutdown.clone());
    connections.spawn(async move {
        let _ = ended.run_until_cancelled(sampled.dashboard.sample(&sampled.limiters)).await;
    });
    loop {
        tokio::select! {
            () = shutdown.cancelled() => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(stream, Arc::clone(&state), loopback, shutdown.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept an admin connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    // Each connection ends within a bounded time from here on.
    while connections.join_next().await.is_some() {}
}

async fn connection(stream: TcpStream, state: Arc<AdminState>, loopback: bool, shutdown: CancellationToken) {
    let peer = stream.peer_addr().ok().map(|address| PeerAddress(address.ip().to_canonical()));
    let service = service_fn(|request: Request<Incoming>| {
        let state = Arc::clone(&state);
        async move {
            let (mut parts, body) = request.into_parts();
            if let Some(peer) = peer {
                parts.extensions.insert(peer);
            }
            Ok::<_, Infallible>(router::respond(&state, loopback, &parts, body).await)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEADER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
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
