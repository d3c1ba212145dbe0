//! The facts of a request's JSON body that its route, its partitions and its cost are decided by.
//!
//! Most requests are decided without. A decision that meets a body which has not been read asks for it, and is made once more when it is
//! there. Reads nothing itself.

use std::cell::Cell;
use std::sync::Arc;

use super::coding;
use super::json_values::{Found, values_at};
use super::text_sizes::{TextSize, sizes_at};
use crate::config::model::JsonPath;
use crate::proxy::error::ProxyError;

/// The facts of a body.
pub(crate) struct BodyFacts(State);

enum State {
    /// None: there is no body, or none that is looked into.
    Nothing,
    /// The body has not been read. Until then it is as one without facts.
    Unread(Cell<Option<BodyNeed>>),
    /// The body has been read.
    Read(ReadBody),
    /// It is too large to be looked into, or no JSON: so many bytes.
    Unlooked(u64),
}

/// The places that are looked at in bodies.
#[derive(Debug, Default)]
pub(crate) struct BodyPaths {
    /// Those of values.
    values: Vec<JsonPath>,
    /// Those of texts that are measured.
    texts: Vec<JsonPath>,
    /// True if the length of bodies is of use.
    measures: bool,
}

impl BodyPaths {
    /// Adds the place of a value.
    pub(crate) fn add_value(&mut self, path: &JsonPath) {
        if !self.values.contains(path) {
            self.values.push(path.clone());
        }
    }

    /// Adds the places of texts; of none, the whole body is measured.
    pub(crate) fn add_texts(&mut self, paths: &[JsonPath]) {
        self.measures = true;
        for path in paths {
            if !self.texts.contains(path) {
                self.texts.push(path.clone());
            }
        }
    }

    /// Returns whether nothing of bodies is looked at.
    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty() && !self.measures
    }
}

/// The content of a body, as far as it is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// There is none.
    Nothing,
    /// It has not been read.
    Unread,
    /// It has so many bytes, and is not looked into.
    Length(u64),
    /// It is JSON of so many bytes.
    Json(u64),
}

/// The decisions that need a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BodyNeed {
    /// The rank of the first route whose match does; `None` if only the route that was found does.
    pub(crate) rank: Option<u32>,
    /// The largest body that is of use, in bytes.
    pub(crate) bytes_max: u64,
    /// True if the route or a partition depends on it, and not the cost alone.
    pub(crate) is_vital: bool,
}

/// A body that was read.
struct ReadBody {
    paths: Arc<BodyPaths>,
    /// The value at each path of one.
    found: Vec<Found>,
    /// The size of the text at each path of one.
    sizes: Vec<Option<TextSize>>,
    /// The larger one of its sizes, with and without its content coding.
    bytes: u64,
}

impl BodyFacts {
    /// Returns those of a request without a body.
    pub(crate) fn nothing() -> BodyFacts {
        BodyFacts(State::Nothing)
    }

    /// Returns those of a body that can be read if a decision needs it.
    pub(crate) fn unread() -> BodyFacts {
        BodyFacts(State::Unread(Cell::new(None)))
    }

    /// Returns those of a body of so many bytes that is not looked into: it has no values.
    pub(crate) fn unlooked(bytes: u64) -> BodyFacts {
        BodyFacts(State::Unlooked(bytes))
    }

    /// Reads a whole body in a content coding. One that is larger than `bytes_max`, with or without the coding, or is no JSON, has no
    /// values.
    pub(crate) fn of(body: &[u8], coding: &str, bytes_max: u64, paths: &Arc<BodyPaths>) -> BodyFacts {
        let plain = coding::whole(coding, body, usize::try_from(bytes_max).unwrap_or(usize::MAX));
        let read = plain.and_then(|plain| {
            let sizes = if paths.texts.is_empty() { Vec::new() } else { sizes_at(&plain, &paths.texts) };
            Some((values_at(&plain, &paths.values)?, sizes, plain.len()))
        });
        let Some((found, sizes, length)) = read else { return BodyFacts::unlooked(body.len() as u64) };
        let bytes = length.max(body.len()) as u64;
        BodyFacts(State::Read(ReadBody { paths: Arc::clone(paths), found, sizes, bytes }))
    }

    /// Returns whether the body has still to be read.
    pub(crate) fn is_unread(&self) -> bool {
        matches!(self.0, State::Unread(_))
    }

    /// Returns which decisions need a body that was not read.
    pub(crate) fn need(&self) -> Option<BodyNeed> {
        match &self.0 {
            State::Unread(need) => need.get(),
            State::Nothing | State::Read(_) | State::Unlooked(_) => None,
        }
    }

    /// Notes that the match of a route needs the body, up to a size.
    pub(crate) fn ask_for_match(&self, rank: u32, bytes_max: u64) {
        self.ask(BodyNeed { rank: Some(rank), bytes_max, is_vital: true });
    }

