//! Connections to Redis: to one server, to the primary that sentinels name, or to a Cluster.

use std::collections::HashMap;
use std::future::pending;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use deadpool::managed::{self, Metrics, RecycleResult};
use futures_util::future::{BoxFuture, select};
use redis::aio::{ConnectionLike, MultiplexedConnection, PubSub};
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_async::ClusterConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, Pipeline, RedisConnectionInfo, RedisError, RedisFuture,
    ServerErrorKind, TlsCertificates, Value,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::{Duration, sleep, timeout};
use tokio_util::task::TaskTracker;

use super::clients::{Clients, address_of};
use super::explain::unfit;
use super::sentinels::Sentinels;
use super::setup_error::RedisSetupError;
use super::sockets::tcp_settings;
use crate::config::model::{RedisNode, RedisServers, RedisStore, RedisTls};

/// How often a command of a Cluster is sent again where its slot has moved or its node is gone; each within its deadline.
const CLUSTER_RETRIES: u32 = 4;

/// The pauses between them, in milliseconds.
const CLUSTER_RETRY_MIN: u64 = 10;
const CLUSTER_RETRY_MAX: u64 = 200;

/// The part of the time for connecting within which sentinels answer.
const ASKED_PART: u32 = 2;

/// The part of the time for connecting after which another connection is begun beside the first one.
const AGAIN_PART: u32 = 5;

/// The run of a server on a Cluster: the script finds out by itself on which server it runs.
const ASK_THERE: &str = "?";

/// Opens connections to a server in place of TCP, as a simulation does.
pub trait Transport: Send + Sync {
    /// Opens a connection: a stream of bytes in both directions.
    fn open(&self) -> BoxFuture<'_, io::Result<Box<dyn Stream>>>;
}

/// A stream of bytes in both directions.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Makes connections.
pub(super) struct Servers {
    place: Place,
    clients: Arc<Clients>,
    config: AsyncConnectionConfig,
    /// How long a connection is awaited before another one is begun beside it.
    patience: Duration,
    /// How often another server has become the primary: a connection of an earlier era leads to one that is none any more.
    era: Arc<watch::Sender<u64>>,
}

enum Place {
    One(RedisNode),
    Over {
        transport: Arc<dyn Transport>,
        /// The tasks that drive connections; each ends with its connection.
        drivers: TaskTracker,
    },
    Sentinel(Box<Sentinels>),
    Cluster {
        /// Some nodes. Every one passes announcements on.
        nodes: Vec<RedisNode>,
        first: AtomicUsize,
        connect_timeout: Duration,
    },
}

impl Servers {
    pub(super) fn new(settings: &RedisStore, connect_timeout: Duration) -> Result<Servers, RedisSetupError> {
        let clients = Arc::new(Clients::new(&settings.tls)?);
        let era = Arc::new(watch::Sender::new(0));
        let usable =
            |node: &RedisNode| address_of(node).map(drop).map_err(|error| unusable(&node.address, &error));
        let place = match &settings.servers {
            RedisServers::One(node) => {
                usable(node)?;
                Place::One(node.clone())
            }
            RedisServers::Sentinel(sentinels) => {
                sentinels.nodes.iter().try_for_each(usable)?;
                let patience = connect_timeout / ASKED_PART;
                let sentinels = Sentinels::new(sentinels, Arc::clone(&clients), patience, era.clone());
                Place::Sentinel(Box::new(sentinels))
            }
            RedisServers::Cluster(nodes) => {
                nodes.iter().try_for_each(usable)?;
                cluster(nodes, None, connect_timeout)
                    .map_err(|error| unusable(&settings.servers.addresses(), &error))?;
                Place::Cluster { nodes: nodes.clone(), first: AtomicUsize::new(0), connect_timeout }
            }
        };
        Ok(Servers::at(place, clients, connect_timeout, era))
    }

    /// Returns one server that is reached over `transport`.
    pub(super) fn over(
        transport: Arc<dyn Transport>,
        connect_timeout: Duration,
    ) -> Result<Servers, RedisSetupError> {
        let clients = Arc::new(Clients::new(&RedisTls::default())?);
        let place = Place::Over { transport, drivers: TaskTracker::new() };
        Ok(Servers::at(place, clients, connect_timeout, Arc::default()))
    }

