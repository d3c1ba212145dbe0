//! `limits`: rate, window and algorithm of each.

use std::num::NonZeroU32;
use std::time::Duration;

use super::check::{Check, DAY};
use super::place::{At, Given, key};
use crate::config::problem::{nearest, quoted};
use crate::config::schema::forms::Text;
use crate::config::schema::{self, Form};
use crate::config::units::{Per, Quota, show_duration};
use crate::limiter::model::calendar_windows::{CalendarWindows, Period};
use crate::limiter::model::limit::{
    Algorithm, COLD_DEFAULT, COLD_MAX, LIMITS_MAX, Limit, PER_MAX, PER_MIN, PRECISION_DEFAULT, Permits,
    RATE_MAX, WARM_UP_MAX, WARM_UP_MIN,
};

/// The largest `precision`: more instants in one window would cost more than their exactness is worth.
const PRECISION_MAX: u32 = 65_536;
/// The default of `timezone`.
const TIMEZONE: &str = "UTC";

/// Checks all limits of a limiter and gives each a distinct label.
pub(super) fn limits(check: &mut Check<'_>, given: &Given<'_, schema::Limits>) -> Option<Vec<Limit>> {
    if !(1..=LIMITS_MAX).contains(&given.at.length()) {
        return check.refuse(&given.at, format!("needs 1 to {LIMITS_MAX} limits, such as 900/1m"));
    }
    let mut limits: Vec<Option<Limit>> = given
        .items()
        .map(|limit| match limit.value {
            Form::Short(Text(quota)) => short(check, *quota, &limit.at),
            Form::Long(long_form) => long(check, &Given::new(long_form, limit.at)),
        })
        .collect();
    tell_apart(&mut limits);
    for (index, limit) in limits.iter().enumerate() {
        let label = limit.as_ref().map(|limit| &limit.label);
        let earlier = limits[..index].iter().any(|other| other.as_ref().map(|other| &other.label) == label);
        if label.is_some() && earlier {
            check.problem(&given.at.index(index), "this limit is given twice");
        }
    }
    limits.into_iter().collect()
}

/// Returns why a limit cannot have a guard, if it cannot.
pub(super) fn misfit(limit: &Limit, guard: Duration) -> Option<String> {
    let (window, shown) = (quoted(&limit.label), show_duration(guard));
    if guard > limit.per {
        return Some(format!("the guard, here {shown}, must not be longer than the window of {window}"));
    }
    // A fixed window is shortened by the guard at its end, and at least half of it must remain.
    let is_fixed = limit.algorithm.calendar().is_some();
    (is_fixed && limit.window().is_some_and(|window| window < 2 * guard)).then(|| {
        format!("a fixed window must be at least twice the guard, here {shown}: {window} is shorter")
    })
}

/// Makes the labels distinct: limits of equal rate and window but another algorithm or time zone get the algorithm or the
/// zone behind a space, as in `10/1s token_bucket` or `100/1d Asia/Shanghai`.
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

fn long(check: &mut Check<'_>, limit: &Given<'_, schema::Limit>) -> Option<Limit> {
    let algorithm = limit.value.algorithm.unwrap_or(schema::Algorithm::SlidingWindow);
    let rate = rate(check, limit.value.rate, &key!(limit.rate).at);
    let precision = check.count(&key!(limit.precision), PRECISION_DEFAULT, 1..=PRECISION_MAX);
    let burst = key!(limit.burst).checked(|_| check.count(&key!(limit.burst), 1, 1..=RATE_MAX));
    keys_fit(check, limit, algorithm);
    if algorithm == schema::Algorithm::FixedWindow {
        let windows = windows(check, limit);
        return fixed(rate?, windows?);
    }
    let per = match limit.value.per.0 {
        Per::Span(per) => span(check, per, &key!(limit.per).at),
        Per::Week | Per::Month => {
            let message = "`1w` and `1mo` need `algorithm: fixed_window`; otherwise write it in days";
            check.refuse(&key!(limit.per).at, message)
        }
    };
    let algorithm = match algorithm {
        schema::Algorithm::TokenBucket => {
            let burst = match burst? {
                None => rate?,
                Some(burst) => Permits::new(burst.into())?,
            };
            refills(check, limit, burst, per?, rate?)?;
            Algorithm::TokenBucket { burst }
        }
        schema::Algorithm::LeakyBucket => Algorithm::LeakyBucket,
        schema::Algorithm::WarmUp => warm_up(check, limit)?,
        schema::Algorithm::SlidingWindow | schema::Algorithm::FixedWindow => {
            Algorithm::SlidingWindow { precision: NonZeroU32::new(precision?)? }
        }
    };
    Some(self::limit(rate?, per?, algorithm))
}

