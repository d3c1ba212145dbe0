//! `routes`: the requests of each route, their upstream, changes, limiters and cost.

use std::fmt;
use std::time::Duration;

use schemars::JsonSchema;
use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};

use super::cost::{Cost, CostHeader};
use super::forms::{Form, LongForm, NAME_PATTERN, Named, OffOr, Setting, ShortForm, Text};
use crate::config::model::{Errors, Http2, LimitHeaders};
use crate::config::units::{Share, Size};

/// A route: its requests, upstream, changes, limiters and cost.
#[derive(Debug, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Route {
    /// The name in metrics and logs, distinct among the routes. Required.
    #[schemars(regex(pattern = NAME_PATTERN), extend("examples" = ["github-writes"]))]
    pub(crate) name: String,
    /// The conditions of a request. All of them must hold; `{}` matches every request. Required.
    #[serde(rename = "match")]
    #[schemars(extend("examples" = [{"path": "/github", "methods": ["POST", "PATCH", "PUT", "DELETE"]}, {}]))]
    pub(crate) matches: Match,
    /// The upstream: an `http://` or `https://` URL, or a mapping with `url`. The URL's path is put before the path of
    /// every request. Required.
    #[schemars(extend("examples" = ["https://api.github.com", {"url": "https://api.openai.com", "timeout": "5m"}]))]
    pub(crate) upstream: Form<String, Upstream>,
    /// The prefix removed from the path of requests: the matched path or a part of it, on a segment border. With `path_regex` every path that
    /// it matches must begin with the prefix.
    #[schemars(extend("examples" = ["/github"]))]
    pub(crate) strip_prefix: Option<String>,
    /// Headers set on every forwarded request, in place of those that the client sent, also with underscores for hyphens.
    #[schemars(extend("examples" = [{"authorization": "Bearer ${GITHUB_TOKEN}"}]))]
    pub(crate) set_headers: Option<Named<String>>,
    /// Headers removed from every forwarded request, also with underscores for hyphens.
    #[schemars(extend("examples" = [["cookie", "x-internal-user"]]))]
    pub(crate) remove_headers: Option<Vec<String>>,
    /// Forwards the client's `Host`. Default `false`: the upstream's own host is sent.
    #[schemars(extend("examples" = [true]))]
    pub(crate) preserve_host: Option<bool>,
    /// Rewrites `Location`, `Content-Location` and the targets of `Link` that lead to the upstream, so that they lead through weir.
    /// Default `true`.
    #[schemars(extend("examples" = [false]))]
    pub(crate) rewrite_links: Option<bool>,
    /// The form of weir's own responses, such as a 429: as the SDK of the API reads it. gRPC has its own, and `Accept:
    /// application/problem+json` asks for `problem`. Default: the server's.
    #[schemars(extend("examples" = ["anthropic"]))]
    pub(crate) errors: Option<Errors>,
    /// The limiter that each request must satisfy, by name. Without it and `limiters` there is no limit, and `check` warns.
    #[schemars(extend("examples" = ["github"]))]
    pub(crate) limiter: Option<String>,
    /// Up to 8 limiters in place of `limiter`, each by its name, or as a mapping with a `cost` of its own: a request gets permits from all
    /// of them, or from none. They need the same `scope`, and on a Redis Cluster the same `group`. The longest wait is the smallest of
    /// their timeouts, and a limiter without a `queue` allows none: beside one, no request of the route waits. A limiter with `mode: shadow`
    /// does not count here. `off` says that no limit is meant.
    #[schemars(extend("minItems" = 1, "maxItems" = 8, "examples" = [
        ["youtube-project", "youtube-team"],
        ["requests", {"name": "units", "cost": {"header": "weir-cost", "default": 1, "max": 100}}],
        "off",
    ]))]
    pub(crate) limiters: Option<OffOr<Vec<Form<String, RouteLimiter>>>>,
    /// How requests' bodies are looked into, where `json:` in a `key`, `match.json` or `cost.json` asks for it. Other bodies stream.
    #[schemars(extend("examples" = [{"max": "4MiB"}]))]
    pub(crate) body: Option<Body>,
    /// The cost of a request, 1 to 1000000000 permits, or `{header: NAME}` or `{json: PATH}` for a cost named in a header or in the JSON
    /// body. Default `1`.
    #[schemars(extend("examples" = [
        5,
        {"header": "weir-cost", "default": 1, "max": 100},
        {"json": "n", "default": 1, "max": 10},
    ]))]
    pub(crate) cost: Option<Form<Cost, CostHeader>>,
    /// Forwards `X-Forwarded-For`, `-Proto` and `-Host`, and `Via`. All other `X-Forwarded-*`, `X-Real-IP` and `Forwarded` end at weir in
    /// any case. Default `false`.
    #[schemars(extend("examples" = [true]))]
    pub(crate) forwarded_headers: Option<bool>,
    /// The headers of forwarded answers that tell what is left of the tightest of the route's limits, as the store last said, or `off`. They
    /// replace the upstream's headers of that family. Default `off`.
    #[schemars(extend("examples" = ["ietf", "openai"]))]
    pub(crate) limit_headers: Option<OffOr<LimitHeaders>>,
    /// Retries, or `off`. Only requests with an idempotent method or an `Idempotency-Key` are retried. Each attempt that was sent takes
    /// its own permit, within the longest wait of the request. Default `off`.
    #[schemars(extend("examples" = [{"attempts": 3, "on": ["connect", 503]}, "off"]))]
    pub(crate) retry: Option<OffOr<Retry>>,
    /// The breaker, or `off`: after some failures to connect in a row requests are refused with 503 `upstream_unavailable` and
    /// `Retry-After`, but for one probe at a time. Requests that wait keep their places. Each replica has its own. Default `off`.
    #[schemars(extend("examples" = [{"failures": 10, "for": "5s"}, "off"]))]
    pub(crate) breaker: Option<OffOr<Breaker>>,
    /// The `clients` that may use the route; others get 403. All of them if absent.
    #[schemars(extend("examples" = [["billing"]]))]
    pub(crate) clients: Option<Vec<String>>,
}

