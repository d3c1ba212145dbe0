//! The cost of a request, and how its response settles it. Reads neither.

use std::sync::Arc;

use http::HeaderName;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::json_path::JsonPath;
use crate::limiter::model::limit::Permits;

/// The cost of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cost {
    /// The same cost for every request.
    Fixed(Permits),
    /// A cost named in a header of the request.
    Header {
        /// The header.
        name: HeaderName,
        /// The cost without the header.
        default: Permits,
        /// The largest cost that a request may name.
        max: Permits,
    },
    /// A cost estimated from the request, which its response settles.
    Estimate(Arc<Estimate>),
    /// A cost named in the JSON body of the request.
    Json {
        /// Its place in the body.
        path: JsonPath,
        /// The cost where the body names none.
        default: Permits,
        /// The largest cost that a request may name.
        max: Permits,
    },
}

/// Settlement of a request's cost by its response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settle {
    /// The header with the cost.
    pub header: Option<HeaderName>,
    /// The places of the cost in the body, where no header names it: the largest number at any of them.
    pub json: Vec<JsonPath>,
    /// The statuses of responses that cost nothing.
    pub free: Vec<u16>,
    /// The numbers in the body that make up the cost together.
    pub usage: Option<Arc<Usage>>,
}

impl Settle {
    /// Returns whether the bodies of responses are looked into.
    pub fn reads_bodies(&self) -> bool {
        !self.json.is_empty() || self.usage.is_some()
    }
}

/// The likely cost of a request: its input, and its largest output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Estimate {
    /// The bytes of a body that are one permit.
    pub bytes_per_permit: u32,
    /// The places of what counts of a JSON body; the whole body if empty.
    pub of: Vec<JsonPath>,
    /// The permits of an image, in place of its bytes.
    pub image: u32,
    /// The places of the largest output, of which the first counts that holds a number. Empty if no output counts.
    pub first_of: Vec<JsonPath>,
    /// The output where no place holds one.
    pub otherwise: u32,
    /// The places of numbers by the first of which the output is multiplied.
    pub times_first_of: Vec<JsonPath>,
    /// The part of both that counts.
    pub combine: Combine,
    /// The largest estimate in any partition: a larger one is cut to it.
    pub max: Permits,
    /// The way in which the output is learnt from earlier responses.
    pub learn: Learn,
}

impl Estimate {
    /// Returns the places whose values it needs.
    pub fn values(&self) -> impl Iterator<Item = &JsonPath> {
        self.first_of.iter().chain(&self.times_first_of)
    }
}

/// The way in which the output of a request is learnt from the responses of its partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Learn {
    /// Not at all.
    #[default]
    Off,
    /// As no more than the 95th percentile of the last answers.
    P95,
}

/// The part of input and output that counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Combine {
    /// Both.
    #[default]
    Sum,
    /// The larger one.
    Max,
    /// The input alone.
    Input,
    /// The output alone.
    Output,
}

impl Combine {
    /// Returns what counts.
    pub fn of(self, input: u64, output: u64) -> u64 {
        match self {
            Combine::Sum => input.saturating_add(output),
            Combine::Max => input.max(output),
            Combine::Input => input,
            Combine::Output => output,
        }
    }
}

/// The numbers in the body of a response that make up the cost. Of the input and of the output the largest number of all that come counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// The places of the input.
    pub input: Vec<JsonPath>,
    /// The places of the output.
    pub output: Vec<JsonPath>,
    /// The places of numbers that are added to the input: of those with the same last name the largest.
    pub plus: Vec<JsonPath>,
    /// The places of numbers within the input that count by a weight of their own, in the same way.
    pub cached: Vec<JsonPath>,
    /// The weights of input, output and what was cached.
    pub weights: Weights,
    /// The part of input and output that counts.
    pub combine: Combine,
    /// True if less than was taken is given back.
    pub refund: bool,
    /// The streams that are asked for their usage.
    pub streams: Streams,
}

/// The streams that are asked for their usage.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Streams {
    /// Those whose caller asks.
    #[default]
    AsCalled,
    /// All that can tell it.
    TellUsage,
}

/// The weights of the parts of a cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weights {
    /// Of the input.
    pub input: u32,
    /// Of the output.
    pub output: u32,
    /// Of what was cached.
    pub cached: u32,
}

impl Usage {
    /// Returns all places, in the order of the fields.
    pub fn paths(&self) -> Vec<JsonPath> {
        let all = self.input.iter().chain(&self.output).chain(&self.plus).chain(&self.cached);
        all.cloned().collect()
    }

