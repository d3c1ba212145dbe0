//! `store`: memory, or Redis as one server, a Cluster, or a server behind sentinels.

use std::net::IpAddr;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use url::Url;

use super::check::{Check, MILLISECOND, MINUTE};
use super::place::{Given, key};
use super::upstream::{NO_SERVER_NAME, can_be_certified};
use crate::config::model::{RedisNode, RedisSentinels, RedisServers, RedisStore, RedisTls, Secret, Store};
use crate::config::schema;

const PORT: u16 = 6379;
const KEY_PREFIX: &str = "weir";
const KEY_PREFIX_LENGTH_MAX: usize = 64;

/// Checks the store.
pub(super) fn store(check: &mut Check<'_>, given: &Given<'_, Option<schema::Store>>) -> Option<Store> {
    match given.value {
        None | Some(schema::Store::Memory) => Some(Store::Memory),
        Some(schema::Store::Redis(settings)) => {
            let redis = redis(check, &given.part(&**settings, "redis"));
            redis.map(|redis| Store::Redis(Box::new(redis)))
        }
    }
}

fn redis(check: &mut Check<'_>, redis: &Given<'_, schema::Redis>) -> Option<RedisStore> {
    let servers = servers(check, redis);
    let tls = match (key!(redis.tls).get(), &servers) {
        (Some(given), Some((_, true)) | None) => tls(check, &given),
        (Some(given), Some((_, false))) => {
            check.refuse_key(&given.at, "needs URLs that begin with rediss://")
        }
        (None, _) => Some(RedisTls::default()),
    };
    let timeout = check.bounded(&key!(redis.timeout), Duration::from_millis(100), MILLISECOND..=MINUTE);
    let pool_size = check.count(&key!(redis.pool_size), 8, 1..=1024);
    let fleet_size = check.count(&key!(redis.fleet_size), 1, 1..=10_000);
    let key_prefix = key_prefix(check, &key!(redis.key_prefix));
    let (servers, _) = servers?;
    Some(RedisStore {
        servers,
        tls: tls?,
        timeout: timeout?,
        pool_size: pool_size?,
        key_prefix: key_prefix?,
        fleet_size: fleet_size?,
        confirm: redis.value.confirm.unwrap_or_default(),
    })
}

/// Checks the servers, given by exactly one of `url`, `cluster` and `sentinel`. Also returns whether they use TLS.
fn servers(check: &mut Check<'_>, redis: &Given<'_, schema::Redis>) -> Option<(RedisServers, bool)> {
    let (url, cluster, by_sentinel) = (key!(redis.url), key!(redis.cluster), key!(redis.sentinel));
    match [&url.at, &cluster.at, &by_sentinel.at].iter().filter(|way| way.is_given()).count() {
        0 => check.problem_of_key(&redis.at, "the key `url` is missing; or give `cluster` or `sentinel`"),
        1 => {}
        _ => check.problem_of_key(&redis.at, "`url`, `cluster` and `sentinel` exclude each other"),
    }
    let url = url.get().map(|url| server(check, &url));
    let cluster = cluster.get().map(|urls| {
        let nodes = nodes(check, &urls);
        one_user(check, &urls);
        nodes
    });
    let by_sentinel = by_sentinel.get().map(|given| sentinel(check, &given));
    match (url, cluster, by_sentinel) {
        (Some(server), None, None) => {
            server.map(|Server { node, encrypted, .. }| (RedisServers::One(node), encrypted))
        }
        (None, Some(nodes), None) => {
            let (nodes, encrypted) = nodes?;
            Some((RedisServers::Cluster(nodes), encrypted))
        }
        (None, None, Some(sentinel)) => sentinel,
        _ => None,
    }
}

fn sentinel(check: &mut Check<'_>, sentinel: &Given<'_, schema::Sentinel>) -> Option<(RedisServers, bool)> {
    let nodes = nodes(check, &key!(sentinel.nodes));
    let written = sentinel.value;
    if written.master.is_empty() {
        check.problem(&key!(sentinel.master).at, "must not be empty");
    }
    if written.username.is_some() && written.password.is_none() {
        check.problem_of_key(&key!(sentinel.username).at, "needs `password` beside it");
    }
    let database = check.count(&key!(sentinel.database), 0, 0..=65_535);
    let (nodes, encrypted) = nodes?;
    let servers = RedisServers::Sentinel(RedisSentinels {
        nodes,
        master: written.master.clone(),
        username: written.username.clone(),
        password: written.password.as_deref().filter(|password| !password.is_empty()).map(Secret::new),
        database: u16::try_from(database?).ok()?,
    });
    Some((servers, encrypted))
}

