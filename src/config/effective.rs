//! The configuration as it is used: as it was written, with every default filled in.
//!
//! Takes the written values from the file, so that what is masked there is masked here. Knows the default of each key only by the
//! checked configuration.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::key_part::{CLIENT_IP, IPV4_PREFIX, IPV6_PREFIX};
use super::masked::{is_masked, masked_key};
use super::model::{
    Admin, Breaker, Charge, Config, Cost, Log, LogFormat, PATIENCE_HEADERS, RedisServers, RedisStore, Retry,
    Route, Server, Store, Upstream,
};
use super::units::{Share, Size, show_duration, show_share, show_size};
use crate::limiter::Partition;
use crate::limiter::model::Class;
use crate::limiter::model::limit::{
    Algorithm, Limit, Limiter, LimiterName, Mode, OnStoreFailure, PausePolicy, Scope,
};
use crate::telemetry::AccessRule;

const OFF: &str = "off";
/// The key of the path of a file of overrides.
const FILE: &str = "file";

/// Fills the defaults of a valid configuration into the written one.
pub(super) fn effective(config: &Config, written: Value) -> Value {
    let mut defaults = defaults(config);
    for limiter in &config.limiters {
        let written = &written["limiters"][limiter.name.as_str()]["overrides"];
        if let Some(written) = written.as_object() {
            let named = overrides(limiter, |value, _, _| written.contains_key(value));
            defaults["limiters"][limiter.name.as_str()]["overrides"] = named.into();
        }
    }
    for (name, limiter) in written["limiters"].as_object().into_iter().flatten() {
        // Written ones replace all of them, so that they are no defaults of single keys.
        if limiter["pause"]["rules"].is_null()
            && let Some(pause) = defaults["limiters"][name]["pause"].as_object_mut()
        {
            pause.insert("rules".to_owned(), json!([{ "status": 429 }, { "status": 503, "named": true }]));
        }
        // They are read into the key, so a limiter does not know them.
        if limiter["key"].as_array().is_some_and(|parts| parts.contains(&CLIENT_IP.into())) {
            defaults["limiters"][name]["ipv4_prefix"] = IPV4_PREFIX.into();
            defaults["limiters"][name]["ipv6_prefix"] = IPV6_PREFIX.into();
        }
    }
    fill(defaults, written)
}

/// Puts what the files of overrides say otherwise than those of another configuration into an effective one, so that the two can be
/// compared.
pub(super) fn with_files(mut effective: Value, config: &Config, other: &Config) -> Value {
    for limiter in &config.limiters {
        let shown = effective["limiters"][limiter.name.as_str()]["overrides"].as_object_mut();
        let Some(shown) = shown.filter(|shown| shown.get(FILE).is_some_and(Value::is_string)) else {
            continue;
        };
        let other = other.limiters.iter().find(|other| other.name == limiter.name);
        let others = other.and_then(|other| Some(&other.partitioned.as_ref()?.overrides));
        let is_new = |partition, limiter: &Limiter| {
            others.and_then(|others| others.get(partition)).is_none_or(|other| other.limits != limiter.limits)
        };
        shown.extend(overrides(limiter, |_, partition, limiter| is_new(partition, limiter)));
    }
    effective
}

/// Returns those overrides of a limiter that are `wanted`, by the values that have them, in their order.
fn overrides(limiter: &Limiter, wanted: impl Fn(&str, Partition, &Limiter) -> bool) -> Map<String, Value> {
    let overrides = limiter.partitioned.iter().flat_map(|partitioned| partitioned.overrides.iter());
    let mut values: Vec<_> = overrides
        .filter_map(|(partition, limiter)| {
            let value = limiter.value().filter(|value| wanted(value, partition, limiter))?;
            // Values that are not shown differ by their partitions.
            let is_hidden = is_masked(&Value::from(&**value));
            let value = if is_hidden { masked_key(&partition.to_string()) } else { value.to_string() };
            Some((value, limiter.limits.iter().map(limit).collect::<Value>()))
        })
        .collect();
    values.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    values.into_iter().collect()
}

