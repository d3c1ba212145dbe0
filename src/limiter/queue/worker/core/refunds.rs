//! Permits that were taken for requests which have cost less.

use std::collections::VecDeque;

use crate::limiter::model::Permits;
use crate::limiter::queue::slot::Slot;

/// Parts of used permits that are given back. Nothing moves a slot that was used, so those of an earlier epoch, too, stand where they were
/// booked, as long as the store has kept its memory.
///
/// Invariant: they go with the generations of the last answer, which is of the same epoch, or of theirs. A store that has lost its memory
/// meanwhile knows none of these, and takes nothing back: others' permits may stand there.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Refunds {
    pub(super) slots: VecDeque<(Slot, Permits)>,
    /// The epoch of the last answer.
    pub(super) heard: u64,
}