/// A limiter of a route.
#[derive(Debug, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RouteLimiter {
    /// The name of the limiter. Required.
    #[schemars(extend("examples" = ["openai-tpm"]))]
    pub(crate) name: String,
    /// The cost of a request at this limiter, in place of the route's.
    #[schemars(extend("examples" = [5, {"json": "n", "default": 1, "max": 10}]))]
    pub(crate) cost: Option<Form<Cost, CostHeader>>,
}

impl LongForm for RouteLimiter {
    const EXPECTED: &'static str = "the name of a limiter, or a mapping with `name` and `cost`";
}

impl Setting for Vec<Form<String, RouteLimiter>> {
    const EXPECTED: &'static str = "off or a list";
    const IS_LIST: bool = true;
}

/// The conditions of a request; at most one of `path`, `exact_path` and `path_regex`.
#[derive(Debug, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Match {
    /// A prefix of the path, on a segment border: `/a` matches `/a` and `/a/b`, not `/ab`.
    #[schemars(extend("examples" = ["/github"]))]
    pub(crate) path: Option<String>,
    /// The whole path.
    #[schemars(extend("examples" = ["/graphql"]))]
    pub(crate) exact_path: Option<String>,
    /// A regular expression for the whole path, anchored at both ends.
    #[schemars(extend("examples" = ["/v[0-9]+/(charges|refunds)"]))]
    pub(crate) path_regex: Option<String>,
    /// The host without a port; `*.example.com` matches every name below `example.com`.
    #[schemars(extend("examples" = ["api.github.com", "*.dingtalk.com"]))]
    pub(crate) host: Option<String>,
    /// The methods, such as `GET`; all if absent.
    #[schemars(extend("examples" = [["GET", "HEAD"]]))]
    pub(crate) methods: Option<Vec<String>>,
    /// The headers that a request must have, each with exactly this value.
    #[schemars(extend("examples" = [{"x-tenant": "acme"}]))]
    pub(crate) headers: Option<Named<String>>,
    /// The values that its JSON body must have at these paths: a text as it is, any other as JSON writes it. `null` is no value. A
    /// body that is larger than `body.max`, or no JSON, has none; one in which a path can be read in more than one way gets 400.
    #[schemars(extend("examples" = [{"model": "gpt-5"}]))]
    pub(crate) json: Option<Named<String>>,
}

/// The upstream of a route.
#[derive(Debug, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Upstream {
    /// `http://HOST:PORT/BASE` or `https://...`. The URL's path is put before the path of every request. Required.
    #[schemars(extend("examples" = ["https://api.github.com"]))]
    pub(crate) url: String,
    /// The longest time to open a connection, TLS included, 1ms to 1h. Default `5s`.
    #[schemars(extend("examples" = ["2s"]))]
    pub(crate) connect_timeout: Option<Text<Duration>>,
    /// The longest time until the response headers, 1ms to 1d. Default `60s`.
    #[schemars(extend("examples" = ["5m"]))]
    pub(crate) timeout: Option<Text<Duration>>,
    /// The longest time between two pieces of a body, 1ms to 1d. Default `60s`.
    #[schemars(extend("examples" = ["30s"]))]
    pub(crate) idle_timeout: Option<Text<Duration>>,
    /// The longest time without a byte, either way, in a connection that has switched to another protocol, such as WebSocket, 1ms to
    /// 7d. Default `1h`.
    #[schemars(extend("examples" = ["10m"]))]
    pub(crate) tunnel_timeout: Option<Text<Duration>>,
    /// The use of HTTP/2. Default `auto`.
    #[schemars(extend("examples" = ["off"]))]
    pub(crate) http2: Option<Http2>,
    /// Authorities trusted beside the public roots, a PEM file; for `https://`.
    #[schemars(extend("examples" = ["tls/provider-ca.pem"]))]
    pub(crate) ca: Option<String>,
    /// weir's own certificate chain, a PEM file, for an upstream that asks for one; for `https://`, needs `key`.
    #[schemars(extend("examples" = ["tls/weir.crt"]))]
    pub(crate) cert: Option<String>,
    /// The private key of `cert`, a PEM file.
    #[schemars(extend("examples" = ["tls/weir.key"]))]
    pub(crate) key: Option<String>,
    /// An outbound HTTP proxy that opens a tunnel to the upstream (CONNECT): `http://HOST:PORT`, or
    /// `http://USER:PASSWORD@HOST:PORT`, user and password percent-encoded.
    #[schemars(extend("examples" = [
        "http://egress.corp:3128",
        "http://${PROXY_USER}:${PROXY_PASSWORD}@egress.corp:3128",
    ]))]
    pub(crate) proxy: Option<String>,
}

