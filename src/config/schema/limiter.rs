//! `limiters`: the limits of a provider, and the treatment of requests beyond them.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::forms::{Form, LongForm, NAME_PATTERN, Named, OffOr, Setting, Text};
use super::limit::Limits;
use super::overrides::Overrides;
use super::share::QuotaShare;
use crate::config::model::Leave;

/// A named set of limits that a request must satisfy all at once.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Limiter {
    /// The replicas that share the limits. Default `overall`.
    #[schemars(extend("examples" = ["per_replica"]))]
    pub(crate) scope: Option<Scope>,
    /// One to 16 limits, as `900/1m` or `{rate: 900, per: 1m}`. All of them hold. The label of a limit in metrics and
    /// headers is `rate/per`, followed by the algorithm or the time zone where two limits would have the same label.
    /// Required.
    #[schemars(extend("minItems" = 1, "maxItems" = 16, "examples" = [
        ["900/1m", "5000/1h"],
        [{"rate": 10000, "per": "1d", "algorithm": "fixed_window", "timezone": "Asia/Shanghai"}],
    ]))]
    pub(crate) limits: Limits,
    /// The queue for requests over the limit, in each replica. If it is absent or `off`, they are refused at once.
    #[schemars(extend("examples" = [{"timeout": "10s", "max_waiting": 200}, "off"]))]
    pub(crate) queue: Option<OffOr<Queue>>,
    /// How callers share the quota. If it is absent, first come, first served.
    #[schemars(extend("examples" = [{"by": "client", "weights": {"billing": 3}}]))]
    pub(crate) share: Option<QuotaShare>,
    /// The parts of a request that select its partition; each partition has the limits for itself. A part is
    /// `header:NAME`, `query:NAME`, `host`, `path:N` (a segment of the decoded path, from 0), `client_ip`, `client` (with
    /// `clients`) or `json:PATH` (a value of the JSON body, such as `json:model`; see `body` of the route). A request in which a
    /// part can be read in more than one way, such as a repeated header or parameter, gets 400. Requests without the value have a
    /// partition of their own.
    #[schemars(extend("minItems" = 1, "maxItems" = 16, "examples" = [
        ["header:x-corp-id"], ["client", "path:1"], ["json:model"], [{"path_regex": "models/([^/:]+)"}],
    ]))]
    pub(crate) key: Option<Vec<Form<String, KeyFrom>>>,
    /// The limits of some values of the `key`, which must have one part: in place of `limits`, which hold for all other values. A mapping
    /// from values to limits, or `{file: PATH}`: a YAML file with that mapping, which is followed.
    #[schemars(extend("examples" = [
        {"premium": ["100/1s"], "trial": ["1/1s", "100/1d"]},
        {"file": "plans.yaml"},
    ]))]
    pub(crate) overrides: Option<Overrides>,
    /// With `client_ip`: the bits of an IPv4 address that a client has, 1 to 32. Clients of one network share a partition. Default `32`.
    #[schemars(range(min = 1, max = 32), extend("examples" = [24]))]
    pub(crate) ipv4_prefix: Option<i64>,
    /// With `client_ip`: the bits of an IPv6 address that a client has, 1 to 128. A client has as many addresses of its network as it likes.
    /// Default `64`.
    #[schemars(range(min = 1, max = 128), extend("examples" = [56]))]
    pub(crate) ipv6_prefix: Option<i64>,
    /// The most partitions at once in each replica, 1 to 10000000; only with `key`. Default `100000`.
    #[schemars(range(min = 1, max = 10_000_000), extend("examples" = [5000]))]
    pub(crate) max_partitions: Option<i64>,
    /// True if the dashboard, `/api/limiters/NAME` and `weir limiters` show the values of the `key` that use most and wait longest, where
    /// they show a hash otherwise. Only with `key`, and not where that has a credential. Default `false`.
    #[schemars(extend("examples" = [true]))]
    pub(crate) show_values: Option<bool>,
    /// The group of the limiter. Limiters of one group have their keys in the same Redis Cluster slot. Default: the
    /// limiter's name.
    #[schemars(regex(pattern = NAME_PATTERN), extend("examples" = ["dingtalk"]))]
    pub(crate) group: Option<String>,
    /// How long after its slot a permit stays good. Every window is widened by the guard. 1ms to 1s, and at most the
    /// shortest `per`, or half of it with `fixed_window`. Default: 1 % of the shortest `per` of `limits`, between 1ms and 20ms.
    #[schemars(extend("examples" = ["10ms"]))]
    pub(crate) guard: Option<Text<Duration>>,
    /// The policy while the store cannot be reached. Default `local`.
    #[schemars(extend("examples" = ["reject"]))]
    pub(crate) on_store_failure: Option<OnStoreFailure>,
    /// The pauses, on all replicas, after an upstream rejection, or `off`. Default `{}`: pauses after 429, and after a 503 that
    /// names an instant.
    #[schemars(extend("examples" = [{"max": "1h", "guess": {"first": "5s"}}, "off"]))]
    pub(crate) pause: Option<OffOr<Pause>>,
    /// `headers` charges external usage: when the upstream's headers report fewer permits left than weir has counted, the
    /// difference is charged. Default `off`.
    #[schemars(extend("examples" = ["headers"]))]
    pub(crate) sync: Option<OffOr<Sync>>,
    /// The effect of the limits on requests. Default `enforce`.
    #[schemars(extend("examples" = ["shadow"]))]
    pub(crate) mode: Option<Mode>,
}

/// The replicas that share a limiter.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Scope {
    /// The whole fleet.
    Overall,
    /// Each replica by itself, in memory.
    PerReplica,
}

