//! The Redis store: a call is one script, carried out atomically on the server's own clock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use deadpool::managed::PoolError;
use futures_util::future::{BoxFuture, FutureExt, join_all};
use redis::{Cmd, RedisError, Value};
use tokio::sync::broadcast;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::clock::Micros;
use crate::config::model;
use crate::limiter::arithmetic::algorithm::sliding_window::SlidingWindow;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::arithmetic::reschedule::RESCHEDULE_MAX;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::model::call::Freed;
use crate::limiter::model::call::Generation;
use crate::limiter::model::call::{Answer, Call, Holding, Outcome, RetryDelay, Violated};
use crate::limiter::model::epoch::{Epoch, Reset};
use crate::limiter::model::limit::LimiterName;
use crate::limiter::model::pause::{Cause, Lasting, PAUSE_MAX, PauseRequest, Reason};
use crate::limiter::model::upstream_report::{ReportResult, UpstreamReport};
use crate::limiter::model::write_back::{Unknown, WriteBack};
use crate::limiter::store::{Announcement, Failure, StateView, Store, StoreError};
use crate::limiter::{COUNTS_FOR, Replica, printable};
use crate::redis::announcements::Announcements;
use crate::redis::explain::{evicts, explain, version, word};
use crate::redis::health::{Circuits, Health};
use crate::redis::keys;
use crate::redis::pool::{Connections, NoConnection, connect_timeout};
use crate::redis::script::Script;
use crate::redis::servers::{RedisSetupError, Wire, info_of};
use crate::telemetry::{StoreMetrics, StoreOp, StoreResult};

/// Two heartbeats of a worker and a margin: by then every replica has heard of changed limits.
const LEASE: Micros = Micros::from_millis(500);

/// How long a new epoch takes to settle: a replica that has been granted anything asks for the epoch twice in that time, and
/// has some of it left to write back.
const SETTLE: Micros = LEASE;

/// A Cluster as a whole holds no limiter.
const NO_PART: StoreError = StoreError::Malformed("no group");

/// The owner of the connection for what is not a limiter's.
const KEEPER: &str = "keeper";

/// How a script begins the error by which it says that a key holds what is not weir's.
const UNREADABLE: &str = "UNREADABLE ";

/// For how long after it was first made a call may be repeated: half as long as the script remembers it.
const REPEAT_WITHIN: Duration = Duration::from_millis(500);

/// For how long after its deadline a call may still be answered: a server that stood still carries out what it was sent.
const LATE_MAX: Duration = Duration::from_secs(60);

/// The most rules of one queue: what a script may name as violated.
const VIOLATED_LIMITS: u64 = 256;

/// Limiter state in Redis: all of it, or on a Cluster that of one group.
#[derive(Clone)]
pub struct RedisStore {
    shared: Arc<StoreConnection>,
    part: Arc<Part>,
}

/// What all parts have in common.
struct StoreConnection {
    connections: Connections,
    announcements: Announcements,
    circuits: Arc<Circuits>,
    /// On a Cluster each group of limiters is a part by itself: those that are in use.
    parts: Mutex<Vec<Weak<Part>>>,
    reserve: Script,
    inspect: Script,
    epoch_keep: Script,
    write_back: Script,
    register_replica: Script,
    reset: Script,
    hear: Script,
    pause: Script,
    prefix: String,
    /// Where the servers are, without user and password.
    addresses: String,
    timeout: Duration,
    /// How many calls have been made.
    calls: AtomicU64,
    metrics: StoreMetrics,
}

impl StoreConnection {
    fn script(&self, op: StoreOp) -> &Script {
        match op {
            StoreOp::Reserve => &self.reserve,
            StoreOp::Inspect => &self.inspect,
            StoreOp::Heartbeat | StoreOp::Ping => &self.epoch_keep,
            StoreOp::WriteBack => &self.write_back,
            StoreOp::RegisterReplica => &self.register_replica,
            StoreOp::Reset => &self.reset,
            StoreOp::ReportUpstream => &self.hear,
            StoreOp::Pause => &self.pause,
        }
    }
}

/// What may be lost, or away, by itself.
struct Part {
    health: Health,
    /// What tells whether it has been lost; none for a Cluster as a whole.
    epoch: Option<String>,
}

/// A store that works.
pub struct Checked {
    /// What it is, and in which version.
    pub server: String,
    /// What may go wrong all the same, and what to do about it.
    pub caution: Option<String>,
}

