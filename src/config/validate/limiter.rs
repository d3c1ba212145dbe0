//! `limiters`: scope, key, queue, guard and policies of each.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;

use super::check::{Check, DAY, MILLISECOND, NAME_EXPECTED};
use super::headers::named_header;
use super::key::key_parts;
use super::limit::{limits, misfit};
use super::overrides::{Rules, overrides};
use super::pause::pause;
use super::place::{Given, all, key};
use super::share::{By, share};
use crate::config::model::{KeyPart, Leave, PATIENCE_HEADERS, Patience, PauseRule};
use crate::config::problem::quoted;
use crate::config::schema::forms::{Named, Text};
use crate::config::schema::{self, OffOr};
use crate::config::units::{Share, show_duration};
use crate::limiter::model::limit::{
    Limit, Limiter, LimiterName, Mode, OnStoreFailure, Order, Partitioned, QueueLimits, Scope,
};

/// The longest guard: a longer one would waste quota and hide a wrong clock.
const GUARD_MAX: Duration = Duration::from_secs(1);
/// The default of `max_waiting`.
const MAX_WAITING: u32 = 1000;
/// The default of `max_partitions`.
const MAX_PARTITIONS: u32 = 100_000;
/// The most headers of `patience`.
const PATIENCE_HEADERS_MAX: usize = 16;

/// A valid limiter, and what it reads in a request.
pub(super) type Keyed = (Arc<Limiter>, Reading);

/// The parts of a request that a limiter reads.
pub(super) struct Reading {
    /// The parts of the key; none without a `key`.
    pub(super) key: Arc<[KeyPart]>,
    /// The patience of callers; `None` without a queue.
    pub(super) patience: Option<Patience>,
    /// Which responses of its upstream pause it; none if it is not paused.
    pub(super) pause_rules: Arc<[PauseRule]>,
    /// The parts that name the callers that share it.
    pub(super) flow: Option<Arc<[By]>>,
}

/// Checks every limiter and returns the valid ones, in the order of the file. `clients` are the names of the clients, if there are any.
pub(super) fn limiters(
    check: &mut Check<'_>,
    given: &Given<'_, Option<Named<schema::Limiter>>>,
    clients: Option<&HashSet<&str>>,
) -> Vec<Keyed> {
    let limiters = given.entries();
    limiters.filter_map(|(name, limiter)| one(check, name, &limiter, clients)).collect()
}

fn one(
    check: &mut Check<'_>,
    name: &str,
    limiter: &Given<'_, schema::Limiter>,
    clients: Option<&HashSet<&str>>,
) -> Option<Keyed> {
    check.name(name, &limiter.at);
    let limits = limits(check, &key!(limiter.limits));
    let key = key_parts(check, limiter, clients.is_some());
    let partitioned = partitioned(check, limiter, key.as_deref());
    let group = group(check, &key!(limiter.group), name);
    let patience = patience(check, &key!(limiter.queue));
    let queue = queue(check, &key!(limiter.queue));
    let of_share = (limits.as_deref(), queue.as_ref().and_then(Option::as_ref));
    let share = share(check, limiter, of_share, clients);
    let pause = pause(check, &key!(limiter.pause));
    let guard = limits.as_ref().and_then(|limits| guard(check, limiter, limits));
    let bounds = share.as_ref().and_then(Option::as_ref).map(|(share, _)| share.bounds());
    let rules = Rules { key: key.as_deref(), guard, bounds: &bounds.unwrap_or_default(), clients };
    let overrides = overrides(check, limiter, &rules);
    let (written, (pause, pause_rules)) = (limiter.value, pause?);
    let (share, flow) = share?.unzip();
    let limiter = Limiter {
        name: LimiterName::parse(name)?,
        limits: limits?,
        scope: match written.scope {
            None | Some(schema::Scope::Overall) => Scope::Overall,
            Some(schema::Scope::PerReplica) => Scope::PerReplica,
        },
        mode: match written.mode {
            None | Some(schema::Mode::Enforce) => Mode::Enforce,
            Some(schema::Mode::Shadow) => Mode::Shadow,
        },
        partitioned: partitioned?,
        guard: guard?,
        queue: queue?,
        order: share.map_or(Order::Booked, Order::Shared),
        group: group?,
        on_store_failure: match written.on_store_failure {
            None | Some(schema::OnStoreFailure::Local) => OnStoreFailure::Local,
            Some(schema::OnStoreFailure::Reject) => OnStoreFailure::Reject,
            Some(schema::OnStoreFailure::Allow) => OnStoreFailure::Allow,
        },
        pause,
        follows_upstream: matches!(written.sync, Some(OffOr::On(schema::Sync::Headers))),
    };
    let reading = Reading { key: key?, patience: patience?, pause_rules, flow };
    Some((Arc::new(limiter.overridden(overrides?)), reading))
}

