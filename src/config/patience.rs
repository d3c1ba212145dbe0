//! How long clients wait for an answer: the headers in which they tell, and what of that is left for the upstream.

use std::time::Duration;

use http::HeaderName;

/// The headers in which clients usually tell how long they wait for an answer.
pub const PATIENCE_HEADERS: [&str; 5] =
    ["weir-timeout", "x-stainless-timeout", "x-stainless-read-timeout", "x-server-timeout", "grpc-timeout"];

/// How long clients wait for an answer, as they tell, and what of that is left for the upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patience {
    /// The headers in which they tell.
    pub headers: Vec<HeaderName>,
    /// The part that is left for the upstream.
    pub leave: Leave,
    /// True if all headers are of [`PATIENCE_HEADERS`].
    pub is_usual: bool,
}

/// The part of a client's patience that is left for the upstream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Leave {
    /// The upstream's latest times to answer.
    #[default]
    Auto,
    /// A share of the patience, in millionths.
    Share {
        /// The share.
        ppm: u32,
    },
    /// A time.
    Time(Duration),
}
