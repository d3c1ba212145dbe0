//! `routes.upstream`: the server behind a route, and the proxy in between.

use std::sync::Arc;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use rustls_pki_types::ServerName;
use url::{Host, ParseError, Url};

use super::check::{Check, DAY, HOUR, MILLISECOND};
use super::place::{Given, key};
use crate::config::model::{Http2, OutboundProxy, Secret, Upstream, UpstreamTimeouts};
use crate::config::schema::{self, Form};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(60);
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
const TUNNEL_TIMEOUT: Duration = HOUR;
const TUNNEL_TIMEOUT_MAX: Duration = Duration::from_secs(7 * 86_400);
/// The fault of a URL whose host is none that [`can_be_certified`].
pub(super) const NO_SERVER_NAME: &str = "no certificate can have the host of the URL as its name: each label has 1 to 63 letters, digits and inner hyphens";

/// Checks the upstream of a route, as a URL or as a mapping.
pub(super) fn upstream(
    check: &mut Check<'_>,
    given: &Given<'_, Form<String, schema::Upstream>>,
) -> Option<Upstream> {
    let upstream = match given.value {
        Form::Short(url) => {
            return target(check, &Given::new(url, given.at.clone())).map(Target::with_defaults);
        }
        Form::Long(long) => Given::new(long, given.at.clone()),
    };
    let (ca, cert, key) = (key!(upstream.ca), key!(upstream.cert), key!(upstream.key));
    let target = target(check, &key!(upstream.url));
    let bounds = MILLISECOND..=DAY;
    let connect_timeout = check.bounded(&key!(upstream.connect_timeout), CONNECT_TIMEOUT, MILLISECOND..=HOUR);
    let timeout = check.bounded(&key!(upstream.timeout), TIMEOUT, bounds.clone());
    let idle_timeout = check.bounded(&key!(upstream.idle_timeout), IDLE_TIMEOUT, bounds);
    let bounds = MILLISECOND..=TUNNEL_TIMEOUT_MAX;
    let tunnel_timeout = check.bounded(&key!(upstream.tunnel_timeout), TUNNEL_TIMEOUT, bounds);
    let ca_path = ca.checked(|path| check.authorities(&path));
    let identity = check.identity(&cert, &key);
    if target.as_ref().is_some_and(|target| !target.tls) {
        for file in [ca, cert, key].iter().filter(|file| file.at.is_given()) {
            check.problem_of_key(&file.at, "needs a URL that begins with https://");
        }
    }
    let proxy = key!(upstream.proxy).checked(|url| proxy(check, &url));
    Some(Upstream {
        timeouts: UpstreamTimeouts {
            connect: connect_timeout?,
            headers: timeout?,
            idle: idle_timeout?,
            tunnel: tunnel_timeout?,
        },
        http2: upstream.value.http2.unwrap_or_default(),
        ca: ca_path?,
        identity: identity?,
        proxy: proxy?,
        ..target?.with_defaults()
    })
}

/// The parts of an upstream's URL.
struct Target {
    tls: bool,
    host: Arc<str>,
    port: u16,
    authority: Arc<str>,
    base_path: Arc<str>,
}

impl Target {
    /// Returns the upstream with the default of every other key.
    fn with_defaults(self) -> Upstream {
        Upstream {
            tls: self.tls,
            host: self.host,
            port: self.port,
            authority: self.authority,
            base_path: self.base_path,
            timeouts: UpstreamTimeouts {
                connect: CONNECT_TIMEOUT,
                headers: TIMEOUT,
                idle: IDLE_TIMEOUT,
                tunnel: TUNNEL_TIMEOUT,
            },
            http2: Http2::Auto,
            ca: None,
            identity: None,
            proxy: None,
        }
    }
}

