//! Counts as figures for people.

/// Returns a count as a figure to divide by or to multiply. Beyond 2^53 it is rounded.
#[allow(clippy::cast_precision_loss, reason = "figures for people")]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}
