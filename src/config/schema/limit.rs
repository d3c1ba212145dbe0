//! `limits`: rate, window and algorithm of each.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::forms::{Form, LongForm, Text};
use crate::config::units::{Per, Quota};

/// The limits of a limiter, or of one value of its key.
pub(crate) type Limits = Vec<Form<Text<Quota>, Limit>>;

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
    /// The algorithm. Default `sliding_window`.
    #[schemars(extend("examples" = ["token_bucket"]))]
    pub(crate) algorithm: Option<Algorithm>,
    /// For `sliding_window`: the number of distinct instants kept in a window, 1 to 65536. Up to that many permits the
    /// window is exact. Beyond it, instants are rounded to `per / precision`, always to the safe side. All instants are read and written with
    /// each call: with some 14000 a call takes Redis 3 ms and writes 160 KB, so stay below 4096 where many calls come. Default `256`.
    #[schemars(range(min = 1, max = 65_536), extend("examples" = [1000]))]
    pub(crate) precision: Option<i64>,
    /// For `token_bucket`: the most permits at once, 1 to 1000000000. An empty bucket must be full again within 366d.
    /// Default: the `rate`.
    #[schemars(range(min = 1, max = 1_000_000_000), extend("examples" = [40]))]
    pub(crate) burst: Option<i64>,
    /// For `fixed_window`: the time zone in which its days begin, a name of the tz database such as `Asia/Shanghai`.
    /// Its rules are those that this version of weir has, whatever the host's. Default `UTC`.
    #[schemars(extend("examples" = ["Asia/Shanghai"]))]
    pub(crate) timezone: Option<String>,
    /// For `warm_up`, which needs it: the idle time after which the limit is cold, 1ms to 1d.
    #[schemars(extend("examples" = ["10s"]))]
    pub(crate) warm_up: Option<Text<Duration>>,
    /// For `warm_up`: the spacing when it is cold, 1 to 100 times `per / rate`. Default `3`.
    #[schemars(range(min = 1, max = 100), extend("examples" = [5]))]
    pub(crate) cold: Option<i64>,
}

impl LongForm for Limit {
    const EXPECTED: &'static str = "a limit such as 900/1m or 20/s, or {rate: 900, per: 1m}";
}

/// The algorithm of a limit.
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
    /// Evenly spaced, and slower after an idle time: `cold` times `per / rate`, which falls to `per / rate` within `warm_up`.
    WarmUp,
}
