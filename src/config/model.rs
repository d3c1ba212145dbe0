//! The configuration as the program uses it: parsed, checked, complete.
//!
//! Only [`super::validate`] builds these. Nothing here is a string that still has to be understood.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method};
use ipnet::IpNet;
use regex::Regex;

use crate::bearer::TokenDigest;
use crate::limiter::model::limit::{Limiter, LimiterName, Permits};
pub use crate::telemetry::logging::{Log, LogFormat};

/// A text that must not be shown: its `Debug` and `Display` say `***`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Wraps the text.
    pub fn new(text: &str) -> Secret {
        Secret(text.into())
    }

    /// The text itself, for the one place that needs it.
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
    /// Where applications send their calls.
    pub listen: SocketAddr,
    /// How connections of clients are treated.
    pub server: Server,
    /// Metrics, health and live state.
    pub admin: Admin,
    /// What is logged.
    pub log: Log,
    /// Who may call; everyone if absent.
    pub clients: Option<Arc<Clients>>,
    /// Where limiter state lives.
    pub store: Store,
    /// Every limiter, in the order of the file.
    pub limiters: Vec<Arc<Limiter>>,
    /// Every route, in the order of the file: the first match wins.
    pub routes: Vec<Route>,
    /// The first 16 hex digits of a SHA-256 over the file as written (before `${...}` is replaced).
    pub hash: Arc<str>,
}

impl Config {
    /// The keys that differ in `new` and take effect only after a restart.
    pub fn restart_needed(&self, new: &Config) -> Vec<&'static str> {
        let changed = [
            ("listen", self.listen != new.listen),
            ("admin.listen", self.admin.listen != new.admin.listen),
            ("store", self.store != new.store),
        ];
        changed.into_iter().filter_map(|(key, differs)| differs.then_some(key)).collect()
    }
}

/// How connections of clients are treated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// TLS towards clients; in the clear if absent.
    pub tls: Option<ServerTls>,
    /// From where requests may come; from everywhere if absent. It is the other end of the connection that counts.
    pub allow: Option<Vec<IpNet>>,
    /// Whose `X-Forwarded-For` names the client's address.
    pub trusted_proxies: Vec<IpNet>,
    /// The most client connections at once.
    pub max_connections: u32,
    /// The longest time until a request's headers are complete.
    pub header_timeout: Duration,
    /// The longest time that a connection stays open without a request.
    pub idle_timeout: Duration,
    /// The most bytes of a request's headers.
    pub max_header_bytes: u32,
    /// After SIGTERM new requests are still taken this long.
    pub drain_delay: Duration,
    /// Then what is under way and waiting may finish, at most this long.
    pub drain_timeout: Duration,
}

/// TLS towards clients: PEM files, by path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerTls {
    /// The certificate chain that weir shows.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authorities of clients' certificates.
    pub client_ca: Option<PathBuf>,
}

/// The admin listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admin {
    /// Its address, `127.0.0.1:9090` by default.
    pub listen: SocketAddr,
    /// Beyond loopback: needed for everything but health and metrics.
    pub token: Option<Secret>,
}

/// Who may call, by what they show. Holds the digests of tokens, made once, so that finding a client takes as long
/// among a thousand as among two.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Clients {
    tokens: HashMap<TokenDigest, Arc<str>>,
    certificates: HashMap<SubjectName, Arc<str>>,
}

impl Clients {
    /// Adds a client's token. Gives the name of another client that has it already, and changes nothing then.
    pub(crate) fn add_token(&mut self, client: &Arc<str>, token: &str) -> Result<(), Arc<str>> {
        let owner = self.tokens.entry(TokenDigest::of(token)).or_insert_with(|| Arc::clone(client));
        if owner == client { Ok(()) } else { Err(Arc::clone(owner)) }
    }

    /// Adds the name in a client's certificate. Gives the name of another client that has it already, and changes
    /// nothing then.
    pub(crate) fn add_certificate(&mut self, client: &Arc<str>, name: SubjectName) -> Result<(), Arc<str>> {
        let owner = self.certificates.entry(name).or_insert_with(|| Arc::clone(client));
        if owner == client { Ok(()) } else { Err(Arc::clone(owner)) }
    }

