//! Anthropic: messages. Input and output are two limits.
//!
//! By "Rate limits", <https://docs.claude.com/en/api/rate-limits>, as others quoted it in November 2026: input counts `input_tokens` and
//! `cache_creation_input_tokens`; what is read from a cache does not count, but for some older models. Output is counted as it is made, and
//! `max_tokens` does not count. `max_tokens` is the estimate all the same until the output is learnt, because no answer is longer; the rest is
//! given back. The `output_tokens` of `message_start` are a placeholder: the count of a stream comes with `message_delta` alone, so one that an
//! `error` ends before that keeps its estimate.

use super::preset::{NONE, OutputMax, Preset};
use crate::config::costs::{Combine, Learn};

/// The input of a minute.
pub(super) const INPUT: Preset = Preset {
    of: &["messages", "system", "tools"],
    combine: Combine::Input,
    input: &["usage.input_tokens", "message.usage.input_tokens"],
    plus: &["usage.cache_creation_input_tokens", "message.usage.cache_creation_input_tokens"],
    refund: true,
    ..NONE
};

/// The output of a minute.
pub(super) const OUTPUT: Preset = Preset {
    of: &["messages", "system", "tools"],
    output_max: OutputMax { first_of: &["max_tokens"], otherwise: 4096, times_first_of: &[] },
    combine: Combine::Output,
    output: &["usage.output_tokens"],
    refund: true,
    learn: Learn::P95,
    ..NONE
};
