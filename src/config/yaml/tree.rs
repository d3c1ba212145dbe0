//! A YAML document as a tree: every key and value has its line and column.

use crate::config::problem::Mark;

/// One value of the tree.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    /// A number that is distinct in the tree. The copies that aliases make share it.
    pub(crate) id: u32,
    pub(crate) mark: Mark,
    pub(crate) value: Value,
}

#[derive(Debug, Clone)]
pub(crate) enum Value {
    Scalar(Scalar),
    List(Vec<Node>),
    Mapping(Vec<Entry>),
}

/// A scalar as text. [`Scalar::resolve`] returns its kind.
#[derive(Debug, Clone)]
pub(crate) struct Scalar {
    pub(crate) text: String,
    pub(crate) origin: Origin,
}

/// The origin of a scalar's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The file, without quotes.
    Plain,
    /// The file, in quotes or as a block.
    Quoted,
    /// At least in part the environment or another file. The text may be a secret, and of any type.
    Interpolated,
}

/// One key with its value.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) key_mark: Mark,
    pub(crate) value: Node,
}

/// The kind of a scalar by YAML's core schema.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Null,
    Bool(bool),
    Int(i64),
    /// A number that is not whole, or does not fit into 64 bits.
    Float(f64),
    Text,
}

impl Scalar {
    /// Returns the kind. Quoted scalars are texts, and so are all that match no other kind.
    pub(crate) fn resolve(&self) -> Kind {
        match self.text.as_str() {
            _ if self.origin == Origin::Quoted => Kind::Text,
            "" if self.origin == Origin::Interpolated => Kind::Text,
            "" | "~" | "null" | "Null" | "NULL" => Kind::Null,
            "true" | "True" | "TRUE" => Kind::Bool(true),
            "false" | "False" | "FALSE" => Kind::Bool(false),
            text => resolve_number(text).unwrap_or(Kind::Text),
        }
    }
}

impl Node {
    /// Returns the entry of a key; `None` if this is no mapping.
    pub(crate) fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries().iter().find(|entry| entry.key == key)
    }

    /// Returns the value of a key.
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|entry| &entry.value)
    }

    /// Returns the entries of a mapping; none if this is no mapping.
    pub(crate) fn entries(&self) -> &[Entry] {
        match &self.value {
            Value::Mapping(entries) => entries,
            Value::Scalar(_) | Value::List(_) => &[],
        }
    }

    /// Returns the elements of a list; none if this is no list.
    pub(crate) fn items(&self) -> &[Node] {
        match &self.value {
            Value::List(items) => items,
            Value::Scalar(_) | Value::Mapping(_) => &[],
        }
    }

    /// Returns the text of a scalar.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar(scalar) => Some(&scalar.text),
            Value::List(_) | Value::Mapping(_) => None,
        }
    }

    /// Returns whether the node contains text from the environment or a file. No message may repeat it.
    pub(crate) fn is_interpolated(&self) -> bool {
        matches!(&self.value, Value::Scalar(scalar) if scalar.origin == Origin::Interpolated)
    }

    /// Returns the nodes right below this one.
    pub(crate) fn children(&self) -> impl Iterator<Item = &Node> {
        self.items().iter().chain(self.entries().iter().map(|entry| &entry.value))
    }

    /// Counts the nodes of this tree.
    pub(super) fn size(&self) -> usize {
        1 + self.children().map(Node::size).sum::<usize>()
    }

    /// Counts the levels of this tree.
    pub(super) fn depth(&self) -> usize {
        1 + self.children().map(Node::depth).max().unwrap_or(0)
    }
}

fn resolve_number(text: &str) -> Option<Kind> {
    let (radix, digits) = match text.as_bytes() {
        [b'0', b'x', ..] => (16, &text[2..]),
        [b'0', b'o', ..] => (8, &text[2..]),
        _ => (10, text),
    };
    if radix != 10 {
        let whole = !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(radix));
        return whole
            .then(|| i64::from_str_radix(digits, radix).map_or(Kind::Float(f64::INFINITY), Kind::Int));
    }
    if matches!(digits.trim_start_matches(['-', '+']), ".inf" | ".Inf" | ".INF" | ".nan" | ".NaN" | ".NAN") {
        return Some(Kind::Float(f64::NAN));
    }
    // Rust also reads `inf`, `nan` and the like as numbers; YAML does not.
    let numeric = digits.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    if !numeric {
        return None;
    }
    digits.parse().map(Kind::Int).ok().or_else(|| digits.parse().map(Kind::Float).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(text: &str) -> Kind {
        Scalar { text: text.to_owned(), origin: Origin::Plain }.resolve()
    }

    #[test]
    fn scalars_have_the_kinds_of_the_core_schema() {
        assert_eq!(kind(""), Kind::Null);
        assert_eq!(kind("true"), Kind::Bool(true));
        assert_eq!(kind("-12"), Kind::Int(-12));
        assert_eq!(kind("0x1F"), Kind::Int(31));
        assert_eq!(kind("1.5"), Kind::Float(1.5));
        assert!(matches!(kind("99999999999999999999"), Kind::Float(_)));
        for text in ["off", "10s", "1-2", "e", "-", ".", "infinity", "0x", "900/1m", "127.0.0.1"] {
            assert_eq!(kind(text), Kind::Text, "{text}");
        }
    }
}
