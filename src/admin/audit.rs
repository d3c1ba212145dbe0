//! The audit line: one line in the log for each action by hand, whatever became of it.
//!
//! Holds no token and no value of a key: a partition stands as its hash, and a name that no limiter can have is left out.

use std::net::IpAddr;

use http::StatusCode;
use http::request::Parts;

use super::limiters;
use crate::limiter::model::limit::LimiterName;

/// The address that a request came from, among the request's extensions.
#[derive(Clone, Copy)]
pub(super) struct PeerAddress(pub(super) IpAddr);

/// By what right somebody acts.
#[derive(Clone, Copy)]
pub(super) enum Right {
    /// `admin.token`.
    Token,
    /// No token is set, and the listener is on loopback.
    Loopback,
    /// None: the request was refused.
    None,
}

impl Right {
    fn as_str(self) -> &'static str {
        match self {
            Right::Token => "admin.token",
            Right::Loopback => "loopback",
            Right::None => "none",
        }
    }
}

/// Writes the line of an action: `reload`, or an action on the limiter of this name.
pub(super) fn log(request: &Parts, right: Right, act: &str, limiter: Option<&str>, status: StatusCode) {
    let outcome = match status {
        status if status.is_success() => "done",
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "denied",
        _ => "failed",
    };
    let address = request.extensions.get::<PeerAddress>().map(|peer| tracing::field::display(peer.0));
    let limiter = limiter.and_then(LimiterName::parse);
    let partition = request.uri.query().and_then(limiters::partition_of).map(tracing::field::display);
    tracing::info!(
        act,
        outcome,
        status = status.as_u16(),
        by = right.as_str(),
        address,
        limiter = limiter.as_ref().map(LimiterName::as_str),
        partition,
        "an action by hand"
    );
}
