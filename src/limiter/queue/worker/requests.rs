//! The requests of a queue that wait for an answer, by their numbers.

use tokio::sync::oneshot;

use crate::limiter::model::{Flow, Refusal};
use crate::limiter::queue::permit::{Permit, Turn};
use crate::limiter::queue::request::RequestId;
use crate::limiter::queue::ticket::Entered;

/// The one that waits for an answer.
pub(super) enum Receiver {
    /// A request that does not know yet whether it has to wait.
    Asking(oneshot::Sender<Result<Entered, Refusal>>),
    /// A request that has a place in the queue, and is notified once that its slot is near.
    Waiting { approach: Option<oneshot::Sender<()>>, turn: Turn },
}

impl Receiver {
    /// Returns whether the request has left.
    pub(super) fn has_left(&self) -> bool {
        match self {
            Receiver::Asking(entry) => entry.is_closed(),
            Receiver::Waiting { turn, .. } => turn.is_closed(),
        }
    }

    /// Hands the permit to the request. If that has left, the permit gives itself back.
    pub(super) fn grant(self, permit: Permit) {
        match self {
            Receiver::Asking(entry) => drop(entry.send(Ok(Entered::Granted(permit)))),
            Receiver::Waiting { turn, .. } => drop(turn.send(Ok(permit))),
        }
    }

    /// Refuses the request.
    pub(super) fn refuse(self, refusal: Refusal) {
        match self {
            Receiver::Asking(entry) => drop(entry.send(Err(refusal))),
            Receiver::Waiting { turn, .. } => drop(turn.send(Err(refusal))),
        }
    }
}

/// The flows and receivers of all requests. Invariant: a number that was taken out in a turn is not used again before the turn's end, for
/// the core may have named it in an action before it heard of that.
#[derive(Default)]
pub(super) struct Requests {
    receivers: Vec<Option<(Flow, Receiver)>>,
    free: Vec<u32>,
    /// The numbers that were taken out in this turn.
    taken: Vec<u32>,
}

impl Requests {
    /// Adds a request, and returns its number.
    pub(super) fn add(&mut self, flow: Flow, receiver: Receiver) -> RequestId {
        if let Some(place) = self.free.pop() {
            self.receivers[place as usize] = Some((flow, receiver));
            return RequestId(place);
        }
        self.receivers.push(Some((flow, receiver)));
        // There are never as many requests as would not fit.
        RequestId(u32::try_from(self.receivers.len() - 1).unwrap_or(u32::MAX))
    }

    /// Returns the receiver of a request that waits.
    pub(super) fn get_mut(&mut self, request: RequestId) -> Option<&mut Receiver> {
        self.receivers.get_mut(request.0 as usize)?.as_mut().map(|(_, receiver)| receiver)
    }

    /// Takes a request out.
    pub(super) fn take(&mut self, request: RequestId) -> Option<Receiver> {
        self.take_of(request).map(|(_, receiver)| receiver)
    }

    /// Takes a request out, with its flow.
    pub(super) fn take_of(&mut self, request: RequestId) -> Option<(Flow, Receiver)> {
        let taken = self.receivers.get_mut(request.0 as usize)?.take()?;
        self.taken.push(request.0);
        Some(taken)
    }

    /// Lets the numbers that were taken out in this turn be used again.
    pub(super) fn end_turn(&mut self) {
        self.free.append(&mut self.taken);
        if self.free.len() == self.receivers.len() {
            self.receivers.clear();
            self.free.clear();
        }
    }

    /// Takes a request out that had a place in the queue, if it has left. Another one may have its number by now.
    pub(super) fn take_leaver(&mut self, request: RequestId) -> bool {
        let waits = matches!(self.get_mut(request), Some(Receiver::Waiting { turn, .. }) if turn.is_closed());
        waits && self.take(request).is_some()
    }

    /// Takes all requests out that had a place in the queue and have left, and returns their numbers.
    pub(super) fn take_leavers(&mut self) -> Vec<RequestId> {
        let numbers = (0..).zip(&self.receivers);
        let has_left = |receiver: &Option<(Flow, Receiver)>| {
            receiver.as_ref().is_some_and(|(_, of)| matches!(of, Receiver::Waiting { .. }) && of.has_left())
        };
        let left: Vec<RequestId> =
            numbers.filter(|(_, of)| has_left(of)).map(|(number, _)| RequestId(number)).collect();
        left.iter().for_each(|request| drop(self.take(*request)));
        left
    }

    /// Keeps room for so many requests at least.
    pub(super) fn shrink_to(&mut self, kept: usize) {
        self.receivers.shrink_to(kept);
        self.free.shrink_to(kept);
        self.taken.shrink_to(kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The core refuses a waiting request, which has left, and hears of a newcomer in the same turn: the action must not meet that.
    #[test]
    fn a_number_is_not_used_again_in_the_turn_in_which_its_request_leaves() {
        let mut requests = Requests::default();
        let add = |requests: &mut Requests| {
            let (turn, turned) = oneshot::channel();
            (requests.add(Flow::default(), Receiver::Waiting { approach: None, turn }), turned)
        };
        let (leaver, turned) = add(&mut requests);
        drop(turned);
        assert!(requests.take_leaver(leaver));
        let (newcomer, mut turned) = add(&mut requests);
        assert!(
            requests.take_of(leaver).is_none(),
            "the newcomer is refused in the place of one that has left"
        );
        requests.end_turn();
        let (next, _turned) = add(&mut requests);
        assert_ne!(next, newcomer);
        assert_eq!(next, leaver, "numbers are used again");
        assert!(turned.try_recv().is_err() && requests.take(newcomer).is_some());
    }
}