    /// Returns the output of a complete response, from the largest number at each place of [`Usage::paths`]; `None` if it did not tell.
    pub fn output_of(&self, numbers: &[Option<u64>]) -> Option<u64> {
        let outputs = numbers.get(self.input.len()..self.input.len() + self.output.len())?;
        outputs.iter().flatten().copied().max()
    }

    /// Returns what a request has cost, from the largest number at each place of [`Usage::paths`]; `None` if the body did not tell. What a
    /// complete body does not name of the output is nothing.
    pub fn cost(&self, numbers: &[Option<u64>]) -> Option<u64> {
        let (input, rest) = numbers.split_at_checked(self.input.len())?;
        let (output, rest) = rest.split_at_checked(self.output.len())?;
        let (plus, cached) = rest.split_at_checked(self.plus.len())?;
        let largest = |numbers: &[Option<u64>]| numbers.iter().flatten().copied().max();
        let (input, output) = (largest(input), largest(output));
        if input.is_none() && (!self.input.is_empty() || output.is_none()) {
            return None;
        }
        let input = input.unwrap_or_default().saturating_add(sum_of(&self.plus, plus));
        let cached = sum_of(&self.cached, cached).min(input);
        let Weights { input: of_input, output: of_output, cached: of_cached } = self.weights;
        let input = (input - cached)
            .saturating_mul(of_input.into())
            .saturating_add(cached.saturating_mul(of_cached.into()));
        let output = output.unwrap_or_default().saturating_mul(of_output.into());
        Some(self.combine.of(input, output))
    }
}

/// Returns the sum of the numbers at these places. Of those with the same last name the largest counts: an event of a stream may tell once
/// more what another has told, at another place.
fn sum_of(places: &[JsonPath], numbers: &[Option<u64>]) -> u64 {
    let mut largest: Vec<(Option<&Box<str>>, u64)> = Vec::new();
    for (place, number) in places.iter().zip(numbers) {
        let (name, number) = (place.steps().last(), number.unwrap_or_default());
        match largest.iter_mut().find(|(known, _)| *known == name) {
            Some((_, most)) => *most = number.max(*most),
            None => largest.push((name, number)),
        }
    }
    largest.iter().fold(0, |sum, (_, number)| sum.saturating_add(*number))
}

/// The cost of a request at one limiter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charge {
    /// The cost.
    pub cost: Cost,
    /// The settlement by the response.
    pub settle: Option<Settle>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(combine: Combine, weights: Weights) -> Usage {
        let paths = |text: &str| vec![JsonPath::parse(text).unwrap()];
        Usage {
            input: paths("i"),
            output: paths("o"),
            plus: paths("p"),
            cached: paths("c"),
            weights,
            combine,
            refund: true,
            streams: Streams::AsCalled,
        }
    }

    /// The first event of a stream tells the input, and the last one tells it again.
    #[test]
    fn a_number_that_two_events_tell_counts_once() {
        let paths =
            |texts: &[&str]| texts.iter().map(|text| JsonPath::parse(text).unwrap()).collect::<Vec<_>>();
        let written = paths(&["usage.written", "message.usage.written", "usage.read"]);
        for (numbers, sum) in [
            ([Some(4425), Some(4425), None], 4425),
            ([Some(4425), None, Some(7)], 4432),
            ([None, Some(3), Some(u64::MAX)], u64::MAX),
            ([None, None, None], 0),
        ] {
            assert_eq!(sum_of(&written, &numbers), sum, "{numbers:?}");
        }
    }

    #[test]
    fn the_cost_is_made_up_of_what_came() {
        let plain = Weights { input: 1, output: 1, cached: 0 };
        let dear = Weights { output: 5, ..plain };
        for (combine, weights, numbers, cost) in [
            (Combine::Sum, plain, [Some(10), Some(5), None, None], Some(15)),
            (Combine::Max, plain, [Some(10), Some(5), None, None], Some(10)),
            (Combine::Sum, dear, [Some(10), Some(5), Some(3), Some(4)], Some(34)),
            (Combine::Input, plain, [Some(10), None, None, None], Some(10)),
            (Combine::Sum, plain, [Some(10), None, None, Some(99)], Some(0)),
            (Combine::Sum, plain, [None, Some(5), None, None], None),
            (Combine::Sum, plain, [None, None, None, None], None),
            (Combine::Sum, dear, [Some(u64::MAX), Some(u64::MAX), None, None], Some(u64::MAX)),
        ] {
            assert_eq!(usage(combine, weights).cost(&numbers), cost, "{numbers:?}");
        }
    }
}
