//! A queue's knowledge of its bookings beside its own answers: by the heartbeats, which name the states that were moved.

use crate::clock::{Micros, Moment};
use crate::limiter::model::Answer;
use crate::limiter::recovery::link::MovesTold;

/// The last news of a queue's bookings.
///
/// Invariant: where a heartbeat counts for a queue, the queue's last answer is younger than every move that heartbeats told of, and
/// none was missed since.
#[derive(Default)]
pub(super) struct MoveWatch {
    /// The instant of the last answer, by the store's clock.
    answered: Micros,
    /// The instant as of which the last told move was told.
    moved: Micros,
    /// True if replicas declare different limits, which each has to repeat.
    is_disputed: bool,
}

impl MoveWatch {
    /// Takes in an answer of the store.
    pub(super) fn answered(&mut self, answer: &Answer) {
        (self.answered, self.is_disputed) = (answer.now, answer.is_disputed);
    }

    /// Takes in that bookings were moved, as of an instant of the store's clock.
    pub(super) fn moved(&mut self, at: Micros) {
        self.moved = self.moved.max(at);
    }

    /// Returns when the latest heartbeat was sent by which the queue knows that its bookings are where they were; `None` if heartbeats
    /// do not tell.
    pub(super) fn unmoved_at(&self, told: Option<MovesTold>) -> Option<Moment> {
        let is_unmoved =
            |told: &MovesTold| !self.is_disputed && self.answered > self.moved && self.answered >= told.from;
        told.filter(is_unmoved).map(|told| told.sent)
    }
}
