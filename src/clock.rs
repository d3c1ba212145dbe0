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

/// The clock of this process: the wall time at its start, advanced by the monotonic clock. Steps of the wall clock do
/// not affect it.
///
/// Under Tokio's paused time it follows that time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    anchor: Instant,
    anchor_wall: Micros,
    boot: fn() -> Micros,
}

impl Clock {
    /// Starts a clock at the present wall time.
    pub fn start() -> Clock {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock::starting_at(Micros::from(wall), since_boot)
    }

    /// Starts a clock at a wall time. `boot` returns the time since the machine started.
    pub fn starting_at(wall: Micros, boot: fn() -> Micros) -> Clock {
        Clock { anchor: Instant::now(), anchor_wall: wall, boot }
    }

    /// Returns the present instant.
    pub fn now(&self) -> Micros {
        self.at(Instant::now())
    }

    /// Returns the time since the machine started, which runs on while the machine sleeps; Tokio's instants stand still then.
    pub fn since_boot(&self) -> Micros {
        (self.boot)()
    }

    /// Converts a monotonic instant to this clock's.
    pub fn at(&self, instant: Instant) -> Micros {
        self.anchor_wall + Micros::from(instant.saturating_duration_since(self.anchor))
    }
}

fn since_boot() -> Micros {
    let time = clock_gettime(ClockId::Boottime);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    Micros(seconds.unwrap_or_default().saturating_mul(1_000_000) + nanos.unwrap_or_default() / 1000)
}