    /// Whose certificate it is: of several names in it, the first that is anybody's.
    pub(crate) fn by_certificate(&self, names: &[SubjectName]) -> Option<&Arc<str>> {
        names.iter().find_map(|name| self.certificates.get(name))
    }

    /// Whose token it is.
    pub(crate) fn by_token(&self, token: TokenDigest) -> Option<&Arc<str>> {
        self.tokens.get(&token)
    }

    /// Whether any client may show a token.
    pub(crate) fn has_tokens(&self) -> bool {
        !self.tokens.is_empty()
    }
}

/// A subject alternative name of a certificate. Names are compared within their kind.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SubjectName {
    /// A host name, in lower case and without a trailing dot. A wildcard is no pattern here, but a name like others.
    Dns(String),
    /// A URI, as it is written: `spiffe://example.org/billing`.
    Uri(String),
    /// An address.
    Ip(IpAddr),
    /// An e-mail address, as it is written.
    Email(String),
}

impl SubjectName {
    /// What a user writes, by its form.
    pub(crate) fn parse(text: &str) -> Option<SubjectName> {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._*".contains(&byte);
        if let Ok(address) = text.parse() {
            Some(SubjectName::Ip(address))
        } else if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            None
        } else if text.split_once(':').is_some_and(|(scheme, rest)| !scheme.is_empty() && !rest.is_empty()) {
            Some(SubjectName::Uri(text.to_owned()))
        } else if text.split_once('@').is_some_and(|(user, host)| !user.is_empty() && !host.is_empty()) {
            Some(SubjectName::Email(text.to_owned()))
        } else {
            text.bytes().all(is_name).then(|| SubjectName::dns(text))
        }
    }

    /// A host name, however it is written.
    pub(crate) fn dns(name: &str) -> SubjectName {
        SubjectName::Dns(name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase())
    }
}

/// Where limiter state lives. Changing it needs a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Store {
    /// In this process.
    Memory,
    /// In Redis, shared by all replicas.
    Redis(Box<RedisStore>),
}

/// Redis: one server, or several that know each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisStore {
    /// Where it is.
    pub servers: RedisServers,
    /// For `rediss://`: beyond the public roots, and the client's certificate.
    pub tls: RedisTls,
    /// The longest time that a call may take.
    pub timeout: Duration,
    /// The most connections.
    pub pool_size: u32,
    /// The first part of every key.
    pub key_prefix: String,
    /// Replicas to assume before the store has been seen.
    pub fleet_size: u32,
}

/// Where Redis is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RedisServers {
    /// One server.
    One(RedisNode),
    /// A Redis Cluster, by some of its nodes.
    Cluster(Vec<RedisNode>),
    /// A server that sentinels name.
    Sentinel(RedisSentinels),
}

/// Sentinels, and the server that they name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisSentinels {
    /// The sentinels, each with the user and password for itself.
    pub nodes: Vec<RedisNode>,
    /// What they call the server.
    pub master: String,
    /// For the server.
    pub username: Option<String>,
    /// For the server.
    pub password: Option<Secret>,
    /// On the server.
    pub database: u16,
}

impl RedisServers {
    /// Each address without user and password, for logs and pages.
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

/// One server of Redis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisNode {
    /// `redis://` or `rediss://`, with user, password and database number.
    pub url: Secret,
    /// The address without user and password.
    pub address: String,
}

/// PEM files, by path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RedisTls {
    /// Trusted in place of the public roots.
    pub ca: Option<PathBuf>,
    /// The client's certificate chain and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// One route: what it matches, where it goes, what it takes.
#[derive(Debug, Clone)]
pub struct Route {
    /// Its name, for metrics and logs.
    pub name: Arc<str>,
    /// What it matches.
    pub matches: Match,
    /// Where it goes.
    pub upstream: Upstream,
    /// Removed from the front of the path before it goes upstream.
    pub strip_prefix: Option<String>,
    /// Set on every request that goes upstream, in place of what the client sent. Values are marked sensitive.
    pub set_headers: Vec<(HeaderName, HeaderValue)>,
    /// Removed from every request that goes upstream.
    pub remove_headers: Vec<HeaderName>,
    /// Whether the client's `Host` goes upstream.
    pub preserve_host: bool,
    /// Whether `X-Forwarded-*` and `Via` go upstream.
    pub forwarded_headers: bool,
    /// The limiters that each request must satisfy all at once, each with what its partitions are made of: nothing for
    /// one without a key.
    pub limiters: Vec<(LimiterName, Arc<[KeyPart]>)>,
    /// What a request costs.
    pub cost: Cost,
    /// What a response tells of that.
    pub settle: Option<Settle>,
    /// When a request is sent once more.
    pub retry: Option<Retry>,
    /// Which clients may use it; all known ones if absent.
    pub clients: Option<HashSet<Arc<str>>>,
}

