//! The keys of a simulated server: strings and sorted sets that expire by a given clock.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Text(Arc<[u8]>),
    /// A sorted set: whole scores by their members.
    Scores(Arc<BTreeMap<Vec<u8>, i64>>),
}

/// A value, and when it expires.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    value: Value,
    /// The last millisecond of its life; none: it never expires.
    expires_ms: Option<u64>,
}

/// The data of a server at one instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Snapshot {
    entries: BTreeMap<Vec<u8>, Entry>,
}

/// The keys of a server, in ascending order.
#[derive(Default)]
pub(super) struct Keyspace {
    entries: BTreeMap<Vec<u8>, Entry>,
    /// True if keys are kept beyond their expiry.
    pub(super) never_expires: bool,
}

impl Entry {
    fn is_alive(&self, now_micros: u64) -> bool {
        self.expires_ms.is_none_or(|expires| now_micros / 1000 <= expires)
    }
}

impl Keyspace {
    fn is_alive(&self, entry: &Entry, now: u64) -> bool {
        self.never_expires || entry.is_alive(now)
    }

    /// Returns the value of a key.
    pub(super) fn value(&self, key: &[u8], now: u64) -> Option<&Value> {
        self.entries.get(key).filter(|entry| self.is_alive(entry, now)).map(|entry| &entry.value)
    }

    /// Returns the text of a key that holds one.
    pub(super) fn text(&self, key: &[u8], now: u64) -> Option<Arc<[u8]>> {
        match self.value(key, now)? {
            Value::Text(text) => Some(text.clone()),
            Value::Scores(_) => None,
        }
    }

    /// Changes a sorted set, which is made where there is none, and removed when it is empty; `None` if the key holds something else.
    pub(super) fn change_scores<T>(
        &mut self,
        key: &[u8],
        now: u64,
        change: impl FnOnce(&mut BTreeMap<Vec<u8>, i64>) -> T,
    ) -> Option<T> {
        if self.value(key, now).is_none() {
            let value = Value::Scores(Arc::default());
            self.entries.insert(key.to_vec(), Entry { value, expires_ms: None });
        }
        let Some(Entry { value: Value::Scores(scores), .. }) = self.entries.get_mut(key) else { return None };
        let changed = change(Arc::make_mut(scores));
        if scores.is_empty() {
            self.entries.remove(key);
        }
        Some(changed)
    }

    /// Lets a key expire in so many milliseconds. Returns whether there is one.
    pub(super) fn expire_in(&mut self, key: &[u8], span_ms: u64, now: u64) -> bool {
        if self.value(key, now).is_none() {
            return false;
        }
        let entry = self.entries.get_mut(key);
        entry.is_some_and(|entry| {
            entry.expires_ms = Some((now / 1000).saturating_add(span_ms));
            true
        })
    }

    /// Writes a key that expires in so many milliseconds.
    pub(super) fn set(&mut self, key: &[u8], text: &[u8], expires_in_ms: Option<u64>, now: u64) {
        let expires_ms = expires_in_ms.map(|span| (now / 1000).saturating_add(span));
        let entry = Entry { value: Value::Text(text.into()), expires_ms };
        match self.entries.get_mut(key) {
            Some(place) => *place = entry,
            None => drop(self.entries.insert(key.to_vec(), entry)),
        }
    }

    /// Removes a key. Returns whether it held anything.
    pub(super) fn remove(&mut self, key: &[u8], now: u64) -> bool {
        self.entries.remove(key).is_some_and(|entry| self.is_alive(&entry, now))
    }

    /// Returns the keys that have not expired.
    pub(super) fn keys(&self, now: u64) -> Vec<Vec<u8>> {
        let alive = self.entries.iter().filter(|(_, entry)| self.is_alive(entry, now));
        alive.map(|(key, _)| key.clone()).collect()
    }

    /// Returns the number of keys, with those that have expired and are not removed yet.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Removes all keys that have expired, which no command can tell.
    pub(super) fn expire(&mut self, now: u64) {
        if !self.never_expires {
            self.entries.retain(|_, entry| entry.is_alive(now));
        }
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot { entries: self.entries.clone() }
    }

    pub(super) fn restore(&mut self, snapshot: &Snapshot) {
        self.entries.clone_from(&snapshot.entries);
    }
}
