//! The configuration as weir uses it: parsed, checked, with all defaults.
//!
//! Built by [`super::validate`] alone. No string here needs further parsing.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method};
use ipnet::IpNet;
use regex::Regex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use super::clients::{Clients, SubjectName};
pub use super::costs::{Charge, Combine, Cost, Estimate, Learn, Settle, Streams, Usage, Weights};
pub use super::errors::Errors;
pub use super::json_path::{JsonMatch, JsonPath};
pub use super::key_part::KeyPart;
pub(crate) use super::key_part::{is_credential, network};
pub use super::limit_headers::LimitHeaders;
pub use super::patience::{Leave, PATIENCE_HEADERS, Patience};
pub use super::pause_rules::PauseRule;
pub use super::value_map::{PathPattern, ValueMap};
use crate::limiter::model::limit::{Limiter, LimiterName};
pub use crate::telemetry::{AccessRule, logging::Log, logging::LogFormat};

/// A secret text. Its `Debug` output is `***`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Wraps the text.
    pub fn new(text: &str) -> Secret {
        Secret(text.into())
    }

    /// Returns the text, for its use.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("***")
    }
}

/// A whole configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// The address of the proxy's listener.
    pub listen: SocketAddr,
    /// Connections of clients.
    pub server: Server,
    /// Metrics, health and live state.
    pub admin: Admin,
    /// The settings of logging.
    pub log: Log,
    /// The clients that may call; everyone if absent.
    pub clients: Option<Arc<Clients>>,
    /// The store of limiter state.
    pub store: Store,
    /// Every limiter, in the order of the file.
    pub limiters: Vec<Arc<Limiter>>,
    /// The key of each limiter that has one.
    pub keys: HashMap<LimiterName, Arc<[KeyPart]>>,
    /// Every route, in the order of the file: the first match wins.
    pub routes: Vec<Route>,
    /// The first 16 hex digits of the SHA-256 of the file as written, before `${...}` is replaced, and of its files of overrides.
    pub hash: Arc<str>,
}

impl Config {
    /// Returns the keys that differ in `new` and need a restart. The certificates and keys of the store need none: they are read for each connection.
    pub fn restart_needed(&self, new: &Config) -> Vec<&'static str> {
        let changed = [
            ("listen", self.listen != new.listen),
            ("admin.listen", self.admin.listen != new.admin.listen),
            ("store", self.store != new.store),
        ];
        changed.into_iter().filter_map(|(key, differs)| differs.then_some(key)).collect()
    }
}

/// Connections of clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// TLS for client connections; plain text if absent.
    pub tls: Option<ServerTls>,
    /// The peers that may connect; all if absent.
    pub allow: Option<Vec<IpNet>>,
    /// The proxies whose `X-Forwarded-*` is trusted.
    pub trusted_proxies: Vec<IpNet>,
    /// The scheme and authority at which callers reach weir, such as `https://weir.internal`, if a request does not tell.
    pub public_url: Option<Arc<str>>,
    /// The form of weir's own responses to requests without a route.
    pub errors: Errors,
    /// The most client connections at once.
    pub max_connections: u32,
    /// The longest time to receive a request's headers.
    pub header_timeout: Duration,
    /// The longest time that a connection stays open without a request.
    pub idle_timeout: Duration,
    /// The longest time for which a client, or an upstream, takes none of the bytes that wait for it.
    pub write_timeout: Duration,
    /// The most bytes of a request's headers.
    pub max_header_bytes: u32,
    /// The most bytes that are read ahead of all requests that wait.
    pub body_memory: u64,
    /// The time after SIGTERM for which new requests are still accepted.
    pub drain_delay: Duration,
    /// The time after `drain_delay` for which requests in flight and in queues may still finish.
    pub drain_timeout: Duration,
}

/// TLS for client connections: paths of PEM files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerTls {
    /// weir's certificate chain.
    pub cert: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// The authorities that sign clients' certificates.
    pub client_ca: Option<PathBuf>,
}

/// The admin listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admin {
    /// The address, by default `127.0.0.1:9090`.
    pub listen: SocketAddr,
    /// The token for everything but health and metrics. Without it, they alone are served beyond loopback.
    pub token: Option<Secret>,
    /// The token with which everything is shown and nothing changed. Only beside `token`, and another one.
    pub read_token: Option<Secret>,
}

/// The store of limiter state. A change needs a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Store {
    /// This process's memory.
    Memory,
    /// Redis, shared by all replicas.
    Redis(Box<RedisStore>),
}

