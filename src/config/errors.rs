//! The forms of weir's own responses, one for each family of clients. Knows no form's content.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The form of the bodies of weir's own responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Errors {
    /// RFC 9457 and what most SDKs read: `error: {message, type, code}` and `message`. AWS, Elasticsearch, Notion and Twilio get their own.
    #[default]
    Json,
    /// RFC 9457 alone, as `application/problem+json`.
    Problem,
    /// AWS's JSON or XML, by the protocol of the request.
    Aws,
    /// Anthropic's.
    Anthropic,
    /// Google's.
    Google,
    /// Elasticsearch's.
    Elasticsearch,
    /// Notion's.
    Notion,
    /// Twilio's.
    Twilio,
}
