//! Windows aligned to a calendar: where they begin and end, as instants.
//!
//! A store knows no time zones, so the boundaries are computed here and passed in, as stretches of windows of equal length.
//! Knows nothing of limits.
//!
//! A window begins at each instant whose local time is a multiple of the period. Where the clock is set forward over such a
//! time, or onto it, the window begins with the change, so a day without midnight begins with its first instant. Where the clock
//! is set back, a part of a day begins again with its local time, but a day, a week and a month begin once. All other windows
//! only get longer or shorter: a day lasts 23 or 25 hours, and six hours over a change five or seven.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::{Offset, TimeZone, db};

use crate::clock::Micros;

const SECOND_US: i64 = 1_000_000;
const DAY_US: i64 = 86_400 * SECOND_US;
const WEEK_US: i64 = 7 * DAY_US;
const DAY: Duration = Duration::from_secs(86_400);
const MONTH_MAX: Duration = Duration::from_secs(31 * 86_400);
/// The first Monday after the epoch, a Thursday.
const MONDAY_US: i64 = 4 * DAY_US;
/// The most that any zone's clock was set back at once since [`PAST_END`]: Casey in Antarctica, from +11 to +8.
const FALL_BACK_MAX: Duration = Duration::from_secs(3 * 3600);
/// 2020-01-01. A zone whose clock was not changed since counts as one that never changes it: no store's clock is earlier.
const PAST_END_US: i64 = 1_577_836_800 * SECOND_US;
/// The last year whose instants, and all sums with them, stay below 2^53; its schedule holds for ever.
const YEAR_MAX: i16 = 2254;
/// The span before its first instant from which a schedule is computed: more than the longest window that is found by steps.
const LOOK_BACK_US: i64 = 2 * WEEK_US;

/// The length of calendar windows.
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
    /// The length of the windows.
    pub period: Period,
    /// The zone by whose clock the windows begin.
    pub zone: TimeZone,
}

/// Windows of equal length that follow each other, until the next stretch begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// The start of the first window.
    pub start: Micros,
    /// The length of each window; the next stretch may cut the last one short.
    pub length: Micros,
}

/// The windows around an instant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Schedule {
    /// The stretches, ascending, at least one. Instants before the first belong to a window that ends there; the last
    /// goes on for ever.
    pub stretches: Arc<[Stretch]>,
    /// The instant from which the schedule must be made anew; `None` if it holds for ever.
    pub valid_until: Option<Micros>,
}

impl CalendarWindows {
    /// Returns windows of this period by the clock of a zone of the tz database, such as `Asia/Shanghai`; `None` if there is no
    /// such zone, or the period does not divide a day.
    pub fn new(period: Period, zone: &str) -> Option<CalendarWindows> {
        let fits = match period {
            Period::Span(span) => {
                span.subsec_nanos().is_multiple_of(1000)
                    && !span.is_zero()
                    && DAY.as_micros().is_multiple_of(span.as_micros())
            }
            Period::Week | Period::Month => true,
        };
        // The tz database's placeholder for an unknown zone is no zone.
        let zone = TimeZone::get(zone).ok().filter(|zone| !zone.is_unknown());
        zone.filter(|_| fits).map(|zone| CalendarWindows { period, zone })
    }

    /// Returns the names of all zones.
    pub fn zones() -> Vec<String> {
        db().available().map(|name| name.to_string()).collect()
    }

    /// Returns the length of a window while no clock is changed; `None` for months, which differ.
    pub fn nominal(&self) -> Option<Duration> {
        match self.period {
            Period::Span(span) => Some(span),
            Period::Week => Some(7 * DAY),
            Period::Month => None,
        }
    }

    /// Returns at least the length of the longest window that may occur. It decides how long state is kept, so it need not be
    /// exact. A window shorter than a day becomes less than twice as long by a change of the clock.
    pub fn longest(&self) -> Duration {
        let nominal = self.nominal().unwrap_or(MONTH_MAX);
        if self.is_fixed_from(PAST_END_US) { nominal } else { nominal + nominal.min(FALL_BACK_MAX) }
    }

