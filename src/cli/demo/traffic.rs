//! The demo's applications: a steady stream of requests, independent of earlier answers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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
#[derive(Default)]
pub(super) struct Totals {
    sent: AtomicU64,
    forwarded: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
}

/// [`Totals`] at an instant.
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

impl Totals {
    pub(super) fn read(&self) -> Counts {
        // `sent` is read last, so that it is never below the number of answers.
        Counts {
            forwarded: self.forwarded.load(Ordering::Acquire),
            refused: self.refused.load(Ordering::Acquire),
            failed: self.failed.load(Ordering::Acquire),
            sent: self.sent.load(Ordering::Acquire),
        }
    }
}

/// A stream of requests.
pub(super) struct Traffic {
    /// weir's listener.
    pub(super) target: SocketAddr,
    /// The path of every request.
    pub(super) path: String,
    /// The counts.
    pub(super) totals: Arc<Totals>,
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
        let totals = &self.totals;
        totals.sent.fetch_add(1, Ordering::Release);
        let ending = match timeout(PATIENCE, get(self.target, &self.path)).await {
            Ok(Ok(Answer::Provider)) => &totals.forwarded,
            Ok(Ok(Answer::Limited)) => &totals.refused,
            Ok(Ok(Answer::Trouble) | Err(_)) | Err(_) => &totals.failed,
        };
        ending.fetch_add(1, Ordering::Release);
    }
}

/// The origin of an answer.
enum Answer {
    Provider,
    /// weir, because of the limit.
    Limited,
    /// weir, for any other reason.
    Trouble,
}

/// Sends one request on its own connection.
async fn get(target: SocketAddr, path: &str) -> Result<Answer, Box<dyn std::error::Error + Send + Sync>> {
    let stream = TcpStream::connect(target).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get(path).header(HOST, target.to_string()).body(Empty::<Bytes>::new())?;
    let exchange = async move {
        let response = sender.send_request(request).await?;
        let answer = match response.headers().contains_key("weir-error") {
            false => Answer::Provider,
            true if response.status() == StatusCode::TOO_MANY_REQUESTS => Answer::Limited,
            true => Answer::Trouble,
        };
        response.into_body().collect().await?;
        Ok::<_, hyper::Error>(answer)
    };
    let (answer, _closed) = tokio::join!(exchange, connection);
    Ok(answer?)
}
