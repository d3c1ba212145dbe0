//! Replicas, as they know each other.

use std::sync::Arc;
use std::time::Duration;

/// The longest text of a replica that is shown: no host name of Linux and no hash of a configuration is longer.
const TEXT_MAX: usize = 64;

/// One running weir.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replica {
    /// The replica's number below 2^53, chosen at its start.
    pub id: u64,
    /// The version of weir.
    pub version: Arc<str>,
    /// The hash of the replica's configuration.
    pub configuration: Arc<str>,
    /// The name of the replica's host, for people; empty if it has none. Two replicas may have the same.
    pub host: Arc<str>,
    /// The time since the store last saw the replica.
    pub seen_ago: Duration,
}

impl Replica {
    /// Returns a replica of this version of which nothing else is known.
    pub(crate) fn new(id: u64) -> Replica {
        let version = env!("CARGO_PKG_VERSION").into();
        Replica { id, version, configuration: "".into(), host: "".into(), seen_ago: Duration::ZERO }
    }
}

/// Returns the part of a foreign text that can be shown safely: visible ASCII, at most as long as a name.
pub(crate) fn printable(text: &str) -> Arc<str> {
    let shown = text.chars().filter(char::is_ascii_graphic).take(TEXT_MAX);
    shown.collect::<String>().into()
}

/// Returns a replica's number as people see it, in hexadecimal: readers of JSON may round so large a number.
pub fn replica_name(id: u64) -> String {
    format!("{id:014x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_text_is_shown_without_harm() {
        assert_eq!(&*printable("weir-2.internal"), "weir-2.internal");
        assert_eq!(&*printable("a\u{1b}[2Jb\u{9b}\u{202e} c\n\u{e4}<i>"), "a[2Jbc<i>");
        assert_eq!(printable(&"x".repeat(1000)).len(), TEXT_MAX);
    }
}
