//! Reads what an upstream's response says about its quota: how long to leave it alone, and what is left in which window.
//! What is done about it is decided elsewhere: this module knows nothing of limiters, of a response's status or of clocks
//! other than the one it is handed, and says nothing itself.
//!
//! There is one standard, `Retry-After` (RFC 9110, 10.2.3), one draft that has changed its fields three times
//! (draft-ietf-httpapi-ratelimit-headers), and a family of names with `ratelimit` or `rate-limit` in them. Of these, all
//! are read that go on with, or end in, `limit`, `remaining`, `reset`, `reset-after` or `retry-after`; what else is in the
//! name tells one window from another: `x-ratelimit-reset-tokens`, `anthropic-ratelimit-tokens-reset`. The tests have a
//! case for each vendor, with the place where its documentation is.
//!
//! An upstream may send anything. A value that makes no sense is counted and otherwise as good as absent; what is too
//! large to be true is cut to [`SPAN_MAX`]; of a response, no more than [`WINDOWS_MAX`] windows are kept.

use std::borrow::Cow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::header::DATE;
use http::{HeaderMap, HeaderValue};
use sfv::{BareItem, Dictionary, Item, List, ListEntry, Parameters, Parser};

/// The windows that are kept of one response. The most that a vendor documents are seven: a second, a minute, an hour, a
/// day, a month, a year and the nearest of them.
pub(crate) const WINDOWS_MAX: usize = 8;

/// The longest value that is read. The longest sensible one lists a few policies with their names.
const VALUE_BYTES_MAX: usize = 256;

/// The longest span that is told: the longest window that a limit can have. What is longer is cut to it, so that whoever
/// adds it to an instant need not fear an overflow.
pub(crate) const SPAN_MAX: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// Where seconds until a reset end and seconds since 1970 begin. Read as a span, 10^9 seconds are 31 years, and no window
/// lasts as long; read as an instant, they are September 2001, before any of these headers was thought of.
const EPOCH_SECONDS_MIN: u64 = 1_000_000_000;

/// Where seconds since 1970 end and milliseconds since 1970 begin. Read as seconds, 10^12 are the year 33658; read as
/// milliseconds, they are September 2001 again.
const EPOCH_MILLISECONDS_MIN: u64 = 1_000_000_000_000;

/// How long ago a window may have been reset. Some upstreams name the last reset until the next request begins another
/// window, and clocks of one provider differ; an instant further back is from a broken clock or is no instant.
const RESET_AGE_MAX: Duration = Duration::from_secs(60 * 60);

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// What a response says about the quota of its upstream.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Quota {
    /// How long the upstream asks to be left alone; `None` if it names no instant. Never zero, and never more than
    /// [`SPAN_MAX`].
    ///
    /// `Retry-After` in milliseconds is asked first, for it is more exact, then `Retry-After`. Where neither names an instant to
    /// come, it is the last reset among the windows that have nothing left. A window that does not say what is left is
    /// taken to have nothing, which is right for a response that refuses: whoever looks at others goes by
    /// [`Quota::windows`].
    pub(crate) wait: Option<Duration>,
    /// The windows that it reports, at most [`WINDOWS_MAX`].
    pub(crate) windows: Vec<Reported>,
    /// How many of the header values that should say something about it mean nothing.
    pub(crate) nonsense: u64,
}

/// One window, as far as the upstream describes it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reported {
    /// What the window holds.
    pub(crate) limit: Option<u64>,
    /// What is left of it; a fraction is cut off, for it is no whole request.
    pub(crate) remaining: Option<u64>,
    /// When there will be more: zero if that has come already.
    pub(crate) resets_in: Option<Duration>,
    /// How long the window is.
    pub(crate) window: Option<Duration>,
}

impl Quota {
    /// Whether anything is said at all. Most responses say nothing, and this allocates nothing.
    pub(crate) fn is_reported(headers: &HeaderMap) -> bool {
        headers.keys().any(|name| Name::of(name.as_str()).is_some())
    }

    /// Reads all that the headers say.
    ///
    /// Instants are relative to the response's own `Date` if it has one that is valid, for the clock that named
    /// them is the upstream's, and to `now` otherwise.
    pub(crate) fn of(headers: &HeaderMap, now: SystemTime) -> Quota {
        let date = headers.get(DATE).and_then(|date| httpdate::parse_http_date(text_of(date)?).ok());
        let mut reader = Reader::new(date.unwrap_or(now));
        for key in headers.keys() {
            let Some(name) = Name::of(key.as_str()) else { continue };
            for (line, value) in headers.get_all(key).iter().enumerate() {
                let is_sense = text_of(value).is_some_and(|text| reader.read(name, line, text));
                reader.nonsense += u64::from(!is_sense);
            }
        }
        reader.finish()
    }
}

/// What a header's name says about its value.
#[derive(Clone, Copy)]
struct Name<'a> {
    part: Part,
    /// The name up to and with `ratelimit`. Two families are never mixed: a gateway and the application behind it
    /// often report each its own.
    family: &'a str,
    /// What tells windows of one family from each other; often empty.
    label: &'a str,
}

#[derive(Clone, Copy)]
enum Part {
    /// A number of milliseconds to wait.
    RetryAfterMilliseconds,
    /// A number of seconds to wait, or a date.
    RetryAfter,
    Limit,
    Remaining,
    /// A span, an instant or a date: see [`Reader::reset`].
    Reset,
    /// A span.
    ResetAfter,
    /// What is used and the limit, with a slash between them.
    UsedOfLimit,
    /// The IETF's `RateLimit`.
    State,
    /// The IETF's `RateLimit-Policy`.
    Policies,
}

/// The words by which members of a family differ, the longer ones first.
const WORDS: [(&str, Part); 5] = [
    ("reset-after", Part::ResetAfter),
    ("retry-after", Part::RetryAfter),
    ("remaining", Part::Remaining),
    ("reset", Part::Reset),
    ("limit", Part::Limit),
];

