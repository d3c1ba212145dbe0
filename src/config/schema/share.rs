//! `limiters.NAME.share`: how callers share a quota.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};

use super::forms::{NAME_PATTERN, Named, Text};
use crate::config::units;

/// How callers share the quota: who goes first, and how much each gets.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct QuotaShare {
    /// The names of a caller: `client` (with `clients`), `header:NAME`, `query:NAME`, `json:PATH` (a value of the JSON body; see `body` of the route) or `route`, or a list of them. Requests of one caller are a
    /// flow; the flows of a class get equal parts, or parts by their `weights`. Required.
    #[schemars(extend("examples" = ["client", ["client", "header:x-team"]]))]
    pub(crate) by: OneOrMore,
    /// The weights of flows within their class, 1 to 1000, by the value of `by`, of its first where it has several. Others have the weight 1.
    #[schemars(extend("examples" = [{"billing": 3}]))]
    pub(crate) weights: Option<Named<i64>>,
    /// One to four classes. As long as the first has a request that may go, no other goes; who is in none is in the last. Default: one
    /// class of all callers.
    #[schemars(extend("minItems" = 1, "maxItems" = 4, "examples" = [
        [{"name": "interactive", "of": ["web"], "floor": "20%"}, {"name": "batch", "ceiling": "70%"}],
    ]))]
    pub(crate) classes: Option<Vec<Class>>,
    /// How far ahead of the present slots are dealt, 50ms to 1s. A request of the first class waits about so long behind others. Default
    /// `250ms`.
    #[schemars(extend("examples" = ["100ms"]))]
    pub(crate) ahead: Option<Text<Duration>>,
}

/// A class of callers.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Class {
    /// The name, in metrics and responses. Required.
    #[schemars(regex(pattern = NAME_PATTERN), extend("examples" = ["interactive"]))]
    pub(crate) name: String,
    /// The callers in it: values of `by`, of its first where it has several. Default: those that are in no other class, in the last one.
    #[schemars(extend("examples" = [["web", "chat"]]))]
    pub(crate) of: Option<Vec<String>>,
    /// The part of each window that the other classes together leave it, rounded in its favour. Default `0%`.
    #[schemars(extend("examples" = ["20%"]))]
    pub(crate) floor: Option<Text<units::Share>>,
    /// The most that it gets of each window, rounded down to whole permits. Default `100%`.
    #[schemars(extend("examples" = ["70%"]))]
    pub(crate) ceiling: Option<Text<units::Share>>,
    /// Its part of the queue, in place of the limiter's `queue`.
    #[schemars(extend("examples" = [{"timeout": "30m", "max_waiting": 50000}]))]
    pub(crate) queue: Option<ClassQueue>,
}

/// The queue of a class.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClassQueue {
    /// The longest wait of a request, 1ms to 1d. Default: that of the limiter's `queue`.
    #[schemars(extend("examples" = ["30m"]))]
    pub(crate) timeout: Option<Text<Duration>>,
    /// The most requests of the class waiting at once, 1 to 1000000. Default: that of the limiter's `queue`.
    #[schemars(range(min = 1, max = 1_000_000), extend("examples" = [50000]))]
    pub(crate) max_waiting: Option<i64>,
}

/// A text, or a list of texts.
#[derive(Debug)]
pub(crate) enum OneOrMore {
    /// A text.
    One(String),
    /// A list.
    More(Vec<String>),
}

impl<'de> Deserialize<'de> for OneOrMore {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<OneOrMore, D::Error> {
        struct OneOrMoreVisitor;

        impl<'de> Visitor<'de> for OneOrMoreVisitor {
            type Value = OneOrMore;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a text, or a list of texts")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<OneOrMore, E> {
                Ok(OneOrMore::One(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<OneOrMore, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list)).map(OneOrMore::More)
            }
        }

        deserializer.deserialize_any(OneOrMoreVisitor)
    }
}

impl JsonSchema for OneOrMore {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "OneOrMore".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [
            {"type": "string"},
            {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 4},
        ]})
    }
}
