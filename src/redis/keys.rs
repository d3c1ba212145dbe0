//! The names of the keys: `PREFIX:{GROUP}:v1:...`.
//!
//! The braces are literal. On a Redis Cluster they make all keys of a group live in one slot, which one
//! script call needs. `v1` is the layout of what is stored, so that two versions of weir run side by side.
//! Names of limiters hold neither `:` nor `+`, so no two keys can be confused.

use crate::limiter::store::Subject;

/// A limiter's book.
pub(super) fn limiter(prefix: &str, subject: &Subject) -> String {
    format!("{prefix}:{{{}}}:v1:limiter:{}", subject.group, subject.name)
}

/// The order of the queue that takes all of `subjects` at once.
pub(super) fn queue(prefix: &str, subjects: &[Subject]) -> String {
    let group = subjects.first().map_or("", |subject| &subject.group);
    let names: Vec<&str> = subjects.iter().map(|subject| subject.name.as_str()).collect();
    format!("{prefix}:{{{group}}}:v1:queue:{}", names.join("+"))
}

/// The name of a queue, from its key.
pub(super) fn queue_name(key: &str) -> Option<&str> {
    key.rsplit_once(":v1:queue:").map(|(_, name)| name)
}

/// The channel on which scripts tell the fleet what it need not ask for.
pub(super) fn announcements(prefix: &str) -> String {
    format!("{prefix}:v1:announcements")
}
