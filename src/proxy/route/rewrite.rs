//! Maps paths at weir to those at the upstream: `strip_prefix` and the upstream's base path. The way back is [`super::links`].
//!
//! Knows nothing of headers.

use http::Uri;
use http::uri::PathAndQuery;

use super::path::{self, strip};
use crate::config::model::Route as Rule;
use crate::proxy::error::ProxyError;

/// Returns the path and query for the upstream: byte for byte as sent, without `strip_prefix`, behind the base path.
pub(crate) fn target(uri: &Uri, rule: &Rule) -> Result<PathAndQuery, ProxyError> {
    let prefix = rule.strip_prefix.as_deref().unwrap_or_default();
    let base = &*rule.upstream.base_path;
    if prefix.is_empty() && base.is_empty() {
        // A query may stand behind no path. HTTP/2 writes that as it is, and a path begins with a slash (RFC 9113, 8.3.1).
        let whole = uri.path_and_query().filter(|whole| whole.as_str().starts_with('/'));
        if let Some(whole) = whole {
            return Ok(whole.clone());
        }
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
