//! Decides everything about a request before a permit is taken: caller, route, target, cost, partitions.
//!
//! Opens nothing and takes nothing.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::uri::{Authority, PathAndQuery};
use http::{HeaderValue, Request, Version};
use tokio::time::Instant;

use super::retry;
use crate::config::model::{Estimate, Http2, Learn, Route as Rule};
use crate::limiter::model::Mode;
use crate::limiter::{Demand, Partition};
use crate::proxy::error::ProxyError;
use crate::proxy::listen::client::Sender;
use crate::proxy::messages::body_facts::BodyFacts;
use crate::proxy::messages::end_to_end::EndToEnd;
use crate::proxy::messages::estimate::Bounds;
use crate::proxy::messages::header_flags::HeaderFlags;
use crate::proxy::messages::patience::ClientPatience;
use crate::proxy::messages::request_head;
use crate::proxy::route::partition::Facts;
use crate::proxy::route::router::Target;
use crate::proxy::route::table::{Route, Table};
use crate::proxy::route::{caller, links, rewrite};
use crate::proxy::upstream::connect::Wanted;

/// Takes note of the decisions as they are made, also of those before a refusal.
pub(crate) trait Notes {
    /// Notes the client's address.
    fn address(&mut self, address: IpAddr);
    /// Notes what the router looks at.
    fn target(&mut self, _target: Target<'_>) {}
    /// Notes the client's name; `None` if no clients are configured.
    fn named(&mut self, name: Option<&Arc<str>>);
    /// Notes the route.
    fn routed(&mut self, route: &Arc<Route>);
    /// Notes what the keys of the route's limiters are read from.
    fn keys(&mut self, _facts: Facts<'_>, _rule: &Rule) {}
    /// Notes the partitions of the route's limiters, and what they were read from.
    fn partitioned(&mut self, _facts: Facts<'_>, _route: &Route, _partitions: &[Option<Partition>]) {}
}

/// The decisions about one request.
pub(crate) struct Plan {
    /// The route.
    pub(crate) route: Arc<Route>,
    /// The arrival of the request.
    pub(crate) arrived: Instant,
    /// The authority that the client asked for.
    pub(crate) authority: Option<Authority>,
    /// The scheme and authority of links for the client, where they are not those of the request.
    pub(crate) origin: Option<Arc<str>>,
    /// The flags of the client's headers.
    pub(crate) flags: HeaderFlags,
    /// The HTTP version of the client's request.
    pub(crate) version: Version,
    /// The protocol to switch to, if the client wants one and the upstream can.
    pub(crate) upgrade: Option<HeaderValue>,
    /// The cost, and the longest wait that the client allows.
    pub(crate) demand: Demand,
    /// How long the client waits for its answer, if it tells.
    pub(crate) patience: Option<Box<ClientPatience>>,
    /// The partition of each of the route's limiters, in order; empty if none has a key.
    pub(crate) partitions: Vec<Option<Partition>>,
    /// The bytes that are still to come of the request's body, as far as it tells; `None` without a body, and until it is known.
    pub(crate) body_bytes: Option<u64>,
    /// True if `Authorization` holds a token for weir and must not go upstream.
    pub(crate) token_in_authorization: bool,
}

impl Plan {
    /// Makes the plan, and the path and query for the upstream.
    ///
    /// The caller is identified first, so that an unknown one learns nothing of the routes. If a decision needed the body and it was not
    /// read ([`BodyFacts::need`]), the plan is that of a request without one.
    pub(crate) fn make<B>(
        table: &Table,
        sender: Sender<'_>,
        request: &Request<B>,
        (flags, arrived, body): (HeaderFlags, Instant, &BodyFacts),
        notes: &mut impl Notes,
    ) -> Result<(Plan, PathAndQuery), ProxyError> {
        let address = caller::address(&table.server().trusted_proxies, sender.peer, request.headers());
        notes.address(address);
        caller::admit(table.server().allow.as_deref(), sender.peer)?;
        request_head::check(request, flags)?;
        let authority = request_head::authority(request)?;
        let (uri, headers) = (request.uri(), request.headers());
        let host = &*request_head::host(authority.as_ref());
        let upgrade = request_head::upgrade(request, flags);
        // A route, a partition and a cost are selected by what the client sends to the upstream, before the route changes any of it.
        let read = &EndToEnd::new(headers, flags, upgrade.is_some());
        let target = Target { host, path: uri.path(), method: request.method(), headers: read, body };
        notes.target(target);
        let found = table.route(target);
        let rule = found.as_ref().ok().map(|route| &route.rule);
        let caller = caller::identify(table.clients(), headers, sender.names, rule)?;
        notes.named(caller.name.as_ref());
        let route = found?;
        notes.routed(route);
        caller::may_use(&route.rule, &caller)?;
        let target = rewrite::target(uri, &route.rule)?;
        let answer_time = || route.answer_times.percentile_90();
        let patience = ClientPatience::of(headers, flags, &route.rule.patience, answer_time)?;
        let wait_max = patience.as_ref().map(|patience| patience.wait(answer_time));
        let body = body.up_to(route.rule.body_bytes_max);
        let facts = Facts { headers: read, uri, host, address, client: caller.name.as_deref(), body };
        notes.keys(facts, &route.rule);
        let partitions = facts.partitions(&route.rule.limiters)?;
        notes.partitioned(facts, route, &partitions);
        let bounds = |place, estimate: &Estimate| bounds(route, &partitions, place, estimate.learn);
        let costs = request_head::costs(read, body, &route.rule, bounds)?;
        let demand = Demand { costs, wait_max, flow: facts.flow(&route.rule.flow)? };
        // HTTP/2 cannot switch protocols, so the request goes on without the wish, as RFC 9110 (7.8) allows.
        let upgrade = upgrade.filter(|_| route.rule.upstream.http2 != Http2::PriorKnowledge);
        let (route, token_in_authorization) = (Arc::clone(route), caller.token_in_authorization);
        let version = request.version();
        let origin = links::origin(table.server(), sender, authority.as_ref(), headers, flags);
        let plan = Plan {
            route,
            arrived,
            authority,
            origin,
            flags,
            version,
            upgrade,
            demand,
            patience,
            partitions,
            body_bytes: None,
            token_in_authorization,
        };
        Ok((plan, target))
    }

    /// Returns the longest wait for permits that is left after `waited`.
    pub(crate) fn wait_left(&self, waited: Duration) -> Duration {
        let limiter_set = self.route.limiter_set.as_ref();
        limiter_set.map_or(Duration::ZERO, |set| set.wait_of(&self.demand)).saturating_sub(waited)
    }

    /// Returns the class of the caller, where callers share the quota.
    pub(crate) fn class(&self) -> Option<Arc<str>> {
        self.route.limiter_set.as_ref()?.class(self.demand.flow)
    }

    /// Returns what the upstream lately took to answer.
    pub(crate) fn answer_time(&self) -> Duration {
        self.route.answer_times.percentile_90()
    }

    /// Describes the wait if the client's patience bounds it, for a refusal.
    pub(crate) fn wait_told(&self) -> Option<String> {
        let (patience, set) = (self.patience.as_ref()?, self.route.limiter_set.as_ref()?);
        let is_shorter = self.demand.wait_max.is_some_and(|wait| wait < set.wait_max(self.demand.flow));
        is_shorter.then(|| patience.describe(self.demand.wait_max.unwrap_or_default()))
    }

    /// Returns whether the request, as the client sent it, may be sent twice without harm.
    pub(crate) fn is_harmless(&self, head: &Request<()>) -> bool {
        self.upgrade.is_none() && retry::is_harmless(head, self.flags, &self.route.rule)
    }

    /// Returns the protocol that the request needs of its connection.
    pub(crate) fn wanted(&self) -> Wanted {
        if self.upgrade.is_some() { Wanted::Http1 } else { Wanted::Any }
    }
}

/// Returns the bounds of an estimate at a place in the order in which the route names its limiters.
fn bounds(route: &Route, partitions: &[Option<Partition>], place: usize, learn: Learn) -> Bounds {
    let partition = || partitions.get(place).copied().flatten();
    let learned = || route.learned_outputs.percentile_95(place, partition());
    let rule = &route.rule;
    let is_of_all = rule.charges.is_empty();
    let named =
        if is_of_all { &rule.limiters[..] } else { rule.limiters.get(place..=place).unwrap_or_default() };
    let limiters = named.iter().filter_map(|(name, _)| route.limiter_set.as_ref()?.limiter(name, partitions));
    // Beside others, a limiter in shadow mode bounds no cost.
    let bounding = limiters.filter(|limiter| !is_of_all || limiter.mode == Mode::Enforce);
    Bounds {
        learned: (learn == Learn::P95).then(learned).flatten(),
        grantable: bounding.map(|limiter| limiter.cost_max()).min(),
    }
}
