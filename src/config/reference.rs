//! The reference of the configuration, for people: the JSON Schema as a page in Markdown.
//!
//! Built from the schema alone, so a key is described once, at its field. A section is a mapping with its own keys;
//! its place is its path in a file, the first one where it may stand at several.

use std::borrow::Cow;
use std::time::Duration;

use serde_json::{Map, Value};

use super::json_schema::{is_common, json_schema};
use super::model::Leave;
use super::schema::forms::{FromText, NAME_PATTERN};
use super::units::{Per, Quota, Size};
use super::yaml::in_yaml;

/// The text above the sections.
const INTRODUCTION: &str = include_str!("reference.md");

/// Returns the page.
pub fn reference() -> String {
    let schema = json_schema();
    let page = Page { schema: &schema };
    let mut text = INTRODUCTION.to_owned();
    for section in page.sections() {
        text.push_str(&page.section(&section));
    }
    text
}

/// A mapping with keys of its own.
struct Section<'a> {
    /// The place in a file, such as `limiters.NAME.queue`; empty for the whole file.
    place: String,
    schema: &'a Value,
    keys: &'a Map<String, Value>,
}

struct Page<'a> {
    schema: &'a Value,
}

impl<'a> Page<'a> {
    fn sections(&self) -> Vec<Section<'a>> {
        let mut sections = Vec::new();
        self.find_sections("", self.schema, &mut sections);
        sections
    }

    fn find_sections(&self, place: &str, schema: &'a Value, sections: &mut Vec<Section<'a>>) {
        for schema in self.alternatives(schema) {
            let is_new = sections.iter().all(|section: &Section<'_>| !std::ptr::eq(section.schema, schema));
            if let Some(keys) = schema["properties"].as_object().filter(|_| is_new) {
                sections.push(Section { place: place.to_owned(), schema, keys });
                for (key, property) in keys {
                    self.find_sections(&inside(place, key), property, sections);
                }
            }
            for (keyword, suffix) in [("items", "[]"), ("additionalProperties", ".NAME")] {
                if schema[keyword].is_object() {
                    self.find_sections(&format!("{place}{suffix}"), &schema[keyword], sections);
                }
            }
        }
    }

    /// Returns the alternatives of a value, each as one schema, without those that the schema adds to every value.
    fn alternatives(&self, schema: &'a Value) -> Vec<&'a Value> {
        let definition = schema["$ref"].as_str().and_then(|name| name.strip_prefix('#'));
        let schema = definition.and_then(|pointer| self.schema.pointer(pointer)).unwrap_or(schema);
        let Some(some) = schema["anyOf"].as_array() else { return vec![schema] };
        let own = some.iter().filter(|alternative| !is_common(alternative));
        own.flat_map(|alternative| self.alternatives(alternative)).collect()
    }

    /// Returns the place of the section about a mapping, which may stand at several places.
    fn home<'p>(&self, place: &'p str, mapping: &'a Value) -> Cow<'p, str> {
        let section = self.sections().into_iter().find(|section| std::ptr::eq(section.schema, mapping));
        section.map_or(place.into(), |section| section.place.into())
    }

    fn section(&self, section: &Section<'a>) -> String {
        let place = section.place.as_str();
        let heading = match place.trim_end_matches(".NAME") {
            "" => "## Top level".to_owned(),
            top if !top.contains('.') => format!("## `{place}`"),
            _ => format!("### `{place}`"),
        };
        let about = text_of(section.schema, "description").split("\n\n").next().unwrap_or_default();
        let rows = section.keys.iter().map(|(key, property)| self.row(section, key, property));
        let rows: String = rows.collect();
        format!("\n{heading}\n\n{about}\n\n| key | value | default | meaning |\n|---|---|---|---|\n{rows}")
    }

    fn row(&self, section: &Section<'a>, key: &str, property: &'a Value) -> String {
        let (mut meaning, default) = meaning_and_default(text_of(property, "description"));
        let required = section.schema["required"].as_array();
        let is_required = required.is_some_and(|required| required.contains(&Value::from(key)));
        let default = if is_required { "**required**" } else { default };
        for choice in self.alternatives(property) {
            if choice["const"].is_string() && choice["description"].is_string() {
                let (word, description) = (text_of(choice, "const"), text_of(choice, "description"));
                meaning.push_str(&format!("<br>`{word}`: {description}"));
            }
        }
        let examples = property["examples"].as_array().into_iter().flatten();
        let examples: Vec<_> = examples.map(|example| format!("`{key}: {}`", in_yaml(example))).collect();
        meaning.push_str(&format!("<br>For example {}", either(&examples)));
        let value = self.words(&inside(&section.place, key), property);
        let cells = [format!("`{key}`"), value, default.to_owned(), meaning];
        format!("| {} |\n", cells.map(|cell| cell.replace('|', "\\|")).join(" | "))
    }

    /// Describes the alternatives of a value in words.
    fn words(&self, place: &str, schema: &'a Value) -> String {
        let alternatives = self.alternatives(schema);
        let words = alternatives.into_iter().flat_map(|alternative| match alternative["enum"].as_array() {
            Some(values) => values.iter().map(|value| format!("`{}`", in_yaml(value))).collect(),
            None => vec![self.word(place, alternative)],
        });
        either(&words.collect::<Vec<_>>())
    }

    fn word(&self, place: &str, schema: &'a Value) -> String {
        let range = |least: &str, most: &str| match (&schema[least], &schema[most]) {
            (Value::Number(least), Value::Number(most)) => Some((least.clone(), most.clone())),
            _ => None,
        };
        match text_of(schema, "type") {
            _ if schema["const"].is_string() => format!("`{}`", text_of(schema, "const")),
            "integer" => range("minimum", "maximum").map_or("a whole number".to_owned(), |(least, most)| {
                format!("a whole number from {least} to {most}")
            }),
            "boolean" => "`true` or `false`".to_owned(),
            "array" => {
                let each = self.words(&format!("{place}[]"), &schema["items"]);
                let of = range("minItems", "maxItems").map(|(least, most)| format!(" of {least} to {most}"));
                format!("a list{}, each {each}", of.unwrap_or_default())
            }
            "object" if schema["properties"].is_object() => {
                format!("a [mapping](#{})", anchor(&self.home(place, schema)))
            }
            "object" => {
                let each = self.words(&format!("{place}.NAME"), &schema["additionalProperties"]);
                format!("a mapping, each value {each}")
            }
            _ => of_pattern(text_of(schema, "pattern")).to_owned(),
        }
    }
}

/// Returns the text of a keyword; empty if it has none.
fn text_of<'a>(schema: &'a Value, keyword: &str) -> &'a str {
    schema[keyword].as_str().unwrap_or_default()
}

