//! The forms of the headers that tell what is left of a quota.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The headers of answers that tell what is left of a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LimitHeaders {
    /// `RateLimit` and `RateLimit-Policy` of the IETF's draft.
    Ietf,
    /// `x-ratelimit-limit-requests`, `-remaining-requests` and `-reset-requests`; `-tokens` of limiters whose cost is an estimate.
    Openai,
    /// `x-ratelimit-limit`, `-remaining`, `-used`, `-reset` and `-resource`, as GitHub has them.
    Github,
}
