//! The first stage of a reload: everything that a configuration needs is read and built, and nothing is in force yet.
//!
//! Reads the certificates and keys that the configuration names. Opens no connection and creates no metric.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::TaskTracker;

use crate::config::{Config, model};
use crate::limiter::PreparedLimiters;
use crate::proxy::error::ProxyBuildError;
use crate::proxy::listen::tls::Acceptor;
use crate::proxy::net::body_memory::BodyMemory;
use crate::proxy::net::certificates::read;
use crate::proxy::route::breaker::Breaker;
use crate::proxy::route::callers::{Callers, Clients};
use crate::proxy::route::set_headers::SetHeaders;
use crate::proxy::route::table::{NO_ROUTE, Route, Table, no_trailers};
use crate::proxy::upstream::key::{Key, Reach};
use crate::proxy::upstream::upstream::Upstream;
use crate::telemetry::Metrics;
use crate::usage::Usage;

pub(super) type Upstreams = HashMap<Key, Arc<Upstream>>;

/// The routes of a configuration and the upstreams that they lead to.
pub(super) struct Parts {
    pub(super) table: Arc<Table>,
    pub(super) upstreams: Upstreams,
}

/// The parts that all configurations of one proxy are built with.
pub(super) struct Builder {
    pub(super) metrics: Metrics,
    /// The counters of who uses what.
    pub(super) usage: Usage,
    pub(super) reach: Reach,
    /// The tasks of connections to upstreams.
    pub(super) tasks: TaskTracker,
    /// The memory for what arrives while requests wait.
    pub(super) body_memory: Arc<BodyMemory>,
}

impl Builder {
    /// Builds the routes of a configuration. Upstreams that are `present` already, unchanged, are taken over, and what
    /// is known of them, by the routes of the table `before`: what they took to answer, the retries that are left, and the
    /// state of a breaker.
    pub(super) fn build(
        &self,
        config: &Config,
        limiters: &PreparedLimiters,
        present: &Upstreams,
        before: Option<&Table>,
    ) -> Result<Parts, ProxyBuildError> {
        let known = before.map(Table::by_name).unwrap_or_default();
        let clients = Clients::of(config, &self.metrics, &self.usage);
        let mut upstreams = Upstreams::new();
        let mut routes = Vec::with_capacity(config.routes.len());
        for rule in &config.routes {
            let key = key(&rule.upstream, config.server.write_timeout)?;
            let upstream = match upstreams.get(&key).or_else(|| present.get(&key)) {
                Some(upstream) => Arc::clone(upstream),
                None => Arc::new(Upstream::new(&key, &self.reach, self.tasks.clone())?),
            };
            upstreams.insert(key, Arc::clone(&upstream));
            let known = known.get(&*rule.name).copied();
            routes.push(Arc::new(self.route(rule, upstream, limiters, &clients, known)?));
        }
        let tls = acceptor(config)?;
        let no_route = self.metrics.route(NO_ROUTE);
        let callers = Callers::new(clients, &no_route, NO_ROUTE.into(), &[]);
        let table =
            Table::new(routes, (no_route, Arc::new(callers)), config, tls, Arc::clone(&self.body_memory));
        Ok(Parts { table: Arc::new(table), upstreams })
    }

    fn route(
        &self,
        rule: &model::Route,
        upstream: Arc<Upstream>,
        limiters: &PreparedLimiters,
        clients: &Arc<Clients>,
        known: Option<&Arc<Route>>,
    ) -> Result<Route, ProxyBuildError> {
        let set_headers = SetHeaders::of(rule, known.map(|known| (&known.rule, &known.set_headers)));
        let known = known.filter(|known| Arc::ptr_eq(&known.upstream, &upstream));
        let names: Vec<_> = rule.limiters.iter().map(|(name, _)| name.clone()).collect();
        let limiter_set = limiters.limiter_set(&names);
        let limiter_set = limiter_set
            .map_err(|source| ProxyBuildError::Limiters { route: Arc::clone(&rule.name), source })?;
        let answer_times = known.map(|known| Arc::clone(&known.answer_times)).unwrap_or_default();
        // They are known by the place of a limiter and by its partitions.
        let learns_alike = |known: &&Arc<Route>| {
            known.rule.limiters == rule.limiters && known.rule.settles().eq(rule.settles())
        };
        let learned_outputs = known.filter(learns_alike).map(|known| Arc::clone(&known.learned_outputs));
        let breaker = rule.breaker.map(|breaker| {
            let known = known.and_then(|known| known.breaker.as_ref()).filter(|known| known.has(breaker));
            known.map_or_else(|| Arc::new(Breaker::new(&rule.name, breaker)), Arc::clone)
        });
        let retry_budget = known.filter(|known| known.rule.retry == rule.retry);
        let retry_budget = retry_budget.map(|known| Arc::clone(&known.retry_budget)).unwrap_or_default();
        let no_trailers = no_trailers(rule);
        let metrics = self.metrics.route(&rule.name);
        let callers = Arc::new(Callers::new(Arc::clone(clients), &metrics, Arc::clone(&rule.name), &names));
        let rule = rule.clone();
        Ok(Route {
            rule,
            upstream,
            limiter_set,
            answer_times,
            learned_outputs: learned_outputs.unwrap_or_default(),
            breaker,
            retry_budget,
            set_headers,
            no_trailers,
            metrics,
            callers,
        })
    }
}

fn acceptor(config: &Config) -> Result<Option<Acceptor>, ProxyBuildError> {
    let Some(tls) = &config.server.tls else { return Ok(None) };
    // Where clients may show a token instead, a certificate is optional.
    let certificate_required = config.clients.as_ref().is_none_or(|clients| !clients.has_tokens());
    Acceptor::new(tls, certificate_required).map(Some)
}

/// Reads the files that an upstream's settings name.
fn key(settings: &model::Upstream, write_timeout: Duration) -> Result<Key, ProxyBuildError> {
    let ca = settings.ca.as_deref().map(read).transpose()?;
    let identity = match &settings.identity {
        Some((cert, key)) => Some((read(cert)?, read(key)?)),
        None => None,
    };
    Ok(Key { settings: settings.clone(), write_timeout, ca, identity })
}
