//! `listen`, `server`, `admin` and `log`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;

use super::check::{Check, DAY, HOUR, MILLISECOND};
use super::place::{Given, key};
use super::upstream::public_url;
use crate::config::model::{AccessRule, Admin, Log, LogFormat, Secret, Server, ServerTls};
use crate::config::problem::quoted;
use crate::config::schema;
use crate::config::schema::Form;
use crate::config::units::{Share, Size};

const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 8080);
const ADMIN_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);
/// The smallest buffer that hyper accepts.
const HEADER_BYTES_MIN: Size = Size(8 * 1024);
const HEADER_BYTES_MAX: Size = Size(1024 * 1024);
const HEADER_BYTES: Size = Size(64 * 1024);
const BODY_MEMORY_MAX: Size = Size(64 * 1024 * 1024 * 1024);
const BODY_MEMORY: Size = Size(256 * 1024 * 1024);

/// Checks the address of the proxy's listener.
pub(super) fn listen(check: &mut Check<'_>, given: &Given<'_, Option<String>>) -> Option<SocketAddr> {
    address(check, given, LISTEN)
}

fn address(
    check: &mut Check<'_>,
    given: &Given<'_, Option<String>>,
    default: SocketAddr,
) -> Option<SocketAddr> {
    let Given { value, at } = given;
    let Some(text) = value else { return (!at.is_faulty()).then_some(default) };
    let address = text.parse().ok();
    address.or_else(|| {
        let fault = if at.is_interpolated() { String::new() } else { format!(": {}", address_fault(text)) };
        let message =
            format!("expected an IP address and a port, such as 127.0.0.1:8080 or [::]:8080{fault}");
        check.refuse(at, message)
    })
}

/// Returns the part of a text that is no address with a port.
fn address_fault(text: &str) -> String {
    match text.rsplit_once(':') {
        None => format!("{} has no port", quoted(text)),
        Some(_) if text.parse::<IpAddr>().is_ok() => {
            format!("an IPv6 address has brackets before the port: [{text}]:8080")
        }
        Some((_, port)) if port.parse::<u16>().is_err() => {
            format!("{} is no port from 0 to 65535", quoted(port))
        }
        Some((host, _)) => format!("{} is no IP address", quoted(host)),
    }
}

/// Checks how connections of clients are treated.
pub(super) fn server(check: &mut Check<'_>, given: &Given<'_, Option<schema::Server>>) -> Option<Server> {
    let absent = schema::Server::default();
    let server = given.or(&absent);
    let tls = key!(server.tls).checked(|given| tls(check, &given));
    let allow = allow(check, &key!(server.allow));
    let trusted_proxies = networks(check, &key!(server.trusted_proxies));
    let public_url = key!(server.public_url).checked(|url| public_url(check, &url));
    let seconds = Duration::from_secs;
    let max_connections = check.count(&key!(server.max_connections), 10_000, 1..=1_000_000);
    let header_timeout = check.bounded(&key!(server.header_timeout), seconds(10), MILLISECOND..=HOUR);
    let idle_timeout = check.bounded(&key!(server.idle_timeout), seconds(75), MILLISECOND..=DAY);
    let write_timeout = check.bounded(&key!(server.write_timeout), seconds(60), MILLISECOND..=DAY);
    let drain_delay = check.bounded(&key!(server.drain_delay), Duration::ZERO, Duration::ZERO..=HOUR);
    let drain_timeout = check.bounded(&key!(server.drain_timeout), seconds(30), Duration::ZERO..=DAY);
    let header_bytes = HEADER_BYTES_MIN..=HEADER_BYTES_MAX;
    let max_header_bytes = check.bounded(&key!(server.max_header_bytes), HEADER_BYTES, header_bytes);
    let body_memory = check.bounded(&key!(server.body_memory), BODY_MEMORY, Size(0)..=BODY_MEMORY_MAX);
    Some(Server {
        tls: tls?,
        allow,
        trusted_proxies,
        public_url: public_url?,
        errors: server.value.errors.unwrap_or_default(),
        max_connections: max_connections?,
        header_timeout: header_timeout?,
        idle_timeout: idle_timeout?,
        write_timeout: write_timeout?,
        max_header_bytes: u32::try_from(max_header_bytes?.0).ok()?,
        body_memory: body_memory?.0,
        drain_delay: drain_delay?,
        drain_timeout: drain_timeout?,
    })
}

fn tls(check: &mut Check<'_>, tls: &Given<'_, schema::ServerTls>) -> Option<ServerTls> {
    let at_key = key!(tls.key);
    let cert = check.certificates(&key!(tls.cert));
    let key = check.private_key(&at_key);
    let client_ca = key!(tls.client_ca).checked(|path| check.authorities(&path));
    let (client_ca, cert, key) = (client_ca?, cert?, key?);
    check.belong_together(&cert, &key, &at_key.at).then_some(ServerTls { cert, key, client_ca })
}

fn allow(check: &mut Check<'_>, given: &Given<'_, Option<Vec<String>>>) -> Option<Vec<IpNet>> {
    given.get()?;
    if given.at.length() == 0 {
        check.problem(&given.at, "lets nobody in; leave the key out to let everyone in");
    }
    Some(networks(check, given))
}

