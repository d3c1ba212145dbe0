//! `limiters`: limits, queue, guard and policies.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;

use super::place::At;
use super::server::{NAME_EXPECTED, is_name};
use super::{Check, DAY, MILLISECOND, UNSUPPORTED};
use crate::config::problem::quoted;
use crate::config::schema::forms::{Named, Text};
use crate::config::schema::{self, Form, OffOr};
use crate::config::units::{Per, Quota, show_duration};
use crate::limiter::limit::{
    Algorithm, LIMITS_MAX, Limit, Limiter, LimiterName, OnStoreFailure, PER_MAX, PER_MIN, PRECISION_DEFAULT,
    Permits, QueueLimits, RATE_MAX,
};

/// More instants than this in one window cost more than their exactness is worth.
const PRECISION_MAX: u32 = 65_536;
/// A longer guard would waste quota and hide a broken clock.
const LONGEST_GUARD: Duration = Duration::from_secs(1);
/// Places in a queue unless `max_waiting` says otherwise.
const MAX_WAITING: u32 = 1000;

/// Every valid limiter, in the order of the file.
pub(super) fn limiters(
    check: &mut Check<'_>,
    given: Option<&Named<schema::Limiter>>,
    at: &At<'_>,
) -> Vec<Arc<Limiter>> {
    given
        .into_iter()
        .flat_map(Named::iter)
        .filter_map(|(name, limiter)| one(check, name, limiter, &at.key(name)).map(Arc::new))
        .collect()
}

fn one(check: &mut Check<'_>, name: &str, given: &schema::Limiter, at: &At<'_>) -> Option<Limiter> {
    is_name(check, name, at);
    later_features(check, given, at);
    let limits = limits(check, &given.limits, &at.key("limits"));
    let queue = queue(check, given.queue.as_ref(), &at.key("queue"));
    let limits = limits?;
    let guard = guard(check, given.guard, &limits, &at.key("guard"));
    let on_store_failure = match given.on_store_failure {
        None | Some(schema::OnStoreFailure::Local) => OnStoreFailure::Local,
        Some(schema::OnStoreFailure::Reject) => OnStoreFailure::Reject,
        Some(schema::OnStoreFailure::Allow) => OnStoreFailure::Allow,
    };
    let name = LimiterName::parse(name)?;
    let group = name.as_str().into();
    Some(Limiter { guard: guard?, queue: queue?, group, on_store_failure, ..Limiter::new(name, limits) })
}

/// Checks what a later version will do, and refuses it.
fn later_features(check: &mut Check<'_>, given: &schema::Limiter, at: &At<'_>) {
    if let Some(schema::Scope::PerReplica) = given.scope {
        check.problem(&at.key("scope"), format!("`per_replica` is {UNSUPPORTED}"));
    }
    if let Some(schema::Mode::Shadow) = given.mode {
        check.problem(&at.key("mode"), format!("`shadow` is {UNSUPPORTED}"));
    }
    check.unsupported(given.key.as_ref(), &at.key("key"));
    for (index, part) in given.key.as_deref().unwrap_or_default().iter().enumerate() {
        if !is_key_part(part) {
            let message =
                "expected header:NAME, query:NAME, host, path:N (a segment, from 0), client or client_ip";
            check.problem(&at.key("key").index(index), message);
        }
    }
    check.unsupported(given.max_partitions.as_ref(), &at.key("max_partitions"));
    check.count(given.max_partitions, 100_000, 1..=10_000_000, &at.key("max_partitions"));
    check.unsupported(given.group.as_ref(), &at.key("group"));
    if given.group.as_deref().is_some_and(|group| LimiterName::parse(group).is_none()) {
        check.problem(&at.key("group"), NAME_EXPECTED);
    }
    if let Some(OffOr::On(pause)) = &given.pause {
        check.problem_of_key(&at.key("pause"), UNSUPPORTED);
        self::pause(check, pause, &at.key("pause"));
    }
}

fn pause(check: &mut Check<'_>, given: &schema::Pause, at: &At<'_>) {
    for (index, status) in given.on.as_deref().unwrap_or_default().iter().enumerate() {
        if !matches!(status, 429 | 503) {
            check.problem(&at.key("on").index(index), "must be 429 or 503");
        }
    }
    check.duration(given.max, 5 * super::MINUTE, MILLISECOND..=DAY, &at.key("max"));
    check.duration(given.fallback, Duration::from_secs(1), MILLISECOND..=DAY, &at.key("fallback"));
}

fn is_key_part(part: &str) -> bool {
    match part.split_once(':') {
        None => matches!(part, "host" | "client" | "client_ip"),
        Some(("header", name)) => HeaderName::try_from(name).is_ok(),
        Some(("query", name)) => !name.is_empty(),
        Some(("path", segment)) => segment.parse::<u8>().is_ok(),
        Some(_) => false,
    }
}

