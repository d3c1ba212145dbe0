//! Tells which limiters a response pauses, by their rules: from its head where that is enough, otherwise from the begin of its body while
//! that goes on to the client.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use tokio::time::Instant;

use crate::config::model::PauseRule;
use crate::limiter::model::LimiterName;
use crate::limiter::{AskedPause, Partition, Receipt, UpstreamSignal};
use crate::proxy::messages::coding;
use crate::proxy::messages::json::value_at;
use crate::proxy::route::table::Route;

/// The most bytes of a body that are looked at.
const LOOKED_AT_MAX: usize = 64 * 1024;

/// The decision of a response's head about pauses.
#[derive(Default)]
pub(crate) struct PauseDecision {
    /// The limiters that it pauses.
    pub(crate) pauses: Vec<(LimiterName, AskedPause)>,
    /// The limiters of which the body decides.
    pub(crate) by_body: Vec<ByBody>,
}

/// The rules of a limiter of which the body of a response decides: the first one that matches, or has no condition on it.
pub(crate) struct ByBody {
    limiter: LimiterName,
    rules: Vec<PauseRule>,
}

/// Returns whether any rule of a route is about a status.
pub(crate) fn concerns(route: &Route, status: StatusCode) -> bool {
    route.rule.pause_rules.iter().any(|rules| rules.iter().any(|rule| rule.status == status.as_u16()))
}

/// Holds the head of a response against a route's rules. `wait` is how long the upstream asks to be left alone.
pub(crate) fn decide(
    route: &Route,
    status: StatusCode,
    headers: &HeaderMap,
    wait: Option<Duration>,
) -> PauseDecision {
    let mut decision = PauseDecision::default();
    for ((name, _), rules) in route.rule.limiters.iter().zip(&route.rule.pause_rules) {
        let mut matching = rules.iter().filter(|rule| matches_head(rule, status, headers, wait));
        let Some(first) = matching.next() else { continue };
        if first.json.is_empty() {
            decision.pauses.push((name.clone(), pause(first, wait)));
            continue;
        }
        let mut rules = vec![first.clone()];
        for rule in matching {
            rules.push(rule.clone());
            if rule.json.is_empty() {
                break;
            }
        }
        decision.by_body.push(ByBody { limiter: name.clone(), rules });
    }
    decision
}

fn matches_head(rule: &PauseRule, status: StatusCode, headers: &HeaderMap, wait: Option<Duration>) -> bool {
    let has = |(name, value): &(_, _)| headers.get_all(name).iter().any(|line| line == value);
    rule.status == status.as_u16() && (!rule.named || wait.is_some()) && rule.headers.iter().all(has)
}

fn pause(rule: &PauseRule, wait: Option<Duration>) -> AskedPause {
    AskedPause { status: rule.status, wait: rule.lasting.or(wait) }
}

/// A response whose body decides about pauses. Decides when enough of the body has come, or at the latest when it is dropped.
pub(crate) struct BodyRules {
    pub(crate) route: Arc<Route>,
    pub(crate) partitions: Vec<Option<Partition>>,
    pub(crate) receipt: Receipt,
    pub(crate) by_body: Vec<ByBody>,
    /// How long the upstream asks to be left alone, and since when.
    pub(crate) wait: Option<Duration>,
    pub(crate) since: Instant,
    /// The first report of a pause, from which all pauses last.
    pub(crate) reported: Option<Instant>,
    /// True if it was counted as a rejection, because its status alone says so, or the begin of its body.
    pub(crate) is_rejection: bool,
    /// The name of the body's content coding; empty without one.
    pub(crate) coding: Box<str>,
    /// The begin of the body.
    pub(crate) begin: Vec<u8>,
}

impl BodyRules {
    /// Looks at a further piece of the body. Returns whether it wants to see more.
    pub(crate) fn see(&mut self, piece: &Bytes) -> bool {
        let room = LOOKED_AT_MAX - self.begin.len();
        self.begin.extend_from_slice(&piece[..piece.len().min(room)]);
        piece.len() < room
    }

    /// Returns what the body decides.
    fn decide(&self) -> Vec<(LimiterName, AskedPause)> {
        let document = coding::begin(&self.coding, &self.begin, LOOKED_AT_MAX);
        let wait = self.wait.map(|wait| wait.saturating_sub(self.since.elapsed()));
        let past = self.reported.map_or(Duration::ZERO, |reported| reported.elapsed());
        let says = |rule: &&PauseRule| {
            rule.json.iter().all(|(path, value)| value_at(&document, path).as_ref() == Some(value))
        };
        let decided = self.by_body.iter().filter_map(|ByBody { limiter, rules }| {
            let rule = rules.iter().find(says)?;
            let AskedPause { status, wait } = pause(rule, wait);
            let wait = if rule.lasting.is_some() { wait.map(|wait| wait.saturating_sub(past)) } else { wait };
            Some((limiter.clone(), AskedPause { status, wait }))
        });
        decided.collect()
    }

    /// Reports what the body decides, as far as it has come. More of it may decide more.
    pub(crate) fn report(&mut self) {
        let pauses = self.decide();
        let (Some((_, asked)), Some(limiter_set)) = (pauses.first(), &self.route.limiter_set) else { return };
        self.reported.get_or_insert_with(Instant::now);
        let is_first = !std::mem::replace(&mut self.is_rejection, true);
        if is_first {
            self.route.metrics.upstream_rejected(asked.status);
        }
        let signal = UpstreamSignal { is_rejection: is_first, pauses, windows: Vec::new() };
        limiter_set.report_upstream(&self.partitions, &self.receipt, signal);
    }

    /// Ends without another report.
    pub(crate) fn end(mut self) {
        self.by_body.clear();
    }
}

impl Drop for BodyRules {
    fn drop(&mut self) {
        self.report();
    }
}
