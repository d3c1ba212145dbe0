//! `listen`, `server`, `admin` and `log`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;

use super::place::At;
use super::{Check, DAY, HOUR, MILLISECOND};
use crate::config::model::{Admin, Log, LogFormat, Secret, Server, ServerTls};
use crate::config::problem::quoted;
use crate::config::schema;
use crate::config::units::Size;
use crate::limiter::model::limit::LimiterName;

const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 8080);
const ADMIN_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);
/// hyper's own smallest buffer; less is not an HTTP server.
const HEADER_BYTES_MIN: Size = Size(8 * 1024);
const HEADER_BYTES_MAX: Size = Size(1024 * 1024);
const HEADER_BYTES: Size = Size(64 * 1024);

/// Where applications send their calls.
pub(super) fn listen(check: &mut Check<'_>, given: Option<&str>, at: &At<'_>) -> Option<SocketAddr> {
    address(check, given, LISTEN, at)
}

fn address(
    check: &mut Check<'_>,
    given: Option<&str>,
    default: SocketAddr,
    at: &At<'_>,
) -> Option<SocketAddr> {
    let Some(given) = given else { return (!at.is_faulty()).then_some(default) };
    let address = given.parse().ok();
    if address.is_none() {
        let found = if at.is_interpolated() { String::new() } else { format!(", found {}", quoted(given)) };
        let message =
            format!("expected an IP address and a port, such as 127.0.0.1:8080 or [::]:8080{found}");
        check.problem(at, message);
    }
    address
}

pub(super) fn server(check: &mut Check<'_>, given: Option<&schema::Server>, at: &At<'_>) -> Option<Server> {
    let absent = schema::Server::default();
    let given = given.unwrap_or(&absent);
    let tls = given.tls.as_ref().map(|given| tls(check, given, &at.key("tls")));
    let allow = allow(check, given.allow.as_deref(), &at.key("allow"));
    let trusted = given.trusted_proxies.as_deref().unwrap_or_default();
    let trusted_proxies = networks(check, trusted, &at.key("trusted_proxies"));

    let seconds = Duration::from_secs;
    let max_connections =
        check.count(given.max_connections, 10_000, 1..=1_000_000, &at.key("max_connections"));
    let header_timeout =
        check.duration(given.header_timeout, seconds(10), MILLISECOND..=HOUR, &at.key("header_timeout"));
    let idle_timeout =
        check.duration(given.idle_timeout, seconds(75), MILLISECOND..=DAY, &at.key("idle_timeout"));
    let drain_delay =
        check.duration(given.drain_delay, Duration::ZERO, Duration::ZERO..=HOUR, &at.key("drain_delay"));
    let drain_timeout =
        check.duration(given.drain_timeout, seconds(30), Duration::ZERO..=DAY, &at.key("drain_timeout"));
    let header_bytes = HEADER_BYTES_MIN..=HEADER_BYTES_MAX;
    let max_header_bytes =
        check.size(given.max_header_bytes, HEADER_BYTES, header_bytes, &at.key("max_header_bytes"));
    let tls = match tls {
        Some(tls) => Some(tls?),
        None => None,
    };
    Some(Server {
        tls,
        allow,
        trusted_proxies,
        max_connections: max_connections?,
        header_timeout: header_timeout?,
        idle_timeout: idle_timeout?,
        max_header_bytes: u32::try_from(max_header_bytes?.0).ok()?,
        drain_delay: drain_delay?,
        drain_timeout: drain_timeout?,
    })
}

fn tls(check: &mut Check<'_>, given: &schema::ServerTls, at: &At<'_>) -> Option<ServerTls> {
    let cert = check.certificates(&given.cert, &at.key("cert"));
    let key = check.private_key(&given.key, &at.key("key"));
    let client_ca = given.client_ca.as_deref().map(|path| check.certificates(path, &at.key("client_ca")));
    let client_ca = match client_ca {
        Some(path) => Some(path?),
        None => None,
    };
    let (cert, key) = (cert?, key?);
    check.belong_together(&cert, &key, &at.key("key")).then_some(ServerTls { cert, key, client_ca })
}

