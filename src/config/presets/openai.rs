//! OpenAI: chat completions, responses, completions. Embeddings have no output, so their route's estimate says `otherwise: 0`.
//!
//! By its guide "Rate limits", <https://platform.openai.com/docs/guides/rate-limits>, as others quoted it in November 2026: a request counts as
//! the larger one of `max_tokens` and the tokens estimated from its characters, when it comes; unsuccessful requests count, too. It does not say that
//! unused tokens come back, so nothing is given back. Its reference of chat completions says that a stream tells its usage with
//! `stream_options: {include_usage: true}` alone.

use super::preset::{NONE, OutputMax, Preset};
use crate::config::costs::{Combine, Streams};

/// The tokens of a minute.
pub(super) const OPENAI: Preset = Preset {
    of: &["messages", "input", "prompt", "instructions", "tools"],
    output_max: OutputMax {
        first_of: &["max_completion_tokens", "max_output_tokens", "max_tokens"],
        otherwise: 1000,
        times_first_of: &["n", "best_of"],
    },
    combine: Combine::Max,
    input: &["usage.prompt_tokens", "usage.input_tokens", "response.usage.input_tokens"],
    output: &["usage.completion_tokens", "usage.output_tokens", "response.usage.output_tokens"],
    streams: Streams::TellUsage,
    ..NONE
};
