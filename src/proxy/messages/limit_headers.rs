//! The headers that tell a caller what is left of a quota, as the IETF's draft, OpenAI and GitHub write them.
//!
//! Knows nothing of requests. Those of an upstream are replaced, because it knows nothing of the other callers' permits.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue};

use super::quota::names::Name;
use crate::clock::{Micros, unix_time};
use crate::config::model::LimitHeaders;
use crate::limiter::QuotaLeft;
use crate::limiter::model::{Limit, Limiter};

pub(crate) const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(crate) const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The usual size of a policy in `RateLimit-Policy`, to allocate once.
const POLICY_BYTES: usize = 48;

/// The family of `X-RateLimit-*`.
const OF_VENDORS: &str = "x-ratelimit";
/// The family of the IETF's drafts.
const OF_IETF: &str = "ratelimit";

/// The permits left of the quota, of the tightest limit.
#[derive(Default)]
pub(crate) struct Left {
    /// Of the limits that count requests, or of all where a form tells one alone.
    pub(crate) requests: Option<QuotaLeft>,
    /// Of those that count tokens, where a form tells both.
    pub(crate) tokens: Option<QuotaLeft>,
}

/// Among which limits the tightest is sought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Among {
    All,
    Requests,
    Tokens,
}

impl Among {
    /// Returns true if a limit is one of these.
    pub(crate) fn includes(self, counts_tokens: bool) -> bool {
        match self {
            Among::All => true,
            Among::Requests => !counts_tokens,
            Among::Tokens => counts_tokens,
        }
    }
}

impl Left {
    /// Returns what a form tells. `tightest` returns what is left of the tightest limit.
    pub(crate) fn of(form: LimitHeaders, tightest: impl Fn(Among) -> Option<QuotaLeft>) -> Left {
        match form {
            LimitHeaders::Openai => {
                Left { requests: tightest(Among::Requests), tokens: tightest(Among::Tokens) }
            }
            LimitHeaders::Ietf | LimitHeaders::Github => {
                Left { requests: tightest(Among::All), tokens: None }
            }
        }
    }
}

/// The names by which OpenAI tells what is left of requests and of tokens.
const OPENAI_REQUESTS: [&str; 3] =
    ["x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"];
const OPENAI_TOKENS: [&str; 3] =
    ["x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"];

/// Replaces the upstream's headers of a form by what is left here. Where that is not known, none of them remain.
pub(crate) fn replace(headers: &mut HeaderMap, form: LimitHeaders, left: Option<&Left>, now: SystemTime) {
    let family = match form {
        LimitHeaders::Ietf => OF_IETF,
        LimitHeaders::Openai | LimitHeaders::Github => OF_VENDORS,
    };
    let is_of_family = |name: &&HeaderName| {
        name.as_str().strip_prefix(family).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
            || Name::of(name.as_str()).is_some_and(|name| name.family == family)
    };
    let theirs: Vec<HeaderName> = headers.keys().filter(is_of_family).cloned().collect();
    theirs.iter().for_each(|name| drop(headers.remove(name)));
    let Some(Left { requests, tokens }) = left else { return };
    for (left, names) in [(requests, &OPENAI_REQUESTS), (tokens, &OPENAI_TOKENS)] {
        if let Some(left) = left
            && let Some(limit) = left.limiter.limits.get(left.limit)
        {
            write(headers, (form, names), (left, limit), now);
        }
    }
}