/// Puts a written value in the place of a default one, key by key.
fn fill(default: Value, written: Value) -> Value {
    match (default, written) {
        (Value::Object(mut keys), Value::Object(written)) => {
            for (key, value) in written {
                let place = keys.entry(key).or_insert(Value::Null);
                *place = fill(place.take(), value);
            }
            keys.into()
        }
        // The short form of an upstream.
        (Value::Object(mut keys), Value::String(url)) if keys.contains_key("connect_timeout") => {
            keys.insert("url".to_owned(), url.into());
            keys.into()
        }
        // The short forms of a limit and of the access log say nothing that the long ones do not.
        (Value::Object(keys), short @ (Value::String(_) | Value::Bool(true))) if !is_masked(&short) => {
            keys.into()
        }
        (Value::Array(defaults), Value::Array(written)) if defaults.len() == written.len() => {
            defaults.into_iter().zip(written).map(|(default, written)| fill(default, written)).collect()
        }
        (Value::Bool(_), Value::String(off)) if off == OFF => false.into(),
        (Value::Bool(_), written) => written,
        (_, Value::Bool(false)) => OFF.into(),
        (_, written) => written,
    }
}

/// Returns every key that has a default, with the value that is used.
fn defaults(config: &Config) -> Value {
    let named = |limiter: &Arc<Limiter>| (limiter.name.as_str().to_owned(), limiter_keys(limiter));
    json!({
        "listen": config.listen.to_string(),
        "server": server(&config.server),
        "admin": admin(&config.admin),
        "log": log(&config.log),
        "store": store(&config.store),
        "limiters": config.limiters.iter().map(named).collect::<Map<_, _>>(),
        "routes": config.routes.iter().map(route).collect::<Vec<_>>(),
    })
}

fn server(server: &Server) -> Value {
    json!({
        "trusted_proxies": [],
        "errors": server.errors,
        "max_connections": server.max_connections,
        "header_timeout": show_duration(server.header_timeout),
        "idle_timeout": show_duration(server.idle_timeout),
        "write_timeout": show_duration(server.write_timeout),
        "max_header_bytes": show_size(Size(server.max_header_bytes.into())),
        "body_memory": show_size(Size(server.body_memory)),
        "drain_delay": show_duration(server.drain_delay),
        "drain_timeout": show_duration(server.drain_timeout),
    })
}

fn admin(admin: &Admin) -> Value {
    json!({ "listen": admin.listen.to_string() })
}

fn log(log: &Log) -> Value {
    let format = match log.format {
        LogFormat::Json => "json",
        LogFormat::Text => "text",
    };
    let access = match &log.access {
        None => OFF.into(),
        Some(rule) => access(rule),
    };
    json!({ "level": log.level.to_string().to_lowercase(), "format": format, "access": access })
}

fn access(rule: &AccessRule) -> Value {
    let mut keys = json!({ "sample": show_share(Share { ppm: rule.sample_ppm }) });
    if let Some(slow) = rule.slow {
        keys["slow"] = show_duration(slow).into();
    }
    keys
}

fn store(store: &Store) -> Value {
    let Store::Redis(redis) = store else { return "memory".into() };
    let RedisStore { servers, timeout, pool_size, key_prefix, fleet_size, confirm, .. } = &**redis;
    let mut keys = json!({
        "timeout": show_duration(*timeout),
        "pool_size": pool_size,
        "key_prefix": key_prefix,
        "fleet_size": fleet_size,
        "confirm": confirm,
    });
    if let RedisServers::Sentinel(sentinels) = servers {
        keys["sentinel"]["database"] = sentinels.database.into();
    }
    json!({ "redis": keys })
}