impl<'a> Name<'a> {
    /// `name` is in lower case, as all that `http` gives.
    fn of(name: &'a str) -> Option<Name<'a>> {
        let is = |part, family| Some(Name { part, family, label: "" });
        match name {
            "retry-after" => is(Part::RetryAfter, name),
            "retry-after-ms" | "x-ms-retry-after-ms" => is(Part::RetryAfterMilliseconds, name),
            "ratelimit" | "beta-ratelimit" => is(Part::State, name),
            "ratelimit-policy" => is(Part::Policies, "ratelimit"),
            "beta-ratelimit-policy" => is(Part::Policies, "beta-ratelimit"),
            "x-rate-limit" => is(Part::Limit, name),
            "x-shopify-shop-api-call-limit" => is(Part::UsedOfLimit, name),
            // Nearly all names end here: a look at four bytes at a time is cheaper than a search.
            _ if !name.as_bytes().windows(4).any(|bytes| bytes == b"rate") => None,
            _ => Name::of_family(name),
        }
    }

    /// `x-ratelimit-remaining`, `x-rate-limit-reset`, `x-ratelimit-limit-tokens`, `vendor-ratelimit-tokens-limit`.
    fn of_family(name: &'a str) -> Option<Name<'a>> {
        let spellings = ["ratelimit", "rate-limit"];
        let end = spellings.iter().find_map(|spelling| Some(name.find(spelling)? + spelling.len()))?;
        let (family, rest) = name.split_at_checked(end)?;
        let rest = rest.strip_prefix('-')?;
        WORDS.iter().find_map(|(word, part)| {
            let behind = rest.strip_prefix(word);
            let behind =
                behind.and_then(|label| if label.is_empty() { Some(label) } else { label.strip_prefix('-') });
            let before = rest.strip_suffix(word).and_then(|label| label.strip_suffix('-'));
            Some(Name { part: *part, family, label: behind.or(before)? })
        })
    }
}

/// The value as text, if it is any, without blanks around it.
fn text_of(value: &HeaderValue) -> Option<&str> {
    let bytes = Some(value.as_bytes()).filter(|bytes| bytes.len() <= VALUE_BYTES_MAX)?;
    Some(std::str::from_utf8(bytes).ok()?.trim_matches([' ', '\t']))
}

/// Which window is meant.
#[derive(PartialEq, Eq)]
struct Key<'a> {
    family: &'a str,
    label: Cow<'a, str>,
    /// Which line of its header it is. Where several servers report, each adds a line to each header.
    line: usize,
}

/// What has been read so far.
struct Reader<'a> {
    /// The instant at which the response was made.
    origin: SystemTime,
    /// The longest of the waits in milliseconds.
    exact: Option<Duration>,
    /// The longest of the waits in seconds and of the dates.
    asked: Option<Duration>,
    windows: Vec<(Key<'a>, Reported)>,
    /// Policies without a name: they belong to the window of their family that has the same limit.
    policies: Vec<(&'a str, Policy)>,
    nonsense: u64,
}

/// A limit, and perhaps how long its window is.
#[derive(Clone, Copy)]
struct Policy {
    limit: u64,
    window: Option<Duration>,
}

impl<'a> Reader<'a> {
    fn new(origin: SystemTime) -> Reader<'a> {
        let (windows, policies) = (Vec::new(), Vec::new());
        Reader { origin, exact: None, asked: None, windows, policies, nonsense: 0 }
    }

    /// Takes one value, whole or not at all. Returns whether it makes sense.
    fn read(&mut self, name: Name<'a>, line: usize, text: &str) -> bool {
        let sense = match name.part {
            Part::RetryAfterMilliseconds => {
                Decimal::of(text).map(|wait| self.exact = self.exact.max(Some(wait.span(MILLISECOND))))
            }
            Part::RetryAfter => self.retry_after(text).map(|wait| self.asked = self.asked.max(Some(wait))),
            Part::Limit => self.limit(name, line, text),
            Part::Remaining => {
                count(text).map(|count| self.note(name, line, |window| window.remaining = Some(count)))
            }
            // An instant is known less exactly than a span.
            Part::Reset => self.reset(text).map(|span| {
                self.note(name, line, |window| window.resets_in = window.resets_in.or(Some(span)));
            }),
            Part::ResetAfter => span(text).map(|span| {
                self.note(name, line, |window| window.resets_in = Some(span));
            }),
            Part::UsedOfLimit => used_of_limit(text).map(|(used, limit)| {
                self.note(name, line, |window| {
                    window.limit = Some(limit);
                    window.remaining = Some(limit.saturating_sub(used));
                });
            }),
            Part::State => self.state(name, line, text),
            Part::Policies => self.named_policies(name, text),
        };
        sense.is_some()
    }

    /// RFC 9110, 10.2.3; some send a fraction (Shopify: `2.0`) or a date as in RFC 3339 (Zoom). A number is never an
    /// instant here. A date before the response was made asks for nothing.
    fn retry_after(&self, text: &str) -> Option<Duration> {
        let seconds = Decimal::of(text).map(|seconds| seconds.span(SECOND));
        seconds.or_else(|| self.until(date(text)?, Duration::ZERO))
    }

    /// A span, or an instant in one of the ways in which it is written. See [`EPOCH_SECONDS_MIN`] and
    /// [`EPOCH_MILLISECONDS_MIN`] for which number is what.
    fn reset(&self, text: &str) -> Option<Duration> {
        let at = match Decimal::of(text) {
            Some(number) if number.whole >= EPOCH_MILLISECONDS_MIN => epoch(number, MILLISECOND),
            Some(number) if number.whole >= EPOCH_SECONDS_MIN => epoch(number, SECOND),
            _ => match span(text) {
                Some(span) => return Some(span),
                None => date(text),
            },
        };
        self.until(at?, RESET_AGE_MAX)
    }

    /// How long it is until an instant: zero if that is past, nothing if it has been for longer than `age_max`.
    fn until(&self, at: SystemTime, age_max: Duration) -> Option<Duration> {
        match at.duration_since(self.origin) {
            Ok(span) => Some(span.min(SPAN_MAX)),
            Err(past) => Some(Duration::ZERO).filter(|_| past.duration() <= age_max),
        }
    }

    /// A number, alone or at the head of a list of policies (`100, 100;w=60, 1000;w=3600`: up to -06 of the draft), or itself
    /// with a window (`100;w=21600`).
    fn limit(&mut self, name: Name<'a>, line: usize, text: &str) -> Option<()> {
        let number = Decimal::of(text).map(|number| vec![Policy { limit: number.whole, window: None }]);
        let policies =
            number.or_else(|| items(text)?.iter().map(Policy::of_number).collect::<Option<Vec<_>>>())?;
        let (first, rest) = policies.split_first()?;
        // Without windows it is no list but, say, a number with commas.
        let is_list = rest.iter().all(|policy| policy.window.is_some());
        is_list.then(|| {
            self.note(name, line, |window| {
                window.limit = Some(first.limit);
                window.window = first.window.or(window.window);
            });
            rest.iter().for_each(|policy| self.keep(name.family, *policy));
        })
    }

    /// `RateLimit`: a list of names with what is left and the seconds until the reset (`"burst";r=50;t=30`: from -08 of
    /// the draft on), or a dictionary of the one window that is nearest to its end (`limit=100, remaining=50, reset=50`: -07).
    fn state(&mut self, name: Name<'a>, line: usize, text: &str) -> Option<()> {
        if let Some(items) = items(text) {
            let windows = items.iter().map(|item| Some((label(&item.bare_item)?, Reported::of_item(item)?)));
            for (label, reported) in windows.collect::<Option<Vec<_>>>()? {
                self.merge(name.family, label, 0, reported);
            }
            return Some(());
        }
        let reported = Reported::of_dictionary(&Parser::new(text).parse::<Dictionary>().ok()?)?;
        self.merge(name.family, String::new(), line, reported);
        Some(())
    }

    /// `RateLimit-Policy`: limits and seconds, each with its name (`"burst";q=100;w=60`: from -08 of the draft on) or without one
    /// (`100;w=60`: -03 to -07).
    fn named_policies(&mut self, name: Name<'a>, text: &str) -> Option<()> {
        let read = |item: &Item| match label(&item.bare_item) {
            Some(label) => Some((Some(label), Policy::of_name(item)?)),
            None => Some((None, Policy::of_number(item)?)),
        };
        for (label, policy) in items(text)?.iter().map(read).collect::<Option<Vec<_>>>()? {
            match label {
                Some(label) => self.merge(name.family, label, 0, policy.into()),
                None => self.keep(name.family, policy),
            }
        }
        Some(())
    }

    /// Adds to a window what one header of a family says about it.
    fn note(&mut self, name: Name<'a>, line: usize, put: impl FnOnce(&mut Reported)) {
        let key = Key { family: name.family, label: Cow::Borrowed(name.label), line };
        if let Some(window) = self.window(key) {
            window.window = window.window.or(window_of_label(name.label));
            put(window);
        }
    }

    /// Adds to a window what a structured field says about it.
    fn merge(&mut self, family: &'a str, label: String, line: usize, reported: Reported) {
        if let Some(window) = self.window(Key { family, label: Cow::Owned(label), line }) {
            window.limit = window.limit.or(reported.limit);
            window.remaining = window.remaining.or(reported.remaining);
            window.resets_in = window.resets_in.or(reported.resets_in);
            window.window = window.window.or(reported.window);
        }
    }

    /// The window of this key, a new one if there is room for it.
    fn window(&mut self, key: Key<'a>) -> Option<&mut Reported> {
        let at = self.windows.iter().position(|(known, _)| *known == key).unwrap_or(self.windows.len());
        if at == self.windows.len() && at < WINDOWS_MAX {
            self.windows.push((key, Reported::default()));
        }
        self.windows.get_mut(at).map(|(_, window)| window)
    }

    fn keep(&mut self, family: &'a str, policy: Policy) {
        if self.policies.len() < WINDOWS_MAX {
            self.policies.push((family, policy));
        }
    }

    fn finish(mut self) -> Quota {
        for (family, policy) in self.policies {
            let known = self.windows.iter_mut().find(|(key, window)| {
                let is_open = window.window.is_none_or(|span| Some(span) == policy.window);
                key.family == family && window.limit == Some(policy.limit) && is_open
            });
            if let Some((_, window)) = known {
                window.window = policy.window.or(window.window);
            } else if self.windows.len() < WINDOWS_MAX {
                let key = Key { family, label: Cow::Borrowed(""), line: self.windows.len() };
                self.windows.push((key, policy.into()));
            }
        }
        let windows: Vec<Reported> = self.windows.into_iter().map(|(_, window)| window).collect();
        let spent = windows.iter().filter(|window| window.remaining.unwrap_or(0) == 0);
        let reset = spent.filter_map(|window| window.resets_in).max();
        let wait = [self.exact, self.asked, reset].into_iter().flatten().find(|wait| !wait.is_zero());
        Quota { wait, windows, nonsense: self.nonsense }
    }
}

impl Reported {
    /// `"burst";r=50;t=30`.
    fn of_item(item: &Item) -> Option<Reported> {
        let remaining = Some(parameter(&item.params, "r")??);
        let resets_in = parameter(&item.params, "t")?.map(seconds);
        Some(Reported { remaining, resets_in, ..Reported::default() })
    }

