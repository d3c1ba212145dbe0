//! Tree to schema, with the place of every fault of shape.
//!
//! Serde stops at the first fault. To report all of them, the faulty node is struck out and the tree is read again,
//! until no fault is left. The rest is then checked for its meaning, so problems of both kinds are reported at once.
//! Knows the shape of the schema, and no meaning of a key.

mod reader;

use std::collections::HashSet;

use serde::de::DeserializeOwned;

use super::problem::{Mark, Report, index_path, key_path};
use super::schema;
use super::yaml::{Entry, Node, Value};
use reader::{Part, Reader};

/// The most readings, and so the most faults of shape reported at once.
const READINGS_MAX: usize = 100;

/// Reads the tree into the schema and reports every fault of shape. Nodes in `struck` have been reported and are
/// skipped; newly found faulty nodes are added. `None` if no part of the file can be read.
pub(crate) fn decode(root: &Node, struck: &mut HashSet<u32>, report: &mut Report) -> Option<schema::File> {
    decode_as(root, struck, example, report)
}

/// Reads a tree as [`decode`] does, into another type. `examples` returns an example of the value at a path, by its opening bracket.
pub(super) fn decode_as<T: DeserializeOwned>(
    root: &Node,
    struck: &mut HashSet<u32>,
    examples: fn(&str, char) -> Option<&'static str>,
    report: &mut Report,
) -> Option<T> {
    for _ in 0..READINGS_MAX {
        let error = match T::deserialize(Reader { node: root, struck }) {
            Ok(file) => return Some(file),
            Err(error) => error.or_at(root, Part::Value),
        };
        let (id, part) = error.spot.unwrap_or((root.id, Part::Value));
        let found = locate(root, id, String::new(), root.mark)?;
        // A struck-out key is not missing, and a misspelt one has been reported.
        if !(error.missing && found.node.children().any(|child| struck.contains(&child.id))) {
            let error = error.with_example(|open| examples(&found.path, open));
            let mark = if part == Part::Key { found.key_mark } else { found.node.mark };
            report.add(mark, found.path, error.to_string());
        }
        if !struck.insert(id) || id == root.id {
            return None;
        }
    }
    None
}

/// Returns an example of a key's value, for messages. A name chosen by the user is no key.
fn example(path: &str, open: char) -> Option<&'static str> {
    let (parent, key) = path.rsplit_once('.').unwrap_or(("", path));
    match parent.rsplit_once('.').map_or(parent, |(_, last)| last) {
        _ if matches!(parent, "limiters" | "clients") => None,
        "overrides" => schema::example("limits", open),
        _ => schema::example(key, open),
    }
}

/// A node with its place, as [`locate`] finds it.
struct Found<'a> {
    node: &'a Node,
    key_mark: Mark,
    path: String,
}

/// Finds the node with this id.
fn locate(node: &Node, id: u32, path: String, key_mark: Mark) -> Option<Found<'_>> {
    if node.id == id {
        return Some(Found { node, key_mark, path });
    }
    match &node.value {
        Value::Scalar(_) => None,
        Value::List(items) => items
            .iter()
            .enumerate()
            .find_map(|(index, item)| locate(item, id, index_path(&path, index), item.mark)),
        Value::Mapping(entries) => entries
            .iter()
            .find_map(|entry| locate(&entry.value, id, key_path(&path, name_of(entry)), entry.key_mark)),
    }
}

