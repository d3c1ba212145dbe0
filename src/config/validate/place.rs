//! Places in the tree, followed key by key beside the schema, so that the schema need not carry them.
//!
//! [`At`] is the place of a key. The tree also tells what the schema cannot: that a key is given although its faulty
//! value was struck out. [`Given`] is a part of the schema together with its place; [`key!`](key) leads from a
//! section to one of its keys.

use std::collections::HashSet;

use crate::config::problem::{Mark, index_path, key_path};
use crate::config::schema::OffOr;
use crate::config::schema::forms::Named;
use crate::config::yaml::{Entry, Node};

/// The place of a key, whether the key is given or not.
#[derive(Clone)]
pub(crate) struct At<'a> {
    node: Option<&'a Node>,
    struck: &'a HashSet<u32>,
    /// The place of the value; of the nearest mapping above, if the key is absent.
    pub(crate) mark: Mark,
    /// The place of the key.
    pub(crate) key_mark: Mark,
    pub(crate) path: String,
}

impl<'a> At<'a> {
    /// Returns the place of the whole file.
    pub(crate) fn root(node: &'a Node, struck: &'a HashSet<u32>) -> At<'a> {
        At { node: Some(node), struck, mark: node.mark, key_mark: node.mark, path: String::new() }
    }

    /// Returns the place of a key of this mapping.
    pub(super) fn key(&self, key: &str) -> At<'a> {
        match self.node.and_then(|node| node.entry(key)) {
            Some(entry) => self.of_entry(entry),
            None => {
                let path = key_path(&self.path, key);
                At { node: None, struck: self.struck, mark: self.mark, key_mark: self.mark, path }
            }
        }
    }

    /// Returns the place of an element of this list. The index counts as the schema does, without faulty elements.
    pub(super) fn index(&self, index: usize) -> At<'a> {
        let items = self.node.map(Node::items).unwrap_or_default().iter().enumerate();
        let mut sound = items.filter(|(_, item)| !self.struck.contains(&item.id));
        let (index, node) = sound.nth(index).map_or((index, None), |(index, item)| (index, Some(item)));
        let mark = node.map_or(self.mark, |node| node.mark);
        At { node, struck: self.struck, mark, key_mark: mark, path: index_path(&self.path, index) }
    }

    /// Returns whether the key is given, with a sound value or a faulty one.
    pub(super) fn is_given(&self) -> bool {
        self.node.is_some()
    }

    /// Returns whether the value is faulty, which has been reported.
    pub(super) fn is_faulty(&self) -> bool {
        self.node.is_some_and(|node| self.struck.contains(&node.id))
    }

    /// Returns whether the value came from the environment or a file. No message may then repeat it.
    pub(super) fn is_interpolated(&self) -> bool {
        self.node.is_some_and(Node::is_interpolated)
    }

    /// Returns the length of a list as written, faulty elements included.
    pub(super) fn length(&self) -> usize {
        self.node.map_or(0, |node| node.items().len())
    }

    /// Returns the keys of a mapping as written, those with faulty values included.
    pub(super) fn names(&self) -> Vec<&'a str> {
        self.node.map(Node::entries).unwrap_or_default().iter().map(|entry| entry.key.as_str()).collect()
    }

    fn of_entry(&self, entry: &'a Entry) -> At<'a> {
        let path = key_path(&self.path, &entry.key);
        let (node, mark) = (Some(&entry.value), entry.value.mark);
        At { node, struck: self.struck, mark, key_mark: entry.key_mark, path }
    }
}

/// A part of the schema and its place.
#[derive(Clone)]
pub(super) struct Given<'a, T> {
    pub(super) value: &'a T,
    pub(super) at: At<'a>,
}

impl<'a, T> Given<'a, T> {
    pub(super) fn new(value: &'a T, at: At<'a>) -> Given<'a, T> {
        Given { value, at }
    }

    /// Returns a part of this section. Use [`key!`](key) where the field is named as its key.
    pub(super) fn part<P>(&self, value: &'a P, key: &str) -> Given<'a, P> {
        Given { value, at: self.at.key(key) }
    }
}

impl<'a, T> Given<'a, Option<T>> {
    /// Returns the value, if the key is given and sound.
    pub(super) fn get(&self) -> Option<Given<'a, T>> {
        self.value.as_ref().map(|value| Given { value, at: self.at.clone() })
    }

    /// Returns the value, or `absent` in its place.
    pub(super) fn or<'b>(&self, absent: &'b T) -> Given<'b, T>
    where
        'a: 'b,
    {
        Given { value: self.value.as_ref().unwrap_or(absent), at: self.at.clone() }
    }

    /// Checks the value of an optional key: `Some(None)` if it is absent, `None` if it has a problem.
    pub(super) fn checked<V>(&self, check: impl FnOnce(Given<'a, T>) -> Option<V>) -> Option<Option<V>> {
        match self.get() {
            None => Some(None),
            Some(given) => check(given).map(Some),
        }
    }
}

impl<'a, T> Given<'a, Option<OffOr<T>>> {
    /// Returns the settings, unless the key is absent, faulty or `off`.
    pub(super) fn on(&self) -> Option<Given<'a, T>> {
        match self.value {
            Some(OffOr::On(value)) => Some(Given { value, at: self.at.clone() }),
            None | Some(OffOr::Off) => None,
        }
    }
}

impl<'a, T> Given<'a, Vec<T>> {
    /// Iterates over the sound elements.
    pub(super) fn items(&self) -> impl Iterator<Item = Given<'a, T>> + use<'a, T> {
        let at = self.at.clone();
        self.value.iter().enumerate().map(move |(index, value)| Given { value, at: at.index(index) })
    }
}

impl<'a, T> Given<'a, Option<Vec<T>>> {
    /// Iterates over the sound elements; none if the key is absent.
    pub(super) fn items(&self) -> impl Iterator<Item = Given<'a, T>> + use<'a, T> {
        self.get().into_iter().flat_map(|list| list.items())
    }
}

impl<'a, T> Given<'a, Named<T>> {
    /// Iterates over names and values.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&'a str, Given<'a, T>)> + use<'a, T> {
        let at = self.at.clone();
        // Both are in the order of the file, which may name very many.
        let mut written = at.node.map(Node::entries).unwrap_or_default().iter();
        self.value.iter().map(move |(name, value)| {
            let at =
                written.find(|entry| entry.key == name).map_or_else(|| at.key(name), |it| at.of_entry(it));
            (name, Given { value, at })
        })
    }
}

impl<'a, T> Given<'a, Option<Named<T>>> {
    /// Iterates over names and values; none if the key is absent.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&'a str, Given<'a, T>)> + use<'a, T> {
        self.get().into_iter().flat_map(|named| named.entries())
    }
}

/// Leads from a section to one of its keys: `key!(server.idle_timeout)`.
///
/// The key is the name of the schema's field, so it is written once, and the compiler knows it.
macro_rules! key {
    ($section:ident.$key:ident) => {
        $section.part(&$section.value.$key, stringify!($key))
    };
}
pub(super) use key;

/// Collects the results of checks. Every check runs, also after the first problem.
pub(super) fn all<T>(checked: impl Iterator<Item = Option<T>>) -> Option<Vec<T>> {
    checked.collect::<Vec<_>>().into_iter().collect()
}
