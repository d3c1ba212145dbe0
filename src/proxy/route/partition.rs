//! Derives the partition of each limiter from a request: a hash over the values of the limiter's key, as the client sent them.
//!
//! Only the hash leaves this module, so no value can be logged. Knows nothing of limits.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, Uri};
use url::form_urlencoded;

use crate::config::model::KeyPart;
use crate::limiter::Partition;
use crate::limiter::model::LimiterName;
use crate::proxy::route::path;

/// The parts of a request that a key can name.
#[derive(Clone, Copy)]
pub(crate) struct Facts<'a> {
    /// The headers as the client sent them.
    pub(crate) headers: &'a HeaderMap,
    /// The URI as the client sent it.
    pub(crate) uri: &'a Uri,
    /// The host, in lower case, without port; empty if the request names no host.
    pub(crate) host: &'a str,
    /// The client's address.
    pub(crate) address: IpAddr,
    /// The client's name, if `clients` are configured.
    pub(crate) client: Option<&'a str>,
}

impl Facts<'_> {
    /// Returns the partition of each limiter, in order; `None` for a limiter without a key.
    pub(crate) fn partitions(self, limiters: &[(LimiterName, Arc<[KeyPart]>)]) -> Vec<Option<Partition>> {
        let keys = limiters.iter().map(|(_, key)| key);
        keys.map(|key| (!key.is_empty()).then(|| self.partition(key))).collect()
    }

    fn partition(self, key: &[KeyPart]) -> Partition {
        let values: Vec<_> = key.iter().map(|part| self.value(part)).collect();
        Partition::of(values.iter().map(Option::as_deref))
    }

    fn value(&self, part: &KeyPart) -> Option<Cow<'_, [u8]>> {
        match part {
            KeyPart::Header(name) => {
                let mut lines = self.headers.get_all(name).iter().map(|line| line.as_bytes());
                let first = lines.next()?;
                // Several lines are joined as RFC 9110 (5.2) reads them.
                Some(lines.fold(Cow::Borrowed(first), |all, line| Cow::Owned([&all, line].join(&b", "[..]))))
            }
            KeyPart::Query(name) => {
                let mut pairs = form_urlencoded::parse(self.uri.query()?.as_bytes());
                pairs.find(|(key, _)| *key == **name).map(|(_, value)| bytes(value))
            }
            KeyPart::Host => Some(Cow::Borrowed(self.host.as_bytes())).filter(|host| !host.is_empty()),
            KeyPart::Path(index) => segment(path::canonical(self.uri.path()), usize::from(*index)),
            KeyPart::ClientIp => Some(Cow::Owned(self.address.to_canonical().to_string().into_bytes())),
            KeyPart::Client => self.client.map(|name| Cow::Borrowed(name.as_bytes())),
        }
    }
}

/// Returns a segment of a path unless it is empty: `/a/` has one segment.
fn segment(path: Cow<'_, str>, index: usize) -> Option<Cow<'_, [u8]>> {
    fn nth(path: &str, index: usize) -> Option<&str> {
        path.strip_prefix('/').unwrap_or(path).split('/').nth(index).filter(|segment| !segment.is_empty())
    }
    match path {
        Cow::Borrowed(path) => nth(path, index).map(|segment| Cow::Borrowed(segment.as_bytes())),
        Cow::Owned(path) => nth(&path, index).map(|segment| Cow::Owned(segment.as_bytes().to_vec())),
    }
}

fn bytes(text: Cow<'_, str>) -> Cow<'_, [u8]> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::{HeaderMap, HeaderName, HeaderValue, Uri};

    use super::Facts;
    use crate::config::model::KeyPart;
    use crate::limiter::Partition;
    use crate::limiter::model::LimiterName;

    /// Returns the value of a part of a key in a request.
    fn value(part: &KeyPart, uri: &str, lines: &[&str]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append("x-tenant", HeaderValue::from_str(line).unwrap());
        }
        let uri: Uri = uri.parse().unwrap();
        let facts = Facts {
            headers: &headers,
            uri: &uri,
            host: "api.example.com",
            address: "::ffff:10.0.0.1".parse().unwrap(),
            client: Some("billing"),
        };
        facts.value(part).map(|value| String::from_utf8(value.into_owned()).unwrap())
    }

    #[test]
    fn the_lines_of_a_header_are_one_value() {
        let part = KeyPart::Header(HeaderName::from_static("x-tenant"));
        for (lines, expected) in [
            (&[][..], None),
            (&[""], Some("")),
            (&["a"], Some("a")),
            (&["a", "b"], Some("a, b")),
            (&["b", "a"], Some("b, a")),
        ] {
            assert_eq!(value(&part, "/", lines).as_deref(), expected, "{lines:?}");
        }
    }

    #[test]
    fn a_query_parameter_is_the_first_of_its_name_decoded() {
        let part = KeyPart::Query("app id".into());
        for (uri, expected) in [
            ("/", None),
            ("/?", None),
            ("/?app=1", None),
            ("/?x=1&app%20id=a+b%26c&app+id=2", Some("a b&c")),
            ("/?app+id", Some("")),
            ("/?app+id=", Some("")),
        ] {
            assert_eq!(value(&part, uri, &[]).as_deref(), expected, "{uri}");
        }
    }

    #[test]
    fn a_segment_is_that_of_the_decoded_path() {
        for (uri, index, expected) in [
            ("/v1/acme/x", 1, Some("acme")),
            ("/v1/acme", 0, Some("v1")),
            ("/v1/%61cme?x=/y", 1, Some("acme")),
            ("/v1//acme", 1, Some("acme")),
            ("/x/../v1/acme", 1, Some("acme")),
            ("/v1", 1, None),
            ("/v1/", 1, None),
            ("/", 0, None),
        ] {
            assert_eq!(value(&KeyPart::Path(index), uri, &[]).as_deref(), expected, "{uri}");
        }
    }

    #[test]
    fn a_key_reads_host_address_and_client() {
        assert_eq!(value(&KeyPart::Host, "/", &[]).as_deref(), Some("api.example.com"));
        assert_eq!(value(&KeyPart::ClientIp, "/", &[]).as_deref(), Some("10.0.0.1"));
        assert_eq!(value(&KeyPart::Client, "/", &[]).as_deref(), Some("billing"));
    }

    #[test]
    fn each_limiter_has_its_own_partition() {
        let limiter = |key: Vec<KeyPart>| (LimiterName::parse("a").unwrap(), Arc::from(key));
        let limiters = [
            limiter(vec![]),
            limiter(vec![KeyPart::Host]),
            limiter(vec![KeyPart::Host, KeyPart::Query("q".into())]),
        ];
        let facts = Facts {
            headers: &HeaderMap::new(),
            uri: &Uri::from_static("/"),
            host: "h",
            address: "10.0.0.1".parse().unwrap(),
            client: None,
        };
        let host = Some(&b"h"[..]);
        let expected = [None, Some(Partition::of([host])), Some(Partition::of([host, None]))];
        assert_eq!(facts.partitions(&limiters), expected);
    }
}
