//! Instants and spans in whole microseconds, and the clock of this process.
//!
//! Knows nothing of limiters. All limiter arithmetic is on [`Micros`]. Its values stay below 2^53, so that the Lua
//! scripts, whose numbers are doubles, compute the same values.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// A number of microseconds: an instant of the store's clock since the Unix epoch, or a span.
///
/// Sums saturate and differences stop at zero: an instant never wraps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Micros(pub u64);

impl Micros {
    /// Zero.
    pub const ZERO: Micros = Micros(0);
    /// The shortest span.
    pub const ONE: Micros = Micros(1);
    /// The longest span that is computed with, over a hundred years: sums stay below 2^53.
    pub const SPAN_MAX: Micros = Micros(4_000_000_000_000_000);

    /// Converts whole milliseconds.
    pub const fn from_millis(millis: u64) -> Micros {
        Micros(millis.saturating_mul(1000))
    }

    /// Converts to a [`Duration`].
    pub const fn to_duration(self) -> Duration {
        Duration::from_micros(self.0)
    }

    /// Converts to milliseconds, rounded up.
    pub const fn millis_up(self) -> u64 {
        self.0.div_ceil(1000)
    }
}

impl From<Duration> for Micros {
    /// Rounds down. A duration over 584 000 years saturates.
    fn from(duration: Duration) -> Micros {
        Micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
    }
}

impl Add for Micros {
    type Output = Micros;
    fn add(self, other: Micros) -> Micros {
        Micros(self.0.saturating_add(other.0))
    }
}

impl Sub for Micros {
    type Output = Micros;
    fn sub(self, other: Micros) -> Micros {
        Micros(self.0.saturating_sub(other.0))
    }
}

impl fmt::Debug for Micros {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}us", self.0)
    }
}

/// The moment at which the machine started. What other machines tell of from before then has moments, too, in the order in which it was.
const MACHINE_START: Moment = Moment(48 * 3_600_000_000);

/// An instant of this process: microseconds of a clock that runs on while the machine sleeps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Moment(pub u64);

impl Add<Micros> for Moment {
    type Output = Moment;
    fn add(self, span: Micros) -> Moment {
        Moment(self.0.saturating_add(span.0))
    }
}

impl Sub<Micros> for Moment {
    type Output = Moment;
    fn sub(self, span: Micros) -> Moment {
        Moment(self.0.saturating_sub(span.0))
    }
}

impl Sub for Moment {
    type Output = Micros;
    /// Returns the span since an earlier moment; zero since a later one.
    fn sub(self, earlier: Moment) -> Micros {
        Micros(self.0.saturating_sub(earlier.0))
    }
}

/// The clock of this process: the wall time at its start, advanced by the time since the machine started. It runs on while the
/// machine sleeps, and steps of the wall clock do not affect it.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    anchor: Moment,
    anchor_wall: Micros,
    source: Source,
}

/// The source of a clock's moments.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// Returns the time since the machine started.
    Machine(fn() -> Micros),
    /// Tokio's time since an instant.
    Runtime(Instant),
}

impl Source {
    fn moment(self) -> Moment {
        match self {
            Source::Machine(since_boot) => MACHINE_START + since_boot(),
            Source::Runtime(anchor) => Moment(Micros::from(anchor.elapsed()).0),
        }
    }
}

impl Clock {
    /// Starts a clock at the present wall time.
    pub fn start() -> Clock {
        Clock::starting_at(unix_now().into(), since_boot)
    }

    /// Starts a clock at a wall time. `boot` returns the time since the machine started.
    pub fn starting_at(wall: Micros, boot: fn() -> Micros) -> Clock {
        Clock::of(Source::Machine(boot), wall)
    }

    /// Starts a clock at the present wall time, which then follows Tokio's time: a test may pause that.
    pub fn of_runtime() -> Clock {
        Clock::of(Source::Runtime(Instant::now()), unix_now().into())
    }

    fn of(source: Source, anchor_wall: Micros) -> Clock {
        Clock { anchor: source.moment(), anchor_wall, source }
    }

    /// Returns the present wall time.
    pub fn now(&self) -> Micros {
        self.at(self.moment())
    }

    /// Returns the present moment.
    pub fn moment(&self) -> Moment {
        self.source.moment()
    }

    /// Returns the wall time of a moment.
    pub fn at(&self, moment: Moment) -> Micros {
        self.anchor_wall + (moment - self.anchor)
    }
}

/// Returns the time of an instant since the Unix epoch; zero before that.
pub fn unix_time(at: SystemTime) -> Duration {
    at.duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Returns the present time since the Unix epoch, by the wall clock.
pub fn unix_now() -> Duration {
    unix_time(SystemTime::now())
}

/// Converts to whole milliseconds. Saturates.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn since_boot() -> Micros {
    let time = clock_gettime(ClockId::Boottime);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    Micros(seconds.unwrap_or_default().saturating_mul(1_000_000) + nanos.unwrap_or_default() / 1000)
}
