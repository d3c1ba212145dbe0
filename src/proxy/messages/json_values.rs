//! Reads the values at some paths of a whole JSON document, in one pass and without a tree of it.
//!
//! Parsers differ in which of two members of one name counts, and some heed no case. A value that may be read in more than one way is
//! told apart from one that is missing. Unlike [`super::json`], a document that is broken anywhere has no values.

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::config::model::JsonPath;

/// The value at a path of a document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Found {
    #[default]
    Nothing,
    /// `null`, a list or a mapping.
    Other,
    /// A text as it is, or a number, true or false as JSON writes it.
    Value(Box<str>),
    /// A member on the way is there twice, or in another case.
    Ambiguous,
}

/// Returns the value at each path; `None` if the document is no JSON.
pub(crate) fn values_at(document: &[u8], paths: &[JsonPath]) -> Option<Vec<Found>> {
    // A skipped value is not checked for UTF-8 otherwise.
    let document = std::str::from_utf8(document).ok()?;
    let mut found = vec![Found::default(); paths.len()];
    let all: Vec<_> = paths.iter().enumerate().map(|(index, path)| (index, path.steps())).collect();
    let mut deserializer = serde_json::Deserializer::from_str(document);
    Walk { ways: &all, found: &mut found }.deserialize(&mut deserializer).ok()?;
    deserializer.end().ok()?;
    Some(found)
}

/// The number of a path, and the steps of it that are left.
type Way<'a> = (usize, &'a [Box<str>]);

