//! `limiters.NAME.pause.rules`: which responses of an upstream pause a limiter, and for how long.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};

/// A rule. All of its conditions must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PauseRule {
    /// The status of the response.
    pub status: u16,
    /// True if the response must name the end of the pause.
    pub named: bool,
    /// Headers, each with its exact value.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Places in its body, each with its value: a text as it is, any other as JSON writes it.
    pub json: Vec<(JsonPath, String)>,
    /// How long the pause lasts, whatever the response names.
    pub lasting: Option<Duration>,
}

impl PauseRule {
    /// Returns the rule for responses of a status.
    pub fn of(status: u16) -> PauseRule {
        PauseRule { status, named: false, headers: Vec::new(), json: Vec::new(), lasting: None }
    }

    /// Returns the rules where none are given: a 429, and a 503 that names an instant. One that does not comes from a server that is
    /// merely down.
    pub fn usual() -> Arc<[PauseRule]> {
        [PauseRule::of(429), PauseRule { named: true, ..PauseRule::of(503) }].into()
    }
}

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
