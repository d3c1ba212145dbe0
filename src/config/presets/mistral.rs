//! Mistral.
//!
//! By "How do API rate limits work", <https://help.mistral.ai/en/articles/424390>, as of November 2026: tokens of a minute are those of input and
//! output. It does not say whether an estimate counts when a request comes, so nothing is given back.

use super::preset::{NONE, OutputMax, Preset};
use crate::config::costs::Combine;

/// The tokens of a minute.
pub(super) const MISTRAL: Preset = Preset {
    of: &["messages", "prompt", "suffix", "input", "inputs", "tools"],
    output_max: OutputMax { first_of: &["max_tokens"], otherwise: 1000, times_first_of: &["n"] },
    combine: Combine::Sum,
    input: &["usage.prompt_tokens"],
    output: &["usage.completion_tokens"],
    ..NONE
};