fn networks(check: &mut Check<'_>, given: &Given<'_, Option<Vec<String>>>) -> Vec<IpNet> {
    let mut networks = Vec::new();
    for text in given.items() {
        let Some(network) = network(text.value) else {
            let fault = network_fault(text.value);
            let fault = if text.at.is_interpolated() { String::new() } else { format!(": {fault}") };
            let expected = "expected an IP address or a CIDR block, such as 10.0.0.0/8 or ::1";
            check.problem(&text.at, format!("{expected}{fault}"));
            continue;
        };
        networks.push(network);
    }
    networks
}

/// Returns the part of a text that is no address or block of addresses.
fn network_fault(text: &str) -> String {
    let (address, prefix) =
        text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
    match (address.parse::<IpAddr>(), prefix) {
        (Ok(address), Some(prefix)) => {
            let bits = if address.is_ipv4() { 32 } else { 128 };
            format!("{} is no length of a prefix from 0 to {bits}", quoted(prefix))
        }
        (Ok(_), None) | (Err(_), _) => format!("{} is no IP address", quoted(address)),
    }
}

/// Parses a CIDR block, or an address as a block of one. A block of IPv4-mapped IPv6 addresses becomes an IPv4 block,
/// because client addresses are compared in that form.
fn network(text: &str) -> Option<IpNet> {
    let network = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))?;
    match (network.addr().to_canonical(), network.prefix_len()) {
        (IpAddr::V4(address), length) if network.addr().is_ipv6() => {
            IpNet::new(address.into(), length.checked_sub(96)?).ok()
        }
        _ => Some(network),
    }
}

/// Checks the admin listener. A missing token is no problem: without one, only health and metrics are served beyond
/// loopback.
pub(super) fn admin(
    check: &mut Check<'_>,
    given: &Given<'_, Option<schema::Admin>>,
    traffic: Option<SocketAddr>,
) -> Option<Admin> {
    let absent = schema::Admin::default();
    let admin = given.or(&absent);
    let address = address(check, &key!(admin.listen), ADMIN_LISTEN);
    if let (Some(address), Some(traffic)) = (address, traffic)
        && overlap(address, traffic)
    {
        let message = format!("{address} and `listen` ({traffic}) take the same port; choose another");
        return check.refuse(&key!(admin.listen).at, message);
    }
    let token = admin.value.token.as_deref().filter(|token| !token.is_empty());
    let read_token = admin.value.read_token.as_deref().filter(|token| !token.is_empty());
    let malformed = "must consist of visible ASCII characters, without spaces";
    if token.is_some_and(|token| !is_token(token)) {
        return check.refuse(&key!(admin.token).at, malformed);
    }
    if read_token.is_some_and(|token| !is_token(token)) {
        return check.refuse(&key!(admin.read_token).at, malformed);
    }
    if read_token.is_some() && token.is_none() {
        let message = "needs `token` beside it: without one, nothing is asked for on loopback";
        return check.refuse(&key!(admin.read_token).at, message);
    }
    if read_token.is_some() && read_token == token {
        return check.refuse(&key!(admin.read_token).at, "is `token`, too: choose another");
    }
    Some(Admin { listen: address?, token: token.map(Secret::new), read_token: read_token.map(Secret::new) })
}

/// Returns whether two listeners cannot both be bound. Port 0 is any free port. `[::]` takes IPv4, too, `0.0.0.0` that alone.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let (ip, other_ip) = (one.ip().to_canonical(), other.ip().to_canonical());
    let takes = |all: IpAddr, ip: IpAddr| all.is_unspecified() && (all.is_ipv6() || ip.is_ipv4());
    let same_port = one.port() == other.port() && one.port() != 0;
    same_port && (ip == other_ip || takes(ip, other_ip) || takes(other_ip, ip))
}

/// Returns whether a text fits behind `Bearer ` in a header.
pub(super) fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Checks logging.
pub(super) fn log(check: &mut Check<'_>, given: &Given<'_, Option<schema::Log>>) -> Option<Log> {
    let absent = schema::Log::default();
    let log = given.or(&absent);
    let level = match log.value.level {
        Some(schema::LogLevel::Error) => tracing::Level::ERROR,
        Some(schema::LogLevel::Warn) => tracing::Level::WARN,
        None | Some(schema::LogLevel::Info) => tracing::Level::INFO,
        Some(schema::LogLevel::Debug) => tracing::Level::DEBUG,
        Some(schema::LogLevel::Trace) => tracing::Level::TRACE,
    };
    let format = match log.value.format {
        None | Some(schema::LogFormat::Json) => LogFormat::Json,
        Some(schema::LogFormat::Text) => LogFormat::Text,
    };
    let access = match &log.value.access {
        None | Some(Form::Short(true)) => Some(AccessRule::ALL),
        Some(Form::Short(false)) => None,
        Some(Form::Long(access)) => Some(access_rule(check, &log.part(access, "access"))?),
    };
    Some(Log { level, format, access })
}

fn access_rule(check: &mut Check<'_>, access: &Given<'_, schema::AccessLog>) -> Option<AccessRule> {
    let sample = check.bounded(&key!(access.sample), Share::NONE, Share::NONE..=Share::WHOLE);
    let slow = key!(access.slow).checked(|slow| check.within(&slow, MILLISECOND..=DAY));
    Some(AccessRule { sample_ppm: sample?.ppm, slow: slow? })
}
