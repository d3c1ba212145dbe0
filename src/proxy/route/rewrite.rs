//! Maps paths between weir and the upstream: `strip_prefix` and the upstream's base path there, redirects back.
//!
//! Knows nothing of other headers.

use http::header::{Entry, LOCATION};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Uri};

use super::path::{self, strip};
use crate::config::model::Route as Rule;
use crate::proxy::error::ProxyError;
use crate::proxy::messages::header_flags::HeaderFlags;

/// Returns the path and query for the upstream: byte for byte as sent, without `strip_prefix`, behind the base path.
pub(crate) fn target(uri: &Uri, rule: &Rule) -> Result<PathAndQuery, ProxyError> {
    let prefix = rule.strip_prefix.as_deref().unwrap_or_default();
    let base = &*rule.upstream.base_path;
    if prefix.is_empty() && base.is_empty() {
        return Ok(uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/")));
    }
    // A path without the prefix is sent whole: a route may match more than it strips.
    let rest = strip(uri.path(), prefix).unwrap_or(uri.path());
    if path::climbs(rest) {
        return Err(ProxyError::BadRequest("the path leads out of the route"));
    }
    let slash = if rest.starts_with('/') { "" } else { "/" };
    let (mark, query) = uri.query().map_or(("", ""), |query| ("?", query));
    PathAndQuery::try_from(format!("{base}{slash}{rest}{mark}{query}"))
        .map_err(|_| ProxyError::BadRequest("the path is not valid"))
}

/// Rewrites a redirect to the upstream so that it leads through weir. `host` is the `Host` of the request that went upstream,
/// where that differs from the configured one.
pub(crate) fn location(headers: &mut HeaderMap, flags: HeaderFlags, rule: &Rule, host: Option<&str>) {
    if !flags.has(HeaderFlags::LOCATION) {
        return;
    }
    if let Entry::Occupied(mut location) = headers.entry(LOCATION) {
        let back = location.get().to_str().ok().and_then(|location| relocate(location, rule, host));
        if let Some(back) = back.and_then(|back| HeaderValue::try_from(back).ok()) {
            location.insert(back);
        }
    }
}

/// Returns the path at weir for a location at the upstream; `None` if the location may stay as it is.
fn relocate(location: &str, rule: &Rule, host: Option<&str>) -> Option<String> {
    let upstream = &rule.upstream;
    let path = match location.split_once("://") {
        Some((scheme, rest)) if ["http", "https"].iter().any(|http| scheme.eq_ignore_ascii_case(http)) => {
            let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
            let (authority, path) = rest.split_at_checked(end)?;
            let with_port = format!("{}:{}", upstream.host, upstream.port);
            let names = [&*upstream.authority, &with_port, host.unwrap_or_default()];
            names.iter().any(|name| authority.eq_ignore_ascii_case(name)).then_some(path)?
        }
        _ if location.starts_with('/') && !location.starts_with("//") => location,
        _ => return None,
    };
    let (path, rest) = path.split_at_checked(path.find(['?', '#']).unwrap_or(path.len()))?;
    let path = if path.is_empty() { "/" } else { path };
    let inside = strip(path, &upstream.base_path)?;
    let prefix = rule.strip_prefix.as_deref().unwrap_or_default().trim_end_matches('/');
    let slash = if inside.starts_with('/') || (inside.is_empty() && !prefix.is_empty()) { "" } else { "/" };
    Some(format!("{prefix}{slash}{inside}{rest}"))
}
