//! Steps of a store's clock.

use crate::clock::Micros;

/// By how much a store's clock was stepped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// It shows later than it would have.
    Forward(Micros),
    /// It shows earlier.
    Back(Micros),
}

/// An instant of a clock as it shows it after a step.
pub fn stepped(at: Micros, step: Step) -> Micros {
    match step {
        Step::Forward(by) => at + by,
        Step::Back(by) => at - by,
    }
}