impl RedisStore {
    /// A store on the configured servers, which are not asked yet.
    ///
    /// # Errors
    /// If the address or a TLS file cannot be used.
    pub fn new(settings: &model::RedisStore, metrics: StoreMetrics) -> Result<RedisStore, RedisSetupError> {
        let connections = Connections::new(settings)?;
        let channel = keys::announcements(&settings.key_prefix);
        let announcements =
            Announcements::new(connections.clone(), channel, connect_timeout(settings.timeout));
        let circuits = Arc::new(Circuits::new(metrics.clone()));
        let epoch = (!connections.are_cluster()).then(|| keys::epoch(&settings.key_prefix, None));
        let part = Arc::new(Part { health: Health::new(circuits.clone()), epoch });
        let shared = Arc::new(StoreConnection {
            connections,
            announcements,
            circuits,
            parts: Mutex::new(vec![Arc::downgrade(&part)]),
            reserve: Script::reserve(),
            inspect: Script::inspect(),
            epoch_keep: Script::epoch_keep(),
            write_back: Script::write_back(),
            register_replica: Script::register_replica(),
            reset: Script::reset(),
            hear: Script::report_upstream(),
            pause: Script::pause(),
            prefix: settings.key_prefix.clone(),
            addresses: settings.servers.addresses(),
            timeout: settings.timeout,
            calls: AtomicU64::new(0),
            metrics,
        });
        Ok(RedisStore { shared, part })
    }

    /// Tries everything that weir does there, on keys of its own that go by themselves.
    ///
    /// # Errors
    /// What does not work, and what to do about it.
    pub async fn check(&self) -> Result<Checked, StoreError> {
        const GROUP: &str = "weir-check";
        let patience = connect_timeout(self.shared.timeout);
        self.ping().await?;
        let connected = self.shared.connections.get(&"ping").await;
        let mut connection = connected.map_err(|error| self.lost(&error))?;
        let refused = |error: RedisError| StoreError::Refused(explain(&error));
        let (server, memory) = match &mut connection.wire {
            // Every node has the same version, or will have.
            Wire::Cluster(_) => (String::new(), String::new()),
            wire => (
                info_of(wire, "server").await.map_err(refused)?,
                info_of(wire, "memory").await.map_err(refused)?,
            ),
        };
        let part = self.part(GROUP).unwrap_or_else(|| Arc::new(self.clone()));
        let name = LimiterName::parse(GROUP).ok_or(NO_PART)?;
        let rule =
            Rule { rate: 1, window: Micros::from_millis(1), cell: Micros::ONE, kind: SlidingWindow.into() };
        let limiter_ref = LimiterRef {
            name,
            partition: None,
            group: GROUP.into(),
            rules: [rule].into(),
            valid_until: None,
        };
        let me = Replica { version: "check".into(), ..Replica::new(1) };
        let (limiter_refs, call) = (Arc::from([limiter_ref.clone()]), Arc::default());
        let write = WriteBack {
            replica: me.id,
            unknown: Unknown::Lost,
            number: 1,
            known_epoch: 0,
            observed_usage: 0,
            sent: Micros::ZERO,
            entries: Vec::new(),
        };
        part.epoch(0).await?;
        part.reserve(&limiter_refs, &call).await.map_err(|failure| failure.error)?;
        part.inspect(&limiter_ref).await?;
        part.write_back(&limiter_ref, &write).await?;
        part.report_upstream(&limiter_ref, &UpstreamReport { replica: me.id, ..UpstreamReport::default() })
            .await?;
        self.register_replica(&me, true).await?;
        // Nobody understands it. A script that may not publish goes on without.
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(self.shared.announcements.channel()).arg("");
        publish.exec_async(&mut connection.wire).await.map_err(refused)?;
        let subscribe = self.shared.announcements.try_out();
        let subscribed = timeout(patience, subscribe).await.map_err(|_| StoreError::Timeout(patience))?;
        subscribed.map_err(refused)?;
        let server = version(&server).unwrap_or_else(|| "Redis".to_owned());
        Ok(Checked { server, caution: evicts(&memory) })
    }

    /// Hears what other replicas announce, until `shutdown`.
    pub async fn listen(&self, shutdown: CancellationToken) {
        self.shared.announcements.listen(shutdown).await;
    }

