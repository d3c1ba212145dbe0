//! A place in the tree, followed key by key beside the schema, so that the schema need not carry places.

use crate::config::problem::{Mark, index_path, key_path};
use crate::config::yaml::{Node, Value};

/// A key of the file, whether it is given or not.
pub(crate) struct At<'a> {
    node: Option<&'a Node>,
    /// Of the value; of the nearest mapping above, where the key is absent.
    pub(crate) mark: Mark,
    /// Of the key.
    pub(crate) key_mark: Mark,
    pub(crate) path: String,
}

impl<'a> At<'a> {
    pub(crate) fn root(node: &'a Node) -> At<'a> {
        At { node: Some(node), mark: node.mark, key_mark: node.mark, path: String::new() }
    }

    /// The value below a key.
    pub(crate) fn key(&self, key: &str) -> At<'a> {
        let path = key_path(&self.path, key);
        match self.node.and_then(|node| node.entry(key)) {
            Some(entry) => {
                At { node: Some(&entry.value), mark: entry.value.mark, key_mark: entry.key_mark, path }
            }
            None => At { node: None, mark: self.mark, key_mark: self.mark, path },
        }
    }

    /// An element of a list.
    pub(crate) fn index(&self, index: usize) -> At<'a> {
        let node = self.node.and_then(|node| node.items().get(index));
        let mark = node.map_or(self.mark, |node| node.mark);
        At { node, mark, key_mark: mark, path: index_path(&self.path, index) }
    }

    /// Whether the value came from the environment or a file, so that no message may hold it.
    pub(crate) fn is_interpolated(&self) -> bool {
        self.node.is_some_and(|node| matches!(&node.value, Value::Scalar(scalar) if scalar.interpolated))
    }
}
