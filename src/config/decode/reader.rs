//! A serde deserializer over [`Node`] that keeps the place of a fault. Knows serde's data model, and no key.

use std::collections::HashSet;
use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeSeed, Deserializer, EnumAccess, Expected, IntoDeserializer, MapAccess, SeqAccess,
    Unexpected, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use crate::config::faults;
use crate::config::problem::{quoted, unknown};
use crate::config::yaml::{Entry, Kind, Node, Origin, Scalar, Value};

/// A fault of shape.
#[derive(Debug)]
pub(super) struct Error {
    message: String,
    /// An example of the expected form.
    example: Option<&'static str>,
    /// The kind of value that was found.
    instead: Option<&'static str>,
    /// The value that was found, if its form is wrong. Never an interpolated value: it may be a secret.
    found: Option<String>,
    /// The faulty part of the value, in place of all that. Never of an interpolated value.
    fault: Option<String>,
    /// True if a key is missing.
    pub(super) missing: bool,
    /// The id of the faulty node, and the part of its entry.
    pub(super) spot: Option<(u32, Part)>,
}

/// The part of an entry that is faulty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Key,
    Value,
}

impl Error {
    fn new(message: impl Into<String>) -> Error {
        let message = message.into();
        Error { message, example: None, instead: None, found: None, fault: None, missing: false, spot: None }
    }

    fn instead(expected: impl fmt::Display, found: &'static str) -> Error {
        Error { instead: Some(found), ..Error::new(format!("expected {expected}")) }
    }

    /// Adds an example, if a list or a mapping is expected. `examples` gets its opening bracket.
    pub(super) fn with_example(mut self, examples: impl FnOnce(char) -> Option<&'static str>) -> Error {
        let open = [("a list", '['), ("a mapping", '{')];
        let open = open.iter().find(|(expected, _)| self.message.ends_with(expected));
        self.example = open.and_then(|(_, open)| examples(*open));
        self
    }