/// Checks several servers: either all of them use TLS or none.
fn nodes(check: &mut Check<'_>, urls: &Given<'_, Vec<String>>) -> Option<(Vec<RedisNode>, bool)> {
    if urls.at.length() == 0 {
        check.problem(&urls.at, "needs at least one URL");
    }
    let servers: Vec<_> = urls.items().map(|url| (server(check, &url), url.at)).collect();
    let valid = servers.iter().filter_map(|(server, at)| Some((server.as_ref()?, at)));
    let encrypted = valid.clone().next().is_some_and(|(server, _)| server.encrypted);
    for (server, at) in valid {
        if server.encrypted != encrypted {
            check.problem(at, "redis:// and rediss:// cannot be mixed");
        }
        if server.database != 0 {
            check.problem(at, "these URLs name no database: a Cluster has none, and that of a server behind sentinels is `database`");
        }
    }
    let nodes: Option<Vec<_>> =
        servers.into_iter().map(|(server, _)| server.map(|server| server.node)).collect();
    nodes.filter(|nodes| !nodes.is_empty()).map(|nodes| (nodes, encrypted))
}

/// Checks that all nodes of a Cluster have one user: the first URL tells the user and the password of all connections for calls, also
/// those to nodes that the Cluster names.
fn one_user(check: &mut Check<'_>, urls: &Given<'_, Vec<String>>) {
    let users = urls.items().filter_map(|url| Some((user(&Url::parse(url.value).ok()?)?, url.at)));
    let mut users = users.collect::<Vec<_>>().into_iter();
    let Some(([first_name, first_password], _)) = users.next() else { return };
    for ([name, password], at) in users {
        // Without a name it is the default user, which another URL may name.
        let is_other = !first_name.is_empty() && name != first_name;
        if is_other || password != first_password {
            check.problem(&at, "all nodes of a Cluster need the same user and password as the first one");
        }
    }
}

/// Returns the user and the password in a URL, each empty if absent; `None` if they are no UTF-8 without their percent-encoding.
fn user(url: &Url) -> Option<[String; 2]> {
    let decoded = |text: &str| Some(percent_decode_str(text).decode_utf8().ok()?.into_owned());
    Some([decoded(url.username())?, decoded(url.password().unwrap_or_default())?])
}

/// Returns whether a host is an address to listen on, such as 0.0.0.0, and none to connect to.
fn is_wildcard(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified())
}

/// One server's address, and the parts of it that may be shown.
struct Server {
    node: RedisNode,
    database: u16,
    encrypted: bool,
}

/// Parses a server's URL. Messages contain no part of it: it may hold a password.
fn server(check: &mut Check<'_>, given: &Given<'_, String>) -> Option<Server> {
    let parsed = match Url::parse(given.value) {
        Ok(url) if given.value.contains("://") => url,
        _ => {
            let message = "expected a URL such as redis://127.0.0.1:6379/0 or rediss://...";
            return check.refuse(&given.at, message);
        }
    };
    let database = parsed.path().trim_start_matches('/');
    let fault = if !matches!(parsed.scheme(), "redis" | "rediss") {
        "the URL must begin with redis:// or rediss://"
    } else if parsed.host_str().is_none_or(str::is_empty) {
        "the URL names no host"
    } else if parsed.host_str().is_some_and(is_wildcard) {
        "0.0.0.0 and [::] cannot be connected to: name the host, such as 127.0.0.1"
    } else if parsed.scheme() == "rediss"
        && !parsed.host().is_some_and(|host| can_be_certified(&host.to_owned()))
    {
        NO_SERVER_NAME
    } else if user(&parsed).is_none() {
        "the user and the password in the URL must be UTF-8, percent-encoded where they have other characters than letters and digits"
    } else if parsed.port() == Some(0) {
        "port 0 cannot be connected to"
    } else if parsed.query().is_some() || parsed.fragment().is_some() {
        "the URL must have no query (`?`) and no fragment (`#`); a password with these is percent-encoded"
    } else if !database.is_empty() && database.parse::<u16>().is_err() {
        "the path of the URL must be a database number, such as /0"
    } else {
        let host = parsed.host_str().unwrap_or_default();
        let address = format!("{host}:{}", parsed.port().unwrap_or(PORT));
        return Some(Server {
            node: RedisNode { url: Secret::new(given.value), address },
            database: database.parse().unwrap_or_default(),
            encrypted: parsed.scheme() == "rediss",
        });
    };
    check.refuse(&given.at, fault)
}

fn tls(check: &mut Check<'_>, tls: &Given<'_, schema::RedisTls>) -> Option<RedisTls> {
    let ca = key!(tls.ca).checked(|path| check.authorities(&path));
    let identity = check.identity(&key!(tls.cert), &key!(tls.key));
    Some(RedisTls { ca: ca?, identity: identity? })
}

/// Checks the prefix of all keys. Braces are not allowed: they would move the hash tag that keeps a limiter's keys
/// in one slot of a Cluster.
fn key_prefix(check: &mut Check<'_>, given: &Given<'_, Option<String>>) -> Option<String> {
    let prefix = given.value.as_deref().unwrap_or(KEY_PREFIX);
    let fits = (1..=KEY_PREFIX_LENGTH_MAX).contains(&prefix.len())
        && prefix.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte));
    let message = "must be 1 to 64 letters, digits, `_`, `.`, `:` or `-`";
    if fits { Some(prefix.to_owned()) } else { check.refuse(&given.at, message) }
}
