//! Pauses of a limiter, as rooms tell each other of them. Knows no state: `arithmetic::pause` keeps it.

use crate::clock::Micros;

/// The longest pause that can be configured, or made by hand.
pub const PAUSE_MAX: Micros = Micros::from_millis(24 * 3_600_000);

/// What an upstream asks for, and what of it is granted.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct PauseRequest {
    /// How long it asks to be left alone; `None` if it names no instant.
    pub wait: Option<Micros>,
    /// How long the first pause is for which it names none. Each further one that follows at once is twice as long.
    pub fallback: Micros,
    /// The longest pause.
    pub max: Micros,
    /// How long ago the request was sent that it refused.
    pub sent_ago: Micros,
    /// By how much of the longest jitter the pause is longer, in parts of 1024.
    pub jitter: u64,
    /// The status code of its answer.
    pub status: u16,
}

/// Why a limiter is paused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// Its upstream refused.
    Upstream {
        /// The status code of the answer.
        status: u16,
        /// Whether the answer named the instant until which; otherwise it was chosen for it.
        is_named: bool,
    },
    /// Somebody wanted it.
    ByHand,
}

/// Why a limiter is paused, and who has seen to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cause {
    /// Why.
    pub reason: Reason,
    /// The replica that heard the refusal, or over which it was paused by hand.
    pub replica: u64,
}

/// A pause that lasts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lasting {
    /// Nothing is booked before.
    pub until: Micros,
    /// Why.
    pub cause: Cause,
}

/// No slot between these instants of the store's clock may be used. None at all lies between them where a pause was lifted.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct PauseStretch {
    /// When the pause was heard of.
    pub from: Micros,
    /// When it ends.
    pub until: Micros,
}
