//! `limits`: how much in which window, counted how.

use std::num::NonZeroU32;
use std::time::Duration;

use super::place::At;
use super::{Check, DAY};
use crate::config::problem::{nearest, quoted};
use crate::config::schema::forms::Text;
use crate::config::schema::{self, Form};
use crate::config::units::{Per, Quota, show_duration};
use crate::limiter::model::calendar_windows::{CalendarWindows, Period};
use crate::limiter::model::limit::{
    Algorithm, LIMITS_MAX, Limit, PER_MAX, PER_MIN, PRECISION_DEFAULT, Permits, RATE_MAX,
};

/// More instants than this in one window cost more than their exactness is worth.
const PRECISION_MAX: u32 = 65_536;
/// Where the days of fixed windows begin unless `timezone` says otherwise.
const TIMEZONE: &str = "UTC";

/// All limits of a limiter, each with a label of its own.
pub(super) fn limits(
    check: &mut Check<'_>,
    given: &[Form<Text<Quota>, schema::Limit>],
    at: &At<'_>,
) -> Option<Vec<Limit>> {
    if !(1..=LIMITS_MAX).contains(&at.length()) {
        check.problem(at, format!("needs 1 to {LIMITS_MAX} limits, such as 900/1m"));
        return None;
    }
    let mut limits: Vec<Option<Limit>> = given
        .iter()
        .enumerate()
        .map(|(index, given)| match given {
            Form::Short(Text(quota)) => short(check, *quota, &at.index(index)),
            Form::Long(limit) => long(check, limit, &at.index(index)),
        })
        .collect();
    tell_apart(&mut limits);
    for (index, limit) in limits.iter().enumerate() {
        let label = limit.as_ref().map(|limit| &limit.label);
        let earlier = limits[..index].iter().any(|other| other.as_ref().map(|other| &other.label) == label);
        if label.is_some() && earlier {
            check.problem(&at.index(index), "this limit is given twice");
        }
    }
    limits.into_iter().collect()
}

/// The label tells the limits of a limiter apart in metrics and headers. Those of equal rate and window that count in
/// different ways say so behind it, separated by a space: `10/1s token_bucket`, `100/1d Asia/Shanghai`.
fn tell_apart(limits: &mut [Option<Limit>]) {
    let labels: Vec<_> = limits.iter().flatten().map(|limit| limit.label.clone()).collect();
    for limit in limits.iter_mut().flatten() {
        if labels.iter().filter(|label| **label == limit.label).count() < 2 {
            continue;
        }
        if let Some(way) = limit.algorithm.distinction() {
            limit.label = format!("{} {way}", limit.label).into();
        }
    }
}

fn short(check: &mut Check<'_>, quota: Quota, at: &At<'_>) -> Option<Limit> {
    let rate = rate(check, i64::try_from(quota.rate).unwrap_or(i64::MAX), at);
    let per = span(check, quota.per, at);
    let precision = NonZeroU32::new(PRECISION_DEFAULT)?;
    Some(limit(rate?, per?, Algorithm::SlidingWindow { precision }))
}

fn long(check: &mut Check<'_>, given: &schema::Limit, at: &At<'_>) -> Option<Limit> {
    let algorithm = given.algorithm.unwrap_or(schema::Algorithm::SlidingWindow);
    let rate = rate(check, given.rate, &at.key("rate"));
    let precision = check.count(given.precision, PRECISION_DEFAULT, 1..=PRECISION_MAX, &at.key("precision"));
    let burst = given.burst.map(|burst| check.count(Some(burst), 1, 1..=RATE_MAX, &at.key("burst")));
    let only_with = |check: &mut Check<'_>, key: &str, needed: schema::Algorithm| {
        if at.key(key).is_given() && algorithm != needed && !at.key("algorithm").is_faulty() {
            let message = format!("only with `algorithm: {}`", algorithm_name(needed));
            check.problem_of_key(&at.key(key), message);
        }
    };
    only_with(check, "precision", schema::Algorithm::SlidingWindow);
    only_with(check, "burst", schema::Algorithm::TokenBucket);
    only_with(check, "timezone", schema::Algorithm::FixedWindow);
    if algorithm == schema::Algorithm::FixedWindow {
        let windows = windows(check, given, at);
        return fixed(rate?, windows?);
    }
    let per = match given.per.0 {
        Per::Span(per) => span(check, per, &at.key("per")),
        Per::Week | Per::Month => {
            let message = "`1w` and `1mo` need `algorithm: fixed_window`; otherwise write it in days";
            check.problem(&at.key("per"), message);
            None
        }
    };
    let algorithm = match algorithm {
        schema::Algorithm::TokenBucket => {
            let burst = match burst {
                None => rate,
                Some(burst) => burst.and_then(|burst| Permits::new(burst.into())),
            };
            refills(check, burst?, per?, rate?, at)?;
            Algorithm::TokenBucket { burst: burst? }
        }
        schema::Algorithm::LeakyBucket => Algorithm::LeakyBucket,
        schema::Algorithm::SlidingWindow | schema::Algorithm::FixedWindow => {
            Algorithm::SlidingWindow { precision: NonZeroU32::new(precision?)? }
        }
    };
    Some(limit(rate?, per?, algorithm))
}

