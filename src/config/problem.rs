//! A problem of a configuration with its place, and the report that every stage adds to.
//!
//! Knows nothing of YAML or of keys. Messages never contain a value that may be a secret. The line of a problem may hold more than
//! belongs into a log, so it is shown on request only ([`Problem::with_line`]).

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

pub(crate) use super::excerpt::Mark;
use super::excerpt::{Excerpt, Source};

/// The most problems that are kept. Nobody reads a longer list.
const PROBLEMS_MAX: usize = 200;
const HIDDEN: &str = "***";
/// The longest piece of a file that a message repeats, in characters.
const QUOTED_MAX: usize = 64;

/// One problem: its place, and the way to fix it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The path of the file, as it was given.
    pub file: Arc<str>,
    /// The line, from 1; 0 for a problem of the whole file.
    pub line: u32,
    /// The column in characters, from 1; 0 for a problem of the whole file.
    pub column: u32,
    /// The path of the key, such as `limiters.github.limits[1].rate`; empty for a problem of no key.
    pub path: String,
    /// The fault, and the correct form.
    pub message: String,
    /// The line with a caret below it. Not for logs and APIs.
    #[serde(skip)]
    pub(crate) excerpt: Option<Excerpt>,
}

impl Problem {
    /// Formats the problem with its line and a caret, for the person who holds the file. `kind` stands behind the place, such as
    /// `warning: `.
    pub fn with_line(&self, kind: &str) -> String {
        let excerpt = self.excerpt.as_ref().map(Excerpt::to_string).unwrap_or_default();
        format!("{}{excerpt}", self.shown(kind))
    }

    fn shown(&self, kind: &str) -> String {
        let place = if self.line > 0 { format!("{}:{}:", self.line, self.column) } else { String::new() };
        let path = if self.path.is_empty() { String::new() } else { format!("{}: ", self.path) };
        format!("{}:{place} {kind}{path}{}", self.file, self.message)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.shown(""))
    }
}

/// Collects the problems of one file, and warnings of what is valid but hardly meant.
#[derive(Debug)]
pub(crate) struct Report {
    file: Arc<str>,
    source: Source,
    /// The paths below which each name is hidden.
    hidden: Vec<String>,
    problems: Vec<Problem>,
    dropped: usize,
    warnings: Vec<Problem>,
    /// The problems and warnings of files that this one names, complete.
    others: Findings,
}

/// The problems of a file, in its order.
#[derive(Debug, Default)]
struct Findings {
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
}

/// The parts of a file that no message shows.
#[derive(Debug, Default)]
pub(crate) struct Secrets {
    /// The places of secrets.
    pub(crate) marks: Vec<Mark>,
    /// The paths of mappings whose keys are secrets.
    pub(crate) mappings: Vec<String>,
}

impl Report {
    pub(crate) fn new(file: &Path) -> Report {
        Report {
            file: file.to_string_lossy().into(),
            source: Source::default(),
            hidden: Vec::new(),
            problems: Vec::new(),
            dropped: 0,
            warnings: Vec::new(),
            others: Findings::default(),
        }
    }

    /// Hands over the text, so that problems can show their lines.
    pub(crate) fn read(&mut self, text: &str) {
        self.source = Source::new(text);
    }

    /// Hides what follows the secrets in their lines, and the keys that are secrets.
    pub(crate) fn hide(&mut self, secrets: Secrets) {
        self.source.hide(secrets.marks);
        self.hidden.extend(secrets.mappings);
    }

    /// Adds what was found in a file that this one names.
    pub(crate) fn include(&mut self, mut other: Report) {
        self.others.warnings.extend(other.take_warnings());
        self.others.problems.extend(other.into_problems());
    }

    /// Adds a problem at a place.
    pub(crate) fn add(&mut self, mark: Mark, path: impl Into<String>, message: impl Into<String>) {
        if self.problems.len() == PROBLEMS_MAX {
            self.dropped += 1;
            return;
        }
        self.problems.push(self.problem(mark, path.into(), message.into()));
    }

    /// Adds a warning at a place. There are no more of them than limiters and routes.
    pub(crate) fn warn(&mut self, mark: Mark, path: impl Into<String>, message: impl Into<String>) {
        self.warnings.push(self.problem(mark, path.into(), message.into()));
    }

    /// Adds a problem of the whole file.
    pub(crate) fn add_whole(&mut self, message: impl Into<String>) {
        self.add(Mark::default(), "", message);
    }

    fn problem(&self, Mark { line, column }: Mark, path: String, message: String) -> Problem {
        Problem { file: self.file.clone(), line, column, path, message, excerpt: None }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.problems.is_empty() && self.others.problems.is_empty()
    }

    /// Returns every problem, in the order of the file.
    pub(crate) fn into_problems(mut self) -> Vec<Problem> {
        let problems = std::mem::take(&mut self.problems);
        let mut problems = self.placed(problems);
        if self.dropped > 0 {
            let message = format!("and {} more problems", self.dropped);
            problems.push(self.problem(Mark::default(), String::new(), message));
        }
        problems.append(&mut self.others.problems);
        problems
    }

