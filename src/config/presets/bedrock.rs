//! Amazon Bedrock: Converse and InvokeModel.
//!
//! By "How tokens are counted in Amazon Bedrock", <https://docs.aws.amazon.com/bedrock/latest/userguide/quotas-token-burndown.html>, as of November
//! 2026: input and `max_tokens` are taken when a request comes; at its end it counts as input, what was written to a cache, and output times a
//! rate that depends on the model, and the rest is given back. What is read from a cache does not count then. The rate is 5 or more
//! for newer models of Anthropic (`settle: {weights: {output: 5}}`), and 1 here. Its event streams are no server-sent events: of those the
//! estimate stays.

use super::preset::{NONE, OutputMax, Preset};
use crate::config::costs::Combine;

/// The tokens of a minute of a model.
pub(super) const BEDROCK: Preset = Preset {
    of: &["messages", "system", "toolConfig", "prompt", "inputText", "tools"],
    output_max: OutputMax {
        first_of: &[
            "inferenceConfig.maxTokens",
            "max_tokens",
            "max_tokens_to_sample",
            "textGenerationConfig.maxTokenCount",
        ],
        otherwise: 4096,
        times_first_of: &[],
    },
    combine: Combine::Sum,
    input: &["usage.inputTokens", "usage.input_tokens"],
    output: &["usage.outputTokens", "usage.output_tokens"],
    plus: &["usage.cacheWriteInputTokens", "usage.cache_creation_input_tokens"],
    refund: true,
    ..NONE
};
