//! The building blocks of the schema: texts with a unit, values with a short and a long form, `off`, named values.
//!
//! Each implements both reading and the JSON Schema, so that `check` and the schema agree.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{
    Deserialize, Deserializer, Error, Expected, IntoDeserializer, MapAccess, SeqAccess, Unexpected, Visitor,
};

use crate::config::faults;
use crate::config::model::Leave;
use crate::config::units::{self, Per, Quota, Share, Size};

/// The pattern of names of limiters, routes, clients and groups.
pub(crate) const NAME_PATTERN: &str = "^[A-Za-z0-9_.-]{1,64}$";

/// A value written as a text of a fixed form, such as a duration.
pub(crate) trait FromText: Sized {
    /// The form, for messages.
    const EXPECTED: &'static str;
    /// The form as a regular expression.
    const PATTERN: &'static str;
    /// The parser.
    const PARSE: fn(&str) -> Option<Self>;
    /// The faulty part of a text that the parser does not take.
    const FAULT: fn(&str) -> String;
}

impl FromText for Duration {
    const EXPECTED: &'static str = "a duration with a unit, such as 250ms, 10s, 1m, 1h or 1d";
    const PATTERN: &'static str = "^[0-9]+(ms|s|m|h|d)$";
    const PARSE: fn(&str) -> Option<Self> = units::duration;
    const FAULT: fn(&str) -> String = faults::duration;
}

impl FromText for Size {
    const EXPECTED: &'static str = "a size with a unit, such as 512B, 64KiB or 1MiB";
    const PATTERN: &'static str = "^[0-9]+(B|KiB|MiB|GiB)$";
    const PARSE: fn(&str) -> Option<Self> = units::size;
    const FAULT: fn(&str) -> String = faults::size;
}

impl FromText for Share {
    const EXPECTED: &'static str = "a percentage, such as 1% or 0.5%";
    const PATTERN: &'static str = "^[0-9]+(\\.[0-9]{1,4})?%$";
    const PARSE: fn(&str) -> Option<Self> = units::share;
    const FAULT: fn(&str) -> String = faults::share;
}

impl FromText for Leave {
    const EXPECTED: &'static str = "auto, a percentage such as 20%, or a duration such as 500ms";
    const PATTERN: &'static str = "^(auto|[0-9]+(\\.[0-9]{1,4})?%|[0-9]+(ms|s|m|h|d))$";
    const PARSE: fn(&str) -> Option<Self> = units::leave;
    const FAULT: fn(&str) -> String = faults::leave;
}

impl FromText for Per {
    const EXPECTED: &'static str = "the length of the window with a unit, such as 1s, 1m, 1h or 1d";
    const PATTERN: &'static str = "^([0-9]+(ms|s|m|h|d)|1w|1mo)$";
    const PARSE: fn(&str) -> Option<Self> = units::per;
    const FAULT: fn(&str) -> String = faults::per;
}

impl FromText for Quota {
    const EXPECTED: &'static str = "a limit such as 900/1m or 20/s, or {rate: 900, per: 1m}";
    const PATTERN: &'static str = "^[0-9]+/[0-9]*(ms|s|m|h|d)$";
    const PARSE: fn(&str) -> Option<Self> = units::quota;
    const FAULT: fn(&str) -> String = faults::quota;
}

/// A value in its textual form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Text<T>(pub(crate) T);

impl<'de, T: FromText> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text<T>, D::Error> {
        struct TextVisitor<T>(PhantomData<T>);

        impl<T: FromText> Visitor<'_> for TextVisitor<T> {
            type Value = Text<T>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(T::EXPECTED)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Text<T>, E> {
                // The reader tells a fault apart from a value by `Other`.
                (T::PARSE)(text)
                    .map(Text)
                    .ok_or_else(|| E::invalid_value(Unexpected::Other(&(T::FAULT)(text)), &self))
            }
        }

        deserializer.deserialize_any(TextVisitor(PhantomData))
    }
}

impl<T: FromText> JsonSchema for Text<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        T::PATTERN.into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "pattern": T::PATTERN})
    }
}

/// The short form of a value that also has a long form.
pub(crate) trait ShortForm {
    /// Returns the faulty part of a text, if it can be told.
    fn fault(_text: &str) -> Option<String> {
        None
    }
}

impl ShortForm for String {}
impl ShortForm for bool {}

impl<T: FromText> ShortForm for Text<T> {
    fn fault(text: &str) -> Option<String> {
        Some((T::FAULT)(text))
    }
}

/// The long form of a value that also has a short form.
pub(crate) trait LongForm {
    /// Both forms, for messages.
    const EXPECTED: &'static str;
}

// A scalar, or a mapping with more keys. (A doc comment would become a description in the schema.)
#[derive(Debug, Clone, JsonSchema)]
#[schemars(untagged, inline)]
pub(crate) enum Form<S, L> {
    Short(S),
    Long(L),
}

