//! Gemini: `generateContent`, embeddings, interactions, which have an `input` and a `usage` of their own, and the endpoint for OpenAI's clients,
//! which has `messages` and `usage.prompt_tokens` (<https://ai.google.dev/gemini-api/docs/openai>).
//!
//! By "Rate limits", <https://ai.google.dev/gemini-api/docs/rate-limits>, as others quoted it in November 2026: tokens per minute are those
//! of the input. It does not say when they are counted, nor whether cached ones are free: they count here, when the request comes, and nothing is given back.
//! The usage of interactions is as `Usage` of <https://github.com/googleapis/python-genai> has it, which knows both spellings; in a stream it comes with
//! the event that completes the interaction.

use super::preset::{NONE, Preset};
use crate::config::costs::Combine;

/// The input of a minute.
pub(super) const GEMINI: Preset = Preset {
    of: &["contents", "input", "messages", "systemInstruction", "system_instruction", "tools", "requests"],
    combine: Combine::Input,
    input: &[
        "usageMetadata.promptTokenCount",
        "0.usageMetadata.promptTokenCount",
        "usage.total_input_tokens",
        "usage.totalInputTokens",
        "interaction.usage.total_input_tokens",
        "interaction.usage.totalInputTokens",
        "usage.prompt_tokens",
    ],
    ..NONE
};
