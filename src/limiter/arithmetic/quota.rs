//! The rate of a limit in whole microseconds.

use crate::clock::Micros;

/// `rate` permits per `window`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quota {
    /// Permits in a window.
    pub rate: u64,
    /// The window, widened by the guard.
    pub window: Micros,
    /// The width of the cells that the limit needs kept apart.
    pub cell: Micros,
}

impl Quota {
    /// Returns how long the limit takes to allow `permits`.
    pub fn span(self, permits: u64) -> Micros {
        Micros(self.span_exact(permits).0).min(Micros::SPAN_MAX)
    }

    /// Returns [`Quota::span`] unrounded: whole microseconds and a rest in parts of `rate`.
    pub fn span_exact(self, permits: u64) -> (u64, u64) {
        let (rate, window) = (u128::from(self.rate), u128::from(self.window.0));
        let product = u128::from(permits) * window;
        match u64::try_from(product / rate) {
            Ok(whole) if whole <= Micros::SPAN_MAX.0 => {
                (whole, u64::try_from(product % rate).unwrap_or_default())
            }
            _ => (Micros::SPAN_MAX.0, 0),
        }
    }

    /// Returns the permits that the limit allows within a span of at most some seconds.
    pub fn permits_within(self, span: Micros) -> u64 {
        span.0.saturating_mul(self.rate) / self.window.0.max(1)
    }
}