    /// `limit=100, remaining=50, reset=50`.
    fn of_dictionary(dictionary: &Dictionary) -> Option<Reported> {
        let member = |name: &str| match dictionary.get(name) {
            None => Some(None),
            Some(ListEntry::Item(item)) => integer(&item.bare_item).map(Some),
            Some(ListEntry::InnerList(_)) => None,
        };
        let (limit, remaining) = (member("limit")?, Some(member("remaining")??));
        Some(Reported { limit, remaining, resets_in: member("reset")?.map(seconds), window: None })
    }
}

impl From<Policy> for Reported {
    fn from(policy: Policy) -> Reported {
        Reported { limit: Some(policy.limit), window: policy.window, ..Reported::default() }
    }
}

impl Policy {
    /// `"burst";q=100;w=60`.
    fn of_name(item: &Item) -> Option<Policy> {
        Some(Policy { limit: parameter(&item.params, "q")??, window: Policy::window_of(&item.params)? })
    }

    /// `100;w=60`.
    fn of_number(item: &Item) -> Option<Policy> {
        Some(Policy { limit: integer(&item.bare_item)?, window: Policy::window_of(&item.params)? })
    }

    /// The outer one is `None` if it makes no sense, the inner one if it is not told.
    fn window_of(parameters: &Parameters) -> Option<Option<Duration>> {
        // `window` is what the draft called it before it was one of the IETF's, and what WHOOP sends.
        let window = parameter(parameters, "w")?.or(parameter(parameters, "window")?);
        Some(window.map(seconds))
    }
}

/// A number as these headers have it: digits, and perhaps a point and digits. No sign, no exponent.
#[derive(Clone, Copy)]
struct Decimal {
    /// The greatest there is for all that are greater.
    whole: u64,
    billionths: u64,
}

impl Decimal {
    fn of(text: &str) -> Option<Decimal> {
        Decimal::leading(text).filter(|(_, rest)| rest.is_empty()).map(|(number, _)| number)
    }

    /// The number that a text begins with, and the rest of it.
    fn leading(text: &str) -> Option<(Decimal, &str)> {
        let (digits, rest) = split_digits(text)?;
        let add = |sum: u64, digit: u8| {
            sum.saturating_mul(10).saturating_add(u64::from(digit.saturating_sub(b'0')))
        };
        let whole = digits.bytes().fold(0, add);
        let Some(fraction) = rest.strip_prefix('.') else {
            return Some((Decimal { whole, billionths: 0 }, rest));
        };
        let (digits, rest) = split_digits(fraction)?;
        let billionths = digits.bytes().chain(std::iter::repeat(b'0')).take(9).fold(0, add);
        Some((Decimal { whole, billionths }, rest))
    }

    /// So many of this unit, cut to what 64 bits hold of nanoseconds, five centuries.
    fn times(self, unit: Duration) -> Duration {
        // Units are at most a day, below 2^47 nanoseconds, and the rest of the products below 2^64 and 2^30.
        let unit = unit.as_nanos();
        let nanoseconds = u128::from(self.whole) * unit + u128::from(self.billionths) * unit / 1_000_000_000;
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }

    /// The same as a span to tell.
    fn span(self, unit: Duration) -> Duration {
        self.times(unit).min(SPAN_MAX)
    }
}

/// The digits that a text begins with, at least one, and the rest of it.
fn split_digits(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    text.split_at_checked(end).filter(|(digits, _)| !digits.is_empty())
}

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number).min(SPAN_MAX)
}

