//! An hour or a day, in UTC.

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;

/// The length of a period.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Per {
    /// An hour.
    Hour,
    /// A day.
    Day,
}

impl Per {
    /// Returns its name in URLs and answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Per::Hour => "1h",
            Per::Day => "1d",
        }
    }

    /// Returns the one of this name.
    pub fn named(name: &str) -> Option<Per> {
        [Per::Hour, Per::Day].into_iter().find(|per| per.as_str() == name)
    }

    /// Returns its length in seconds.
    pub fn seconds(self) -> u64 {
        match self {
            Per::Hour => HOUR,
            Per::Day => DAY,
        }
    }

    /// Returns the period that holds an instant, in seconds since the Unix epoch.
    pub fn at(self, seconds: u64) -> Period {
        Period { per: self, from: seconds - seconds % self.seconds() }
    }
}

/// An hour or a day by its beginning.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Period {
    /// The length.
    pub per: Per,
    /// The beginning, in seconds since the Unix epoch.
    pub from: u64,
}

impl Period {
    /// Returns whether an hour, given by its beginning, lies in the period.
    pub(super) fn holds(self, hour: u64) -> bool {
        (self.from..self.from + self.per.seconds()).contains(&hour)
    }
}
