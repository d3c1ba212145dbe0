//! The configuration as a user writes it: every key of weir, with its type, unit and default.
//!
//! Knows only the shape: [`super::validate`] checks the meaning of values, and no type of this module leaves the
//! configuration. Each doc comment becomes a description in the JSON Schema. Optional keys are `Option`: the default is
//! written in one place, where it is applied.

mod cost;
pub(crate) mod forms;
mod limit;
mod limiter;
mod overrides;
mod paths;
mod route;
pub(crate) mod share;
mod store;

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::model::Errors;
use super::units::{Share, Size};
use forms::{LongForm, NAME_PATTERN, Named, Text};

pub(crate) use cost::{Cost, CostHeader, Estimate, EstimateInput, EstimateOutput, Settle, Weights};
pub(crate) use forms::{Form, OffOr};
pub(crate) use limit::{Algorithm, Limit, Limits};
pub(crate) use limiter::{
    Guess, KeyFrom, Limiter, Mode, OnStoreFailure, Pause, PauseRule, Queue, Scope, Sync,
};
pub(crate) use paths::{PATHS_MAX, Paths};
pub(crate) use route::{Body, Breaker, Match, Retry, RetryOn, Route, RouteLimiter, Upstream};
pub(crate) use store::{Redis, RedisTls, Sentinel, Store};

/// The configuration of weir, an HTTP reverse proxy that keeps a fleet inside the rate limits of third-party APIs.
///
/// In values, `${VAR}`, `${VAR:-default}`, `${VAR:?why}` and `${file:/path}` are replaced; `$${` is a literal `${`.
/// Relative paths begin at the directory of this file.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    /// The address and port at which applications call weir, over HTTP/1.1 or HTTP/2, such as
    /// `127.0.0.1:8080` or `[::]:8080`. Default `0.0.0.0:8080`. A change needs a restart.
    #[schemars(extend("examples" = ["0.0.0.0:8080", "[::]:8080"]))]
    pub(crate) listen: Option<String>,
    /// Connections of clients.
    #[schemars(extend("examples" = [{"drain_timeout": "45s", "trusted_proxies": ["10.0.0.0/8"]}]))]
    pub(crate) server: Option<Server>,
    /// Metrics, health and live state.
    #[schemars(extend("examples" = [{"listen": "0.0.0.0:9090", "token": "${WEIR_ADMIN_TOKEN}"}]))]
    pub(crate) admin: Option<Admin>,
    /// The log, on standard error.
    #[schemars(extend("examples" = [{"level": "warn", "access": false}]))]
    pub(crate) log: Option<Log>,
    /// The clients that may call, by name; all others get 401. If absent, everyone may call.
    #[schemars(extend("propertyNames" = {"pattern": NAME_PATTERN}, "examples" = [
        {"billing": {"tokens": ["${file:/run/secrets/billing}"]}},
    ]))]
    pub(crate) clients: Option<Named<Client>>,
    /// The store of limiter state. Default `memory`. A change needs a restart.
    #[schemars(extend("examples" = ["memory", {"redis": {"url": "redis://redis:6379/0", "fleet_size": 3}}]))]
    pub(crate) store: Option<Store>,
    /// The limiters, by name.
    #[schemars(extend("propertyNames" = {"pattern": NAME_PATTERN}, "examples" = [
        {"github": {"limits": ["900/1m", "5000/1h"], "queue": {"timeout": "10s"}}},
    ]))]
    pub(crate) limiters: Option<Named<Limiter>>,
    /// The routes of requests to upstreams, with their limiters. The first match wins; no match is a 404. Required.
    #[schemars(required, extend("minItems" = 1, "examples" = [
        [{"name": "github", "match": {"path": "/github"}, "upstream": "https://api.github.com", "limiter": "github"}],
    ]))]
    pub(crate) routes: Option<Vec<Route>>,
}