fn limiter_keys(limiter: &Limiter) -> Value {
    let queue = limiter.queue.as_ref().map(|queue| {
        json!({
            "timeout": show_duration(queue.timeout),
            "max_waiting": queue.max_waiting,
            "patience": PATIENCE_HEADERS,
            "leave": "auto",
        })
    });
    let mut keys = json!({
        "limits": limiter.limits.iter().map(limit).collect::<Vec<_>>(),
        "scope": match limiter.scope {
            Scope::Overall => "overall",
            Scope::PerReplica => "per_replica",
        },
        "mode": match limiter.mode {
            Mode::Enforce => "enforce",
            Mode::Shadow => "shadow",
        },
        "queue": queue.unwrap_or_else(|| OFF.into()),
        "group": &*limiter.group,
        "guard": show_micros(limiter.guard),
        "on_store_failure": match limiter.on_store_failure {
            OnStoreFailure::Local => "local",
            OnStoreFailure::Reject => "reject",
            OnStoreFailure::Allow => "allow",
        },
        "pause": limiter.pause.as_ref().map_or_else(|| OFF.into(), pause),
        "sync": if limiter.follows_upstream { "headers" } else { OFF },
    });
    if let Some(share) = limiter.share() {
        let classes: Vec<Value> = share.classes.iter().map(class).collect();
        keys["share"] = json!({ "ahead": show_duration(share.ahead), "classes": classes });
    }
    if let Some(partitioned) = &limiter.partitioned {
        keys["max_partitions"] = partitioned.max_partitions.into();
        keys["show_values"] = partitioned.shows_values.into();
    }
    keys
}

fn class(class: &Class) -> Value {
    let part = |ppm| show_share(Share { ppm });
    let ceiling = class.ceiling_ppm.map_or_else(|| show_share(Share::WHOLE), part);
    json!({ "name": &*class.name, "floor": part(class.floor_ppm), "ceiling": ceiling })
}

fn limit(limit: &Limit) -> Value {
    // The label begins with the limit's short form, also of a window of the calendar.
    let per = limit.label.split(' ').next().and_then(|short| short.split('/').nth(1)).unwrap_or_default();
    let mut keys = json!({ "rate": limit.rate.get(), "per": per, "algorithm": limit.algorithm.as_str() });
    match &limit.algorithm {
        Algorithm::SlidingWindow { precision } => keys["precision"] = precision.get().into(),
        Algorithm::TokenBucket { burst } => keys["burst"] = burst.get().into(),
        Algorithm::FixedWindow { windows } => keys["timezone"] = windows.zone.iana_name().into(),
        Algorithm::WarmUp { warm_up, cold } => {
            keys["warm_up"] = show_duration(*warm_up).into();
            keys["cold"] = cold.get().into();
        }
        Algorithm::LeakyBucket => {}
    }
    keys
}

fn pause(pause: &PausePolicy) -> Value {
    let guess = json!({ "first": show_duration(pause.guess_first), "max": show_duration(pause.guess_max) });
    json!({ "max": show_duration(pause.max), "guess": guess })
}

fn route(route: &Route) -> Value {
    let mut keys = json!({
        "name": &*route.name,
        "upstream": upstream(&route.upstream),
        "preserve_host": route.preserve_host,
        "forwarded_headers": route.forwarded_headers,
        "rewrite_links": route.rewrite_links,
        "errors": route.errors,
        "body": { "max": show_size(Size(route.body_bytes_max)) },
        "cost": cost(&route.cost),
        "limit_headers": route.limit_headers.map_or_else(|| OFF.into(), |form| json!(form)),
        "retry": route.retry.as_ref().map_or_else(|| OFF.into(), retry),
        "breaker": route.breaker.map_or_else(|| OFF.into(), breaker),
    });
    if !route.charges.is_empty() {
        let charges = route.limiters.iter().zip(&route.charges);
        let limiter = |((name, _), charge): (&(LimiterName, _), &Charge)| json!({ "name": name.as_str(), "cost": cost(&charge.cost) });
        keys["limiters"] = charges.map(limiter).collect();
    }
    keys
}

