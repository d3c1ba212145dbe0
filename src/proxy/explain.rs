//! Explains what would become of a request: by the router and the plan that all requests go through, up to the permit, which is not
//! taken. Sends nothing and counts nothing.

use std::iter::repeat;
use std::net::IpAddr;
use std::sync::Arc;

use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::error::ProxyError;
use super::forward::outgoing::{received, rewrite};
use super::forward::plan::{Notes, Plan};
use super::listen::client::Sender;
use super::messages::body_facts::BodyFacts;
use super::messages::coding;
use super::messages::end_to_end::EndToEnd;
use super::messages::header_flags::HeaderFlags;
use super::messages::response;
use super::route::partition::Facts;
use super::route::router::{Mismatch, Target};
use super::route::table::{Route, Table};
use crate::clock::millis;
use crate::config::model::{HostMatch, KeyPart, Match, PathMatch, Route as Rule, is_credential};
use crate::limiter::Partition;
use crate::limiter::model::{Limiter, LimiterName};

/// The most routes whose mismatch is told.
const ROUTES_MAX: usize = 100;
const HIDDEN: &str = "***";

/// The explanation of a request.
pub struct Explanation {
    /// The fate of the request as JSON, secrets masked.
    pub document: Value,
    /// The limiters that it would take permits from, each with the request's partition, in the order of the document.
    pub limiters: Vec<(LimiterName, Option<Partition>)>,
}

/// The decisions as they were made.
struct Noted<'a> {
    table: &'a Table,
    address: IpAddr,
    name: Option<Arc<str>>,
    route: Option<Arc<Route>>,
    others: Vec<Value>,
    /// The values of each limiter's key.
    keys: Vec<Vec<Option<String>>>,
}

impl Notes for Noted<'_> {
    fn address(&mut self, address: IpAddr) {
        self.address = address;
    }

    fn target(&mut self, target: Target<'_>) {
        let mut taken: Option<&str> = None;
        for (rule, mismatch) in self.table.mismatches(target).take(ROUTES_MAX) {
            let because = match (mismatch, taken) {
                (Some(mismatch), _) => because(&rule.matches, mismatch),
                (None, Some(first)) => format!("it matches, but {first} comes first"),
                (None, None) => {
                    taken = Some(&rule.name);
                    continue;
                }
            };
            self.others.push(json!({ "route": &*rule.name, "because": because }));
        }
    }

    fn named(&mut self, name: Option<&Arc<str>>) {
        self.name = name.cloned();
    }

    fn routed(&mut self, route: &Arc<Route>) {
        self.route = Some(Arc::clone(route));
    }

    fn keys(&mut self, facts: Facts<'_>, rule: &Rule) {
        self.keys = rule.limiters.iter().map(|(_, key)| facts.texts(key)).collect();
    }
}

/// Explains a request from an address, by the routes of a table. The version of the request is HTTP/1.1. Without its `body`, what depends
/// on that is told as of a request that has none.
pub(super) fn explain(table: &Table, request: Request<()>, body: Option<&[u8]>, peer: IpAddr) -> Explanation {
    let sender = Sender { peer, secure: table.tls().is_some(), names: &[] };
    let flags = HeaderFlags::of(request.headers());
    let mut noted =
        Noted { table, address: peer, name: None, route: None, others: Vec::new(), keys: Vec::new() };
    let body = match body {
        None => BodyFacts::unread(),
        Some(body) => {
            let coding = coding::of_request(&EndToEnd::new(request.headers(), flags, false));
            BodyFacts::of(body, &coding, u64::MAX, table.body_paths())
        }
    };
    let made = Plan::make(table, sender, &request, (flags, Instant::now(), &body), &mut noted);
    let (plan, refused) = match made {
        Ok(plan) => (Some(plan), None),
        Err(error) => (None, Some(error)),
    };
    // An unknown caller learns nothing of the routes, and neither does its explanation.
    let others = if matches!(refused, Some(ProxyError::UnknownClient)) { Vec::new() } else { noted.others };
    let mut document = json!({
        "method": request.method().as_str(),
        "path": request.uri().path(),
        "client": { "address": noted.address.to_string(), "name": noted.name.as_deref() },
        "route": noted.route.as_ref().map(|route| &*route.rule.name),
        "refused": refused.as_ref().map(|error| {
            let (status, code, detail) = response::outline(error);
            json!({ "status": status, "error": code, "detail": detail })
        }),
        "unknown": body.need().map(|_| "the body, on which this depends"),
        "upstream": null,
        "limiters": [],
        "breaker": null,
        "wait_max_ms": null,
        "others": others,
    });
    let mut limiters = Vec::new();
    if let Some((plan, target)) = plan {
        document["limiters"] = plan_limiters(&plan, &noted.keys);
        let names = plan.route.rule.limiters.iter().map(|(name, _)| name.clone());
        let partitions = plan.partitions.iter().copied().chain(repeat(None));
        limiters = names.zip(partitions).collect();
        document["wait_max_ms"] = millis(plan.wait_left(std::time::Duration::ZERO)).into();
        document["wait_bounded_by"] = plan.wait_told().into();
        document["breaker"] = plan.route.breaker.as_ref().map(|breaker| breaker.view()).into();
        document["upstream"] = upstream(&plan, target, request, sender);
    }
    Explanation { document, limiters }
}

