//! Sends a request as often as its route allows, and takes a permit for each attempt.
//!
//! Decides nothing about another attempt: [`super::retry`] does.

use std::pin::pin;
use std::time::Duration;

use tokio::time::sleep;

use super::admission::{readmit, set_aside_while, while_wanted};
use super::connect;
use super::outgoing::Outgoing;
use super::plan::Plan;
use super::record::Record;
use super::retry::Retries;
use super::send::{SendResult, send};
use crate::limiter::Permit;
use crate::proxy::error::ProxyError;
use crate::proxy::listen::client::Client;

/// Returns the attempts of a request that may be sent more than once; its head is as the client sent it.
pub(super) fn retries<'plan>(plan: &'plan Plan, outgoing: &Outgoing) -> Option<Retries<'plan>> {
    let rule = plan.route.rule.retry.as_ref()?;
    let budget = &plan.route.retry_budget;
    if let Some(ppm) = rule.budget_ppm {
        budget.add(ppm);
    }
    let waited = outgoing.permit.as_ref().map_or(Duration::ZERO, Permit::waited);
    // Without a limiter the client's patience alone bounds the pauses.
    let wait = plan.route.limiter_set.as_ref().map(|_| plan.wait_left(waited)).or(plan.demand.wait_max);
    plan.is_harmless(&outgoing.head).then(|| Retries::new(rule, budget, wait))
}

/// Sends the request as often as it needs and may. Where another attempt gets no permit within the wait, the last result stands.
pub(super) async fn attempts(
    plan: &Plan,
    client: &Client,
    outgoing: &mut Outgoing,
    record: &mut Record,
    retries: Retries<'_>,
) -> SendResult {
    outgoing.keeps_copy = true;
    outgoing.repetitions_left = retries.repetitions();
    let mut sent = send(plan, client, outgoing, record).await;
    while outgoing.can_be_repeated()
        && let Some(reason) =
            retries.take(&mut outgoing.repetitions_left, sent.as_ref().map(|(response, _)| response.status()))
    {
        if matches!(sent, Err(ProxyError::UpstreamConnect(_))) {
            match pause(plan, client, outgoing, retries.pause(outgoing.repetitions_left)).await {
                Ok(()) => {}
                Err(ProxyError::ClientGone) => return Err(ProxyError::ClientGone),
                Err(_) => break,
            }
        }
        if outgoing.permit.is_none() {
            match readmit(plan, client, outgoing, record, (retries.wait(), sent.is_ok())).await {
                Ok(()) => {}
                Err(ProxyError::Refused { refusal, .. }) => {
                    record.permits_refused(refusal.limiter());
                    break;
                }
                Err(
                    ProxyError::UpstreamConnect(_)
                    | ProxyError::UpstreamUnavailable { .. }
                    | ProxyError::Draining,
                ) => break,
                Err(error) => return Err(error),
            }
        }
        plan.route.metrics.retried(&reason);
        // Dropping a response closes its connection, unless that is shared.
        let last = sent.err();
        sent = match (send(plan, client, outgoing, record).await, last) {
            // The slot of the permit has passed meanwhile, and there is no other within the wait.
            (Err(ProxyError::Refused { refusal, .. }), Some(last)) => {
                record.permits_refused(refusal.limiter());
                return Err(last);
            }
            (again, _) => again,
        };
    }
    sent
}

/// Waits before another connection is tried. The permit, if there is one, was not spent, and others go before it meanwhile.
async fn pause(
    plan: &Plan,
    client: &Client,
    outgoing: &mut Outgoing,
    pause: Duration,
) -> Result<(), ProxyError> {
    let pausing = async {
        match &mut outgoing.permit {
            Some(permit) => set_aside_while(permit, pin!(sleep(pause))).await,
            None => sleep(pause).await,
        }
        connect::check_breaker(plan)
    };
    while_wanted(client, pin!(pausing)).await
}
