//! `limiters.NAME.pause.rules`: which responses of an upstream pause a limiter, and for how long.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};

use super::json_path::JsonPath;

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
