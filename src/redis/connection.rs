//! Calls over the connection to a store, or to one part of it: within their deadlines, repeated once where the connection broke, with
//! their outcome noted in metrics and the circuit.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use deadpool::managed::PoolError;
use futures_util::future::{FutureExt, join, ready};
use redis::{Cmd, RedisError, Value};
use tokio::time::{Instant, timeout};

use crate::clock::Micros;
use crate::config::model::{self, Confirm};
use crate::entropy::Entropy;
use crate::limiter::model::heartbeat::Heartbeat;
use crate::limiter::model::limit::LimiterName;
use crate::limiter::store::{Failure, StoreError};
use crate::redis::announcements::Announcements;
use crate::redis::arguments::{self, Context};
use crate::redis::exclusive::{Exclusive, NoConnection};
use crate::redis::explain::{explain, is_misplaced, word};
use crate::redis::health::{Circuits, Health};
use crate::redis::keys;
use crate::redis::pool::{Connections, connect_timeout};
use crate::redis::repetition::{RepeatedCall, Turn};
use crate::redis::script::Scripts;
use crate::telemetry::{StoreMetrics, StoreOp, StoreResult};

/// How long a replica may act on what Redis last told it. So long a changed limit leaves bookings where they are: two heartbeats and a margin, by
/// which every replica knows it.
pub(super) const LEASE: Micros = Micros::from_millis(500);

/// How long a new epoch takes to open, and how long a silence of all replicas is a doubt. Slots of the epoch before are not used for longer
/// than a lease, and each replica has heard of the new one twice by then, and written back.
const SETTLE: Micros = LEASE;

/// The owner of the connection for calls outside the queues: heartbeats, write-backs and calls by hand.
pub(super) const RECOVERY: &str = "recovery";

/// The first word of the error by which a script refuses a key that weir has not written.
const UNREADABLE: &str = "UNREADABLE ";

/// The first words of the errors by which scripts refuse a further action by hand.
const FULL: [&str; 2] = ["PAUSES", "RESETS"];

/// For how long after its deadline a call may still be answered: a server that stood still carries out what it was sent.
const LATE_MAX: Duration = Duration::from_secs(60);

/// The parts of a connection that all parts of a store share.
pub(super) struct StoreConnection {
    pub(super) connections: Connections,
    pub(super) announcements: Announcements,
    pub(super) circuits: Arc<Circuits>,
    /// The parts in use. On a Cluster each group of limiters is a part by itself.
    parts: Mutex<Vec<Weak<Part>>>,
    pub(super) scripts: Scripts,
    pub(super) prefix: String,
    /// The addresses of the servers, without user and password.
    addresses: String,
    pub(super) timeout: Duration,
    pub(super) confirm: Confirm,
    /// How many calls have been made.
    pub(super) calls: AtomicU64,
    pub(super) metrics: StoreMetrics,
}

/// A part of a store, which may fail or lose its data alone.
pub(super) struct Part {
    pub(super) health: Health,
    /// Its own keys; none for a Cluster as a whole, which holds no limiter.
    pub(super) keys: Option<PartKeys>,
    /// The connections for calls that a replica of the server has to confirm.
    exclusive: Arc<Exclusive>,
}

/// The keys of a part, beside those of limiters.
pub(super) struct PartKeys {
    pub(super) epoch: String,
    live: String,
    moved: String,
    earlier_epoch: String,
}

impl PartKeys {
    fn new(prefix: &str, group: Option<&str>) -> PartKeys {
        PartKeys {
            epoch: keys::epoch(prefix, group),
            live: keys::live(prefix, group),
            moved: keys::moved(prefix, group),
            earlier_epoch: keys::earlier_epoch(prefix, group),
        }
    }
}

/// The answer to a call.
struct Reply {
    value: Value,
    /// False if a replica of the server should have the call, and none was sure to in time.
    is_confirmed: bool,
    /// The era of the connection.
    era: u64,
}