    fn at(
        place: Place,
        clients: Arc<Clients>,
        connect_timeout: Duration,
        era: Arc<watch::Sender<u64>>,
    ) -> Servers {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(connect_timeout))
            .set_response_timeout(None);
        Servers { place, clients, config, patience: connect_timeout / AGAIN_PART, era }
    }

    /// Returns whether the servers are the nodes of a Cluster.
    pub(super) fn are_cluster(&self) -> bool {
        matches!(self.place, Place::Cluster { .. })
    }

    /// Returns whether another server may become the primary by itself.
    pub(super) fn may_fail_over(&self) -> bool {
        matches!(self.place, Place::Sentinel(_) | Place::Cluster { .. })
    }

    /// Returns how often another server has become the primary.
    pub(super) fn era(&self) -> u64 {
        *self.era.borrow()
    }

    /// Waits until another server becomes the primary.
    pub(super) async fn switched(&self) {
        // It fails only when the sender is gone, which is this.
        let _ = self.era.subscribe().changed().await;
    }

    /// Asks sentinels for the primary again and again, and calls `on_switch` when it is another one. Never returns.
    pub(super) async fn watch(&self, on_switch: impl Fn()) {
        let Place::Sentinel(sentinels) = &self.place else { return pending().await };
        let mut eras = self.era.subscribe();
        let switching = async {
            // It fails only when the sender is gone, which is this.
            while eras.changed().await.is_ok() {
                on_switch();
            }
        };
        tokio::join!(sentinels.watch(), switching);
    }

    /// Returns a connection that receives announcements.
    pub(super) async fn subscriber(&self) -> Result<PubSub, RedisError> {
        with_others_beside(self.patience, || self.subscribe()).await
    }

    async fn subscribe(&self) -> Result<PubSub, RedisError> {
        match &self.place {
            Place::One(node) => self.clients.of(node).await?.get_async_pubsub().await,
            Place::Over { transport, .. } => {
                PubSub::new(&RedisConnectionInfo::default(), transport.open().await?).await
            }
            Place::Sentinel(sentinels) => sentinels.primary().await?.get_async_pubsub().await,
            Place::Cluster { nodes, first, .. } => {
                first.fetch_add(1, Ordering::Relaxed);
                self.clients.of(pick(nodes, first)).await?.get_async_pubsub().await
            }
        }
    }
}

impl managed::Manager for Servers {
    type Type = Connection;
    type Error = RedisError;

    async fn create(&self) -> Result<Connection, RedisError> {
        with_others_beside(self.patience, || self.open()).await
    }

    /// Checks a connection. Seldom needed: a connection is kept while it works, then dropped.
    async fn recycle(&self, connection: &mut Connection, _: &Metrics) -> RecycleResult<RedisError> {
        redis::cmd("PING").exec_async(&mut connection.wire).await.map_err(Into::into)
    }
}

impl Servers {
    /// Opens a connection, and asks the server for its version and run.
    async fn open(&self) -> Result<Connection, RedisError> {
        let era = self.era();
        let mut wire = self.connect().await?;
        let has_parts = matches!(wire, Wire::Cluster(_));
        let info = if has_parts { String::new() } else { info_of(&mut wire, "server").await? };
        if let Some(why) = unfit(&info, has_parts) {
            return Err((ErrorKind::InvalidClientConfig, "unfit", why).into());
        }
        let run = info.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap_or_default();
        let run = if has_parts { ASK_THERE } else { run }.into();
        Ok(Connection { wire, run, era })
    }

    async fn connect(&self) -> Result<Wire, RedisError> {
        match &self.place {
            Place::One(node) => {
                let client = self.clients.of(node).await?;
                client.get_multiplexed_async_connection_with_config(&self.config).await.map(Wire::Server)
            }
            Place::Over { transport, drivers } => {
                let (stream, config) = (transport.open().await?, self.config.clone());
                let (connection, driver) =
                    MultiplexedConnection::new_with_config(&RedisConnectionInfo::default(), stream, config)
                        .await?;
                drivers.spawn(driver);
                Ok(Wire::Server(connection))
            }
            Place::Sentinel(sentinels) => {
                let client = sentinels.primary().await?;
                client.get_multiplexed_async_connection_with_config(&self.config).await.map(Wire::Server)
            }
            Place::Cluster { nodes, connect_timeout, .. } => {
                let cluster = cluster(nodes, self.clients.certificates().await, *connect_timeout)?;
                cluster.get_async_connection().await.map(Wire::Cluster)
            }
        }
    }
}

/// Connects, and begins another connection beside the first again and again, each of which may take as long as `patience`. What the first
/// one has sent may be lost with the network that it was sent over, and is sent again only after some seconds. Where a connection takes
/// longer in any case, the first one is it.
///
/// # Errors
/// That of the first one.
async fn with_others_beside<T, F>(patience: Duration, connect: impl Fn() -> F) -> Result<T, RedisError>
where
    F: Future<Output = Result<T, RedisError>>,
{
    let others = async {
        loop {
            sleep(patience).await;
            if let Ok(Ok(connected)) = timeout(patience, connect()).await {
                return Ok(connected);
            }
        }
    };
    select(pin!(connect()), pin!(others)).await.factor_first().0
}

