//! Limiters: limits, guard, queue and policies, as values that cannot be wrong.
//!
//! The configuration builds them; the algorithms, the stores and the workers read them. Knows no YAML and no request.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use crate::limiter::model::calendar_windows::CalendarWindows;
use crate::limiter::model::partition::{OwnBits, Partition};
pub use crate::limiter::model::queue_limits::QueueLimits;
use crate::limiter::model::quota_share::{Flow, QuotaShare};

/// The highest `rate` and the highest cost: 10^9 permits.
pub const RATE_MAX: u32 = 1_000_000_000;
/// The shortest `per`: 1 ms.
pub const PER_MIN: Duration = Duration::from_millis(1);
/// The longest `per`: 366 days.
pub const PER_MAX: Duration = Duration::from_secs(366 * 86_400);
/// Instants kept apart per window unless `precision` says otherwise.
pub const PRECISION_DEFAULT: u32 = 256;
/// The shortest warm-up: 1 ms.
pub const WARM_UP_MIN: Duration = Duration::from_millis(1);
/// The longest warm-up: a day.
pub const WARM_UP_MAX: Duration = Duration::from_secs(86_400);
/// The spacing of a cold limit unless `cold` says otherwise, in multiples of `per / rate`.
pub const COLD_DEFAULT: u32 = 3;
/// The widest spacing of a cold limit, in multiples of `per / rate`.
pub const COLD_MAX: u32 = 100;
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
    /// Parses a name of the allowed characters, at most 64 of them.
    pub fn parse(text: &str) -> Option<LimiterName> {
        let fits = (1..=64).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte));
        fits.then(|| LimiterName(text.into()))
    }

    /// Returns the name as text.
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

    /// Returns `count` permits, if within 1 to [`RATE_MAX`].
    pub fn new(count: u64) -> Option<Permits> {
        let count = u32::try_from(count).ok().filter(|count| *count <= RATE_MAX)?;
        NonZeroU32::new(count).map(Permits)
    }

    /// Returns the count.
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

/// Whose turn it is among the requests that wait for a limiter.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub enum Order {
    /// First come, first served: a slot is booked for each request when it comes.
    #[default]
    Booked,
    /// First come, first served, and slots are dealt a little ahead of their time: requests take different costs of the limiters of a route,
    /// which are not known for long before.
    Dealt,
    /// Slots are dealt by classes and weights.
    Shared(QuotaShare),
}

/// The algorithm of a limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Algorithm {
    /// Every interval of length `per` holds at most `rate` permits.
    SlidingWindow {
        /// The number of instants kept apart per window: exact up to as many permits, beyond it rounded to `per /
        /// precision`, to the safe side.
        precision: NonZeroU32,
    },
    /// `burst` permits at once, then `rate` per `per`.
    TokenBucket {
        /// The permits in a full bucket.
        burst: Permits,
    },
    /// Evenly spaced: one permit every `per / rate`.
    LeakyBucket,
    /// Windows aligned to a calendar: each holds at most `rate` permits.
    FixedWindow {
        /// The calendar.
        windows: CalendarWindows,
    },
    /// Evenly spaced, and slower after an idle time.
    WarmUp {
        /// The idle time after which it is cold, between [`WARM_UP_MIN`] and [`WARM_UP_MAX`].
        warm_up: Duration,
        /// The spacing when it is cold, in multiples of `per / rate`, 1 to [`COLD_MAX`].
        cold: NonZeroU32,
    },
}

/// `rate` permits per window `per`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limit {
    /// Permits in a window.
    pub rate: Permits,
    /// The length of the window, between [`PER_MIN`] and [`PER_MAX`]; of calendar windows the longest.
    pub per: Duration,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The limit in short form, `900/1m`: shown in metrics, headers and pages.
    pub label: Arc<str>,
}

/// The policy for requests while the store cannot be asked.
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

/// The replicas that share a limiter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Scope {
    /// The fleet, through the store.
    #[default]
    Overall,
    /// Each replica enforces the limiter by itself, in memory.
    PerReplica,
}

/// The effect of a limiter on requests.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Mode {
    /// The limiter delays and refuses.
    #[default]
    Enforce,
    /// The limiter charges and counts, but never delays or refuses, and stands outside all-or-nothing.
    Shadow,
}

/// The partitions of a limiter whose requests are parted by a key, each with a state of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Partitioned {
    /// The most partitions that live at once in a replica.
    pub max_partitions: u32,
    /// True if the values of the key may be shown to operators; their hashes are otherwise.
    pub shows_values: bool,
    /// The partitions with limits of their own.
    pub overrides: Overrides,
    /// In an override: the value of the key that has it, as configured.
    pub value: Option<Arc<str>>,
}

impl Partitioned {
    /// Returns partitions that all have the limiter's own limits.
    pub fn new(max_partitions: u32) -> Partitioned {
        Partitioned { max_partitions, shows_values: false, overrides: Overrides::default(), value: None }
    }
}

/// The overrides of a limiter, by partition. Each is the limiter with other limits.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Overrides(Arc<HashMap<Partition, Arc<Limiter>, OwnBits>>);

impl Overrides {
    /// Returns the number of overrides.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the override of a partition.
    pub fn get(&self, partition: Partition) -> Option<&Arc<Limiter>> {
        self.0.get(&partition)
    }