impl Reply {
    fn confirmed(self) -> Result<Value, StoreError> {
        if self.is_confirmed { Ok(self.value) } else { Err(StoreError::Unconfirmed) }
    }
}

/// A call that was made: whether the server did not know the script, and the answer.
type Made = (bool, Result<Reply, RedisError>);

/// The connection to one part of a store.
#[derive(Clone)]
pub(super) struct PartConnection {
    pub(super) shared: Arc<StoreConnection>,
    pub(super) part: Arc<Part>,
}

impl PartConnection {
    /// Returns the connection to the servers as a whole, which are not asked yet.
    pub(super) fn new(
        settings: &model::RedisStore,
        connections: Connections,
        entropy: Entropy,
        metrics: StoreMetrics,
    ) -> PartConnection {
        let channel = keys::announcements(&settings.key_prefix);
        let announcements =
            Announcements::new(connections.clone(), channel, connect_timeout(settings.timeout));
        let circuits = Arc::new(Circuits::new(metrics.clone(), entropy));
        let keys = (!connections.are_cluster()).then(|| PartKeys::new(&settings.key_prefix, None));
        let (health, exclusive) = (Health::new(circuits.clone()), connections.exclusive());
        let part = Arc::new(Part { health, keys, exclusive });
        let shared = Arc::new(StoreConnection {
            connections,
            announcements,
            circuits,
            parts: Mutex::new(vec![Arc::downgrade(&part)]),
            scripts: Scripts::new(),
            prefix: settings.key_prefix.clone(),
            addresses: settings.servers.addresses(),
            timeout: settings.timeout,
            confirm: settings.confirm,
            calls: AtomicU64::new(0),
            metrics,
        });
        PartConnection { shared, part }
    }