impl<'de, S: Deserialize<'de> + ShortForm, L: Deserialize<'de> + LongForm> Deserialize<'de> for Form<S, L> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Form<S, L>, D::Error> {
        struct FormVisitor<S, L>(PhantomData<(S, L)>);

        impl<'de, S: Deserialize<'de> + ShortForm, L: Deserialize<'de> + LongForm> Visitor<'de>
            for FormVisitor<S, L>
        {
            type Value = Form<S, L>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(L::EXPECTED)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Form<S, L>, E> {
                let mut short = S::deserialize(IntoDeserializer::<E>::into_deserializer(text));
                // `off` and `false` are the same.
                if short.is_err() && text == "off" {
                    short = S::deserialize(IntoDeserializer::<E>::into_deserializer(false));
                }
                short.map(Form::Short).map_err(|_| wrong(text, S::fault(text).as_deref(), &self))
            }

            fn visit_bool<E: Error>(self, on: bool) -> Result<Form<S, L>, E> {
                let short = S::deserialize(IntoDeserializer::<E>::into_deserializer(on));
                short.map(Form::Short).map_err(|_| E::invalid_type(Unexpected::Bool(on), &self))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Form<S, L>, E> {
                let short = S::deserialize(IntoDeserializer::<E>::into_deserializer(number));
                short.map(Form::Short).map_err(|_| E::invalid_type(Unexpected::Signed(number), &self))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Form<S, L>, A::Error> {
                L::deserialize(serde::de::value::MapAccessDeserializer::new(map)).map(Form::Long)
            }
        }

        deserializer.deserialize_any(FormVisitor(PhantomData))
    }
}

/// Returns the error of a wrong text: with its faulty part, or with the form that is wanted.
fn wrong<E: Error>(text: &str, fault: Option<&str>, expected: &dyn Expected) -> E {
    E::invalid_value(fault.map_or(Unexpected::Str(text), Unexpected::Other), expected)
}

/// Settings that can be switched `off`.
pub(crate) trait Setting {
    /// `off` and the settings, for messages.
    const EXPECTED: &'static str;
    /// True for a list, false for a mapping or a scalar.
    const IS_LIST: bool = false;

    /// Returns the faulty part of a text, if it can be told.
    fn fault(_text: &str) -> Option<String> {
        None
    }
}

/// `off`, or settings.
#[derive(Debug, Clone)]
pub(crate) enum OffOr<T> {
    Off,
    On(T),
}

impl<'de, T: Deserialize<'de> + Setting> Deserialize<'de> for OffOr<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<OffOr<T>, D::Error> {
        struct OffVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de> + Setting> Visitor<'de> for OffVisitor<T> {
            type Value = OffOr<T>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(T::EXPECTED)
            }

            fn visit_bool<E: Error>(self, on: bool) -> Result<OffOr<T>, E> {
                if on { Err(E::invalid_value(Unexpected::Bool(on), &self)) } else { Ok(OffOr::Off) }
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<OffOr<T>, E> {
                if text == "off" {
                    return Ok(OffOr::Off);
                }
                let on = T::deserialize(IntoDeserializer::<E>::into_deserializer(text));
                on.map(OffOr::On).map_err(|_| wrong(text, T::fault(text).as_deref(), &self))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<OffOr<T>, A::Error> {
                // A derived mapping would take a list as its values in order.
                if !T::IS_LIST {
                    return Err(A::Error::invalid_type(Unexpected::Seq, &self));
                }
                T::deserialize(serde::de::value::SeqAccessDeserializer::new(list)).map(OffOr::On)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<OffOr<T>, A::Error> {
                if T::IS_LIST {
                    return Err(A::Error::invalid_type(Unexpected::Map, &self));
                }
                T::deserialize(serde::de::value::MapAccessDeserializer::new(map)).map(OffOr::On)
            }
        }

        deserializer.deserialize_any(OffVisitor(PhantomData))
    }
}

impl<T: JsonSchema> JsonSchema for OffOr<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("OffOr{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"type": "string", "enum": ["off"]}, generator.subschema_for::<T>()]})
    }
}

/// A mapping whose keys the user chooses, in the order of the file.
#[derive(Debug, Clone, JsonSchema)]
#[schemars(inline)]
pub(crate) struct Named<T>(#[schemars(with = "BTreeMap<String, T>")] pub(crate) Vec<(String, T)>);

impl<T> Named<T> {
    /// Iterates over keys and values.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &T)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Named<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Named<T>, D::Error> {
        struct NamedVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for NamedVisitor<T> {
            type Value = Named<T>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a mapping of names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Named<T>, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Named(entries))
            }
        }

        deserializer.deserialize_map(NamedVisitor(PhantomData))
    }
}
