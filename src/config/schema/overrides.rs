//! `overrides`: limits by the value of a limiter's key, written in place or in a file of their own.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Unexpected, Visitor};

use super::forms::Named;
use super::limit::Limits;

/// The key of the path of a file. With a list of limits it is a value like any other.
const FILE: &str = "file";

/// The limits of some values of a limiter's key.
#[derive(Debug)]
pub(crate) struct Overrides {
    /// The path of the file with the mapping.
    pub(crate) file: Option<String>,
    /// The mapping from values to limits.
    pub(crate) named: Named<Limits>,
}

/// The file with the limits of some values of a limiter's key.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[allow(dead_code, reason = "a part of the schema alone")]
struct OverridesFile {
    /// A YAML file: a mapping from values of the key to their limits, as in place. It is followed as the configuration is: a changed
    /// file is put in force as a whole, and a faulty one changes nothing. Up to 8 MiB and 50000 values. Required.
    #[schemars(extend("examples" = ["plans.yaml"]))]
    file: String,
}

impl<'de> Deserialize<'de> for Overrides {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Overrides, D::Error> {
        struct OverridesVisitor;

        impl<'de> Visitor<'de> for OverridesVisitor {
            type Value = Overrides;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a mapping")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Overrides, A::Error> {
                let mut overrides = Overrides { file: None, named: Named(Vec::new()) };
                while let Some(value) = map.next_key::<String>()? {
                    if value != FILE {
                        overrides.named.0.push((value, map.next_value()?));
                        continue;
                    }
                    match map.next_value()? {
                        PathOrLimits::Path(path) => overrides.file = Some(path),
                        PathOrLimits::Limits(limits) => overrides.named.0.push((value, limits)),
                    }
                }
                Ok(overrides)
            }
        }

        deserializer.deserialize_map(OverridesVisitor)
    }
}

impl JsonSchema for Overrides {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Overrides".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut limits = generator.subschema_for::<Limits>();
        limits.insert("minItems".to_owned(), 1.into());
        limits.insert("maxItems".to_owned(), 16.into());
        let file = generator.subschema_for::<OverridesFile>();
        json_schema!({"anyOf": [{"type": "object", "additionalProperties": limits}, file]})
    }
}

/// The value of the key `file`.
enum PathOrLimits {
    Path(String),
    Limits(Limits),
}

impl<'de> Deserialize<'de> for PathOrLimits {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PathOrLimits, D::Error> {
        struct PathOrLimitsVisitor;

        impl<'de> Visitor<'de> for PathOrLimitsVisitor {
            type Value = PathOrLimits;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("the path of a file, or a list")
            }

            fn visit_str<E: Error>(self, path: &str) -> Result<PathOrLimits, E> {
                if path.is_empty() {
                    return Err(E::invalid_value(Unexpected::Str(path), &self));
                }
                Ok(PathOrLimits::Path(path.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<PathOrLimits, A::Error> {
                Limits::deserialize(SeqAccessDeserializer::new(list)).map(PathOrLimits::Limits)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<PathOrLimits, A::Error> {
                Limits::deserialize(MapAccessDeserializer::new(map)).map(PathOrLimits::Limits)
            }
        }

        deserializer.deserialize_any(PathOrLimitsVisitor)
    }
}
