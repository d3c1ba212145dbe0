//! Reads single values of a JSON document, without a tree of all of it. The document may be cut off behind them.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::config::model::JsonPath;

/// Returns the value at a path, if it is a text, a number, true, false or null: a text as it is, any other as JSON writes it. Of members
/// of one name the first counts.
pub(crate) fn value_at(document: &[u8], path: &JsonPath) -> Option<String> {
    // A number at the very end has been cut off: nothing tells where it ends.
    let is_of_number = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
    let whole = document.iter().rposition(|byte| !is_of_number(byte)).map_or(0, |last| last + 1);
    let document = &document[..whole];
    let mut found = None;
    let walk = Walk { steps: path.steps(), found: &mut found };
    // An error behind the value does not matter, and a document that is cut off is wrong.
    let _ = walk.deserialize(&mut serde_json::Deserializer::from_slice(document));
    found
}

/// The way from a value to the one that is wanted.
struct Walk<'a> {
    steps: &'a [Box<str>],
    found: &'a mut Option<String>,
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Walk<'_> {
    fn ends_with(self, value: impl fmt::Display) {
        if self.steps.is_empty() {
            self.found.get_or_insert_with(|| value.to_string());
        }
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        self.ends_with(value);
        Ok(())
    }

    fn visit_i64<E>(self, value: i64) -> Result<(), E> {
        self.ends_with(value);
        Ok(())
    }

    fn visit_u64<E>(self, value: u64) -> Result<(), E> {
        self.ends_with(value);
        Ok(())
    }

    fn visit_f64<E>(self, value: f64) -> Result<(), E> {
        self.ends_with(value);
        Ok(())
    }

    fn visit_str<E>(self, value: &str) -> Result<(), E> {
        self.ends_with(value);
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.ends_with("null");
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(name) = members.next_key::<String>()? {
            match self.steps.split_first() {
                Some((step, steps)) if **step == *name => {
                    members.next_value_seed(Walk { steps, found: self.found })?;
                }
                _ => {
                    members.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        for index in 0_usize.. {
            let next = match self.steps.split_first() {
                Some((step, steps)) if **step == *index.to_string() => {
                    elements.next_element_seed(Walk { steps, found: self.found })?
                }
                _ => elements.next_element::<IgnoredAny>()?.map(|_| ()),
            };
            if next.is_none() {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(document: &str, path: &str) -> Option<String> {
        value_at(document.as_bytes(), &JsonPath::parse(path).unwrap())
    }

    #[test]
    fn a_value_is_found_by_its_path() {
        let document = r#"{"errors": [1, {"extensions": {"code": "THROTTLED", "cost": 2.5}}], "ok": false, "left": -3,
            "none": null, "of": {"0": "zero"}}"#;
        for (path, value) in [
            ("errors.1.extensions.code", "THROTTLED"),
            ("errors.1.extensions.cost", "2.5"),
            ("errors.0", "1"),
            ("ok", "false"),
            ("left", "-3"),
            ("none", "null"),
            ("of.0", "zero"),
        ] {
            assert_eq!(at(document, path).as_deref(), Some(value), "{path}");
        }
        for path in ["errors", "errors.2", "errors.x", "errors.1.extensions", "extensions.code", "ok.x", "o"]
        {
            assert_eq!(at(document, path), None, "{path}");
        }
    }

    #[test]
    fn text_behind_the_value_does_not_matter() {
        for document in [r#"{"a": "b", "c": [[[[{"#, r#"{"a": "b"} and more"#, r#"{"a": "b", "a": "c"}"#] {
            assert_eq!(at(document, "a").as_deref(), Some("b"), "{document}");
        }
        let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
        for document in
            ["", "{", r#"{"a": "b"#, r#"{"a": 12"#, r#"{"a":"#, "null", "<html>", "\u{fe}\u{ff}", &deep]
        {
            assert_eq!(at(document, "a"), None, "{document:.20}");
        }
        assert_eq!(value_at(b"{\"a\": \"\xff\"}", &JsonPath::parse("a").unwrap()), None);
    }
}
