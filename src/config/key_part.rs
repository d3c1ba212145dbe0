//! The parts of a limiter's key. Reads no request.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use http::HeaderName;
use ipnet::IpNet;

use super::json_path::JsonPath;
use super::value_map::{PathPattern, ValueMap};

/// The part for the client's address, as it is written.
pub(crate) const CLIENT_IP: &str = "client_ip";
/// The bits of an address that count where nothing else is written: an IPv6 client has a whole network of addresses.
pub(crate) const IPV4_PREFIX: u32 = 32;
pub(crate) const IPV6_PREFIX: u32 = 64;

/// A part of a limiter's key, read from a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyPart {
    /// The value of a header.
    Header(HeaderName),
    /// The value of a parameter of the query.
    Query(Arc<str>),
    /// The host, without a port.
    Host,
    /// A segment of the decoded path, from 0.
    Path(u8),
    /// The network of the client's address: as many bits of it as belong to one client.
    ClientIp {
        /// The bits of an IPv4 address.
        ipv4: u8,
        /// The bits of an IPv6 address.
        ipv6: u8,
    },
    /// The name of the client.
    Client,
    /// The value at a place of the JSON body.
    Json(JsonPath),
    /// A part of the decoded path.
    Captured(PathPattern),
    /// The family that a value is of.
    Mapped(Box<KeyPart>, ValueMap),
    /// The name of the route: this one.
    Route(Arc<str>),
}

impl KeyPart {
    /// Returns whether the value is likely to be a credential.
    pub(crate) fn is_credential(&self) -> bool {
        match self {
            KeyPart::Header(name) => is_credential(name),
            KeyPart::Query(name) => is_secret_name(name),
            KeyPart::Json(path) => path.steps().iter().any(|step| is_secret_name(step)),
            KeyPart::Mapped(part, _) => part.is_credential(),
            KeyPart::Host
            | KeyPart::Path(_)
            | KeyPart::ClientIp { .. }
            | KeyPart::Client
            | KeyPart::Captured(_)
            | KeyPart::Route(_) => false,
        }
    }

    /// Returns a value as it is read in requests: of a host, of a network, of a family.
    ///
    /// # Errors
    /// The fault of a value that no request can have.
    pub(crate) fn read_as<'a>(&'a self, value: &'a str) -> Result<Cow<'a, str>, &'static str> {
        match self {
            KeyPart::Host if has_port(value) => Err(
                "expected a host without a port, such as api.example.com or [2001:db8::1], for a `key` of host",
            ),
            KeyPart::Host => Ok(value.strip_suffix('.').unwrap_or(value).to_ascii_lowercase().into()),
            KeyPart::ClientIp { ipv4, ipv6 } => match value.parse::<IpAddr>() {
                Ok(address) => Ok(network(address, *ipv4, *ipv6).to_string().into()),
                Err(_) => {
                    Err("expected an address, such as 192.0.2.1 or 2001:db8::, for a `key` of client_ip")
                }
            },
            KeyPart::Mapped(_, map) => Ok(map.of(value).into()),
            KeyPart::Header(_)
            | KeyPart::Query(_)
            | KeyPart::Path(_)
            | KeyPart::Client
            | KeyPart::Json(_)
            | KeyPart::Captured(_)
            | KeyPart::Route(_) => Ok(value.into()),
        }
    }

    /// Returns the place in the JSON body that is read; `None` if none is.
    pub(crate) fn json_path(&self) -> Option<&JsonPath> {
        match self {
            KeyPart::Json(path) => Some(path),
            KeyPart::Mapped(part, _) => part.json_path(),
            _ => None,
        }
    }
}

/// The part as it is written in a `key`.
impl fmt::Display for KeyPart {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyPart::Header(name) => write!(formatter, "header:{name}"),
            KeyPart::Query(name) => write!(formatter, "query:{name}"),
            KeyPart::Host => formatter.write_str("host"),
            KeyPart::Path(index) => write!(formatter, "path:{index}"),
            KeyPart::ClientIp { .. } => formatter.write_str(CLIENT_IP),
            KeyPart::Client => formatter.write_str("client"),
            KeyPart::Json(path) => write!(formatter, "json:{path}"),
            KeyPart::Captured(pattern) => write!(formatter, "path_regex:{}", pattern.as_str()),
            KeyPart::Mapped(part, _) => part.fmt(formatter),
            KeyPart::Route(_) => formatter.write_str("route"),
        }
    }
}

/// Returns whether a header is likely to carry a credential.
pub(crate) fn is_credential(name: &HeaderName) -> bool {
    is_secret_name(name.as_str())
}

/// Returns whether something with this name is likely to be a credential.
pub(super) fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let words = ["auth", "cookie", "key", "token", "secret", "password", "signature", "credential"];
    words.iter().any(|word| name.contains(word))
}

/// Returns whether anything follows a host that is an address in brackets, or a name.
fn has_port(value: &str) -> bool {
    let after_address = value.strip_prefix('[').and_then(|value| value.split_once(']'));
    after_address.map_or(value, |(_, rest)| rest).contains(':')
}

/// Returns the first address of a client's network: one client has many addresses of IPv6.
pub(crate) fn network(address: IpAddr, ipv4: u8, ipv6: u8) -> IpAddr {
    let address = address.to_canonical();
    let bits = if address.is_ipv4() { ipv4 } else { ipv6 };
    IpNet::new(address, bits).map_or(address, |network| network.network())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_client_has_the_addresses_of_its_network() {
        let network =
            |address: &str, ipv4, ipv6| super::network(address.parse().unwrap(), ipv4, ipv6).to_string();
        assert_eq!(network("2001:db8:1:2:3:4:5:6", 32, 64), "2001:db8:1:2::");
        assert_eq!(network("2001:db8:1:2:3:4:5:6", 32, 48), "2001:db8:1::");
        assert_eq!(network("2001:db8:1:2:3:4:5:6", 32, 128), "2001:db8:1:2:3:4:5:6");
        assert_eq!(network("::ffff:10.1.2.3", 32, 64), "10.1.2.3");
        assert_eq!(network("10.1.2.3", 24, 64), "10.1.2.0");
    }
}
