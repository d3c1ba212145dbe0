//! `cost` of a route, and of a limiter of a route: what a request takes, and how its response settles that.

use schemars::JsonSchema;

use super::forms::{LongForm, ShortForm};
use super::paths::Paths;
use crate::config::model::{Combine, Learn};

/// A number of permits.
#[derive(Debug, Clone, Copy, serde::Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub(crate) struct Cost(#[schemars(range(min = 1, max = 1_000_000_000))] pub(crate) i64);

impl ShortForm for Cost {}

/// A cost named in a header or the body of the request, or settled by the response.
#[derive(Debug, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CostHeader {
    /// The request's header with the cost, in ASCII digits. A header that begins with `weir-` is not forwarded. Required
    /// without `json` and `settle`.
    #[schemars(extend("examples" = ["weir-cost"]))]
    pub(crate) header: Option<String>,
    /// The place of the cost in the request's JSON body, a whole number, in place of `header`.
    #[schemars(extend("examples" = ["n", "parameters.sampleCount"]))]
    pub(crate) json: Option<String>,
    /// The cost of a request that names none, 1 to 1000000000. Default `1`.
    #[schemars(range(min = 1, max = 1_000_000_000), extend("examples" = [1]))]
    pub(crate) default: Option<i64>,
    /// The largest cost that a request may name, 1 to 1000000000; a larger one gets 400. Default: the smallest `rate`
    /// (for a `token_bucket`, `burst`) of the limiters.
    #[schemars(range(min = 1, max = 1_000_000_000), extend("examples" = [100]))]
    pub(crate) max: Option<i64>,
    /// The estimate of what the request costs, from its JSON body, in place of `header` and `json`. The response settles it.
    #[schemars(extend("examples" = [{"input": {"of": ["messages"]}, "output": {"first_of": ["max_tokens"], "otherwise": 1000}}]))]
    pub(crate) estimate: Option<Estimate>,
    /// How a provider of language models counts tokens: `openai`, `azure`, `anthropic-input`, `anthropic-output`, `gemini`, `mistral` or
    /// `bedrock`. It stands for an `estimate` and its `settle`; keys that are given beside it replace its own.
    #[schemars(extend("examples" = ["openai"]))]
    pub(crate) tokens: Option<String>,
    /// Settlement by the response: a higher cost is charged afterwards, a lower one is given back.
    #[schemars(extend("examples" = [{"header": "x-cost", "free": [304]}, {"json": "usage.total_tokens"}]))]
    pub(crate) settle: Option<Settle>,
}

impl LongForm for CostHeader {
    const EXPECTED: &'static str =
        "a whole number of permits, or a mapping with `header`, `json`, `tokens`, `estimate` or `settle`";
}

/// Settlement of the cost by the response.
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settle {
    /// The response's header with the cost, in ASCII digits, 0 to 1000000000.
    #[schemars(extend("examples" = ["x-cost"]))]
    pub(crate) header: Option<String>,
    /// The place of the cost in a response's JSON body, or in the events of a stream (`data:` lines), where no header names it: a whole
    /// number, 0 to 1000000000. A path, or a list of up to 8; the largest of all numbers that come counts. The upstream is asked for
    /// a body without compression. A response without the number leaves the cost as it is, and one that breaks off gives nothing back, unless
    /// it has said `[DONE]`.
    #[schemars(extend("examples" = ["usage.total_tokens", ["usage.total_tokens", "response.usage.total_tokens"]]))]
    pub(crate) json: Option<Paths>,
    /// The statuses of responses that cost nothing, such as 304.
    #[schemars(extend("examples" = [[304]]))]
    pub(crate) free: Option<Vec<i64>>,
    /// The places of the input in a response's JSON body, or in its events: the largest number at any of them. With an `estimate`, in
    /// place of `json`, as are the keys below.
    #[schemars(extend("examples" = [["usage.prompt_tokens", "usage.input_tokens"]]))]
    pub(crate) input: Option<Paths>,
    /// The places of the output. What a complete response does not name is nothing.
    #[schemars(extend("examples" = [["usage.completion_tokens", "usage.output_tokens"]]))]
    pub(crate) output: Option<Paths>,
    /// The places of numbers that are added to the input. Of places with the same last name the largest counts.
    #[schemars(extend("examples" = ["usage.cache_creation_input_tokens"]))]
    pub(crate) plus: Option<Paths>,
    /// The places of numbers within the input that count by a weight of their own, such as what is read from a cache. Of places with the same
    /// last name the largest counts.
    #[schemars(extend("examples" = ["usage.prompt_tokens_details.cached_tokens"]))]
    pub(crate) cached: Option<Paths>,
    /// The weight of a token of each kind.
    #[schemars(extend("examples" = [{"output": 5}]))]
    pub(crate) weights: Option<Weights>,
    /// Gives back what a request has cost less than its estimate, and all of it if the response is a 4xx, 503 or 529: for providers that
    /// count what was used. Otherwise only more than the estimate is charged. `false` if absent.
    #[schemars(extend("examples" = [true]))]
    pub(crate) refund: Option<bool>,
    /// Asks a stream for its usage where its caller does not, as OpenAI's chat completions need it, and hides the event that tells it alone
    /// from that caller: the request's JSON body gets `stream_options: {include_usage: true}`, where its path ends with `/completions`. `true` for `tokens: openai`, else `false`.
    #[schemars(extend("examples" = [false]))]
    pub(crate) include_usage: Option<bool>,
}

