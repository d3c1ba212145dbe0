//! The Redis store: a call is one script, carried out atomically on the server's own clock.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::{BoxFuture, FutureExt, join_all};
use redis::Value;
use tokio::sync::broadcast;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock::Micros;
use crate::config::model;
use crate::entropy::Entropy;
use crate::limiter::Replica;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::call::{Answer, Call};
use crate::limiter::model::epoch::Epoch;
use crate::limiter::model::heartbeat::{Heartbeat, HeartbeatAnswer};
use crate::limiter::model::pause::PauseByHand;
use crate::limiter::model::upstream_report::{ReportResult, UpstreamReport};
use crate::limiter::model::write_back::WriteBack;
use crate::limiter::store::{Announcement, Failure, StateView, Store, StoreError};
use crate::redis::answers;
use crate::redis::arguments::{self, Arguments, Context};
use crate::redis::connection::{LEASE, PartConnection, RECOVERY};
use crate::redis::pool::Connections;
use crate::redis::servers::Transport;
use crate::redis::setup_error::RedisSetupError;
use crate::telemetry::{StoreMetrics, StoreOp};

/// A Cluster as a whole holds no limiter.
const NO_PART: StoreError = StoreError::Malformed("no group");

/// Limiter state in Redis: all of it, or on a Cluster that of one group.
#[derive(Clone)]
pub struct RedisStore {
    pub(super) connection: PartConnection,
}

impl RedisStore {
    /// Returns a store on the configured servers, which are not asked yet.
    ///
    /// # Errors
    /// If the address or a TLS file cannot be used.
    pub fn new(settings: &model::RedisStore, metrics: StoreMetrics) -> Result<RedisStore, RedisSetupError> {
        let connections = Connections::new(settings)?;
        Ok(RedisStore { connection: PartConnection::new(settings, connections, Entropy::system(), metrics) })
    }

    /// Returns a store on one server that is reached over `transport`, with a source of random numbers.
    ///
    /// # Errors
    /// If the settings cannot be used.
    pub fn over(
        transport: Arc<dyn Transport>,
        settings: &model::RedisStore,
        entropy: Entropy,
        metrics: StoreMetrics,
    ) -> Result<RedisStore, RedisSetupError> {
        let connections = Connections::over(transport, settings)?;
        Ok(RedisStore { connection: PartConnection::new(settings, connections, entropy, metrics) })
    }

    /// Receives the announcements of other replicas, and follows the primary that sentinels name, until `shutdown`.
    pub async fn listen(&self, shutdown: CancellationToken) {
        tokio::select! {
            biased;
            () = self.connection.shared.announcements.listen(shutdown) => {}
            () = self.connection.shared.connections.follow_primary() => {}
        }
    }

    /// Probes the store once, then whenever a circuit is open, until it answers again. Ends at once with `shutdown`, also while a server
    /// is silent: nothing waits for an outcome then.
    pub async fn probe(&self, shutdown: CancellationToken) {
        shutdown.run_until_cancelled(self.keep_probing()).await;
    }

    async fn keep_probing(&self) {
        match self.connection.ping().await {
            Ok(()) => self.connection.prepare().await,
            Err(error) => {
                tracing::warn!(%error, "cannot reach the store at start: limiters go by their on_store_failure");
            }
        }
        loop {
            self.connection.shared.circuits.probe_is_due().await;
            let probes =
                self.connection.parts().into_iter().filter(|part| part.part.health.is_to_be_probed());
            // The circuits note the outcome.
            join_all(probes.map(|part| async move { part.ping().await })).await;
        }
    }

