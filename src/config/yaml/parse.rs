//! YAML text to a tree, within bounds.
//!
//! Anchors, aliases and merge keys (`<<`) are resolved here, as in YAML 1.1: a mapping's own keys come before merged ones, earlier
//! merged mappings before later ones. Refuses tags, keys that are not scalars and second documents, which a configuration does
//! not need, and deep nesting and repeated aliases, which could make a small file large.

use std::collections::HashMap;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError};

use super::diagnose::diagnose;
use super::tree::{Entry, Node, Origin, Scalar, Value};
use crate::config::problem::{Mark, Report, index_path, key_path, quoted};

/// The deepest nesting; weir's own keys need seven levels.
const DEPTH_MAX: usize = 32;
/// The key that merges other mappings into its own.
const MERGE: &str = "<<";
/// The most nodes, aliases expanded: as many as the largest file could plausibly hold.
const NODES_MAX: usize = 200_000;

/// Parses one document. `None` if there is no tree: with a problem reported, or because the text is empty. A doubled key is reported,
/// and its first value kept.
pub(crate) fn parse(text: &str, report: &mut Report) -> Option<Node> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut builder = Builder::default();
    for event in Parser::new_from_str(text) {
        let outcome = match event {
            Ok((event, span)) => builder.take(event, mark_of(&span.start), report),
            Err(error) => Err(syntax_fault(&error, text)),
        };
        if let Err(fault) = outcome {
            report.add(fault.mark, fault.path, fault.message);
            return None;
        }
    }
    builder.root
}

/// A fault that ends the parsing.
struct Fault {
    mark: Mark,
    path: String,
    message: String,
}

/// A collection that is not complete yet.
enum Open {
    List {
        node: Head,
        items: Vec<Node>,
    },
    Mapping {
        node: Head,
        entries: Vec<Entry>,
        seen: HashMap<String, Mark>,
        key: Option<Key>,
        merged: Vec<Entry>,
    },
}

/// A key whose value is not complete yet.
struct Key {
    text: String,
    mark: Mark,
    /// True for a merge key.
    merges: bool,
}

/// The parts of a node that are known when its collection begins.
struct Head {
    id: u32,
    mark: Mark,
    anchor: usize,
}

#[derive(Default)]
struct Builder {
    stack: Vec<Open>,
    root: Option<Node>,
    documents: u32,
    nodes: usize,
    anchors: HashMap<usize, Anchored>,
    ids: u32,
}

/// An anchored node with its size and depth, so that an alias is checked before it is copied.
struct Anchored {
    node: Node,
    size: usize,
    depth: usize,
}

