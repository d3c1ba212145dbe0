//! Reports an upstream's response to the limiters: its quota, and the true cost of the request.
//!
//! Reads the head, and leaves the body to [`rejection`]. Decides nothing about limits.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::Response;
use hyper::body::Incoming;
use tokio::time::Instant;

use super::plan::Plan;
use super::rejection::{self, BodyRules, PauseDecision};
use super::settling::Settling;
use crate::config::model::LimitHeaders;
use crate::limiter::{Receipt, UpstreamSignal, Window};
use crate::proxy::messages::limit_headers::Left;
use crate::proxy::messages::quota::{Quota, QuotaWindow};
use crate::proxy::messages::stream_usage::WithoutUsage;
use crate::proxy::messages::{coding, response};
use crate::proxy::route::table::Route;

/// The work that a response leaves until it goes to the client.
#[derive(Default)]
pub(crate) struct Feedback {
    /// The permits left of the quota, if the route tells its callers.
    pub(crate) quota_left: Option<Box<Left>>,
    /// The pauses that the response's body has still to decide about.
    pub(crate) body_rules: Option<Box<BodyRules>>,
    /// The cost that its body has still to tell.
    pub(crate) settling: Option<Box<Settling>>,
    /// The events of its body without the usage, for which the client has not asked.
    pub(crate) without_usage: Option<Box<WithoutUsage>>,
}

/// Reports a response whose head came `elapsed` after that of its request was sent.
pub(crate) fn of(
    plan: &Plan,
    response: &Response<Incoming>,
    receipt: Option<Receipt>,
    elapsed: Duration,
) -> Feedback {
    let rule = &plan.route.rule;
    let left = |(receipt, form): (&Receipt, LimitHeaders)| {
        Box::new(Left::of(form, |among| {
            receipt.quota_left(|limiter| among.includes(rule.estimates(limiter)))
        }))
    };
    let quota_left = receipt.as_ref().zip(rule.limit_headers).map(left);
    let mut feedback = Feedback { quota_left, ..Feedback::default() };
    report(plan, response, receipt, elapsed, &mut feedback);
    feedback
}

/// Reports a response, and notes what its body has still to decide and to tell.
fn report(
    plan: &Plan,
    response: &Response<Incoming>,
    receipt: Option<Receipt>,
    elapsed: Duration,
    feedback: &mut Feedback,
) {
    let (status, headers) = (response.status(), response.headers());
    let Route { rule, metrics, limiter_set, .. } = &*plan.route;
    metrics.upstream_answered(elapsed);
    let is_rejection = response::is_rejection(status, headers);
    let may_pause = rejection::concerns(&plan.route, status);
    let (Some(receipt), Some(limiter_set)) = (receipt, limiter_set) else {
        if is_rejection {
            metrics.upstream_rejected(status.as_u16());
        }
        return;
    };
    let mut undecided = None;
    let compares = receipt.compares_upstream();
    let reads_quota = is_rejection || may_pause;
    if reads_quota || ((compares || receipt.follows_upstream()) && Quota::is_reported(headers)) {
        let quota = Quota::of(headers, SystemTime::now());
        if quota.invalid > 0 {
            metrics.upstream_invalid_quota_headers(quota.invalid);
        }
        let PauseDecision { pauses, by_body } = rejection::decide(&plan.route, status, headers, quota.wait);
        let is_rejection = is_rejection || !pauses.is_empty();
        if is_rejection {
            metrics.upstream_rejected(status.as_u16());
        }
        let windows = windows(&quota);
        if compares {
            receipt.compare_upstream(&windows);
        }
        let signal = UpstreamSignal { is_rejection, pauses, windows };
        limiter_set.report_upstream(&plan.partitions, &receipt, signal);
        undecided = (!by_body.is_empty()).then_some((by_body, quota.wait, is_rejection));
    }
    if rule.settles().next().is_some() {
        feedback.settling = Settling::of(plan, response, &receipt);
    }
    let Some((by_body, wait, is_rejection)) = undecided else { return };
    feedback.body_rules = Some(Box::new(BodyRules {
        route: Arc::clone(&plan.route),
        partitions: plan.partitions.clone(),
        receipt,
        by_body,
        wait,
        since: Instant::now(),
        reported: None,
        is_rejection,
        coding: coding::of_response(headers),
        begin: Vec::new(),
    }));
}

/// Returns the windows of a quota as the limiters understand them. One without a size and a length tells something only where it is the only
/// one: which of several is the limiter's nobody knows.
fn windows(quota: &Quota) -> Vec<Window> {
    let told = quota.windows.iter().filter_map(|window| {
        let QuotaWindow { limit, remaining, length, .. } = *window;
        Some(Window { limit, remaining: remaining?, per: length })
    });
    let mut windows: Vec<Window> = told.collect();
    if windows.len() > 1 {
        windows.retain(|window| window.limit.is_some() || window.per.is_some());
    }
    windows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(limit: Option<u64>, remaining: Option<u64>, length: Option<Duration>) -> QuotaWindow {
        QuotaWindow { limit, remaining, resets_in: None, length }
    }

    fn told(windows: &[QuotaWindow]) -> Vec<(Option<u64>, u64)> {
        let quota = Quota { windows: windows.to_vec(), ..Quota::default() };
        self::windows(&quota).iter().map(|window| (window.limit, window.remaining)).collect()
    }

    #[test]
    fn a_window_without_size_and_length_counts_only_alone() {
        let minute = Some(Duration::from_secs(60));
        let unnamed = window(None, Some(3), None);
        assert_eq!(told(&[unnamed]), [(None, 3)]);
        assert_eq!(told(&[unnamed, unnamed]), []);
        assert_eq!(told(&[unnamed, window(Some(40), Some(7), None)]), [(Some(40), 7)]);
        assert_eq!(told(&[window(None, Some(9), minute), unnamed]), [(None, 9)]);
        assert_eq!(told(&[unnamed, window(Some(40), None, minute)]), [(None, 3)], "the other tells nothing");
    }
}