/// Parses an upstream's URL. Messages contain no part of it: it may hold credentials by mistake.
fn target(check: &mut Check<'_>, given: &Given<'_, String>) -> Option<Target> {
    let fault = match http_url(given.value, &["http", "https"]) {
        Err(fault) => fault,
        Ok((url, _)) if url.query().is_some() || url.fragment().is_some() => {
            "the URL must have no query (`?`) and no fragment (`#`)"
        }
        Ok((url, host)) if url.scheme() == "https" && !can_be_certified(&host) => NO_SERVER_NAME,
        Ok((url, host)) => {
            let tls = url.scheme() == "https";
            let port = url.port_or_known_default().unwrap_or(if tls { 443 } else { 80 });
            let authority = match url.port() {
                Some(port) => format!("{host}:{port}"),
                None => host.to_string(),
            };
            return Some(Target {
                tls,
                host: name(&host).into(),
                port,
                authority: authority.into(),
                base_path: url.path().trim_end_matches('/').into(),
            });
        }
    };
    check.refuse(&given.at, fault)
}

/// Parses the URL at which applications reach weir, and returns its scheme and authority.
pub(super) fn public_url(check: &mut Check<'_>, given: &Given<'_, String>) -> Option<Arc<str>> {
    match http_url(given.value, &["http", "https"]) {
        Ok((url, _)) if url.path() != "/" || url.query().is_some() || url.fragment().is_some() => {
            check.refuse(&given.at, "the URL must have no path, query or fragment")
        }
        Ok((url, _)) => Some(url.as_str().trim_end_matches('/').into()),
        Err(fault) => check.refuse(&given.at, fault),
    }
}

/// Parses an outbound proxy's URL. Messages contain no part of it: it may hold credentials.
fn proxy(check: &mut Check<'_>, given: &Given<'_, String>) -> Option<OutboundProxy> {
    match outbound_proxy(given.value) {
        Ok(proxy) => Some(proxy),
        Err(fault) => check.refuse(&given.at, fault),
    }
}

fn outbound_proxy(given: &str) -> Result<OutboundProxy, &'static str> {
    // The URL parser skips extra slashes, backslashes and line ends. The mask for shown configurations does not, and
    // must find the same credentials.
    let is_plain = |rest: &str| {
        !rest.starts_with('/') && !rest.contains(|odd: char| odd == '\\' || odd.is_control() || odd == ' ')
    };
    if given.split_once("://").is_some_and(|(_, rest)| !is_plain(rest)) {
        return Err("expected a URL such as http://proxy.internal:3128");
    }
    let (url, host) = any_url(given, &["http"])?;
    if url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
        return Err(
            "the URL of a proxy has no path, query or fragment; in a user or password these are percent-encoded",
        );
    }
    let credentials = match (url.username(), url.password().unwrap_or_default()) {
        ("", "") => None,
        (user, password) => Some(credentials(user, password)?),
    };
    Ok(OutboundProxy { host: name(&host).into(), port: url.port().unwrap_or(80), credentials })
}

/// Formats credentials as `USER:PASSWORD` (RFC 7617).
fn credentials(user: &str, password: &str) -> Result<Secret, &'static str> {
    let decoded =
        |text| percent_decode_str(text).decode_utf8().map_err(|_| "the user or password is not UTF-8");
    let (user, password) = (decoded(user)?, decoded(password)?);
    if user.contains(':') {
        return Err("the user must not hold a colon: in HTTP it ends the user");
    }
    if user.chars().chain(password.chars()).any(char::is_control) {
        return Err("the user and password must not hold control characters");
    }
    Ok(Secret::new(&format!("{user}:{password}")))
}

fn http_url(given: &str, schemes: &[&str]) -> Result<(Url, Host<String>), &'static str> {
    let (url, host) = any_url(given, schemes)?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err("the URL must not hold a user or password; send credentials with `set_headers`");
    }
    Ok((url, host))
}

