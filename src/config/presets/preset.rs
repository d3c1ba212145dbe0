//! A preset.

use crate::config::costs::{Combine, Learn, Streams, Weights};

/// How a provider counts the tokens of a request.
#[derive(Debug, Clone, Copy)]
pub(in crate::config) struct Preset {
    /// The places of what goes in.
    pub(in crate::config) of: &'static [&'static str],
    /// The largest output.
    pub(in crate::config) output_max: OutputMax,
    /// The part of input and output that counts.
    pub(in crate::config) combine: Combine,
    /// The places of the input in a response.
    pub(in crate::config) input: &'static [&'static str],
    /// The places of the output in a response.
    pub(in crate::config) output: &'static [&'static str],
    /// The places of what is added to the input.
    pub(in crate::config) plus: &'static [&'static str],
    /// The places of what does not count of the input.
    pub(in crate::config) cached: &'static [&'static str],
    /// The weights of the parts.
    pub(in crate::config) weights: Weights,
    /// True if the provider counts what was used.
    pub(in crate::config) refund: bool,
    /// The way in which the output is learnt.
    pub(in crate::config) learn: Learn,
    /// The streams that are asked for their usage.
    pub(in crate::config) streams: Streams,
}

/// The largest output of a request.
#[derive(Debug, Clone, Copy)]
pub(in crate::config) struct OutputMax {
    /// The places where a request names it.
    pub(in crate::config) first_of: &'static [&'static str],
    /// That of a request that names none.
    pub(in crate::config) otherwise: u32,
    /// The places of the number of answers.
    pub(in crate::config) times_first_of: &'static [&'static str],
}

/// Every token counts once, but for those of a cache that are free.
const PLAIN: Weights = Weights { input: 1, output: 1, cached: 0 };

/// A preset of nothing.
pub(super) const NONE: Preset = Preset {
    of: &[],
    output_max: OutputMax { first_of: &[], otherwise: 0, times_first_of: &[] },
    combine: Combine::Sum,
    input: &[],
    output: &[],
    plus: &[],
    cached: &[],
    weights: PLAIN,
    refund: false,
    learn: Learn::Off,
    streams: Streams::AsCalled,
};
