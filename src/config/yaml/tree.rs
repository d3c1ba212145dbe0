//! A YAML document as a tree: every key and value has its line and column.

use crate::config::problem::Mark;

/// One value of the tree.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    /// Distinct in the tree, but shared by what an alias repeats.
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

/// A scalar as text; what it stands for depends on the key, see [`Scalar::resolve`].
#[derive(Debug, Clone)]
pub(crate) struct Scalar {
    pub(crate) text: String,
    /// Written without quotes.
    pub(crate) plain: bool,
    /// Holds text from the environment or a file: may be a secret, and may be read as any type.
    pub(crate) interpolated: bool,
}

/// One key with its value.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) key_mark: Mark,
    pub(crate) value: Node,
}

/// What a scalar is by YAML's core schema.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Null,
    Bool(bool),
    Int(i64),
    /// Not a whole number, or one that does not fit.
    Float(f64),
    Text,
}

impl Scalar {
    /// What the text stands for: quotes make it a text, and so does anything that is nothing else.
    pub(crate) fn resolve(&self) -> Kind {
        if !self.plain && !self.interpolated {
            return Kind::Text;
        }
        match self.text.as_str() {
            "" if self.interpolated => Kind::Text,
            "" | "~" | "null" | "Null" | "NULL" => Kind::Null,
            "true" | "True" | "TRUE" => Kind::Bool(true),
            "false" | "False" | "FALSE" => Kind::Bool(false),
            text => resolve_number(text).unwrap_or(Kind::Text),
        }
    }
}

impl Node {
    /// The entry of a mapping; `None` for any other node.
    pub(crate) fn entry(&self, key: &str) -> Option<&Entry> {
        match &self.value {
            Value::Mapping(entries) => entries.iter().find(|entry| entry.key == key),
            Value::Scalar(_) | Value::List(_) => None,
        }
    }

    /// The value below a key.
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|entry| &entry.value)
    }

    /// The elements of a list; none for any other node.
    pub(crate) fn items(&self) -> &[Node] {
        match &self.value {
            Value::List(items) => items,
            Value::Scalar(_) | Value::Mapping(_) => &[],
        }
    }

    /// The text of a scalar.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar(scalar) => Some(&scalar.text),
            Value::List(_) | Value::Mapping(_) => None,
        }
    }

    /// Whether it holds text from the environment or a file, which no message may repeat.
    pub(crate) fn is_interpolated(&self) -> bool {
        matches!(&self.value, Value::Scalar(scalar) if scalar.interpolated)
    }

    /// Nodes in this tree.
    pub(super) fn size(&self) -> usize {
        1 + match &self.value {
            Value::Scalar(_) => 0,
            Value::List(items) => items.iter().map(Node::size).sum(),
            Value::Mapping(entries) => entries.iter().map(|entry| entry.value.size()).sum(),
        }
    }

    /// Levels of this tree.
    pub(super) fn depth(&self) -> usize {
        1 + match &self.value {
            Value::Scalar(_) => 0,
            Value::List(items) => items.iter().map(Node::depth).max().unwrap_or(0),
            Value::Mapping(entries) => entries.iter().map(|entry| entry.value.depth()).max().unwrap_or(0),
        }
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
        Scalar { text: text.to_owned(), plain: true, interpolated: false }.resolve()
    }

    #[test]
    fn scalars_are_what_the_core_schema_says() {
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