    /// Returns the windows around an instant: from a month before its year (of UTC) to two months after it, or for ever where the
    /// zone's clock is not changed any more. All instants of a year have the same.
    pub fn schedule(&self, around: Micros) -> Schedule {
        let year = year_of(around);
        // In these years every date exists; otherwise one window lasts for ever.
        let Some([from, end, to]) = bounds(year) else { return self.steady(0) };
        let past = from.max(PAST_END_US);
        if self.period != Period::Month && self.is_fixed_from(past) {
            return self.steady(self.offset_us(past));
        }
        let runs = match self.period {
            Period::Month => self.months(year),
            Period::Span(_) | Period::Week => self.steps(from - LOOK_BACK_US, to),
        };
        let stretches = stretches(runs, from);
        if stretches.is_empty() {
            return self.steady(0);
        }
        let valid_until = (year < YEAR_MAX).then(|| instant(end));
        Schedule { stretches: stretches.into(), valid_until }
    }

    /// Returns a schedule of one stretch that holds for ever, by a clock with this offset from UTC.
    fn steady(&self, offset: i64) -> Schedule {
        let (step, phase) = self.grid();
        let stretch = Stretch { start: instant((phase - offset).rem_euclid(step)), length: instant(step) };
        Schedule { stretches: Arc::new([stretch]), valid_until: None }
    }

    /// Returns the distance between two boundaries in local time, and one boundary.
    fn grid(&self) -> (i64, i64) {
        match self.period {
            Period::Span(span) => (i64::try_from(span.as_micros()).unwrap_or(DAY_US).clamp(1, DAY_US), 0),
            Period::Week => (WEEK_US, MONDAY_US),
            // Used only for a year whose months could not be computed.
            Period::Month => (31 * DAY_US, 0),
        }
    }

    /// Returns the boundaries between two instants, for a period of fixed length.
    fn steps(&self, from: i64, to: i64) -> Vec<Run> {
        let (step, phase) = self.grid();
        let at_or_before = |local: i64| local - (local - phase).rem_euclid(step);
        let mut runs = Vec::new();
        let (mut start, mut offset) = (from, self.offset_us(from));
        // The latest boundary of whole days, in local time: none of them begins again.
        let mut begun = i64::MIN;
        let ends = self.changes(from).take_while(|change| change.0 < to).chain([(to, 0)]);
        for (end, offset_next) in ends {
            let mut first = at_or_before(start + offset + step - 1);
            if step >= DAY_US {
                first = first.max(begun.saturating_add(step));
            }
            let last = at_or_before(end - 1 + offset);
            if first <= last {
                runs.push(Run { first: first - offset, last: last - offset, step });
                begun = last;
            }
            let (reached, resumed) = (end + offset, end + offset_next);
            let jumped = at_or_before(resumed);
            if end < to && resumed > reached && jumped >= reached && jumped < resumed {
                runs.push(Run { first: end, last: end, step });
                begun = jumped;
            }
            (start, offset) = (end, offset_next);
        }
        runs
    }

    /// Returns the months from the one before a year to two after it.
    fn months(&self, year: i16) -> Vec<Run> {
        let dates = (0..17).filter_map(|count: i16| {
            // From November before it: local time may be behind, and the cover begins in December.
            let month = 10 + count;
            Date::new(year - 1 + month / 12, i8::try_from(month % 12).ok()? + 1, 1).ok()
        });
        let starts: Vec<i64> = dates
            .filter_map(|date| {
                let midnight = date.to_zoned(self.zone.clone()).ok()?;
                Some(midnight.start_of_day().ok()?.timestamp().as_microsecond())
            })
            .collect();
        let lengths = starts.windows(2).filter_map(|pair| match pair {
            [start, next] => Some(Run { first: *start, last: *start, step: next - start }),
            _ => None,
        });
        lengths.collect()
    }

