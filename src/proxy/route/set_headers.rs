//! The values of the headers that a route sets, as they are now: a request that waits while a credential is renewed goes out with the new one.
//!
//! The tables of successive configurations share them.

use std::sync::Arc;

use arc_swap::ArcSwap;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::config::model::Route as Rule;

/// The headers that a route of this name and upstream sets by the configuration in force, or did when there last was one.
pub(crate) struct SetHeaders(ArcSwap<Vec<(HeaderName, HeaderValue)>>);

impl SetHeaders {
    /// Returns those of a route, by what is known of the route `before` of the same name. A credential is for one upstream alone: where
    /// that is another one, requests to the former keep what they have.
    pub(crate) fn of(rule: &Rule, before: Option<(&Rule, &Arc<SetHeaders>)>) -> Arc<SetHeaders> {
        let known = before.filter(|(before, _)| leads_to(before) == leads_to(rule));
        let new = || Arc::new(SetHeaders(ArcSwap::from_pointee(rule.set_headers.clone())));
        known.map_or_else(new, |(_, known)| Arc::clone(known))
    }

    /// Puts the values of a route in force for all requests that are sent from now on.
    pub(crate) fn publish(&self, rule: &Rule) {
        if **self.0.load() != rule.set_headers {
            self.0.store(Arc::new(rule.set_headers.clone()));
        }
    }

    /// Replaces the values of a request's headers that the rule of its arrival has set. It gets no further header, and keeps one that is
    /// no longer set: what was decided at its arrival, such as whose token `Authorization` holds, went by the names.
    pub(crate) fn renew(&self, rule: &Rule, headers: &mut HeaderMap) {
        let present = self.0.load();
        if **present == rule.set_headers {
            return;
        }
        for (name, value) in present.iter() {
            if rule.set_headers.iter().any(|(set, _)| set == name) {
                headers.insert(name, value.clone());
            }
        }
    }
}

/// Returns the place to which a route's requests go.
fn leads_to(rule: &Rule) -> (bool, &str, u16, &str) {
    let upstream = &rule.upstream;
    (upstream.tls, &upstream.host, upstream.port, &upstream.base_path)
}
