//! Tells which headers that concern a proxy a message has. Knows nothing of their values.

use http::HeaderMap;

/// The prefix of headers between the client and weir.
pub(crate) const OWN_PREFIX: &str = "weir-";

/// The prefix of headers by which proxies tell of the way of a request before them.
const FORWARDED_PREFIX: &str = "x-forwarded-";

/// Returns whether a header tells of the way of a request before weir: `Forwarded`, `X-Real-IP` or any `X-Forwarded-*`, also with
/// underscores, which some servers take for the same.
pub(crate) fn is_forwarded(name: &str) -> bool {
    let folded = || name.bytes().map(|byte| if byte == b'_' { b'-' } else { byte });
    name == "forwarded"
        || folded().eq("x-real-ip".bytes())
        || folded().take(FORWARDED_PREFIX.len()).eq(FORWARDED_PREFIX.bytes())
}

/// The set of proxy-related headers of one message, found in a single pass over the names.
///
/// Most messages have hardly any of them, and every lookup in a `HeaderMap` hashes a name.
#[derive(Clone, Copy)]
pub(crate) struct HeaderFlags(u16);

impl HeaderFlags {
    pub(crate) const CONNECTION: HeaderFlags = HeaderFlags(1);
    pub(crate) const TE: HeaderFlags = HeaderFlags(1 << 1);
    pub(crate) const TRANSFER_ENCODING: HeaderFlags = HeaderFlags(1 << 2);
    pub(crate) const UPGRADE: HeaderFlags = HeaderFlags(1 << 3);
    /// Any of `Keep-Alive`, `Proxy-Connection`, `Proxy-Authenticate` and `Proxy-Authorization`.
    pub(crate) const OTHER_HOP_BY_HOP: HeaderFlags = HeaderFlags(1 << 4);
    pub(crate) const VIA: HeaderFlags = HeaderFlags(1 << 5);
    /// Any of those that [`is_forwarded`] names.
    pub(crate) const FORWARDED: HeaderFlags = HeaderFlags(1 << 6);
    /// Any `weir-*`.
    pub(crate) const OWN: HeaderFlags = HeaderFlags(1 << 7);
    /// Any of `Notion-Version`, which Notion's API demands, and `X-Twilio-Client`, which Twilio's SDK sends.
    pub(crate) const VENDOR: HeaderFlags = HeaderFlags(1 << 15);
    pub(crate) const EXPECT: HeaderFlags = HeaderFlags(1 << 8);
    pub(crate) const CONTENT_TYPE: HeaderFlags = HeaderFlags(1 << 9);
    /// Any of `Location`, `Content-Location` and `Link`.
    pub(crate) const LINKS: HeaderFlags = HeaderFlags(1 << 10);
    /// Any of `X-Amz-Date` and `X-Amz-Target`, which AWS's SDKs send.
    pub(crate) const AWS: HeaderFlags = HeaderFlags(1 << 11);
    /// Any header of others by which clients usually tell how long they wait.
    pub(crate) const PATIENCE: HeaderFlags = HeaderFlags(1 << 12);
    pub(crate) const ACCEPT: HeaderFlags = HeaderFlags(1 << 13);
    pub(crate) const CONTENT_LENGTH: HeaderFlags = HeaderFlags(1 << 14);

    /// Looks at every name.
    pub(crate) fn of(headers: &HeaderMap) -> HeaderFlags {
        let flags = headers.keys().map(|name| HeaderFlags::flag(name.as_str()).0);
        HeaderFlags(flags.fold(0, |all, flag| all | flag))
    }

    fn flag(name: &str) -> HeaderFlags {
        match name {
            "connection" => HeaderFlags::CONNECTION,
            "te" => HeaderFlags::TE,
            "transfer-encoding" => HeaderFlags::TRANSFER_ENCODING,
            "upgrade" => HeaderFlags::UPGRADE,
            "keep-alive" | "proxy-connection" | "proxy-authenticate" | "proxy-authorization" => {
                HeaderFlags::OTHER_HOP_BY_HOP
            }
            "via" => HeaderFlags::VIA,
            "notion-version" | "x-twilio-client" => HeaderFlags::VENDOR,
            "expect" => HeaderFlags::EXPECT,
            "content-type" => HeaderFlags::CONTENT_TYPE,
            "location" | "content-location" | "link" => HeaderFlags::LINKS,
            "x-amz-date" | "x-amz-target" => HeaderFlags::AWS,
            "x-stainless-timeout" | "x-stainless-read-timeout" | "x-server-timeout" | "grpc-timeout" => {
                HeaderFlags::PATIENCE
            }
            "accept" => HeaderFlags::ACCEPT,
            "content-length" => HeaderFlags::CONTENT_LENGTH,
            _ if name.starts_with(OWN_PREFIX) => HeaderFlags::OWN,
            _ if is_forwarded(name) => HeaderFlags::FORWARDED,
            _ => HeaderFlags(0),
        }
    }

    /// Returns whether the message has a header of this flag.
    pub(crate) fn has(self, flag: HeaderFlags) -> bool {
        self.0 & flag.0 != 0
    }
}
