//! Reads the true cost of a request from its response, by the route's `settle`. Knows nothing of permits already taken.

use http::{HeaderMap, StatusCode};

use crate::config::model::Settle;
use crate::config::units;
use crate::limiter::model::RATE_MAX;

/// Returns the cost that a response reports; `None` if it reports none that can be read.
pub(crate) fn cost_settled(status: StatusCode, headers: &HeaderMap, settle: &Settle) -> Option<u64> {
    if settle.free.contains(&status.as_u16()) {
        return Some(0);
    }
    let mut lines = headers.get_all(settle.header.as_ref()?).iter();
    let line = lines.next()?.to_str().ok().filter(|_| lines.next().is_none())?;
    let cost = units::number(line)?;
    (cost <= u64::from(RATE_MAX)).then_some(cost)
}
