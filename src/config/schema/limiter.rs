//! `limiters`: what is promised to a provider, and what happens to requests beyond it.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::forms::{Form, LongForm, NAME_PATTERN, OffOr, Setting, Text};
use crate::config::units::{Per, Quota};

/// A named set of limits that a request must satisfy all at once.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Limiter {
    /// Who shares it. Default `overall`.
    #[schemars(extend("examples" = ["per_replica"]))]
    pub(crate) scope: Option<Scope>,
    /// One to 16 limits, as `900/1m` or `{rate: 900, per: 1m}`; all of them hold. In metrics and headers each goes by
    /// `rate/per`; where two have the same and count in different ways, by `rate/per` and the algorithm or the time
    /// zone. Required.
    #[schemars(extend("minItems" = 1, "maxItems" = 16, "examples" = [
        ["900/1m", "5000/1h"],
        [{"rate": 10000, "per": "1d", "algorithm": "fixed_window", "timezone": "Asia/Shanghai"}],
    ]))]
    pub(crate) limits: Vec<Form<Text<Quota>, Limit>>,
    /// How requests over the limit wait, in each replica. Absent or `off`: they are refused at once.
    #[schemars(extend("examples" = [{"timeout": "10s", "max_waiting": 200}, "off"]))]
    pub(crate) queue: Option<OffOr<Queue>>,
    /// What makes a partition, each with limits of its own: `header:NAME`, `query:NAME`, `host`, `path:N` (a segment of
    /// the decoded path, from 0), `client_ip`, `client` (with `clients`). Of several lines of a header all count, of
    /// several query parameters the first. A missing value is a partition of its own.
    #[schemars(extend("minItems" = 1, "maxItems" = 16, "examples" = [["header:x-corp-id"], ["client", "path:1"]]))]
    pub(crate) key: Option<Vec<String>>,
    /// The most partitions at once in each replica, 1 to 10000000; only with `key`. Default `100000`.
    #[schemars(range(min = 1, max = 10_000_000), extend("examples" = [5000]))]
    pub(crate) max_partitions: Option<i64>,
    /// Shares a Redis Cluster slot with limiters of the same group: their keys lie together. Default: the limiter's name.
    #[schemars(regex(pattern = NAME_PATTERN), extend("examples" = ["dingtalk"]))]
    pub(crate) group: Option<String>,
    /// How long after its slot a permit stays good; every window is widened by it. 1ms to 1s and at most the shortest
    /// `per`, half of it with `fixed_window`. Default: 1 % of the shortest `per`, between 1ms and 20ms.
    #[schemars(extend("examples" = ["10ms"]))]
    pub(crate) guard: Option<Text<Duration>>,
    /// What happens while the store cannot be asked. Default `local`.
    #[schemars(extend("examples" = ["reject"]))]
    pub(crate) on_store_failure: Option<OnStoreFailure>,
    /// How an upstream's own refusals pause the limiter on all replicas, or `off`. Default `{}`: after 429 and 503.
    #[schemars(extend("examples" = [{"on": [429], "max": "10m"}, "off"]))]
    pub(crate) pause: Option<OffOr<Pause>>,
    /// Whether what the upstream's headers report to be left counts, where that is less than weir thinks: `headers`, or
    /// `off`. Default `off`.
    #[schemars(extend("examples" = ["headers"]))]
    pub(crate) sync: Option<OffOr<Sync>>,
    /// Whether it acts. Default `enforce`.
    #[schemars(extend("examples" = ["shadow"]))]
    pub(crate) mode: Option<Mode>,
}

/// Who shares a limiter.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Scope {
    /// The whole fleet.
    Overall,
    /// Each replica by itself, in memory.
    PerReplica,
}

/// One limit: `rate` permits in each window `per`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Limit {
    /// Permits in a window, 1 to 1000000000. Required.
    #[schemars(range(min = 1, max = 1_000_000_000), extend("examples" = [5000]))]
    pub(crate) rate: i64,
    /// The length of the window, 1ms to 366d; with `fixed_window` a part of a day, `1d`, `1w` or `1mo`. Required.
    #[schemars(extend("examples" = ["1h", "1mo"]))]
    pub(crate) per: Text<Per>,
    /// How it counts. Default `sliding_window`.
    #[schemars(extend("examples" = ["token_bucket"]))]
    pub(crate) algorithm: Option<Algorithm>,
    /// For `sliding_window`: instants kept apart in a window, 1 to 65536. Exact up to that many permits, beyond it
    /// rounded to `per / precision`, always to the safe side. Default `256`.
    #[schemars(range(min = 1, max = 65_536), extend("examples" = [1000]))]
    pub(crate) precision: Option<i64>,
    /// For `token_bucket`: permits that may go at once, 1 to 1000000000; from empty it must be full again within 366d.
    /// Default: the `rate`.
    #[schemars(range(min = 1, max = 1_000_000_000), extend("examples" = [40]))]
    pub(crate) burst: Option<i64>,
    /// For `fixed_window`: by whose clock its days begin, a name of the tz database such as `Asia/Shanghai`. Default
    /// `UTC`.
    #[schemars(extend("examples" = ["Asia/Shanghai"]))]
    pub(crate) timezone: Option<String>,
}

impl LongForm for Limit {
    const EXPECTED: &'static str = "a limit such as 900/1m or 20/s, or {rate: 900, per: 1m}";
}

/// How a limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Algorithm {
    /// Every interval of length `per` holds at most `rate` permits.
    SlidingWindow,
    /// `burst` at once, then `rate` per `per`.
    TokenBucket,
    /// Evenly spaced: one permit every `per / rate`.
    LeakyBucket,
    /// Windows aligned to the clock in `timezone`: parts of a day, days, weeks from Monday on, months.
    FixedWindow,
}

/// How requests over the limit wait, in each replica.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Queue {
    /// The longest wait of a request, 1ms to 1d. Required.
    #[schemars(extend("examples" = ["10s"]))]
    pub(crate) timeout: Text<Duration>,
    /// The most requests that wait at once, 1 to 1000000. Default `1000`.
    #[schemars(range(min = 1, max = 1_000_000), extend("examples" = [200]))]
    pub(crate) max_waiting: Option<i64>,
}

impl Setting for Queue {
    const EXPECTED: &'static str = "off or a mapping";
}

/// What happens while the store cannot be asked.
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

/// How an upstream's own refusals pause the limiter.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pause {
    /// The statuses that count as a refusal, 429 and 503; 503 only where it names an instant. Default
    /// `[429, 503]`.
    #[schemars(extend("examples" = [[429]]))]
    pub(crate) on: Option<Vec<i64>>,
    /// The longest pause, 1ms to 1d. Default `5m`.
    #[schemars(extend("examples" = ["10m"]))]
    pub(crate) max: Option<Text<Duration>>,
    /// The first pause where the upstream names no instant, 1ms to 1d; each that follows at once is twice as long.
    /// Default `1s`.
    #[schemars(extend("examples" = ["5s"]))]
    pub(crate) fallback: Option<Text<Duration>>,
}

impl Setting for Pause {
    const EXPECTED: &'static str = "off or a mapping";
}

/// What of an upstream's answers counts.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Sync {
    /// Its headers: `RateLimit`, `X-RateLimit-*` and the like.
    Headers,
}

impl Setting for Sync {
    const EXPECTED: &'static str = "off or headers";
}

/// Whether a limiter acts.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// It delays and refuses.
    Enforce,
    /// It charges and counts as if, but never delays or refuses.
    Shadow,
}
