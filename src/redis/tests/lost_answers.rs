//! A store whose answers are lost on some connections, with a real Redis behind them, on real time.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use crate::clock::Micros;
use crate::config::model::{self, Confirm, RedisNode, RedisServers, RedisTls, Secret};
use crate::entropy::Entropy;
use crate::limiter::arithmetic::algorithm::kind::Kind;
use crate::limiter::arithmetic::algorithm::sliding_window::SlidingWindow;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::model::call::{Call, Run};
use crate::limiter::model::heartbeat::Heartbeat;
use crate::limiter::model::limit::LimiterName;
use crate::limiter::model::{CALL_KEPT, Outcome};
use crate::limiter::store::Store;
use crate::redis::RedisStore;
use crate::redis::servers::{Stream, Transport};
use crate::redis::tests::TestStore;
use crate::telemetry::Metrics;

const PATIENCE: Duration = Duration::from_secs(20);
const RATE: u64 = 100;

/// Connections to a server. Those that there are lose its answers when they are muted.
struct Line {
    socket: PathBuf,
    mutes: Arc<AtomicU64>,
}

struct Mutable {
    stream: UnixStream,
    mutes: Arc<AtomicU64>,
    /// How often connections had been muted when this one began.
    since: u64,
}

impl Transport for Line {
    fn open(&self) -> BoxFuture<'_, io::Result<Box<dyn Stream>>> {
        async {
            let (stream, mutes) = (UnixStream::connect(&self.socket).await?, self.mutes.clone());
            let since = mutes.load(Ordering::Relaxed);
            Ok(Box::new(Mutable { stream, mutes, since }) as Box<dyn Stream>)
        }
        .boxed()
    }
}

impl AsyncRead for Mutable {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, into);
        if read.is_ready() && self.mutes.load(Ordering::Relaxed) != self.since {
            into.set_filled(before);
            return Poll::Pending;
        }
        read
    }
}

impl AsyncWrite for Mutable {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Returns a replica's store on a server that is reached over `transport`.
pub(super) fn store_over(transport: Arc<dyn Transport>, timeout: Duration) -> RedisStore {
    let settings = model::RedisStore {
        servers: RedisServers::One(RedisNode {
            url: Secret::new("redis://local"),
            address: "local".to_owned(),
        }),
        tls: RedisTls::default(),
        timeout,
        // So many that the second call has a connection of its own.
        pool_size: 64,
        key_prefix: "weir".to_owned(),
        fleet_size: 1,
        confirm: Confirm::Primary,
    };
    RedisStore::over(transport, &settings, Entropy::system(), Metrics::new().store()).unwrap()
}

/// Returns a replica's store on a server, and what mutes its connections.
fn store(server: &TestStore, timeout: Duration) -> (RedisStore, Arc<AtomicU64>) {
    let mutes = Arc::<AtomicU64>::default();
    let line = Line { socket: server.socket(), mutes: mutes.clone() };
    (store_over(Arc::new(line), timeout), mutes)
}

pub(super) fn limiter_ref() -> LimiterRef {
    let kind = Kind::SlidingWindow(SlidingWindow);
    let rule = Rule { rate: RATE, window: Micros(3_600_000_000), cell: Micros::ONE, kind };
    let name = LimiterName::parse("a").unwrap();
    LimiterRef { name, partition: None, valid_until: None, group: "a".into(), rules: [rule].into() }
}

/// Asks for one permit in an epoch. Returns the permits that were booked.
async fn ask(store: &RedisStore, replica: u64, epoch: u64) -> usize {
    let runs = vec![Run { cost: 1, wait_max: Micros::ZERO, count: 1 }];
    let call = Call { replica, epoch, generations: vec![0], runs, queue_slots_left: 1, ..Call::default() };
    let answer = match store.reserve(&Arc::from([limiter_ref()]), &Arc::new(call)).await {
        Ok(answer) => answer,
        Err(failure) => failure.late.expect("a late answer").await.expect("an answer"),
    };
    answer.outcomes.iter().filter(|(_, outcome)| matches!(outcome, Outcome::Booked(_))).count()
}

async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let end = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < end, "{what}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// The script remembers a call for a second, if others call for the queue. A call that is repeated later books another permit.
#[tokio::test]
async fn a_call_whose_answer_is_lost_books_once_with_a_long_timeout() {
    let server = TestStore::start();
    let (one, mutes) = store(&server, Duration::from_millis(1500));
    let (other, _) = store(&server, PATIENCE);
    let used = async || RATE - other.inspect(&limiter_ref()).await.unwrap().available[0];
    let epoch = other.heartbeat(&Heartbeat::default()).await.unwrap().epoch.id;
    // Without heartbeats the epoch would end.
    let beating = {
        let other = other.clone();
        AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                other.heartbeat(&Heartbeat::default()).await.unwrap();
                sleep(Duration::from_millis(100)).await;
            }
        }))
    };
    eventually("the epoch opens", async || ask(&one, 1, epoch).await == 1).await;
    mutes.fetch_add(1, Ordering::Relaxed);
    let others = async {
        eventually("the call is carried out", async || used().await == 2).await;
        // The memory of the script, and no condition, is what passes.
        sleep(CALL_KEPT.to_duration() + Duration::from_millis(50)).await;
        ask(&other, 2, epoch).await
    };
    assert_eq!(tokio::join!(ask(&one, 1, epoch), others), (1, 1));
    assert_eq!(used().await, 3);
    assert!(!beating.is_finished(), "one epoch for all");
}