    /// Looks once whether the store is there, then whenever a circuit is open, until it is found again.
    pub async fn probe(&self, shutdown: CancellationToken) {
        if let Err(error) = self.ping().await {
            tracing::warn!(%error, "cannot reach the store at start: limiters go by their on_store_failure");
        }
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = self.shared.circuits.probe_is_due() => {}
            }
            let probes = self.parts().into_iter().filter(|part| !part.part.health.is_up());
            // The outcome is kept by the health.
            join_all(probes.map(|part| async move { part.ping().await })).await;
        }
    }

    /// Those that are in use.
    fn parts(&self) -> Vec<RedisStore> {
        let mut parts = self.shared.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.retain(|part| part.strong_count() > 0);
        let parts = parts.iter().filter_map(Weak::upgrade);
        parts.map(|part| RedisStore { shared: self.shared.clone(), part }).collect()
    }

    /// Asks whether the server is there, by a heartbeat where that is possible: it must be able to write, too.
    async fn ping(&self) -> Result<(), StoreError> {
        let command = |run: &str| match &self.part.epoch {
            Some(epoch) => self.heartbeat(epoch, run, 0, true),
            None => redis::cmd("PING"),
        };
        let attempt = self.attempt(StoreOp::Ping, "ping", command);
        self.timed(StoreOp::Ping, connect_timeout(self.shared.timeout), attempt).await.map(drop)
    }

    /// A probe writes in any case: a server without memory left, or that is no primary, still reads.
    fn heartbeat(&self, epoch: &str, run: &str, known: u64, is_probe: bool) -> Cmd {
        let mut command = self.shared.epoch_keep.command(&[epoch.to_owned()], 5);
        command.arg(0).arg(SETTLE.0).arg(run).arg(known).arg(u8::from(is_probe));
        command
    }

    /// Makes a script call within the deadline. `command` makes it for the run of the server that is connected.
    async fn call(
        &self,
        op: StoreOp,
        owner: &str,
        command: impl Fn(&str) -> Cmd,
    ) -> Result<Value, StoreError> {
        if !self.part.health.is_up() {
            return Err(StoreError::Away);
        }
        self.timed(op, self.shared.timeout, self.attempt(op, owner, command)).await
    }

    /// Makes a call that goes on when nobody waits for it any more: what it books must not be lost.
    async fn call_on(
        &self,
        op: StoreOp,
        owner: LimiterName,
        command: impl Fn(&str) -> Cmd + Send + Sync + 'static,
    ) -> Result<Value, (StoreError, Option<BoxFuture<'static, Option<Value>>>)> {
        if !self.part.health.is_up() {
            return Err((StoreError::Away, None));
        }
        let store = self.clone();
        let mut attempt = async move { store.attempt(op, owner.as_str(), command).await }.boxed();
        let result = self.timed(op, self.shared.timeout, &mut attempt).await;
        result.map_err(|error| {
            let late = async move { timeout(LATE_MAX, attempt).await.ok()?.ok() };
            let is_late = matches!(error, StoreError::Timeout(_));
            (error, is_late.then(|| late.boxed()))
        })
    }

    /// Waits for a call until its deadline, and keeps what became of it.
    async fn timed(
        &self,
        op: StoreOp,
        deadline: Duration,
        attempt: impl Future<Output = Result<Value, StoreError>>,
    ) -> Result<Value, StoreError> {
        let started = Instant::now();
        let result = timeout(deadline, attempt).await.unwrap_or(Err(StoreError::Timeout(deadline)));
        self.record(op, started, &result);
        result
    }

    /// Whose connection a call goes by: on a Cluster all calls for a group go by one.
    fn owner<'a>(&'a self, caller: &'a str) -> &'a str {
        let group = self.part.epoch.as_deref().filter(|_| self.shared.connections.are_cluster());
        group.unwrap_or(caller)
    }

    async fn attempt(
        &self,
        op: StoreOp,
        caller: &str,
        command: impl Fn(&str) -> Cmd,
    ) -> Result<Value, StoreError> {
        let (script, owner) = (self.shared.script(op), self.owner(caller));
        let (started, mut is_repeated) = (Instant::now(), false);
        loop {
            let got = self.shared.connections.get(&owner).await;
            let mut connection = got.map_err(|error| self.lost(&error))?;
            let (unknown, result) = script.call(&mut connection.wire, &command(&connection.run)).await;
            if unknown {
                self.shared.metrics.called(op, StoreResult::NoScript, started.elapsed());
            }
            let error = match result {
                Ok(value) => return Ok(value),
                Err(error) => self.failed(&owner, &error),
            };
            // A call whose connection broke may have been carried out: it is made once more under its number, by a new
            // connection, while the script is sure to remember it.
            if is_repeated || !matches!(error, StoreError::Connection(_)) || started.elapsed() > REPEAT_WITHIN
            {
                return Err(error);
            }
            self.shared.metrics.called(op, StoreResult::Connection, started.elapsed());
            is_repeated = true;
        }
    }

    fn record(&self, op: StoreOp, started: Instant, result: &Result<Value, StoreError>) {
        let told = match result {
            Ok(_) => StoreResult::Ok,
            Err(StoreError::Timeout(_)) => StoreResult::Timeout,
            Err(StoreError::Away | StoreError::Connection(_)) => StoreResult::Connection,
            Err(StoreError::Refused(_) | StoreError::Unreadable(_) | StoreError::Malformed(_)) => {
                StoreResult::Error
            }
        };
        self.shared.metrics.called(op, told, started.elapsed());
        match result {
            Ok(_) => self.part.health.succeeded(),
            // One key of many: the others are served all the same. Without the epoch none is.
            Err(StoreError::Unreadable(_)) if !matches!(op, StoreOp::Heartbeat | StoreOp::Ping) => {}
            Err(error) => {
                // A server that is gone without a word is found again, or another in its place, by new connections.
                let opens = self.part.health.failed(&error.to_string());
                let is_away = matches!(error, StoreError::Timeout(_) | StoreError::Connection(_));
                if opens && !self.shared.connections.are_cluster() {
                    self.shared.connections.replace_all();
                } else if opens || (op == StoreOp::Ping && is_away) {
                    self.shared.connections.replace(&self.owner("ping"));
                }
            }
        }
    }

    fn lost(&self, error: &NoConnection) -> StoreError {
        let why = match error {
            PoolError::Backend(error) => explain(error),
            PoolError::Timeout(_) => "no connection in time".to_owned(),
            other => other.to_string(),
        };
        StoreError::Connection(format!("{}: {why}", self.shared.addresses))
    }

    fn failed(&self, owner: &&str, error: &RedisError) -> StoreError {
        if is_misplaced(error) {
            self.shared.connections.replace(owner);
            return StoreError::Connection(format!("{}: {}", self.shared.addresses, explain(error)));
        }
        if let Some(found) = error.detail().and_then(|detail| detail.find(UNREADABLE).map(|at| &detail[at..]))
        {
            let what = found[UNREADABLE.len()..].split(" script: ").next().unwrap_or_default();
            return StoreError::Unreadable(what.to_owned());
        }
        StoreError::Refused(explain(error))
    }
}

