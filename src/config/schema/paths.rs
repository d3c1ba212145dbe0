//! Paths of values in JSON documents: one, or a list of them.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};

/// The most paths of a list.
pub(crate) const PATHS_MAX: usize = 8;

/// One path, or a list of them.
#[derive(Debug, Clone)]
pub(crate) struct Paths(pub(crate) Vec<String>);

impl<'de> Deserialize<'de> for Paths {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Paths, D::Error> {
        struct PathsVisitor;

        impl<'de> Visitor<'de> for PathsVisitor {
            type Value = Paths;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a path such as usage.total_tokens, or a list of paths")
            }

            fn visit_str<E: Error>(self, path: &str) -> Result<Paths, E> {
                Ok(Paths(vec![path.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Paths, A::Error> {
                let mut paths = Vec::new();
                while let Some(path) = list.next_element()? {
                    paths.push(path);
                }
                Ok(Paths(paths))
            }
        }

        deserializer.deserialize_any(PathsVisitor)
    }
}

impl JsonSchema for Paths {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Paths".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [
            {"type": "string"},
            {"type": "array", "minItems": 1, "maxItems": PATHS_MAX, "items": {"type": "string"}},
        ]})
    }
}