impl Builder {
    fn take(&mut self, event: Event<'_>, mark: Mark, report: &mut Report) -> Result<(), Fault> {
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err(self.fault(mark, "a second document (`---`) is not allowed"));
                }
                Ok(())
            }
            Event::Scalar(_, _, _, Some(_))
            | Event::SequenceStart(_, Some(_))
            | Event::MappingStart(_, Some(_)) => {
                Err(self.fault(mark, "tags (`!...`) are not supported; use quotes for a text"))
            }
            Event::Scalar(text, style, anchor, None) => self.scalar(&text, style, anchor, mark, report),
            Event::Alias(anchor) => self.alias(anchor, mark, report),
            Event::SequenceStart(anchor, None) => {
                let node = self.head(anchor, mark)?;
                self.open(Open::List { node, items: Vec::new() }, mark)
            }
            Event::MappingStart(anchor, None) => {
                let node = self.head(anchor, mark)?;
                let (entries, seen, merged) = (Vec::new(), HashMap::new(), Vec::new());
                self.open(Open::Mapping { node, entries, seen, key: None, merged }, mark)
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(report),
        }
    }

    fn scalar(
        &mut self,
        text: &str,
        style: ScalarStyle,
        anchor: usize,
        mark: Mark,
        report: &mut Report,
    ) -> Result<(), Fault> {
        let plain = style == ScalarStyle::Plain;
        if let Some(Open::Mapping { key: key @ None, .. }) = self.stack.last_mut() {
            *key = Some(Key { text: text.to_owned(), mark, merges: plain && text == MERGE });
            return Ok(());
        }
        let Head { id, mark, .. } = self.head(anchor, mark)?;
        // An absent value has no place; its key's place is used.
        let mark = match self.stack.last() {
            Some(Open::Mapping { key: Some(key), .. }) if plain && text.is_empty() => key.mark,
            _ => mark,
        };
        let scalar =
            Scalar { text: text.to_owned(), origin: if plain { Origin::Plain } else { Origin::Quoted } };
        self.place(Node { id, mark, value: Value::Scalar(scalar) }, anchor, report)
    }

    fn alias(&mut self, anchor: usize, mark: Mark, report: &mut Report) -> Result<(), Fault> {
        if let Some(Open::Mapping { key: None, .. }) = self.stack.last() {
            return Err(self.fault(mark, "a key must be a plain text, not an alias"));
        }
        let Some(anchored) = self.anchors.get(&anchor) else {
            return Err(self.fault(mark, "this alias stands inside its own anchor"));
        };
        if self.stack.len() + anchored.depth > DEPTH_MAX {
            return Err(self.fault(mark, &too_deep()));
        }
        let size = anchored.size;
        self.count(size, mark)?;
        match self.anchors.get(&anchor).map(|anchored| anchored.node.clone()) {
            Some(node) => self.place(node, 0, report),
            None => Ok(()),
        }
    }

    /// Numbers a new node.
    fn head(&mut self, anchor: usize, mark: Mark) -> Result<Head, Fault> {
        self.count(1, mark)?;
        self.ids += 1;
        Ok(Head { id: self.ids, mark, anchor })
    }

    fn count(&mut self, nodes: usize, mark: Mark) -> Result<(), Fault> {
        self.nodes += nodes;
        if self.nodes > NODES_MAX {
            let message = format!("too much: more than {NODES_MAX} values, aliases expanded");
            return Err(self.fault(mark, &message));
        }
        Ok(())
    }

    fn open(&mut self, open: Open, mark: Mark) -> Result<(), Fault> {
        if let Some(Open::Mapping { key: None, .. }) = self.stack.last() {
            return Err(self.fault(mark, "a key must be a plain text, not a list or a mapping"));
        }
        if self.stack.len() + 1 >= DEPTH_MAX {
            return Err(self.fault(mark, &too_deep()));
        }
        self.stack.push(open);
        Ok(())
    }

    fn close(&mut self, report: &mut Report) -> Result<(), Fault> {
        let (head, value) = match self.stack.pop() {
            Some(Open::List { node, items }) => (node, Value::List(items)),
            Some(Open::Mapping { node, mut entries, mut seen, merged, .. }) => {
                for entry in merged {
                    if seen.insert(entry.key.clone(), entry.key_mark).is_none() {
                        entries.push(entry);
                    }
                }
                (node, Value::Mapping(entries))
            }
            None => return Ok(()),
        };
        self.place(Node { id: head.id, mark: head.mark, value }, head.anchor, report)
    }

    /// Adds a complete node to its parent.
    fn place(&mut self, node: Node, anchor: usize, report: &mut Report) -> Result<(), Fault> {
        if anchor != 0 {
            let (size, depth) = (node.size(), node.depth());
            self.anchors.insert(anchor, Anchored { node: node.clone(), size, depth });
        }
        let parent = self.path_above();
        match self.stack.last_mut() {
            None => self.root = Some(node),
            Some(Open::List { items, .. }) => items.push(node),
            Some(Open::Mapping { entries, seen, key, merged, .. }) => {
                let Some(Key { text: key, mark: key_mark, merges }) = key.take() else { return Ok(()) };
                if let Some(first) = seen.get(&key) {
                    let message =
                        format!("key {} is given twice; the first is on line {}", quoted(&key), first.line);
                    report.add(key_mark, key_path(&parent, &key), message);
                    return Ok(());
                }
                seen.insert(key.clone(), key_mark);
                if !merges {
                    entries.push(Entry { key, key_mark, value: node });
                    return Ok(());
                }
                let mark = node.mark;
                let message = "`<<` merges a mapping or a list of mappings, such as `<<: *common`";
                *merged = to_merge(node).ok_or_else(|| Fault {
                    mark,
                    path: key_path(&parent, &key),
                    message: message.to_owned(),
                })?;
            }
        }
        Ok(())
    }

    fn fault(&self, mark: Mark, message: &str) -> Fault {
        Fault { mark, path: self.path(), message: message.to_owned() }
    }

    /// Returns the path of the node that is being parsed.
    fn path(&self) -> String {
        path_of(&self.stack)
    }

    /// Returns the path of the innermost open collection.
    fn path_above(&self) -> String {
        path_of(self.stack.split_last().map_or(&[], |(_, above)| above))
    }
}