    /// Takes every warning, in the order of the file.
    pub(crate) fn take_warnings(&mut self) -> Vec<Problem> {
        let warnings = std::mem::take(&mut self.warnings);
        let mut warnings = self.placed(warnings);
        warnings.append(&mut self.others.warnings);
        warnings
    }

    /// Sorts problems by their places, gives each its line, and hides the keys that are secrets.
    fn placed(&self, mut problems: Vec<Problem>) -> Vec<Problem> {
        problems.sort_by_key(|problem| (problem.line, problem.column));
        for problem in &mut problems {
            let Problem { line, column, .. } = *problem;
            problem.excerpt = self.source.excerpt(Mark { line, column });
            for mapping in &self.hidden {
                hide_key(problem, mapping);
            }
        }
        problems
    }
}

/// Hides the key of a problem that lies in this mapping, its line, and what its message repeats of it.
fn hide_key(problem: &mut Problem, mapping: &str) {
    let below = if mapping.is_empty() { String::new() } else { [mapping, "."].concat() };
    let Some(key) = problem.path.strip_prefix(&below).filter(|key| !key.is_empty()) else { return };
    let quoted = format!("\"{}", key.escape_debug());
    problem.message = problem.message.replace(&quoted, &format!("\"{HIDDEN}"));
    problem.path = below + HIDDEN;
    problem.excerpt = None;
}

/// Returns the path of a key below another path.
pub(crate) fn key_path(parent: &str, key: &str) -> String {
    let key: String = key.chars().take(QUOTED_MAX).collect();
    if parent.is_empty() { key } else { format!("{parent}.{key}") }
}

/// Returns the path of a list's element.
pub(crate) fn index_path(parent: &str, index: usize) -> String {
    format!("{parent}[{index}]")
}

/// Formats a name for messages: in quotes, escaped, and shortened.
pub(crate) fn quoted(name: &str) -> String {
    let mut short: String = name.chars().take(QUOTED_MAX).collect();
    if short.len() < name.len() {
        short.push('…');
    }
    format!("{short:?}")
}

/// Returns the nearest of the names, if one is near enough to be the intended one.
pub(crate) fn nearest<'a>(given: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if given.len() > 2 * QUOTED_MAX {
        return None;
    }
    // Short names are always near each other.
    let distance_max = match given.chars().count() {
        0..=1 => 0,
        2..=5 => 1,
        length => length / 3,
    };
    names
        .into_iter()
        .map(|name| {
            (strsim::damerau_levenshtein(&given.to_ascii_lowercase(), &name.to_ascii_lowercase()), name)
        })
        .filter(|(distance, name)| *distance <= distance_max && *distance < name.len())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// Formats the message about an unknown name: with the nearest valid name, or with all of them if none is near.
pub(crate) fn unknown<'a>(
    what: &str,
    given: &str,
    names: impl IntoIterator<Item = &'a str> + Clone,
) -> String {
    let known = names.clone();
    if let Some(name) = nearest(given, names) {
        return format!("unknown {what} {}; did you mean {}?", quoted(given), quoted(name));
    }
    let known: Vec<&str> = known.into_iter().take(30).collect();
    if known.is_empty() {
        return format!("unknown {what} {}; there is none", quoted(given));
    }
    format!("unknown {what} {}; known: {}", quoted(given), known.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_offered_only_when_it_is_near() {
        assert_eq!(
            unknown("key", "limts", ["limits", "queue"]),
            r#"unknown key "limts"; did you mean "limits"?"#
        );
        assert_eq!(
            unknown("key", "colour", ["limits", "queue"]),
            r#"unknown key "colour"; known: limits, queue"#
        );
        assert_eq!(unknown("limiter", "b", ["a"]), r#"unknown limiter "b"; known: a"#);
        assert_eq!(unknown("limiter", "github", []), r#"unknown limiter "github"; there is none"#);
    }

    #[test]
    fn a_problem_shows_its_place_first() {
        let mut report = Report::new(Path::new("weir.yaml"));
        report.add(Mark { line: 7, column: 3 }, "limiters.a", "late");
        report.add_whole("whole");
        report.add(Mark { line: 2, column: 1 }, "", "early");
        let shown: Vec<String> = report.into_problems().iter().map(Problem::to_string).collect();
        assert_eq!(shown, ["weir.yaml: whole", "weir.yaml:2:1: early", "weir.yaml:7:3: limiters.a: late"]);
    }

    #[test]
    fn names_in_messages_are_short_and_printable() {
        assert_eq!(quoted("a\nb"), r#""a\nb""#);
        assert!(quoted(&"x".repeat(10_000)).len() < 80);
    }

    #[test]
    fn the_list_of_problems_is_bounded() {
        let mut report = Report::new(Path::new("weir.yaml"));
        for line in 0..1000 {
            report.add(Mark { line, column: 1 }, "", "bad");
        }
        let problems = report.into_problems();
        assert_eq!(problems.len(), PROBLEMS_MAX + 1);
        assert_eq!(problems[PROBLEMS_MAX].message, "and 800 more problems");
    }
}
