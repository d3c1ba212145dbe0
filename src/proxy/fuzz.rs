//! Checks of the pure parts of this room that hold for any bytes. Left out of the documentation; promises nothing.

use std::net::IpAddr;
use std::time::{Duration, UNIX_EPOCH};

use http::header::{AUTHORIZATION, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Version};
use ipnet::IpNet;

use super::messages::body_facts::BodyFacts;
use super::messages::end_to_end::EndToEnd;
use super::messages::estimate::Bounds;
use super::messages::header_flags::HeaderFlags;
use super::messages::patience::ClientPatience;
use super::messages::quota::{self, Quota};
use super::messages::{headers, request_head};
use super::route::caller;
use super::route::path::{self, Forms, strip};
use crate::config::model::{Cost, Leave, PATIENCE_HEADERS, Patience};
use crate::limiter::model::Permits;

/// Checks the forms of a path: every spelling of a path below `/a` leads to the same canonical path.
///
/// # Panics
/// If a check fails.
pub fn path(text: &str) {
    let Ok(forms) = path::forms(text) else { return };
    let is_inside = |form: &str| strip(form, "/a").is_some();
    let canonical = path::canonical(text);
    let again = path::canonical(&canonical);
    assert_eq!(again, canonical, "canonical forms of {text:?}");
    let agree = match &forms {
        Forms::One(form) => {
            assert_eq!((*form, &*canonical), (text, text), "the only form is the canonical one");
            true
        }
        Forms::Many(forms) => {
            assert_eq!(forms.first().map(|form| &**form), Some(text), "the first is as sent");
            forms.iter().all(|form| is_inside(form) == is_inside(text))
        }
    };
    // If all forms lead to the same route, so does the canonical path.
    assert!(
        !agree || !text.starts_with('/') || is_inside(&canonical) == is_inside(text),
        "{text:?} is {canonical:?}"
    );
    let _ = path::climbs(text);
}

/// Checks the reading of a request's head: a target, and lines of a name, a colon and a value.
pub fn request(bytes: &[u8]) {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let Ok(target) = std::str::from_utf8(lines.next().unwrap_or_default()) else { return };
    let mut request = Request::new(());
    let Ok(uri) = target.parse() else { return };
    *request.uri_mut() = uri;
    *request.method_mut() = Method::GET;
    *request.headers_mut() = headers_of(lines);
    for version in [Version::HTTP_10, Version::HTTP_11, Version::HTTP_2] {
        let mut request = request.clone();
        *request.version_mut() = version;
        request_head::unify_host(&mut request);
        read(&request);
    }
}

/// Reads lines of a name, a colon and a value; skips other lines.
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

/// Checks the reading of an upstream's quota from the same lines: every result is within its bounds.
///
/// # Panics
/// If a check fails.
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
    assert!(quota.invalid <= headers.len() as u64, "values are counted once");
    assert!(quota.windows.len() <= quota::WINDOWS_MAX, "{} windows", quota.windows.len());
    let spans = quota.windows.iter().flat_map(|window| [window.resets_in, window.length]);
    for span in spans.chain([quota.wait]).flatten() {
        assert!(span <= quota::SPAN_MAX, "{span:?}");
    }
}

fn read(request: &Request<()>) {
    let (headers, flags) = (request.headers(), HeaderFlags::of(request.headers()));
    let _ = request_head::check(request, flags);
    if let Ok(Some(authority)) = request_head::authority(request) {
        assert!(!authority.as_str().contains('@') && !authority.host().is_empty(), "{authority}");
        let mut hosts = headers.get_all(HOST).iter();
        assert!(
            hosts.next().is_none_or(|host| host == authority.as_str()) && hosts.next().is_none(),
            "one host"
        );
        let host = request_head::host(Some(&authority));
        assert_eq!(host, host.to_ascii_lowercase(), "hosts are compared in lower case");
    }
    let names = PATIENCE_HEADERS.map(HeaderName::from_static).to_vec();
    let rule = Patience { headers: names, leave: Leave::Auto, is_usual: true };
    let answer_time = || Duration::from_secs(1);
    if let Ok(Some(patience)) = ClientPatience::of(headers, flags, &[rule], answer_time) {
        let wait = patience.wait(answer_time);
        assert!(wait <= Duration::from_hours(24) && patience.describe(wait).is_ascii(), "{wait:?}");
    }
    if let Some(max) = Permits::new(50) {
        let nothing = BodyFacts::nothing();
        let cost = Cost::Header { name: AUTHORIZATION, default: Permits::ONE, max };
        if let Ok(cost) =
            request_head::cost(&EndToEnd::new(headers, flags, false), nothing.up_to(0), &cost, |_| {
                Bounds::default()
            })
        {
            assert!(cost <= max, "no more than may be named");
        }
    }
    let _ = (request_head::upgrade(request, flags), request_head::is_grpc(headers, flags));
    client_address(headers);
    let mut trailers = headers.clone();
    headers::remove_hop_by_hop(&mut trailers, flags);
    headers::remove_own(&mut trailers, flags);
    headers::remove_misplaced(&mut trailers);
    let is_left = |name: &str| trailers.contains_key(name);
    assert!(!["connection", "content-length", "host", "weir-error"].into_iter().any(is_left), "{trailers:?}");
}

/// Checks that `X-Forwarded-For` counts only behind trusted proxies.
fn client_address(headers: &HeaderMap) {
    let peer = IpAddr::from([10, 0, 0, 1]);
    let trusted: Vec<IpNet> = "10.0.0.0/8".parse().into_iter().collect();
    let address = caller::address(&trusted, peer, headers);
    assert_eq!(address, address.to_canonical());
    assert_eq!(caller::address(&[], peer, headers), peer, "nobody is believed");
}
