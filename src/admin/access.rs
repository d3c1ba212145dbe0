//! The access rule of the admin listener.
//!
//! Health and metrics are open to everyone. All else needs the token, if one is set. Without a token it is served on
//! loopback only. The danger there is a web page: any page in the operator's browser can send requests to 127.0.0.1,
//! under its own host name if it rebinds its DNS. So without a token, a request must name a loopback host and must not
//! come from another origin. A second token shows everything and changes nothing.

use std::net::IpAddr;

use http::HeaderMap;
use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::uri::Authority;
use thiserror::Error;

use crate::bearer::{self, TokenDigest};
use crate::config::model::{Admin, Secret};

/// By what right somebody is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AccessRight {
    /// `admin.token`.
    Token,
    /// `admin.read_token`.
    ReadToken,
    /// No token is set, and the listener is on loopback.
    Loopback,
}

/// The reason why a request is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub(super) enum Denied {
    #[error("`Authorization: Bearer` with the token of admin.token is needed")]
    Token,
    #[error("the token of admin.read_token shows everything and changes nothing")]
    ReadToken,
    #[error("beyond loopback, admin.token must be set")]
    NoTokenSet,
    #[error("without admin.token, the request must name a loopback host, such as localhost")]
    Host,
    #[error("requests from pages of another origin are refused")]
    Origin,
}

/// Returns whether a token is set. An empty one would protect nothing, and counts as none.
pub(super) fn is_set(token: Option<&Secret>) -> bool {
    token.is_some_and(|token| !token.reveal().is_empty())
}

/// Checks a request for anything but health and metrics. `loopback` is whether the listener's address is a loopback
/// address, `acts` whether the request would change something.
///
/// # Errors
/// The reason to refuse the request.
pub(super) fn check(
    loopback: bool,
    admin: &Admin,
    acts: bool,
    headers: &HeaderMap,
) -> Result<AccessRight, Denied> {
    let set = |token: &'_ &Secret| is_set(Some(*token));
    match admin.token.as_ref().filter(set) {
        Some(token) => {
            let sent = bearer::digest(headers, &AUTHORIZATION).ok_or(Denied::Token)?;
            let is = |token: &Secret| sent == TokenDigest::of(token.reveal());
            if is(token) {
                Ok(AccessRight::Token)
            } else if !admin.read_token.as_ref().filter(set).is_some_and(is) {
                Err(Denied::Token)
            } else if acts {
                Err(Denied::ReadToken)
            } else {
                Ok(AccessRight::ReadToken)
            }
        }
        None if !loopback => Err(Denied::NoTokenSet),
        None => check_page(headers).map(|()| AccessRight::Loopback),
    }
}

/// Checks that a request without a token cannot come from a web page.
fn check_page(headers: &HeaderMap) -> Result<(), Denied> {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).ok_or(Denied::Host)?;
    if !is_loopback_name(host) {
        return Err(Denied::Host);
    }
    let Some(origin) = headers.get(ORIGIN) else {
        return Ok(());
    };
    let origin_host = origin.to_str().ok().and_then(|origin| origin.strip_prefix("http://"));
    if origin_host.is_some_and(|origin_host| origin_host.eq_ignore_ascii_case(host)) {
        Ok(())
    } else {
        Err(Denied::Origin)
    }
}

fn is_loopback_name(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else {
        return false;
    };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(http::HeaderName, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect()
    }

    /// Checks a request that shows something, where there is no token for reading.
    fn check(loopback: bool, token: Option<&Secret>, headers: &HeaderMap) -> Result<(), Denied> {
        super::check(loopback, &admin(token, None), false, headers).map(drop)
    }

    fn admin(token: Option<&Secret>, read_token: Option<&Secret>) -> Admin {
        let listen = "127.0.0.1:0".parse().unwrap();
        Admin { listen, token: token.cloned(), read_token: read_token.cloned() }
    }

    #[test]
    fn the_token_for_reading_shows_everything_and_changes_nothing() {
        let (token, read_token) = (Secret::new("t0ken"), Secret::new("r3ad"));
        let both = admin(Some(&token), Some(&read_token));
        for loopback in [true, false] {
            let check =
                |acts, value| super::check(loopback, &both, acts, &headers(&[(AUTHORIZATION, value)]));
            assert_eq!(check(false, "Bearer r3ad"), Ok(AccessRight::ReadToken));
            assert_eq!(check(true, "Bearer r3ad"), Err(Denied::ReadToken));
            assert_eq!(check(true, "Bearer t0ken"), Ok(AccessRight::Token));
            assert_eq!(check(false, "Bearer r3a"), Err(Denied::Token));
        }
        let empty = admin(Some(&token), Some(&Secret::new("")));
        let nothing = headers(&[(AUTHORIZATION, "Bearer ")]);
        assert_eq!(super::check(true, &empty, false, &nothing), Err(Denied::Token));
    }

    #[test]
    fn a_set_token_is_needed_on_and_beyond_loopback() {
        let token = Secret::new("t0ken");
        for loopback in [true, false] {
            let check = |value| check(loopback, Some(&token), &headers(&[(AUTHORIZATION, value)]));
            assert_eq!(check("Bearer t0ken"), Ok(()));
            assert_eq!(check("bearer  t0ken "), Ok(()));
            for wrong in ["Bearer t0ke", "Bearer t0ken0", "Bearer", "Bearer ", "Basic t0ken", "t0ken"] {
                assert_eq!(check(wrong), Err(Denied::Token), "{wrong}");
            }
        }
        assert_eq!(check(true, Some(&token), &headers(&[(HOST, "localhost")])), Err(Denied::Token));
    }

    #[test]
    fn without_a_token_nothing_is_shown_beyond_loopback() {
        let empty = Secret::new("");
        let request = headers(&[(HOST, "localhost"), (AUTHORIZATION, "Bearer ")]);
        assert_eq!(check(false, None, &request), Err(Denied::NoTokenSet));
        assert_eq!(check(false, Some(&empty), &request), Err(Denied::NoTokenSet));
    }

    #[test]
    fn on_loopback_the_request_names_a_loopback_host() {
        for host in ["localhost:9090", "LOCALHOST", "127.0.0.1:9090", "127.1.2.3", "[::1]:9090"] {
            assert_eq!(check(true, None, &headers(&[(HOST, host)])), Ok(()), "{host}");
        }
        for host in ["rebound.example:9090", "localhost.example", "10.0.0.1", "[::2]", "", "a b"] {
            assert_eq!(check(true, None, &headers(&[(HOST, host)])), Err(Denied::Host), "{host}");
        }
        assert_eq!(check(true, None, &HeaderMap::new()), Err(Denied::Host));
    }

    #[test]
    fn on_loopback_pages_of_other_origins_are_refused() {
        let check = |origin| check(true, None, &headers(&[(HOST, "localhost:9090"), (ORIGIN, origin)]));
        assert_eq!(check("http://localhost:9090"), Ok(()));
        for origin in ["http://localhost:8080", "https://page.example", "null", "http://localhost"] {
            assert_eq!(check(origin), Err(Denied::Origin), "{origin}");
        }
    }
}
