//! `upstream`: where a route goes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use url::{Host, Url};

use super::place::At;
use super::{Check, DAY, HOUR, MILLISECOND};
use crate::config::model::{Http2, Upstream};
use crate::config::schema::{self, Form};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(60);
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) fn upstream(
    check: &mut Check<'_>,
    given: &Form<String, schema::Upstream>,
    at: &At<'_>,
) -> Option<Upstream> {
    let long = match given {
        Form::Short(url) => {
            let target = target(check, url, at)?;
            return Some(target.with(Timeouts::DEFAULT, Http2::Auto, None));
        }
        Form::Long(long) => long,
    };
    let target = target(check, &long.url, &at.key("url"));
    let bounds = MILLISECOND..=DAY;
    let connect = &at.key("connect_timeout");
    let connect = check.duration(long.connect_timeout, CONNECT_TIMEOUT, MILLISECOND..=HOUR, connect);
    let response = check.duration(long.timeout, TIMEOUT, bounds.clone(), &at.key("timeout"));
    let idle = check.duration(long.idle_timeout, IDLE_TIMEOUT, bounds, &at.key("idle_timeout"));
    let ca = long.ca.as_deref().map(|path| check.certificates(path, &at.key("ca")));
    if ca.is_some() && target.as_ref().is_some_and(|target| !target.tls) {
        check.problem_of_key(&at.key("ca"), "needs a URL that begins with https://");
    }
    if let Some(proxy) = &long.proxy {
        check.unsupported(Some(proxy), &at.key("proxy"));
        self::proxy(check, proxy, &at.key("proxy"));
    }
    let http2 = match long.http2 {
        None | Some(schema::Http2::Auto) => Http2::Auto,
        Some(schema::Http2::Off) => Http2::Off,
        Some(schema::Http2::PriorKnowledge) => Http2::PriorKnowledge,
    };
    let ca = match ca {
        Some(ca) => Some(ca?),
        None => None,
    };
    Some(target?.with(Timeouts { connect: connect?, response: response?, idle: idle? }, http2, ca))
}

/// What a URL says.
struct Target {
    tls: bool,
    host: Arc<str>,
    port: u16,
    authority: Arc<str>,
    base_path: Arc<str>,
}

#[derive(Clone, Copy)]
struct Timeouts {
    connect: Duration,
    response: Duration,
    idle: Duration,
}

impl Timeouts {
    const DEFAULT: Timeouts = Timeouts { connect: CONNECT_TIMEOUT, response: TIMEOUT, idle: IDLE_TIMEOUT };
}

impl Target {
    fn with(self, timeouts: Timeouts, http2: Http2, ca: Option<PathBuf>) -> Upstream {
        Upstream {
            tls: self.tls,
            host: self.host,
            port: self.port,
            authority: self.authority,
            base_path: self.base_path,
            connect_timeout: timeouts.connect,
            timeout: timeouts.response,
            idle_timeout: timeouts.idle,
            http2,
            ca,
        }
    }
}

/// No message holds any of the URL: it may carry credentials, put there by mistake.
fn target(check: &mut Check<'_>, given: &str, at: &At<'_>) -> Option<Target> {
    let fault = match http_url(given, &["http", "https"]) {
        Err(fault) => fault,
        Ok((url, _)) if url.query().is_some() || url.fragment().is_some() => {
            "the URL must have no query (`?`) and no fragment (`#`)"
        }
        Ok((url, host)) => {
            let tls = url.scheme() == "https";
            let port = url.port_or_known_default().unwrap_or(if tls { 443 } else { 80 });
            let authority = match url.port() {
                Some(port) => format!("{host}:{port}"),
                None => host.to_string(),
            };
            let name = match host {
                Host::Ipv6(address) => address.to_string(),
                other => other.to_string(),
            };
            return Some(Target {
                tls,
                host: name.into(),
                port,
                authority: authority.into(),
                base_path: url.path().trim_end_matches('/').into(),
            });
        }
    };
    check.problem(at, fault);
    None
}

/// Checked like the rest, though it is not supported yet.
fn proxy(check: &mut Check<'_>, given: &str, at: &At<'_>) {
    match http_url(given, &["http"]) {
        Ok((url, _)) if url.path() == "/" && url.query().is_none() && url.fragment().is_none() => {}
        Ok(_) => check.problem(at, "the URL of a proxy has no path, query or fragment"),
        Err(fault) => check.problem(at, fault),
    }
}

fn http_url(given: &str, schemes: &[&str]) -> Result<(Url, Host<String>), &'static str> {
    let url = match Url::parse(given) {
        Ok(url) if given.contains("://") => url,
        _ => return Err("expected a URL such as https://api.example.com"),
    };
    if !schemes.contains(&url.scheme()) {
        return Err(match schemes {
            ["http"] => "the URL must begin with http://",
            _ => "the URL must begin with http:// or https://",
        });
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("the URL must not hold a user or password; send credentials with `set_headers`");
    }
    if url.port() == Some(0) {
        return Err("port 0 cannot be connected to");
    }
    match url.host().map(|host| host.to_owned()) {
        Some(host) => Ok((url, host)),
        None => Err("the URL names no host"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_urls_are_upstreams() {
        for wrong in ["api.example.com", "ftp://a", "https://", "https://u:p@a", "http://a:0", "http:a", "/x"]
        {
            assert!(http_url(wrong, &["http", "https"]).is_err(), "{wrong}");
        }
        assert!(http_url("https://a", &["http"]).is_err());
        assert!(http_url("HTTPS://Api.Example.Com:8443/v1/", &["http", "https"]).is_ok());
    }
}