/// An instant by what has passed since 1970.
fn epoch(number: Decimal, unit: Duration) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(number.times(unit))
}

/// A date in one of the three forms of RFC 9110 (5.6.7), or as in RFC 3339, which is what JSON interfaces prefer.
fn date(text: &str) -> Option<SystemTime> {
    let date = httpdate::parse_http_date(text).ok();
    date.or_else(|| Some(text.parse::<jiff::Timestamp>().ok()?.into()))
}

/// Seconds, or numbers with units one after another, as Go writes its durations: `1s`, `6m0s`, `1h30m`, `7.66s`, `20ms`.
fn span(text: &str) -> Option<Duration> {
    if let Some(seconds) = Decimal::of(text) {
        return Some(seconds.span(SECOND));
    }
    let (mut sum, mut rest) = (Duration::ZERO, text);
    while !rest.is_empty() {
        let (number, behind) = Decimal::leading(rest)?;
        let end = behind.find(|letter: char| letter.is_ascii_digit()).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at_checked(end)?;
        // Each is at most SPAN_MAX, and a value has room for less than a hundred and thirty.
        sum += number.span(unit_of(unit)?);
        rest = behind;
    }
    Some(sum.min(SPAN_MAX)).filter(|_| !text.is_empty())
}

fn unit_of(name: &str) -> Option<Duration> {
    Some(match name {
        "ns" => Duration::from_nanos(1),
        "us" | "µs" => Duration::from_micros(1),
        "ms" => MILLISECOND,
        "s" => SECOND,
        "m" => MINUTE,
        "h" => HOUR,
        "d" => DAY,
        _ => return None,
    })
}

/// How long a window is whose label ends in a unit of time (Kong: `-minute`, `-videos-hour`; HubSpot: `secondly-`).
/// Months and years have no one length.
fn window_of_label(label: &str) -> Option<Duration> {
    match label.rsplit('-').next()? {
        "second" | "secondly" => Some(SECOND),
        "minute" | "minutely" => Some(MINUTE),
        "hour" | "hourly" => Some(HOUR),
        "day" | "daily" => Some(DAY),
        _ => None,
    }
}

/// How many are left: a number (Reddit: `594.0`), or one with parameters (Docker Hub: `76;w=21600`).
fn count(text: &str) -> Option<u64> {
    let number = Decimal::of(text).map(|number| number.whole);
    number.or_else(|| match &*items(text)? {
        [item] => integer(&item.bare_item),
        _ => None,
    })
}

/// `32/40`.
fn used_of_limit(text: &str) -> Option<(u64, u64)> {
    let (used, limit) = text.split_once('/')?;
    Some((Decimal::of(used)?.whole, Decimal::of(limit)?.whole))
}

/// The members of a structured list that has some, and nothing but items (RFC 9651, 3.1).
fn items(text: &str) -> Option<Vec<Item>> {
    let items = Parser::new(text).parse::<List>().ok()?.into_iter().map(|entry| match entry {
        ListEntry::Item(item) => Some(item),
        ListEntry::InnerList(_) => None,
    });
    items.collect::<Option<Vec<_>>>().filter(|items| !items.is_empty())
}

/// The name of a policy: a string in the draft, a token in some versions of it between two numbers.
fn label(item: &BareItem) -> Option<String> {
    let string = item.as_string().map(|string| string.as_str().to_owned());
    string.or_else(|| item.as_token().map(|token| token.as_str().to_owned()))
}

fn integer(item: &BareItem) -> Option<u64> {
    u64::try_from(i64::from(item.as_integer()?)).ok()
}

/// A number among parameters: the outer one is `None` if it makes no sense, the inner one if it is not there.
fn parameter(parameters: &Parameters, name: &str) -> Option<Option<u64>> {
    parameters.get(name).map_or(Some(None), |value| integer(value).map(Some))
}

#[cfg(test)]
mod tests {
    use http::HeaderName;
    use http::header::RETRY_AFTER;

    use super::*;

    /// Thursday, the first of January 2026, 00:00:00 UTC.
    const NOW: u64 = 1_767_225_600;

    type Lines<'a> = &'a [(&'a str, &'a str)];

    fn headers(lines: Lines<'_>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        headers
    }