impl Setting for LimitHeaders {
    const EXPECTED: &'static str = "off, ietf, openai or github";
}

impl Setting for Vec<String> {
    const EXPECTED: &'static str = "off or a list";
    const IS_LIST: bool = true;
}

impl LongForm for Upstream {
    const EXPECTED: &'static str = "a URL such as https://api.example.com, or a mapping with `url`";
}

/// How requests' bodies are looked into.
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Body {
    /// The largest body that is looked into, at most 16MiB and `server.body_memory`. It is read before the request asks for permits,
    /// within `server.header_timeout`; a larger one is as one without any value. Default `1MiB`.
    #[schemars(extend("examples" = ["4MiB"]))]
    pub(crate) max: Option<Text<Size>>,
}

/// The retries of a request.
#[derive(Debug, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Retry {
    /// The most attempts, the first included, 2 to 10. Default `2`.
    #[schemars(range(min = 2, max = 10), extend("examples" = [3]))]
    pub(crate) attempts: Option<i64>,
    /// The failures that are retried: `connect` (no connection) and the statuses 429, 502, 503 and 504. A retry after a
    /// 429 waits until the upstream's pause is over. Default `[connect, 429, 502, 503]`.
    #[schemars(with = "Option<Vec<serde_json::Value>>", extend(
        "items" = {"enum": ["connect", 429, 502, 503, 504]}, "examples" = [["connect", 429, 503, 504]],
    ))]
    pub(crate) on: Option<Vec<RetryOn>>,
    /// The largest body that is kept for another attempt, at most 16MiB. A request with a larger one is not retried.
    /// Default `64KiB`.
    #[schemars(extend("examples" = ["1MiB"]))]
    pub(crate) max_body: Option<Text<Size>>,
    /// The retries of the route as a share of its requests, 1% to 100%, or `off` for any number. Of requests long ago, ten retries
    /// are left. Default `20%`.
    #[schemars(extend("examples" = ["50%", "off"]))]
    pub(crate) budget: Option<OffOr<Text<Share>>>,
}

impl Setting for Text<Share> {
    const EXPECTED: &'static str = "off or a percentage, such as 20%";

    fn fault(text: &str) -> Option<String> {
        <Text<Share> as ShortForm>::fault(text)
    }
}

impl Setting for Retry {
    const EXPECTED: &'static str = "off or a mapping";
}

/// The breaker of a route.
#[derive(Debug, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Breaker {
    /// The failures to connect in a row that open it, 1 to 1000. Default `10`.
    #[schemars(range(min = 1, max = 1000), extend("examples" = [3]))]
    pub(crate) failures: Option<i64>,
    /// The time from a failure to the next probe, 10ms to 1h. Default `5s`.
    #[serde(rename = "for")]
    #[schemars(extend("examples" = ["30s"]))]
    pub(crate) lasting: Option<Text<Duration>>,
}

impl Setting for Breaker {
    const EXPECTED: &'static str = "off or a mapping";
}

/// A failure of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetryOn {
    Connect,
    Status(i64),
}

impl<'de> Deserialize<'de> for RetryOn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RetryOn, D::Error> {
        struct RetryOnVisitor;

        impl Visitor<'_> for RetryOnVisitor {
            type Value = RetryOn;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("connect, 429, 502, 503 or 504")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<RetryOn, E> {
                let is_connect = text == "connect";
                is_connect
                    .then_some(RetryOn::Connect)
                    .ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
            }

            fn visit_i64<E: Error>(self, status: i64) -> Result<RetryOn, E> {
                Ok(RetryOn::Status(status))
            }
        }

        deserializer.deserialize_any(RetryOnVisitor)
    }
}
