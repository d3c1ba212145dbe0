//! The counts of a route's callers, by client: requests, permits of each limiter, and what the fleet keeps of them.
//!
//! Names in metrics come from the configuration alone. The counts of a client are made with its first request.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::config::model::Config;
use crate::limiter::model::Costs;
use crate::limiter::{LimiterName, Provenance};
use crate::telemetry::{ClientPermit, ClientPermits, ClientRequests, Metrics, Outcome, RouteMetrics};
use crate::usage::{By, Counters, Counts, Usage};

/// The name of every caller where no clients are configured.
const NONE: &str = "none";
/// The name of a caller that is none of the clients.
const OTHER: &str = "other";

/// The most clients whose series each route shows before their first request.
const PUBLISHED_MAX: usize = 32;

/// The configured clients, and where their counts go.
pub(crate) struct Clients {
    names: Vec<Arc<str>>,
    /// The name of a caller that has none.
    unnamed: Arc<str>,
    metrics: Metrics,
    usage: Usage,
}

impl Clients {
    /// Returns the clients of a configuration.
    pub(crate) fn of(config: &Config, metrics: &Metrics, usage: &Usage) -> Arc<Clients> {
        let names = config.clients.as_ref().map(|clients| clients.names()).unwrap_or_default();
        let unnamed = if config.clients.is_some() { OTHER } else { NONE };
        Arc::new(Clients { names, unnamed: unnamed.into(), metrics: metrics.clone(), usage: usage.clone() })
    }
}

/// The counts of one route's callers.
pub(crate) struct Callers {
    clients: Arc<Clients>,
    metrics: RouteMetrics,
    route: Arc<str>,
    /// Each with its place among the route's.
    limiters: Vec<(LimiterName, usize)>,
    unnamed: OnceLock<CallerCounts>,
    named: HashMap<Arc<str>, OnceLock<CallerCounts>>,
}

/// The counts of one client of one route.
pub(crate) struct CallerCounts {
    requests: ClientRequests,
    client: Arc<Counters>,
    route: Option<Arc<Counters>>,
    limiters: Vec<LimiterCounts>,
}

/// The counts of one client of one limiter.
struct LimiterCounts {
    limiter: LimiterName,
    /// Its place among the route's.
    place: usize,
    permits: ClientPermits,
    counters: Arc<Counters>,
}

impl Callers {
    /// Creates the counts of a route with these limiters. The empty name stands for requests that no route matched.
    pub(crate) fn new(
        clients: Arc<Clients>,
        metrics: &RouteMetrics,
        route: Arc<str>,
        limiters: &[LimiterName],
    ) -> Callers {
        let named = clients.names.iter().map(|name| (Arc::clone(name), OnceLock::new())).collect();
        let mut limiters: Vec<_> = limiters.iter().cloned().zip(0..).collect();
        limiters.sort_unstable();
        limiters.dedup_by(|(later, _), (first, _)| later == first);
        Callers { clients, metrics: metrics.clone(), route, limiters, unnamed: OnceLock::new(), named }
    }

    /// Returns the name of the route.
    pub(crate) fn route(&self) -> &Arc<str> {
        &self.route
    }

    /// Returns whether the metrics have a client of this name.
    pub(crate) fn has(&self, client: &str) -> bool {
        client == &*self.clients.unnamed || self.named.contains_key(client)
    }

    /// Shows the series of the first clients in `/metrics`.
    pub(crate) fn publish(&self) {
        let Clients { names, unnamed, .. } = &*self.clients;
        let none = names.is_empty().then_some(unnamed);
        for name in none.into_iter().chain(names.iter().take(PUBLISHED_MAX)) {
            let counts = self.of(Some(name));
            counts.requests.publish();
            counts.limiters.iter().for_each(|limiter| limiter.permits.publish());
        }
    }

    /// Returns the counts of a client; `None` stands for one that has no name.
    pub(crate) fn of(&self, client: Option<&Arc<str>>) -> &CallerCounts {
        match client.and_then(|client| self.named.get_key_value(client)) {
            Some((name, counts)) => counts.get_or_init(|| self.create(name)),
            None => self.unnamed.get_or_init(|| self.create(&self.clients.unnamed)),
        }
    }

    fn create(&self, client: &Arc<str>) -> CallerCounts {
        let Clients { metrics, usage, .. } = &*self.clients;
        let limiter = |(limiter, place): &(LimiterName, usize)| LimiterCounts {
            limiter: limiter.clone(),
            place: *place,
            permits: metrics.client_permits(client, limiter.as_str()),
            counters: usage.counters(By::Limiter, &limiter.as_str().into()),
        };
        CallerCounts {
            requests: metrics.client_requests(&self.metrics, client),
            client: usage.counters(By::Client, client),
            route: (!self.route.is_empty()).then(|| usage.counters(By::Route, &self.route)),
            limiters: self.limiters.iter().map(limiter).collect(),
        }
    }
}

impl CallerCounts {
    /// Counts a finished request: its status code, its outcome, and the time since its head was read.
    pub(crate) fn finished(&self, code: u16, outcome: Outcome, elapsed: Duration) {
        self.requests.finished(code, outcome, elapsed);
    }

    /// Counts the permits of a request that went upstream.
    pub(crate) fn granted(&self, costs: &Costs, by: Provenance, has_waited: bool) {
        let result = match by {
            Provenance::Store => ClientPermit::Granted,
            Provenance::Share => ClientPermit::Local,
            Provenance::Unlimited => ClientPermit::Allowed,
        };
        let counts =
            |cost| Counts { granted: cost, waited: if has_waited { cost } else { 0 }, ..Counts::default() };
        self.add(costs, counts, result);
    }

    /// Counts the permits of a request that ended before it was sent.
    pub(crate) fn cancelled(&self, costs: &Costs) {
        let counts = |cost| Counts { cancelled: cost, ..Counts::default() };
        self.add(costs, counts, ClientPermit::Cancelled);
    }

    /// Counts the permits that a limiter refused.
    pub(crate) fn refused(&self, costs: &Costs, limiter: &LimiterName) {
        let refused = |cost| Counts { refused: cost, ..Counts::default() };
        let largest = refused(costs.largest().get());
        self.client.add(largest);
        self.route.iter().for_each(|counters| counters.add(largest));
        for counts in self.limiters.iter().filter(|counts| counts.limiter == *limiter) {
            let cost = costs.at(counts.place);
            counts.counters.add(refused(cost));
            counts.permits.add(ClientPermit::Refused, cost);
        }
    }

    /// Counts what was taken of each limiter; of the client and the route the most of any.
    fn add(&self, costs: &Costs, counts: impl Fn(u64) -> Counts, result: ClientPermit) {
        let largest = counts(costs.largest().get());
        self.client.add(largest);
        self.route.iter().for_each(|counters| counters.add(largest));
        for limiter in &self.limiters {
            let cost = costs.at(limiter.place);
            limiter.counters.add(counts(cost));
            limiter.permits.add(result, cost);
        }
    }
}
