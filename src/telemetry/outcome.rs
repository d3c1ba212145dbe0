//! How a request ended, in the words of metrics, the access log and traces.

/// The outcome of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The request was forwarded, and the upstream answered.
    Forwarded,
    /// weir refused the request: no permit, no route, not allowed.
    Refused,
    /// The upstream or weir failed.
    Failed,
    /// The client left before the end of the response.
    Cancelled,
}

impl Outcome {
    /// Returns the value of the label `outcome`, also used in the access log and in traces.
    pub const fn as_str(self) -> &'static str {
        match self {
            Outcome::Forwarded => "forwarded",
            Outcome::Refused => "refused",
            Outcome::Failed => "failed",
            Outcome::Cancelled => "cancelled",
        }
    }
}