    /// Returns the connection to the part of a Cluster that holds a group; `None` where one server holds all.
    pub(super) fn part(&self, group: &str) -> Option<PartConnection> {
        let StoreConnection { connections, circuits, prefix, parts, .. } = &*self.shared;
        connections.are_cluster().then(|| {
            let (health, keys) = (Health::new(circuits.clone()), Some(PartKeys::new(prefix, Some(group))));
            let part = Arc::new(Part { health, keys, exclusive: connections.exclusive() });
            parts.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&part));
            PartConnection { shared: self.shared.clone(), part }
        })
    }

    /// Returns the parts in use.
    pub(super) fn parts(&self) -> Vec<PartConnection> {
        let mut parts = self.shared.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.retain(|part| part.strong_count() > 0);
        let parts = parts.iter().filter_map(Weak::upgrade);
        parts.map(|part| PartConnection { shared: self.shared.clone(), part }).collect()
    }

    /// Returns the context of calls to a server of this run.
    pub(super) fn context<'a>(&'a self, run: &'a str) -> Context<'a> {
        let of = |key: fn(&PartKeys) -> &str| self.part.keys.as_ref().map_or("", key);
        let (prefix, channel) = (&self.shared.prefix, self.shared.announcements.channel());
        let is_cluster = self.shared.connections.are_cluster();
        Context {
            prefix,
            epoch: of(|keys| &keys.epoch),
            live: of(|keys| &keys.live),
            moved: of(|keys| &keys.moved),
            earlier_epoch: of(|keys| &keys.earlier_epoch),
            is_cluster,
            channel,
            run,
            settle: SETTLE,
            lease: LEASE,
            now: Micros::ZERO,
        }
    }

    /// Probes the server, by a heartbeat where possible, which shows that the server can write, too.
    pub(super) async fn ping(&self) -> Result<(), StoreError> {
        let script = self.shared.scripts.of(StoreOp::Ping);
        let command = |run: &str| match &self.part.keys {
            Some(_) => script.command(&arguments::heartbeat(&self.context(run), &Heartbeat::default())),
            None => redis::cmd("PING"),
        };
        let attempt = self.attempt(StoreOp::Ping, "ping", Turn::first(), command);
        let attempt = async { attempt.await?.confirmed() };
        self.timed(StoreOp::Ping, connect_timeout(self.shared.timeout), attempt).await.map(drop)
    }

    /// Makes the connections, and lets the server know the script that books: the first requests, which may be many at once, find both.
    /// Where that fails, they make up for it.
    pub(super) async fn prepare(&self) {
        let connections = &self.shared.connections;
        let load = async {
            let mut connection = connections.get(&self.owner("ping")).await.ok()?;
            let load = self.shared.scripts.of(StoreOp::Reserve).load();
            load.query_async::<Value>(&mut connection.wire).await.ok()
        };
        let patience = connect_timeout(self.shared.timeout);
        // Neither outcome changes what calls do.
        let _ = timeout(patience, join(connections.make_all(), load)).await;
    }

    /// Makes a script call within the deadline. `command` returns it for the run of the server that is connected.
    pub(super) async fn call(
        &self,
        op: StoreOp,
        owner: &str,
        command: impl Fn(&str) -> Cmd,
    ) -> Result<Value, StoreError> {
        if !self.part.health.is_up() {
            return Err(StoreError::Away);
        }
        let attempt = async { self.attempt(op, owner, Turn::first(), command).await?.confirmed() };
        let result = self.timed(op, self.shared.timeout, attempt).await;
        // Nothing else may use their connections and tell that one of them alone is dead.
        let is_apart = matches!(op, StoreOp::Usage | StoreOp::Figures | StoreOp::RegisterReplica);
        if is_apart && matches!(result, Err(StoreError::Timeout(_))) {
            self.shared.connections.replace(&self.owner(owner));
        }
        result
    }

    /// Makes a call that has no number. With an error comes the late answer, which tells that it was carried out after all.
    pub(super) async fn call_once(
        &self,
        op: StoreOp,
        owner: LimiterName,
        command: impl Fn(&str) -> Cmd + Send + Sync + 'static,
    ) -> Result<Value, Failure<Value>> {
        if !self.part.health.is_up() {
            return Err(StoreError::Away.into());
        }
        let caller = self.clone();
        let call = async move { caller.attempt(op, owner.as_str(), Turn::first(), command).await };
        let mut call = call.boxed();
        let in_time = async { (&mut call).await?.confirmed() };
        let result = self.timed(op, self.shared.timeout, in_time).await;
        result.map_err(|error| match error {
            StoreError::Timeout(_) => {
                let late = async move { Some(timeout(LATE_MAX, call).await.ok()?.ok()?.value) };
                Failure { error, late: Some(late.boxed()) }
            }
            _ => error.into(),
        })
    }

    /// Makes a call that goes on after its deadline, because its bookings must not be lost. With an error comes the late answer, for
    /// which the call is made once more over another connection, under its number: answers may be lost on the first one alone.
    pub(super) async fn call_on(
        &self,
        op: StoreOp,
        owner: LimiterName,
        command: impl Fn(&str) -> Cmd + Send + Sync + 'static,
    ) -> Result<Value, Failure<Value>> {
        if !self.part.health.is_up() {
            return Err(StoreError::Away.into());
        }
        let (first, second, command) = (self.clone(), self.clone(), Arc::new(command));
        let (turn, caller, again) = (Turn::first(), owner.clone(), command.clone());
        let first = async move { first.attempt(op, owner.as_str(), turn, &*command).await };
        let second = async move { second.attempt(op, RECOVERY, turn.again(), &*again).await };
        let mut calls = RepeatedCall::new(first, second);
        // The server answers, and the first connection loses what it says: what stands between may have forgotten it, or lets pass one
        // direction alone.
        let store = self.clone();
        let replace = move || store.shared.connections.replace(&store.owner(caller.as_str()));
        let mut unconfirmed = None;
        let in_time = async {
            // Another connection cannot tell what a replica has of a call that was carried out before.
            let (reply, is_repeated) = calls.in_time(!self.needs_confirmation(op)).await?;
            if is_repeated {
                replace();
            }
            if !reply.is_confirmed {
                unconfirmed = Some(reply.value);
                return Err(StoreError::Unconfirmed);
            }
            Ok(reply.value)
        };
        let result = self.timed(op, self.shared.timeout, in_time).await;
        result.map_err(|error| match error {
            StoreError::Timeout(_) => {
                let late = async move {
                    let (reply, is_repeated) = timeout(LATE_MAX, calls.late()).await.ok()?.ok()?;
                    if is_repeated {
                        replace();
                    }
                    Some(reply.value)
                };
                // Nobody knows by then whether a replica has confirmed it.
                let error = if self.needs_confirmation(op) { StoreError::Unconfirmed } else { error };
                Failure { error, late: Some(late.boxed()) }
            }
            // It has been carried out, and what it booked is given back.
            StoreError::Unconfirmed => Failure { error, late: Some(ready(unconfirmed).boxed()) },
            _ => error.into(),
        })
    }

    /// Waits for a call until its deadline, and records its outcome.
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

    /// Returns the owner of the connection for a call: on a Cluster all calls for a group share one.
    fn owner<'a>(&'a self, caller: &'a str) -> &'a str {
        let group = self.part.keys.as_ref().filter(|_| self.shared.connections.are_cluster());
        group.map_or(caller, |keys| &keys.epoch)
    }

    /// Makes a call until it is answered or its connection has broken twice.
    async fn attempt(
        &self,
        op: StoreOp,
        caller: &str,
        mut turn: Turn,
        command: impl Fn(&str) -> Cmd,
    ) -> Result<Reply, StoreError> {
        let (owner, started) = (self.owner(caller), Instant::now());
        loop {
            let (unknown, result) = if self.needs_confirmation(op) {
                self.make_confirmed(op, turn, &command).await?
            } else {
                self.make(op, owner, turn, &command).await?
            };
            if unknown {
                self.shared.metrics.called(op, StoreResult::NoScript, started.elapsed());
            }
            let error = match result {
                Ok(reply) if reply.era == self.shared.connections.servers().era() => return Ok(reply),
                // Nothing that an earlier primary says counts.
                Ok(_) => StoreError::Connection(format!("{}: another primary", self.shared.addresses)),
                Err(error) => self.failed(&owner, &error),
            };
            // A call whose connection broke may have been carried out: it is made once more under its number, by a new
            // connection, while the script is sure to remember it.
            if !turn.may_be_repeated() || !error.is_of_connection() {
                return Err(error);
            }
            self.shared.metrics.called(op, StoreResult::Connection, started.elapsed());
            turn = turn.again();
        }
    }

    /// Returns whether a call counts only when a replica of the server has it: bookings, and what shows that bookings can be made.
    fn needs_confirmation(&self, op: StoreOp) -> bool {
        let is_meant = matches!(op, StoreOp::Reserve | StoreOp::Deal | StoreOp::Heartbeat | StoreOp::Ping);
        self.shared.confirm == Confirm::Replica && is_meant && self.part.keys.is_some()
    }

    /// Makes a call once, over the owner's connection. Returns also whether the server did not know the script.
    async fn make(
        &self,
        op: StoreOp,
        owner: &str,
        turn: Turn,
        command: &impl Fn(&str) -> Cmd,
    ) -> Result<Made, StoreError> {
        let got = self.shared.connections.get(&owner).await;
        let mut connection = got.map_err(|error| self.lost(&error))?;
        if turn.is_too_late() {
            return Err(Turn::too_late());
        }
        let script = self.shared.scripts.of(op);
        let called = command(&connection.run);
        let (unknown, result) = self.answer(op, script.call(&mut connection.wire, &called)).await?;
        let era = connection.era;
        Ok((unknown, result.map(|value| Reply { value, is_confirmed: true, era })))
    }

    /// Makes a call once, over a connection of its own, and waits for a replica of the server.
    async fn make_confirmed(
        &self,
        op: StoreOp,
        turn: Turn,
        command: &impl Fn(&str) -> Cmd,
    ) -> Result<Made, StoreError> {
        let got = self.part.exclusive.lend(self.shared.connections.servers()).await;
        let mut lent = got.map_err(|error| self.lost(&error))?;
        if turn.is_too_late() {
            lent.give_back();
            return Err(Turn::too_late());
        }
        let (script, wait) = (self.shared.scripts.of(op), self.shared.timeout * 3 / 4);
        let connection = &mut lent.connection;
        let era = connection.era;
        let called = command(&connection.run);
        let call = script.call_confirmed(&mut connection.wire, &called, wait);
        let (unknown, result) = self.answer(op, call).await?;
        if result.is_ok() {
            lent.give_back();
        }
        // `WAIT` speaks of what its own connection has written. A booking that comes again writes, too.
        Ok((unknown, result.map(|(value, count)| Reply { value, is_confirmed: count > 0, era })))
    }

    /// Waits for an answer: for that to a probe as long as any call may take. Only its connection may take longer, so that a dead one
    /// does not hide for long that the server is back.
    async fn answer<T>(&self, op: StoreOp, answer: impl Future<Output = T>) -> Result<T, StoreError> {
        match op {
            StoreOp::Ping => {
                let deadline = self.shared.timeout;
                timeout(deadline, answer).await.map_err(|_| StoreError::Timeout(deadline))
            }
            _ => Ok(answer.await),
        }
    }

    fn record(&self, op: StoreOp, started: Instant, result: &Result<Value, StoreError>) {
        let outcome = match result {
            Ok(_) => StoreResult::Ok,
            Err(StoreError::Timeout(_)) => StoreResult::Timeout,
            Err(StoreError::Away | StoreError::Connection(_) | StoreError::NotPrimary(_)) => {
                StoreResult::Connection
            }
            Err(
                StoreError::Refused(_)
                | StoreError::Unreadable(_)
                | StoreError::Full(_)
                | StoreError::Unconfirmed
                | StoreError::Malformed(_),
            ) => StoreResult::Error,
        };
        self.shared.metrics.called(op, outcome, started.elapsed());
        match result {
            Ok(_) | Err(StoreError::Full(_)) => self.part.health.succeeded(),
            // A single unreadable key does not stop the others; an unreadable epoch stops all.
            Err(StoreError::Unreadable(_)) if !matches!(op, StoreOp::Heartbeat | StoreOp::Ping) => {}
            Err(error) => {
                // Only new connections reach a server that vanished without closing the old ones, or its successor.
                let opens = self.part.health.failed(error);
                let is_away = matches!(error, StoreError::Timeout(_)) || error.is_of_connection();
                if opens && !self.shared.connections.are_cluster() {
                    self.shared.connections.replace_all();
                } else if opens || (op == StoreOp::Ping && is_away) {
                    self.shared.connections.replace(&self.owner("ping"));
                    if opens {
                        // On a Cluster they know the nodes that were there when they were made.
                        self.part.exclusive.replace_all();
                    }
                } else if op == StoreOp::Heartbeat && is_away {
                    // Answers may be lost on this connection alone.
                    self.shared.connections.replace(&self.owner(RECOVERY));
                }
            }
        }
    }

    pub(super) fn lost(&self, error: &NoConnection) -> StoreError {
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
            let kind =
                if word(error) == "READONLY" { StoreError::NotPrimary } else { StoreError::Connection };
            return kind(format!("{}: {}", self.shared.addresses, explain(error)));
        }
        if let Some(found) = error.detail().and_then(|detail| detail.find(UNREADABLE).map(|at| &detail[at..]))
        {
            let what = found[UNREADABLE.len()..].split(" script: ").next().unwrap_or_default();
            return StoreError::Unreadable(what.to_owned());
        }
        if FULL.contains(&word(error)) {
            return StoreError::Full(error.detail().unwrap_or_default().to_owned());
        }
        StoreError::Refused(explain(error))
    }
}
