//! YAML text to a tree in which every key and value has its line and column.
//!
//! - `tree`: nodes, and the types of scalars by YAML's core schema.
//! - `parse`: text to a tree, within bounds; `diagnose`: the likely cause of a syntax error.
//! - `write`: a JSON value as one line of YAML.
//!
//! Knows nothing of weir's keys or of `${...}`.

mod diagnose;
mod parse;
mod tree;
mod write;

pub(crate) use parse::parse;
pub(crate) use tree::{Entry, Kind, Node, Origin, Scalar, Value};
pub(crate) use write::in_yaml;
