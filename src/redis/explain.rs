//! Errors of Redis, explained to operators in one line.

use redis::{ErrorKind, RedisError, ServerErrorKind};

/// The oldest supported version of Redis; Valkey is supported in any version.
const VERSION_MIN: (u32, u32) = (6, 2);

/// Returns the error, and the remedy where one is known, without passwords.
pub(super) fn explain(error: &RedisError) -> String {
    if let (ErrorKind::InvalidClientConfig, Some(why)) = (error.kind(), error.detail()) {
        return why.to_owned();
    }
    let error_text = text(error);
    let advice = match (error.kind(), word(error)) {
        (ErrorKind::AuthenticationFailed, _) | (_, "NOAUTH" | "WRONGPASS") => {
            "check user and password in `store.redis`"
        }
        (ErrorKind::MasterNameNotFoundBySentinel, _) => {
            "no sentinel that answers knows this master: check `store.redis.sentinel`"
        }
        (_, "NOPERM") => LACKS_A_RIGHT,
        // Within a script, Redis before 7 and Valkey have no word of their own for it.
        _ if error_text.contains("The user executing the script can't") => LACKS_A_RIGHT,
        _ if error_text.contains("ACL failure in script") => LACKS_A_RIGHT,
        // The client library keeps the words alone of the answer to a SELECT.
        _ if error_text.contains("has no permissions to run") => LACKS_A_RIGHT,
        (_, "READONLY") => "this server is a replica: name its primary, or its sentinels",
        (ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::CrossSlot), _) => NOT_ONE_SERVER,
        _ if error_text.contains("cluster support disabled") => {
            "this server is no Cluster: give `store.redis.url` in place of `cluster`"
        }
        (_, "OOM") => "Redis is full: give it more `maxmemory`, or nothing else to hold",
        (_, "BUSY") => "a script of somebody else keeps Redis busy: SCRIPT KILL ends it",
        (_, "WRONGTYPE") => {
            "something else wrote to a key of weir: delete it, and give weir a `key_prefix` of its own"
        }
        _ => return error_text,
    };
    format!("{error_text}; {advice}")
}

/// Returns the first word of a server's error. Before Redis 7, the error that ended a script stands quoted in another one.
pub(super) fn word(error: &RedisError) -> &str {
    let quoted = error.detail().and_then(|detail| detail.split(": -").nth(1)?.split(' ').next());
    quoted.or(error.code()).unwrap_or_default()
}

/// Returns an error in the server's own words, as its documentation has them.
fn text(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    }
}

const LACKS_A_RIGHT: &str = "the user lacks a right: docs/redis.md lists those that weir needs";

const NOT_ONE_SERVER: &str =
    "this server is a node of a Redis Cluster: give `store.redis.cluster` in place of `url`";

/// Returns why a server cannot be used, by its `INFO server`; `None` if it can. `has_parts`: it is used as a part of a Cluster.
pub(super) fn unfit(info: &str, has_parts: bool) -> Option<String> {
    let field = |name| field(info, name).unwrap_or_default();
    let version = field("redis_version");
    let mut numbers = version.split('.').map_while(|number| number.parse::<u32>().ok());
    let is_old = matches!((numbers.next(), numbers.next()), (Some(major), Some(minor)) if (major, minor) < VERSION_MIN);
    if is_old && field("server_name") != "valkey" {
        let (major, minor) = VERSION_MIN;
        return Some(format!("Redis {version} is too old: weir needs {major}.{minor} or newer, or Valkey"));
    }
    (!has_parts && field("redis_mode") == "cluster").then(|| NOT_ONE_SERVER.to_owned())
}

/// Returns the name and version of a server from its `INFO server`.
pub(super) fn version(info: &str) -> Option<String> {
    match field(info, "valkey_version") {
        Some(version) => Some(format!("Valkey {version}")),
        None => field(info, "redis_version").map(|version| format!("Redis {version}")),
    }
}

