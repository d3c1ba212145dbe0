//! Derives the partition of each limiter from a request: a hash over the values of the limiter's key, each read in one way only.
//!
//! Only the hash leaves this module, so no value can be logged; [`Facts::texts`] is for the asker of the very request, and for
//! operators where the limiter says `show_values`. Knows nothing
//! of limits.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use http::Uri;

use crate::config::model::{KeyPart, network};
use crate::limiter::Partition;
use crate::limiter::model::{Flow, LimiterName};
use crate::proxy::error::ProxyError;
use crate::proxy::messages::body_facts::Body;
use crate::proxy::messages::end_to_end::EndToEnd;
use crate::proxy::route::{path, query};

/// The parts of a request that a key can name.
#[derive(Clone, Copy)]
pub(crate) struct Facts<'a> {
    /// The headers that the client sent, without those that end with its connection.
    pub(crate) headers: &'a EndToEnd<'a>,
    /// The URI as the client sent it.
    pub(crate) uri: &'a Uri,
    /// The host, in lower case, without port; empty if the request names no host.
    pub(crate) host: &'a str,
    /// The client's address.
    pub(crate) address: IpAddr,
    /// The client's name, if `clients` are configured.
    pub(crate) client: Option<&'a str>,
    /// The body as the route sees it.
    pub(crate) body: Body<'a>,
}

