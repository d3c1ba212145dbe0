//! Identifies the caller of a request, by address and by credentials, and decides whether it may use a route.
//!
//! All of it happens before a permit is taken. Knows nothing of limiters and upstreams, and of a route only its configuration.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
use ipnet::IpNet;

use crate::bearer;
use crate::config::model::{Clients, Route as Rule, Server, SubjectName};
use crate::proxy::error::ProxyError;
use crate::proxy::messages::headers::X_FORWARDED_FOR;

/// The header with a client's token for weir. As every `weir-*` it never goes upstream.
const WEIR_AUTHORIZATION: HeaderName = HeaderName::from_static("weir-authorization");

/// Refuses requests from a peer outside `server.allow`. `X-Forwarded-For` does not count, because every peer could write it.
pub(crate) fn admit(allow: Option<&[IpNet]>, peer: IpAddr) -> Result<(), ProxyError> {
    match allow {
        Some(networks) if !contain(networks, peer) => {
            Err(ProxyError::Forbidden("requests from this address are not served"))
        }
        _ => Ok(()),
    }
}

/// Returns the client's address: behind trusted proxies the last address of `X-Forwarded-For` that is not trusted itself.
///
/// Each proxy appends the address that it saw, so everything before the first untrusted address from the end may be forged. The
/// search stops at an element that is no address.
pub(crate) fn address(trusted: &[IpNet], peer: IpAddr, headers: &HeaderMap) -> IpAddr {
    let mut client = peer.to_canonical();
    if trusted.is_empty() {
        return client;
    }
    let lines = headers.get_all(X_FORWARDED_FOR).iter().rev();
    let mut hops = lines.flat_map(|line| line.to_str().unwrap_or_default().rsplit(','));
    while contain(trusted, client) {
        match hops.next().and_then(hop) {
            Some(before) => client = before,
            None => break,
        }
    }
    client
}

/// Returns whether the peer is a proxy whose `X-Forwarded-*` is trusted.
pub(crate) fn is_trusted(server: &Server, peer: IpAddr) -> bool {
    contain(&server.trusted_proxies, peer)
}

/// Reads an address as proxies write it; some add a port, with brackets around IPv6.
fn hop(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let address = bare.parse().ok().or_else(|| text.parse().ok().map(|address: SocketAddr| address.ip()));
    address.map(|address: IpAddr| address.to_canonical())
}

fn contain(networks: &[IpNet], address: IpAddr) -> bool {
    let address = address.to_canonical();
    networks.iter().any(|network| network.contains(&address))
}

/// The identity of a request's sender.
#[derive(Default)]
pub(crate) struct Caller {
    /// The name among the `clients`; `None` if none are configured.
    pub(crate) name: Option<Arc<str>>,
    /// True if `Authorization` holds a token for weir, which must not go upstream.
    pub(crate) token_in_authorization: bool,
}

/// Returns the caller, or an error if it is unknown. `rule` belongs to the request's route, if there is one; `names` come from
/// the client's certificate.
///
/// `Weir-Authorization` decides where it is present. Else `Authorization` counts if it ends at weir, which is so without a route
/// and on a route that replaces it. Else the certificate counts.
pub(crate) fn identify(
    clients: Option<&Clients>,
    headers: &HeaderMap,
    names: &[SubjectName],
    rule: Option<&Rule>,
) -> Result<Caller, ProxyError> {
    let Some(clients) = clients else { return Ok(Caller::default()) };
    let lines = headers.get_all(AUTHORIZATION).iter().filter(|_| clients.has_tokens());
    let owners: Vec<_> = lines.map(|line| clients.by_token(bearer::digest_of(line)?)).collect();
    // Several lines identify no caller, but a token for weir in any of them is still removed.
    let authorization = if let [only] = owners.as_slice() { *only } else { None };
    let in_other_form =
        |line| bearer::other_digests_in(line).into_iter().any(|token| clients.by_token(token).is_some());
    let token_in_authorization = owners.iter().any(Option::is_some)
        || (!owners.is_empty() && headers.get_all(AUTHORIZATION).iter().any(in_other_form));
    let ends_here = rule.is_none_or(|rule| rule.set_headers.iter().any(|(name, _)| name == AUTHORIZATION));
    let name = if headers.contains_key(WEIR_AUTHORIZATION) {
        bearer::digest(headers, &WEIR_AUTHORIZATION).and_then(|token| clients.by_token(token))
    } else {
        authorization.filter(|_| ends_here).or_else(|| clients.by_certificate(names))
    };
    let name = name.cloned().ok_or(ProxyError::UnknownClient)?;
    Ok(Caller { name: Some(name), token_in_authorization })
}

