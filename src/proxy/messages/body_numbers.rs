//! Finds numbers in a response while it streams: in JSON documents, and in those of server-sent events. Holds none of it.
//!
//! A scanner, not a parser: of a document that is no JSON it finds something or nothing. It has one fixed size, however deep, long and
//! broken a document is, and whatever the pieces in which it comes.

mod events;
mod find;
mod scanner;

use http::HeaderMap;
use http::header::CONTENT_TYPE;

use self::events::Events;
pub(super) use self::find::line_end;
use self::scanner::Scanner;
use super::coding;
use crate::config::model::JsonPath;

/// The kinds of bodies that are looked into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A JSON document, or a sequence of them, which is scanned as one is.
    Json,
    /// Server-sent events.
    Events,
}

impl Kind {
    /// Returns the kind of a body with these headers; `None` if it is another one, or in a content coding.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Kind> {
        let kind = headers.get(CONTENT_TYPE).filter(|_| coding::of_response(headers).is_empty())?;
        let kind = kind.to_str().ok()?.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match kind.as_str() {
            "text/event-stream" => Some(Kind::Events),
            "application/json" | "application/x-ndjson" | "application/jsonl" => Some(Kind::Json),
            kind => kind.ends_with("+json").then_some(Kind::Json),
        }
    }
}

/// The numbers at some paths of a body.
pub(crate) struct BodyNumbers {
    scanner: Scanner,
    /// The lines of events; `None` where the body is JSON itself.
    events: Option<Events>,
}

impl BodyNumbers {
    /// Begins to look for numbers in a body with these headers, each no larger than `max`; `None` if it is neither JSON nor events, or in a
    /// content coding.
    pub(crate) fn of(headers: &HeaderMap, paths: &[JsonPath], max: u64) -> Option<BodyNumbers> {
        let events = match Kind::of(headers)? {
            Kind::Events => Some(Events::default()),
            Kind::Json => None,
        };
        Some(BodyNumbers { scanner: Scanner::new(paths, max), events })
    }

    /// Looks at a further piece of the body.
    pub(crate) fn see(&mut self, piece: &[u8]) {
        match &mut self.events {
            None => self.scanner.scan(piece),
            Some(events) => events.see(piece, &mut self.scanner),
        }
    }

    /// Returns whether the body has told that it is whole, although its end may not have come.
    pub(crate) fn is_done(&self) -> bool {
        self.events.as_ref().is_some_and(Events::is_done)
    }

    /// Returns the largest number that was found at any of the paths.
    pub(crate) fn largest(&self) -> Option<u64> {
        self.each().iter().flatten().copied().max()
    }

    /// Returns the largest number that was found at each path, in their order.
    pub(crate) fn each(&self) -> &[Option<u64>] {
        self.scanner.largest()
    }
}

#[cfg(test)]
mod tests;
