//! A place in the tree, followed key by key beside the schema, so that the schema need not carry places.
//!
//! The tree also tells what the schema cannot: that a key is given though its value is faulty, and was struck out.

use std::collections::HashSet;

use crate::config::problem::{Mark, index_path, key_path};
use crate::config::yaml::{Node, Value};

/// A key of the file, whether it is given or not.
pub(crate) struct At<'a> {
    node: Option<&'a Node>,
    struck: &'a HashSet<u32>,
    /// Of the value; of the nearest mapping above, where the key is absent.
    pub(crate) mark: Mark,
    /// Of the key.
    pub(crate) key_mark: Mark,
    pub(crate) path: String,
}

impl<'a> At<'a> {
    pub(crate) fn root(node: &'a Node, struck: &'a HashSet<u32>) -> At<'a> {
        At { node: Some(node), struck, mark: node.mark, key_mark: node.mark, path: String::new() }
    }

    /// The value below a key.
    pub(crate) fn key(&self, key: &str) -> At<'a> {
        let path = key_path(&self.path, key);
        match self.node.and_then(|node| node.entry(key)) {
            Some(entry) => {
                let (node, mark) = (Some(&entry.value), entry.value.mark);
                At { node, struck: self.struck, mark, key_mark: entry.key_mark, path }
            }
            None => At { node: None, struck: self.struck, mark: self.mark, key_mark: self.mark, path },
        }
    }

    /// An element of a list, counted as the schema has them, without those that are faulty.
    pub(crate) fn index(&self, index: usize) -> At<'a> {
        let items = self.node.map(Node::items).unwrap_or_default().iter().enumerate();
        let mut sound = items.filter(|(_, item)| !self.struck.contains(&item.id));
        let (index, node) = sound.nth(index).map_or((index, None), |(index, item)| (index, Some(item)));
        let mark = node.map_or(self.mark, |node| node.mark);
        At { node, struck: self.struck, mark, key_mark: mark, path: index_path(&self.path, index) }
    }

    /// Whether the key is given, with a sound value or not.
    pub(crate) fn is_given(&self) -> bool {
        self.node.is_some()
    }

    /// Whether the value is faulty, which has been reported.
    pub(crate) fn is_faulty(&self) -> bool {
        self.node.is_some_and(|node| self.struck.contains(&node.id))
    }

    /// Whether the value came from the environment or a file, so that no message may hold it.
    pub(crate) fn is_interpolated(&self) -> bool {
        self.node.is_some_and(Node::is_interpolated)
    }

    /// The elements of a list as it was written, the faulty ones too.
    pub(crate) fn length(&self) -> usize {
        self.node.map_or(0, |node| node.items().len())
    }

    /// The keys of a mapping as it was written, those with faulty values too.
    pub(crate) fn names(&self) -> Vec<&'a str> {
        match self.node.map(|node| &node.value) {
            Some(Value::Mapping(entries)) => entries.iter().map(|entry| entry.key.as_str()).collect(),
            _ => Vec::new(),
        }
    }
}