    /// Iterates over the partitions, each with the limiter as it holds for it, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (Partition, &Arc<Limiter>)> {
        self.0.iter().map(|(partition, limiter)| (*partition, limiter))
    }
}

/// The pauses of a limiter after rejections of the upstream. Which answers are rejections is not the limiter's to say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PausePolicy {
    /// The longest pause whose end the upstream names.
    pub max: Duration,
    /// The length of the first pause whose end it does not name. Each one that follows at once is twice as long.
    pub guess_first: Duration,
    /// The longest such pause.
    pub guess_max: Duration,
}

impl Default for PausePolicy {
    fn default() -> PausePolicy {
        let seconds = Duration::from_secs;
        PausePolicy { max: seconds(24 * 3600), guess_first: seconds(1), guess_max: seconds(300) }
    }
}

/// A named set of limits that a request must satisfy all at once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limiter {
    /// The name.
    pub name: LimiterName,
    /// The limits: at least one, at most [`LIMITS_MAX`].
    pub limits: Vec<Limit>,
    /// The replicas that share the limiter.
    pub scope: Scope,
    /// The effect on requests.
    pub mode: Mode,
    /// The partitions; `None`: one state for all requests.
    pub partitioned: Option<Partitioned>,
    /// How long after its slot a permit stays good; every window is widened by it.
    pub guard: Duration,
    /// The queue; `None`: over the limit, a request is refused at once.
    pub queue: Option<QueueLimits>,
    /// Whose turn it is among the requests that wait.
    pub order: Order,
    /// The group, by which the limiter's keys share a Redis Cluster slot; limiters of one group can be taken together.
    pub group: Arc<str>,
    /// The policy while the store cannot be asked.
    pub on_store_failure: OnStoreFailure,
    /// The pauses; `None`: rejections of the upstream change nothing.
    pub pause: Option<PausePolicy>,
    /// True if the limiter follows the remaining permits that the upstream reports, where they are fewer than weir expects.
    pub follows_upstream: bool,
}

impl Limiter {
    /// Returns a limiter of these limits, with the defaults for everything else.
    pub fn new(name: LimiterName, limits: Vec<Limit>) -> Limiter {
        Limiter {
            guard: Limiter::default_guard(&limits),
            group: name.as_str().into(),
            scope: Scope::default(),
            mode: Mode::default(),
            partitioned: None,
            queue: None,
            order: Order::default(),
            on_store_failure: OnStoreFailure::default(),
            pause: Some(PausePolicy::default()),
            follows_upstream: false,
            name,
            limits,
        }
    }

    /// Returns 1 % of the shortest window, between [`GUARD_MIN`] and [`GUARD_MAX`].
    pub fn default_guard(limits: &[Limit]) -> Duration {
        let shortest = limits.iter().map(|limit| limit.per).min().unwrap_or(PER_MIN);
        (shortest / 100).clamp(GUARD_MIN, GUARD_MAX)
    }

    /// Returns the limiter with these overrides: each a partition, the value of the key that has it, and its limits. A limiter without
    /// partitions stays as it is.
    #[must_use]
    pub fn overridden(
        self,
        overrides: impl IntoIterator<Item = (Partition, Arc<str>, Vec<Limit>)>,
    ) -> Limiter {
        let Some(own) = self.partitioned.clone() else { return self };
        let plain = Limiter { limits: Vec::new(), partitioned: None, ..self.clone() };
        let limiters = overrides.into_iter().map(|(partition, value, limits)| {
            let partitioned = Partitioned { value: Some(value), ..Partitioned::new(own.max_partitions) };
            let limiter = Limiter { limits, partitioned: Some(partitioned), ..plain.clone() };
            (partition, Arc::new(limiter))
        });
        let overrides = Overrides(Arc::new(limiters.collect()));
        Limiter { partitioned: Some(Partitioned { overrides, ..own }), ..self }
    }

    /// Returns the overrides, each the limiter with other limits, in no order.
    pub fn overrides(&self) -> impl Iterator<Item = &Arc<Limiter>> {
        self.partitioned.iter().flat_map(|partitioned| partitioned.overrides.0.values())
    }

    /// Returns the limiter as it holds for a partition: its override, if the partition has one.
    pub fn of_partition(self: &Arc<Limiter>, partition: Option<Partition>) -> &Arc<Limiter> {
        let Some(Partitioned { overrides, .. }) = &self.partitioned else { return self };
        partition.filter(|_| !overrides.is_empty()).and_then(|it| overrides.get(it)).unwrap_or(self)
    }

    /// Returns the value of the key that has these limits, if they are an override.
    pub fn value(&self) -> Option<&Arc<str>> {
        self.partitioned.as_ref()?.value.as_ref()
    }

    /// Returns how callers share the quota, if they do.
    pub fn share(&self) -> Option<&QuotaShare> {
        match &self.order {
            Order::Shared(share) => Some(share),
            Order::Booked | Order::Dealt => None,
        }
    }

    /// Returns the longest wait of a request: that of its class, where callers share the quota.
    pub fn wait_max(&self, flow: Flow) -> Duration {
        let of_class = self.share().map(|share| &share.class(flow).queue);
        of_class.or(self.queue.as_ref()).map_or(Duration::ZERO, |queue| queue.timeout)
    }

    /// Returns whether the limiter only counts, and stands outside all-or-nothing.
    pub fn is_shadow(&self) -> bool {
        self.mode == Mode::Shadow
    }
}
