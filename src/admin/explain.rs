//! `/api/explain`: what would become of a request, and what its limiters have available now.
//!
//! The explanation itself is the proxy's, handed in. Sends nothing and takes no permit.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use http::header::HOST;
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, Uri};
use serde_json::{Value, json};
use url::form_urlencoded;

use super::limiters;
use super::response::{self, Response};
use crate::limiter::model::limit::LimiterName;
use crate::limiter::{Limiters, Partition};

/// The most headers of a request that is explained.
const HEADERS_MAX: usize = 100;
/// The host of a request that names none.
const HOST_UNNAMED: &str = "weir";

/// Explains a request, with its body if that is known, from an address.
pub type Explain = Arc<dyn Fn(Request<()>, Option<&[u8]>, IpAddr) -> Explained + Send + Sync>;

/// The explanation of a request.
pub struct Explained {
    /// The fate of the request.
    pub document: Value,
    /// Its limiters, each with its partition.
    pub limiters: Vec<(LimiterName, Option<Partition>)>,
}

/// Answers with the explanation of the request that a query describes.
pub(super) async fn explain(explain: &Explain, limiters: &Limiters, query: Option<&str>) -> Response {
    let Described { request, body, from } = match described(query.unwrap_or_default()) {
        Ok(asked) => asked,
        Err(fault) => return response::problem(StatusCode::BAD_REQUEST, &fault),
    };
    let Explained { mut document, limiters: its } = explain(request, body.as_deref(), from);
    for (name, partition) in its {
        let present = limiters::present(limiters, &name, partition).await;
        let of_limiter = document["limiters"].as_array_mut().into_iter().flatten();
        for shown in of_limiter.filter(|shown| shown["limiter"] == name.as_str()) {
            shown["now"] = present.as_ref().map_or(Value::Null, |present| {
                json!({
                    "limits": present["limits"],
                    "waiting": present["waiting"],
                    "paused": present["paused"],
                })
            });
        }
    }
    response::document(&document)
}

/// A request that is to be explained.
struct Described {
    request: Request<()>,
    body: Option<Vec<u8>>,
    from: IpAddr,
}

/// Reads a request from `method`, `url`, `header=NAME:VALUE`, `body` and `from`.
fn described(query: &str) -> Result<Described, String> {
    let (mut method, mut url, mut from) = ("GET".to_owned(), None, IpAddr::V4(Ipv4Addr::LOCALHOST));
    let (mut headers, mut body) = (Vec::new(), None);
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*key {
            "method" => method = value.into_owned(),
            "url" => url = Some(value.into_owned()),
            "from" => from = value.parse().map_err(|_| "`from` is no IP address".to_owned())?,
            "body" => body = Some(value.into_owned().into_bytes()),
            "header" if headers.len() < HEADERS_MAX => headers.push(value.into_owned()),
            "header" => return Err(format!("more than {HEADERS_MAX} headers")),
            other => {
                return Err(format!("unknown parameter {other:?}; known: method, url, header, body, from"));
            }
        }
    }
    let url = url.ok_or("`url` is missing, such as url=/github/user")?;
    Ok(Described { request: asked(&method, &url, &headers)?, body, from })
}

/// Makes the request that is to be explained: of a method, a URL or a path, and headers as `NAME: VALUE`.
///
/// # Errors
/// The part that cannot be a part of a request.
pub fn asked(method: &str, written: &str, headers: &[String]) -> Result<Request<()>, String> {
    let method = Method::from_bytes(method.as_bytes()).map_err(|_| format!("{method:?} is no method"))?;
    let url: Uri = written.parse().map_err(|_| format!("{written:?} is no URL and no path"))?;
    // A word alone is taken for a host.
    let target = url.path_and_query().map(|target| target.as_str());
    let target =
        target.ok_or_else(|| format!("{written:?} is no URL and no path; a path begins with `/`"))?;
    let mut request = Request::new(());
    *request.method_mut() = method;
    *request.uri_mut() = target.parse().map_err(|_| format!("{target:?} is no path"))?;
    for line in headers {
        let fault =
            || format!("{:?} is no header; expected NAME:VALUE", line.split(':').next().unwrap_or_default());
        let (name, value) = line.split_once(':').ok_or_else(fault)?;
        let name = HeaderName::try_from(name.trim()).map_err(|_| fault())?;
        let value = HeaderValue::try_from(value.trim()).map_err(|_| fault())?;
        request.headers_mut().append(name, value);
    }
    if !request.headers().contains_key(HOST) {
        let host = url.authority().map_or(HOST_UNNAMED, |authority| authority.as_str());
        let host = HeaderValue::try_from(host).map_err(|_| "the host of the URL is not valid".to_owned())?;
        request.headers_mut().insert(HOST, host);
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_has_a_path() {
        let target = |url: &str| asked("GET", url, &[]).map(|request| request.uri().to_string());
        for (url, expected) in
            [("/users?a=1", "/users?a=1"), ("http://h:1/users", "/users"), ("http://h", "/"), ("*", "*")]
        {
            assert_eq!(target(url).as_deref(), Ok(expected), "{url}");
        }
        for url in ["users", "localhost:8080", "api/users", ""] {
            assert!(target(url).is_err_and(|fault| fault.contains("is no URL and no path")), "{url}");
        }
    }
}
