//! The keys of a simulated server: strings that expire by a given clock.

use std::collections::BTreeMap;
use std::sync::Arc;

/// A value, and when it expires.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    value: Value,
    /// The last millisecond of its life; none: it never expires.
    expires_ms: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Text(Arc<[u8]>),
    /// A value of another type, which no command here can read.
    Other,
}

/// What a key holds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found<'a> {
    Nothing,
    Text(&'a [u8]),
    /// A value of another type.
    Other,
}

/// The data of a server at one instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    entries: BTreeMap<Vec<u8>, Entry>,
}

/// The keys of a server, in ascending order.
#[derive(Default)]
pub(super) struct Keyspace {
    entries: BTreeMap<Vec<u8>, Entry>,
    /// Whether keys are kept beyond their expiry.
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

    /// Returns what a key holds.
    pub(super) fn find(&self, key: &[u8], now: u64) -> Found<'_> {
        match self.entries.get(key).filter(|entry| self.is_alive(entry, now)).map(|entry| &entry.value) {
            Some(Value::Text(text)) => Found::Text(text),
            Some(Value::Other) => Found::Other,
            None => Found::Nothing,
        }
    }

    /// Returns the text of a key without copying it.
    pub(super) fn text(&self, key: &[u8], now: u64) -> Option<Arc<[u8]>> {
        let entry = self.entries.get(key).filter(|entry| self.is_alive(entry, now))?;
        match &entry.value {
            Value::Text(text) => Some(text.clone()),
            Value::Other => None,
        }
    }

    /// Writes a key that expires in so many milliseconds.
    pub(super) fn set(&mut self, key: &[u8], text: &[u8], expires_in_ms: Option<u64>, now: u64) {
        let expires_ms = expires_in_ms.map(|span| (now / 1000).saturating_add(span));
        self.put(key, Entry { value: Value::Text(text.into()), expires_ms });
    }

    /// Makes a key hold a value of another type.
    pub(super) fn set_other(&mut self, key: &[u8]) {
        self.put(key, Entry { value: Value::Other, expires_ms: None });
    }

    fn put(&mut self, key: &[u8], entry: Entry) {
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