/// The ways from a value to those that are wanted. As deep as a path, whatever the document.
struct Walk<'a> {
    ways: &'a [Way<'a>],
    found: &'a mut [Found],
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Walk<'_> {
    /// Takes a value for the ways that end here.
    fn ends_with(&mut self, value: &Found) {
        for (path, _) in self.ways.iter().filter(|(_, steps)| steps.is_empty()) {
            if self.found[*path] == Found::Nothing {
                self.found[*path] = value.clone();
            }
        }
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("any value")
    }

    fn visit_bool<E: Error>(mut self, value: bool) -> Result<(), E> {
        self.ends_with(&Found::Value(value.to_string().into()));
        Ok(())
    }

    fn visit_i64<E: Error>(mut self, value: i64) -> Result<(), E> {
        self.ends_with(&Found::Value(value.to_string().into()));
        Ok(())
    }

    fn visit_u64<E: Error>(mut self, value: u64) -> Result<(), E> {
        self.ends_with(&Found::Value(value.to_string().into()));
        Ok(())
    }

    fn visit_f64<E: Error>(mut self, value: f64) -> Result<(), E> {
        self.ends_with(&Found::Value(value.to_string().into()));
        Ok(())
    }

    fn visit_str<E: Error>(mut self, value: &str) -> Result<(), E> {
        self.ends_with(&Found::Value(value.into()));
        Ok(())
    }

    fn visit_unit<E: Error>(mut self) -> Result<(), E> {
        self.ends_with(&Found::Other);
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut members: A) -> Result<(), A::Error> {
        self.ends_with(&Found::Other);
        let mut seen = vec![false; self.ways.len()];
        let mut inside: Vec<Way<'_>> = Vec::new();
        while let Some(name) = members.next_key::<String>()? {
            inside.clear();
            for ((path, steps), seen) in self.ways.iter().zip(&mut seen) {
                let Some((step, steps)) = steps.split_first() else { continue };
                if !step.eq_ignore_ascii_case(&name) {
                    continue;
                }
                if **step == *name && !*seen {
                    inside.push((*path, steps));
                } else {
                    self.found[*path] = Found::Ambiguous;
                }
                *seen = true;
            }
            if inside.is_empty() {
                members.next_value::<IgnoredAny>()?;
            } else {
                members.next_value_seed(Walk { ways: &inside, found: self.found })?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut elements: A) -> Result<(), A::Error> {
        self.ends_with(&Found::Other);
        let place = |(_, steps): &Way<'_>| steps.first().and_then(|step| index(step));
        let last = self.ways.iter().filter_map(place).max();
        let mut inside: Vec<Way<'_>> = Vec::new();
        for index in 0.. {
            inside.clear();
            if last.is_some_and(|last| index <= last) {
                let here = self.ways.iter().filter(|way| place(way) == Some(index));
                inside.extend(here.map(|(path, steps)| (*path, &steps[1..])));
            }
            let next = if inside.is_empty() {
                elements.next_element::<IgnoredAny>()?.map(|_| ())
            } else {
                elements.next_element_seed(Walk { ways: &inside, found: self.found })?
            };
            if next.is_none() {
                break;
            }
        }
        Ok(())
    }
}

/// Returns the index that a step names, in the one form that an index has.
pub(super) fn index(step: &str) -> Option<usize> {
    let is_canonical =
        step == "0" || (!step.starts_with('0') && step.bytes().all(|byte| byte.is_ascii_digit()));
    step.parse().ok().filter(|_| is_canonical)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn values(document: &[u8], paths: &[&str]) -> Option<Vec<Found>> {
        let paths: Vec<_> = paths.iter().map(|path| JsonPath::parse(path).unwrap()).collect();
        values_at(document, &paths)
    }

    fn at(document: &str, path: &str) -> Option<Found> {
        values(document.as_bytes(), &[path]).map(|found| found[0].clone())
    }

    fn value(text: &str) -> Found {
        Found::Value(text.into())
    }

    #[test]
    fn each_path_has_its_value() {
        let document = r#"{"model": "gpt\u002d5", "n": 3, "stop": null, "messages": [{"role": "user"}, {"role": "é", "x": [1.5]}],
            "stream": true, "0": -1, "of": {"model": "other", "n": {"n": 1e3}}}"#;
        for (path, expected) in [
            ("model", value("gpt-5")),
            ("n", value("3")),
            ("stop", Found::Other),
            ("messages", Found::Other),
            ("messages.1.role", value("é")),
            ("messages.1.x.0", value("1.5")),
            ("messages.01.role", Found::Nothing),
            ("messages.+1.role", Found::Nothing),
            ("messages.2", Found::Nothing),
            ("stream", value("true")),
            ("0", value("-1")),
            ("of", Found::Other),
            ("of.model", value("other")),
            ("of.n.n", value("1000")),
            ("model.x", Found::Nothing),
            ("missing", Found::Nothing),
        ] {
            assert_eq!(at(document, path), Some(expected), "{path}");
        }
        let paths = ["of.n.n", "model", "of.model", "model"];
        let expected = ["1000", "gpt-5", "other", "gpt-5"].map(value).to_vec();
        assert_eq!(values(document.as_bytes(), &paths), Some(expected));
        assert_eq!(at("\"text\"", "a"), Some(Found::Nothing));
    }

    #[test]
    fn a_member_that_some_parser_reads_otherwise_is_ambiguous() {
        for document in [
            r#"{"model": "a", "model": "b"}"#,
            r#"{"model": "a", "model": "a"}"#,
            r#"{"model": "a", "mod\u0065l": "b"}"#,
            r#"{"model": "a", "model": null}"#,
            r#"{"model": null, "model": "a"}"#,
            r#"{"model": "a", "Model": "b"}"#,
            r#"{"Model": "b"}"#,
            r#"{"MODEL": "b", "model": "a"}"#,
        ] {
            assert_eq!(at(document, "model"), Some(Found::Ambiguous), "{document}");
        }
        for document in
            [r#"{"a": {"b": 1}, "a": {"b": 1}}"#, r#"{"a": 1, "a": {"b": 2}}"#, r#"{"a": {"B": 1}}"#]
        {
            assert_eq!(at(document, "a.b"), Some(Found::Ambiguous), "{document}");
        }
        assert_eq!(at(r#"{"a": 1, "b": 2, "b": 3, "c": {"a": 1, "A": 2}}"#, "a"), Some(value("1")));
    }

    #[test]
    fn a_broken_document_has_no_values() {
        for document in [
            &b""[..],
            b"{\"model\": \"a\"",
            b"{\"a\":",
            b"{\"model\": \"a\"} x",
            b"{\"model\": \"a\"}{}",
            b"{\"model\": \"a\", \"x\": \"\xff\"}",
            b"{\"model\": \"a\", \"\xff\": 1}",
            b"{\"model\": \"a\", x: 1}",
            b"{\"model\": \"a\", \"x\": 01}",
            b"{\"model\": \"\\ud800\"}",
            b"\xef\xbb\xbf{\"model\": \"a\"}",
            b"model=a",
        ] {
            assert_eq!(values(document, &["model"]), None, "{}", String::from_utf8_lossy(document));
        }
    }

    #[test]
    fn a_deep_document_takes_no_stack() {
        let depth = 500_000;
        let deep = |open: &str, inner: &str, close: &str| {
            [&*open.repeat(depth), inner, &*close.repeat(depth)].concat()
        };
        let lists = format!(r#"{{"x": {}, "model": "a"}}"#, deep("[", "", "]"));
        assert_eq!(at(&lists, "model"), Some(value("a")));
        let mappings = format!(r#"{{"model": {}}}"#, deep("{\"a\":", "1", "}"));
        assert_eq!(at(&mappings, "model"), Some(Found::Other));
        assert_eq!(at(&mappings, "model.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a"), Some(Found::Other));
        assert_eq!(at(&deep("[", "", ""), "model"), None);
    }

    /// Documents whose members have few names, so that paths meet them.
    fn documents() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a-c\"\\\\\u{1}é]{0,3}".prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 64, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-c0-2]", inner, 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    fn expected(document: &Value, path: &str) -> Found {
        let mut place = document;
        for step in path.split('.') {
            let inner = match place {
                Value::Array(elements) => step.parse().ok().and_then(|index: usize| elements.get(index)),
                _ => place.get(step),
            };
            let Some(inner) = inner else { return Found::Nothing };
            place = inner;
        }
        match place {
            Value::String(text) => value(text),
            Value::Bool(_) | Value::Number(_) => value(&place.to_string()),
            Value::Null | Value::Array(_) | Value::Object(_) => Found::Other,
        }
    }

    proptest! {
        #[test]
        fn the_values_are_those_of_a_tree(document in documents(), paths in prop::collection::vec("[a-c0-2](\\.[a-c0-2]){0,3}", 1..5)) {
            let names: Vec<&str> = paths.iter().map(String::as_str).collect();
            let found = values(document.to_string().as_bytes(), &names).expect("it is JSON");
            let expected: Vec<_> = names.iter().map(|path| expected(&document, path)).collect();
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn any_bytes_are_read_or_not(bytes in prop::collection::vec(prop_oneof![Just(b'{'), Just(b'"'), Just(b'a'), Just(b':'), Just(b'}'), Just(b'['), Just(b','), Just(b'\\'), Just(b'1'), any::<u8>()], 0..40)) {
            let is_json = serde_json::from_slice::<IgnoredAny>(&bytes).is_ok();
            let found = values(&bytes, &["a", "1.a", "a.a"]);
            prop_assert!(found.is_none() || is_json);
        }
    }
}
