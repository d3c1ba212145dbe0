//! The demo's third-party API: allows a number of requests a second, answers 429 beyond that, and counts violations.
//!
//! Shares no code with weir's limiter: it looks at the arrival times of requests.

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

/// The most connections. weir needs a few; curious users may add some.
const CONNECTIONS_MAX: usize = 256;

/// The provider's counts.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Tally {
    /// Requests that arrived.
    pub(super) requests: u64,
    /// Requests that arrived beyond the quota.
    pub(super) violations: u64,
}

/// A provider that listens.
pub(super) struct Provider {
    listener: TcpListener,
    address: SocketAddr,
    arrivals: Arc<Mutex<Arrivals>>,
}

impl Provider {
    /// Listens on a free port of 127.0.0.1.
    pub(super) async fn bind() -> io::Result<Provider> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        Ok(Provider { listener, address, arrivals: Arc::default() })
    }

    /// Returns the address of the listener.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a view of the counts.
    pub(super) fn tally(&self) -> impl Fn() -> Tally + use<> {
        let arrivals = Arc::clone(&self.arrivals);
        move || arrivals.lock().unwrap_or_else(PoisonError::into_inner).tally
    }

    /// Serves until `shutdown`, which closes all connections.
    pub(super) async fn serve(self, shutdown: CancellationToken) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => break,
                Some(_) = connections.join_next() => {}
                accepted = self.listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                    Ok((stream, _)) => {
                        connections.spawn(connection(stream, Arc::clone(&self.arrivals)));
                    }
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                },
            }
        }
    }
}

async fn connection(stream: TcpStream, arrivals: Arc<Mutex<Arrivals>>) {
    let service = service_fn(|_request: Request<Incoming>| {
        let allowed = arrivals.lock().unwrap_or_else(PoisonError::into_inner).add(Instant::now());
        async move { Ok::<_, Infallible>(answer(allowed)) }
    });
    // A failed connection concerns its client alone.
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

/// Finds violations by the instants of the last [`QUOTA`] arrivals, refused ones included. An arrival within [`WINDOW`]
/// of the oldest of them is a violation: a window that includes its start and excludes its end then holds one request
/// too many. Nothing is rounded.
#[derive(Default)]
struct Arrivals {
    latest: VecDeque<Instant>,
    tally: Tally,
}

impl Arrivals {
    /// Counts an arrival and returns whether it is within the quota. Instants must not decrease.
    fn add(&mut self, now: Instant) -> bool {
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
        let mut arrivals = Arrivals::default();
        for place in 0..10 {
            assert!(arrivals.add(start + Duration::from_millis(place)));
        }
        assert!(!arrivals.add(start + WINDOW - Duration::from_nanos(1)));
        // The refused one counts: the window that begins with the second is full up to its end.
        assert!(!arrivals.add(start + WINDOW));
        assert_eq!(arrivals.tally, Tally { requests: 12, violations: 2 });
    }

    #[test]
    fn the_full_quota_in_every_window_is_within() {
        let start = Instant::now();
        let mut arrivals = Arrivals::default();
        for second in 0..5 {
            for _ in 0..10 {
                assert!(arrivals.add(start + WINDOW * second));
            }
        }
        assert_eq!(arrivals.tally, Tally { requests: 50, violations: 0 });
    }
}
