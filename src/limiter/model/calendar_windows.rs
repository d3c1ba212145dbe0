//! Windows aligned to a calendar: where they begin and end, as instants.
//!
//! A store knows no time zones, so the boundaries are worked out here and passed in, as stretches of windows of
//! equal length. Knows nothing of limits.
//!
//! A window begins at each instant whose local time is a multiple of the period. Where the clock is set forward over
//! such a time, or onto it, the window begins with the change, so a day whose midnight does not exist begins with the first
//! instant that it has. Where it is set back, a part of a day begins again with its local time, but a day, a week and a
//! month begin once. All other windows only get longer or shorter: a day lasts 23 or 25 hours, and six hours
//! over a change five or seven.

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
/// The last year whose instants stay below 2^53 with all that is computed from them; its schedule holds for ever.
const YEAR_MAX: i16 = 2254;
/// How far before its first instant a schedule is worked out: more than the longest window that is found by steps.
const LOOK_BACK_US: i64 = 2 * WEEK_US;

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
    /// Windows of this period by the clock of a zone of the tz database, such as `Asia/Shanghai`; `None` if there is no
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
        // A name for "not known", and not one that a clock goes by.
        let zone = TimeZone::get(zone).ok().filter(|zone| !zone.is_unknown());
        zone.filter(|_| fits).map(|zone| CalendarWindows { period, zone })
    }

    /// The names of all zones.
    pub fn zones() -> Vec<String> {
        db().available().map(|name| name.to_string()).collect()
    }

    /// How long a window is while no clock is changed; `None` for months, which differ.
    pub fn nominal(&self) -> Option<Duration> {
        match self.period {
            Period::Span(span) => Some(span),
            Period::Week => Some(7 * DAY),
            Period::Month => None,
        }
    }

    /// At least as long as the longest window that may occur. Not exact: it decides how long state is kept. A window
    /// shorter than a day becomes less than twice as long by a change of the clock.
    pub fn longest(&self) -> Duration {
        let nominal = self.nominal().unwrap_or(MONTH_MAX);
        if self.is_fixed_from(PAST_END_US) { nominal } else { nominal + nominal.min(FALL_BACK_MAX) }
    }

    /// The windows around an instant: the same for all instants of a year (of UTC), and for all instants where the zone's
    /// clock is not changed any more. Otherwise from a month before that year to two months after it.
    pub fn schedule(&self, around: Micros) -> Schedule {
        let year = year_of(around);
        // In these years every date exists; a window for ever is what is left where one did not.
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

    /// One stretch for ever, by a clock of this offset.
    fn steady(&self, offset: i64) -> Schedule {
        let (step, phase) = self.grid();
        let stretch = Stretch { start: instant((phase - offset).rem_euclid(step)), length: instant(step) };
        Schedule { stretches: Arc::new([stretch]), valid_until: None }
    }

    /// In local time: the distance of two boundaries, and one of them.
    fn grid(&self) -> (i64, i64) {
        match self.period {
            Period::Span(span) => (i64::try_from(span.as_micros()).unwrap_or(DAY_US).clamp(1, DAY_US), 0),
            Period::Week => (WEEK_US, MONDAY_US),
            // Only where a year could not be computed.
            Period::Month => (31 * DAY_US, 0),
        }
    }

    /// The boundaries between two instants, for a period of fixed length.
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

    /// The months from the one before a year to two after it.
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

    /// When the zone's clock is changed after an instant, and to which offset.
    fn changes(&self, after: i64) -> impl Iterator<Item = (i64, i64)> {
        let after = Timestamp::from_microsecond(after).unwrap_or(Timestamp::UNIX_EPOCH);
        let mut before = self.zone.to_offset(after);
        self.zone.following(after).filter_map(move |change| {
            // Some only rename what stays as it is.
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

/// Boundaries that are `step` apart; the next run's first may be nearer to the last one or farther from it.
struct Run {
    first: i64,
    last: i64,
    step: i64,
}

/// From the last boundary at or before an instant on.
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
        // A shorter one is cut by the next stretch, a longer one needs its own.
        if last_length <= run.step || run.first < run.last {
            add(run.first, run.step);
        }
        if last_length > run.step {
            add(run.last, last_length);
        }
    }
    stretches
}

/// Where the cover of a year's schedule begins, where the year ends, and where the cover ends.
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
mod tests {
    use jiff::Timestamp;
    use proptest::prelude::*;

    use super::*;
    use crate::limiter::arithmetic::rule::window_of;

    const HOUR: Duration = Duration::from_secs(3600);

    fn windows(period: Period, zone: &str) -> CalendarWindows {
        CalendarWindows::new(period, zone).unwrap()
    }

    fn at(text: &str) -> Micros {
        instant(text.parse::<Timestamp>().unwrap().as_microsecond())
    }

    /// The window that holds an instant, as a store finds it.
    fn window(schedule: &Schedule, at: Micros) -> (Micros, Micros) {
        window_of(&schedule.stretches, at)
    }

    /// The beginnings of the windows from the one that holds an instant, as local times, and their lengths in minutes.
    fn listed(windows: &CalendarWindows, from: &str, count: usize) -> Vec<(String, u64)> {
        let mut next = at(from);
        let schedule = windows.schedule(next);
        let mut listed = Vec::new();
        for _ in 0..count {
            let (start, end) = window(&schedule, next);
            let local = timestamp(start).to_zoned(windows.zone.clone());
            listed.push((local.strftime("%m-%d %H:%M").to_string(), (end - start).0 / 60_000_000));
            next = end;
        }
        listed
    }

    fn timestamp(at: Micros) -> Timestamp {
        Timestamp::from_microsecond(i64::try_from(at.0).unwrap()).unwrap()
    }

    fn assert_listed(windows: &CalendarWindows, from: &str, expected: &[(&str, u64)]) {
        let expected: Vec<_> =
            expected.iter().map(|(start, length)| ((*start).to_owned(), *length)).collect();
        assert_eq!(listed(windows, from, expected.len()), expected, "{:?}", windows.period);
    }

    #[test]
    fn a_zone_that_is_never_changed_has_one_stretch_for_ever() {
        let year = at("2026-11-21T00:00:00Z");
        for (period, zone, start, length) in [
            (Period::Span(HOUR), "UTC", 0, 3600),
            (Period::Span(24 * HOUR), "UTC", 0, 86_400),
            (Period::Span(24 * HOUR), "Asia/Shanghai", 16 * 3600, 86_400),
            (Period::Span(HOUR), "Asia/Kolkata", 1800, 3600),
            (Period::Week, "UTC", 4 * 86_400, 7 * 86_400),
            (Period::Week, "Asia/Shanghai", 4 * 86_400 - 8 * 3600, 7 * 86_400),
        ] {
            let windows = windows(period, zone);
            let stretch = Stretch {
                start: Micros::from_millis(start * 1000),
                length: Micros::from_millis(length * 1000),
            };
            let expected = Schedule { stretches: [stretch].into(), valid_until: None };
            for around in [Micros(0), at("1988-07-01T00:00:00Z"), year, Micros(u64::MAX)] {
                assert_eq!(windows.schedule(around), expected, "{zone} {period:?}");
            }
            assert_eq!(windows.longest(), windows.nominal().unwrap());
        }
    }

    #[test]
    fn days_over_both_changes() {
        for (zone, spring, spring_day, autumn, autumn_day) in [
            (
                "Europe/Berlin",
                "2026-03-28T12:00:00Z",
                ["03-28", "03-29", "03-30"],
                "2026-10-24T12:00:00Z",
                ["10-24", "10-25", "10-26"],
            ),
            (
                "America/New_York",
                "2026-03-07T12:00:00Z",
                ["03-07", "03-08", "03-09"],
                "2026-10-31T12:00:00Z",
                ["10-31", "11-01", "11-02"],
            ),
        ] {
            let days = windows(Period::Span(24 * HOUR), zone);
            for (from, names, odd) in [(spring, spring_day, 23), (autumn, autumn_day, 25)] {
                let expected: Vec<_> = names
                    .iter()
                    .zip([24, odd, 24])
                    .map(|(day, hours)| (format!("{day} 00:00"), hours * 60))
                    .collect();
                assert_eq!(listed(&days, from, 3), expected);
            }
            assert!(days.longest() >= 25 * HOUR);
        }
    }

    #[test]
    fn parts_of_a_day_over_both_changes() {
        let berlin = windows(Period::Span(6 * HOUR), "Europe/Berlin");
        assert_listed(
            &berlin,
            "2026-03-28T20:00:00Z",
            &[("03-28 18:00", 360), ("03-29 00:00", 300), ("03-29 06:00", 360)],
        );
        assert_listed(
            &berlin,
            "2026-10-24T20:00:00Z",
            &[("10-24 18:00", 360), ("10-25 00:00", 420), ("10-25 06:00", 360)],
        );
        let new_york = windows(Period::Span(6 * HOUR), "America/New_York");
        assert_listed(&new_york, "2026-03-08T05:00:00Z", &[("03-08 00:00", 300), ("03-08 06:00", 360)]);
        assert_listed(&new_york, "2026-11-01T04:00:00Z", &[("11-01 00:00", 420), ("11-01 06:00", 360)]);
        // A whole hour's change leaves hours as they are.
        for zone in ["Europe/Berlin", "America/New_York"] {
            let hours = windows(Period::Span(HOUR), zone).schedule(at("2026-06-01T00:00:00Z"));
            assert_eq!(hours.stretches.len(), 1, "{hours:?}");
            assert_eq!(hours.stretches[0].length, Micros::from(HOUR));
        }
        // The change lands on a boundary, forward at 3:00 and back at 2:00: a window begins with it.
        let threes = windows(Period::Span(3 * HOUR), "Europe/Berlin");
        assert_listed(&threes, "2026-03-28T23:00:00Z", &[("03-29 00:00", 120), ("03-29 03:00", 180)]);
        let twos = windows(Period::Span(2 * HOUR), "Europe/Berlin");
        assert_listed(
            &twos,
            "2026-10-25T00:00:00Z",
            &[("10-25 02:00", 60), ("10-25 02:00", 120), ("10-25 04:00", 120)],
        );
    }

    #[test]
    fn a_midnight_that_does_not_exist_and_one_that_there_is_twice() {
        let beirut = windows(Period::Span(24 * HOUR), "Asia/Beirut");
        assert_listed(
            &beirut,
            "2026-03-28T12:00:00Z",
            &[("03-28 00:00", 24 * 60), ("03-29 01:00", 23 * 60), ("03-30 00:00", 24 * 60)],
        );
        let havana = windows(Period::Span(24 * HOUR), "America/Havana");
        assert_listed(
            &havana,
            "2026-03-07T12:00:00Z",
            &[("03-07 00:00", 24 * 60), ("03-08 01:00", 23 * 60), ("03-09 00:00", 24 * 60)],
        );
        // At 1:00 back to 0:00.
        assert_listed(
            &havana,
            "2026-10-31T12:00:00Z",
            &[("10-31 00:00", 24 * 60), ("11-01 00:00", 25 * 60), ("11-02 00:00", 24 * 60)],
        );
        // The week of 2026-11-01, a Sunday, is an hour longer.
        let weeks = windows(Period::Week, "America/Havana");
        assert_listed(
            &weeks,
            "2026-10-27T12:00:00Z",
            &[("10-26 00:00", 7 * 24 * 60 + 60), ("11-02 00:00", 7 * 24 * 60)],
        );
    }

    #[test]
    fn a_change_of_half_an_hour() {
        let hours = windows(Period::Span(HOUR), "Australia/Lord_Howe");
        // Back at 2:00 to 1:30 in April, forward at 2:00 to 2:30 in October.
        assert_listed(
            &hours,
            "2026-04-04T13:30:00Z",
            &[("04-05 00:00", 60), ("04-05 01:00", 90), ("04-05 02:00", 60)],
        );
        assert_listed(
            &hours,
            "2026-10-03T14:30:00Z",
            &[("10-04 01:00", 60), ("10-04 02:30", 30), ("10-04 03:00", 60)],
        );
        let days = windows(Period::Span(24 * HOUR), "Australia/Lord_Howe");
        assert_listed(
            &days,
            "2026-04-04T13:00:00Z",
            &[("04-05 00:00", 24 * 60 + 30), ("04-06 00:00", 24 * 60)],
        );
    }

    #[test]
    fn months_have_their_lengths() {
        let utc = windows(Period::Month, "UTC");
        let day = 24 * 60;
        assert_listed(
            &utc,
            "2026-01-15T00:00:00Z",
            &[("01-01 00:00", 31 * day), ("02-01 00:00", 28 * day), ("03-01 00:00", 31 * day)],
        );
        assert_listed(&utc, "2028-02-29T23:59:59Z", &[("02-01 00:00", 29 * day), ("03-01 00:00", 31 * day)]);
        assert_listed(&utc, "2100-02-01T00:00:00Z", &[("02-01 00:00", 28 * day), ("03-01 00:00", 31 * day)]);
        let schedule = utc.schedule(at("2026-07-15T00:00:00Z"));
        assert_eq!(schedule.valid_until, Some(at("2027-01-01T00:00:00Z")));
        // July and August are one stretch, and so are December and January.
        assert_eq!(schedule.stretches.len(), 12, "{schedule:?}");
        let berlin = windows(Period::Month, "Europe/Berlin");
        assert_listed(
            &berlin,
            "2026-03-15T00:00:00Z",
            &[("03-01 00:00", 31 * day - 60), ("04-01 00:00", 30 * day)],
        );
    }

    #[test]
    fn a_schedule_is_the_same_for_all_of_its_year() {
        for period in [Period::Span(6 * HOUR), Period::Span(24 * HOUR), Period::Week, Period::Month] {
            for zone in ["Europe/Berlin", "America/Santiago", "Australia/Lord_Howe"] {
                let windows = windows(period, zone);
                let schedule = windows.schedule(at("2026-01-01T00:00:00Z"));
                assert_eq!(schedule, windows.schedule(at("2026-12-31T23:59:59.999999Z")));
                assert_eq!(schedule.valid_until, Some(at("2027-01-01T00:00:00Z")));
                assert_ne!(schedule, windows.schedule(at("2027-01-01T00:00:00Z")));
                assert!(schedule.stretches[0].start <= at("2025-12-01T00:00:00Z"));
                assert!(schedule.stretches.len() <= 16, "{schedule:?}");
                // What both years know, they know alike.
                let next = windows.schedule(at("2027-01-01T00:00:00Z"));
                for shared in ["2026-12-20T00:00:00Z", "2027-02-10T00:00:00Z"].map(at) {
                    assert_eq!(window(&schedule, shared), window(&next, shared));
                }
            }
        }
    }

    #[test]
    fn only_zones_and_parts_of_a_day_are_taken() {
        assert!(CalendarWindows::new(Period::Week, "Mars/Olympus").is_none());
        assert!(CalendarWindows::new(Period::Week, "Etc/Unknown").is_none());
        assert!(CalendarWindows::new(Period::Span(7 * HOUR), "UTC").is_none());
        assert!(CalendarWindows::new(Period::Span(48 * HOUR), "UTC").is_none());
        assert!(CalendarWindows::new(Period::Span(Duration::ZERO), "UTC").is_none());
        assert!(CalendarWindows::zones().iter().any(|zone| zone == "Asia/Shanghai"));
    }

    #[test]
    fn no_clock_is_set_back_by_more_than_is_assumed() {
        for zone in CalendarWindows::zones() {
            let Some(windows) = CalendarWindows::new(Period::Week, &zone) else { continue };
            let mut before = windows.offset_us(PAST_END_US);
            for (_, offset) in
                windows.changes(PAST_END_US).take_while(|(at, _)| *at < PAST_END_US + 3650 * DAY_US)
            {
                assert!(before - offset <= i64::try_from(FALL_BACK_MAX.as_micros()).unwrap(), "{zone}");
                before = offset;
            }
        }
    }

    fn any_windows() -> impl Strategy<Value = CalendarWindows> {
        let spans = [1, 1000, 60_000, 900_000, 2_700_000, 3_600_000, 7_200_000, 21_600_000, 86_400_000];
        let spans = spans.map(|millis| Period::Span(Duration::from_millis(millis)));
        let periods: Vec<Period> = spans.into_iter().chain([Period::Week, Period::Month]).collect();
        let zone = prop::sample::select(CalendarWindows::zones());
        (prop::sample::select(periods), zone)
            .prop_filter_map("not a zone", |(period, zone)| CalendarWindows::new(period, &zone))
    }

    /// Any instant from 2021 to 2060, often near a change of the clock.
    fn any_instant() -> impl Strategy<Value = (u64, Option<usize>)> {
        (1_609_459_200_000_000_u64..2_871_763_200_000_000, prop::option::of(0..4_usize))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn windows_tile_the_time(windows in any_windows(), (instant, near) in any_instant(), shift in 0..DAY_US) {
            let instant = match near.and_then(|nth| windows.changes(i64::try_from(instant).unwrap()).nth(nth)) {
                Some((change, _)) => Micros(u64::try_from(change - shift / 2).unwrap()),
                None => Micros(instant),
            };
            let schedule = windows.schedule(instant);
            prop_assert!(schedule.stretches.is_sorted_by_key(|stretch| stretch.start));
            let (start, end) = window(&schedule, instant);
            prop_assert!(start <= instant && instant < end);
            prop_assert!((end - start).to_duration() <= windows.longest());
            prop_assert_eq!(window(&schedule, start), (start, end));
            prop_assert_eq!(window(&schedule, end - Micros::ONE), (start, end));
            prop_assert_eq!(window(&schedule, end).0, end);
            prop_assert_eq!(window(&schedule, start - Micros::ONE).1, start);
            let date = |at: Micros| timestamp(at).to_zoned(windows.zone.clone()).date();
            if windows.period == Period::Span(DAY) {
                prop_assert_eq!(date(start), date(end - Micros::ONE));
                prop_assert_ne!(date(start), date(end));
                prop_assert_ne!(date(start), date(start - Micros::ONE));
            }
            if windows.period == Period::Month {
                prop_assert_eq!(date(start).first_of_month(), date(end - Micros::ONE).first_of_month());
                prop_assert_ne!(date(start).first_of_month(), date(end).first_of_month());
            }
        }

        #[test]
        fn no_instant_is_too_much(windows in any_windows(), instant in any::<u64>()) {
            let schedule = windows.schedule(Micros(instant));
            prop_assert!(!schedule.stretches.is_empty());
            prop_assert!(schedule.stretches.iter().all(|stretch| stretch.length > Micros::ZERO));
            prop_assert!(schedule.stretches.iter().all(|stretch| stretch.start.0 < 1 << 53));
        }
    }
}
