//! Tree to schema: a small serde deserializer over [`Node`] that keeps the place of every fault.
//!
//! Serde stops at the first fault. To report all of them, the faulty node is struck out and the tree is read
//! again, until nothing faulty is left; the result is used only when nothing had to be struck. Knows serde's
//! data model, and nothing of what the keys mean.

use std::collections::HashSet;
use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{
    self, Deserialize, DeserializeSeed, Deserializer, EnumAccess, Expected, IntoDeserializer, MapAccess,
    SeqAccess, Unexpected, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use super::problem::{Mark, Report, index_path, key_path, unknown};
use super::schema;
use super::yaml::{Entry, Kind, Node, Scalar, Value};

/// The most readings, so the most faults of shape that are reported at once.
const READINGS_MAX: usize = 100;

/// Reads the tree as the schema says, or reports every fault of shape. Nodes in `struck` are known to be faulty.
pub(crate) fn decode(root: &Node, mut struck: HashSet<u32>, report: &mut Report) -> Option<schema::File> {
    for _ in 0..READINGS_MAX {
        let error = match schema::File::deserialize(Reader { node: root, struck: &struck }) {
            Ok(file) if struck.is_empty() => return Some(file),
            Ok(_) => return None,
            Err(error) => error.or_at(root.id, Part::Value),
        };
        let (id, part) = error.spot.unwrap_or((root.id, Part::Value));
        let found = locate(root, id, String::new(), root.mark)?;
        // A key that is struck out is not missing, and a misspelt one has been reported by its own name.
        if !(error.missing && has_struck_child(found.node, &struck)) {
            let mark = if part == Part::Key { found.key_mark } else { found.node.mark };
            report.add(mark, found.path, error.message);
        }
        if id == root.id || !struck.insert(id) {
            return None;
        }
    }
    None
}

/// A fault of shape. Its message never holds a value, which may be a secret.
#[derive(Debug)]
struct Error {
    message: String,
    missing: bool,
    spot: Option<(u32, Part)>,
}

/// Which part of an entry a fault is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Key,
    Value,
}

impl Error {
    fn new(message: impl Into<String>) -> Error {
        Error { message: message.into(), missing: false, spot: None }
    }

    /// Gives the fault its place, unless a deeper one is known.
    fn or_at(mut self, id: u32, part: Part) -> Error {
        self.spot.get_or_insert((id, part));
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
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
        Error::new(format!("expected {expected}, found {found}"))
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn Expected) -> Error {
        Error::new(format!("expected {expected}"))
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Error {
        Error::new(unknown("key", field, expected.iter().copied()))
    }

    fn missing_field(field: &'static str) -> Error {
        Error { missing: true, ..Error::new(format!("the key `{field}` is missing")) }
    }
}

/// What a search in the tree finds.
struct Found<'a> {
    node: &'a Node,
    key_mark: Mark,
    path: String,
}

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
            .find_map(|entry| locate(&entry.value, id, key_path(&path, &entry.key), entry.key_mark)),
    }
}

fn has_struck_child(node: &Node, struck: &HashSet<u32>) -> bool {
    match &node.value {
        Value::Mapping(entries) => entries.iter().any(|entry| struck.contains(&entry.value.id)),
        Value::Scalar(_) | Value::List(_) => false,
    }
}

/// Reads one node; what is struck out is not there.
#[derive(Clone, Copy)]
struct Reader<'a> {
    node: &'a Node,
    struck: &'a HashSet<u32>,
}