fn pick<'a, T>(of: &'a [T], first: &AtomicUsize) -> &'a T {
    &of[first.load(Ordering::Relaxed) % of.len()]
}

/// Returns a section of `INFO`; an empty text where the user lacks the right, or the server the command.
pub(super) async fn info_of(wire: &mut Wire, section: &str) -> Result<String, RedisError> {
    match redis::cmd("INFO").arg(section).query_async(wire).await {
        // Any other error passes; a connection of an unknown run would stay.
        Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm) || is_unknown(&error) => {
            Ok(String::new())
        }
        result => result,
    }
}

/// Returns a section of `INFO` of the server, or of each primary of a Cluster.
pub(super) async fn infos_of(wire: &mut Wire, section: &str) -> Result<Vec<String>, RedisError> {
    if let Wire::Server(_) = wire {
        return Ok(vec![info_of(wire, section).await?]);
    }
    let answers: HashMap<String, String> = redis::cmd("INFO").arg(section).query_async(wire).await?;
    Ok(answers.into_values().collect())
}

fn is_unknown(error: &RedisError) -> bool {
    error.detail().is_some_and(|detail| detail.starts_with("unknown command"))
}

/// A connection, and the run of the server at its other end.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) wire: Wire,
    /// The run of the server: another run may hold other data. Empty if the user must not ask for it.
    pub(super) run: Arc<str>,
    /// The era in which it was made.
    pub(super) era: u64,
}

/// A connection that many callers share.
#[derive(Clone)]
pub(super) enum Wire {
    /// To one server.
    Server(MultiplexedConnection),
    /// To all nodes of a Cluster.
    Cluster(ClusterConnection),
}

impl ConnectionLike for Wire {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Wire::Server(connection) => connection.req_packed_command(command),
            Wire::Cluster(connection) => connection.req_packed_command(command),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        commands: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Wire::Server(connection) => connection.req_packed_commands(commands, offset, count),
            Wire::Cluster(connection) => connection.req_packed_commands(commands, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Wire::Server(connection) => connection.get_db(),
            Wire::Cluster(connection) => connection.get_db(),
        }
    }
}

/// Errors of the client library may quote the address, password included: they are not shown.
fn unusable(address: &str, error: &RedisError) -> RedisSetupError {
    RedisSetupError::Address(format!("cannot use {address}: {}", error.category()))
}

fn cluster(
    nodes: &[RedisNode],
    certificates: Option<TlsCertificates>,
    connect_timeout: Duration,
) -> Result<ClusterClient, RedisError> {
    let urls: Vec<&str> = nodes.iter().map(|node| node.url.reveal()).collect();
    let builder = ClusterClientBuilder::new(urls)
        .connection_timeout(connect_timeout)
        // The store keeps the deadline of a call. This timeout is for the client library's own requests: calls wait
        // for their answers, so a node that stands still would delay all calls.
        .response_timeout(connect_timeout)
        .tcp_settings(tcp_settings())
        .overall_response_timeout(None)
        .retries(CLUSTER_RETRIES)
        .min_retry_wait(CLUSTER_RETRY_MIN)
        .max_retry_wait(CLUSTER_RETRY_MAX);
    match certificates {
        Some(certificates) => builder.certs(certificates).build(),
        None => builder.build(),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::Instant;

    use super::*;

    /// Connects with attempts of which each takes so many milliseconds or fails at once, and returns the one that succeeded, and when.
    async fn connected(attempts: &[Option<u64>]) -> (Option<usize>, u128) {
        let (begun, start) = (Cell::new(0), Instant::now());
        let connect = || {
            let number = begun.replace(begun.get() + 1);
            let takes = attempts.get(number).copied().unwrap_or(Some(u64::MAX / 2));
            async move {
                let error = || RedisError::from((ErrorKind::Io, "refused"));
                sleep(Duration::from_millis(takes.ok_or_else(error)?)).await;
                Ok(number)
            }
        };
        (with_others_beside(Duration::from_millis(100), connect).await.ok(), start.elapsed().as_millis())
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_whose_first_words_are_lost_is_made_by_another_one_beside_it() {
        let never = Some(1_000_000);
        assert_eq!(connected(&[Some(20)]).await, (Some(0), 20));
        assert_eq!(connected(&[never, Some(30)]).await, (Some(1), 130));
        assert_eq!(connected(&[never, never, Some(30)]).await, (Some(2), 330));
        assert_eq!(connected(&[never, None, Some(30)]).await, (Some(2), 230), "another one may fail");
        assert_eq!(connected(&[Some(450), never, never]).await, (Some(0), 450), "a slow one has its time");
        assert_eq!(connected(&[None, Some(0)]).await, (None, 0), "the first one tells why there is none");
    }
}
