//! The likely cause of a syntax error, at its own place. A YAML parser notices many mistakes lines later than they were made.
//!
//! Reads text by a few rules, and only after the parser has refused it. Knows no key.

use std::iter::Peekable;
use std::str::Chars;

use crate::config::faults;
use crate::config::problem::Mark;

/// Returns the place and the cause of an error that the parser found at `error`, for these reasons.
pub(super) fn diagnose(text: &str, error: Mark, info: &str) -> Option<(Mark, String)> {
    let before = Reading::of(text, error);
    if let Some((mark, quote)) = before.open_quote {
        return Some((mark, format!("this quote is not closed: no {quote} ends the text on its line")));
    }
    let is_flow = info.contains("flow") || info.contains("bracket");
    let line = text.lines().nth(error.line.saturating_sub(1) as usize).unwrap_or_default();
    if is_flow && line.contains("${") {
        return Some((
            error,
            format!("{info}; inside `{{ }}` or `[ ]` a value with `${{...}}` needs quotes"),
        ));
    }
    if let Some(found) = missing_space(text, error, info) {
        return Some(found);
    }
    if info.contains("mapping values are not allowed") && has_second_colon(line, error.column) {
        return Some((error, "a text with a colon and a space in it needs quotes".to_owned()));
    }
    let is_at_end = text.lines().count() < error.line as usize;
    let (mark, bracket) = before.open_bracket.filter(|_| is_flow || is_at_end)?;
    Some((mark, format!("this `{bracket}` is not closed")))
}

/// The quotes and brackets that are open where the parser has stopped.
#[derive(Default)]
struct Reading {
    open_quote: Option<(Mark, char)>,
    open_bracket: Option<(Mark, char)>,
}

impl Reading {
    /// Reads a text up to the line of an error. A quote that ends on a later line than it begins is open, if the parser has stopped on
    /// that line or before.
    fn of(text: &str, error: Mark) -> Reading {
        let mut brackets: Vec<(Mark, char)> = Vec::new();
        let mut open: Option<(Mark, char)> = None;
        for (number, line) in (1..=error.line).zip(text.lines()) {
            let mut scanner = Scanner { characters: line.chars().peekable(), column: 0 };
            if let Some((_, quote)) = open {
                if !scanner.ends_quote(quote) {
                    continue;
                }
                if number == error.line {
                    break;
                }
            }
            open = scanner.line(number, &mut brackets);
        }
        Reading { open_quote: open, open_bracket: brackets.pop() }
    }
}

/// Reads one line.
struct Scanner<'a> {
    characters: Peekable<Chars<'a>>,
    column: u32,
}

impl Scanner<'_> {
    fn next(&mut self) -> Option<char> {
        self.column += 1;
        self.characters.next()
    }

    /// Reads a line outside of quotes. Returns a quote that the line leaves open.
    fn line(&mut self, number: u32, brackets: &mut Vec<(Mark, char)>) -> Option<(Mark, char)> {
        // A quote in the middle of a text is a letter like others.
        let mut begins = true;
        let mut after_space = true;
        while let Some(character) = self.next() {
            let mark = Mark { line: number, column: self.column };
            match character {
                '#' if after_space => return None,
                '"' | '\'' if begins => {
                    if !self.ends_quote(character) {
                        return Some((mark, character));
                    }
                    begins = false;
                }
                '{' | '[' if begins => brackets.push((mark, character)),
                '}' | ']' => drop(brackets.pop()),
                ',' | ':' | '-' | ' ' | '\t' => {}
                _ => begins = false,
            }
            after_space = matches!(character, ' ' | '\t');
            let is_separated = self.characters.peek().is_none_or(|next| *next == ' ');
            begins |= character == ',' || (matches!(character, ':' | '-') && is_separated);
        }
        None
    }

    /// Reads to the end of a quoted text. Returns whether this line has it.
    fn ends_quote(&mut self, quote: char) -> bool {
        while let Some(character) = self.next() {
            if character == '\\' && quote == '"' {
                self.next();
            } else if character == quote {
                // In single quotes, two of them are one.
                if quote == '\'' && self.characters.peek() == Some(&quote) {
                    self.next();
                } else {
                    return true;
                }
            }
        }
        false
    }
}

/// Returns the place behind a key's colon that no space follows: on the line of an error, or on the last one before it. A tab is often
/// valid there, so it is the fault only if the parser says so.
fn missing_space(text: &str, error: Mark, info: &str) -> Option<(Mark, String)> {
    let is_tab_valid = !info.contains("valid YAML whitespace");
    let lines = (1..=error.line).zip(text.lines());
    let written = lines.filter(|(_, line)| !matches!(line.trim_start().chars().next(), None | Some('#')));
    written.collect::<Vec<_>>().into_iter().rev().take(2).find_map(|(number, line)| {
        let (key, next, column) = joined_key(line)?;
        let is_fault = next != '\t' || !is_tab_valid;
        is_fault.then(|| (Mark { line: number, column }, faults::colon(key, Some(next))))
    })
}

/// Returns the key of a line that is followed by a colon without a space, the character behind the colon, and its column.
fn joined_key(line: &str) -> Option<(&str, char, u32)> {
    let content = line.trim_start_matches([' ', '-']);
    let (key, rest) = content.split_once(':')?;
    let is_key =
        !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte));
    let next = rest.chars().next().filter(|next| *next != ' ' && is_key)?;
    let column = line.chars().count() - rest.chars().count() + 1;
    Some((key, next, u32::try_from(column).unwrap_or(u32::MAX)))
}

/// Returns whether the colon at a column is not the first one of its line that ends a key.
fn has_second_colon(line: &str, column: u32) -> bool {
    let before: String = line.chars().take(column.saturating_sub(1) as usize).collect();
    before.contains(": ")
}