impl<'a> Reader<'a> {
    fn at(self, node: &'a Node) -> Reader<'a> {
        Reader { node, ..self }
    }

    fn entries(self, entries: &'a [Entry]) -> Entries<'a> {
        Entries { reader: self, left: entries.iter(), value: None }
    }

    /// That the node is not what was expected.
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
        Error::new(format!("expected {expected}, found {found}"))
    }

    /// The node as a scalar with its meaning, unless it is a collection or empty.
    fn scalar(self, expected: &str) -> Result<(&'a Scalar, Kind), Error> {
        match &self.node.value {
            Value::Scalar(scalar) if scalar.resolve() != Kind::Null => Ok((scalar, scalar.resolve())),
            _ => Err(self.wrong(expected)),
        }
    }
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
            (scalar, kind) if kind == Kind::Text || scalar.interpolated => visitor.visit_str(&scalar.text),
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
                return Err(Error::new(message).or_at(inner.node.id, Part::Key));
            }
            return visitor.visit_enum(Variant { name: &entry.key, inner: Some(inner) });
        }
        let (scalar, kind) = self.scalar(&expected)?;
        let name = match kind {
            // `off` and `false` are the same.
            Kind::Bool(false) if variants.contains(&"off") => "off",
            Kind::Text => scalar.text.as_str(),
            _ => return Err(self.wrong(&expected)),
        };
        if variants.contains(&name) {
            return visitor.visit_enum(Variant { name, inner: None });
        }
        if scalar.interpolated {
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
        seed.deserialize(self.reader.at(item)).map(Some).map_err(|error| error.or_at(item.id, Part::Value))
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
        seed.deserialize(key).map(Some).map_err(|error| error.or_at(entry.value.id, Part::Key))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let node = self.value.take().ok_or_else(|| Error::new("a value without its key"))?;
        seed.deserialize(self.reader.at(node)).map_err(|error| error.or_at(node.id, Part::Value))
    }
}

/// `name`, or `{name: inner}`.
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
                Err(Error::new(message).or_at(inner.node.id, Part::Key))
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
        seed.deserialize(inner).map_err(|error| error.or_at(inner.node.id, Part::Value))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, Error> {
        Err(Error::new("a value of this form cannot be written"))
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], _: V) -> Result<V::Value, Error> {
        Err(Error::new("a value of this form cannot be written"))
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
        let file = decode(&root, HashSet::new(), &mut report);
        assert_eq!(file.is_some(), report.is_empty(), "{text}");
        report.into_problems().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_whole_file_is_read() {
        let text = "listen: 0.0.0.0:80\nstore: {redis: {url: 'redis://x'}}\nlimiters:\n  b: {limits: [1/s]}\n  \
                    a: {limits: [{rate: 1, per: 1mo}], queue: false}\nroutes: []\n";
        assert_eq!(problems(text), [""; 0]);
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
            "f:5:28: log.access: expected true or false, found a text",
            "f:6:1: admin: the value is empty; expected a mapping",
            "f:7:8: store: `redis` needs settings: a mapping below it",
            "f:9:15: limiters.a.limits: expected a list, found a text",
            "f:10:7: limiters.b.limts: unknown key \"limts\"; did you mean \"limits\"?",
            "f:11:16: limiters.c.limits[0]: expected a limit such as 900/1m or 20/s, or {rate: 900, per: 1m}, \
             found a number",
            "f:11:26: limiters.c.limits[1].rate: expected a whole number that fits into 64 bits",
            "f:11:41: limiters.c.limits[2]: the key `per` is missing",
            "f:11:70: limiters.c.queue.timeout: expected a duration with a unit, such as 250ms, 10s, 1m, 1h or \
             1d, found a number",
            "f:11:74: limiters.c.queue.max: unknown key \"max\"; known: timeout, max_waiting",
            "f:13:12: routes[0].name: expected a text (put it in quotes), found a number",
            "f:13:36: routes[0].upstream: expected a URL such as https://api.example.com, or a mapping with `url`, \
             found a number",
            "f:14:20: routes[1].match.path: expected a text, found a list",
            "f:14:37: routes[1].upstream.ur: unknown key \"ur\"; did you mean \"url\"?",
        ];
        assert_eq!(problems(text), expected);
    }

    #[test]
    fn a_missing_key_is_placed_at_its_mapping() {
        assert_eq!(problems("listen: 0.0.0.0:80\n"), ["f:1:1: the key `routes` is missing"]);
        assert_eq!(
            problems("listen: a\nlimiters:\n  x:\n    queue: off\nroutes: []\n"),
            ["f:4:5: limiters.x: the key `limits` is missing"]
        );
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
