//! Steps of a store's clock.

use crate::clock::Micros;

/// A step of a store's clock, and its size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The clock shows a later time than it would have.
    Forward(Micros),
    /// The clock shows an earlier time.
    Back(Micros),
}

/// Returns an instant of a clock as the clock shows it after a step.
pub fn stepped(at: Micros, step: Step) -> Micros {
    match step {
        Step::Forward(by) => at + by,
        Step::Back(by) => at - by,
    }
}
