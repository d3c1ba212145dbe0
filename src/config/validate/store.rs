//! `store`: memory, or one Redis server.

use std::time::Duration;

use url::Url;

use super::place::At;
use super::{Check, MILLISECOND, MINUTE};
use crate::config::model::{RedisNode, RedisSentinels, RedisServers, RedisStore, RedisTls, Secret, Store};
use crate::config::schema;

const PORT: u16 = 6379;
const KEY_PREFIX: &str = "weir";
const KEY_PREFIX_LENGTH_MAX: usize = 64;

pub(super) fn store(check: &mut Check<'_>, given: Option<&schema::Store>, at: &At<'_>) -> Option<Store> {
    match given {
        None | Some(schema::Store::Memory) => Some(Store::Memory),
        Some(schema::Store::Redis(given)) => {
            redis(check, given, &at.key("redis")).map(|redis| Store::Redis(Box::new(redis)))
        }
    }
}

fn redis(check: &mut Check<'_>, given: &schema::Redis, at: &At<'_>) -> Option<RedisStore> {
    let servers = servers(check, given, at);
    let tls = match (&given.tls, &servers) {
        (Some(given), Some((_, true)) | None) => tls(check, given, &at.key("tls")),
        (Some(_), Some((_, false))) => {
            check.problem_of_key(&at.key("tls"), "needs URLs that begin with rediss://");
            None
        }
        (None, _) => Some(RedisTls::default()),
    };
    let timeout = Duration::from_millis(100);
    let timeout = check.duration(given.timeout, timeout, MILLISECOND..=MINUTE, &at.key("timeout"));
    let pool_size = check.count(given.pool_size, 8, 1..=1024, &at.key("pool_size"));
    let fleet_size = check.count(given.fleet_size, 1, 1..=10_000, &at.key("fleet_size"));
    let key_prefix = key_prefix(check, given.key_prefix.as_deref(), &at.key("key_prefix"));
    let (servers, _) = servers?;
    Some(RedisStore {
        servers,
        tls: tls?,
        timeout: timeout?,
        pool_size: pool_size?,
        key_prefix: key_prefix?,
        fleet_size: fleet_size?,
    })
}

/// Where Redis is, by exactly one of `url`, `cluster` and `sentinel`, and whether it is spoken to over TLS.
fn servers(check: &mut Check<'_>, given: &schema::Redis, at: &At<'_>) -> Option<(RedisServers, bool)> {
    let ways = [at.key("url"), at.key("cluster"), at.key("sentinel")];
    match ways.iter().filter(|way| way.is_given()).count() {
        0 => check.problem_of_key(at, "the key `url` is missing; or give `cluster` or `sentinel`"),
        1 => {}
        _ => check.problem_of_key(at, "`url`, `cluster` and `sentinel` exclude each other"),
    }
    let [at_url, at_cluster, at_sentinel] = &ways;
    let url = given.url.as_deref().map(|url| server(check, url, at_url));
    let cluster = given.cluster.as_deref().map(|urls| nodes(check, urls, at_cluster));
    let sentinel = given.sentinel.as_ref().map(|given| sentinel(check, given, at_sentinel));
    match (url, cluster, sentinel) {
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

fn sentinel(check: &mut Check<'_>, given: &schema::Sentinel, at: &At<'_>) -> Option<(RedisServers, bool)> {
    let nodes = nodes(check, &given.nodes, &at.key("nodes"));
    if given.master.is_empty() {
        check.problem(&at.key("master"), "must not be empty");
    }
    if given.username.is_some() && given.password.is_none() {
        check.problem_of_key(&at.key("username"), "needs `password` beside it");
    }
    let database = check.count(given.database, 0, 0..=65_535, &at.key("database"));
    let (nodes, encrypted) = nodes?;
    let servers = RedisServers::Sentinel(RedisSentinels {
        nodes,
        master: given.master.clone(),
        username: given.username.clone(),
        password: given.password.as_deref().filter(|password| !password.is_empty()).map(Secret::new),
        database: u16::try_from(database?).ok()?,
    });
    Some((servers, encrypted))
}

/// Several servers, of which all are spoken to over TLS or none.
fn nodes(check: &mut Check<'_>, urls: &[String], at: &At<'_>) -> Option<(Vec<RedisNode>, bool)> {
    if at.length() == 0 {
        check.problem(at, "needs at least one URL");
    }
    let servers: Vec<_> =
        urls.iter().enumerate().map(|(index, url)| (index, server(check, url, &at.index(index)))).collect();
    let known = servers.iter().filter_map(|(index, server)| Some((index, server.as_ref()?)));
    let encrypted = known.clone().next().is_some_and(|(_, server)| server.encrypted);
    for (index, server) in known {
        if server.encrypted != encrypted {
            check.problem(&at.index(*index), "redis:// and rediss:// cannot be mixed");
        }
        if server.database != 0 {
            check.problem(&at.index(*index), "these URLs name no database: a Cluster has none, and that of a server behind sentinels is `database`");
        }
    }
    let nodes: Option<Vec<_>> =
        servers.into_iter().map(|(_, server)| server.map(|server| server.node)).collect();
    nodes.filter(|nodes| !nodes.is_empty()).map(|nodes| (nodes, encrypted))
}

/// One server's address, with what must not be shown apart from what may be.
struct Server {
    node: RedisNode,
    database: u16,
    encrypted: bool,
}

/// No message holds any of the URL: it may carry a password.
fn server(check: &mut Check<'_>, given: &str, at: &At<'_>) -> Option<Server> {
    let parsed = match Url::parse(given) {
        Ok(url) if given.contains("://") => url,
        _ => {
            check.problem(at, "expected a URL such as redis://127.0.0.1:6379/0 or rediss://...");
            return None;
        }
    };
    let database = parsed.path().trim_start_matches('/');
    let fault = if !matches!(parsed.scheme(), "redis" | "rediss") {
        "the URL must begin with redis:// or rediss://"
    } else if parsed.host_str().is_none_or(str::is_empty) {
        "the URL names no host"
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
            node: RedisNode { url: Secret::new(given), address },
            database: database.parse().unwrap_or_default(),
            encrypted: parsed.scheme() == "rediss",
        });
    };
    check.problem(at, fault);
    None
}

fn tls(check: &mut Check<'_>, given: &schema::RedisTls, at: &At<'_>) -> Option<RedisTls> {
    let ca = given.ca.as_deref().map(|path| check.certificates(path, &at.key("ca")));
    let identity = check.identity(given.cert.as_deref(), given.key.as_deref(), at);
    let ca = match ca {
        Some(ca) => Some(ca?),
        None => None,
    };
    Some(RedisTls { ca, identity: identity? })
}

/// Braces would move the hash tag that keeps a limiter's keys together.
fn key_prefix(check: &mut Check<'_>, given: Option<&str>, at: &At<'_>) -> Option<String> {
    let prefix = given.unwrap_or(KEY_PREFIX);
    let fits = (1..=KEY_PREFIX_LENGTH_MAX).contains(&prefix.len())
        && prefix.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte));
    if !fits {
        check.problem(at, "must be 1 to 64 letters, digits, `_`, `.`, `:` or `-`");
    }
    fits.then(|| prefix.to_owned())
}