/// Redis: one server, a Cluster, or a server behind sentinels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisStore {
    /// The servers.
    pub servers: RedisServers,
    /// The TLS files for `rediss://`.
    pub tls: RedisTls,
    /// The longest time of a call.
    pub timeout: Duration,
    /// The most connections.
    pub pool_size: u32,
    /// The first part of every key.
    pub key_prefix: String,
    /// The number of replicas to assume until the store has answered for the first time.
    pub fleet_size: u32,
    /// The servers that must have a booking before it is used.
    pub confirm: Confirm,
}

/// The servers that must have a booking before it is used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Confirm {
    /// The primary alone: after a failover, bookings that its replica did not get are missing.
    #[default]
    Primary,
    /// A replica of the primary, too: a call takes a round trip longer. Without such a replica the store counts as away.
    Replica,
}

/// The servers of Redis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RedisServers {
    /// One server.
    One(RedisNode),
    /// A Redis Cluster, by some of its nodes.
    Cluster(Vec<RedisNode>),
    /// A server behind sentinels.
    Sentinel(RedisSentinels),
}

/// Sentinels, and the server that they watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisSentinels {
    /// The sentinels, each with the user and password for itself.
    pub nodes: Vec<RedisNode>,
    /// The sentinels' name of the server.
    pub master: String,
    /// The user for the server.
    pub username: Option<String>,
    /// The password for the server.
    pub password: Option<Secret>,
    /// The number of the database on the server.
    pub database: u16,
}

impl RedisServers {
    /// Formats the addresses without users and passwords, for logs and pages.
    pub fn addresses(&self) -> String {
        let list = |nodes: &[RedisNode]| {
            nodes.iter().map(|node| node.address.as_str()).collect::<Vec<_>>().join(", ")
        };
        match self {
            RedisServers::One(node) => node.address.clone(),
            RedisServers::Cluster(nodes) => format!("cluster {}", list(nodes)),
            RedisServers::Sentinel(RedisSentinels { nodes, master, .. }) => {
                format!("{master} of sentinels {}", list(nodes))
            }
        }
    }
}

/// One Redis server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisNode {
    /// `redis://` or `rediss://`, with user, password and database number.
    pub url: Secret,
    /// The address without user and password.
    pub address: String,
}

/// TLS for connections to Redis: paths of PEM files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RedisTls {
    /// The authorities trusted in place of the public roots.
    pub ca: Option<PathBuf>,
    /// weir's own certificate chain and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// A route: its requests, upstream, changes, limiters and cost.
#[derive(Debug, Clone)]
pub struct Route {
    /// The name, for metrics and logs.
    pub name: Arc<str>,
    /// The conditions of a request.
    pub matches: Match,
    /// The upstream.
    pub upstream: Upstream,
    /// The prefix removed from the path of requests.
    pub strip_prefix: Option<String>,
    /// Headers set on every forwarded request, in place of the client's. Values are marked sensitive.
    pub set_headers: Vec<(HeaderName, HeaderValue)>,
    /// Headers removed from every forwarded request.
    pub remove_headers: Vec<HeaderName>,
    /// True if the client's `Host` is forwarded.
    pub preserve_host: bool,
    /// True if `X-Forwarded-*` and `Via` are forwarded.
    pub forwarded_headers: bool,
    /// True if links to the upstream are rewritten so that they lead through weir.
    pub rewrite_links: bool,
    /// The form of weir's own responses.
    pub errors: Errors,
    /// The patience that bounds the wait; of each limiter with a queue.
    pub patience: Vec<Patience>,
    /// The limiters that each request must satisfy all at once, each with the parts of its key.
    pub limiters: Vec<(LimiterName, Arc<[KeyPart]>)>,
    /// The parts of a request that name its caller; none where no quota is shared.
    pub flow: Arc<[KeyPart]>,
    /// The rules by which a response pauses each of them, in their order; none where it is not paused.
    pub pause_rules: Vec<Arc<[PauseRule]>>,
    /// The largest body that is looked into, in bytes, where a key, a match or the cost reads it.
    pub body_bytes_max: u64,
    /// The cost of a request.
    pub cost: Cost,
    /// The settlement of the cost by the response.
    pub settle: Option<Settle>,
    /// For each limiter, in their order, the cost of a request there; empty where it is `cost` for all of them.
    pub charges: Vec<Charge>,
    /// The headers that tell what is left of its quota; none if absent.
    pub limit_headers: Option<LimitHeaders>,
    /// The retries of a request.
    pub retry: Option<Retry>,
    /// The breaker.
    pub breaker: Option<Breaker>,
    /// The clients that may use the route; all if absent.
    pub clients: Option<HashSet<Arc<str>>>,
}