/// Connections of clients.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Server {
    /// TLS for client connections; plain text if absent. New connections use changed files.
    #[schemars(extend("examples" = [{"cert": "tls/server.crt", "key": "tls/server.key"}]))]
    pub(crate) tls: Option<ServerTls>,
    /// The addresses or CIDR blocks (`10.0.0.0/8`) that may connect; all if absent. Others get 403. The peer of the
    /// connection is checked, not `X-Forwarded-For`.
    #[schemars(extend("examples" = [["10.0.0.0/8", "::1"]]))]
    pub(crate) allow: Option<Vec<String>>,
    /// The proxies, as addresses or CIDR blocks, whose `X-Forwarded-*` is trusted. The first address of `X-Forwarded-For`, read
    /// from its end, that is not one of them is the client's; the last `X-Forwarded-Proto` and `X-Forwarded-Host` are those of links,
    /// and of routes with `forwarded_headers`.
    #[schemars(extend("examples" = [["172.16.0.0/12"]]))]
    pub(crate) trusted_proxies: Option<Vec<String>>,
    /// The scheme, host and port at which applications reach weir, for links that weir rewrites and for routes with `forwarded_headers`. If
    /// absent, those of the request, or `X-Forwarded-Proto` and `X-Forwarded-Host` of `trusted_proxies`.
    #[schemars(extend("examples" = ["https://weir.internal"]))]
    pub(crate) public_url: Option<String>,
    /// The form of weir's own responses, for routes without `errors` and for requests without a route. Default `json`.
    #[schemars(extend("examples" = ["problem"]))]
    pub(crate) errors: Option<Errors>,
    /// The most client connections at once, 1 to 1000000. Default `10000`.
    #[schemars(range(min = 1, max = 1_000_000), extend("examples" = [50000]))]
    pub(crate) max_connections: Option<i64>,
    /// The longest time to receive the headers of a request, 1ms to 1h. Default `10s`.
    #[schemars(extend("examples" = ["5s"]))]
    pub(crate) header_timeout: Option<Text<Duration>>,
    /// The longest time that a connection stays open without a request, 1ms to 1d. Default `75s`.
    #[schemars(extend("examples" = ["2m"]))]
    pub(crate) idle_timeout: Option<Text<Duration>>,
    /// The longest time for which a client, or an upstream, takes none of the bytes that wait for it, 1ms to 1d. Its connection is then
    /// closed. Default `60s`.
    #[schemars(extend("examples" = ["20s"]))]
    pub(crate) write_timeout: Option<Text<Duration>>,
    /// The most bytes of a request's headers, 8KiB to 1MiB. Over HTTP/1 there may be 100 lines of them, whatever their size. A larger head gets
    /// a 431 without a body. Default `64KiB`.
    #[schemars(extend("examples" = ["128KiB"]))]
    pub(crate) max_header_bytes: Option<Text<Size>>,
    /// The memory for what is read ahead of requests that wait, of all connections together, 0B to 64GiB. Within it a client that
    /// leaves is noticed at once, however much it has sent before; beyond it when its turn is near.
    /// Over HTTP/2, up to 1/16384 of it arrives of each body that waits, 4KiB to 16KiB. Default `256MiB`.
    #[schemars(extend("examples" = ["1GiB"]))]
    pub(crate) body_memory: Option<Text<Size>>,
    /// The time after SIGTERM for which new requests are still accepted, 0s to 1h. `/readyz` answers 503 from the start
    /// of it. Default `0s`.
    #[schemars(extend("examples" = ["5s"]))]
    pub(crate) drain_delay: Option<Text<Duration>>,
    /// The time after `drain_delay` for which requests in flight and in queues may still finish, 0s to 1d. Default
    /// `30s`.
    #[schemars(extend("examples" = ["45s"]))]
    pub(crate) drain_timeout: Option<Text<Duration>>,
}

/// TLS for client connections: PEM files. Rotated files are read again.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServerTls {
    /// The certificate chain, a PEM file. Required.
    #[schemars(extend("examples" = ["tls/server.crt"]))]
    pub(crate) cert: String,
    /// The private key of `cert`, a PEM file. Required.
    #[schemars(extend("examples" = ["tls/server.key"]))]
    pub(crate) key: String,
    /// The authorities that sign clients' certificates, a PEM file. With it, TLS is mutual: a client must present a
    /// certificate, unless any of the `clients` has tokens.
    #[schemars(extend("examples" = ["tls/clients.pem"]))]
    pub(crate) client_ca: Option<String>,
}