/// Returns the request as it would go upstream.
fn upstream(plan: &Plan, target: PathAndQuery, request: Request<()>, sender: Sender<'_>) -> Value {
    let Route { rule, upstream, .. } = &*plan.route;
    let before = request.headers().clone();
    let mut head = received(plan, target, request.into_parts().0);
    rewrite(&mut head, plan, sender);
    let settings = upstream.settings();
    let scheme = if settings.tls { "https" } else { "http" };
    let removed: Vec<&str> =
        before.keys().filter(|name| !head.headers().contains_key(*name)).map(HeaderName::as_str).collect();
    json!({
        "url": format!("{scheme}://{}{}", settings.authority, head.uri()),
        "headers": shown(head.headers()),
        "set": rule.set_headers.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
        "removed": removed,
    })
}

/// Returns headers with their values; credentials, and all that a route sets, are hidden.
fn shown(headers: &HeaderMap) -> Value {
    let text = |name: &HeaderName, value: &HeaderValue| {
        let is_hidden = value.is_sensitive() || is_credential(name);
        if is_hidden { HIDDEN.into() } else { String::from_utf8_lossy(value.as_bytes()).into_owned() }
    };
    let lines = headers.keys().map(|name| {
        let values: Vec<String> = headers.get_all(name).iter().map(|value| text(name, value)).collect();
        (name.as_str().to_owned(), Value::from(values.join(", ")))
    });
    lines.collect::<Map<_, _>>().into()
}

/// Returns the limiters that a request would take permits from.
fn plan_limiters(plan: &Plan, keys: &[Vec<Option<String>>]) -> Value {
    let Some(set) = &plan.route.limiter_set else { return json!([]) };
    let rules = plan.route.rule.limiters.iter();
    let all = rules.clone().filter_map(|(name, _)| set.limiter(name, &plan.partitions));
    let without_queue = all.filter(|limiter| !limiter.is_shadow() && limiter.queue.is_none());
    let without_queue = without_queue.map(|limiter| limiter.name.clone()).next();
    let limiters = rules.enumerate().filter_map(|(place, (name, key))| {
        let limiter = set.limiter(name, &plan.partitions)?;
        let parts = key.iter().map(KeyPart::to_string);
        let values = keys.get(place).cloned().unwrap_or_default();
        let partition: Map<_, _> = parts.zip(values.into_iter().map(Value::from)).collect();
        let mut shown = shown_limiter(&limiter, plan.demand.costs.at(place), partition);
        if limiter.queue.is_some() {
            shown["queue"]["unused"] = why_unused(&limiter, without_queue.as_ref()).into();
        }
        Some(shown)
    });
    limiters.collect()
}

/// Says why no request waits in the queue of a limiter, if none does. A limiter of the route without a queue lets nothing wait for the
/// others either.
fn why_unused(limiter: &Limiter, without_queue: Option<&LimiterName>) -> Option<String> {
    if limiter.is_shadow() {
        return Some("it only counts".to_owned());
    }
    without_queue.map(|name| format!("{name} has no queue"))
}

fn shown_limiter(limiter: &Limiter, cost: u64, partition: Map<String, Value>) -> Value {
    let queue = limiter.queue.as_ref();
    json!({
        "limiter": limiter.name.as_str(),
        "limits": limiter.limits.iter().map(|limit| &*limit.label).collect::<Vec<_>>(),
        "override": limiter.value(),
        "partition": if partition.is_empty() { Value::Null } else { partition.into() },
        "cost": cost,
        "queue": queue.map(|queue| {
            json!({ "timeout_ms": millis(queue.timeout), "max_waiting": queue.max_waiting })
        }),
    })
}

/// Says why a match does not hold. The values of headers may be credentials.
fn because(rule: &Match, mismatch: Mismatch<'_>) -> String {
    match mismatch {
        Mismatch::Path => match &rule.path {
            PathMatch::Any => "its path differs".to_owned(),
            PathMatch::Prefix(prefix) => format!("the path does not begin with {prefix}"),
            PathMatch::Exact(path) => format!("the path is not {path}"),
            PathMatch::Pattern(_) => "the path does not match its path_regex".to_owned(),
        },
        Mismatch::Host => match &rule.host {
            Some(HostMatch::Suffix(suffix)) => {
                format!("the host is not below {}", suffix.trim_start_matches('.'))
            }
            Some(HostMatch::Exact(host)) => format!("the host is not {host}"),
            None => "its host differs".to_owned(),
        },
        Mismatch::Method => {
            let methods: Vec<&str> = rule.methods.iter().map(http::Method::as_str).collect();
            format!("the method is not {}", methods.join(" or "))
        }
        Mismatch::Header(name) => format!("the header {name} is missing, or has another value"),
        Mismatch::Json(path) => format!("the JSON body has no {path}, or another value there"),
        Mismatch::Unread(_) => "the body is not known".to_owned(),
    }
}