fn limits(
    check: &mut Check<'_>,
    given: &[Form<Text<Quota>, schema::Limit>],
    at: &At<'_>,
) -> Option<Vec<Limit>> {
    if !(1..=LIMITS_MAX).contains(&at.length()) {
        check.problem(at, format!("needs 1 to {LIMITS_MAX} limits, such as 900/1m"));
        return None;
    }
    let limits: Vec<Option<Limit>> = given
        .iter()
        .enumerate()
        .map(|(index, given)| match given {
            Form::Short(Text(quota)) => short(check, *quota, &at.index(index)),
            Form::Long(limit) => long(check, limit, &at.index(index)),
        })
        .collect();
    // The label tells the limits of a limiter apart in metrics and headers.
    for (index, limit) in limits.iter().enumerate() {
        let label = limit.as_ref().map(|limit| &limit.label);
        let earlier = limits[..index].iter().any(|other| other.as_ref().map(|other| &other.label) == label);
        if label.is_some() && earlier {
            check.problem(&at.index(index), "this limit is given twice");
        }
    }
    limits.into_iter().collect()
}

fn short(check: &mut Check<'_>, quota: Quota, at: &At<'_>) -> Option<Limit> {
    let rate = rate(check, i64::try_from(quota.rate).unwrap_or(i64::MAX), at);
    let per = window(check, quota.per, at);
    Some(sliding(rate?, per?, PRECISION_DEFAULT))
}

fn long(check: &mut Check<'_>, given: &schema::Limit, at: &At<'_>) -> Option<Limit> {
    let algorithm = given.algorithm.unwrap_or(schema::Algorithm::SlidingWindow);
    let rate = rate(check, given.rate, &at.key("rate"));
    let per = per(check, given.per.0, algorithm, &at.key("per"));
    let precision = check.count(given.precision, PRECISION_DEFAULT, 1..=PRECISION_MAX, &at.key("precision"));
    check.count(given.burst, 1, 1..=RATE_MAX, &at.key("burst"));
    let only_with = |check: &mut Check<'_>, key: &str, needed: schema::Algorithm| {
        if at.key(key).is_given() && algorithm != needed && !at.key("algorithm").is_faulty() {
            let message = format!("only with `algorithm: {}`", algorithm_name(needed));
            check.problem_of_key(&at.key(key), message);
        }
    };
    only_with(check, "precision", schema::Algorithm::SlidingWindow);
    only_with(check, "burst", schema::Algorithm::TokenBucket);
    only_with(check, "timezone", schema::Algorithm::FixedWindow);
    if given.timezone.as_deref().is_some_and(|zone| !is_timezone(zone)) {
        check.problem(&at.key("timezone"), "expected the name of a time zone, such as UTC or Asia/Shanghai");
    }
    if algorithm != schema::Algorithm::SlidingWindow {
        let message = format!("`{}` is {UNSUPPORTED}; use sliding_window", algorithm_name(algorithm));
        check.problem(&at.key("algorithm"), message);
        return None;
    }
    Some(sliding(rate?, per?, precision?))
}

fn sliding(rate: Permits, per: Duration, precision: u32) -> Limit {
    let label = format!("{rate}/{}", show_duration(per)).into();
    let precision = NonZeroU32::new(precision).unwrap_or(NonZeroU32::MIN);
    Limit { rate, per, algorithm: Algorithm::SlidingWindow { precision }, label }
}

fn rate(check: &mut Check<'_>, given: i64, at: &At<'_>) -> Option<Permits> {
    let rate = u64::try_from(given).ok().and_then(Permits::new);
    if rate.is_none() {
        check.problem(at, format!("the rate must be from 1 to {RATE_MAX}"));
    }
    rate
}

fn window(check: &mut Check<'_>, per: Duration, at: &At<'_>) -> Option<Duration> {
    let fits = (PER_MIN..=PER_MAX).contains(&per);
    if !fits {
        let (from, to) = (show_duration(PER_MIN), show_duration(PER_MAX));
        check.problem(at, format!("the window must be from {from} to {to}"));
    }
    fits.then_some(per)
}

/// The window of a long form; `None` for windows of the calendar, which come with `fixed_window`.
fn per(check: &mut Check<'_>, given: Per, algorithm: schema::Algorithm, at: &At<'_>) -> Option<Duration> {
    let fixed = algorithm == schema::Algorithm::FixedWindow;
    match given {
        Per::Week | Per::Month if fixed => None,
        Per::Week | Per::Month => {
            check.problem(at, "`1w` and `1mo` need `algorithm: fixed_window`; otherwise write it in days");
            None
        }
        Per::Span(span) => {
            let span = window(check, span, at)?;
            if fixed && (span > DAY || !DAY.as_millis().is_multiple_of(span.as_millis())) {
                check.problem(at, "with fixed_window it must divide a day, or be 1d, 1w or 1mo");
            }
            Some(span)
        }
    }
}

fn algorithm_name(algorithm: schema::Algorithm) -> &'static str {
    match algorithm {
        schema::Algorithm::SlidingWindow => "sliding_window",
        schema::Algorithm::TokenBucket => "token_bucket",
        schema::Algorithm::LeakyBucket => "leaky_bucket",
        schema::Algorithm::FixedWindow => "fixed_window",
    }
}

fn is_timezone(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_+-/".contains(&byte))
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
    at: &At<'_>,
) -> Option<Duration> {
    let default = Limiter::default_guard(limits);
    let shortest = limits.iter().min_by_key(|limit| limit.per)?;
    let guard = check.duration(given, default, MILLISECOND..=LONGEST_GUARD, at)?;
    if given.is_some() && guard > shortest.per {
        let window = quoted(&shortest.label);
        check.problem(at, format!("must not be longer than the window of {window}"));
        return None;
    }
    Some(guard)
}
