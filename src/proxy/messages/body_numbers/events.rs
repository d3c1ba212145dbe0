//! The documents of a stream of server-sent events: what stands behind `data:`, up to an empty line.

use super::find;
use super::scanner::Scanner;

/// The field whose lines hold the documents.
const DATA: &[u8] = b"data:";

/// The place in a stream of events.
#[derive(Default)]
pub(super) struct Events {
    line: Line,
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

impl Events {
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
                        scanner.scan(data);
                    } else if missing.starts_with(text) {
                        self.line = Line::Name(known + text.len());
                    } else {
                        self.line = Line::Other;
                    }
                }
                Line::Data => scanner.scan(text),
                Line::Other => {}
            }
            if rest.is_empty() {
                return;
            }
            match self.line {
                // An empty line ends the event.
                Line::Begin => scanner.restart(),
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
