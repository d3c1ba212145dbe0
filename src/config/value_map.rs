//! Parts of a request that a key reads beside plain values: a part of the path, and values that stand for a family. Reads no request.

use std::sync::Arc;

use regex::Regex;

/// A pattern of which a part of a path is wanted: what its group matches, or all of it without one.
#[derive(Debug, Clone)]
pub struct PathPattern(Regex);

impl PathPattern {
    /// Wraps a pattern with at most one group.
    pub(crate) fn new(pattern: Regex) -> PathPattern {
        PathPattern(pattern)
    }

    /// Returns the part of a path; `None` if the pattern matches nowhere.
    pub(crate) fn find<'a>(&self, path: &'a str) -> Option<&'a str> {
        let captures = self.0.captures(path)?;
        let part = if captures.len() > 1 { captures.get(1) } else { captures.get(0) };
        part.map(|part| part.as_str()).filter(|part| !part.is_empty())
    }

    /// Returns the pattern as it was written.
    pub(crate) fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl PartialEq for PathPattern {
    fn eq(&self, other: &PathPattern) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for PathPattern {}

/// Values that are taken for others: the first pattern that matches decides. A value that none matches stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueMap(Arc<[(Glob, Box<str>)]>);

/// A text in which each star stands for any characters, or none: the texts between the stars.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Glob(Vec<Box<str>>);

impl ValueMap {
    /// Creates a map of patterns, in their order.
    pub(crate) fn new<'a>(entries: impl Iterator<Item = (&'a str, &'a str)>) -> ValueMap {
        let glob = |pattern: &str| Glob(pattern.split('*').map(Box::from).collect());
        ValueMap(entries.map(|(pattern, value)| (glob(pattern), value.into())).collect())
    }

    /// Returns what a value is taken for.
    pub(crate) fn of<'a>(&'a self, value: &'a str) -> &'a str {
        let entry = self.0.iter().find(|(glob, _)| glob.matches(value));
        entry.map_or(value, |(_, taken_for)| taken_for)
    }
}

impl Glob {
    fn matches(&self, text: &str) -> bool {
        let Some((first, others)) = self.0.split_first() else { return false };
        let Some((last, between)) = others.split_last() else { return **first == *text };
        let rest = text.strip_prefix(&**first).and_then(|rest| rest.strip_suffix(&**last));
        let Some(mut rest) = rest else { return false };
        for part in between {
            // Its earliest place leaves most for the next.
            let Some((_, behind)) = rest.split_once(&**part) else { return false };
            rest = behind;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, value, matches) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a*", "a", true),
            ("a*", "abc", true),
            ("a*", "ba", false),
            ("*a", "ba", true),
            ("*", "", true),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a*b*c", "a-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("a*bb*b", "abb", false),
            ("a*bb*b", "abbb", true),
            ("**a", "ba", true),
            ("é*", "éa", true),
        ] {
            let map = ValueMap::new([(pattern, "yes")].into_iter());
            assert_eq!(map.of(value) == "yes", matches, "{pattern} {value}");
        }
        let map = ValueMap::new([("claude-opus-4*", "opus"), ("claude*", "other")].into_iter());
        let values = ["claude-opus-4-1", "claude-3", "gpt-5"].map(|value| map.of(value));
        assert_eq!(values, ["opus", "other", "gpt-5"]);
    }

    #[test]
    fn a_part_of_a_path_is_its_group() {
        let find =
            |pattern: &str, path: &'static str| PathPattern::new(Regex::new(pattern).unwrap()).find(path);
        let gemini = "/v1beta/models/gemini-2.5-pro:streamGenerateContent";
        assert_eq!(find("models/([^/:]+)", gemini), Some("gemini-2.5-pro"));
        assert_eq!(find("models/[^/:]+", gemini), Some("models/gemini-2.5-pro"));
        assert_eq!(find("models/([^/:]*)", "/v1/models/:x"), None);
        assert_eq!(find("tuned/([^/:]+)", gemini), None);
    }
}