fn upstream(upstream: &Upstream) -> Value {
    json!({
        "connect_timeout": show_duration(upstream.timeouts.connect),
        "timeout": show_duration(upstream.timeouts.headers),
        "idle_timeout": show_duration(upstream.timeouts.idle),
        "tunnel_timeout": show_duration(upstream.timeouts.tunnel),
        "http2": upstream.http2,
    })
}

fn cost(cost: &Cost) -> Value {
    match cost {
        Cost::Fixed(cost) => cost.get().into(),
        Cost::Header { default, max, .. } | Cost::Json { default, max, .. } => {
            json!({ "default": default.get(), "max": max.get() })
        }
        Cost::Estimate(estimate) => json!({ "estimate": { "max": estimate.max.get() } }),
    }
}

fn retry(retry: &Retry) -> Value {
    let statuses = retry.on_status.iter().map(|status| Value::from(*status));
    let on: Vec<Value> = retry.on_connect.then(|| "connect".into()).into_iter().chain(statuses).collect();
    let budget = retry.budget_ppm.map_or_else(|| OFF.to_owned(), |ppm| show_share(Share { ppm }));
    json!({
        "attempts": retry.attempts,
        "on": on,
        "max_body": show_size(Size(u64::try_from(retry.body_bytes_max).unwrap_or(u64::MAX))),
        "budget": budget,
    })
}

fn breaker(breaker: Breaker) -> Value {
    json!({ "failures": breaker.failures, "for": show_duration(breaker.lasting) })
}