/// Whether another connection may do better: this one broke, is not logged in any more, or leads to a server that is the primary
/// no more.
fn is_misplaced(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_unrecoverable_error()
        || ["READONLY", "MASTERDOWN", "NOAUTH"].contains(&word(error))
}

impl Store for RedisStore {
    fn reserve<'a>(
        &'a self,
        limiter_refs: &'a Arc<[LimiterRef]>,
        call: &'a Arc<Call>,
    ) -> BoxFuture<'a, Result<Answer, Failure>> {
        async move {
            let (Some(first), true) = (limiter_refs.first(), self.part.epoch.is_some()) else {
                return Err(NO_PART.into());
            };
            let requests: u64 = call.runs.iter().map(|run| run.count).sum();
            self.shared.metrics.batch_size(usize::try_from(requests).unwrap_or(usize::MAX));
            let number = self.shared.calls.fetch_add(1, Ordering::Relaxed) + 1;
            let (store, limiter_refs, call) = (self.clone(), limiter_refs.clone(), call.clone());
            let decode = {
                let (limiter_refs, call) = (limiter_refs.clone(), call.clone());
                move |value: &Value| decode_answer(value, &limiter_refs, &call)
            };
            let command = move |run: &str| {
                let StoreConnection { reserve, prefix, announcements, .. } = &*store.shared;
                let epoch = store.part.epoch.as_deref().unwrap_or_default();
                let channel = announcements.channel();
                let place = Place { prefix, epoch, channel, call: number, run, settle: SETTLE };
                command_for(reserve, place, Micros::ZERO, LEASE, &limiter_refs, &call)
            };
            match self.call_on(StoreOp::Reserve, first.name.clone(), command).await {
                Ok(value) => decode(&value).ok_or(StoreError::Malformed("reserve").into()),
                Err((error, late)) => {
                    let late = late.map(|late| async move { decode(&late.await?) }.boxed());
                    Err(Failure { error, late })
                }
            }
        }
        .boxed()
    }

    fn inspect<'a>(&'a self, limiter_ref: &'a LimiterRef) -> BoxFuture<'a, Result<StateView, StoreError>> {
        async move {
            let command = |_: &str| {
                let epoch = self.part.epoch.clone().unwrap_or_default();
                inspect_command(&self.shared.inspect, &self.shared.prefix, &epoch, Micros::ZERO, limiter_ref)
            };
            let owner = limiter_ref.name.as_str();
            let value = self.call(StoreOp::Inspect, owner, command).await?;
            decode_inspection(&value, limiter_ref).ok_or(StoreError::Malformed("inspect"))
        }
        .boxed()
    }

    fn epoch(&self, known: u64) -> BoxFuture<'_, Result<(Epoch, Vec<Reset>), StoreError>> {
        async move {
            // A Cluster as a whole holds nothing that could be lost.
            let Some(epoch) = &self.part.epoch else { return Ok(Default::default()) };
            let command = |run: &str| self.heartbeat(epoch, run, known, false);
            let value = self.call(StoreOp::Heartbeat, KEEPER, command).await?;
            decode_heartbeat(&value).ok_or(StoreError::Malformed("epoch_keep"))
        }
        .boxed()
    }

    fn reset<'a>(&'a self, limiter_ref: &'a LimiterRef) -> BoxFuture<'a, Result<Epoch, StoreError>> {
        async move {
            let Some(epoch) = &self.part.epoch else { return Err(NO_PART) };
            let longest = limiter_ref.rules.iter().map(Rule::seen_for).max().unwrap_or_default();
            let command = |run: &str| {
                let keys = [epoch.clone(), keys::limiter(&self.shared.prefix, limiter_ref)];
                let mut command = self.shared.reset.command(&keys, 5);
                command.arg(0).arg(SETTLE.0).arg(run).arg(0).arg((longest + RESCHEDULE_MAX).0);
                command
            };
            let value = self.call(StoreOp::Reset, KEEPER, command).await?;
            decode_epoch(&value).ok_or(StoreError::Malformed("reset"))
        }
        .boxed()
    }

    fn report_upstream<'a>(
        &'a self,
        limiter_ref: &'a LimiterRef,
        said: &'a UpstreamReport,
    ) -> BoxFuture<'a, Result<ReportResult, StoreError>> {
        async move {
            let Some(epoch) = &self.part.epoch else { return Err(NO_PART) };
            let command = |run: &str| {
                let StoreConnection { hear, prefix, announcements, .. } = &*self.shared;
                let channel = announcements.channel();
                let place = Place { prefix, epoch, channel, call: 0, run, settle: SETTLE };
                hear_command(hear, place, Micros::ZERO, LEASE, limiter_ref, said)
            };
            let value = self.call(StoreOp::ReportUpstream, limiter_ref.name.as_str(), command).await?;
            decode_heard(&value).ok_or(StoreError::Malformed("hear"))
        }
        .boxed()
    }

    fn pause<'a>(
        &'a self,
        limiter_ref: &'a LimiterRef,
        lasting: Micros,
        replica: u64,
    ) -> BoxFuture<'a, Result<ReportResult, StoreError>> {
        async move {
            let Some(epoch) = &self.part.epoch else { return Err(NO_PART) };
            let command = |run: &str| {
                let StoreConnection { pause, prefix, announcements, .. } = &*self.shared;
                let channel = announcements.channel();
                let place = Place { prefix, epoch, channel, call: 0, run, settle: SETTLE };
                pause_command(pause, place, Micros::ZERO, limiter_ref, lasting, replica)
            };
            let value = self.call(StoreOp::Pause, KEEPER, command).await?;
            decode_heard(&value).ok_or(StoreError::Malformed("pause"))
        }
        .boxed()
    }

    fn write_back<'a>(
        &'a self,
        limiter_ref: &'a LimiterRef,
        write: &'a WriteBack,
    ) -> BoxFuture<'a, Result<Epoch, StoreError>> {
        async move {
            let Some(epoch) = &self.part.epoch else { return Err(NO_PART) };
            let command = |run: &str| {
                let StoreConnection { write_back, prefix, .. } = &*self.shared;
                let place = Place { prefix, epoch, channel: "", call: 0, run, settle: SETTLE };
                write_command(write_back, place, Micros::ZERO, limiter_ref, write)
            };
            let value = self.call(StoreOp::WriteBack, KEEPER, command).await?;
            decode_epoch(&value).ok_or(StoreError::Malformed("write_back"))
        }
        .boxed()
    }

    fn register_replica<'a>(
        &'a self,
        me: &'a Replica,
        leaves: bool,
    ) -> BoxFuture<'a, Result<Vec<Replica>, StoreError>> {
        async move {
            let command = |_: &str| {
                let mut command =
                    self.shared.register_replica.command(&[keys::replicas(&self.shared.prefix)], 7);
                command.arg(0).arg(Micros::from(COUNTS_FOR).0).arg(me.id);
                command.arg(&*me.version).arg(&*me.configuration).arg(&*me.host).arg(u8::from(leaves));
                command
            };
            let value = self.call(StoreOp::RegisterReplica, KEEPER, command).await?;
            decode_replicas(value).ok_or(StoreError::Malformed("register_replica"))
        }
        .boxed()
    }

    fn announcements(&self) -> Option<broadcast::Receiver<Announcement>> {
        Some(self.shared.announcements.subscribe())
    }

    fn lease(&self) -> Micros {
        LEASE
    }

    fn is_up(&self) -> bool {
        if self.part.epoch.is_some() { self.part.health.is_up() } else { self.shared.circuits.are_closed() }
    }

    fn part(&self, group: &str) -> Option<Arc<dyn Store>> {
        let StoreConnection { connections, circuits, prefix, parts, .. } = &*self.shared;
        connections.are_cluster().then(|| -> Arc<dyn Store> {
            let (health, epoch) = (Health::new(circuits.clone()), Some(keys::epoch(prefix, Some(group))));
            let part = Arc::new(Part { health, epoch });
            parts.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&part));
            Arc::new(RedisStore { shared: self.shared.clone(), part })
        })
    }
}

