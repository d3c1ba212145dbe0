//! How providers of language models count tokens: data, each from the documentation that its file names.
//!
//! Where the documentation is silent, a preset is on the safe side: it takes more, and gives nothing back.

mod anthropic;
mod azure;
mod bedrock;
mod gemini;
mod mistral;
mod openai;
pub(super) mod preset;

use preset::Preset;

/// All presets, by their names.
pub(super) const PRESETS: [(&str, Preset); 7] = [
    ("openai", openai::OPENAI),
    ("azure", azure::AZURE),
    ("anthropic-input", anthropic::INPUT),
    ("anthropic-output", anthropic::OUTPUT),
    ("gemini", gemini::GEMINI),
    ("mistral", mistral::MISTRAL),
    ("bedrock", bedrock::BEDROCK),
];
