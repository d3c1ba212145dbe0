//! Places in JSON documents, and the conditions of a route on the JSON body of a request. Reads no document.

use std::fmt;
use std::sync::Arc;

/// A place in a JSON document: the names of members, and the indices of elements, from the outermost on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct JsonPath(Arc<[Box<str>]>);

/// The most steps of a path.
const STEPS_MAX: usize = 16;

impl JsonPath {
    /// Parses `error.code` or `errors.0.message`; `None` if a step is empty, or there are more than 16.
    pub fn parse(text: &str) -> Option<JsonPath> {
        let steps: Arc<[Box<str>]> = text.split('.').map(Box::from).collect();
        (steps.len() <= STEPS_MAX && steps.iter().all(|step| !step.is_empty())).then_some(JsonPath(steps))
    }

    /// Returns the place of a member of the outermost mapping.
    pub fn of_member(name: &str) -> JsonPath {
        JsonPath(Arc::new([name.into()]))
    }

    /// Returns the steps.
    pub fn steps(&self) -> &[Box<str>] {
        &self.0
    }
}

impl fmt::Display for JsonPath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0.join("."))
    }
}

/// The conditions of a match on the JSON body of a request. All of them must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonMatch {
    /// Places in the body, each with its value: a text as it is, any other as JSON writes it.
    pub values: Vec<(JsonPath, String)>,
    /// The largest body that is looked into, in bytes.
    pub body_bytes_max: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_no_empty_step() {
        let shown = |text: &str| JsonPath::parse(text).map(|path| path.to_string());
        assert_eq!(shown("errors.0.extensions.code").as_deref(), Some("errors.0.extensions.code"));
        assert_eq!(JsonPath::parse("error").unwrap().steps(), [Box::from("error")]);
        for faulty in ["", ".", "a.", ".a", "a..b", &["a"; 17].join(".")] {
            assert_eq!(shown(faulty), None, "{faulty:?}");
        }
    }
}