/// Formats a duration that need not be whole milliseconds.
fn show_micros(duration: Duration) -> String {
    let micros = duration.as_micros();
    if micros.is_multiple_of(1000) {
        show_duration(duration)
    } else {
        let millis = format!("{}.{:03}", micros / 1000, micros % 1000);
        format!("{}ms", millis.trim_end_matches('0'))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::load::parse;
    use super::*;

    const SHORT: &str = "
limiters:
  api: {limits: [5/s, {rate: 3, per: 1mo, algorithm: fixed_window}, {rate: 9, per: 1m, algorithm: token_bucket}]}
  part: {limits: [7/1m], key: [host], queue: {timeout: 5s}, pause: false}
routes:
  - {name: a, match: {path: /a}, upstream: 'http://a', limiters: [api]}
  - {name: b, match: {}, upstream: {url: 'http://b', timeout: 5m}, limiter: part, retry: {attempts: 3}}
";

    #[test]
    fn every_default_is_filled_in() {
        let shown = parse(Path::new("f"), SHORT).unwrap().effective();
        assert_eq!((&shown["listen"], &shown["store"]), (&json!("0.0.0.0:8080"), &json!("memory")));
        assert_eq!(shown["server"]["idle_timeout"], "75s");
        let api = &shown["limiters"]["api"];
        assert_eq!(
            api["limits"][0],
            json!({"rate": 5, "per": "1s", "algorithm": "sliding_window", "precision": 256})
        );
        assert_eq!((&api["limits"][1]["timezone"], &api["limits"][2]["burst"]), (&json!("UTC"), &json!(9)));
        assert_eq!(
            (&api["queue"], &api["pause"]["max"], &api["group"]),
            (&json!("off"), &json!("1d"), &json!("api"))
        );
        let part = &shown["limiters"]["part"];
        assert_eq!(
            (&part["queue"]["max_waiting"], &part["pause"], &part["key"]),
            (&json!(1000), &json!("off"), &json!(["host"]))
        );
        assert_eq!(
            (&shown["routes"][0]["upstream"]["url"], &shown["routes"][0]["cost"]),
            (&json!("http://a"), &json!(1))
        );
        assert_eq!(
            (&shown["routes"][1]["upstream"]["timeout"], &shown["routes"][1]["retry"]["budget"]),
            (&json!("5m"), &json!("20%"))
        );
    }

    #[test]
    fn the_filled_configuration_is_the_same_one() {
        let shown = parse(Path::new("f"), SHORT).unwrap().effective();
        let again =
            parse(Path::new("f"), &shown.to_string()).unwrap_or_else(|error| panic!("{error}\n{shown:#}"));
        assert_eq!(again.effective(), shown);
    }

    /// A configuration with every section.
    const WHOLE: &str = "
admin: {}
log: {access: {slow: 1s}}
server: {}
store: {redis: {sentinel: {nodes: ['redis://localhost'], master: m}}}
limiters:
  all:
    limits:
      - {rate: 1, per: 1s}
      - {rate: 1, per: 250ms, algorithm: token_bucket}
      - {rate: 1, per: 1d, algorithm: fixed_window}
      - {rate: 1, per: 1s, algorithm: warm_up, warm_up: 10s}
    key: [client_ip]
    queue: {timeout: 1s, max_waiting: 5}
    pause: {guess: {}}
    share: {by: route, classes: [{name: one}]}
routes:
  - {name: a, match: {}, upstream: 'http://a', limiter: all, cost: {header: x-cost}, retry: {}, breaker: {}}
  - {name: b, match: {path: /b}, upstream: 'http://b', limiters: [{name: all, cost: {header: x-cost}}]}
";

    /// Returns the values at a place of the reference, such as `limiters.NAME.queue`.
    fn values_at<'a>(shown: &'a Value, place: &str) -> Vec<&'a Value> {
        place.split('.').filter(|step| !step.is_empty()).fold(vec![shown], |values, step| {
            let (key, is_list) = step.strip_suffix("[]").map_or((step, false), |key| (key, true));
            let inside = values.into_iter().flat_map(|value| match key {
                "NAME" => value.as_object().into_iter().flat_map(Map::values).collect(),
                key => vec![&value[key]],
            });
            let inside: Vec<_> = inside.collect();
            if is_list { inside.into_iter().filter_map(Value::as_array).flatten().collect() } else { inside }
        })
    }

    #[test]
    fn every_default_that_the_reference_names_is_shown() {
        let shown = parse(Path::new("f"), WHOLE).unwrap().effective();
        let (mut place, mut missing, mut found) = (String::new(), Vec::new(), 0);
        for line in crate::config::reference().lines() {
            if line.starts_with("##") {
                place = line.split('`').nth(1).unwrap_or_default().to_owned();
            }
            let cells: Vec<&str> = line.split(" | ").collect();
            let Some(key) = cells[0].strip_prefix("| `").and_then(|key| key.strip_suffix('`')) else {
                continue;
            };
            // A default in words is told, and one of a list without elements is nothing.
            if !cells.get(2).is_some_and(|default| default.starts_with('`')) {
                continue;
            }
            let is_there = values_at(&shown, &place).iter().any(|value| !value[key].is_null());
            if is_there { found += 1 } else { missing.push(format!("{place}: {key}")) }
        }
        assert!(missing.is_empty() && found > 40, "{found} are shown, but not {missing:?}");
    }

    #[test]
    fn a_duration_below_a_millisecond_has_no_needless_zeros() {
        assert_eq!(show_micros(Duration::from_micros(2500)), "2.5ms");
        assert_eq!(show_micros(Duration::from_micros(1025)), "1.025ms");
        assert_eq!(show_micros(Duration::from_millis(20)), "20ms");
    }

    #[test]
    fn secrets_stay_masked() {
        let text = format!("{SHORT}    set_headers: {{authorization: s3cret}}\n");
        let text = text
            .replace("  - {name: b", "  - {set_headers: {x-key: s3cret}, name: b")
            .replace("    set_headers: {authorization: s3cret}\n", "");
        let loaded = parse(Path::new("f"), &text).unwrap();
        assert_eq!(loaded.effective()["routes"][1]["set_headers"]["x-key"], "***");
        assert!(!loaded.effective().to_string().contains("s3cret"));
    }
}
