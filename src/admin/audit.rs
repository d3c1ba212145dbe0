//! The audit line: one line in the log for each action by hand, whatever became of it.
//!
//! Holds no token and no value of a key: a partition stands as its hash, and a name that no limiter can have is left out.

use std::net::IpAddr;

use http::StatusCode;
use http::request::Parts;

use super::access::AccessRight;
use super::named_partition;
use crate::config::model::Config;
use crate::limiter::model::limit::LimiterName;
use crate::telemetry::AUDIT;

/// The address that a request came from, among the request's extensions.
#[derive(Clone, Copy)]
pub(super) struct PeerAddress(pub(super) IpAddr);

/// Writes the line of an action: `reload`, or an action on the limiter of this name. `right` is that of the caller, if any.
pub(super) fn log(
    config: &Config,
    request: &Parts,
    right: Option<AccessRight>,
    (act, limiter): (&str, Option<&str>),
    status: StatusCode,
) {
    let outcome = match status {
        status if status.is_success() => "done",
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "denied",
        _ => "failed",
    };
    let by = match right {
        Some(AccessRight::Token) => "admin.token",
        Some(AccessRight::ReadToken) => "admin.read_token",
        Some(AccessRight::Loopback) => "loopback",
        None => "none",
    };
    let address = request.extensions.get::<PeerAddress>().map(|peer| tracing::field::display(peer.0));
    let limiter = limiter.and_then(LimiterName::parse);
    let partition = named_partition::logged(config, limiter.as_ref(), request.uri.query());
    let partition = partition.map(tracing::field::display);
    tracing::info!(
        target: AUDIT,
        act,
        outcome,
        status = status.as_u16(),
        by,
        address,
        limiter = limiter.as_ref().map(LimiterName::as_str),
        partition,
        "an action by hand"
    );
}
