//! What a limiter promises: limits, guard, queue and policy, as values that cannot be wrong.
//!
//! Knows nothing of where they are written or who asks: the configuration builds these, the algorithms,
//! the stores and the workers read them.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Micros;

/// The highest `rate` and the highest cost: 10^9 permits.
pub const RATE_MAX: u32 = 1_000_000_000;
/// The shortest `per`: 1 ms.
pub const PER_MIN: Duration = Duration::from_millis(1);
/// The longest `per`: 366 days.
pub const PER_MAX: Duration = Duration::from_secs(366 * 86_400);
/// Instants kept apart per window unless `precision` says otherwise.
pub const PRECISION_DEFAULT: u32 = 256;
/// The most limits that one limiter may have: each call looks at all of them.
pub const LIMITS_MAX: usize = 16;
/// The shortest guard that is chosen by default.
pub const GUARD_MIN: Duration = Duration::from_millis(1);
/// The longest guard that is chosen by default.
pub const GUARD_MAX: Duration = Duration::from_millis(20);

/// The name of a limiter: `[A-Za-z0-9_.-]{1,64}`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimiterName(Arc<str>);

impl LimiterName {
    /// The name, if it is made of the allowed characters and at most 64 of them.
    pub fn parse(text: &str) -> Option<LimiterName> {
        let fits = (1..=64).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte));
        fits.then(|| LimiterName(text.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LimiterName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for LimiterName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", &*self.0)
    }
}

/// A number of permits, at least one and at most [`RATE_MAX`]: a rate or a cost.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Permits(NonZeroU32);

impl Permits {
    /// One permit, the default cost.
    pub const ONE: Permits = Permits(NonZeroU32::MIN);

    /// That many permits, if within 1 to [`RATE_MAX`].
    pub fn new(count: u64) -> Option<Permits> {
        let count = u32::try_from(count).ok().filter(|count| *count <= RATE_MAX)?;
        NonZeroU32::new(count).map(Permits)
    }

    /// The count.
    pub const fn get(self) -> u64 {
        self.0.get() as u64
    }
}

impl fmt::Display for Permits {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, formatter)
    }
}

impl fmt::Debug for Permits {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, formatter)
    }
}

/// How a limit counts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Algorithm {
    /// Every interval of length `per` holds at most `rate` permits.
    SlidingWindow {
        /// Instants kept apart per window: exact up to that many permits, beyond it rounded to
        /// `per / precision`, to the safe side.
        precision: NonZeroU32,
    },
}

/// `rate` permits per window `per`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Limit {
    /// Permits in a window.
    pub rate: Permits,
    /// The length of the window, between [`PER_MIN`] and [`PER_MAX`].
    pub per: Duration,
    /// How it counts.
    pub algorithm: Algorithm,
    /// As the user would write it in short form, `900/1m`: shown in metrics, headers and pages.
    pub label: Arc<str>,
}

impl Limit {
    /// The width of an instant that is kept apart: one microsecond while `rate` permits fit into
    /// `precision` instants, `per / precision` beyond.
    pub fn cell(&self) -> Micros {
        let Algorithm::SlidingWindow { precision } = self.algorithm;
        if self.rate.get() <= u64::from(precision.get()) {
            return Micros::ONE;
        }
        Micros((Micros::from(self.per).0 / u64::from(precision.get())).max(1))
    }
}

/// What happens to requests while the store cannot be asked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum OnStoreFailure {
    /// This replica enforces its share of the limit in memory.
    #[default]
    Local,
    /// Requests are refused.
    Reject,
    /// Requests pass unlimited.
    Allow,
}

/// How requests over the limit wait, in each replica.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct QueueLimits {
    /// The longest wait of a request.
    pub timeout: Duration,
    /// The most requests that wait at once.
    pub max_waiting: u32,
}

/// A named set of limits that a request must satisfy all at once.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Limiter {
    /// Its name.
    pub name: LimiterName,
    /// At least one limit, at most [`LIMITS_MAX`].
    pub limits: Vec<Limit>,
    /// How long after its slot a permit stays good; every window is widened by it.
    pub guard: Duration,
    /// `None`: over the limit, a request is refused at once.
    pub queue: Option<QueueLimits>,
    /// Names the Redis Cluster slot; limiters of one group can be taken together.
    pub group: Arc<str>,
    /// What happens while the store cannot be asked.
    pub on_store_failure: OnStoreFailure,
}

impl Limiter {
    /// 1 % of the shortest window, between [`GUARD_MIN`] and [`GUARD_MAX`].
    pub fn default_guard(limits: &[Limit]) -> Duration {
        let shortest = limits.iter().map(|limit| limit.per).min().unwrap_or(PER_MIN);
        (shortest / 100).clamp(GUARD_MIN, GUARD_MAX)
    }

    /// The largest cost that every window can hold.
    pub fn cost_max(&self) -> Permits {
        self.limits.iter().map(|limit| limit.rate).min().unwrap_or(Permits::ONE)
    }
}