fn write(
    headers: &mut HeaderMap,
    (form, openai_names): (LimitHeaders, &[&'static str; 3]),
    (left, limit): (&QuotaLeft, &Limit),
    now: SystemTime,
) {
    let mut set = |name: &'static str, value: String| {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    let (rate, remaining) = (limit.rate.get(), left.left.min(limit.rate.get()));
    match form {
        LimitHeaders::Ietf => {
            let policy = format!("{}:{}", left.limiter.name, limit.label);
            set("ratelimit-policy", policies(&left.limiter));
            set("ratelimit", state(&policy, left.left, left.whole_in));
        }
        LimitHeaders::Openai => {
            let [of_limit, of_remaining, of_reset] = openai_names;
            set(of_limit, rate.to_string());
            set(of_remaining, remaining.to_string());
            set(of_reset, span(left.whole_in));
        }
        LimitHeaders::Github => {
            let at = unix_time(now) + left.whole_in.to_duration();
            let seconds = at.as_secs() + u64::from(at.subsec_nanos() > 0);
            set("x-ratelimit-limit", rate.to_string());
            set("x-ratelimit-remaining", remaining.to_string());
            set("x-ratelimit-used", (rate - remaining).to_string());
            set("x-ratelimit-reset", seconds.to_string());
            set("x-ratelimit-resource", left.limiter.name.to_string());
        }
    }
}

/// Returns the value of `RateLimit`: the permits left of a policy, and the time after which there are more.
pub(crate) fn state(policy: &str, left: u64, more_in: Micros) -> String {
    ["\"", policy, "\";r=", &left.to_string(), ";t=", &more_in.0.div_ceil(1_000_000).to_string()].concat()
}

/// Returns the value of `RateLimit-Policy`: the limits of a limiter as a list. Names and labels hold nothing that a quoted string must
/// escape.
pub(crate) fn policies(limiter: &Limiter) -> String {
    let mut policies = String::with_capacity(limiter.limits.len() * POLICY_BYTES);
    for limit in &limiter.limits {
        let comma = if policies.is_empty() { "" } else { ", " };
        let rate = limit.rate.get().to_string();
        let pieces = [comma, "\"", limiter.name.as_str(), ":", &limit.label, "\";q=", &rate];
        pieces.into_iter().for_each(|piece| policies.push_str(piece));
        if let Some(seconds) = window_seconds(limit) {
            policies.push_str(";w=");
            policies.push_str(&seconds.to_string());
        }
    }
    policies
}

/// Returns the length of a limit's window if every window has it and it is whole seconds, the only unit of `w`.
fn window_seconds(limit: &Limit) -> Option<u64> {
    let window = limit.window()?;
    (window.subsec_nanos() == 0).then_some(window.as_secs())
}

/// Formats a time as OpenAI does: `120ms`, `1s`, `6m0s`, `1h0m30s`. Whole seconds are rounded up.
fn span(time: Micros) -> String {
    let time: Duration = time.to_duration();
    if time < Duration::from_secs(1) {
        return format!("{}ms", time.as_micros().div_ceil(1000));
    }
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::sync::Arc;
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::limiter::model::{Algorithm, LimiterName, Permits};

    fn left(left: u64, whole_in: Micros) -> QuotaLeft {
        let limit = |rate, seconds, label: &str| Limit {
            rate: Permits::new(rate).unwrap(),
            per: Duration::from_secs(seconds),
            algorithm: Algorithm::SlidingWindow { precision: NonZeroU32::new(256).unwrap() },
            label: label.into(),
        };
        let limits = vec![limit(10, 1, "10/1s"), limit(900, 60, "900/1m")];
        let limiter = Arc::new(Limiter::new(LimiterName::parse("api").unwrap(), limits));
        QuotaLeft { limiter, limit: 1, left, whole_in }
    }

    /// Returns the headers of an answer that has those of every family.
    fn replaced(form: LimitHeaders, left: Option<&QuotaLeft>) -> Vec<String> {
        let mut headers = HeaderMap::new();
        for name in [
            "ratelimit",
            "ratelimit-policy",
            "ratelimit-reset",
            "x-ratelimit-limit",
            "x-ratelimit-limit-tokens",
            "x-ratelimit-reset-requests",
            "x-ratelimit-resource",
            "x-ratelimited",
            "anthropic-ratelimit-requests-limit",
            "retry-after",
        ] {
            headers.append(name, HeaderValue::from_static("theirs"));
            headers.append(name, HeaderValue::from_static("theirs"));
        }
        let now = UNIX_EPOCH + Duration::from_millis(1_767_225_600_500);
        let left = left.cloned().map(|left| Left { requests: Some(left), tokens: None });
        replace(&mut headers, form, left.as_ref(), now);
        let lines = headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
        let mut lines: Vec<_> = lines.collect();
        lines.sort();
        lines.dedup();
        lines
    }

    #[test]
    fn the_headers_of_a_family_are_replaced() {
        let left = left(850, Micros::from_millis(59_001));
        let others =
            ["anthropic-ratelimit-requests-limit: theirs", "retry-after: theirs", "x-ratelimited: theirs"];
        let x = [
            "x-ratelimit-limit-tokens: theirs",
            "x-ratelimit-limit: theirs",
            "x-ratelimit-reset-requests: theirs",
            "x-ratelimit-resource: theirs",
        ];
        let ietf = ["ratelimit-policy: theirs", "ratelimit-reset: theirs", "ratelimit: theirs"];
        for (form, kept, set) in [
            (
                LimitHeaders::Ietf,
                &x[..],
                &[
                    "ratelimit-policy: \"api:10/1s\";q=10;w=1, \"api:900/1m\";q=900;w=60",
                    "ratelimit: \"api:900/1m\";r=850;t=60",
                ][..],
            ),
            (
                LimitHeaders::Openai,
                &ietf,
                &[
                    "x-ratelimit-limit-requests: 900",
                    "x-ratelimit-remaining-requests: 850",
                    "x-ratelimit-reset-requests: 1m0s",
                ],
            ),
            (
                LimitHeaders::Github,
                &ietf,
                &[
                    "x-ratelimit-limit: 900",
                    "x-ratelimit-remaining: 850",
                    "x-ratelimit-reset: 1767225660",
                    "x-ratelimit-resource: api",
                    "x-ratelimit-used: 50",
                ],
            ),
        ] {
            let sorted = |set: &[&str]| {
                let mut lines: Vec<String> =
                    others.iter().chain(kept).chain(set).map(|line| (*line).to_owned()).collect();
                lines.sort();
                lines
            };
            assert_eq!(replaced(form, Some(&left)), sorted(set), "{form:?}");
            assert_eq!(replaced(form, None), sorted(&[]), "{form:?}");
        }
    }

    #[test]
    fn openai_tells_requests_and_tokens_apart() {
        let of = |form, expected: &[Among]| {
            let asked = std::cell::RefCell::new(Vec::new());
            let told = Left::of(form, |among| {
                asked.borrow_mut().push(among);
                Some(left(if among == Among::Tokens { 7 } else { 850 }, Micros::ZERO))
            });
            assert_eq!(*asked.borrow(), expected);
            let mut headers = HeaderMap::new();
            replace(&mut headers, form, Some(&told), UNIX_EPOCH);
            let names = ["x-ratelimit-remaining-requests", "x-ratelimit-remaining-tokens"];
            names.map(|name| headers.get(name).map(|value| value.to_str().unwrap().to_owned()))
        };
        let both = [Some("850".to_owned()), Some("7".to_owned())];
        assert_eq!(of(LimitHeaders::Openai, &[Among::Requests, Among::Tokens]), both);
        assert_eq!(of(LimitHeaders::Github, &[Among::All]), [None, None]);
    }

    #[test]
    fn a_time_is_written_as_openai_does() {
        for (micros, expected) in [
            (0, "0ms"),
            (1, "1ms"),
            (999_000, "999ms"),
            (1_000_000, "1s"),
            (1_000_001, "2s"),
            (360_000_000, "6m0s"),
            (3_600_000_000, "1h0m0s"),
            (90_061_000_000, "25h1m1s"),
        ] {
            assert_eq!(span(Micros(micros)), expected);
        }
    }
}