/// Refuses a caller that the route does not list.
pub(crate) fn may_use(rule: &Rule, caller: &Caller) -> Result<(), ProxyError> {
    match (&rule.clients, &caller.name) {
        (None, _) => Ok(()),
        (Some(listed), Some(name)) if listed.contains(name) => Ok(()),
        (Some(_), _) => Err(ProxyError::Forbidden("this client may not use this route")),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn networks(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn only_listed_networks_are_let_in() {
        let listed = networks(&["10.0.0.0/8", "::1/128"]);
        for (peer, allowed) in [
            ("10.1.2.3", true),
            ("::ffff:10.1.2.3", true),
            ("::1", true),
            ("11.0.0.1", false),
            ("::2", false),
            ("127.0.0.1", false),
        ] {
            assert_eq!(admit(Some(&listed), peer.parse().unwrap()).is_ok(), allowed, "{peer}");
        }
        assert!(admit(None, "203.0.113.1".parse().unwrap()).is_ok());
    }

    #[test]
    fn the_client_is_the_first_address_from_the_end_that_is_not_trusted() {
        for (peer, lines, expected) in [
            // A peer that is not trusted is the client, and its header is ignored.
            ("203.0.113.9", &["198.51.100.1"][..], "203.0.113.9"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("10.0.0.1", &["198.51.100.1"], "198.51.100.1"),
            ("::ffff:10.0.0.1", &["198.51.100.1"], "198.51.100.1"),
            ("10.0.0.1", &["1.1.1.1, 198.51.100.1, 10.0.0.2"], "198.51.100.1"),
            ("10.0.0.1", &["1.1.1.1", "198.51.100.1", "10.0.0.3 ,10.0.0.2"], "198.51.100.1"),
            // If all are trusted, the first one is the client.
            ("10.0.0.1", &["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
            // The search stops at the first element that is no address.
            ("10.0.0.1", &["198.51.100.1, unknown"], "10.0.0.1"),
            ("10.0.0.1", &["198.51.100.1, unknown, 10.0.0.2"], "10.0.0.2"),
            ("10.0.0.1", &["198.51.100.1,"], "10.0.0.1"),
            ("10.0.0.1", &["198.51.100.1", ""], "10.0.0.1"),
            // Ports, and the forms of IPv6.
            ("10.0.0.1", &["198.51.100.1:4711"], "198.51.100.1"),
            ("10.0.0.1", &["[2001:db8::1]:4711"], "2001:db8::1"),
            ("10.0.0.1", &["[2001:db8::1]"], "2001:db8::1"),
            ("10.0.0.1", &["2001:db8::1, ::ffff:10.0.0.2"], "2001:db8::1"),
        ] {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(X_FORWARDED_FOR, HeaderValue::from_str(line).unwrap());
            }
            let found = address(&networks(&["10.0.0.0/8"]), peer.parse().unwrap(), &headers);
            assert_eq!(found, expected.parse::<IpAddr>().unwrap(), "{peer} {lines:?}");
        }
    }

    #[test]
    fn without_trusted_proxies_the_peer_is_the_client() {
        let mut headers = HeaderMap::new();
        headers.insert(X_FORWARDED_FOR, HeaderValue::from_static("198.51.100.1"));
        let found = address(&[], "10.0.0.1".parse().unwrap(), &headers);
        assert_eq!(found, "10.0.0.1".parse::<IpAddr>().unwrap());
    }
}