/// Returns the place of a key of a section.
fn inside(place: &str, key: &str) -> String {
    if place.is_empty() { key.to_owned() } else { format!("{place}.{key}") }
}

/// Splits a description into the meaning and the default, each for its column.
fn meaning_and_default(description: &str) -> (String, &str) {
    let mut meaning = Vec::new();
    let mut default = "";
    for sentence in description.split_inclusive(". ").map(str::trim_end) {
        match sentence.strip_prefix("Default").and_then(|rest| rest.strip_suffix('.')) {
            Some(rest) => default = rest.trim_start_matches(':').trim_start(),
            None if sentence == "Required." => {}
            None => meaning.push(sentence),
        }
    }
    (meaning.join(" "), default)
}

/// Describes a pattern in words.
fn of_pattern(pattern: &str) -> &'static str {
    match pattern {
        Duration::PATTERN => "a duration",
        Leave::PATTERN => "`auto`, a share or a duration",
        Size::PATTERN => "a size",
        Per::PATTERN => "a duration, `1w` or `1mo`",
        Quota::PATTERN => "a limit such as `900/1m`",
        NAME_PATTERN => "a name",
        _ => "a text",
    }
}

/// Joins words: `a`, `a or b`, `a, b or c`.
fn either(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// Returns GitHub's anchor of a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|character| character.is_alphanumeric() || "-_".contains(*character));
    kept.collect::<String>().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mapping_has_one_section_and_each_key_one_row() {
        let (schema, text) = (json_schema(), reference());
        let sections = Page { schema: &schema }.sections();
        let definitions = schema["$defs"].as_object().unwrap().values();
        let mappings = definitions.filter(|definition| definition["properties"].is_object()).count();
        // The whole file and `store`, a mapping or a word, are no definitions of their own.
        assert_eq!(sections.len(), mappings + 2);
        let rows = text.lines().filter(|line| line.starts_with("| `")).count();
        assert_eq!(rows, sections.iter().map(|section| section.keys.len()).sum::<usize>());
        for section in sections.iter().filter(|section| !section.place.is_empty()) {
            assert_eq!(text.matches(&format!("# `{}`\n", section.place)).count(), 1, "{}", section.place);
        }
    }

    #[test]
    fn each_row_has_a_value_a_meaning_and_an_example() {
        for row in reference().lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
            let [key, value, _, meaning] = cells.as_slice() else { panic!("{row}") };
            assert!(!value.is_empty() && !value.starts_with("<br>"), "{row}");
            assert!(!meaning.starts_with("<br>"), "{row}");
            assert!(meaning.contains(&format!("<br>For example {}: ", key.trim_end_matches('`'))), "{row}");
        }
    }

    #[test]
    fn the_default_moves_to_its_column() {
        let split = meaning_and_default("How many, 1 to 5. Default `2`: enough. Only with `key`. Required.");
        assert_eq!(split, ("How many, 1 to 5. Only with `key`.".to_owned(), "`2`: enough"));
        assert_eq!(meaning_and_default("What. Default: the name."), ("What.".to_owned(), "the name"));
    }
}
