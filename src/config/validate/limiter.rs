//! `limiters`: who shares them, by what they are parted, queue, guard and policies.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;

use super::limit::limits;
use super::place::At;
use super::server::{NAME_EXPECTED, is_name};
use super::{Check, DAY, MILLISECOND};
use crate::config::model::KeyPart;
use crate::config::problem::quoted;
use crate::config::schema::forms::{Named, Text};
use crate::config::schema::{self, OffOr};
use crate::config::units::show_duration;
use crate::limiter::model::limit::{
    Limit, Limiter, LimiterName, Mode, OnStoreFailure, Partitioned, PausePolicy, QueueLimits, Scope,
};

/// A longer guard would waste quota and hide a broken clock.
const LONGEST_GUARD: Duration = Duration::from_secs(1);
/// Places in a queue unless `max_waiting` says otherwise.
const MAX_WAITING: u32 = 1000;
/// Partitions of a limiter unless `max_partitions` says otherwise.
const MAX_PARTITIONS: u32 = 100_000;
/// The most parts of a key: each request looks at all of them.
const KEY_PARTS_MAX: usize = 16;

/// A valid limiter, and what its partitions are made of: nothing without a `key`.
pub(super) type Keyed = (Arc<Limiter>, Arc<[KeyPart]>);

/// Every valid limiter, in the order of the file.
pub(super) fn limiters(
    check: &mut Check<'_>,
    given: Option<&Named<schema::Limiter>>,
    has_clients: bool,
    at: &At<'_>,
) -> Vec<Keyed> {
    given
        .into_iter()
        .flat_map(Named::iter)
        .filter_map(|(name, limiter)| one(check, name, limiter, has_clients, &at.key(name)))
        .collect()
}

fn one(
    check: &mut Check<'_>,
    name: &str,
    given: &schema::Limiter,
    has_clients: bool,
    at: &At<'_>,
) -> Option<Keyed> {
    is_name(check, name, at);
    let limits = limits(check, &given.limits, &at.key("limits"));
    let key = key(check, given.key.as_deref(), has_clients, &at.key("key"));
    let partitioned = partitioned(check, given, at);
    let group = group(check, given.group.as_deref().unwrap_or(name), &at.key("group"));
    let queue = queue(check, given.queue.as_ref(), &at.key("queue"));
    let pause = pause(check, given.pause.as_ref(), &at.key("pause"));
    let follows_upstream = matches!(given.sync, Some(OffOr::On(schema::Sync::Headers)));
    let limits = limits?;
    let guard = guard(check, given.guard, &limits, at);
    let on_store_failure = match given.on_store_failure {
        None | Some(schema::OnStoreFailure::Local) => OnStoreFailure::Local,
        Some(schema::OnStoreFailure::Reject) => OnStoreFailure::Reject,
        Some(schema::OnStoreFailure::Allow) => OnStoreFailure::Allow,
    };
    let scope = match given.scope {
        None | Some(schema::Scope::Overall) => Scope::Overall,
        Some(schema::Scope::PerReplica) => Scope::PerReplica,
    };
    let mode = match given.mode {
        None | Some(schema::Mode::Enforce) => Mode::Enforce,
        Some(schema::Mode::Shadow) => Mode::Shadow,
    };
    let name = LimiterName::parse(name)?;
    let (guard, queue, group, partitioned) = (guard?, queue?, group?, partitioned?);
    let pause = pause?;
    let limiter = Limiter {
        name,
        limits,
        scope,
        mode,
        partitioned,
        guard,
        queue,
        group,
        on_store_failure,
        pause,
        follows_upstream,
    };
    Some((Arc::new(limiter), key?))
}

fn key(
    check: &mut Check<'_>,
    given: Option<&[String]>,
    has_clients: bool,
    at: &At<'_>,
) -> Option<Arc<[KeyPart]>> {
    let Some(given) = given else { return Some(Arc::new([])) };
    if !(1..=KEY_PARTS_MAX).contains(&at.length()) {
        check.problem(at, format!("needs 1 to {KEY_PARTS_MAX} parts, such as header:x-tenant"));
        return None;
    }
    let mut seen: Vec<KeyPart> = Vec::new();
    let parts: Vec<Option<KeyPart>> = given
        .iter()
        .enumerate()
        .map(|(index, part)| {
            let at = at.index(index);
            let fault = match key_part(part) {
                Some(part) if seen.contains(&part) => "this part is given twice",
                Some(KeyPart::Client) if !has_clients => {
                    "`client` needs `clients` at the top of the file, which tell who calls"
                }
                Some(part) => {
                    seen.push(part.clone());
                    return Some(part);
                }
                None => {
                    "expected header:NAME, query:NAME, host, path:N (a segment, from 0), client_ip or client"
                }
            };
            check.problem(&at, fault);
            None
        })
        .collect();
    parts.into_iter().collect()
}