fn allow(check: &mut Check<'_>, given: Option<&[String]>, at: &At<'_>) -> Option<Vec<IpNet>> {
    let given = given?;
    if at.length() == 0 {
        check.problem(at, "lets nobody in; leave the key out to let everyone in");
    }
    Some(networks(check, given, at))
}

fn networks(check: &mut Check<'_>, given: &[String], at: &At<'_>) -> Vec<IpNet> {
    let mut networks = Vec::with_capacity(given.len());
    for (index, text) in given.iter().enumerate() {
        match network(text) {
            Some(network) => networks.push(network),
            None => {
                let expected = "expected an IP address or a CIDR block, such as 10.0.0.0/8 or ::1";
                check.problem(&at.index(index), expected);
            }
        }
    }
    networks
}

/// An address is a block of one. An IPv4 block in the form that IPv6 has for it is an IPv4 block: the addresses that are
/// looked for have that form, too.
fn network(text: &str) -> Option<IpNet> {
    let network = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))?;
    match (network.addr().to_canonical(), network.prefix_len()) {
        (IpAddr::V4(address), length) if network.addr().is_ipv6() => {
            IpNet::new(address.into(), length.checked_sub(96)?).ok()
        }
        _ => Some(network),
    }
}

/// Without a token only health and metrics are served beyond loopback, so its absence is no problem.
pub(super) fn admin(
    check: &mut Check<'_>,
    given: Option<&schema::Admin>,
    traffic: Option<SocketAddr>,
    at: &At<'_>,
) -> Option<Admin> {
    let absent = schema::Admin::default();
    let given = given.unwrap_or(&absent);
    let at_listen = at.key("listen");
    let address = address(check, given.listen.as_deref(), ADMIN_LISTEN, &at_listen);
    if let (Some(address), Some(traffic)) = (address, traffic)
        && overlap(address, traffic)
    {
        let message = format!("{address} and `listen` ({traffic}) take the same port; choose another");
        check.problem(&at_listen, message);
        return None;
    }
    let token = given.token.as_deref().filter(|token| !token.is_empty());
    if token.is_some_and(|token| !is_token(token)) {
        check.problem(&at.key("token"), "must consist of visible ASCII characters, without spaces");
        return None;
    }
    Some(Admin { listen: address?, token: token.map(Secret::new) })
}

/// Whether one of the two could not be bound; port 0 is any free port.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let same_port = one.port() == other.port() && one.port() != 0;
    same_port && (one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified())
}

/// What fits behind `Bearer ` in a header.
pub(super) fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

pub(super) fn log(given: Option<&schema::Log>) -> Log {
    let absent = schema::Log::default();
    let given = given.unwrap_or(&absent);
    let level = match given.level {
        Some(schema::LogLevel::Error) => tracing::Level::ERROR,
        Some(schema::LogLevel::Warn) => tracing::Level::WARN,
        None | Some(schema::LogLevel::Info) => tracing::Level::INFO,
        Some(schema::LogLevel::Debug) => tracing::Level::DEBUG,
        Some(schema::LogLevel::Trace) => tracing::Level::TRACE,
    };
    let format = match given.format {
        None | Some(schema::LogFormat::Json) => LogFormat::Json,
        Some(schema::LogFormat::Text) => LogFormat::Text,
    };
    Log { level, format, access: given.access.unwrap_or(true) }
}

/// Whether a key is a name; reports it otherwise.
pub(super) fn is_name(check: &mut Check<'_>, name: &str, at: &At<'_>) -> bool {
    let valid = LimiterName::parse(name).is_some();
    if !valid {
        check.problem_of_key(at, NAME_EXPECTED);
    }
    valid
}

/// What a name may be.
pub(super) const NAME_EXPECTED: &str = "a name is 1 to 64 letters, digits, `_`, `.` or `-`";
