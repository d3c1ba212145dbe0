//! Reports an upstream's response to the limiters: its quota, and the true cost of the request.
//!
//! Reads the head alone, and decides nothing about limits.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, Response, StatusCode};
use hyper::body::Incoming;

use super::plan::Plan;
use crate::limiter::{Receipt, UpstreamSignal, Window};
use crate::proxy::messages::quota::{Quota, QuotaWindow};
use crate::proxy::messages::{response, settle};
use crate::proxy::route::table::Route;

/// Reports a response that arrived `elapsed` after its request was sent.
pub(crate) fn report(
    plan: &Plan,
    response: &Response<Incoming>,
    receipt: Option<&Receipt>,
    elapsed: Duration,
) {
    let (status, headers) = (response.status(), response.headers());
    let Route { rule, metrics, limiter_set, .. } = &*plan.route;
    metrics.upstream_answered(elapsed);
    let is_rejection = response::is_rejection(status, headers);
    if is_rejection {
        metrics.upstream_rejected(status.as_u16());
    }
    let (Some(receipt), Some(limiter_set)) = (receipt, limiter_set) else { return };
    if is_rejection || (receipt.follows_upstream() && Quota::is_reported(headers)) {
        limiter_set.report_upstream(&plan.partitions, receipt, signal(plan, status, headers, is_rejection));
    }
    let cost = rule.settle.as_ref().and_then(|settle| settle::cost_settled(status, headers, settle));
    if let Some(cost) = cost {
        limiter_set.settle(&plan.partitions, receipt, cost);
    }
}

/// Returns the quota of a response as the limiters understand it.
fn signal(plan: &Plan, status: StatusCode, headers: &HeaderMap, is_rejection: bool) -> UpstreamSignal {
    let quota = Quota::of(headers, SystemTime::now());
    if quota.invalid > 0 {
        plan.route.metrics.upstream_invalid_quota_headers(quota.invalid);
    }
    let windows = quota.windows.iter().filter_map(|window| {
        let QuotaWindow { limit, remaining, length, .. } = *window;
        Some(Window { limit, remaining: remaining?, per: length })
    });
    let asks = is_rejection && response::asks_for_pause(status, quota.wait.is_some());
    let refusal = asks.then(|| status.as_u16());
    UpstreamSignal { refusal, wait: quota.wait.filter(|_| asks), windows: windows.collect() }
}