/// Where a call goes: the prefix of its keys, and the channel for what others should hear; none if empty.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) prefix: &'a str,
    /// The epoch's key.
    pub(super) epoch: &'a str,
    pub(super) channel: &'a str,
    /// The number of the call among this replica's, by which the script knows one that is repeated; zero if it never is.
    pub(super) call: u64,
    /// The run of the server that is connected; empty if it is not known.
    pub(super) run: &'a str,
    /// How long a new epoch takes to settle; zero: there are none.
    pub(super) settle: Micros,
}

/// The command for a call; `now` is zero for the server's own clock.
pub(super) fn command_for(
    script: &Script,
    place: Place<'_>,
    now: Micros,
    lease: Micros,
    limiter_refs: &[LimiterRef],
    call: &Call,
) -> Cmd {
    let mut keys: Vec<String> =
        limiter_refs.iter().map(|limiter_ref| keys::limiter(place.prefix, limiter_ref)).collect();
    keys.push(keys::queue(place.prefix, limiter_refs));
    keys.push(place.epoch.to_owned());
    let holdings = call.give_back.len() + call.reschedule.len();
    let mut command = script.command(&keys, 14 + 3 * (limiter_refs.len() + holdings + call.runs.len()));
    command.arg(now.0).arg(lease.0).arg(call.queue_slots_left);
    command.arg(call.give_back.len()).arg(call.reschedule.len()).arg(call.runs.len()).arg(call.replica);
    command.arg(call.reschedule_wait.0).arg(call.refusal_budget).arg(place.channel).arg(place.call);
    command.arg(place.run).arg(place.settle.0).arg(call.epoch);
    for (index, limiter_ref) in limiter_refs.iter().enumerate() {
        command.arg(limiter_ref.rules_text()).arg(call.generations.get(index).copied().unwrap_or_default());
        command.arg(call.state_seen_at.get(index).copied().unwrap_or_default().0);
    }
    for Holding { slot, cost, count } in call.give_back.iter().chain(&call.reschedule) {
        command.arg(slot.0).arg(*cost).arg(*count);
    }
    for run in &call.runs {
        command.arg(run.cost).arg(run.wait_max.0).arg(run.count);
    }
    command
}