    /// Calls the script of an operation for one limiter, or for none, and reads its answer.
    pub(super) async fn ask<T>(
        &self,
        op: StoreOp,
        owner: &str,
        arguments: impl Fn(&Context<'_>) -> Arguments,
        answer: impl Fn(&Value) -> Option<T>,
    ) -> Result<T, StoreError> {
        let script = self.connection.shared.scripts.of(op);
        let command = |run: &str| script.command(&arguments(&self.connection.context(run)));
        let value = self.connection.call(op, owner, command).await?;
        answer(&value).ok_or(StoreError::Malformed(op.as_str()))
    }

    /// Calls the script of an operation for one limiter, which a Cluster as a whole does not hold.
    async fn ask_part<T>(
        &self,
        op: StoreOp,
        owner: &str,
        arguments: impl Fn(&Context<'_>) -> Arguments,
        answer: impl Fn(&Value) -> Option<T>,
    ) -> Result<T, StoreError> {
        if self.connection.part.keys.is_none() {
            return Err(NO_PART);
        }
        self.ask(op, owner, arguments, answer).await
    }
}

impl Store for RedisStore {
    fn reserve<'a>(
        &'a self,
        limiter_refs: &'a Arc<[LimiterRef]>,
        call: &'a Arc<Call>,
    ) -> BoxFuture<'a, Result<Answer, Failure>> {
        async move {
            let connection = self.connection.clone();
            let (Some(first), true) = (limiter_refs.first(), connection.part.keys.is_some()) else {
                return Err(NO_PART.into());
            };
            let runs = call.runs.iter().map(|run| run.count);
            let groups = call.line.iter().flat_map(|line| &line.wants).flat_map(|want| &want.waiting);
            let requests: u64 = runs.chain(groups.map(|group| group.count)).sum();
            connection.shared.metrics.batch_size(usize::try_from(requests).unwrap_or(usize::MAX));
            let number = connection.shared.calls.fetch_add(1, Ordering::Relaxed) + 1;
            let (limiter_refs, call) = (limiter_refs.clone(), call.clone());
            let decode = {
                let (limiter_refs, call) = (limiter_refs.clone(), call.clone());
                move |value: &Value| match &call.line {
                    Some(line) => answers::deal(value, &limiter_refs, line),
                    None => answers::reserve(value, &limiter_refs, &call),
                }
            };
            let op = if call.line.is_some() { StoreOp::Deal } else { StoreOp::Reserve };
            let command = move |run: &str| {
                let context = connection.context(run);
                let arguments = match &call.line {
                    Some(line) => arguments::deal(&context, &limiter_refs, (&call, line), number),
                    None => arguments::reserve(&context, &limiter_refs, &call, number),
                };
                connection.shared.scripts.of(op).command(&arguments)
            };
            match self.connection.call_on(op, first.name.clone(), command).await {
                Ok(value) => decode(&value).ok_or(StoreError::Malformed("reserve").into()),
                Err(failure) => Err(failure.read(move |value| decode(&value))),
            }
        }
        .boxed()
    }

    fn inspect<'a>(&'a self, limiter_ref: &'a LimiterRef) -> BoxFuture<'a, Result<StateView, StoreError>> {
        let arguments = |context: &Context<'_>| arguments::inspect(context, limiter_ref);
        let answer = |value: &Value| answers::inspect(value, limiter_ref);
        self.ask(StoreOp::Inspect, limiter_ref.name.as_str(), arguments, answer).boxed()
    }

