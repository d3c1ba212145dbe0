//! Reads the quota that an upstream's response reports: how long to wait, and the state of each window.
//!
//! An upstream may send anything. An invalid value is counted and otherwise ignored. Knows nothing of limiters and of a response's
//! status, and uses no clock but the one handed in.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use http::header::DATE;
use http::{HeaderMap, HeaderValue};

use super::names::{Meaning, Name};
use super::structured::{self, Policy};
use super::values::{self, Decimal, MILLISECOND, SECOND, SPAN_MAX};
use super::window::QuotaWindow;

/// The most windows kept of one response. A vendor documents seven at most: a second, a minute, an hour, a day, a month, a year and
/// the nearest of them.
pub(crate) const WINDOWS_MAX: usize = 8;

/// The longest value that is read. The longest sensible one lists a few policies with their names.
pub(crate) const VALUE_BYTES_MAX: usize = 256;

/// The longest time since a reset. Some upstreams report the last reset until the next request begins a window, and the clocks of one
/// provider differ. An earlier instant comes from a wrong clock or is none.
const RESET_AGE_MAX: Duration = Duration::from_secs(60 * 60);

/// The quota that a response reports.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Quota {
    /// The wait that the upstream asks for; `None` if it names no instant to come. Never zero, at most [`SPAN_MAX`].
    ///
    /// A wait in milliseconds comes first, because it is more exact, then `Retry-After`. Without either, it is the last reset of the
    /// windows that have nothing left. A window without `remaining` counts as spent, which is right for an upstream rejection.
    pub(crate) wait: Option<Duration>,
    /// The windows, at most [`WINDOWS_MAX`].
    pub(crate) windows: Vec<QuotaWindow>,
    /// The number of invalid values.
    pub(crate) invalid: u64,
}

impl Quota {
    /// Returns whether any header reports a quota. Most responses have none, and this allocates nothing.
    pub(crate) fn is_reported(headers: &HeaderMap) -> bool {
        headers.keys().any(|name| Name::of(name.as_str()).is_some())
    }

    /// Reads all headers.
    ///
    /// Instants are relative to the response's own `Date` if it has a valid one, because they come from the same clock, and to `now`
    /// otherwise.
    pub(crate) fn of(headers: &HeaderMap, now: SystemTime) -> Quota {
        let date = headers.get(DATE).and_then(|date| httpdate::parse_http_date(text_of(date)?).ok());
        let mut reader = Reader::new(date.unwrap_or(now));
        for key in headers.keys() {
            let Some(name) = Name::of(key.as_str()) else { continue };
            for (line, value) in headers.get_all(key).iter().enumerate() {
                let read = text_of(value).and_then(|text| reader.read(name, line, text));
                reader.invalid += u64::from(read.is_none());
            }
        }
        reader.finish()
    }
}

/// Returns a value as text without surrounding blanks, if it is text of sensible length.
fn text_of(value: &HeaderValue) -> Option<&str> {
    let bytes = Some(value.as_bytes()).filter(|bytes| bytes.len() <= VALUE_BYTES_MAX)?;
    Some(std::str::from_utf8(bytes).ok()?.trim_matches([' ', '\t']))
}

/// The identity of a window within a response.
#[derive(PartialEq, Eq)]
struct Key<'a> {
    family: &'a str,
    label: Cow<'a, str>,
    /// The line of the header. If several servers report, each adds a line to each header.
    line: usize,
}