/// The command for a write-back; `now` is zero for the server's own clock.
pub(super) fn write_command(
    script: &Script,
    place: Place<'_>,
    now: Micros,
    limiter_ref: &LimiterRef,
    write: &WriteBack,
) -> Cmd {
    let keys = [place.epoch.to_owned(), keys::limiter(place.prefix, limiter_ref)];
    let mut command = script.command(&keys, 12 + 2 * write.entries.len());
    command.arg(now.0).arg(place.settle.0).arg(place.run).arg(LEASE.0).arg(write.replica).arg(write.number);
    let (kind, since) = match write.unknown {
        Unknown::Lost => (1, Micros::ZERO),
        Unknown::Away(since) => (2, since),
    };
    command
        .arg(write.observed_usage)
        .arg(limiter_ref.rules_text())
        .arg(write.known_epoch)
        .arg(kind)
        .arg(since.0);
    command.arg(write.sent.0);
    for (ago, permits) in &write.entries {
        command.arg(*ago).arg(*permits);
    }
    command
}

/// The command for what an upstream said; `now` is zero for the server's own clock.
pub(super) fn hear_command(
    script: &Script,
    place: Place<'_>,
    now: Micros,
    lease: Micros,
    limiter_ref: &LimiterRef,
    said: &UpstreamReport,
) -> Cmd {
    let keys = [place.epoch.to_owned(), keys::limiter(place.prefix, limiter_ref)];
    let mut command = script.command(&keys, 16 + 2 * said.refused.len() + 5 * said.remaining.len());
    command
        .arg(now.0)
        .arg(place.settle.0)
        .arg(place.run)
        .arg(said.known_epoch)
        .arg(lease.0)
        .arg(said.replica);
    command.arg(limiter_ref.rules_text()).arg(place.channel);
    let PauseRequest { wait, fallback, max, sent_ago, jitter, status } = said.pause.unwrap_or_default();
    // No time at all is a microsecond: nothing else tells that an instant was named.
    let wait = wait.map_or(Micros::ZERO, |wait| wait.max(Micros::ONE));
    command.arg(fallback.0).arg(wait.0).arg(max.0).arg(sent_ago.0).arg(jitter).arg(status).arg(said.cost);
    command.arg(said.refused.len());
    for (slot, permits) in &said.refused {
        command.arg(slot.0).arg(*permits);
    }
    for (index, remaining) in &said.remaining {
        command
            .arg(index + 1)
            .arg(remaining.permits)
            .arg(remaining.per.0)
            .arg(remaining.slot.0)
            .arg(remaining.took.0);
    }
    command
}