fn path_of(stack: &[Open]) -> String {
    stack.iter().fold(String::new(), |path, open| match open {
        Open::List { items, .. } => index_path(&path, items.len()),
        Open::Mapping { key: Some(key), .. } => key_path(&path, &key.text),
        Open::Mapping { key: None, .. } => path,
    })
}

/// Returns the entries of a merge key's value: those of a mapping, or of a list of mappings.
fn to_merge(node: Node) -> Option<Vec<Entry>> {
    match node.value {
        Value::Mapping(entries) => Some(entries),
        Value::List(items) => {
            let mappings = items.into_iter().map(|item| match item.value {
                Value::Mapping(entries) => Some(entries),
                Value::Scalar(_) | Value::List(_) => None,
            });
            mappings.collect::<Option<Vec<_>>>().map(|mappings| mappings.into_iter().flatten().collect())
        }
        Value::Scalar(_) => None,
    }
}

fn too_deep() -> String {
    format!("nested more than {DEPTH_MAX} levels deep")
}

fn mark_of(marker: &Marker) -> Mark {
    let saturate = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    Mark { line: saturate(marker.line()), column: saturate(marker.col()).saturating_add(1) }
}

/// Returns the likely cause of a syntax error, or the parser's own message.
fn syntax_fault(error: &ScanError, text: &str) -> Fault {
    let mark = mark_of(error.marker());
    let (mark, cause) = diagnose(text, mark, error.info()).unwrap_or_else(|| (mark, error.info().to_owned()));
    Fault { mark, path: String::new(), message: format!("not valid YAML: {cause}") }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn read(text: &str) -> Result<Node, String> {
        let mut report = Report::new(Path::new("f"));
        match parse(text, &mut report) {
            Some(node) if report.is_empty() => Ok(node),
            _ => Err(report.into_problems().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")),
        }
    }

    #[test]
    fn every_key_and_value_has_its_place() {
        let root = read("a: 1\nb:\n  c: [x, {d: e}]\n").unwrap();
        let b = root.entry("b").unwrap();
        assert_eq!(b.key_mark, Mark { line: 2, column: 1 });
        let c = b.value.entry("c").unwrap();
        assert_eq!((c.key_mark, c.value.mark), (Mark { line: 3, column: 3 }, Mark { line: 3, column: 6 }));
        let d = c.value.items()[1].entry("d").unwrap();
        assert_eq!((d.key_mark, d.value.mark), (Mark { line: 3, column: 11 }, Mark { line: 3, column: 14 }));
        assert_eq!(d.value.text(), Some("e"));
    }

    #[test]
    fn columns_count_characters() {
        let root = read("a: {ключ: 1, b: 2}\n").unwrap();
        assert_eq!(root.get("a").unwrap().entry("b").unwrap().key_mark, Mark { line: 1, column: 14 });
    }

    #[test]
    fn a_byte_order_mark_and_crlf_do_no_harm() {
        let root = read("\u{feff}a: 1\r\nb: 2\r\n").unwrap();
        assert_eq!(root.entry("b").unwrap().key_mark, Mark { line: 2, column: 1 });
        assert_eq!(root.get("a").unwrap().text(), Some("1"));
    }

    #[test]
    fn doubled_keys_are_all_reported() {
        let error = read("a: 1\nb: {c: 1, c: 2}\na: 2\n").unwrap_err();
        assert_eq!(
            error,
            "f:2:11: b.c: key \"c\" is given twice; the first is on line 2\n\
             f:3:1: a: key \"a\" is given twice; the first is on line 1"
        );
    }

    #[test]
    fn an_alias_repeats_its_anchored_value() {
        let root = read("a: &x {b: 1}\nc: *x\n").unwrap();
        assert_eq!(root.get("c").unwrap().get("b").unwrap().text(), Some("1"));
    }

    #[test]
    fn a_merge_key_adds_the_keys_that_are_not_there() {
        let text =
            "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {<<: [*a, *b], z: 3}\nd: {x: 4, <<: *a}\n'<<': e\n";
        let root = read(text).unwrap();
        let of =
            |key: &str, inner: &str| root.get(key).unwrap().get(inner).unwrap().text().unwrap().to_owned();
        assert_eq!([of("c", "x"), of("c", "y"), of("c", "z")], ["1", "1", "3"]);
        assert_eq!([of("d", "x"), of("d", "y")], ["4", "1"]);
        assert!(root.get("c").unwrap().get("<<").is_none());
        assert_eq!(root.get("<<").unwrap().text(), Some("e"), "in quotes it is a key like others");
        let y = root.get("c").unwrap().entry("y").unwrap();
        assert_eq!(y.value.mark, Mark { line: 1, column: 17 }, "a merged value has the place of its anchor");
    }

    #[test]
    fn a_syntax_error_is_explained_where_it_is() {
        let explained = |text: &str, place: &str| {
            let error = read(text).unwrap_err();
            assert!(error.starts_with(&format!("f:{place}")), "{text:?}\n{error}");
        };
        let rest = "routes:\n  - {name: a, upstream: \"http://a\"}\n";
        for (line, place) in [
            ("log: {level: \"info}", "1:14: not valid YAML: this quote is not closed"),
            ("a:\n  limits: [\"900/1m]", "2:12: not valid YAML: this quote is not closed"),
            ("a:\n  group: 'it''s", "2:10: not valid YAML: this quote is not closed"),
            ("a:\n  b: \"Bearer ${X}\n  c: 1", "2:6: not valid YAML: this quote is not closed"),
            ("a: it's # \"fine\nb: \"x", "2:4: not valid YAML: this quote is not closed"),
            (
                "a:\n  limits:[900/1m]\n  queue: x",
                "2:10: not valid YAML: a space is missing after the colon of \"limits\"",
            ),
            (
                "a:\n  limits: x\n  group:x\n\n  # b\n  c: 1",
                "3:9: not valid YAML: a space is missing after the colon of \"group\"",
            ),
            ("listen:127.0.0.1:80", "1:8: not valid YAML: a space is missing after the colon of \"listen\""),
            (
                "- name: a\n  upstream:http://a\n  limiter: b",
                "2:12: not valid YAML: a space is missing after the colon",
            ),
            ("- name:a\n  limiter: b", "1:8: not valid YAML: a space is missing after the colon of \"name\""),
            ("listen:\ta\n", "1:8: not valid YAML: a tab stands behind the colon of \"listen\"; use a space"),
            (
                "listen:\u{a0}a\nlog: b",
                "1:8: not valid YAML: a no-break space stands behind the colon of \"listen\"; use a space",
            ),
            ("a: {b: [}\nc:\t[]", "1:"),
            ("- name: a: b", "1:10: not valid YAML: a text with a colon and a space in it needs quotes"),
            (
                "a: {b: Bearer ${X}}",
                "1:16: not valid YAML: while parsing a flow mapping, did not find expected ',' or '}'; inside",
            ),
            ("a: {limits: [1/s]\nb: x", "1:4: not valid YAML: this `{` is not closed"),
        ] {
            explained(&format!("{line}\n{rest}"), place);
        }
        assert!(read("a: \"one\n  two\"\nb: 'it''s'\n").is_ok(), "a quoted text of several lines is valid");
        explained("a: \"one\n  two\"\nb: [\n", "3:4: not valid YAML: this `[` is not closed");
    }

    #[test]
    fn aliases_cannot_make_a_small_file_large() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..10 {
            let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
            text.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
        }
        assert!(read(&text).unwrap_err().contains("too much"), "{text}");
    }

    #[test]
    fn yaml_beyond_the_needs_of_a_configuration_is_refused() {
        let refused = |text: &str, message: &str| {
            let error = read(text).unwrap_err();
            assert!(error.contains(message), "{text:?}: {error}");
        };
        refused("a: &x [*x]\n", "f:1:8: a[0]: this alias stands inside its own anchor");
        refused("a: 1\n---\nb: 2\n", "f:2:1: a second document");
        refused("a: !!str 1\n", "tags");
        refused("c: {<<: 5}\n", "f:1:9: c.<<: `<<` merges a mapping or a list of mappings");
        refused("a: &x {b: 1}\nc: {<<: [*x, 5]}\n", "f:2:9: c.<<: `<<` merges a mapping");
        refused("a: &x {b: 1}\nc: {<<: *x, <<: *x}\n", "f:2:13: c.<<: key \"<<\" is given twice");
        refused("? [a, b]\n: c\n", "a key must be a plain text");
        refused(&"[".repeat(100), "nested more than 32 levels deep");
        refused("a: {b: ${C}}\n", "needs quotes");
        refused("a: [1, 2\nb: 3\n", "not valid YAML");
    }

    #[test]
    fn an_absent_value_is_placed_at_its_key() {
        let root = read("a:\n  b:\n\n\nc: 1\n").unwrap();
        assert_eq!(root.get("a").unwrap().get("b").unwrap().mark, Mark { line: 2, column: 3 });
    }
}
