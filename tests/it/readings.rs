//! An upstream reads what weir has counted: each way to name a tenant that gets through is one partition, and the one that nginx,
//! Express, Django, Go and PHP read.
//!
//! Each of them is a small model of how it reads a query and headers, as far as they differ. Percent-encoding is undone everywhere, also for
//! nginx, whose `$arg_` leaves it as it is: weir counts both spellings as one.

use std::collections::BTreeSet;

use http::{HeaderMap, HeaderValue};
use percent_encoding::percent_decode_str;

use crate::ambiguity::{HEADERS_OF_A_TENANT, HEADERS_OF_NO_TENANT, QUERIES_OF_A_TENANT, status};
use crate::support::{Upstream, Weir, lane};

/// Ways to read a value: `None` without one.
type ReadsQuery = fn(&str) -> Option<String>;
type ReadsHeaders = fn(&HeaderMap) -> Option<String>;

const OF_QUERIES: [(&str, ReadsQuery); 5] = [
    // The first, by a name in any case.
    ("nginx", |query| {
        decoded(query).into_iter().find(|pair| pair.0.eq_ignore_ascii_case("tenant")).map(|pair| pair.1)
    }),
    // `qs`: one value is a text; several, and those with brackets, are a list.
    ("Express", |query| {
        let root = |name: &str| name.split('[').next() == Some("tenant");
        let all: Vec<_> =
            decoded(query).into_iter().filter(|(name, _)| root(name)).map(|pair| pair.1).collect();
        (!all.is_empty()).then(|| all.join(","))
    }),
    // The last.
    ("Django", |query| decoded(query).into_iter().rfind(|(name, _)| name == "tenant").map(|pair| pair.1)),
    // The first, of those without a semicolon and with sound escapes.
    ("Go", |query| {
        let mut sound = pairs(query).into_iter().filter(|(name, value)| is_sound(name) && is_sound(value));
        sound.find(|(name, _)| plain(name) == "tenant").map(|pair| plain(&pair.1))
    }),
    // The last; of a name up to a bracket or NUL, without spaces before it, `.` and ` ` as `_`.
    ("PHP", |query| {
        let name = |name: &str| {
            let name = name.trim_start_matches(' ').split(['[', '\0']).next().unwrap_or_default();
            name.replace(['.', ' '], "_")
        };
        decoded(query).into_iter().rfind(|pair| name(&pair.0) == "tenant").map(|pair| pair.1)
    }),
];

const OF_HEADERS: [(&str, ReadsHeaders); 5] = [
    ("nginx", |headers| joined(headers, ", ", |name| name == "x-tenant")),
    ("Express", |headers| joined(headers, ", ", |name| name == "x-tenant")),
    // As WSGI and CGI have it, `-` and `_` are one.
    ("Django", |headers| joined(headers, ",", |name| name.replace('_', "-") == "x-tenant")),
    ("Go", |headers| headers.get("x-tenant").map(text)),
    // The last that its server has passed, as CGI has it.
    ("PHP", |headers| {
        let named = headers.iter().filter(|(name, _)| name.as_str().replace('_', "-") == "x-tenant");
        named.last().map(|(_, value)| text(value))
    }),
];

fn text(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

fn joined(headers: &HeaderMap, by: &str, is_meant: fn(&str) -> bool) -> Option<String> {
    let values = headers.iter().filter(|(name, _)| is_meant(name.as_str())).map(|(_, value)| text(value));
    let values: Vec<String> = values.collect();
    (!values.is_empty()).then(|| values.join(by))
}

/// Returns the raw pairs of a query.
fn pairs(query: &str) -> Vec<(String, String)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let halves = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    halves.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn decoded(query: &str) -> Vec<(String, String)> {
    pairs(query).into_iter().map(|(name, value)| (plain(&name), plain(&value))).collect()
}

fn plain(text: &str) -> String {
    percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()
}

fn is_sound(text: &str) -> bool {
    let escapes = text.split('%').skip(1);
    let is_hex =
        |escape: &str| escape.len() >= 2 && escape.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
    !text.contains(';') && { escapes }.all(is_hex)
}

/// Returns the only value that all readers have read; `None` if they differ.
fn agreed(read: impl Iterator<Item = (&'static str, Option<String>)>) -> Option<Option<String>> {
    let values: BTreeSet<_> = read.map(|(_, value)| value.map(|value| plain(&value))).collect();
    values.first().cloned().filter(|_| values.len() == 1)
}

#[tokio::test]
async fn each_way_to_name_a_tenant_is_the_partition_that_upstreams_read_or_refused() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let url = upstream.url();
    let weir = Weir::start(&format!(
        "limiters:\n  q: {{limits: [1000/1h], key: [\"query:tenant\"]}}\n  h: {{limits: [1000/1h], key: [\"header:x-tenant\"]}}\n\
         routes:\n  - {{name: q, match: {{path: /q}}, upstream: \"{url}\", limiter: q}}\n  \
         - {{name: h, match: {{path: /h}}, upstream: \"{url}\", limiter: h}}\n"
    ))
    .await;
    let queries =
        QUERIES_OF_A_TENANT.iter().flat_map(|query| [format!("/q?{query}"), format!("http://h/q?{query}")]);
    let queries = queries.map(|target| (target, &b""[..]));
    let headers =
        HEADERS_OF_A_TENANT.iter().chain(HEADERS_OF_NO_TENANT).map(|lines| ("/h".to_owned(), *lines));
    let (mut ways, mut refused, mut wrong) = (0, 0, Vec::new());
    for (target, lines) in queries.chain(headers) {
        ways += 1;
        let (before, sent) = (counted(&weir).await, upstream.count());
        match status(&weir, &target, lines).await {
            400 => refused += 1,
            200 => {
                let seen = upstream.seen().swap_remove(sent);
                let query = seen.target.split_once('?').map_or("", |(_, query)| query);
                let value = if seen.target.starts_with("/q") {
                    agreed(OF_QUERIES.iter().map(|(name, read)| (*name, read(query))))
                } else {
                    agreed(OF_HEADERS.iter().map(|(name, read)| (*name, read(&seen.headers))))
                };
                let after = counted(&weir).await;
                let spent = (0..3).filter(|place| after[*place] < before[*place]).collect::<Vec<_>>();
                // The partition of `t` of either limiter, or one without a value.
                let expected = match (value, seen.target.starts_with("/q")) {
                    (Some(Some(value)), true) if value == "t" => Some(0),
                    (Some(Some(value)), false) if value == "t" => Some(1),
                    (Some(None), false) => Some(2),
                    _ => None,
                };
                if expected.is_none() || spent != expected.into_iter().collect::<Vec<_>>() {
                    wrong.push((target, String::from_utf8_lossy(lines).into_owned(), spent));
                }
            }
            other => wrong.push((target, format!("{other}"), Vec::new())),
        }
    }
    println!(
        "{ways} ways: {refused} refused, {} read as counted, {} not",
        ways - refused - wrong.len(),
        wrong.len()
    );
    assert!(wrong.is_empty() && ways >= 80, "{ways} ways: {wrong:#?}");
}

/// Returns what is left for the tenant of the query, for that of the header, and where there is no header.
async fn counted(weir: &Weir) -> [u64; 3] {
    let of = async |limiter: &str| weir.available_of(limiter, "t").await[0];
    let without = weir.ask("/api/explain?url=/h").await.json();
    let without = without["limiters"][0]["now"]["limits"][0]["available"].as_u64().expect("a number");
    [of("q").await, of("h").await, without]
}
