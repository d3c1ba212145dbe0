//! `store`: memory, or one Redis server.

use std::time::Duration;

use url::Url;

use super::place::At;
use super::{Check, MILLISECOND, MINUTE};
use crate::config::model::{RedisStore, RedisTls, Secret, Store};
use crate::config::schema;

const PORT: u16 = 6379;
const KEY_PREFIX: &str = "weir";
const KEY_PREFIX_LENGTH_MAX: usize = 64;

pub(super) fn store(check: &mut Check<'_>, given: Option<&schema::Store>, at: &At<'_>) -> Option<Store> {
    match given {
        None | Some(schema::Store::Memory) => Some(Store::Memory),
        Some(schema::Store::Redis(given)) => redis(check, given, &at.key("redis")).map(Store::Redis),
    }
}

fn redis(check: &mut Check<'_>, given: &schema::Redis, at: &At<'_>) -> Option<RedisStore> {
    topologies(check, given, at);
    let server = given.url.as_deref().map(|url| server(check, url, &at.key("url")));
    let encrypted = matches!(&server, Some(Some(server)) if server.encrypted);
    if let (Some(_), Some(Some(server))) = (&given.tls, &server)
        && !server.encrypted
    {
        check.problem_of_key(&at.key("tls"), "needs a URL that begins with rediss://");
    }
    let tls = match &given.tls {
        Some(given) if encrypted || server.is_none() => tls(check, given, &at.key("tls")),
        _ => Some(RedisTls::default()),
    };
    let timeout = Duration::from_millis(100);
    let timeout = check.duration(given.timeout, timeout, MILLISECOND..=MINUTE, &at.key("timeout"));
    let pool_size = check.count(given.pool_size, 8, 1..=1024, &at.key("pool_size"));
    let fleet_size = check.count(given.fleet_size, 1, 1..=10_000, &at.key("fleet_size"));
    let key_prefix = key_prefix(check, given.key_prefix.as_deref(), &at.key("key_prefix"));
    let Server { url, address, .. } = server??;
    Some(RedisStore {
        url,
        address,
        tls: tls?,
        timeout: timeout?,
        pool_size: pool_size?,
        key_prefix: key_prefix?,
        fleet_size: fleet_size?,
    })
}

/// Exactly one of `url`, `cluster` and `sentinel` says where Redis is.
fn topologies(check: &mut Check<'_>, given: &schema::Redis, at: &At<'_>) {
    let (at_cluster, at_sentinel) = (at.key("cluster"), at.key("sentinel"));
    check.unsupported(given.cluster.as_ref(), &at_cluster);
    check.unsupported(given.sentinel.as_ref(), &at_sentinel);
    if let Some(nodes) = &given.cluster {
        servers(check, nodes, &at_cluster);
    }
    if let Some(sentinel) = &given.sentinel {
        servers(check, &sentinel.nodes, &at_sentinel.key("nodes"));
        if sentinel.master.is_empty() {
            check.problem(&at_sentinel.key("master"), "must not be empty");
        }
    }
    let ways = [given.url.is_some(), given.cluster.is_some(), given.sentinel.is_some()];
    match ways.iter().filter(|given| **given).count() {
        0 => check.problem_of_key(at, "the key `url` is missing"),
        1 => {}
        _ => check.problem_of_key(at, "`url`, `cluster` and `sentinel` exclude each other"),
    }
}

fn servers(check: &mut Check<'_>, nodes: &[String], at: &At<'_>) {
    if nodes.is_empty() {
        check.problem(at, "needs at least one URL");
    }
    for (index, node) in nodes.iter().enumerate() {
        server(check, node, &at.index(index));
    }
}

/// One server's address, with what must not be shown apart from what may be.
struct Server {
    url: Secret,
    address: String,
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
        return Some(Server { url: Secret::new(given), address, encrypted: parsed.scheme() == "rediss" });
    };
    check.problem(at, fault);
    None
}

fn tls(check: &mut Check<'_>, given: &schema::RedisTls, at: &At<'_>) -> Option<RedisTls> {
    let ca = given.ca.as_deref().map(|path| check.certificates(path, &at.key("ca")));
    let cert = given.cert.as_deref().map(|path| check.certificates(path, &at.key("cert")));
    let key = given.key.as_deref().map(|path| check.private_key(path, &at.key("key")));
    let identity = match (cert, key) {
        (Some(cert), Some(key)) => Some((cert?, key?)),
        (None, None) => None,
        (Some(_), None) => {
            check.problem_of_key(&at.key("cert"), "needs `key` beside it");
            return None;
        }
        (None, Some(_)) => {
            check.problem_of_key(&at.key("key"), "needs `cert` beside it");
            return None;
        }
    };
    let ca = match ca {
        Some(ca) => Some(ca?),
        None => None,
    };
    Some(RedisTls { ca, identity })
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