    /// Returns the changes of the zone's clock after an instant: when, and to which offset.
    fn changes(&self, after: i64) -> impl Iterator<Item = (i64, i64)> {
        let after = Timestamp::from_microsecond(after).unwrap_or(Timestamp::UNIX_EPOCH);
        let mut before = self.zone.to_offset(after);
        self.zone.following(after).filter_map(move |change| {
            // Some changes only rename the zone's time, at the same offset.
            let differs = change.offset() != before;
            before = change.offset();
            differs.then(|| (change.timestamp().as_microsecond(), micros_of(before)))
        })
    }

    fn is_fixed_from(&self, after: i64) -> bool {
        self.changes(after).next().is_none()
    }

    fn offset_us(&self, at: i64) -> i64 {
        micros_of(self.zone.to_offset(Timestamp::from_microsecond(at).unwrap_or(Timestamp::UNIX_EPOCH)))
    }
}

/// Returns the window that holds an instant: its start and its end.
pub fn window_of(stretches: &[Stretch], at: Micros) -> (Micros, Micros) {
    let later = stretches.partition_point(|stretch| stretch.start <= at);
    let next = stretches.get(later).map(|stretch| stretch.start);
    let Some(stretch) = later.checked_sub(1).and_then(|index| stretches.get(index)) else {
        return (Micros::ZERO, next.unwrap_or(Micros::SPAN_MAX));
    };
    let into = (at - stretch.start).0 % stretch.length.0.max(1);
    let start = at - Micros(into);
    let end = start + stretch.length;
    (start, next.map_or(end, |next| end.min(next)))
}

/// Boundaries that are `step` apart; the next run's first may be nearer to the last one or farther from it.
struct Run {
    first: i64,
    last: i64,
    step: i64,
}

/// Returns the stretches from the last boundary at or before an instant on.
fn stretches(mut runs: Vec<Run>, from: i64) -> Vec<Stretch> {
    let begin = runs.iter().rposition(|run| run.first <= from).unwrap_or(0);
    runs.drain(..begin);
    if let Some(run) = runs.first_mut() {
        let passed = (from.clamp(run.first, run.last) - run.first) / run.step;
        run.first += passed * run.step;
        // Before the epoch there are no instants.
        if run.first < 0 {
            run.first += run.step;
        }
        if run.first > run.last {
            runs.remove(0);
        }
    }
    let mut stretches: Vec<Stretch> = Vec::new();
    let mut add = |start: i64, length: i64| {
        let (start, length) = (instant(start), instant(length));
        let continues = |before: &Stretch| {
            before.length == length && (start - before.start).0.is_multiple_of(length.0.max(1))
        };
        if !stretches.last().is_some_and(continues) {
            stretches.push(Stretch { start, length });
        }
    };
    for (index, run) in runs.iter().enumerate() {
        let last_length = runs.get(index + 1).map_or(run.step, |next| next.first - run.last);
        // A last window that is shorter is cut by the next stretch; a longer one needs a stretch of its own.
        if last_length <= run.step || run.first < run.last {
            add(run.first, run.step);
        }
        if last_length > run.step {
            add(run.last, last_length);
        }
    }
    stretches
}

/// Returns the begin of a year's schedule, the end of the year, and the end of the schedule.
fn bounds(year: i16) -> Option<[i64; 3]> {
    let begin_of = |year: i16, month: i8| {
        let midnight = Date::new(year, month, 1).ok()?.at(0, 0, 0, 0);
        Some(Offset::UTC.to_timestamp(midnight).ok()?.as_microsecond().max(0))
    };
    Some([begin_of(year - 1, 12)?, begin_of(year + 1, 1)?, begin_of(year + 1, 3)?])
}

fn year_of(at: Micros) -> i16 {
    let at = i64::try_from(at.0).ok().and_then(|at| Timestamp::from_microsecond(at).ok());
    at.map_or(YEAR_MAX, |at| Offset::UTC.to_datetime(at).year().min(YEAR_MAX))
}

fn micros_of(offset: Offset) -> i64 {
    i64::from(offset.seconds()) * SECOND_US
}

fn instant(at: i64) -> Micros {
    Micros(u64::try_from(at).unwrap_or(0))
}

#[cfg(test)]
mod tests;