/// Returns a warning about a server that evicts keys when it is full, by its `INFO memory`.
pub(super) fn evicts(info: &str) -> Option<String> {
    let policy = field(info, "maxmemory_policy")?;
    let may_be_full = field(info, "maxmemory").is_some_and(|bytes| bytes != "0");
    (may_be_full && policy != "noeviction").then(|| {
        format!(
            "when it is full it forgets keys, and with them what was used of a limit \
             (maxmemory-policy {policy}): set it to noeviction"
        )
    })
}

/// Returns a warning about a server that goes on taking writes when another one has become the primary, by its `INFO replication`.
/// `may_fail_over`: another one may become the primary by itself.
pub(super) fn may_divide(info: &str, may_fail_over: bool) -> Option<String> {
    let has_replicas = field(info, "connected_slaves").is_some_and(|count| count != "0");
    // The field is there only where min-replicas-to-write is at least 1.
    let is_fenced = field(info, "min_slaves_good_slaves").is_some();
    (!info.is_empty() && (may_fail_over || has_replicas) && !is_fenced).then(|| {
        "after a failover two servers may take writes, and each grants the whole limit: set `store.redis.confirm` to replica, or \
         min-replicas-to-write to 1 on the servers"
            .to_owned()
    })
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'))
}

/// Returns whether another connection may do better: this one broke, lost its login, or leads to a server that is not, or no longer, the
/// primary of these keys.
pub(super) fn is_misplaced(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_unrecoverable_error()
        || ["READONLY", "MASTERDOWN", "NOAUTH", "MOVED", "ASK"].contains(&word(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lacking_right_is_explained_to_users_of_each_server() {
        for answer in [
            "NOPERM ACL failure in script: User weir has no permissions to run the 'mget' command",
            "ERR The user executing the script can't run this command or subcommand script: f00",
            "ERR ACL failure in script: User weir has no permissions to run the 'mget' command script: f00",
        ] {
            let value = redis::parse_redis_value(format!("-{answer}\r\n").as_bytes()).unwrap();
            let explained = explain(&value.extract_error().unwrap_err());
            assert!(explained.ends_with(LACKS_A_RIGHT), "{explained}");
        }
    }

    #[test]
    fn unfit_servers_are_explained() {
        let redis = |version: &str, mode: &str| {
            format!("# Server\r\nredis_version:{version}\r\nredis_mode:{mode}\r\nrun_id:ab\r\n")
        };
        for version in ["6.2.0", "7.0.15", "8.2.1", "10.0"] {
            assert_eq!(unfit(&redis(version, "standalone"), false), None, "{version}");
        }
        for version in ["6.0.16", "5.0.3", "2.8"] {
            let why = unfit(&redis(version, "standalone"), false).unwrap();
            assert!(why.starts_with(&format!("Redis {version} is too old: weir needs 6.2")), "{why}");
        }
        assert!(unfit(&redis("7.0.15", "cluster"), false).unwrap().contains("store.redis.cluster"));
        assert_eq!(unfit(&redis("7.0.15", "cluster"), true), None);
        assert_eq!(unfit("", false), None, "a server without information is not judged");
        assert_eq!(version(&redis("7.0.15", "x")).unwrap(), "Redis 7.0.15");
        let memory = |maxmemory: &str, policy: &str| {
            evicts(&format!("# Memory\r\nmaxmemory:{maxmemory}\r\nmaxmemory_policy:{policy}\r\n"))
        };
        assert_eq!(
            [memory("0", "allkeys-lru"), memory("1000", "noeviction"), evicts("")],
            [None, None, None]
        );
        assert!(memory("1000", "volatile-ttl").unwrap().contains("(maxmemory-policy volatile-ttl)"));
        let replication = |more: &str| format!("# Replication\r\nrole:master\r\nconnected_slaves:{more}\r\n");
        for (info, may_fail_over, warns) in [
            (replication("0"), false, false),
            (replication("0"), true, true),
            (replication("1"), false, true),
            (replication("1\r\nmin_slaves_good_slaves:1"), true, false),
            (String::new(), true, false),
        ] {
            assert_eq!(may_divide(&info, may_fail_over).is_some(), warns, "{info}");
        }
        assert_eq!(version("redis_version:7.2.4\r\nvalkey_version:8.1.0\r\n").unwrap(), "Valkey 8.1.0");
    }
}
