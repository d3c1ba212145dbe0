//! The packed arguments and answers of weir's scripts, as `src/redis/arguments.rs` writes and `answers.rs` reads them.

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

/// The arguments of a script: MessagePack values one after the other.
#[derive(Default)]
pub(super) struct Packed(pub(super) Vec<u8>);

impl Packed {
    /// Appends a value.
    #[allow(clippy::expect_used, reason = "no call is made without its arguments")]
    pub(super) fn with(mut self, value: impl Serialize) -> Packed {
        rmp_serde::encode::write(&mut self.0, &value).expect("numbers and texts can be packed");
        self
    }
}

/// A value of an answer.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Node {
    Int(u64),
    List(Vec<Node>),
    /// Anything that the generator of calls does not look at.
    Other(IgnoredAny),
}

impl Node {
    pub(super) const NOTHING: Node = Node::Other(IgnoredAny);

    /// Reads an answer.
    pub(super) fn read(bytes: &[u8]) -> Node {
        rmp_serde::from_slice(bytes).unwrap_or(Node::NOTHING)
    }

    pub(super) fn list(&self) -> &[Node] {
        if let Node::List(nodes) = self { nodes } else { &[] }
    }

    /// Returns a number of a list; zero where there is none.
    pub(super) fn int_at(&self, index: usize) -> u64 {
        if let Some(Node::Int(number)) = self.list().get(index) { *number } else { 0 }
    }

    /// Returns a value of a list.
    pub(super) fn at(&self, index: usize) -> &Node {
        self.list().get(index).unwrap_or(&Node::NOTHING)
    }
}