/// How a response tells what its request has cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settle {
    /// The header that names it.
    pub header: Option<HeaderName>,
    /// The statuses of responses that cost nothing.
    pub free: Vec<u16>,
}

/// When a request is sent once more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    /// How often it is sent in all.
    pub attempts: u32,
    /// Whether it is where no connection could be made.
    pub on_connect: bool,
    /// After which statuses it is.
    pub on_status: Vec<u16>,
    /// The largest body, in bytes, that is kept for another attempt.
    pub body_bytes_max: usize,
}

/// What of a request makes its partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyPart {
    /// The value of a header.
    Header(HeaderName),
    /// The value of a parameter of the query.
    Query(Arc<str>),
    /// The host, without a port.
    Host,
    /// A segment of the decoded path, from 0.
    Path(u8),
    /// The address of the client.
    ClientIp,
    /// The name of the client.
    Client,
}

/// What a request costs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cost {
    /// That much.
    Fixed(Permits),
    /// What it says itself.
    Header {
        /// In this header.
        name: HeaderName,
        /// Without it.
        default: Permits,
        /// No more than that.
        max: Permits,
    },
}

/// What a route matches: everything that is given must hold.
#[derive(Debug, Clone, Default)]
pub struct Match {
    /// The path.
    pub path: PathMatch,
    /// The host, in lower case and without a port; a leading `*.` stands for one or more labels.
    pub host: Option<HostMatch>,
    /// Any of these methods; all when empty.
    pub methods: Vec<Method>,
    /// Each header with exactly this value.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

/// How a path is matched.
#[derive(Debug, Clone, Default)]
pub enum PathMatch {
    /// Any path.
    #[default]
    Any,
    /// This prefix, on segment borders: `/a` matches `/a` and `/a/b`, not `/ab`.
    Prefix(String),
    /// This path alone.
    Exact(String),
    /// The whole path, anchored at both ends.
    Pattern(Regex),
}

/// How a host is matched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostMatch {
    /// This name alone.
    Exact(String),
    /// Any name that ends in this suffix, which begins with a dot (`*.example.com` is `.example.com`).
    Suffix(String),
}

/// Where a route goes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Upstream {
    /// Whether TLS is spoken.
    pub tls: bool,
    /// Host name or address literal, without brackets.
    pub host: Arc<str>,
    /// The port, also where it is the scheme's own.
    pub port: u16,
    /// The authority for the `Host` header: without the port where it is the scheme's own.
    pub authority: Arc<str>,
    /// Put before every path; empty or `/x` without a trailing slash.
    pub base_path: Arc<str>,
    /// The longest time until a connection, TLS included, is open.
    pub connect_timeout: Duration,
    /// The longest time until the response headers.
    pub timeout: Duration,
    /// The longest time between two pieces of a body.
    pub idle_timeout: Duration,
    /// Whether HTTP/2 is spoken.
    pub http2: Http2,
    /// Trusted beside the public roots.
    pub ca: Option<PathBuf>,
    /// The client's certificate chain and its key, for an upstream that asks for them.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// What its connections go through.
    pub proxy: Option<OutboundProxy>,
}

/// An outbound HTTP proxy, which is asked for a tunnel (CONNECT).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OutboundProxy {
    /// Host name or address literal, without brackets.
    pub host: Arc<str>,
    /// The port.
    pub port: u16,
    /// `USER:PASSWORD`, for the proxy alone.
    pub credentials: Option<Secret>,
}

/// Whether HTTP/2 is spoken to an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Http2 {
    /// Where the upstream chooses it by ALPN.
    #[default]
    Auto,
    /// Never.
    Off,
    /// Always, without asking.
    PriorKnowledge,
}