impl Facts<'_> {
    /// Returns the partition of each limiter, in order; `None` for a limiter without a key. Empty if none has one, as most routes.
    ///
    /// # Errors
    /// If a part of a key can be read in more than one way.
    pub(crate) fn partitions(
        self,
        limiters: &[(LimiterName, Arc<[KeyPart]>)],
    ) -> Result<Vec<Option<Partition>>, ProxyError> {
        if limiters.iter().all(|(_, key)| key.is_empty()) {
            return Ok(Vec::new());
        }
        let keys = limiters.iter().map(|(_, key)| key);
        keys.map(|key| (!key.is_empty()).then(|| self.partition(key)).transpose()).collect()
    }

    /// Returns the flow that the request belongs to, where callers share the quota.
    ///
    /// # Errors
    /// If a part of what names it can be read in more than one way.
    pub(crate) fn flow(self, by: &[KeyPart]) -> Result<Flow, ProxyError> {
        if by.is_empty() {
            return Ok(Flow::default());
        }
        let values = by.iter().map(|part| self.value(part)).collect::<Result<Vec<_>, _>>()?;
        Ok(Flow::of(&values.iter().map(Option::as_deref).collect::<Vec<_>>()))
    }

    /// Returns the values of a limiter's key as texts, `None` for one that the request does not have. Credentials are hidden.
    pub(crate) fn texts(&self, key: &[KeyPart]) -> Vec<Option<String>> {
        let text = |part: &KeyPart| {
            let value = self.value(part).ok().flatten()?;
            Some(if part.is_credential() {
                "***".to_owned()
            } else {
                String::from_utf8_lossy(&value).into_owned()
            })
        };
        key.iter().map(text).collect()
    }

    /// Returns the values of a limiter's key as one text for operators.
    pub(crate) fn shown(&self, key: &[KeyPart]) -> String {
        let texts = self.texts(key).into_iter();
        texts.map(|text| text.unwrap_or_else(|| "(none)".to_owned())).collect::<Vec<_>>().join(", ")
    }

    fn partition(self, key: &[KeyPart]) -> Result<Partition, ProxyError> {
        let values = key.iter().map(|part| self.value(part)).collect::<Result<Vec<_>, _>>()?;
        Ok(Partition::of(values.iter().map(Option::as_deref)))
    }

    fn value(&self, part: &KeyPart) -> Result<Option<Cow<'_, [u8]>>, ProxyError> {
        Ok(match part {
            KeyPart::Header(name) => self.headers.one(name)?,
            KeyPart::Query(name) => {
                let query = self.uri.query().unwrap_or_default();
                query::parameter(query, name)?.map(bytes)
            }
            KeyPart::Host => Some(Cow::Borrowed(self.host.as_bytes())).filter(|host| !host.is_empty()),
            KeyPart::Path(index) => {
                let segment = path::segment(self.uri.path(), usize::from(*index));
                segment
                    .map_err(|path::Ambiguous| ProxyError::Ambiguous {
                        kind: "path segment",
                        name: index.to_string().into(),
                    })?
                    .map(bytes)
            }
            KeyPart::ClientIp { ipv4, ipv6 } => {
                Some(Cow::Owned(network(self.address, *ipv4, *ipv6).to_string().into_bytes()))
            }
            KeyPart::Client => self.client.map(|name| Cow::Borrowed(name.as_bytes())),
            KeyPart::Captured(pattern) => path::captured(self.uri.path(), |form| pattern.find(form))
                .map_err(|path::Ambiguous| ProxyError::Ambiguous {
                    kind: "part of the path",
                    name: pattern.as_str().into(),
                })?
                .map(bytes),
            KeyPart::Mapped(part, map) => self.value(part)?.map(|value| match std::str::from_utf8(&value) {
                Ok(value) => Cow::Owned(map.of(value).as_bytes().to_vec()),
                Err(_) => value,
            }),
            KeyPart::Json(path) => self.body.vital(path)?.map(|value| Cow::Borrowed(value.as_bytes())),
            KeyPart::Route(name) => Some(Cow::Owned(name.as_bytes().to_vec())),
        })
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
    use crate::proxy::messages::body_facts::BodyFacts;
    use crate::proxy::messages::end_to_end::EndToEnd;
    use crate::proxy::messages::header_flags::HeaderFlags;

    /// Returns the value of a part of a key in a request.
    fn value(part: &KeyPart, uri: &str, lines: &[&str]) -> Result<Option<String>, ()> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append("x-tenant", HeaderValue::from_str(line).unwrap());
        }
        let uri: Uri = uri.parse().unwrap();
        let flags = HeaderFlags::of(&headers);
        let body = BodyFacts::nothing();
        let facts = Facts {
            headers: &EndToEnd::new(&headers, flags, false),
            uri: &uri,
            host: "api.example.com",
            address: "::ffff:10.0.0.1".parse().unwrap(),
            client: Some("billing"),
            body: body.up_to(0),
        };
        let value = facts.value(part).map_err(|_| ())?;
        Ok(value.map(|value| String::from_utf8(value.into_owned()).unwrap()))
    }

    fn some(text: &str) -> Result<Option<String>, ()> {
        Ok(Some(text.to_owned()))
    }

    #[test]
    fn a_header_is_given_once() {
        let part = KeyPart::Header(HeaderName::from_static("x-tenant"));
        for (lines, expected) in
            [(&[][..], Ok(None)), (&[""], some("")), (&["a"], some("a")), (&["a", "b"], Err(()))]
        {
            assert_eq!(value(&part, "/", lines), expected, "{lines:?}");
        }
    }

    #[test]
    fn a_query_parameter_is_given_once() {
        let part = KeyPart::Query("app".into());
        for (uri, expected) in
            [("/", Ok(None)), ("/?", Ok(None)), ("/?a=1&app=2", some("2")), ("/?app=1&app=2", Err(()))]
        {
            assert_eq!(value(&part, uri, &[]), expected, "{uri}");
        }
    }

    #[test]
    fn a_segment_is_that_of_the_decoded_path() {
        for (uri, index, expected) in [
            ("/v1/acme/x", 1, some("acme")),
            ("/v1/%61cme?x=/y", 1, some("acme")),
            ("/v1", 1, Ok(None)),
            ("/v1/b/../acme", 1, Err(())),
        ] {
            assert_eq!(value(&KeyPart::Path(index), uri, &[]), expected, "{uri}");
        }
    }

    #[test]
    fn a_key_reads_host_address_and_client() {
        assert_eq!(value(&KeyPart::Host, "/", &[]), some("api.example.com"));
        assert_eq!(value(&KeyPart::ClientIp { ipv4: 32, ipv6: 64 }, "/", &[]), some("10.0.0.1"));
        assert_eq!(value(&KeyPart::Client, "/", &[]), some("billing"));
    }

    #[test]
    fn each_limiter_has_its_own_partition() {
        let limiter = |key: Vec<KeyPart>| (LimiterName::parse("a").unwrap(), Arc::from(key));
        let limiters = [
            limiter(vec![]),
            limiter(vec![KeyPart::Host]),
            limiter(vec![KeyPart::Host, KeyPart::Query("q".into())]),
        ];
        let headers = HeaderMap::new();
        let body = BodyFacts::nothing();
        let facts = Facts {
            headers: &EndToEnd::new(&headers, HeaderFlags::of(&headers), false),
            uri: &Uri::from_static("/"),
            host: "h",
            address: "10.0.0.1".parse().unwrap(),
            client: None,
            body: body.up_to(0),
        };
        let host = Some(&b"h"[..]);
        let expected = [None, Some(Partition::of([host])), Some(Partition::of([host, None]))];
        assert_eq!(facts.partitions(&limiters).unwrap(), expected);
    }
}