/// The queue for requests over the limit, in each replica.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Queue {
    /// The longest wait of a request, 1ms to 1d. Required.
    #[schemars(extend("examples" = ["10s"]))]
    pub(crate) timeout: Text<Duration>,
    /// The most requests waiting at once, 1 to 1000000. Default `1000`.
    #[schemars(range(min = 1, max = 1_000_000), extend("examples" = [200]))]
    pub(crate) max_waiting: Option<i64>,
    /// The request headers in which callers tell how long they wait for an answer, up to 16. `grpc-timeout` has gRPC's units; the others
    /// have seconds or a duration. The shortest time, less `leave`, bounds the wait. Default
    /// `[weir-timeout, x-stainless-timeout, x-stainless-read-timeout, x-server-timeout, grpc-timeout]`.
    #[schemars(extend("maxItems" = 16, "examples" = [["weir-timeout", "x-request-timeout"], []]))]
    pub(crate) patience: Option<Vec<String>>,
    /// The part of that time that is left for the upstream: a share of it, a time up to 1d, or `auto`: what nine of ten of the upstream's last 100
    /// responses took to their head, and half of the time at most. Default `auto`.
    #[schemars(extend("examples" = ["20%", "500ms"]))]
    pub(crate) leave: Option<Text<Leave>>,
}

impl Setting for Queue {
    const EXPECTED: &'static str = "off or a mapping";
}

/// The policy while the store cannot be reached.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OnStoreFailure {
    /// Each replica enforces its share in memory.
    Local,
    /// Requests are refused with 503.
    Reject,
    /// Requests pass unlimited.
    Allow,
}

/// A part of a request that is read with care: `json` or `path_regex`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyFrom {
    /// The path of a value of the JSON body, as in `json:PATH`.
    #[schemars(extend("examples" = ["model"]))]
    pub(crate) json: Option<String>,
    /// A regular expression that is looked for in the decoded path, with at most one group, whose text is the value; without a group all that
    /// it matches is.
    #[schemars(extend("examples" = ["models/([^/:]+)"]))]
    pub(crate) path_regex: Option<String>,
    /// Values that are taken for others, so that they share a partition: patterns in which `*` stands for any characters. The first
    /// that matches decides; a value that none matches stays.
    #[schemars(extend("minProperties" = 1, "maxProperties" = 256, "examples" = [{"claude-opus-4*": "opus"}]))]
    pub(crate) map: Option<Named<String>>,
}

impl LongForm for KeyFrom {
    const EXPECTED: &'static str = "a part such as header:x-tenant, or a mapping with `json` or `path_regex`";
}

/// The pauses after an upstream rejection.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pause {
    /// The longest pause whose end the upstream names, and the longest `for` of a rule, 1ms to 1d. It does not bound `guess`. Default `1d`.
    #[schemars(extend("examples" = ["1h"]))]
    pub(crate) max: Option<Text<Duration>>,
    /// The pauses whose end the upstream does not name. Default `{}`.
    #[schemars(extend("examples" = [{"first": "5s", "max": "10m"}]))]
    pub(crate) guess: Option<Guess>,
    /// The responses that pause, up to 16 rules: the first one that matches decides. They replace the default
    /// `[{status: 429}, {status: 503, named: true}]`.
    #[schemars(extend("minItems" = 1, "maxItems" = 16, "examples" = [[
        {"status": 429},
        {"status": 403, "header": {"x-ratelimit-remaining": "0"}},
        {"status": 200, "json": {"errors.0.extensions.code": "THROTTLED"}},
    ]]))]
    pub(crate) rules: Option<Vec<PauseRule>>,
}

/// The pauses whose end the upstream does not name.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Guess {
    /// The first pause, 1ms to 1d. Each one that follows at once is twice as long. Default `1s`, or `max` if that is shorter.
    #[schemars(extend("examples" = ["5s"]))]
    pub(crate) first: Option<Text<Duration>>,
    /// The longest of them, 1ms to 1d. Default `5m`, or `first` if that is longer.
    #[schemars(extend("examples" = ["10m"]))]
    pub(crate) max: Option<Text<Duration>>,
}

/// The conditions of a response that pauses. All of them must hold.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PauseRule {
    /// The status of the response, 200 to 599. Required.
    #[schemars(range(min = 200, max = 599), extend("examples" = [529]))]
    pub(crate) status: i64,
    /// True if the response must name the end of the pause. Default `false`.
    #[schemars(extend("examples" = [true]))]
    pub(crate) named: Option<bool>,
    /// The headers that the response must have, each with exactly this value.
    #[schemars(extend("examples" = [{"x-ratelimit-remaining": "0"}]))]
    pub(crate) header: Option<Named<String>>,
    /// The values that its JSON body must have at these paths, in its first 64 KiB.
    #[schemars(extend("examples" = [{"error.code": "insufficient_quota"}]))]
    pub(crate) json: Option<Named<String>>,
    /// How long the pause lasts, whatever the response names, 1ms to `max` of the pause, which is 1d by default. Default: until the instant that it names, or `guess`.
    #[schemars(extend("examples" = ["1h"]))]
    #[serde(rename = "for")]
    pub(crate) lasting: Option<Text<Duration>>,
}

impl Setting for Pause {
    const EXPECTED: &'static str = "off or a mapping";
}

/// The source of external usage.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Sync {
    /// The upstream's quota headers: `RateLimit`, `X-RateLimit-*` and the like.
    Headers,
}

impl Setting for Sync {
    const EXPECTED: &'static str = "off or headers";
}

/// The effect of a limiter's limits on requests.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// The limiter delays and refuses requests.
    Enforce,
    /// The limiter charges and counts, but never delays or refuses.
    Shadow,
}