/// Reports keys that belong to another algorithm.
fn keys_fit(check: &mut Check<'_>, limit: &Given<'_, schema::Limit>, algorithm: schema::Algorithm) {
    use schema::Algorithm::{FixedWindow, SlidingWindow, TokenBucket, WarmUp};
    let needs = [
        (key!(limit.precision).at, SlidingWindow, "sliding_window"),
        (key!(limit.burst).at, TokenBucket, "token_bucket"),
        (key!(limit.timezone).at, FixedWindow, "fixed_window"),
        (key!(limit.warm_up).at, WarmUp, "warm_up"),
        (key!(limit.cold).at, WarmUp, "warm_up"),
    ];
    for (at, needed, name) in needs {
        if at.is_given() && algorithm != needed && !key!(limit.algorithm).at.is_faulty() {
            check.problem_of_key(&at, format!("only with `algorithm: {name}`"));
        }
    }
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
    rate.or_else(|| check.refuse(at, format!("the rate must be from 1 to {RATE_MAX}")))
}

fn span(check: &mut Check<'_>, per: Duration, at: &At<'_>) -> Option<Duration> {
    if (PER_MIN..=PER_MAX).contains(&per) {
        return Some(per);
    }
    let (from, to) = (show_duration(PER_MIN), show_duration(PER_MAX));
    check.refuse(at, format!("the window must be from {from} to {to}"))
}

/// Checks that an empty bucket is full again within the longest window: its state is kept no longer.
fn refills(
    check: &mut Check<'_>,
    limit: &Given<'_, schema::Limit>,
    burst: Permits,
    per: Duration,
    rate: Permits,
) -> Option<()> {
    let refill_us = u128::from(burst.get()) * per.as_micros() / u128::from(rate.get());
    if refill_us <= PER_MAX.as_micros() {
        return Some(());
    }
    let longest = show_duration(PER_MAX);
    let burst = key!(limit.burst).at;
    let at = if burst.is_given() { burst } else { key!(limit.per).at };
    let message = format!(
        "an empty bucket must be full again within {longest}, and at `rate` per `per` it is not; choose a smaller \
         `burst`"
    );
    check.refuse(&at, message)
}

fn warm_up(check: &mut Check<'_>, limit: &Given<'_, schema::Limit>) -> Option<Algorithm> {
    let cold = check.count(&key!(limit.cold), COLD_DEFAULT, 1..=COLD_MAX);
    let Some(given) = key!(limit.warm_up).get() else {
        let message = "needs `warm_up`, the idle time after which it is cold, such as 10s";
        let is_faulty = key!(limit.warm_up).at.is_faulty();
        return if is_faulty { None } else { check.refuse(&key!(limit.algorithm).at, message) };
    };
    let warm_up = check.within(&given, WARM_UP_MIN..=WARM_UP_MAX);
    Some(Algorithm::WarmUp { warm_up: warm_up?, cold: NonZeroU32::new(cold?)? })
}

fn windows(check: &mut Check<'_>, limit: &Given<'_, schema::Limit>) -> Option<CalendarWindows> {
    let period = match limit.value.per.0 {
        Per::Week => Some(Period::Week),
        Per::Month => Some(Period::Month),
        Per::Span(per) => {
            let fits = !per.is_zero() && DAY.as_millis().is_multiple_of(per.as_millis());
            let message = "with fixed_window it must divide a day, or be 1d, 1w or 1mo";
            if fits { Some(Period::Span(per)) } else { check.refuse(&key!(limit.per).at, message) }
        }
    };
    let Given { value: zone, at } = key!(limit.timezone);
    if at.is_faulty() {
        return None;
    }
    let zone = zone.as_deref().unwrap_or(TIMEZONE);
    if CalendarWindows::new(Period::Week, zone).is_none() {
        return check.refuse(&at, unknown_timezone(zone, at.is_interpolated()));
    }
    CalendarWindows::new(period?, zone)
}

/// Formats the message about an unknown time zone: with the nearest name, since there are too many to list. A name
/// from the environment is not repeated.
fn unknown_timezone(name: &str, is_interpolated: bool) -> String {
    let zones = CalendarWindows::zones();
    let shown = if is_interpolated { "***" } else { name };
    match nearest(shown, zones.iter().map(String::as_str)) {
        Some(near) => format!("unknown time zone {}; did you mean {}?", quoted(shown), quoted(near)),
        None => {
            format!("unknown time zone {}; expected a name such as UTC or Asia/Shanghai", quoted(shown))
        }
    }
}