/// Metrics, health and live state.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Admin {
    /// An IP address and a port. Default `127.0.0.1:9090`. A change needs a restart.
    #[schemars(extend("examples" = ["0.0.0.0:9090"]))]
    pub(crate) listen: Option<String>,
    /// The token, sent as `Authorization: Bearer ...`, for everything but health and metrics. If it is absent or empty,
    /// a listener beyond loopback serves only health and metrics.
    #[schemars(extend("examples" = ["${WEIR_ADMIN_TOKEN}", "${file:/run/secrets/admin-token}"]))]
    pub(crate) token: Option<String>,
    /// A second token, beside `token`: it shows everything, and reloads, pauses and resets nothing. None if it is absent or empty.
    #[schemars(extend("examples" = ["${WEIR_ADMIN_READ_TOKEN}"]))]
    pub(crate) read_token: Option<String>,
}

/// The log.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Log {
    /// The lowest level that is logged. Actions by hand always are. Default `info`.
    #[schemars(extend("examples" = ["debug"]))]
    pub(crate) level: Option<LogLevel>,
    /// The form of log lines. Default `json`.
    #[schemars(extend("examples" = ["text"]))]
    pub(crate) format: Option<LogFormat>,
    /// Logs each request, or those that a mapping picks. Default `true`.
    #[schemars(extend("examples" = [false, {"sample": "1%", "slow": "1s"}]))]
    pub(crate) access: Option<Form<bool, AccessLog>>,
}

/// The requests that the access log names. Failures are always among them: a status of 500 or above, also of weir's own answers, and
/// a response that broke off.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AccessLog {
    /// The share of all requests, chosen at random, 0% to 100%. Default `0%`.
    #[schemars(extend("examples" = ["1%", "0.1%"]))]
    pub(crate) sample: Option<Text<Share>>,
    /// Every request that took at least this long, from its head to the end of its response, its wait included, 1ms to 1d. If absent,
    /// none is logged for being slow.
    #[schemars(extend("examples" = ["1s"]))]
    pub(crate) slow: Option<Text<Duration>>,
}

impl LongForm for AccessLog {
    const EXPECTED: &'static str = "true, false, or a mapping with `sample` or `slow`";
}

/// A level of the log.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// The form of a log line.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogFormat {
    /// One JSON object per line.
    Json,
    /// Text for a person.
    Text,
}

/// An application that may call, identified by a token or a certificate.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Client {
    /// The bearer tokens; several while one is being replaced. Sent in `Weir-Authorization`, or in `Authorization` on a
    /// route whose `set_headers` replaces that header. Tokens never go upstream.
    #[schemars(extend("examples" = [["${file:/run/secrets/billing}", "${file:/run/secrets/billing-next}"]]))]
    pub(crate) tokens: Option<Vec<String>>,
    /// The certificate, verified against `server.tls.client_ca`.
    #[schemars(extend("examples" = [{"san": "reports.internal"}]))]
    pub(crate) certificate: Option<Certificate>,
}

/// The certificate of a client.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Certificate {
    /// A subject alternative name of the certificate: a host name, a URI, an IP address or an e-mail address. Required.
    #[schemars(extend("examples" = ["reports.internal", "spiffe://example.com/reports"]))]
    pub(crate) san: String,
}

/// Examples for messages, of keys whose list or mapping is easily written as something else.
pub(super) const EXAMPLES: [(&str, &str); 14] = [
    ("allow", "[10.0.0.0/8]"),
    ("clients", "[billing]"),
    ("cluster", "[\"redis://10.0.0.1:6379\"]"),
    ("key", "[header:x-tenant]"),
    ("limiters", "[github]"),
    ("limits", "[10/1s]"),
    ("match", "{path: /api}"),
    ("methods", "[GET, POST]"),
    ("on", "[429, 503]"),
    ("queue", "{timeout: 10s}"),
    ("remove_headers", "[cookie]"),
    ("set_headers", "{x-api-key: \"${API_KEY}\"}"),
    ("tokens", "[\"${file:/run/secrets/token}\"]"),
    ("trusted_proxies", "[10.0.0.0/8]"),
];

/// Returns the example of a key's list (`[`) or mapping (`{`).
pub(crate) fn example(key: &str, open: char) -> Option<&'static str> {
    let found = EXAMPLES.iter().find(|(name, example)| *name == key && example.starts_with(open));
    found.map(|(_, example)| *example)
}