fn limit(rate: Permits, per: Duration, algorithm: Algorithm) -> Limit {
    Limit { rate, per, algorithm, label: format!("{rate}/{}", show_duration(per)).into() }
}

fn fixed(rate: Permits, windows: CalendarWindows) -> Option<Limit> {
    let per = match windows.period {
        Period::Span(span) => show_duration(span),
        Period::Week => "1w".to_owned(),
        Period::Month => "1mo".to_owned(),
    };
    let label = format!("{rate}/{per}").into();
    Some(Limit { rate, per: windows.longest(), algorithm: Algorithm::FixedWindow { windows }, label })
}

fn rate(check: &mut Check<'_>, given: i64, at: &At<'_>) -> Option<Permits> {
    let rate = u64::try_from(given).ok().and_then(Permits::new);
    if rate.is_none() {
        check.problem(at, format!("the rate must be from 1 to {RATE_MAX}"));
    }
    rate
}

fn span(check: &mut Check<'_>, per: Duration, at: &At<'_>) -> Option<Duration> {
    let fits = (PER_MIN..=PER_MAX).contains(&per);
    if !fits {
        let (from, to) = (show_duration(PER_MIN), show_duration(PER_MAX));
        check.problem(at, format!("the window must be from {from} to {to}"));
    }
    fits.then_some(per)
}

/// An empty bucket must be full again within the longest window: its state is kept that long.
fn refills(check: &mut Check<'_>, burst: Permits, per: Duration, rate: Permits, at: &At<'_>) -> Option<()> {
    let refill_us = u128::from(burst.get()) * per.as_micros() / u128::from(rate.get());
    if refill_us <= PER_MAX.as_micros() {
        return Some(());
    }
    let longest = show_duration(PER_MAX);
    let key = if at.key("burst").is_given() { "burst" } else { "per" };
    let message = format!(
        "an empty bucket must be full again within {longest}, and at `rate` per `per` it is not; choose a smaller \
         `burst`"
    );
    check.problem(&at.key(key), message);
    None
}

fn windows(check: &mut Check<'_>, given: &schema::Limit, at: &At<'_>) -> Option<CalendarWindows> {
    let period = match given.per.0 {
        Per::Week => Some(Period::Week),
        Per::Month => Some(Period::Month),
        Per::Span(per) => {
            let fits = !per.is_zero() && DAY.as_millis().is_multiple_of(per.as_millis());
            if !fits {
                check.problem(&at.key("per"), "with fixed_window it must divide a day, or be 1d, 1w or 1mo");
            }
            fits.then_some(Period::Span(per))
        }
    };
    let at_zone = at.key("timezone");
    if at_zone.is_faulty() {
        return None;
    }
    let name = given.timezone.as_deref().unwrap_or(TIMEZONE);
    if CalendarWindows::new(Period::Week, name).is_none() {
        let message = unknown_timezone(name, at_zone.is_interpolated());
        check.problem(&at_zone, message);
        return None;
    }
    CalendarWindows::new(period?, name)
}

/// There are too many to list; one out of the environment is not repeated.
fn unknown_timezone(name: &str, is_secret: bool) -> String {
    let zones = CalendarWindows::zones();
    let shown = if is_secret { "***" } else { name };
    match nearest(shown, zones.iter().map(String::as_str)) {
        Some(near) => format!("unknown time zone {}; did you mean {}?", quoted(shown), quoted(near)),
        None => {
            format!("unknown time zone {}; expected a name such as UTC or Asia/Shanghai", quoted(shown))
        }
    }
}

fn algorithm_name(algorithm: schema::Algorithm) -> &'static str {
    match algorithm {
        schema::Algorithm::SlidingWindow => "sliding_window",
        schema::Algorithm::TokenBucket => "token_bucket",
        schema::Algorithm::LeakyBucket => "leaky_bucket",
        schema::Algorithm::FixedWindow => "fixed_window",
    }
}