/// The weight of a token of each kind.
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Weights {
    /// One of the input, 0 to 1000; 1 if absent.
    #[schemars(range(min = 0, max = 1000), extend("examples" = [1]))]
    pub(crate) input: Option<i64>,
    /// One of the output, 0 to 1000; 1 if absent.
    #[schemars(range(min = 0, max = 1000), extend("examples" = [5]))]
    pub(crate) output: Option<i64>,
    /// One that was cached, 0 to 1000; 0 if absent.
    #[schemars(range(min = 0, max = 1000), extend("examples" = [0]))]
    pub(crate) cached: Option<i64>,
}

/// The estimate of what a request costs.
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Estimate {
    /// The input, by the length of the body or of parts of it.
    #[schemars(extend("examples" = [{"bytes_per_permit": 3, "of": ["messages"], "image": 1000}]))]
    pub(crate) input: Option<EstimateInput>,
    /// The largest output, as the request says.
    #[schemars(extend("examples" = [{"first_of": ["max_tokens"], "otherwise": 1000}]))]
    pub(crate) output: Option<EstimateOutput>,
    /// The part that counts, also when the response settles it: their `sum`, the larger one (`max`), `input` or `output`. `sum` if absent.
    #[schemars(extend("examples" = ["max"]))]
    pub(crate) combine: Option<Combine>,
    /// The largest estimate, 1 to 1000000000: a larger one is cut to it, and to what the limiter can grant at once to
    /// the partition of the request. That alone if absent.
    #[schemars(range(min = 1, max = 1_000_000_000), extend("examples" = [100_000]))]
    pub(crate) max: Option<i64>,
    /// `p95`: the output is no more than the 95th percentile of the partition's last 200 answers, once this replica knows 100; for providers
    /// that count what was used. `off` if absent.
    #[schemars(extend("examples" = ["p95"]))]
    pub(crate) learn: Option<Learn>,
}

/// The estimate of what goes in.
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EstimateInput {
    /// The bytes of a body that are one permit, 1 to 1000; 3 if absent.
    #[schemars(range(min = 1, max = 1000), extend("examples" = [4]))]
    pub(crate) bytes_per_permit: Option<i64>,
    /// The places of what counts; the whole body if absent, if none of them is there, or if it is no JSON.
    #[schemars(extend("examples" = [["messages", "system", "tools"]]))]
    pub(crate) of: Option<Paths>,
    /// The permits of an image, in place of its bytes, 0 to 1000000; 1000 if absent.
    #[schemars(range(min = 0, max = 1_000_000), extend("examples" = [1600]))]
    pub(crate) image: Option<i64>,
}

/// The estimate of what comes out.
#[derive(Debug, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EstimateOutput {
    /// The places of the largest output: the first that holds a number counts.
    #[schemars(extend("examples" = [["max_completion_tokens", "max_tokens"]]))]
    pub(crate) first_of: Option<Paths>,
    /// The output of a request that names none, 0 to 1000000; 1000 if absent.
    #[schemars(range(min = 0, max = 1_000_000), extend("examples" = [4096]))]
    pub(crate) otherwise: Option<i64>,
    /// The places of a number of answers: the first that holds a number multiplies the output.
    #[schemars(extend("examples" = [["n", "best_of"]]))]
    pub(crate) times_first_of: Option<Paths>,
}
