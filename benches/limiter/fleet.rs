//! Replicas in this process, each wired as in weir itself, and a permit taken as by the proxy.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use weir::clock::{Clock, Micros};
use weir::config::model::{Confirm, RedisNode, RedisServers, RedisStore as Settings, RedisTls, Secret};
use weir::limiter::arithmetic::limiter_ref::LimiterRef;
use weir::limiter::model::limit::{
    Algorithm, Limit, Limiter, LimiterName, OnStoreFailure, PRECISION_DEFAULT, Permits, QueueLimits,
};
use weir::limiter::{Demand, Entered, LimiterSet, Limiters, Refusal};
use weir::redis::RedisStore;
use weir::telemetry::Metrics;

use crate::load::Result;
use crate::server::Server;

/// The timeout of calls: long enough that none fails because another process has the core.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The queue of the limiter, with space for all: no request leaves.
const QUEUE: QueueLimits = QueueLimits { timeout: Duration::from_secs(30), max_waiting: 100_000 };

/// A sliding window with the default precision.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) permits: u32,
    pub(crate) per: Duration,
    pub(crate) guard: Duration,
}

impl Window {
    fn limiter(self) -> Result<Limiter> {
        let rate = Permits::new(self.permits.into()).ok_or("no such rate")?;
        let precision = NonZeroU32::new(PRECISION_DEFAULT).ok_or("no precision")?;
        let (per, algorithm) = (self.per, Algorithm::SlidingWindow { precision });
        let limits = vec![Limit { rate, per, algorithm, label: self.to_string().into() }];
        // A failed call ends the bench, because offline grants are not to be measured.
        let on_store_failure = OnStoreFailure::Reject;
        let (guard, queue) = (self.guard, Some(QUEUE));
        Ok(Limiter { guard, queue, on_store_failure, ..Limiter::new(name()?, limits) })
    }

    pub(crate) fn limiter_ref(self) -> Result<LimiterRef> {
        Ok(LimiterRef::new(&self.limiter()?, None, Micros::ZERO))
    }
}

impl fmt::Display for Window {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{:?}", self.permits, self.per)
    }
}

fn name() -> Result<LimiterName> {
    LimiterName::parse("bench").ok_or_else(|| "no such name".into())
}

/// Returns a store with connections of its own.
pub(crate) fn store(server: &Server, metrics: &Metrics) -> Result<RedisStore> {
    let settings = Settings {
        servers: RedisServers::One(RedisNode { url: Secret::new(&server.url), address: server.url.clone() }),
        tls: RedisTls::default(),
        timeout: TIMEOUT,
        pool_size: 8,
        key_prefix: "weir".into(),
        fleet_size: 1,
        confirm: Confirm::default(),
    };
    Ok(RedisStore::new(&settings, metrics.store())?)
}

/// Replicas that share one limiter.
pub(crate) struct Fleet {
    limiters: Vec<Limiters>,
    /// The limiter set of each replica.
    pub(crate) limiter_sets: Vec<LimiterSet>,
    end: CancellationToken,
    tasks: TaskTracker,
}

impl Fleet {
    /// Starts replicas and takes a permit from each: connections are open then, and the server knows the script.
    pub(crate) async fn start(server: &Server, window: Window, replicas: usize) -> Result<Fleet> {
        let (end, tasks) = (CancellationToken::new(), TaskTracker::new());
        let mut fleet = Fleet { limiters: Vec::new(), limiter_sets: Vec::new(), end, tasks };
        for _ in 0..replicas {
            fleet.add(server, window).await?;
        }
        Ok(fleet)
    }

    async fn add(&mut self, server: &Server, window: Window) -> Result<()> {
        let metrics = Metrics::new();
        let store = Arc::new(store(server, &metrics)?);
        let (probing, listening) = (store.clone(), store.clone());
        let (probe_end, listen_end) = (self.end.clone(), self.end.clone());
        self.tasks.spawn(async move { probing.probe(probe_end).await });
        self.tasks.spawn(async move { listening.listen(listen_end).await });
        let limiters = Limiters::new(store, Clock::start(), 1, metrics);
        limiters.apply(&[Arc::new(window.limiter()?)]);
        let (following, end) = (limiters.clone(), self.end.clone());
        self.tasks.spawn(async move { end.run_until_cancelled(following.follow()).await });
        limiters.settle().await;
        let (keeping, end) = (limiters.clone(), self.end.clone());
        self.tasks.spawn(async move { end.run_until_cancelled(keeping.keep()).await });
        let limiter_set = limiters.limiter_set(&[name()?])?.ok_or("a limiter set without limiters")?;
        take(&limiter_set).await?;
        self.limiters.push(limiters);
        self.limiter_sets.push(limiter_set);
        Ok(())
    }

    /// Ends every task.
    pub(crate) async fn close(self) {
        for limiters in &self.limiters {
            limiters.close().await;
        }
        self.end.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Takes a permit and spends it.
pub(crate) async fn take(limiter_set: &LimiterSet) -> std::result::Result<(), Refusal> {
    let demand = Demand::of(Permits::ONE);
    let mut permit = match limiter_set.enter(&[], demand).await? {
        Entered::Granted(permit) => permit,
        Entered::Waiting(mut ticket) => {
            ticket.approaching().await;
            ticket.turn().await?
        }
    };
    permit.confirm().await?;
    permit.commit();
    Ok(())
}
