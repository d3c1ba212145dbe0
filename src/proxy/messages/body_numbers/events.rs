//! The documents of a stream of server-sent events: what stands behind `data:`, up to an empty line.

use super::find;
use super::scanner::Scanner;

/// The field whose lines hold the documents.
const DATA: &[u8] = b"data:";

/// The document by which the streams of OpenAI and others tell that they are whole.
const DONE: &[u8] = b"[DONE]";

/// The place in a stream of events.
#[derive(Default)]
pub(super) struct Events {
    line: Line,
    document: Document,
    /// True behind a carriage return, which ends a line by itself or together with a line feed.
    is_behind_return: bool,
}

/// The place in a line.
#[derive(Clone, Copy, Default)]
enum Line {
    /// At its begin.
    #[default]
    Begin,
    /// In what may become `data:`, behind so many bytes of it.
    Name(usize),
    Data,
    /// In another field, or a comment.
    Other,
}

/// The place in a document, as far as it may be [`DONE`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum Document {
    /// Behind so many bytes of it.
    Begin(usize),
    /// In another one.
    Other,
    /// It has come.
    Done,
}

impl Default for Document {
    fn default() -> Document {
        Document::Begin(0)
    }
}

impl Document {
    /// Looks at a further piece.
    fn see(&mut self, piece: &[u8]) {
        for byte in piece {
            let Document::Begin(known) = *self else { return };
            *self = match byte {
                b' ' if known == 0 => Document::Begin(0),
                byte if DONE.get(known) != Some(byte) => Document::Other,
                _ if known + 1 == DONE.len() => Document::Done,
                _ => Document::Begin(known + 1),
            };
        }
    }

    /// Goes on to the next document, unless the last one has come.
    fn ends(&mut self) {
        if *self != Document::Done {
            *self = Document::default();
        }
    }
}

impl Events {
    /// Returns whether the stream has told that it is whole.
    pub(super) fn is_done(&self) -> bool {
        self.document == Document::Done
    }

    /// Passes on what a further piece of the stream has of documents.
    pub(super) fn see(&mut self, mut piece: &[u8], scanner: &mut Scanner) {
        if self.is_behind_return && !piece.is_empty() {
            self.is_behind_return = false;
            piece = piece.strip_prefix(b"\n").unwrap_or(piece);
        }
        while !piece.is_empty() {
            let (text, rest) = piece.split_at(find::line_end(piece).unwrap_or(piece.len()));
            match self.line {
                Line::Begin if text.is_empty() => {}
                Line::Begin | Line::Name(_) => {
                    let known = if let Line::Name(known) = self.line { known } else { 0 };
                    let missing = &DATA[known..];
                    if let Some(data) = text.strip_prefix(missing) {
                        self.line = Line::Data;
                        self.document.see(data);
                        scanner.scan(data);
                    } else if missing.starts_with(text) {
                        self.line = Line::Name(known + text.len());
                    } else {
                        self.line = Line::Other;
                    }
                }
                Line::Data => {
                    self.document.see(text);
                    scanner.scan(text);
                }
                Line::Other => {}
            }
            if rest.is_empty() {
                return;
            }
            match self.line {
                // An empty line ends the event.
                Line::Begin => {
                    self.document.ends();
                    scanner.restart();
                }
                // Several lines of data are one document, with line feeds between them.
                Line::Data => scanner.scan(b"\n"),
                Line::Name(_) | Line::Other => {}
            }
            self.line = Line::Begin;
            piece = match rest {
                [b'\r'] => {
                    self.is_behind_return = true;
                    return;
                }
                [b'\r', b'\n', rest @ ..] | [_, rest @ ..] => rest,
                [] => return,
            };
        }
    }
}