/// The values read so far.
struct Reader<'a> {
    /// The instant at which the response was made.
    origin: SystemTime,
    /// The longest wait in milliseconds.
    wait_milliseconds: Option<Duration>,
    /// The longest wait in seconds or until a date.
    wait: Option<Duration>,
    windows: Vec<(Key<'a>, QuotaWindow)>,
    /// Policies without a name. Each belongs to the window of its family with the same limit.
    policies: Vec<(&'a str, Policy)>,
    invalid: u64,
}

impl<'a> Reader<'a> {
    fn new(origin: SystemTime) -> Reader<'a> {
        let (windows, policies) = (Vec::new(), Vec::new());
        Reader { origin, wait_milliseconds: None, wait: None, windows, policies, invalid: 0 }
    }

    /// Takes a value as a whole; returns `None` if any part of it is invalid.
    fn read(&mut self, name: Name<'a>, line: usize, text: &str) -> Option<()> {
        match name.meaning {
            Meaning::WaitMilliseconds => {
                let wait = Decimal::of(text)?.span(MILLISECOND);
                self.wait_milliseconds = self.wait_milliseconds.max(Some(wait));
            }
            Meaning::Wait => self.wait = self.wait.max(Some(self.wait_of(text)?)),
            Meaning::Limit => self.limit(name, line, text)?,
            Meaning::Remaining => {
                let remaining = structured::count(text)?;
                self.note(name, line, |window| window.remaining = Some(remaining));
            }
            Meaning::Reset => {
                let span = values::reset(text, |at| self.until(at, RESET_AGE_MAX))?;
                // An instant is less exact than a span.
                self.note(name, line, |window| window.resets_in = window.resets_in.or(Some(span)));
            }
            Meaning::ResetAfter => {
                let span = values::span(text)?;
                self.note(name, line, |window| window.resets_in = Some(span));
            }
            Meaning::UsedOfLimit => {
                let (used, limit) = values::used_of_limit(text)?;
                let remaining = Some(limit.saturating_sub(used));
                self.note(name, line, |window| {
                    (window.limit, window.remaining) = (Some(limit), remaining);
                });
            }
            Meaning::State => self.state(name, line, text)?,
            Meaning::Policies => self.named_policies(name, text)?,
        }
        Some(())
    }

    /// Reads `Retry-After` (RFC 9110, 10.2.3). Some send a fraction (Shopify: `2.0`) or a date of RFC 3339 (Zoom). A number is never
    /// an instant here, and a past date is invalid.
    fn wait_of(&self, text: &str) -> Option<Duration> {
        let seconds = Decimal::of(text).map(|seconds| seconds.span(SECOND));
        seconds.or_else(|| self.until(values::date(text)?, Duration::ZERO))
    }

    /// Returns the time until an instant: zero if it has passed, `None` if it passed more than `age_max` ago.
    fn until(&self, at: SystemTime, age_max: Duration) -> Option<Duration> {
        match at.duration_since(self.origin) {
            Ok(span) => Some(span.min(SPAN_MAX)),
            Err(past) => Some(Duration::ZERO).filter(|_| past.duration() <= age_max),
        }
    }

    fn limit(&mut self, name: Name<'a>, line: usize, text: &str) -> Option<()> {
        let (first, rest) = structured::limit(text)?;
        self.note(name, line, |window| {
            window.limit = Some(first.limit);
            window.length = first.length.or(window.length);
        });
        rest.into_iter().for_each(|policy| self.keep(name.family, policy));
        Some(())
    }

    fn state(&mut self, name: Name<'a>, line: usize, text: &str) -> Option<()> {
        match structured::named_state(text) {
            Some(windows) => {
                for (label, window) in windows? {
                    self.merge(name.family, label, 0, window);
                }
            }
            None => self.merge(name.family, String::new(), line, structured::single_state(text)?),
        }
        Some(())
    }

    fn named_policies(&mut self, name: Name<'a>, text: &str) -> Option<()> {
        for (label, policy) in structured::policies(text)? {
            match label {
                Some(label) => self.merge(name.family, label, 0, policy.into()),
                None => self.keep(name.family, policy),
            }
        }
        Some(())
    }

    /// Adds the value of one header of a family to a window.
    fn note(&mut self, name: Name<'a>, line: usize, put: impl FnOnce(&mut QuotaWindow)) {
        let key = Key { family: name.family, label: Cow::Borrowed(name.label), line };
        if let Some(window) = self.window(key) {
            window.length = window.length.or(values::length_of_label(name.label));
            put(window);
        }
    }

    /// Adds the parts of a structured field to a window.
    fn merge(&mut self, family: &'a str, label: String, line: usize, reported: QuotaWindow) {
        if let Some(window) = self.window(Key { family, label: Cow::Owned(label), line }) {
            window.limit = window.limit.or(reported.limit);
            window.remaining = window.remaining.or(reported.remaining);
            window.resets_in = window.resets_in.or(reported.resets_in);
            window.length = window.length.or(reported.length);
        }
    }

    /// Returns the window of a key, a new one if there is room for it.
    fn window(&mut self, key: Key<'a>) -> Option<&mut QuotaWindow> {
        let index = self.windows.iter().position(|(other, _)| *other == key).unwrap_or(self.windows.len());
        if index == self.windows.len() && index < WINDOWS_MAX {
            self.windows.push((key, QuotaWindow::default()));
        }
        self.windows.get_mut(index).map(|(_, window)| window)
    }

    fn keep(&mut self, family: &'a str, policy: Policy) {
        if self.policies.len() < WINDOWS_MAX {
            self.policies.push((family, policy));
        }
    }

    fn finish(mut self) -> Quota {
        for (family, policy) in std::mem::take(&mut self.policies) {
            self.place(family, policy);
        }
        let windows: Vec<QuotaWindow> = self.windows.into_iter().map(|(_, window)| window).collect();
        let spent = windows.iter().filter(|window| window.remaining.unwrap_or(0) == 0);
        let reset = spent.filter_map(|window| window.resets_in).max();
        let waits = [self.wait_milliseconds, self.wait, reset];
        let wait = waits.into_iter().flatten().find(|wait| !wait.is_zero());
        Quota { wait, windows, invalid: self.invalid }
    }

    /// Gives a policy without a name to the window with the same limit, or makes it a window.
    fn place(&mut self, family: &'a str, policy: Policy) {
        let same = self.windows.iter_mut().find(|(key, window)| {
            let fits = window.length.is_none_or(|length| Some(length) == policy.length);
            key.family == family && window.limit == Some(policy.limit) && fits
        });
        if let Some((_, window)) = same {
            window.length = policy.length.or(window.length);
        } else if self.windows.len() < WINDOWS_MAX {
            let key = Key { family, label: Cow::Borrowed(""), line: self.windows.len() };
            self.windows.push((key, policy.into()));
        }
    }
}
