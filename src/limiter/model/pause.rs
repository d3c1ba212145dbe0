//! Pauses of a limiter, as they pass between rooms. Their state is kept by `arithmetic::pause`.

use crate::clock::Micros;
use crate::limiter::model::limit::LimiterName;
use crate::limiter::model::partition::Partition;

/// The longest pause that can be configured, or made by hand.
pub const PAUSE_MAX: Micros = Micros::from_millis(24 * 3_600_000);

/// The pause that an upstream asks for, and the bounds within which it is granted.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct PauseRequest {
    /// The length that the upstream asks for; `None` if its answer names no instant.
    pub wait: Option<Micros>,
    /// The length of the first pause without a named instant. Each further one that follows at once is twice as long.
    pub fallback: Micros,
    /// The longest pause.
    pub max: Micros,
    /// How long ago the refused request was sent.
    pub sent_ago: Micros,
    /// The part of the longest jitter by which the pause is made longer, in 1024ths.
    pub jitter: u64,
    /// The status code of the upstream's answer.
    pub status: u16,
    /// How long ago the replica began to keep to the pause by itself, because the store did not answer; zero if it did not.
    pub made_ago: Micros,
}

impl PauseRequest {
    /// Returns the same request as it is to be told so much later.
    #[must_use]
    pub fn told_later(self, by: Micros) -> PauseRequest {
        let wait = self.wait.map(|wait| wait - by);
        let told = PauseRequest { wait, sent_ago: self.sent_ago + by, ..self };
        if self.made_ago == Micros::ZERO {
            return told;
        }
        let fallback = (self.fallback - by).max(Micros::ONE);
        PauseRequest { fallback, made_ago: self.made_ago + by, ..told }
    }
}

/// A pause that an operator asks for, or the end of one.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct PauseByHand {
    /// For how long the limiter is paused from now on; zero lifts the pause.
    pub lasting: Micros,
    /// How long ago the operator acted, if the replica has followed by itself since; zero otherwise.
    pub ago: Micros,
    /// The replica that the operator asked.
    pub replica: u64,
}

impl PauseByHand {
    /// Returns the same action as it is to be told so much later. One that nobody has followed yet begins when it is told.
    #[must_use]
    pub fn told_later(self, by: Micros) -> PauseByHand {
        if self.ago == Micros::ZERO {
            return self;
        }
        // A pause that is over by then is still none that was lifted.
        let lasting = (self.lasting - by).max(self.lasting.min(Micros::ONE));
        PauseByHand { lasting, ago: self.ago + by, ..self }
    }
}

/// The reason of a pause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// The upstream refused a request.
    Upstream {
        /// The status code of the answer.
        status: u16,
        /// True if the answer named the end of the pause; otherwise weir chose it.
        is_named: bool,
    },
    /// An operator paused the limiter.
    ByHand,
}

/// The reason of a pause, and the replica that set it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cause {
    /// The reason.
    pub reason: Reason,
    /// The replica that got the refusal, or that the operator asked.
    pub replica: u64,
}

/// A pause in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lasting {
    /// The instant before which nothing is booked.
    pub until: Micros,
    /// The reason, and the replica.
    pub cause: Cause,
}

/// The instants of the store's clock between which no slot may be used; a lifted pause leaves none between them.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct PauseStretch {
    /// When the pause was set.
    pub from: Micros,
    /// The end of the pause.
    pub until: Micros,
}

/// The last action by hand on a limiter, or on one of its partitions, that a store has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ActionByHand {
    /// The limiter.
    pub name: LimiterName,
    /// The partition; all of them if `None`.
    pub partition: Option<Partition>,
    /// The pause; it ends before it begins where one was lifted.
    pub stretch: PauseStretch,
    /// The replica that was asked for it.
    pub replica: u64,
}
