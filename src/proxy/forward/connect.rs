//! Opens a connection for a request, where the route's breaker lets it: the only place where requests meet the breaker.
//!
//! Decides nothing about when the breaker opens.

use tokio::time::Instant;

use super::plan::Plan;
use crate::proxy::error::{ConnectError, ProxyError};
use crate::proxy::upstream::lease::Lease;
use crate::proxy::upstream::upstream::Unopened;

/// The connection that a request needs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needed {
    /// Any that is open, also one that another request opens meanwhile.
    Any,
    /// A fresh one.
    Fresh,
}

/// Refuses a request that has arrived while the breaker is open, before it takes a permit or a place in the queue.
pub(crate) fn check_breaker(plan: &Plan) -> Result<(), ProxyError> {
    plan.route.breaker.as_ref().map_or(Ok(()), |breaker| breaker.check())
}

/// Opens a connection. While the breaker is open a request that may wait until `deadline` is held back, as behind a connection that
/// opens slowly.
pub(crate) async fn open(plan: &Plan, needed: Needed, deadline: Instant) -> Result<Lease, ProxyError> {
    let attempt = match &plan.route.breaker {
        // Boxed, because requests must stay small, and most routes have none.
        Some(breaker) => Some(Box::pin(breaker.admit(plan.arrived, deadline)).await?),
        None => None,
    };
    let upstream = &plan.route.upstream;
    let opened = match needed {
        Needed::Any => upstream.open(plan.wanted()).await,
        Needed::Fresh => upstream.open_fresh(plan.wanted()).await.map_err(Unopened::Own),
    };
    match (attempt, &opened) {
        (Some(attempt), Ok(_)) => attempt.ended(true),
        (Some(attempt), Err(Unopened::Own(_))) => attempt.ended(false),
        // One failure counts once, however many requests have waited for its end.
        (Some(attempt), Err(Unopened::Shared(_))) => drop(attempt),
        (None, _) => {}
    }
    Ok(opened.map_err(ConnectError::from)?)
}

/// Notes that the upstream has answered, over whichever connection.
pub(crate) fn answered(plan: &Plan) {
    if let Some(breaker) = &plan.route.breaker {
        breaker.answered();
    }
}