fn key_part(part: &str) -> Option<KeyPart> {
    match part.split_once(':') {
        None if part == "host" => Some(KeyPart::Host),
        None if part == "client_ip" => Some(KeyPart::ClientIp),
        None if part == "client" => Some(KeyPart::Client),
        Some(("header", name)) => HeaderName::try_from(name).ok().map(KeyPart::Header),
        Some(("query", name)) if !name.is_empty() => Some(KeyPart::Query(name.into())),
        // `+5` is a number for Rust.
        Some(("path", segment)) if segment.bytes().all(|byte| byte.is_ascii_digit()) => {
            segment.parse().ok().map(KeyPart::Path)
        }
        _ => None,
    }
}

/// The outer `None` is a problem, the inner one no key.
fn partitioned(check: &mut Check<'_>, given: &schema::Limiter, at: &At<'_>) -> Option<Option<Partitioned>> {
    let at_max = at.key("max_partitions");
    let max_partitions = check.count(given.max_partitions, MAX_PARTITIONS, 1..=10_000_000, &at_max)?;
    let has_key = at.key("key").is_given();
    if given.max_partitions.is_some() && !has_key {
        check.problem_of_key(&at_max, "only with `key`");
        return None;
    }
    Some(has_key.then_some(Partitioned { max_partitions }))
}

fn group(check: &mut Check<'_>, group: &str, at: &At<'_>) -> Option<Arc<str>> {
    let fits = LimiterName::parse(group).is_some();
    if at.is_given() && !fits {
        check.problem(at, NAME_EXPECTED);
    }
    fits.then(|| group.into())
}

/// The outer `None` is a problem, the inner one no pause.
fn pause(
    check: &mut Check<'_>,
    given: Option<&OffOr<schema::Pause>>,
    at: &At<'_>,
) -> Option<Option<PausePolicy>> {
    let usual = PausePolicy::default();
    let given = match given {
        None => return Some(Some(usual)),
        Some(OffOr::Off) => return Some(None),
        Some(OffOr::On(given)) => given,
    };
    let codes = given.on.as_deref().unwrap_or_default().iter().enumerate();
    let codes: Option<Vec<u16>> = codes
        .map(|(index, status)| {
            let code = u16::try_from(*status).ok().filter(|code| usual.on.contains(code));
            if code.is_none() {
                check.problem(&at.key("on").index(index), "must be 429 or 503");
            }
            code
        })
        .collect();
    if given.on.is_some() && at.key("on").length() == 0 {
        check.problem(&at.key("on"), "names nothing to pause on; `pause: off` does that");
        return None;
    }
    let max = check.duration(given.max, usual.max, MILLISECOND..=DAY, &at.key("max"));
    let fallback = check.duration(given.fallback, usual.fallback, MILLISECOND..=DAY, &at.key("fallback"));
    let (max, fallback) = (max?, fallback?);
    if fallback > max {
        check.problem(&at.key("fallback"), "must not be longer than `max`");
        return None;
    }
    Some(Some(PausePolicy { on: if given.on.is_some() { codes? } else { usual.on }, max, fallback }))
}

/// The outer `None` is a problem, the inner one no queue.
fn queue(
    check: &mut Check<'_>,
    given: Option<&OffOr<schema::Queue>>,
    at: &At<'_>,
) -> Option<Option<QueueLimits>> {
    let given = match given {
        None | Some(OffOr::Off) => return Some(None),
        Some(OffOr::On(given)) => given,
    };
    let timeout = check.duration(Some(given.timeout), MILLISECOND, MILLISECOND..=DAY, &at.key("timeout"));
    let max_waiting = check.count(given.max_waiting, MAX_WAITING, 1..=1_000_000, &at.key("max_waiting"));
    Some(Some(QueueLimits { timeout: timeout?, max_waiting: max_waiting? }))
}

fn guard(
    check: &mut Check<'_>,
    given: Option<Text<Duration>>,
    limits: &[Limit],
    at_limiter: &At<'_>,
) -> Option<Duration> {
    let at = at_limiter.key("guard");
    let default = Limiter::default_guard(limits);
    let shortest = limits.iter().min_by_key(|limit| limit.per)?;
    let guard = check.duration(given, default, MILLISECOND..=LONGEST_GUARD, &at)?;
    if given.is_some() && guard > shortest.per {
        let window = quoted(&shortest.label);
        check.problem(&at, format!("must not be longer than the window of {window}"));
        return None;
    }
    // A fixed window loses the guard at its end: what is left must be worth the name.
    let too_short = limits.iter().enumerate().find(|(_, limit)| {
        limit.algorithm.calendar().is_some() && limit.window().is_some_and(|window| window < 2 * guard)
    });
    let Some((index, limit)) = too_short else { return Some(guard) };
    let (window, guard) = (quoted(&limit.label), show_duration(guard));
    if given.is_some() {
        check.problem(&at, format!("{guard} is more than half of the fixed window of {window}"));
    } else {
        let message =
            format!("a fixed window must be at least twice the guard, here {guard}: {window} is shorter");
        check.problem(&at_limiter.key("limits").index(index), message);
    }
    None
}
