//! The routes of one configuration with everything that requests need of it, resolved: an immutable table, swapped whole.
//!
//! Opens nothing, and knows nothing of requests beyond their target.

use std::collections::HashMap;
use std::sync::Arc;

use http::HeaderName;
use serde_json::Value;

use super::breaker::Breaker;
use super::callers::Callers;
use super::learned_outputs::LearnedOutputs;
use super::retry_budget::RetryBudget;
use super::router::{Index, Mismatch, Target, mismatch};
use super::set_headers::SetHeaders;
use crate::config::model::{Clients, Config, Cost, KeyPart, Route as Rule, Server};
use crate::limiter::LimiterSet;
use crate::proxy::error::ProxyError;
use crate::proxy::listen::tls::Acceptor;
use crate::proxy::messages::body_facts::BodyPaths;
use crate::proxy::messages::stream_usage;
use crate::proxy::net::body_memory::BodyMemory;
use crate::proxy::upstream::answer_times::AnswerTimes;
use crate::proxy::upstream::upstream::Upstream;
use crate::telemetry::{AccessRule, RouteMetrics};

/// The name, in metrics and logs, of requests that match no route. It is empty, because no route can have that name.
pub(crate) const NO_ROUTE: &str = "";

/// A route with its upstream, its limiters and its metrics.
pub(crate) struct Route {
    /// The route as configured.
    pub(crate) rule: Rule,
    /// The upstream of the route's requests.
    pub(crate) upstream: Arc<Upstream>,
    /// The limiters that its requests take permits from; without any, requests go at once.
    pub(crate) limiter_set: Option<LimiterSet>,
    /// The latest times in which the upstream answered the route's requests.
    pub(crate) answer_times: Arc<AnswerTimes>,
    /// The outputs of its latest responses, where they are learnt from.
    pub(crate) learned_outputs: Arc<LearnedOutputs>,
    /// The breaker, if one is configured.
    pub(crate) breaker: Option<Arc<Breaker>>,
    /// The retries that are left.
    pub(crate) retry_budget: Arc<RetryBudget>,
    /// The present values of the headers that it sets.
    pub(crate) set_headers: Arc<SetHeaders>,
    /// The headers that must not come as trailers, because the route reads, sets or removes them.
    pub(crate) no_trailers: Arc<[HeaderName]>,
    /// The metrics with the route's label.
    pub(crate) metrics: RouteMetrics,
    /// The counts of its callers.
    pub(crate) callers: Arc<Callers>,
}

/// Returns the headers of a route that must not come as trailers: a server that merges trailers into the headers would take them
/// for what selected the limits, or for what the route has set.
pub(crate) fn no_trailers(rule: &Rule) -> Arc<[HeaderName]> {
    let keys = rule.limiters.iter().flat_map(|(_, key)| key.iter());
    let keys = keys.filter_map(|part| match part {
        KeyPart::Header(name) => Some(name),
        _ => None,
    });
    let costs = rule.costs().filter_map(|cost| match cost {
        Cost::Header { name, .. } => Some(name),
        Cost::Fixed(_) | Cost::Json { .. } | Cost::Estimate(_) => None,
    });
    let pairs = rule.matches.headers.iter().chain(&rule.set_headers).map(|(name, _)| name);
    keys.chain(costs).chain(pairs).chain(&rule.remove_headers).cloned().collect()
}

/// Returns the places in bodies that the routes name, each once.
fn body_paths(routes: &[Arc<Route>]) -> Arc<BodyPaths> {
    let mut paths = BodyPaths::default();
    for rule in routes.iter().map(|route| &route.rule) {
        let Rule { matches, limiters, flow, .. } = rule;
        let conditions = matches.json.iter().flat_map(|json| &json.values).map(|(path, _)| path);
        let keys = limiters.iter().flat_map(|(_, key)| key.iter());
        let parts = keys.chain(flow.iter()).filter_map(KeyPart::json_path);
        conditions.chain(parts).for_each(|path| paths.add_value(path));
        if rule.includes_usage() {
            stream_usage::places().iter().for_each(|path| paths.add_value(path));
        }
        for cost in rule.costs() {
            match cost {
                Cost::Json { path, .. } => paths.add_value(path),
                Cost::Estimate(estimate) => {
                    estimate.values().for_each(|path| paths.add_value(path));
                    paths.add_texts(&estimate.of);
                }
                Cost::Fixed(_) | Cost::Header { .. } => {}
            }
        }
    }
    Arc::new(paths)
}