/// The command for a pause by hand, over a replica; `now` is zero for the server's own clock.
pub(super) fn pause_command(
    script: &Script,
    place: Place<'_>,
    now: Micros,
    limiter_ref: &LimiterRef,
    lasting: Micros,
    replica: u64,
) -> Cmd {
    let keys = [place.epoch.to_owned(), keys::limiter(place.prefix, limiter_ref)];
    let mut command = script.command(&keys, 8);
    command.arg(now.0).arg(place.settle.0).arg(place.run).arg(0).arg(lasting.0).arg(PAUSE_MAX.0);
    command.arg(place.channel).arg(replica);
    command
}

/// The command for a look at what is left; `now` is zero for the server's own clock.
pub(super) fn inspect_command(
    script: &Script,
    prefix: &str,
    epoch: &str,
    now: Micros,
    limiter_ref: &LimiterRef,
) -> Cmd {
    let mut command = script.command(&[keys::limiter(prefix, limiter_ref), epoch.to_owned()], 2);
    command.arg(now.0).arg(limiter_ref.rules_text());
    command
}

/// Integers, read from the front.
struct Numbers(std::vec::IntoIter<u64>);

impl Numbers {
    /// Those of an array.
    fn new(value: &Value) -> Option<Numbers> {
        let Value::Array(values) = value else { return None };
        Numbers::of(values.iter())
    }

    fn of<'a>(values: impl Iterator<Item = &'a Value>) -> Option<Numbers> {
        let number = |value: &Value| match value {
            Value::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        };
        Some(Numbers(values.map(number).collect::<Option<Vec<_>>>()?.into_iter()))
    }

    /// Those of a MessagePack array.
    fn unpack(value: &Value) -> Option<Numbers> {
        let Value::BulkString(packed) = value else { return None };
        let numbers: Vec<u64> = rmp_serde::from_slice(packed).ok()?;
        Some(Numbers(numbers.into_iter()))
    }

    fn take(&mut self) -> Option<u64> {
        self.0.next()
    }

    fn is_empty(&self) -> bool {
        self.0.len() == 0
    }
}

/// The answer of `reserve.lua`, if it is one, and one to this call.
pub(super) fn decode_answer(value: &Value, limiter_refs: &[LimiterRef], call: &Call) -> Option<Answer> {
    let mut numbers = Numbers::unpack(value)?;
    let now = Micros(numbers.take()?);
    let mut answer = Answer { now, epoch: take_epoch(now, &mut numbers)?, ..Answer::default() };
    for limiter_ref in limiter_refs {
        let (number, void_from, before) = (numbers.take()?, Micros(numbers.take()?), numbers.take()?);
        answer.generations.push(Generation { number, void_from, before });
        answer.available.push(limiter_ref.rules.iter().map(|_| numbers.take()).collect::<Option<_>>()?);
        answer.paused.push(Micros(numbers.take()?));
        answer.lives_until.push(Micros(numbers.take()?));
    }
    answer.last = Micros(numbers.take()?);
    let room = Freed { at: Micros(numbers.take()?), permits: numbers.take()? };
    answer.freed = Some(room).filter(|room| room.permits > 0);
    if answer.epoch.settles_until.is_some() {
        return numbers.is_empty().then_some(answer);
    }
    for _ in 0..numbers.take()? {
        let (count, at) = (numbers.take()?, Micros(numbers.take()?));
        answer.rescheduled.push((count, Some(at).filter(|at| *at > Micros::ZERO)));
    }
    while !numbers.is_empty() {
        let (count, code, instant) = (numbers.take()?, numbers.take()?, Micros(numbers.take()?));
        let outcome = match code {
            0 => Outcome::Booked(instant),
            1 => Outcome::TooFar(away(instant, &mut numbers)?),
            2 => Outcome::Full(away(instant, &mut numbers)?),
            _ => return None,
        };
        answer.outcomes.push((count, outcome));
    }
    let fits = total(answer.rescheduled.iter().map(|(count, _)| *count))
        == total(call.reschedule.iter().map(|holding| holding.count))
        && total(answer.outcomes.iter().map(|(count, _)| *count))
            == total(call.runs.iter().map(|run| run.count));
    fits.then_some(answer)
}