    fn read(lines: Lines<'_>) -> Quota {
        let headers = headers(lines);
        let quota = Quota::of(&headers, UNIX_EPOCH + seconds(NOW));
        assert!(Quota::is_reported(&headers) || quota == Quota::default(), "{lines:?}");
        quota
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    /// A limit, what remains of it, and the seconds until the reset and of the window.
    fn window(
        limit: Option<u64>,
        remaining: Option<u64>,
        resets_in: Option<u64>,
        window: Option<u64>,
    ) -> Reported {
        Reported { limit, remaining, resets_in: resets_in.map(seconds), window: window.map(seconds) }
    }

    fn sense(wait: Option<Duration>, windows: &[Reported]) -> Quota {
        Quota { wait, windows: windows.to_vec(), nonsense: 0 }
    }

    fn nonsense(values: u64) -> Quota {
        Quota { nonsense: values, ..Quota::default() }
    }

    #[track_caller]
    fn all(cases: &[(Lines<'_>, Quota)]) {
        for (lines, expected) in cases {
            assert_eq!(read(lines), *expected, "{lines:?}");
        }
    }

    #[test]
    fn most_responses_say_nothing() {
        let plain: Lines<'_> = &[
            ("content-type", "application/json"),
            ("date", "Thu, 01 Jan 2026 00:00:00 GMT"),
            ("x-rate", "1"),
            ("x-generated-by", "1"),
            ("x-corporate-limit", "1"),
            ("x-ratelimited", "1"),
            ("x-ratelimitbysize-limit", "1"),
            // GitHub, Discord, IBM.
            ("x-ratelimit-used", "1"),
            ("x-ratelimit-resource", "core"),
            ("x-ratelimit-bucket", "abcd1234"),
            ("x-rate-limit-policy", "gold"),
        ];
        assert_eq!(read(plain), Quota::default());
        assert!(!Quota::is_reported(&headers(plain)));
        for name in ["retry-after", "retry-after-ms", "ratelimit", "ratelimit-policy", "x-ratelimit-reset"] {
            assert!(Quota::is_reported(&headers(&[(name, "")])), "{name}");
        }
    }

    /// RFC 9110, 10.2.3, with the dates of 5.6.7.
    #[test]
    fn retry_after() {
        let wait = |value: &str| read(&[("retry-after", value)]);
        for (value, expected) in [
            ("120", seconds(120)),
            (" 120\t", seconds(120)),
            ("0120", seconds(120)),
            ("1.5", ms(1500)),
            ("0.250", ms(250)),
            ("0.0000000019", Duration::from_nanos(1)),
            ("Thu, 01 Jan 2026 00:00:30 GMT", seconds(30)),
            ("Thursday, 01-Jan-26 00:00:30 GMT", seconds(30)),
            ("Thu Jan  1 00:00:30 2026", seconds(30)),
            ("2026-01-01T00:00:30Z", seconds(30)),
            ("31622400", SPAN_MAX),
            ("31622399", SPAN_MAX - SECOND),
            ("31622400.1", SPAN_MAX),
            ("99999999999", SPAN_MAX),
            ("1767225630", SPAN_MAX),
            ("18446744073709551616.999999999", SPAN_MAX),
            ("99999999999999999999999999999999999999999999999999", SPAN_MAX),
            ("Fri, 31 Dec 9999 23:59:59 GMT", SPAN_MAX),
        ] {
            assert_eq!(wait(value), sense(Some(expected), &[]), "{value}");
        }
        // The upstream may come back at once: it says so, for example, of a limit that is not reached.
        for value in ["0", "0.0", "0.0000000001", "Thu, 01 Jan 2026 00:00:00 GMT"] {
            assert_eq!(wait(value), sense(None, &[]), "{value}");
        }
        for value in [
            "",
            "-1",
            "+1",
            "1e3",
            "1.",
            ".5",
            "1,5",
            "1 2",
            "0x10",
            "soon",
            "30s",
            "\"30\"",
            "NaN",
            "\u{661}",
            "Wed, 31 Dec 2025 23:59:59 GMT",
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "2025-12-31T23:59:59Z",
            "Thu, 32 Jan 2026 00:00:30 GMT",
        ] {
            assert_eq!(wait(value), nonsense(1), "{value:?}");
        }
        let longest = "1".repeat(VALUE_BYTES_MAX);
        assert_eq!(wait(&longest), sense(Some(SPAN_MAX), &[]));
        assert_eq!(wait(&format!("1{longest}")), nonsense(1));
        let mut bytes = HeaderMap::new();
        bytes.insert(RETRY_AFTER, HeaderValue::from_bytes(b"\xff").unwrap());
        assert_eq!(Quota::of(&bytes, UNIX_EPOCH), nonsense(1), "not UTF-8");
    }

    /// Azure (<https://learn.microsoft.com/azure/ai-services/openai/how-to/quota>) and OpenAI's clients
    /// (<https://github.com/openai/openai-python>, `_parse_retry_after_header`) ask the milliseconds first, too.
    #[test]
    fn retry_after_in_milliseconds() {
        all(&[
            (&[("retry-after-ms", "1500")], sense(Some(ms(1500)), &[])),
            (&[("x-ms-retry-after-ms", "1500.5")], sense(Some(Duration::from_micros(1_500_500)), &[])),
            (&[("retry-after", "2"), ("retry-after-ms", "1500")], sense(Some(ms(1500)), &[])),
            (&[("retry-after", "2"), ("retry-after-ms", "0")], sense(Some(seconds(2)), &[])),
            (
                &[("retry-after", "x"), ("retry-after-ms", "7")],
                Quota { nonsense: 1, ..sense(Some(ms(7)), &[]) },
            ),
            (
                &[("retry-after", "2"), ("retry-after-ms", "x")],
                Quota { nonsense: 1, ..sense(Some(seconds(2)), &[]) },
            ),
            (&[("retry-after-ms", "99999999999999999999")], sense(Some(SPAN_MAX), &[])),
            (&[("retry-after-ms", "-5"), ("retry-after-ms", "5s")], nonsense(2)),
        ]);
    }

    #[test]
    fn of_several_lines_the_longest_counts() {
        let lines: Lines<'_> = &[
            ("retry-after", "10"),
            ("retry-after", "Thu, 01 Jan 2026 00:00:30 GMT"),
            ("retry-after", "never"),
            ("retry-after", "20"),
        ];
        assert_eq!(read(lines), Quota { nonsense: 1, ..sense(Some(seconds(30)), &[]) });
    }

    /// The clock that named an instant is the upstream's: here it is an hour slow.
    #[test]
    fn instants_are_relative_to_the_date_of_the_response() {
        let slow = ("date", "Wed, 31 Dec 2025 23:00:00 GMT");
        all(&[
            (&[slow, ("retry-after", "Wed, 31 Dec 2025 23:00:10 GMT")], sense(Some(seconds(10)), &[])),
            (&[slow, ("retry-after", "Wed, 31 Dec 2025 22:59:59 GMT")], nonsense(1)),
            (
                &[slow, ("x-ratelimit-reset", "1767222010")],
                sense(Some(seconds(10)), &[window(None, None, Some(10), None)]),
            ),
            // A date that is none is as good as absent, and says nothing about a quota.
            (
                &[("date", "yesterday"), ("x-ratelimit-reset", "1767225610")],
                sense(Some(seconds(10)), &[window(None, None, Some(10), None)]),
            ),
        ]);
    }

    #[test]
    fn resets_in_every_form() {
        for (value, expected) in [
            ("0", Duration::ZERO),
            ("60", seconds(60)),
            ("1.5", ms(1500)),
            // Up to the thresholds, and from them on.
            ("999999999", SPAN_MAX),
            ("1767225599", Duration::ZERO),
            ("1767225660", seconds(60)),
            ("1767225660.25", ms(60_250)),
            ("999999999999", SPAN_MAX),
            ("1767225660250", ms(60_250)),
            ("99999999999", SPAN_MAX),
            ("9999999999999999999999", SPAN_MAX),
            ("Thu, 01 Jan 2026 00:01:00 GMT", seconds(60)),
            ("Thursday, 01-Jan-26 00:01:00 GMT", seconds(60)),
            ("Thu Jan  1 00:01:00 2026", seconds(60)),
            ("2026-01-01T00:01:00Z", seconds(60)),
            ("2026-01-01T00:01:00.5Z", ms(60_500)),
            ("2026-01-01T01:01:00+01:00", seconds(60)),
            ("2026-01-01T00:01Z", seconds(60)),
            ("1s", seconds(1)),
            ("6m0s", seconds(360)),
            ("20ms", ms(20)),
            ("1h30m", seconds(5400)),
            ("2m59.56s", ms(179_560)),
            ("7.66s", ms(7660)),
            ("1d2h", seconds(26 * 3600)),
            ("5us7ns", Duration::from_nanos(5007)),
            ("5µs", Duration::from_micros(5)),
            ("99999999999999999999d1s", SPAN_MAX),
        ] {
            let expected = Reported { resets_in: Some(expected), ..Reported::default() };
            assert_eq!(read(&[("x-ratelimit-reset", value)]).windows, [expected], "{value}");
        }
        for value in [
            "",
            "-1",
            "1000000000",
            "1000000000000",
            "1767221999",
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "2018-03-13T00:00:00Z",
            "1x",
            "1s 2s",
            "s",
            "1m-2s",
            "m1",
            "tomorrow",
            "Tue Feb 16 2021 09:02:42 GMT+0100 (Central European Standard Time)",
        ] {
            assert_eq!(read(&[("x-ratelimit-reset", value)]), nonsense(1), "{value:?}");
        }
        // An hour ago still is a reset that has come.
        let past = read(&[("x-ratelimit-reset", "1767222000")]);
        assert_eq!(past, sense(None, &[window(None, None, Some(0), None)]));
    }

    #[test]
    fn limits_and_what_remains_in_every_form() {
        let limit = |limit, span| window(Some(limit), None, None, span);
        for (value, windows) in [
            ("100", vec![limit(100, None)]),
            ("0", vec![limit(0, None)]),
            ("100.9", vec![limit(100, None)]),
            ("99999999999999999999999", vec![limit(u64::MAX, None)]),
            ("100;w=60", vec![limit(100, Some(60))]),
            ("100, 100;w=60", vec![limit(100, Some(60))]),
            ("100, 1000;w=3600, 100;w=60", vec![limit(100, Some(60)), limit(1000, Some(3600))]),
            ("100;w=999999999999999", vec![limit(100, Some(SPAN_MAX.as_secs()))]),
        ] {
            assert_eq!(read(&[("x-ratelimit-limit", value)]), sense(None, &windows), "{value}");
        }
        for value in
            ["", "-1", "many", "1,000", "100;w=x", "100;w=-1", "100, x;w=1", "burst:100;rate:10", "(1)"]
        {
            assert_eq!(read(&[("x-ratelimit-limit", value)]), nonsense(1), "{value:?}");
        }
        let left = |left| window(None, Some(left), None, None);
        for (value, windows) in
            [("0", left(0)), ("594.0", left(594)), ("0.9", left(0)), ("76;w=21600", left(76))]
        {
            assert_eq!(read(&[("x-ratelimit-remaining", value)]), sense(None, &[windows]), "{value}");
        }
        for value in ["", "-1", "none", "5, 6", "\"5\""] {
            assert_eq!(read(&[("x-ratelimit-remaining", value)]), nonsense(1), "{value:?}");
        }
    }

    /// Which windows ask to wait, and for how long.
    #[test]
    fn the_last_reset_of_what_is_spent_counts() {
        let cases: [(Lines<'_>, Option<u64>); 9] = [
            (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "30")], Some(30)),
            (&[("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", "30")], None),
            (&[("x-ratelimit-reset", "30")], Some(30)),
            (&[("x-ratelimit-remaining", "0")], None),
            (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "0")], None),
            (&[("ratelimit", "\"a\";r=0;t=30, \"b\";r=0;t=60, \"c\";r=1;t=90, \"d\";r=0")], Some(60)),
            (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "30"), ("retry-after", "5")], Some(5)),
            (&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "30"), ("retry-after", "0")], Some(30)),
            // A remainder that makes no sense is as good as none.
            (&[("x-ratelimit-remaining", "x"), ("x-ratelimit-reset", "30"), ("retry-after", "x")], Some(30)),
        ];
        for (lines, expected) in cases {
            assert_eq!(read(lines).wait, expected.map(seconds), "{lines:?}");
        }
    }

    /// A gateway and the application behind it: under one name line by line, or each under its own.
    #[test]
    fn windows_are_not_mixed() {
        let lines: Lines<'_> = &[
            ("x-ratelimit-limit", "100"),
            ("x-ratelimit-limit", "10"),
            ("x-ratelimit-remaining", "99"),
            ("x-ratelimit-remaining", "0"),
            ("x-ratelimit-reset", "nonsense"),
            ("x-ratelimit-reset", "5"),
            ("ratelimit-remaining", "7"),
        ];
        let windows = [
            window(Some(100), Some(99), None, None),
            window(Some(10), Some(0), Some(5), None),
            window(None, Some(7), None, None),
        ];
        assert_eq!(read(lines), Quota { nonsense: 1, ..sense(Some(seconds(5)), &windows) });
    }

    #[test]
    fn windows_are_bounded() {
        let names: Vec<String> = (0..20).map(|number| format!("x-ratelimit-reset-{number}")).collect();
        let lines: Vec<(&str, &str)> = names.iter().map(|name| (&**name, "5")).collect();
        let quota = read(&lines);
        assert_eq!((quota.windows.len(), quota.nonsense), (WINDOWS_MAX, 0));
        let lines = vec![("ratelimit-policy", "1;w=1, 2;w=2, 3;w=3, 4;w=4, 5;w=5"); 100];
        let quota = read(&lines);
        assert_eq!((quota.windows.len(), quota.nonsense), (5, 0), "each once");
    }

    /// draft-ietf-httpapi-ratelimit-headers, <https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/>.
    #[test]
    fn the_drafts() {
        all(&[
            // Up to -06: three fields, the policies at first behind the limit, then in a field of their own.
            (
                &[
                    ("ratelimit-limit", "10, 10;w=1, 50;w=60"),
                    ("ratelimit-remaining", "0"),
                    ("ratelimit-reset", "50"),
                ],
                sense(
                    Some(seconds(50)),
                    &[window(Some(10), Some(0), Some(50), Some(1)), window(Some(50), None, None, Some(60))],
                ),
            ),
            (
                &[
                    ("ratelimit-policy", "100;w=60;comment=\"sliding window\""),
                    ("ratelimit-limit", "100"),
                    ("ratelimit-remaining", "50"),
                    ("ratelimit-reset", "50"),
                ],
                sense(None, &[window(Some(100), Some(50), Some(50), Some(60))]),
            ),
            // -07: a dictionary.
            (
                &[("ratelimit", "limit=100, remaining=50, reset=50"), ("ratelimit-policy", "100;w=60")],
                sense(None, &[window(Some(100), Some(50), Some(50), Some(60))]),
            ),
            (
                &[("ratelimit", "limit=100, remaining=0, reset=50")],
                sense(Some(seconds(50)), &[window(Some(100), Some(0), Some(50), None)]),
            ),
            // From -08 on: lists with names, which were tokens for a while.
            (
                &[
                    ("ratelimit", "\"permin\";r=0;t=30, perhr;r=399;pk=:dHJpYWw=:"),
                    ("ratelimit-policy", "\"permin\";q=50;w=60, perhr;q=1000;qu=\"requests\""),
                    ("ratelimit-policy", "\"perday\";q=5000;w=86400"),
                ],
                sense(
                    Some(seconds(30)),
                    &[
                        window(Some(50), Some(0), Some(30), Some(60)),
                        window(Some(1000), Some(399), None, None),
                        window(Some(5000), None, None, Some(86400)),
                    ],
                ),
            ),
            // Malformed fields must be ignored (-10, section 6).
            (&[("ratelimit", "\"a\";r=-1;t=30")], nonsense(1)),
            (&[("ratelimit", "\"a\";r=1;t=1.5")], nonsense(1)),
            (&[("ratelimit", "\"a\";t=30")], nonsense(1)),
            (&[("ratelimit", "\"a\";r=0;t=30, \"b\"")], nonsense(1)),
            (&[("ratelimit", "\"a;r=0;t=30")], nonsense(1)),
            (&[("ratelimit", "limit=100, reset=50")], nonsense(1)),
            (&[("ratelimit", "limit=100, remaining=(1), reset=50")], nonsense(1)),
            (&[("ratelimit", "")], nonsense(1)),
            (&[("ratelimit-policy", "\"a\";w=60")], nonsense(1)),
            (&[("ratelimit-policy", "(1 2)")], nonsense(1)),
            (&[("ratelimit-policy", "?1")], nonsense(1)),
            (&[("ratelimit", "\"a\";r=0;t=999999999999999")], {
                let spent = Reported { remaining: Some(0), resets_in: Some(SPAN_MAX), ..Reported::default() };
                sense(Some(SPAN_MAX), &[spent])
            }),
        ]);
    }

    #[test]
    fn vendors_with_one_window() {
        all(&[
            // <https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api>
            (
                &[
                    ("x-ratelimit-limit", "5000"),
                    ("x-ratelimit-remaining", "0"),
                    ("x-ratelimit-used", "5000"),
                    ("x-ratelimit-reset", "1767227400"),
                    ("x-ratelimit-resource", "core"),
                ],
                sense(Some(seconds(1800)), &[window(Some(5000), Some(0), Some(1800), None)]),
            ),
            // X, formerly Twitter: <https://docs.x.com/x-api/fundamentals/rate-limits>; Okta:
            // <https://developer.okta.com/docs/reference/rl-best-practices/>
            (
                &[
                    ("x-rate-limit-limit", "900"),
                    ("x-rate-limit-remaining", "0"),
                    ("x-rate-limit-reset", "1767226500"),
                ],
                sense(Some(seconds(900)), &[window(Some(900), Some(0), Some(900), None)]),
            ),
            // GitLab: <https://gitlab.com/gitlab-org/gitlab/-/issues/217312>: the draft's names, and an epoch.
            (
                &[
                    ("ratelimit-limit", "600"),
                    ("ratelimit-observed", "601"),
                    ("ratelimit-remaining", "0"),
                    ("ratelimit-reset", "1767225660"),
                    ("ratelimit-resettime", "Thu, 01 Jan 2026 00:01:00 GMT"),
                ],
                sense(Some(seconds(60)), &[window(Some(600), Some(0), Some(60), None)]),
            ),
            // <https://docs.discord.com/developers/topics/rate-limits>: the span is more exact than the instant.
            (
                &[
                    ("x-ratelimit-limit", "10"),
                    ("x-ratelimit-remaining", "0"),
                    ("x-ratelimit-reset", "1767225602.123"),
                    ("x-ratelimit-reset-after", "1.5"),
                    ("x-ratelimit-bucket", "abcd1234"),
                    ("x-ratelimit-scope", "user"),
                ],
                sense(
                    Some(ms(1500)),
                    &[Reported { resets_in: Some(ms(1500)), ..window(Some(10), Some(0), None, None) }],
                ),
            ),
            // <https://github.com/reddit-archive/reddit/wiki/API>
            (
                &[
                    ("x-ratelimit-used", "100"),
                    ("x-ratelimit-remaining", "0.0"),
                    ("x-ratelimit-reset", "278"),
                ],
                sense(Some(seconds(278)), &[window(None, Some(0), Some(278), None)]),
            ),
            // <https://shopify.dev/docs/api/admin-rest/usage/rate-limits>: a bucket that leaks, and no reset.
            (
                &[("x-shopify-shop-api-call-limit", "32/40")],
                sense(None, &[window(Some(40), Some(8), None, None)]),
            ),
            (
                &[("x-shopify-shop-api-call-limit", "41/40"), ("retry-after", "2.0")],
                sense(Some(seconds(2)), &[window(Some(40), Some(0), None, None)]),
            ),
            (&[("x-shopify-shop-api-call-limit", "32")], nonsense(1)),
            (&[("x-shopify-shop-api-call-limit", "-1/40")], nonsense(1)),
            // <https://docs.docker.com/docker-hub/usage/pulls/>
            (
                &[("ratelimit-limit", "100;w=21600"), ("ratelimit-remaining", "76;w=21600")],
                sense(None, &[window(Some(100), Some(76), None, Some(21600))]),
            ),
            // <https://developers.brevo.com/docs/limit-headers>
            (
                &[
                    ("x-sib-ratelimit-limit", "1000"),
                    ("x-sib-ratelimit-remaining", "0"),
                    ("x-sib-ratelimit-reset", "40"),
                ],
                sense(Some(seconds(40)), &[window(Some(1000), Some(0), Some(40), None)]),
            ),
            // <https://developers-classic.mailerlite.com/docs/api-rate-limits>
            (
                &[
                    ("x-ratelimit-limit", "60"),
                    ("x-ratelimit-remaining", "0"),
                    ("x-ratelimit-retry-after", "59"),
                ],
                sense(Some(seconds(59)), &[window(Some(60), Some(0), None, None)]),
            ),
            // <https://marketplace.zoom.us/docs/api-reference/rate-limits>
            (
                &[
                    ("x-ratelimit-category", "Heavy"),
                    ("x-ratelimit-type", "Daily-limit"),
                    ("x-ratelimit-limit", "30000"),
                    ("x-ratelimit-remaining", "0"),
                    ("retry-after", "2026-01-02T00:00:00Z"),
                ],
                sense(Some(DAY), &[window(Some(30000), Some(0), None, None)]),
            ),
            // Envoy: <https://www.envoyproxy.io/docs/envoy/latest/api-v3/extensions/filters/http/ratelimit/v3/rate_limit.proto>
            (
                &[
                    ("x-ratelimit-limit", "10, 10;w=1;name=\"per-ip\", 1000;w=3600"),
                    ("x-ratelimit-remaining", "0"),
                    ("x-ratelimit-reset", "1"),
                ],
                sense(
                    Some(SECOND),
                    &[
                        window(Some(10), Some(0), Some(1), Some(1)),
                        window(Some(1000), None, None, Some(3600)),
                    ],
                ),
            ),
            // <https://developer.whoop.com/docs/developing/rate-limiting>
            (
                &[
                    ("x-ratelimit-limit", "100, 100;window=60, 10000;window=86400"),
                    ("x-ratelimit-remaining", "98"),
                    ("x-ratelimit-reset", "3"),
                ],
                sense(
                    None,
                    &[
                        window(Some(100), Some(98), Some(3), Some(60)),
                        window(Some(10000), None, None, Some(86400)),
                    ],
                ),
            ),
            // <https://developers.cloudflare.com/fundamentals/api/reference/limits/>
            (
                &[
                    ("ratelimit", "\"default\";r=0;t=30"),
                    ("ratelimit-policy", "\"default\";q=1200;w=300"),
                    ("retry-after", "31"),
                ],
                sense(Some(seconds(31)), &[window(Some(1200), Some(0), Some(30), Some(300))]),
            ),
        ]);
    }

    #[test]
    fn vendors_with_several_windows() {
        all(&[
            // <https://platform.openai.com/docs/guides/rate-limits>; Groq: <https://console.groq.com/docs/rate-limits>
            (
                &[
                    ("x-ratelimit-limit-requests", "60"),
                    ("x-ratelimit-limit-tokens", "150000"),
                    ("x-ratelimit-remaining-requests", "59"),
                    ("x-ratelimit-remaining-tokens", "0"),
                    ("x-ratelimit-reset-requests", "1s"),
                    ("x-ratelimit-reset-tokens", "6m0s"),
                ],
                sense(
                    Some(seconds(360)),
                    &[
                        window(Some(60), Some(59), Some(1), None),
                        window(Some(150_000), Some(0), Some(360), None),
                    ],
                ),
            ),
            // Anthropic: <https://docs.aws.amazon.com/claude-platform/latest/userguide/rate-limits.html>: a window that is full was reset a second ago.
            (
                &[
                    ("anthropic-ratelimit-requests-limit", "1000"),
                    ("anthropic-ratelimit-requests-remaining", "1000"),
                    ("anthropic-ratelimit-requests-reset", "2025-12-31T23:59:59Z"),
                    ("anthropic-ratelimit-input-tokens-limit", "80000"),
                    ("anthropic-ratelimit-input-tokens-remaining", "0"),
                    ("anthropic-ratelimit-input-tokens-reset", "2026-01-01T00:00:12Z"),
                ],
                sense(
                    Some(seconds(12)),
                    &[
                        window(Some(1000), Some(1000), Some(0), None),
                        window(Some(80000), Some(0), Some(12), None),
                    ],
                ),
            ),
            // <https://linear.app/developers/rate-limiting>: milliseconds since 1970.
            (
                &[
                    ("x-ratelimit-requests-limit", "5000"),
                    ("x-ratelimit-requests-remaining", "4999"),
                    ("x-ratelimit-requests-reset", "1767229200000"),
                    ("x-ratelimit-complexity-limit", "250000"),
                    ("x-ratelimit-complexity-remaining", "0"),
                    ("x-ratelimit-complexity-reset", "1767225660500"),
                ],
                sense(
                    Some(ms(60_500)),
                    &[
                        window(Some(5000), Some(4999), Some(3600), None),
                        Reported {
                            resets_in: Some(ms(60_500)),
                            ..window(Some(250_000), Some(0), None, None)
                        },
                    ],
                ),
            ),
            // Kong: <https://docs.konghq.com/hub/kong-inc/response-ratelimiting/>, and the plugin `rate-limiting` beside it
            (
                &[
                    ("ratelimit-limit", "6"),
                    ("ratelimit-remaining", "0"),
                    ("ratelimit-reset", "47"),
                    ("x-ratelimit-limit-minute", "6"),
                    ("x-ratelimit-remaining-minute", "0"),
                    ("x-ratelimit-limit-videos-hour", "100"),
                    ("x-ratelimit-remaining-videos-hour", "94"),
                ],
                sense(
                    Some(seconds(47)),
                    &[
                        window(Some(6), Some(0), Some(47), None),
                        window(Some(6), Some(0), None, Some(60)),
                        window(Some(100), Some(94), None, Some(3600)),
                    ],
                ),
            ),
            // <https://developer.zendesk.com/documentation/ticketing/using-the-zendesk-api/best-practices-for-avoiding-rate-limiting/>
            (
                &[
                    ("x-rate-limit", "700"),
                    ("ratelimit-limit", "700"),
                    ("x-rate-limit-remaining", "0"),
                    ("ratelimit-remaining", "0"),
                    ("ratelimit-reset", "41"),
                    ("zendesk-ratelimit-tickets-index", "total=100; remaining=99; resets=41"),
                ],
                sense(
                    Some(seconds(41)),
                    &[window(Some(700), Some(0), None, None), window(Some(700), Some(0), Some(41), None)],
                ),
            ),
            // <https://developers.hubspot.com/changelog/2018-11-06-rate-limit-information-headers-will-be-included-in-http-responses>
            (
                &[
                    ("x-hubspot-ratelimit-daily", "250000"),
                    ("x-hubspot-ratelimit-daily-remaining", "249000"),
                    ("x-hubspot-ratelimit-secondly", "10"),
                    ("x-hubspot-ratelimit-secondly-remaining", "0"),
                ],
                sense(
                    None,
                    &[window(None, Some(249_000), None, Some(86400)), window(None, Some(0), None, Some(1))],
                ),
            ),
            // <https://www.contentful.com/developers/docs/references/content-management-api/>: the reset belongs to whichever is spent.
            (
                &[
                    ("x-contentful-ratelimit-second-limit", "10"),
                    ("x-contentful-ratelimit-second-remaining", "0"),
                    ("x-contentful-ratelimit-reset", "1"),
                ],
                sense(
                    Some(SECOND),
                    &[window(Some(10), Some(0), None, Some(1)), window(None, None, Some(1), None)],
                ),
            ),
            // Jira: <https://developer.atlassian.com/cloud/jira/platform/rate-limiting/>
            (
                &[
                    ("beta-ratelimit-policy", "\"tenant-app-quota\";q=100100;w=3600"),
                    ("beta-ratelimit", "\"tenant-app-quota\";r=0;t=2788"),
                    ("x-ratelimit-limit", "400"),
                    ("x-ratelimit-remaining", "399"),
                    ("x-ratelimit-reset", "2026-01-01T00:30Z"),
                    ("x-ratelimit-nearlimit", "true"),
                ],
                sense(
                    Some(seconds(2788)),
                    &[
                        window(Some(100_100), Some(0), Some(2788), Some(3600)),
                        window(Some(400), Some(399), Some(1800), None),
                    ],
                ),
            ),
        ]);
    }

    /// Each of these would overflow something that did not saturate.
    #[test]
    fn nothing_overflows() {
        let numbers = [
            "9".repeat(256),
            format!("{0}.{0}", "9".repeat(120)),
            format!("{}d", "9".repeat(255)),
            "1d".repeat(128),
        ];
        for number in &numbers {
            for name in ["retry-after-ms", "retry-after", "x-ratelimit-reset", "x-ratelimit-reset-after"] {
                let quota = read(&[(name, number)]);
                assert!(quota.wait.is_none_or(|wait| wait <= SPAN_MAX), "{name}: {number}");
                assert!(quota.nonsense == 1 || quota.wait.is_some(), "{name}: {number}");
            }
        }
        for origin in [UNIX_EPOCH, UNIX_EPOCH - SPAN_MAX * 3000, UNIX_EPOCH + SPAN_MAX * 100_000] {
            for value in [&*numbers[0], "1767225600", "1767225600000", "Fri, 31 Dec 9999 23:59:59 GMT"] {
                let _ = Quota::of(&headers(&[("x-ratelimit-reset", value)]), origin);
            }
        }
    }
}