/// All routes of one configuration, and its settings for connections and clients.
pub(crate) struct Table {
    routes: Vec<Arc<Route>>,
    index: Index,
    /// The metrics and callers of requests that match no route.
    no_route: (RouteMetrics, Arc<Callers>),
    server: Arc<Server>,
    clients: Option<Arc<Clients>>,
    tls: Option<Acceptor>,
    access_log: Option<AccessRule>,
    /// The places in bodies that the routes look at.
    body_paths: Arc<BodyPaths>,
    /// The memory for what is read ahead.
    body_memory: Arc<BodyMemory>,
}

impl Table {
    /// Builds the table; the order of the routes is their rank.
    pub(crate) fn new(
        routes: Vec<Arc<Route>>,
        no_route: (RouteMetrics, Arc<Callers>),
        config: &Config,
        tls: Option<Acceptor>,
        body_memory: Arc<BodyMemory>,
    ) -> Table {
        let index = Index::new(routes.iter().map(|route| &route.rule.matches));
        let (server, clients) = (Arc::new(config.server.clone()), config.clients.clone());
        let (access_log, body_paths) = (config.log.access, body_paths(&routes));
        Table { routes, index, no_route, server, clients, tls, access_log, body_paths, body_memory }
    }

    /// Returns the route of a request.
    pub(crate) fn route(&self, target: Target<'_>) -> Result<&Arc<Route>, ProxyError> {
        let rank = self.index.route(target, |rank| Some(&self.routes.get(rank as usize)?.rule.matches))?;
        self.routes.get(rank as usize).ok_or(ProxyError::NoRoute)
    }

    /// Returns the route of a rank.
    pub(crate) fn at_rank(&self, rank: u32) -> Option<&Arc<Route>> {
        self.routes.get(rank as usize)
    }

    /// Returns the places in bodies that any route looks at; most configurations have none.
    pub(crate) fn body_paths(&self) -> &Arc<BodyPaths> {
        &self.body_paths
    }

    /// Returns the memory for what is read ahead.
    pub(crate) fn body_memory(&self) -> &BodyMemory {
        &self.body_memory
    }

    /// Returns each route with the first condition that a request does not satisfy, in order; the path as it was sent.
    pub(crate) fn mismatches<'a>(
        &'a self,
        target: Target<'a>,
    ) -> impl Iterator<Item = (&'a Rule, Option<Mismatch<'a>>)> {
        let rules = self.routes.iter().map(|route| &route.rule);
        rules.map(move |rule| (rule, mismatch(&rule.matches, target.path, target)))
    }

    /// Returns the routes by their names.
    pub(crate) fn by_name(&self) -> HashMap<&str, &Arc<Route>> {
        self.routes.iter().map(|route| (&*route.rule.name, route)).collect()
    }

    /// Puts the values of the headers that the routes set in force, also for requests that wait by the routes of an earlier table.
    pub(crate) fn publish_set_headers(&self) {
        self.routes.iter().for_each(|route| route.set_headers.publish(&route.rule));
    }

    /// Returns the breakers, in the order of their routes, and brings their metrics up to date.
    pub(crate) fn breakers(&self) -> Vec<Value> {
        let look = |route: &Arc<Route>| {
            route.metrics.breaker_open(route.breaker.as_ref().is_some_and(|breaker| breaker.is_open()));
            route.breaker.as_ref().map(|breaker| breaker.view())
        };
        self.routes.iter().filter_map(look).collect()
    }

    /// Shows the metrics of all routes in `/metrics`.
    pub(crate) fn publish_metrics(&self) {
        for (metrics, callers) in self.routes.iter().map(|route| (&route.metrics, &route.callers)) {
            metrics.publish();
            callers.publish();
        }
        self.no_route.0.publish();
        self.no_route.1.publish();
    }

    /// Returns whether the metrics have a client of this name.
    pub(crate) fn counts(&self, client: &str) -> bool {
        self.no_route.1.has(client)
    }

    /// Returns the names of all routes.
    pub(crate) fn route_names(&self) -> impl Iterator<Item = &str> {
        self.routes.iter().map(|route| &*route.rule.name)
    }

    /// Returns the callers of requests that match no route.
    pub(crate) fn no_route(&self) -> &Arc<Callers> {
        &self.no_route.1
    }

    /// Returns the settings of clients' connections.
    pub(crate) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// Returns the clients that may call; `None` lets everyone.
    pub(crate) fn clients(&self) -> Option<&Clients> {
        self.clients.as_deref()
    }

    /// Returns the TLS of new connections; `None` means plain text.
    pub(crate) fn tls(&self) -> Option<&Acceptor> {
        self.tls.as_ref()
    }

    /// Returns the rule of the access log; `None` without one.
    pub(crate) fn access_log(&self) -> Option<AccessRule> {
        self.access_log
    }
}
