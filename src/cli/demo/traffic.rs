//! The demo's applications: a steady stream of requests, independent of earlier answers.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

/// Requests a second.
pub(super) const RATE: u32 = 25;
/// An application's timeout. With [`RATE`] it bounds the requests in flight.
const PATIENCE: Duration = Duration::from_secs(30);

/// Counts of the requests so far, by their end.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Counts {
    /// Requests that the applications sent.
    pub(super) sent: u64,
    /// Requests that the provider answered.
    pub(super) forwarded: u64,
    /// Requests that weir refused because of the limit.
    pub(super) refused: u64,
    /// Requests that ended in any other way.
    pub(super) failed: u64,
}

impl Counts {
    /// Returns the number of requests without an answer yet.
    pub(super) fn waiting(&self) -> u64 {
        self.sent.saturating_sub(self.forwarded + self.refused + self.failed)
    }
}

/// The counts, shared with the screen.
#[derive(Clone, Default)]
pub(super) struct Totals(Arc<Mutex<Counts>>);

impl Totals {
    pub(super) fn read(&self) -> Counts {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, count: fn(&mut Counts) -> &mut u64) {
        *count(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner)) += 1;
    }
}

/// A stream of requests.
pub(super) struct Traffic {
    /// weir's listener.
    pub(super) target: SocketAddr,
    /// The path of every request.
    pub(super) path: String,
    /// The counts.
    pub(super) totals: Totals,
}

impl Traffic {
    /// Sends requests until `stop`, then waits for the missing answers.
    pub(super) async fn run(self, stop: CancellationToken) {
        let traffic = Arc::new(self);
        let mut ticks = interval(Duration::from_secs(1) / RATE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut requests = JoinSet::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                Some(_) = requests.join_next() => {}
                _ = ticks.tick() => {
                    requests.spawn(Arc::clone(&traffic).request());
                }
            }
        }
        while requests.join_next().await.is_some() {}
    }

    async fn request(self: Arc<Traffic>) {
        self.totals.add(|counts| &mut counts.sent);
        let answer = timeout(PATIENCE, get(self.target, &self.path)).await;
        self.totals.add(match answer {
            Ok(Ok((_, false))) => |counts| &mut counts.forwarded,
            Ok(Ok((StatusCode::TOO_MANY_REQUESTS, true))) => |counts| &mut counts.refused,
            _ => |counts| &mut counts.failed,
        });
    }
}

/// Sends one request on its own connection. Returns the status, and whether the answer is weir's own.
async fn get(
    target: SocketAddr,
    path: &str,
) -> Result<(StatusCode, bool), Box<dyn std::error::Error + Send + Sync>> {
    let stream = TcpStream::connect(target).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get(path).header(HOST, target.to_string()).body(Empty::<Bytes>::new())?;
    let exchange = async move {
        let response = sender.send_request(request).await?;
        let answer = (response.status(), response.headers().contains_key("weir-error"));
        response.into_body().collect().await?;
        Ok::<_, hyper::Error>(answer)
    };
    let (answer, _closed) = tokio::join!(exchange, connection);
    Ok(answer?)
}