/// Returns the name of an entry for messages. Where the space behind a colon is missing, the value is a part of the key, and may be a secret.
fn name_of(entry: &Entry) -> &str {
    match entry.key.split_once(':') {
        Some((name, _)) if entry.value.text() == Some("") => name,
        _ => &entry.key,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::yaml;

    fn problems(text: &str) -> Vec<String> {
        let mut report = Report::new(Path::new("f"));
        let root = yaml::parse(text, &mut report).unwrap();
        let mut struck = HashSet::new();
        decode(&root, &mut struck, &mut report);
        assert_eq!(struck.is_empty(), report.is_empty(), "{text}");
        report.into_problems().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_whole_file_is_read() {
        let text = "listen: 0.0.0.0:80\nstore: {redis: {url: 'redis://x'}}\nlimiters:\n  b: {limits: [1/s]}\n  \
                    a: {limits: [{rate: 1, per: 1mo}], queue: false}\nroutes: []\n";
        assert_eq!(problems(text), [""; 0]);
        for access in ["off", "false", "true", "{}", "{sample: 0.5%, slow: 1s}"] {
            assert_eq!(problems(&format!("log: {{access: {access}}}\n")), [""; 0], "{access}");
        }
    }

    #[test]
    fn every_fault_of_shape_is_reported_with_its_place() {
        let text = "\
lisen: 0.0.0.0:80
server:
  max_connections: many
  header_timeout: 10
log: {format: jsn, access: maybe}
admin:
store: redis
limiters:
  a: {limits: 5/s}
  b: {limts: [5/s]}
  c: {limits: [5, {rate: 1.5, per: 1s}, {rate: 5}], queue: {timeout: 10, max: 5}}
routes:
  - {name: 5, match: {}, upstream: 1}
  - {match: {path: [/]}, upstream: {ur: x}}
";
        let expected = [
            "f:1:1: lisen: unknown key \"lisen\"; did you mean \"listen\"?",
            "f:3:20: server.max_connections: expected a whole number, found a text",
            "f:4:19: server.header_timeout: expected a duration with a unit, such as 250ms, 10s, 1m, 1h or 1d, \
             found a number",
            "f:5:15: log.format: unknown value \"jsn\"; did you mean \"json\"?",
            "f:5:28: log.access: expected true, false, or a mapping with `sample` or `slow`, found \"maybe\"",
            "f:6:1: admin: the value is empty; expected a mapping",
            "f:7:8: store: `redis` needs settings: a mapping below it",
            "f:9:15: limiters.a.limits: expected a list such as [10/1s], found a text",
            "f:10:7: limiters.b.limts: unknown key \"limts\"; did you mean \"limits\"?",
            "f:11:16: limiters.c.limits[0]: expected a limit such as 900/1m or 20/s, or {rate: 900, per: 1m}, \
             found a number",
            "f:11:26: limiters.c.limits[1].rate: expected a whole number that fits into 64 bits",
            "f:11:41: limiters.c.limits[2]: the key `per` is missing",
            "f:11:70: limiters.c.queue.timeout: expected a duration with a unit, such as 250ms, 10s, 1m, 1h or \
             1d, found a number",
            "f:11:74: limiters.c.queue.max: unknown key \"max\"; known: timeout, max_waiting, patience, leave",
            "f:13:12: routes[0].name: expected a text (put it in quotes), found a number",
            "f:13:36: routes[0].upstream: expected a URL such as https://api.example.com, or a mapping with `url`, \
             found a number",
            "f:14:20: routes[1].match.path: expected a text, found a list",
            "f:14:37: routes[1].upstream.ur: unknown key \"ur\"; did you mean \"url\"?",
        ];
        assert_eq!(problems(text), expected);
    }

    #[test]
    fn text_behind_a_colon_without_a_space_is_never_shown() {
        for text in [
            "admin: {token:s3cret}\n",
            "admin: {tokens:s3cret}\n",
            "routes:\n  - {set_headers: {authorization:s3cret}}\n",
            "limiters:\n  a: {limits:s3cret}\n",
        ] {
            let problems = problems(text).join("\n");
            assert!(!problems.contains("s3cret") && !problems.is_empty(), "{problems}");
        }
    }

    #[test]
    fn a_missing_key_is_placed_at_its_mapping() {
        assert_eq!(problems("server:\n  tls: {cert: a}\n"), ["f:2:8: server.tls: the key `key` is missing"]);
        assert_eq!(
            problems("listen: a\nlimiters:\n  x:\n    queue: off\nroutes: []\n"),
            ["f:4:5: limiters.x: the key `limits` is missing"]
        );
    }

    #[test]
    fn a_wrong_value_is_answered_with_an_example_of_a_list_or_mapping() {
        let text = "\
limiters:
  a: {limits: [1/s], queue: 10s, key: host}
  queue: 5
routes:
  - {name: x, match: /x, upstream: 'http://a', limiters: a}
  - {name: x, match: , upstream: 'http://a'}
server:
";
        let expected = [
            "f:2:29: limiters.a.queue: expected off or a mapping such as {timeout: 10s}, found \"10s\"",
            "f:2:39: limiters.a.key: expected a list such as [header:x-tenant], found a text",
            "f:3:10: limiters.queue: expected a mapping, found a number",
            "f:5:22: routes[0].match: expected a mapping such as {path: /api}, found a text",
            "f:5:58: routes[0].limiters: expected off or a list such as [github], found \"a\"",
            "f:6:15: routes[1].match: the value is empty; expected a mapping such as {path: /api}",
            "f:7:1: server: the value is empty; expected a mapping",
        ];
        assert_eq!(problems(text), expected);
    }

    #[test]
    fn the_root_must_be_a_mapping() {
        assert_eq!(problems("- a\n"), ["f:1:1: expected a mapping, found a list"]);
        assert_eq!(problems("hello\n"), ["f:1:1: expected a mapping, found a text"]);
    }

    #[test]
    fn the_number_of_readings_is_bounded() {
        let keys: String = (0..1000).map(|index| format!("key{index}: 1\n")).collect();
        assert_eq!(problems(&keys).len(), READINGS_MAX);
    }
}
