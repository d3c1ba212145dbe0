//! YAML text to a tree, within bounds.
//!
//! Refuses tags, merge keys, keys that are not scalars and second documents, which a configuration does not need, and
//! deep nesting and repeated aliases, which could make a small file large.

use std::collections::HashMap;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError};

use super::tree::{Entry, Node, Origin, Scalar, Value};
use crate::config::problem::{Mark, Report, index_path, key_path, quoted};

/// The deepest nesting; weir's own keys need seven levels.
const DEPTH_MAX: usize = 32;
/// The most nodes, aliases expanded: as many as the largest file could plausibly hold.
const NODES_MAX: usize = 200_000;

/// Parses one document. `None`, with a problem reported, if there is no tree. A doubled key is reported, and its first
/// value kept.
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
    if builder.root.is_none() {
        report.add_whole("the file is empty; it needs at least `routes`");
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
    List { node: Head, items: Vec<Node> },
    Mapping { node: Head, entries: Vec<Entry>, seen: HashMap<String, Mark>, key: Option<(String, Mark)> },
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
                let (entries, seen) = (Vec::new(), HashMap::new());
                self.open(Open::Mapping { node, entries, seen, key: None }, mark)
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
            if plain && text == "<<" {
                return Err(self.fault(mark, "merge keys (`<<`) are not supported; write the keys out"));
            }
            *key = Some((text.to_owned(), mark));
            return Ok(());
        }
        let Head { id, mark, .. } = self.head(anchor, mark)?;
        // An absent value has no place; its key's place is used.
        let mark = match self.stack.last() {
            Some(Open::Mapping { key: Some((_, key_mark)), .. }) if plain && text.is_empty() => *key_mark,
            _ => mark,
        };
        let scalar =
            Scalar { text: text.to_owned(), origin: if plain { Origin::Plain } else { Origin::Quoted } };
        self.place(Node { id, mark, value: Value::Scalar(scalar) }, anchor, report);
        Ok(())
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
        if let Some(node) = self.anchors.get(&anchor).map(|anchored| anchored.node.clone()) {
            self.place(node, 0, report);
        }
        Ok(())
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
            Some(Open::Mapping { node, entries, .. }) => (node, Value::Mapping(entries)),
            None => return Ok(()),
        };
        self.place(Node { id: head.id, mark: head.mark, value }, head.anchor, report);
        Ok(())
    }

    /// Adds a complete node to its parent.
    fn place(&mut self, node: Node, anchor: usize, report: &mut Report) {
        if anchor != 0 {
            let (size, depth) = (node.size(), node.depth());
            self.anchors.insert(anchor, Anchored { node: node.clone(), size, depth });
        }
        let parent = self.path_above();
        match self.stack.last_mut() {
            None => self.root = Some(node),
            Some(Open::List { items, .. }) => items.push(node),
            Some(Open::Mapping { entries, seen, key, .. }) => {
                let Some((key, key_mark)) = key.take() else { return };
                if let Some(first) = seen.get(&key) {
                    let message =
                        format!("key {} is given twice; the first is on line {}", quoted(&key), first.line);
                    report.add(key_mark, key_path(&parent, &key), message);
                    return;
                }
                seen.insert(key.clone(), key_mark);
                entries.push(Entry { key, key_mark, value: node });
            }
        }
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
        Open::Mapping { key: Some((key, _)), .. } => key_path(&path, key),
        Open::Mapping { key: None, .. } => path,
    })
}

fn too_deep() -> String {
    format!("nested more than {DEPTH_MAX} levels deep")
}

fn mark_of(marker: &Marker) -> Mark {
    let saturate = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    Mark { line: saturate(marker.line()), column: saturate(marker.col()).saturating_add(1) }
}

/// Returns the parser's message, with a hint if an unquoted `${...}` may be the cause.
fn syntax_fault(error: &ScanError, text: &str) -> Fault {
    let mark = mark_of(error.marker());
    let line = text.lines().nth(mark.line.saturating_sub(1) as usize).unwrap_or_default();
    let hint =
        if line.contains("${") { "; inside `{ }` or `[ ]` a value with `${...}` needs quotes" } else { "" };
    Fault { mark, path: String::new(), message: format!("not valid YAML: {}{hint}", error.info()) }
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
        refused("a: &x {b: 1}\nc: {<<: *x}\n", "f:2:5: c: merge keys");
        refused("? [a, b]\n: c\n", "a key must be a plain text");
        refused(&"[".repeat(100), "nested more than 32 levels deep");
        refused("", "f: the file is empty");
        refused("# only a comment\n", "f: the file is empty");
        refused("a: {b: ${C}}\n", "needs quotes");
        refused("a: [1, 2\nb: 3\n", "not valid YAML");
    }

    #[test]
    fn an_absent_value_is_placed_at_its_key() {
        let root = read("a:\n  b:\n\n\nc: 1\n").unwrap();
        assert_eq!(root.get("a").unwrap().get("b").unwrap().mark, Mark { line: 2, column: 3 });
    }
}