    fn heartbeat<'a>(
        &'a self,
        heartbeat: &'a Heartbeat,
    ) -> BoxFuture<'a, Result<HeartbeatAnswer, StoreError>> {
        async move {
            if self.connection.part.keys.is_none() {
                // A Cluster as a whole holds nothing that could be lost.
                return Ok(HeartbeatAnswer::default());
            }
            let arguments = |context: &Context<'_>| arguments::heartbeat(context, heartbeat);
            self.ask(StoreOp::Heartbeat, RECOVERY, arguments, answers::heartbeat).await
        }
        .boxed()
    }

    fn hand_over<'a>(&'a self, limiter_refs: &'a [LimiterRef]) -> BoxFuture<'a, Result<(), StoreError>> {
        async move {
            let mut next = Some(0);
            while let Some(from) = next {
                let arguments = |context: &Context<'_>| arguments::hand_over(context, limiter_refs, from);
                next = self.ask_part(StoreOp::HandOver, RECOVERY, arguments, answers::hand_over).await?;
            }
            Ok(())
        }
        .boxed()
    }

    fn reset<'a>(
        &'a self,
        limiter_ref: &'a LimiterRef,
        seen_for: Micros,
    ) -> BoxFuture<'a, Result<Epoch, StoreError>> {
        let arguments = move |context: &Context<'_>| arguments::reset(context, limiter_ref, seen_for);
        self.ask_part(StoreOp::Reset, RECOVERY, arguments, answers::epoch).boxed()
    }

    fn report_upstream<'a>(
        &'a self,
        limiter_ref: &'a LimiterRef,
        report: &'a UpstreamReport,
    ) -> BoxFuture<'a, Result<ReportResult, Failure<ReportResult>>> {
        async move {
            let connection = self.connection.clone();
            if connection.part.keys.is_none() {
                return Err(NO_PART.into());
            }
            // It may wait for a connection.
            let made = Instant::now();
            let (limiter_ref, report, owner) =
                (limiter_ref.clone(), report.clone(), limiter_ref.name.clone());
            let command = move |run: &str| {
                let pause = report.pause.map(|pause| pause.told_later(made.elapsed().into()));
                let report = UpstreamReport { pause, ..report.clone() };
                let arguments = arguments::report_upstream(&connection.context(run), &limiter_ref, &report);
                connection.shared.scripts.of(StoreOp::ReportUpstream).command(&arguments)
            };
            match self.connection.call_once(StoreOp::ReportUpstream, owner, command).await {
                Ok(value) => answers::report(&value).ok_or(StoreError::Malformed("report_upstream").into()),
                Err(failure) => Err(failure.read(|value| answers::report(&value))),
            }
        }
        .boxed()
    }

    fn pause<'a>(
        &'a self,
        limiter_ref: &'a LimiterRef,
        pause: &'a PauseByHand,
    ) -> BoxFuture<'a, Result<ReportResult, StoreError>> {
        // It may wait for a connection.
        let made = Instant::now();
        let arguments = move |context: &Context<'_>| {
            arguments::pause(context, limiter_ref, &pause.told_later(made.elapsed().into()))
        };
        self.ask_part(StoreOp::Pause, RECOVERY, arguments, answers::report).boxed()
    }

    fn write_back<'a>(
        &'a self,
        limiter_ref: &'a LimiterRef,
        write: &'a WriteBack,
    ) -> BoxFuture<'a, Result<Epoch, StoreError>> {
        let arguments = |context: &Context<'_>| arguments::write_back(context, limiter_ref, write);
        self.ask_part(StoreOp::WriteBack, RECOVERY, arguments, answers::epoch).boxed()
    }

    fn register_replica<'a>(
        &'a self,
        me: &'a Replica,
        leaves: bool,
    ) -> BoxFuture<'a, Result<Vec<Replica>, StoreError>> {
        let arguments = move |context: &Context<'_>| arguments::register_replica(context.prefix, me, leaves);
        self.ask(StoreOp::RegisterReplica, RECOVERY, arguments, answers::replicas).boxed()
    }

    fn announcements(&self) -> Option<broadcast::Receiver<Announcement>> {
        Some(self.connection.shared.announcements.subscribe())
    }

    fn lease(&self) -> Micros {
        LEASE
    }

    fn timeout(&self) -> Micros {
        self.connection.shared.timeout.into()
    }

    fn is_up(&self) -> bool {
        let PartConnection { shared, part } = &self.connection;
        if part.keys.is_some() { part.health.is_up() } else { shared.circuits.are_closed() }
    }

    fn part(&self, group: &str) -> Option<Arc<dyn Store>> {
        let connection = self.connection.part(group)?;
        Some(Arc::new(RedisStore { connection }))
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::io;
    use std::time::Duration;

    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::config::model::{Confirm, RedisNode, RedisServers, RedisTls, Secret};
    use crate::redis::servers::Stream;
    use crate::telemetry::Metrics;

    const TIMEOUT: Duration = Duration::from_secs(5);

    /// A server that never answers.
    struct Silent;

    impl Transport for Silent {
        fn open(&self) -> BoxFuture<'_, io::Result<Box<dyn Stream>>> {
            pending().boxed()
        }
    }

    fn silent_store() -> RedisStore {
        let settings = model::RedisStore {
            servers: RedisServers::One(RedisNode {
                url: Secret::new("redis://silent"),
                address: "silent".to_owned(),
            }),
            tls: RedisTls::default(),
            timeout: TIMEOUT,
            pool_size: 1,
            key_prefix: "weir".to_owned(),
            fleet_size: 1,
            confirm: Confirm::Primary,
        };
        RedisStore::over(Arc::new(Silent), &settings, Entropy::system(), Metrics::new().store()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_of_a_silent_store_ends_with_the_process() {
        // During the first probe, and during a later one.
        for after in [TIMEOUT, 20 * TIMEOUT] {
            let (store, shutdown) = (silent_store(), CancellationToken::new());
            let probing = store.probe(shutdown.clone());
            let ending = async {
                sleep(after).await;
                shutdown.cancel();
                Instant::now()
            };
            let ended = timeout(100 * TIMEOUT, async { tokio::join!(probing, ending).1.elapsed() }).await;
            assert!(
                ended.as_ref().is_ok_and(|took| *took < Duration::from_millis(10)),
                "{after:?}: {ended:?}"
            );
        }
    }
}
