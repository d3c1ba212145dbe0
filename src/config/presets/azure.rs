//! Azure OpenAI.
//!
//! By "Manage Azure OpenAI in Microsoft Foundry Models quota",
//! <https://learn.microsoft.com/azure/ai-foundry/openai/how-to/quota>, as others quoted it in November 2026: the rate limit counts the
//! most tokens that a request is estimated to need when it comes, from its prompt, `max_tokens` and `best_of`; it is not the count of the bill. Requests are counted in
//! parts of 1 or 10 seconds. It does not say that unused tokens come back, so nothing is given back.

use super::preset::{NONE, OutputMax, Preset};
use crate::config::costs::Combine;

/// The tokens of a minute of a deployment.
pub(super) const AZURE: Preset = Preset {
    of: &["messages", "input", "prompt", "instructions", "tools"],
    output_max: OutputMax {
        first_of: &["max_completion_tokens", "max_output_tokens", "max_tokens"],
        otherwise: 1000,
        times_first_of: &["best_of", "n"],
    },
    combine: Combine::Sum,
    input: &["usage.prompt_tokens", "usage.input_tokens", "response.usage.input_tokens"],
    output: &["usage.completion_tokens", "usage.output_tokens", "response.usage.output_tokens"],
    ..NONE
};
