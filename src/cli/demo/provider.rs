//! The demo's third-party API: allows so many requests a second, answers 429 beyond, and keeps its own books.
//!
//! It shares nothing with weir, least of all the limiter: it looks at the instants at which requests arrived.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Requests in a window.
pub(super) const QUOTA: usize = 10;
/// The length of a window.
pub(super) const WINDOW: Duration = Duration::from_secs(1);

/// Weir needs a few; this is what curious users may add.
const CONNECTIONS_MAX: usize = 256;

/// What the provider has seen.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Tally {
    /// Requests that arrived.
    pub(super) requests: u64,
    /// Those of them that arrived beyond the quota.
    pub(super) violations: u64,
}

/// A provider that listens.
pub(super) struct Provider {
    listener: TcpListener,
    address: SocketAddr,
    judge: Arc<Mutex<Judge>>,
}

impl Provider {
    /// Listens on a free port of 127.0.0.1.
    pub(super) async fn bind() -> io::Result<Provider> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        Ok(Provider { listener, address, judge: Arc::default() })
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// A view of its books.
    pub(super) fn books(&self) -> Books {
        Books { judge: Arc::clone(&self.judge) }
    }

    /// Answers until `shutdown`; connections that are still open then are cut.
    pub(super) async fn serve(self, shutdown: CancellationToken) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => break,
                Some(_) = connections.join_next() => {}
                accepted = self.listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                    Ok((stream, _)) => {
                        connections.spawn(connection(stream, Arc::clone(&self.judge)));
                    }
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                },
            }
        }
    }
}

/// A view of a provider's books.
pub(super) struct Books {
    judge: Arc<Mutex<Judge>>,
}

impl Books {
    pub(super) fn tally(&self) -> Tally {
        self.judge.lock().unwrap_or_else(PoisonError::into_inner).tally
    }
}

async fn connection(stream: TcpStream, judge: Arc<Mutex<Judge>>) {
    let service = service_fn(|_request: Request<Incoming>| {
        let allowed = judge.lock().unwrap_or_else(PoisonError::into_inner).arrival(Instant::now());
        async move { Ok::<_, Infallible>(answer(allowed)) }
    });
    // How a connection ends is its client's affair.
    let _ =
        http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service).await;
}

fn answer(allowed: bool) -> Response<Full<Bytes>> {
    let body = if allowed { "{\"ok\":true}\n" } else { "{\"error\":\"more than 10 requests a second\"}\n" };
    let mut response = Response::new(Full::from(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if !allowed {
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// Judges by the instants of the last [`QUOTA`] arrivals, refused ones included: the next one is a violation if
/// it lies within [`WINDOW`] of the oldest of them, for then some window, its start included and its end not,
/// holds one request too many. Nothing is rounded.
#[derive(Default)]
struct Judge {
    latest: VecDeque<Instant>,
    tally: Tally,
}

impl Judge {
    /// Writes an arrival down; whether it is within the quota. Instants do not go back.
    fn arrival(&mut self, now: Instant) -> bool {
        let mut within = true;
        if self.latest.len() == QUOTA {
            within = self.latest.pop_front().is_none_or(|oldest| now.duration_since(oldest) >= WINDOW);
        }
        self.latest.push_back(now);
        self.tally.requests += 1;
        self.tally.violations += u64::from(!within);
        within
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_holds_its_start_and_not_its_end() {
        let start = Instant::now();
        let mut judge = Judge::default();
        for place in 0..10 {
            assert!(judge.arrival(start + Duration::from_millis(place)));
        }
        assert!(!judge.arrival(start + WINDOW - Duration::from_nanos(1)));
        // The refused one counts: the window that begins with the second is full up to its end.
        assert!(!judge.arrival(start + WINDOW));
        assert_eq!(judge.tally, Tally { requests: 12, violations: 2 });
    }

    #[test]
    fn the_full_quota_in_every_window_is_within() {
        let start = Instant::now();
        let mut judge = Judge::default();
        for second in 0..5 {
            for _ in 0..10 {
                assert!(judge.arrival(start + WINDOW * second));
            }
        }
        assert_eq!(judge.tally, Tally { requests: 50, violations: 0 });
    }
}
