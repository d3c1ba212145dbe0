//! `limiters.NAME.key`: the parts of a request that select its partition.

use std::sync::Arc;

use http::HeaderName;

use super::check::Check;
use super::json::json_path;
use super::pattern::regex;
use super::place::{Given, all, key};
use crate::config::key_part::{CLIENT_IP, IPV4_PREFIX, IPV6_PREFIX};
use crate::config::model::{JsonPath, KeyPart, PathPattern, ValueMap};
use crate::config::schema::{self, Form};

/// The most parts of a key. Each request reads all of them.
const KEY_PARTS_MAX: usize = 16;
/// The most entries of a map. Each request is compared with all of them.
const MAP_MAX: usize = 256;

/// Checks the parts of a limiter's key; none without a `key`.
pub(super) fn key_parts(
    check: &mut Check<'_>,
    limiter: &Given<'_, schema::Limiter>,
    has_clients: bool,
) -> Option<Arc<[KeyPart]>> {
    let given = key!(limiter.key);
    let (ipv4, ipv6) = (key!(limiter.ipv4_prefix), key!(limiter.ipv6_prefix));
    let is_address =
        |part: &Form<String, schema::KeyFrom>| matches!(part, Form::Short(part) if part == CLIENT_IP);
    let counts_addresses = given.items().any(|part| is_address(part.value));
    for prefix in [&ipv4, &ipv6].into_iter().filter(|prefix| prefix.value.is_some() && !counts_addresses) {
        check.problem_of_key(&prefix.at, "only with `client_ip` in `key`");
    }
    let (ipv4, ipv6) = (check.count(&ipv4, IPV4_PREFIX, 1..=32), check.count(&ipv6, IPV6_PREFIX, 1..=128));
    let network = (u8::try_from(ipv4?).ok()?, u8::try_from(ipv6?).ok()?);
    if given.get().is_none() {
        return Some(Arc::new([]));
    }
    if !(1..=KEY_PARTS_MAX).contains(&given.at.length()) {
        return check.refuse(&given.at, format!("needs 1 to {KEY_PARTS_MAX} parts, such as header:x-tenant"));
    }
    let mut earlier: Vec<KeyPart> = Vec::new();
    let parts = all(given.items().map(|given| {
        let part = match given.value {
            Form::Short(text) => short(check, &Given::new(text, given.at.clone()), network),
            Form::Long(long) => long_form(check, &Given::new(long, given.at.clone())),
        }?;
        let fault = if earlier.contains(&part) {
            "this part is given twice"
        } else if part == KeyPart::Client && !has_clients {
            "`client` needs `clients` at the top of the file, which identify callers"
        } else {
            earlier.push(part.clone());
            return Some(part);
        };
        check.refuse(&given.at, fault)
    }));
    parts.map(Arc::from)
}

/// Reads a part of a key. `network` has the bits of a client's address, of IPv4 and IPv6.
fn short(check: &mut Check<'_>, given: &Given<'_, String>, (ipv4, ipv6): (u8, u8)) -> Option<KeyPart> {
    let part = given.value.as_str();
    let read = match part.split_once(':') {
        None if part == "host" => Some(KeyPart::Host),
        None if part == CLIENT_IP => Some(KeyPart::ClientIp { ipv4, ipv6 }),
        None if part == "client" => Some(KeyPart::Client),
        Some(("header", name)) => HeaderName::try_from(name).ok().map(KeyPart::Header),
        Some(("json", path)) => JsonPath::parse(path).map(KeyPart::Json),
        Some(("query", name)) if !name.is_empty() => Some(KeyPart::Query(name.into())),
        // Rust would also parse `+5`.
        Some(("path", segment)) if segment.bytes().all(|byte| byte.is_ascii_digit()) => {
            segment.parse().ok().map(KeyPart::Path)
        }
        _ => None,
    };
    let expected = "expected header:NAME, query:NAME, host, path:N (a segment, from 0), client_ip, client or json:PATH \
                    (such as json:model)";
    read.or_else(|| check.refuse(&given.at, expected))
}

fn long_form(check: &mut Check<'_>, part: &Given<'_, schema::KeyFrom>) -> Option<KeyPart> {
    let source = match (key!(part.json).get(), key!(part.path_regex).get()) {
        (Some(path), None) => json_path(check, &path).map(KeyPart::Json),
        (None, Some(pattern)) => path_pattern(check, &pattern).map(KeyPart::Captured),
        _ => check.refuse(&part.at, "needs either `json` or `path_regex`"),
    };
    let map = key!(part.map).checked(|map| {
        if !(1..=MAP_MAX).contains(&map.at.names().len()) {
            return check
                .refuse(&map.at, format!("needs 1 to {MAP_MAX} values, such as {{\"gpt-5*\": gpt-5}}"));
        }
        Some(ValueMap::new(map.entries().map(|(pattern, value)| (pattern, value.value.as_str()))))
    });
    Some(match map? {
        Some(map) => KeyPart::Mapped(Box::new(source?), map),
        None => source?,
    })
}

fn path_pattern(check: &mut Check<'_>, given: &Given<'_, String>) -> Option<PathPattern> {
    let pattern = regex(check, given, |pattern| pattern.to_owned())?;
    if pattern.captures_len() > 2 {
        return check.refuse(&given.at, "has more than one group; write others as (?:...)");
    }
    Some(PathPattern::new(pattern))
}
