//! Calendar windows over changes of the clock, and over all zones.

use jiff::Timestamp;
use proptest::prelude::*;

use super::*;

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
    let expected: Vec<_> = expected.iter().map(|(start, length)| ((*start).to_owned(), *length)).collect();
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
        let stretch =
            Stretch { start: Micros::from_millis(start * 1000), length: Micros::from_millis(length * 1000) };
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
    // A change by a whole hour leaves windows of an hour as they are.
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
    assert_listed(&days, "2026-04-04T13:00:00Z", &[("04-05 00:00", 24 * 60 + 30), ("04-06 00:00", 24 * 60)]);
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
            // The schedules of both years agree on the windows that both hold.
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