    /// Sets the fault's place, unless a deeper node has set it.
    pub(super) fn or_at(mut self, node: &Node, part: Part) -> Error {
        if self.spot.is_none() {
            self.spot = Some((node.id, part));
            self.found.take_if(|_| node.is_interpolated());
            self.fault.take_if(|_| node.is_interpolated());
        }
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(fault) = &self.fault {
            return formatter.write_str(fault);
        }
        formatter.write_str(&self.message)?;
        if let Some(example) = self.example {
            write!(formatter, " such as {example}")?;
        }
        match (&self.found, self.instead) {
            (Some(found), _) => write!(formatter, ", found {}", quoted(found)),
            (None, Some(instead)) => write!(formatter, ", found {instead}"),
            (None, None) => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

impl de::Error for Error {
    fn custom<T: fmt::Display>(message: T) -> Error {
        Error::new(message.to_string())
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Error {
        let found = match found {
            Unexpected::Bool(_) => "true or false",
            Unexpected::Signed(_) | Unexpected::Unsigned(_) | Unexpected::Float(_) => "a number",
            Unexpected::Str(_) => "another text",
            Unexpected::Seq => "a list",
            Unexpected::Map => "a mapping",
            _ => "something else",
        };
        Error::instead(expected, found)
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Error {
        let error = Error::new(format!("expected {expected}"));
        match found {
            Unexpected::Str(text) => Error { found: Some(text.to_owned()), ..error },
            Unexpected::Other(fault) => Error { fault: Some(fault.to_owned()), ..error },
            _ => error,
        }
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Error {
        // Inside `{ }`, `level:info` is a key without a value. What stands behind the colon may be a secret.
        let name = match field.split_once(':') {
            Some((name, rest)) if expected.contains(&name) => {
                return Error::new(faults::colon(name, rest.chars().next()));
            }
            Some((name, _)) => name,
            None => field,
        };
        Error::new(unknown("key", name, expected.iter().copied()))
    }

    fn missing_field(field: &'static str) -> Error {
        Error { missing: true, ..Error::new(format!("the key `{field}` is missing")) }
    }
}

/// Reads one node. Struck-out nodes below it are skipped.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    pub(super) node: &'a Node,
    pub(super) struck: &'a HashSet<u32>,
}

impl<'a> Reader<'a> {
    fn at(self, node: &'a Node) -> Reader<'a> {
        Reader { node, ..self }
    }

    fn entries(self, entries: &'a [Entry]) -> Entries<'a> {
        Entries { reader: self, left: entries.iter(), value: None }
    }

    /// Returns the fault of a node that is not of the expected kind.
    fn wrong(self, expected: &str) -> Error {
        let found = match &self.node.value {
            Value::List(_) => "a list",
            Value::Mapping(_) => "a mapping",
            Value::Scalar(scalar) => match scalar.resolve() {
                Kind::Null => return Error::new(format!("the value is empty; expected {expected}")),
                Kind::Bool(_) => "true or false",
                Kind::Int(_) | Kind::Float(_) => "a number",
                Kind::Text => "a text",
            },
        };
        let mut error = Error::instead(expected, found);
        if let (Some((key, next)), true) =
            (self.node.text().and_then(joined_key), expected.ends_with("a mapping"))
        {
            error.message = faults::colon(key, Some(next));
            error.instead = None;
        }
        error
    }

    /// Returns the node as a scalar with its kind, unless it is a collection or empty.
    fn scalar(self, expected: &str) -> Result<(&'a Scalar, Kind), Error> {
        match &self.node.value {
            Value::Scalar(scalar) if scalar.resolve() != Kind::Null => Ok((scalar, scalar.resolve())),
            _ => Err(self.wrong(expected)),
        }
    }
}

/// Returns the key of a text such as `drain_delay:5s`, in which a space is missing, and the character behind its colon.
fn joined_key(text: &str) -> Option<(&str, char)> {
    let (key, value) = text.split_once(':')?;
    let is_key = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let next = value.chars().next()?;
    (is_key && !value.starts_with("//")).then_some((key, next))
}

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.node.value {
            Value::List(_) => self.deserialize_seq(visitor),
            Value::Mapping(entries) => visitor.visit_map(self.entries(entries)),
            Value::Scalar(scalar) => match scalar.resolve() {
                Kind::Null => Err(self.wrong(&(&visitor as &dyn Expected).to_string())),
                Kind::Bool(value) => visitor.visit_bool(value),
                Kind::Int(value) => visitor.visit_i64(value),
                Kind::Float(value) => visitor.visit_f64(value),
                Kind::Text => visitor.visit_str(&scalar.text),
            },
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let expected = "true or false";
        match self.scalar(expected)? {
            (_, Kind::Bool(value)) => visitor.visit_bool(value),
            (scalar, Kind::Text) if scalar.text == "off" => visitor.visit_bool(false),
            _ => Err(self.wrong(expected)),
        }
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let expected = "a whole number";
        match self.scalar(expected)? {
            (_, Kind::Int(value)) => visitor.visit_i64(value),
            (_, Kind::Float(_)) => Err(Error::new("expected a whole number that fits into 64 bits")),
            _ => Err(self.wrong(expected)),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.scalar("a text")? {
            (scalar, kind) if kind == Kind::Text || scalar.origin == Origin::Interpolated => {
                visitor.visit_str(&scalar.text)
            }
            _ => Err(self.wrong("a text (put it in quotes)")),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.node.value {
            Value::List(items) => visitor.visit_seq(Items { reader: self, left: items.iter() }),
            Value::Scalar(_) | Value::Mapping(_) => Err(self.wrong("a list")),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.node.value {
            Value::Mapping(entries) => visitor.visit_map(self.entries(entries)),
            Value::Scalar(_) | Value::List(_) => Err(self.wrong("a mapping")),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_map(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let expected = format!("one of {}", variants.join(", "));
        if let Value::Mapping(entries) = &self.node.value {
            let [entry] = entries.as_slice() else { return Err(self.wrong(&expected)) };
            let inner = self.at(&entry.value);
            if !variants.contains(&entry.key.as_str()) {
                let message = unknown("key", &entry.key, variants.iter().copied());
                return Err(Error::new(message).or_at(inner.node, Part::Key));
            }
            return visitor.visit_enum(Variant { name: &entry.key, inner: Some(inner) });
        }
        let (scalar, kind) = self.scalar(&expected)?;
        let name = match kind {
            // `off` means the same as `false`, so a key that knows `off` takes either.
            Kind::Bool(false) if variants.contains(&"off") => "off",
            Kind::Text => scalar.text.as_str(),
            _ => return Err(self.wrong(&expected)),
        };
        if variants.contains(&name) {
            return visitor.visit_enum(Variant { name, inner: None });
        }
        if scalar.origin == Origin::Interpolated {
            return Err(Error::new(format!("expected {expected}")));
        }
        Err(Error::new(unknown("value", name, variants.iter().copied())))
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct
    }
}

struct Items<'a> {
    reader: Reader<'a>,
    left: std::slice::Iter<'a, Node>,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        let Some(item) = self.left.find(|item| !self.reader.struck.contains(&item.id)) else {
            return Ok(None);
        };
        seed.deserialize(self.reader.at(item)).map(Some).map_err(|error| error.or_at(item, Part::Value))
    }
}

struct Entries<'a> {
    reader: Reader<'a>,
    left: std::slice::Iter<'a, Entry>,
    value: Option<&'a Node>,
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let Some(entry) = self.left.find(|entry| !self.reader.struck.contains(&entry.value.id)) else {
            return Ok(None);
        };
        self.value = Some(&entry.value);
        let key: StrDeserializer<'_, Error> = entry.key.as_str().into_deserializer();
        seed.deserialize(key).map(Some).map_err(|error| error.or_at(&entry.value, Part::Key))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let node = self.value.take().ok_or_else(|| Error::new("a value without its key"))?;
        seed.deserialize(self.reader.at(node)).map_err(|error| error.or_at(node, Part::Value))
    }
}

/// A variant of an enum, written `name` or `{name: inner}`.
struct Variant<'a> {
    name: &'a str,
    inner: Option<Reader<'a>>,
}

impl<'de> EnumAccess<'de> for Variant<'_> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Error> {
        let name: StrDeserializer<'_, Error> = self.name.into_deserializer();
        seed.deserialize(name).map(|variant| (variant, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        match self.inner {
            None => Ok(()),
            Some(inner) => {
                let message = format!("`{}` takes no settings; write it as the value itself", self.name);
                Err(Error::new(message).or_at(inner.node, Part::Key))
            }
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        let Some(inner) = self.inner else {
            return Err(Error::new(format!("`{}` needs settings: a mapping below it", self.name)));
        };
        if inner.struck.contains(&inner.node.id) {
            return Err(Error { missing: true, ..Error::new(format!("`{}` is missing", self.name)) });
        }
        seed.deserialize(inner).map_err(|error| error.or_at(inner.node, Part::Value))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, Error> {
        Err(Error::new("a value of this form cannot be written"))
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], _: V) -> Result<V::Value, Error> {
        Err(Error::new("a value of this form cannot be written"))
    }
}
