//! What a request costs, and how its response settles that. Reads neither.

use http::HeaderName;

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
}

/// What a request costs at one limiter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charge {
    /// The cost.
    pub cost: Cost,
    /// The settlement by the response.
    pub settle: Option<Settle>,
}
