//! The partition that a query names: a value for each part of the limiter's key, read as in requests.
//!
//! A name that no request can have is refused: an action on it would be confirmed, and change nothing.

use std::borrow::Cow;

use serde_json::{Map, Value};
use url::form_urlencoded;

use crate::config::model::{Config, KeyPart};
use crate::limiter::Partition;
use crate::limiter::model::limit::LimiterName;

/// The value of a credential, as it is shown.
const HIDDEN: &str = "***";

/// A partition with the values that it has in requests.
#[derive(Debug, PartialEq)]
pub(super) struct NamedPartition {
    pub(super) partition: Partition,
    /// The values by the parts of the key, as JSON. Credentials are hidden.
    pub(super) shown: Value,
}

impl NamedPartition {
    /// Reads `values` as those of the parts of `key`.
    ///
    /// # Errors
    /// The reason why no request has these values.
    pub(super) fn read(key: &[KeyPart], values: &[Cow<'_, str>]) -> Result<Self, String> {
        if values.len() != key.len() {
            let parts: Vec<String> = key.iter().map(KeyPart::to_string).collect();
            let (has, given) = (counted(key.len(), "part"), counted(values.len(), "value"));
            return Err(format!(
                "this key has {has}: {}; expected as many values, found {given}",
                parts.join(", ")
            ));
        }
        let read = key.iter().zip(values).map(|(part, value)| part.read_as(value).map_err(str::to_owned));
        let read = read.collect::<Result<Vec<_>, _>>()?;
        let shown = key.iter().zip(&read).map(|(part, value)| {
            let value = if part.is_credential() { HIDDEN } else { value };
            (part.to_string(), Value::from(value))
        });
        Ok(NamedPartition {
            partition: Partition::of(read.iter().map(|value| Some(value.as_bytes()))),
            shown: shown.collect::<Map<_, _>>().into(),
        })
    }
}

fn counted(count: usize, of: &str) -> String {
    format!("{count} {of}{}", if count == 1 { "" } else { "s" })
}

/// Returns the values that a query names: `partition=VALUE`, once for each part of a key.
pub(super) fn values(query: Option<&str>) -> Vec<Cow<'_, str>> {
    let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    pairs.filter(|(name, _)| name == "partition").map(|(_, value)| value).collect()
}

/// Returns the partition that a query names for a limiter, for the log; also where it was refused.
pub(super) fn logged(
    config: &Config,
    limiter: Option<&LimiterName>,
    query: Option<&str>,
) -> Option<Partition> {
    let values = values(query);
    let named = limiter.and_then(|limiter| config.keys.get(limiter));
    let named = named.and_then(|key| NamedPartition::read(key, &values).ok());
    let as_given = || Partition::of(values.iter().map(|value| Some(value.as_bytes())));
    (!values.is_empty()).then(|| named.map_or_else(as_given, |named| named.partition))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::config;

    const KEYS: &str = "\
clients: {billing: {tokens: [t0ken]}}
limiters:
  two: {limits: [9/1s], key: ['header:x-t', 'path:1']}
  host: {limits: [9/1s], key: [host]}
  address: {limits: [9/1s], key: [client_ip]}
  model: {limits: [9/1s], key: [{json: model, map: {'claude-opus-4*': opus}}]}
  client: {limits: [9/1s], key: [client]}
  secret: {limits: [9/1s], key: ['header:x-api-key']}
routes: [{name: a, match: {}, upstream: 'http://a', limiters: off}]
";

    fn read(limiter: &str, query: &str) -> Result<NamedPartition, String> {
        let config = config::parse(Path::new("weir.yaml"), KEYS).unwrap().config;
        let key = &config.keys[&LimiterName::parse(limiter).unwrap()];
        NamedPartition::read(key, &values(Some(query)))
    }

    fn of(parts: &[&str]) -> Partition {
        Partition::of(parts.iter().map(|part| Some(part.as_bytes())))
    }

    #[test]
    fn values_are_read_as_in_requests() {
        for (limiter, query, expected, shown) in [
            // Decoded as in a limiter's key.
            (
                "two",
                "partition=a%20b&other=x&partition=c+d",
                &["a b", "c d"][..],
                json!({"header:x-t": "a b", "path:1": "c d"}),
            ),
            ("host", "partition=API.Example.com.", &["api.example.com"], json!({"host": "api.example.com"})),
            ("host", "partition=[2001:DB8::1]", &["[2001:db8::1]"], json!({"host": "[2001:db8::1]"})),
            ("address", "partition=::ffff:127.0.0.1", &["127.0.0.1"], json!({"client_ip": "127.0.0.1"})),
            (
                "address",
                "partition=2001:db8:1:2:3::4",
                &["2001:db8:1:2::"],
                json!({"client_ip": "2001:db8:1:2::"}),
            ),
            ("model", "partition=claude-opus-4-1", &["opus"], json!({"json:model": "opus"})),
            ("model", "partition=opus", &["opus"], json!({"json:model": "opus"})),
            ("client", "partition=billing", &["billing"], json!({"client": "billing"})),
            ("secret", "partition=sk-1", &["sk-1"], json!({"header:x-api-key": "***"})),
        ] {
            let named = read(limiter, query).unwrap();
            assert_eq!(named, NamedPartition { partition: of(expected), shown }, "{limiter} {query}");
        }
    }

    #[test]
    fn values_that_no_request_has_are_refused() {
        for (limiter, query, fault) in [
            (
                "two",
                "partition=a",
                "this key has 2 parts: header:x-t, path:1; expected as many values, found 1 value",
            ),
            (
                "host",
                "partition=a&partition=b",
                "this key has 1 part: host; expected as many values, found 2 values",
            ),
            (
                "address",
                "partition=not-an-ip",
                "expected an address, such as 192.0.2.1 or 2001:db8::, for a `key` of client_ip",
            ),
            (
                "host",
                "partition=api.example.com:8080",
                "expected a host without a port, such as api.example.com or [2001:db8::1], for a `key` of host",
            ),
        ] {
            assert_eq!(read(limiter, query).unwrap_err(), fault, "{query}");
        }
    }

    #[test]
    fn the_log_has_the_partition_of_requests() {
        let config = config::parse(Path::new("weir.yaml"), KEYS).unwrap().config;
        let logged =
            |limiter: &str, query| logged(&config, LimiterName::parse(limiter).as_ref(), Some(query));
        assert_eq!(logged("host", "partition=A.b"), Some(of(&["a.b"])));
        assert_eq!(logged("address", "partition=here"), Some(of(&["here"])));
        assert_eq!(logged("unknown", "partition=A.b"), Some(of(&["A.b"])));
        assert_eq!(logged("host", "other=c"), None);
    }
}
