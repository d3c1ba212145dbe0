//! The report of problems, and the judgements that many keys share: bounds, names, references to names.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::place::{At, Given};
use crate::config::problem::{Report, unknown};
use crate::config::schema::forms::Text;
use crate::config::units::{Share, Size, show_duration, show_share, show_size};
use crate::limiter::model::limit::LimiterName;

pub(super) const MILLISECOND: Duration = Duration::from_millis(1);
pub(super) const MINUTE: Duration = Duration::from_secs(60);
pub(super) const HOUR: Duration = Duration::from_secs(3600);
pub(super) const DAY: Duration = Duration::from_secs(86_400);

/// The message about a text that is no valid name.
pub(super) const NAME_EXPECTED: &str = "a name is 1 to 64 letters, digits, `_`, `.` or `-`";

/// The report that all checks write into, and the directory at which relative paths begin.
pub(super) struct Check<'a> {
    pub(super) report: &'a mut Report,
    pub(super) base: &'a Path,
    pub(super) content: &'a mut Content,
}

/// The content of a configuration, in digests.
pub(crate) struct Content {
    /// Takes in the file, and those that set its limits.
    pub(super) whole: Sha256,
    /// The digest of each valid certificate and private key that it names, by path.
    pub(super) pem: HashMap<PathBuf, [u8; 32]>,
}

impl Content {
    /// Begins with the bytes of the file.
    pub(crate) fn of_file(bytes: &[u8]) -> Content {
        Content { whole: Sha256::new_with_prefix(bytes), pem: HashMap::new() }
    }

    /// Returns the digest of a valid certificate or private key.
    pub(crate) fn of_pem(&self, path: &Path) -> Option<[u8; 32]> {
        self.pem.get(path).copied()
    }
}

/// A quantity with a unit, as messages show it.
pub(super) trait Shown: PartialOrd + Copy {
    fn shown(self) -> String;
}

impl Shown for Duration {
    fn shown(self) -> String {
        show_duration(self)
    }
}

impl Shown for Size {
    fn shown(self) -> String {
        show_size(self)
    }
}

impl Shown for Share {
    fn shown(self) -> String {
        show_share(self)
    }
}

impl Check<'_> {
    /// Reports a problem at the value of a key.
    pub(super) fn problem(&mut self, at: &At<'_>, message: impl Into<String>) {
        self.report.add(at.mark, at.path.clone(), message);
    }

    /// Reports a problem at the value of a key, and returns nothing in its place.
    pub(super) fn refuse<T>(&mut self, at: &At<'_>, message: impl Into<String>) -> Option<T> {
        self.problem(at, message);
        None
    }

    /// Reports a problem at the key itself, whatever its value.
    pub(super) fn problem_of_key(&mut self, at: &At<'_>, message: impl Into<String>) {
        self.report.add(at.key_mark, at.path.clone(), message);
    }

    /// Reports a problem at the key itself, and returns nothing in its place.
    pub(super) fn refuse_key<T>(&mut self, at: &At<'_>, message: impl Into<String>) -> Option<T> {
        self.problem_of_key(at, message);
        None
    }

    /// Warns of a key that is valid and hardly meant.
    pub(super) fn warn(&mut self, at: &At<'_>, message: impl Into<String>) {
        self.report.warn(at.key_mark, at.path.clone(), message);
    }

    /// Checks a whole number against its bounds.
    pub(super) fn count(
        &mut self,
        given: &Given<'_, Option<i64>>,
        default: u32,
        bounds: RangeInclusive<u32>,
    ) -> Option<u32> {
        let Some(number) = *given.value else { return Some(default) };
        let count = u32::try_from(number).ok().filter(|count| bounds.contains(count));
        count.or_else(|| {
            self.refuse(&given.at, format!("must be from {} to {}", bounds.start(), bounds.end()))
        })
    }

    /// Checks an optional duration or size against its bounds.
    pub(super) fn bounded<T: Shown>(
        &mut self,
        given: &Given<'_, Option<Text<T>>>,
        default: T,
        bounds: RangeInclusive<T>,
    ) -> Option<T> {
        given.get().map_or(Some(default), |given| self.within(&given, bounds))
    }

    /// Checks a duration or size against its bounds.
    pub(super) fn within<T: Shown>(
        &mut self,
        given: &Given<'_, Text<T>>,
        bounds: RangeInclusive<T>,
    ) -> Option<T> {
        let Text(quantity) = *given.value;
        if bounds.contains(&quantity) {
            return Some(quantity);
        }
        let (from, to) = (bounds.start().shown(), bounds.end().shown());
        self.refuse(&given.at, format!("must be from {from} to {to}"))
    }

    /// Reports a key that is not a name.
    pub(super) fn name(&mut self, name: &str, at: &At<'_>) {
        if LimiterName::parse(name).is_none() {
            self.problem_of_key(at, NAME_EXPECTED);
        }
    }

    /// Reports a reference to a name that does not exist. A name from the environment is not repeated.
    pub(super) fn reference(&mut self, what: &str, name: &Given<'_, String>, names: &[&str]) {
        if !names.contains(&name.value.as_str()) {
            let shown = if name.at.is_interpolated() { "***" } else { name.value };
            self.problem(&name.at, unknown(what, shown, names.iter().copied()));
        }
    }
}