fn any_url(given: &str, schemes: &[&str]) -> Result<(Url, Host<String>), &'static str> {
    let url = match Url::parse(given) {
        Ok(url) if given.contains("://") => url,
        Err(error) if given.contains("://") => return Err(url_fault(error)),
        _ => return Err("expected a URL such as https://api.example.com: the scheme and `://` are missing"),
    };
    if !schemes.contains(&url.scheme()) {
        return Err(match schemes {
            ["http"] => "the URL must begin with http://",
            _ => "the URL must begin with http:// or https://",
        });
    }
    if url.port() == Some(0) {
        return Err("port 0 cannot be connected to");
    }
    match url.host().map(|host| host.to_owned()) {
        Some(host) => Ok((url, host)),
        None => Err("the URL names no host"),
    }
}

/// Returns the part of a URL that is wrong. It repeats nothing of the URL, which may hold credentials.
fn url_fault(error: ParseError) -> &'static str {
    match error {
        ParseError::EmptyHost => "the URL names no host",
        ParseError::InvalidPort => "the port of the URL is not a number from 1 to 65535",
        ParseError::InvalidIpv4Address => "the host of the URL looks like an IPv4 address, and is none",
        ParseError::InvalidIpv6Address => "the host of the URL looks like an IPv6 address, and is none",
        ParseError::IdnaError | ParseError::InvalidDomainCharacter => {
            "the host of the URL holds characters that no host name can have"
        }
        _ => "expected a URL such as https://api.example.com",
    }
}

/// Returns whether a certificate can have a host as its name. With another one no handshake can begin.
pub(super) fn can_be_certified(host: &Host<String>) -> bool {
    ServerName::try_from(name(host)).is_ok()
}

/// Returns a host without the brackets of an IPv6 address.
fn name(host: &Host<String>) -> String {
    match host {
        Host::Ipv6(address) => address.to_string(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_an_http_url_without_credentials() {
        for wrong in ["api.example.com", "ftp://a", "https://", "https://u:p@a", "http://a:0", "http:a", "/x"]
        {
            assert!(http_url(wrong, &["http", "https"]).is_err(), "{wrong}");
        }
        assert!(http_url("https://a", &["http"]).is_err());
        assert!(http_url("HTTPS://Api.Example.Com:8443/v1/", &["http", "https"]).is_ok());
    }

    #[test]
    fn a_proxy_may_have_credentials() {
        let proxy = |url| outbound_proxy(url).unwrap();
        let revealed = |url| proxy(url).credentials.map(|secret| secret.reveal().to_owned());
        assert_eq!(
            (&*proxy("http://egress.corp:3128").host, proxy("http://egress.corp:3128/").port),
            ("egress.corp", 3128)
        );
        assert_eq!((&*proxy("HTTP://[::1]").host, proxy("http://a").port), ("::1", 80));
        assert_eq!(revealed("http://a:1"), None);
        assert_eq!(revealed("http://u:p@a:1").as_deref(), Some("u:p"));
        assert_eq!(revealed("http://corp%5Cjane:p%40ss%2F%3A@a").as_deref(), Some("corp\\jane:p@ss/:"));
        assert_eq!(revealed("http://token@a").as_deref(), Some("token:"));
        assert!(!format!("{:?}", proxy("http://u:s3cret@a")).contains("s3cret"));
    }

    #[test]
    fn an_invalid_proxy_is_refused_without_repeating_it() {
        for wrong in [
            "egress:3128",
            "https://a:1",
            "socks5://a:1",
            "http://s3cret@a:0",
            "http://s3cret:s3cret@",
            "http://u:s3/cret@a",
            "http://u:s3?cret@a",
            "http://u:s3#cret@a",
            "http://u:s3cret@a/path",
            "http:u:s3cret@a",
            "http:///u:s3cret@a",
            "http:\\\\u:s3cret@a",
            "http://\\u:s3cret@a",
            "http://\nu:s3cret@a",
            "http://u:s3%0acret@a",
            "http://u%3As3cret@a",
            "http://u:s3%ffcret@a",
        ] {
            let fault = outbound_proxy(wrong).unwrap_err();
            assert!(!fault.contains("s3"), "{wrong}: {fault}");
        }
    }
}
