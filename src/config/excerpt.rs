//! The line of a place in a file, with a caret below it, as compilers show it.
//!
//! Knows nothing of YAML and of problems. What follows a secret in its line is hidden.

use std::collections::HashMap;
use std::fmt;

/// The most characters of a line that are shown.
const WIDTH_MAX: usize = 100;
/// The characters of a longer line that are shown before the place.
const BEFORE: usize = 60;
const HIDDEN: &str = "***";

/// A place in a file: line and column in characters, both from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Mark {
    pub(crate) line: u32,
    pub(crate) column: u32,
}

/// A line with a place in it. Displayed on two lines of its own, each with a line break before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Excerpt {
    line: u32,
    text: String,
    /// The characters before the caret.
    indent: usize,
}

impl fmt::Display for Excerpt {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Excerpt { line, text, indent } = self;
        write!(formatter, "\n{line:5} | {text}\n      | {:indent$}^", "")
    }
}

/// The text of a file.
#[derive(Debug, Default)]
pub(crate) struct Source {
    text: String,
    /// The column of the first secret of a line.
    secrets: HashMap<u32, u32>,
}

impl Source {
    pub(crate) fn new(text: &str) -> Source {
        Source { text: text.to_owned(), secrets: HashMap::new() }
    }

    /// Hides the rest of a line from each of these places on.
    pub(crate) fn hide(&mut self, secrets: Vec<Mark>) {
        for Mark { line, column } in secrets {
            let first = self.secrets.entry(line).or_insert(column);
            *first = column.min(*first);
        }
    }

    /// Returns the line of a place; `None` if the file has no such line.
    pub(crate) fn excerpt(&self, mark: Mark) -> Option<Excerpt> {
        let Mark { line, column } = mark;
        let text = self.text.lines().nth(line.checked_sub(1)? as usize)?;
        let text = text.trim_start_matches('\u{feff}').trim_end();
        // A tab has a width of its own, and the caret must stand below the place.
        let plain = |character: char| if character.is_control() { ' ' } else { character };
        let mut characters: Vec<char> = text.chars().map(plain).collect();
        if let Some(first) = self.secrets.get(&line) {
            characters.truncate(first.saturating_sub(1) as usize);
            characters.extend(HIDDEN.chars());
        }
        let place = (column.saturating_sub(1) as usize).min(characters.len());
        let is_long = characters.len() > WIDTH_MAX;
        let from = if is_long { place.saturating_sub(BEFORE) } else { 0 };
        let to = characters.len().min(from + WIDTH_MAX);
        let mut text = String::new();
        text.extend((from > 0).then_some('…'));
        text.extend(characters.get(from..to).unwrap_or_default());
        text.extend((to < characters.len()).then_some('…'));
        Some(Excerpt { line, text, indent: place - from + usize::from(from > 0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(source: &Source, line: u32, column: u32) -> Vec<String> {
        let shown = source.excerpt(Mark { line, column }).map(|excerpt| excerpt.to_string());
        shown.unwrap_or_default().lines().skip(1).map(str::to_owned).collect()
    }

    #[test]
    fn the_caret_stands_below_the_place() {
        let source = Source::new("\u{feff}a: 1\n\tб: \u{1b}[2J\n");
        assert_eq!(shown(&source, 1, 4), ["    1 | a: 1", "      |    ^"]);
        assert_eq!(shown(&source, 2, 2), ["    2 |  б:  [2J", "      |  ^"]);
        assert_eq!(shown(&source, 2, 99), ["    2 |  б:  [2J", "      |         ^"]);
        assert_eq!(shown(&source, 3, 1), [""; 0]);
        assert_eq!(shown(&source, 0, 0), [""; 0]);
    }

    #[test]
    fn a_long_line_is_cut_around_the_place() {
        let source = Source::new(&format!("{}x{}", "a".repeat(500), "b".repeat(500)));
        let lines = shown(&source, 1, 501);
        assert_eq!(lines[0].chars().count(), "    1 | ".len() + WIDTH_MAX + 2);
        let caret = lines[1].chars().count() - 1;
        assert_eq!(lines[0].chars().nth(caret), Some('x'), "{lines:?}");
    }

    #[test]
    fn text_behind_a_secret_is_hidden() {
        let mut source = Source::new("a: {token: abc, read_token: def}\nb: 1\n");
        source.hide(vec![Mark { line: 1, column: 29 }, Mark { line: 1, column: 12 }]);
        assert_eq!(shown(&source, 1, 17), ["    1 | a: {token: ***", "      |               ^"]);
        assert_eq!(shown(&source, 2, 1), ["    2 | b: 1", "      | ^"]);
    }
}
