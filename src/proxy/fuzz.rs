//! What must hold of this room's pure parts for any bytes at all. Left out of the documentation; promises nothing.

use std::net::IpAddr;
use std::time::{Duration, UNIX_EPOCH};

use http::header::{AUTHORIZATION, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Version};
use ipnet::IpNet;

use super::messages::headers::{self, Seen};
use super::messages::quota::{self, Quota};
use super::route::caller;
use super::route::path::{self, Forms};
use super::route::router::strip;
use crate::config::model::Cost;
use crate::limiter::model::limit::Permits;

/// What a route is looked up by: however `/a` is spelt, whoever reads the path that way finds the same.
///
/// # Panics
/// If something does not hold.
pub fn path(text: &str) {
    let Ok(forms) = path::forms(text) else { return };
    let is_inside = |form: &str| strip(form, "/a").is_some();
    let canonical = path::canonical(text);
    let again = path::canonical(&canonical);
    assert_eq!(again, canonical, "canonical forms of {text:?}");
    let agree = match &forms {
        Forms::One(form) => {
            assert_eq!((*form, &*canonical), (text, text), "nothing can be read otherwise");
            true
        }
        Forms::Many(forms) => {
            assert_eq!(forms.first().map(|form| &**form), Some(text), "the first is as sent");
            forms.iter().all(|form| is_inside(form) == is_inside(text))
        }
    };
    // Where all forms lead to the same route, the path that a thorough server reads leads there, too.
    assert!(
        !agree || !text.starts_with('/') || is_inside(&canonical) == is_inside(text),
        "{text:?} is {canonical:?}"
    );
    let _ = path::climbs(text);
}

/// Everything that is read of a request's head before it is forwarded: lines of a name, a colon and a value behind a target.
pub fn request(bytes: &[u8]) {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let Ok(target) = std::str::from_utf8(lines.next().unwrap_or_default()) else { return };
    let mut request = Request::new(());
    let Ok(uri) = target.parse() else { return };
    *request.uri_mut() = uri;
    *request.method_mut() = Method::GET;
    *request.headers_mut() = headers_of(lines);
    for version in [Version::HTTP_10, Version::HTTP_11, Version::HTTP_2] {
        *request.version_mut() = version;
        read(&request);
    }
}

/// Lines of a name, a colon and a value; those that are none are left out.
fn headers_of<'a>(lines: impl Iterator<Item = &'a [u8]>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in lines {
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let name = parts.next().unwrap_or_default().try_into();
        let value = HeaderValue::from_bytes(parts.next().unwrap_or_default());
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append::<HeaderName>(name, value);
        }
    }
    headers
}

/// What is read of a response about its upstream's quota, in the same lines: whatever it says, what comes out can be used.
///
/// # Panics
/// If it cannot.
pub fn quota(bytes: &[u8]) {
    let headers = headers_of(bytes.split(|byte| *byte == b'\n'));
    // The first second of 2026.
    let now = UNIX_EPOCH + Duration::from_secs(1_767_225_600);
    let quota = Quota::of(&headers, now);
    assert!(
        Quota::is_reported(&headers) || quota == Quota::default(),
        "{quota:?} of headers that say nothing"
    );
    assert!(quota.wait.is_none_or(|wait| !wait.is_zero()), "nobody is asked to wait no time");
    assert!(quota.nonsense <= headers.len() as u64, "values are counted once");
    assert!(quota.windows.len() <= quota::WINDOWS_MAX, "{} windows", quota.windows.len());
    let spans = quota.windows.iter().flat_map(|window| [window.resets_in, window.window]);
    for span in spans.chain([quota.wait]).flatten() {
        assert!(span <= quota::SPAN_MAX, "{span:?}");
    }
}

fn read(request: &Request<()>) {
    let (headers, seen) = (request.headers(), Seen::of(request.headers()));
    let _ = headers::check(request, seen);
    if let Ok(Some(authority)) = headers::authority(request) {
        assert!(!authority.as_str().contains('@') && !authority.host().is_empty(), "{authority}");
        assert!(headers.get_all(HOST).iter().count() <= 1, "one host");
        let host = headers::host(Some(&authority));
        assert_eq!(host, host.to_ascii_lowercase(), "hosts are compared in lower case");
    }
    let _ = headers::wait_max(headers, seen);
    if let Some(max) = Permits::new(50) {
        let cost = Cost::Header { name: AUTHORIZATION, default: Permits::ONE, max };
        if let Ok(cost) = headers::cost(headers, &cost) {
            assert!(cost <= max, "no more than may be named");
        }
    }
    let _ = (headers::upgrade(request, seen), headers::is_grpc(headers, seen));
    client_address(headers);
    let mut trailers = headers.clone();
    headers::remove_hop_by_hop(&mut trailers, seen);
    headers::remove_own(&mut trailers, seen);
    headers::remove_misplaced(&mut trailers);
    let is_left = |name: &str| trailers.contains_key(name);
    assert!(!["connection", "content-length", "host", "weir-error"].into_iter().any(is_left), "{trailers:?}");
}

/// Only those who are trusted are believed.
fn client_address(headers: &HeaderMap) {
    let peer = IpAddr::from([10, 0, 0, 1]);
    let trusted: Vec<IpNet> = "10.0.0.0/8".parse().into_iter().collect();
    let address = caller::address(&trusted, peer, headers);
    assert_eq!(address, address.to_canonical());
    assert_eq!(caller::address(&[], peer, headers), peer, "nobody is believed");
}
