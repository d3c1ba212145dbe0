//! The parts of a limiter's key. Reads no request.

use std::sync::Arc;

use http::HeaderName;

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
}