    fn ask(&self, more: BodyNeed) {
        let State::Unread(need) = &self.0 else { return };
        let before = need.get().unwrap_or(more);
        need.set(Some(BodyNeed {
            rank: before.rank.into_iter().chain(more.rank).min(),
            bytes_max: before.bytes_max.max(more.bytes_max),
            is_vital: before.is_vital || more.is_vital,
        }));
    }

    /// Returns the facts as a route sees them, which looks into bodies of up to a size.
    pub(crate) fn up_to(&self, bytes_max: u64) -> Body<'_> {
        Body { facts: self, bytes_max }
    }
}

/// A body as a route sees it.
#[derive(Clone, Copy)]
pub(crate) struct Body<'a> {
    facts: &'a BodyFacts,
    bytes_max: u64,
}

impl<'a> Body<'a> {
    /// Returns the value at a path, on which the route or a partition depends; `None` without one.
    ///
    /// # Errors
    /// If it can be read in more than one way.
    pub(crate) fn vital(self, path: &JsonPath) -> Result<Option<&'a str>, ProxyError> {
        self.value(path, true)
    }

    /// Returns the value at a path, on which the cost alone depends; `None` without one.
    ///
    /// # Errors
    /// If it can be read in more than one way.
    pub(crate) fn useful(self, path: &JsonPath) -> Result<Option<&'a str>, ProxyError> {
        self.value(path, false)
    }

    /// Returns how much there is of the body, on which the cost alone depends.
    pub(crate) fn content(self) -> Content {
        match &self.facts.0 {
            State::Nothing => Content::Nothing,
            State::Unread(_) => {
                self.facts.ask(BodyNeed { rank: None, bytes_max: self.bytes_max, is_vital: false });
                Content::Unread
            }
            State::Unlooked(bytes) => Content::Length(*bytes),
            State::Read(known) if known.bytes > self.bytes_max => Content::Length(known.bytes),
            State::Read(known) => Content::Json(known.bytes),
        }
    }

    /// Returns what was found at a path of a body that was read.
    pub(crate) fn found(self, path: &JsonPath) -> &'a Found {
        let State::Read(known) = &self.facts.0 else { return &Found::Nothing };
        let place = known.paths.values.iter().position(|known| known == path);
        let found = place.filter(|_| known.bytes <= self.bytes_max).and_then(|place| known.found.get(place));
        found.unwrap_or(&Found::Nothing)
    }

    /// Returns the size of the text at a path; `None` without one.
    pub(crate) fn size(self, path: &JsonPath) -> Option<TextSize> {
        let State::Read(known) = &self.facts.0 else { return None };
        let place = known.paths.texts.iter().position(|known| known == path)?;
        known.sizes.get(place).copied().flatten()
    }

    fn value(self, path: &JsonPath, is_vital: bool) -> Result<Option<&'a str>, ProxyError> {
        if self.facts.is_unread() {
            self.facts.ask(BodyNeed { rank: None, bytes_max: self.bytes_max, is_vital });
        }
        match self.found(path) {
            Found::Nothing | Found::Other => Ok(None),
            Found::Value(value) => Ok(Some(value)),
            Found::Ambiguous => {
                Err(ProxyError::Ambiguous { kind: "JSON value", name: path.to_string().into() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> JsonPath {
        JsonPath::parse(text).unwrap()
    }

    #[test]
    fn an_unread_body_notes_what_it_is_needed_for() {
        let facts = BodyFacts::unread();
        assert_eq!(facts.need(), None);
        assert_eq!(facts.up_to(10).useful(&path("n")).unwrap(), None);
        assert_eq!(facts.need(), Some(BodyNeed { rank: None, bytes_max: 10, is_vital: false }));
        facts.ask_for_match(4, 20);
        facts.ask_for_match(3, 5);
        assert_eq!(facts.need(), Some(BodyNeed { rank: Some(3), bytes_max: 20, is_vital: true }));
        assert!(facts.is_unread() && !BodyFacts::nothing().is_unread());
    }

    #[test]
    fn a_body_has_its_facts_up_to_the_size_that_a_route_looks_into() {
        let mut paths = BodyPaths::default();
        [path("model"), path("n")].iter().for_each(|path| paths.add_value(path));
        let paths = Arc::new(paths);
        let body = br#"{"model": "a", "n": 1, "N": 2}"#;
        let length = body.len() as u64;
        let facts = BodyFacts::of(body, "", length, &paths);
        assert_eq!(facts.up_to(length).vital(&path("model")).unwrap(), Some("a"));
        assert_eq!(facts.up_to(length - 1).vital(&path("model")).unwrap(), None);
        assert!(facts.up_to(length).useful(&path("n")).is_err());
        assert_eq!(facts.up_to(length).vital(&path("other")).unwrap(), None);
        for facts in [BodyFacts::of(body, "", length - 1, &paths), BodyFacts::of(body, "br", 1000, &paths)] {
            assert_eq!(facts.up_to(1000).vital(&path("model")).unwrap(), None);
        }
    }
}