impl Route {
    /// Returns the settlements of a request's costs.
    pub fn settles(&self) -> impl Iterator<Item = &Settle> {
        let own = self.charges.iter().filter_map(|charge| charge.settle.as_ref());
        self.settle.iter().filter(|_| self.charges.is_empty()).chain(own)
    }

    /// Returns whether streams are asked for their usage.
    pub fn includes_usage(&self) -> bool {
        self.settles()
            .filter_map(|settle| settle.usage.as_ref())
            .any(|usage| usage.streams == Streams::TellUsage)
    }

    /// Returns the costs of a request at its limiters.
    pub fn costs(&self) -> impl Iterator<Item = &Cost> {
        let own = self.charges.iter().map(|charge| &charge.cost);
        std::iter::once(&self.cost).filter(|_| self.charges.is_empty()).chain(own)
    }

    /// Returns whether a limiter counts what a request is estimated to need, such as tokens, and not requests.
    pub fn estimates(&self, limiter: &LimiterName) -> bool {
        let place = self.limiters.iter().position(|(name, _)| name == limiter).unwrap_or_default();
        let cost = self.charges.get(place).map_or(&self.cost, |charge| &charge.cost);
        matches!(cost, Cost::Estimate(_))
    }
}

/// The retries of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    /// The most attempts, the first included.
    pub attempts: u32,
    /// True if a failed connection is retried.
    pub on_connect: bool,
    /// The statuses that are retried.
    pub on_status: Vec<u16>,
    /// The largest body, in bytes, that is kept for another attempt.
    pub body_bytes_max: usize,
    /// The retries for each request of the route, in millionths; `None` for any number.
    pub budget_ppm: Option<u32>,
}

/// The breaker of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Breaker {
    /// The failures to connect in a row that open it.
    pub failures: u32,
    /// The time from a failure to the next probe.
    pub lasting: Duration,
}

/// The conditions of a request. All of them must hold.
#[derive(Debug, Clone, Default)]
pub struct Match {
    /// The path.
    pub path: PathMatch,
    /// The host.
    pub host: Option<HostMatch>,
    /// The methods; all if empty.
    pub methods: Vec<Method>,
    /// Headers, each with its exact value.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The conditions on the JSON body, if there are any.
    pub json: Option<Box<JsonMatch>>,
}

/// The condition on a path.
#[derive(Debug, Clone, Default)]
pub enum PathMatch {
    /// Any path.
    #[default]
    Any,
    /// A prefix, on a segment border: `/a` matches `/a` and `/a/b`, not `/ab`.
    Prefix(String),
    /// One path.
    Exact(String),
    /// A regular expression, anchored at both ends.
    Pattern(Regex),
}

/// The condition on a host, in lower case and without a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostMatch {
    /// One name.
    Exact(String),
    /// Every name with this suffix, which begins with a dot: `.example.com` for `*.example.com`.
    Suffix(String),
}

/// The upstream of a route.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Upstream {
    /// True if TLS is used.
    pub tls: bool,
    /// Host name or address literal, without brackets.
    pub host: Arc<str>,
    /// The port, also if it is the scheme's default.
    pub port: u16,
    /// The authority for the `Host` header, without the scheme's default port.
    pub authority: Arc<str>,
    /// The path put before every request's path; empty, or `/x` without a trailing slash.
    pub base_path: Arc<str>,
    /// The longest times.
    pub timeouts: UpstreamTimeouts,
    /// The use of HTTP/2.
    pub http2: Http2,
    /// The authorities trusted beside the public roots.
    pub ca: Option<PathBuf>,
    /// weir's own certificate chain and its key, for an upstream that asks for them.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The outbound proxy.
    pub proxy: Option<OutboundProxy>,
}

/// The longest times with an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct UpstreamTimeouts {
    /// To open a connection, TLS included.
    pub connect: Duration,
    /// Until the response headers.
    pub headers: Duration,
    /// Between two pieces of a body.
    pub idle: Duration,
    /// Without a byte in a connection that has switched to another protocol.
    pub tunnel: Duration,
}

/// An outbound HTTP proxy, which opens a tunnel to the upstream (CONNECT).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OutboundProxy {
    /// Host name or address literal, without brackets.
    pub host: Arc<str>,
    /// The port.
    pub port: u16,
    /// `USER:PASSWORD`, for the proxy alone.
    pub credentials: Option<Secret>,
}

/// The use of HTTP/2 for an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Http2 {
    /// HTTP/2 if the upstream chooses it by ALPN, otherwise HTTP/1.1.
    #[default]
    Auto,
    /// Always HTTP/1.1.
    Off,
    /// Always HTTP/2, without negotiation.
    PriorKnowledge,
}