fn take_epoch(now: Micros, numbers: &mut Numbers) -> Option<Epoch> {
    let (id, settles_until) = (numbers.take()?, Micros(numbers.take()?));
    let settles_until = Some(settles_until).filter(|until| *until > Micros::ZERO);
    Some(Epoch { now, id, settles_until, reset_at: Micros(numbers.take()?) })
}

/// The answer of `register_replica.lua`. ExternalUsage have written that: no more of it is taken than can be shown.
fn decode_replicas(value: Value) -> Option<Vec<Replica>> {
    type CallOutcome = (u64, u64, String, String, String);
    let replicas: Vec<CallOutcome> = redis::from_redis_value(value).ok()?;
    let replica = |(id, seen_ago_micros, version, configuration, host): CallOutcome| Replica {
        id,
        version: printable(&version),
        configuration: printable(&configuration),
        host: printable(&host),
        seen_ago: Duration::from_micros(seen_ago_micros),
    };
    Some(replicas.into_iter().map(replica).collect())
}

/// The answer of `inspect.lua`.
pub(super) fn decode_inspection(value: &Value, limiter_ref: &LimiterRef) -> Option<StateView> {
    let mut numbers = Numbers::new(value)?;
    let (now, last) = (Micros(numbers.take()?), Micros(numbers.take()?));
    let until = Micros(numbers.take()?);
    let cause = cause_of(numbers.take()?, numbers.take()?, numbers.take()?);
    let pause = if until > now { Some(Lasting { until, cause: cause? }) } else { None };
    let available = limiter_ref.rules.iter().map(|_| numbers.take()).collect::<Option<_>>()?;
    Some(StateView { now, last, pause, available })
}

/// Why a limiter is paused, as scripts tell it: the status of the answer that refused, zero by hand, and whether that named the
/// instant; and the replica, which is never zero.
pub(super) fn cause_of(status: u64, named: u64, replica: u64) -> Option<Cause> {
    let reason = match u16::try_from(status).ok()? {
        0 => Reason::ByHand,
        status => Reason::Upstream { status, is_named: named > 0 },
    };
    (replica > 0).then_some(Cause { reason, replica })
}

/// The answer of `epoch_keep.lua`. A reset of what has another layout is another version's.
fn decode_heartbeat(value: &Value) -> Option<(Epoch, Vec<Reset>)> {
    const EPOCH: usize = 4;
    let Value::Array(values) = value else { return None };
    let (epoch, resets) = values.split_at_checked(EPOCH)?;
    let mut numbers = Numbers::of(epoch.iter())?;
    let now = Micros(numbers.take()?);
    let epoch = take_epoch(now, &mut numbers)?;
    let reset = |pair: &[Value]| {
        let [key, at] = pair else { return None };
        let (key, at): (String, u64) =
            (redis::from_redis_value_ref(key).ok()?, redis::from_redis_value_ref(at).ok()?);
        let (name, partition) = keys::limiter_of(&key)?;
        Some(Reset { name, partition, at: Micros(at) })
    };
    Some((epoch, resets.chunks(2).filter_map(reset).collect()))
}

/// The answer of a script that tells the epoch alone.
pub(super) fn decode_epoch(value: &Value) -> Option<Epoch> {
    let mut numbers = Numbers::new(value)?;
    let now = Micros(numbers.take()?);
    take_epoch(now, &mut numbers)
}

/// The answer of `hear.lua`, and of `pause.lua`, which charges nothing.
pub(super) fn decode_heard(value: &Value) -> Option<ReportResult> {
    let mut numbers = Numbers::new(value)?;
    let now = Micros(numbers.take()?);
    let (epoch, paused_until) = (take_epoch(now, &mut numbers)?, Micros(numbers.take()?));
    Some(ReportResult { epoch, paused_until, external_usage: numbers.take().unwrap_or_default() })
}

fn away(delay: Micros, numbers: &mut Numbers) -> Option<RetryDelay> {
    let (told, violated) = (Micros(numbers.take()?), numbers.take()?);
    let violated = Violated {
        limiter: usize::try_from(violated / VIOLATED_LIMITS).ok()?,
        limit: usize::try_from(violated % VIOLATED_LIMITS).ok()?,
    };
    Some(RetryDelay { delay, advised: told, violated })
}

fn total(mut counts: impl Iterator<Item = u64>) -> Option<u64> {
    counts.try_fold(0, u64::checked_add)
}