/// Checks the number of partitions. The outer `None` is a problem, the inner one no key.
fn partitioned(
    check: &mut Check<'_>,
    limiter: &Given<'_, schema::Limiter>,
    parts: Option<&[KeyPart]>,
) -> Option<Option<Partitioned>> {
    let given = key!(limiter.max_partitions);
    let max_partitions = check.count(&given, MAX_PARTITIONS, 1..=10_000_000)?;
    let has_key = key!(limiter.key).at.is_given();
    let (show, shows_values) = (key!(limiter.show_values), limiter.value.show_values == Some(true));
    for at in [given.value.is_some().then_some(&given.at), show.value.is_some().then_some(&show.at)] {
        if let Some(at) = at.filter(|_| !has_key) {
            return check.refuse_key(at, "only with `key`");
        }
    }
    if shows_values && parts.into_iter().flatten().any(KeyPart::is_credential) {
        return check.refuse(&show.at, "must be false, because `key` has a credential");
    }
    Some(has_key.then(|| Partitioned { shows_values, ..Partitioned::new(max_partitions) }))
}

fn group(check: &mut Check<'_>, given: &Given<'_, Option<String>>, limiter: &str) -> Option<Arc<str>> {
    let group = given.value.as_deref().unwrap_or(limiter);
    let fits = LimiterName::parse(group).is_some();
    if given.at.is_given() && !fits {
        check.problem(&given.at, NAME_EXPECTED);
    }
    fits.then(|| group.into())
}

/// Checks the queue. The outer `None` is a problem, the inner one no queue.
fn queue(
    check: &mut Check<'_>,
    given: &Given<'_, Option<OffOr<schema::Queue>>>,
) -> Option<Option<QueueLimits>> {
    let Some(queue) = given.on() else { return Some(None) };
    let timeout = check.within(&key!(queue.timeout), MILLISECOND..=DAY);
    let max_waiting = check.count(&key!(queue.max_waiting), MAX_WAITING, 1..=1_000_000);
    Some(Some(QueueLimits { timeout: timeout?, max_waiting: max_waiting? }))
}

/// Checks the patience of callers. The outer `None` is a problem, the inner one no queue.
fn patience(
    check: &mut Check<'_>,
    given: &Given<'_, Option<OffOr<schema::Queue>>>,
) -> Option<Option<Patience>> {
    let Some(queue) = given.on() else { return Some(None) };
    let headers = patience_headers(check, &key!(queue.patience));
    let leave = leave(check, &key!(queue.leave));
    let headers = headers?;
    let is_usual = headers.iter().all(|header| PATIENCE_HEADERS.contains(&header.as_str()));
    Some(Some(Patience { headers, leave: leave?, is_usual }))
}

fn patience_headers(
    check: &mut Check<'_>,
    given: &Given<'_, Option<Vec<String>>>,
) -> Option<Vec<HeaderName>> {
    if given.value.is_none() {
        return Some(PATIENCE_HEADERS.map(HeaderName::from_static).to_vec());
    }
    if given.at.length() > PATIENCE_HEADERS_MAX {
        return check.refuse(&given.at, format!("names more than {PATIENCE_HEADERS_MAX} headers"));
    }
    all(given.items().map(|name| named_header(check, &name, "x-request-timeout")))
}

fn leave(check: &mut Check<'_>, given: &Given<'_, Option<Text<Leave>>>) -> Option<Leave> {
    match given.value.map(|Text(leave)| leave).unwrap_or_default() {
        Leave::Share { ppm } if ppm >= Share::WHOLE.ppm => check.refuse(&given.at, "must be less than 100%"),
        Leave::Time(time) if time > DAY => check.refuse(&given.at, "must be from 0s to 1d"),
        leave => Some(leave),
    }
}

fn guard(check: &mut Check<'_>, limiter: &Given<'_, schema::Limiter>, limits: &[Limit]) -> Option<Duration> {
    let given = key!(limiter.guard);
    let shortest = limits.iter().min_by_key(|limit| limit.per)?;
    let guard = check.bounded(&given, Limiter::default_guard(limits), MILLISECOND..=GUARD_MAX)?;
    if given.value.is_some() && guard > shortest.per {
        let window = quoted(&shortest.label);
        return check.refuse(&given.at, format!("must not be longer than the window of {window}"));
    }
    let misfits = limits.iter().enumerate().map(|(index, limit)| (index, limit, misfit(limit, guard)));
    let first = misfits.filter_map(|(index, limit, fault)| Some((index, limit, fault?))).next();
    let Some((index, limit, fault)) = first else { return Some(guard) };
    if given.value.is_some() {
        let (window, guard) = (quoted(&limit.label), show_duration(guard));
        return check.refuse(&given.at, format!("{guard} is more than half of the fixed window of {window}"));
    }
    check.refuse(&key!(limiter.limits).at.index(index), fault)
}
