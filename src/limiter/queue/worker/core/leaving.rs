//! Takes requests out that have left.

use crate::limiter::model::Flow;
use crate::limiter::queue::request::{Arrival, Asker, RequestId};

use super::BookedCore;
use crate::limiter::queue::worker::events::Action;

impl BookedCore {
    /// Takes requests out that have left. Those that a core before this one has told their place may have none here yet: another request gets
    /// their number next.
    pub(super) fn remove(&mut self, left: &[RequestId], out: &mut Vec<Action>) {
        let gone = self.cost_queues.iter_mut().map(|(cost, queue)| (*cost, queue.remove(left).len()));
        let gone = gone.filter(|(_, count)| *count > 0);
        out.extend(gone.map(|(cost, count)| Action::CountCancelled(cost.into(), Flow::default(), count)));
        let has_left = |arrival: &mut Arrival| matches!(arrival.asker, Asker::Request(request) if left.contains(&request));
        let mut cancelled = |arrival: &Arrival| {
            out.push(Action::CountCancelled(arrival.costs.clone(), arrival.flow, 1));
        };
        self.arrivals.list.retain_mut(|arrival| {
            let goes = has_left(arrival);
            if goes {
                cancelled(arrival);
            }
            !goes
        });
        let asked = self.calls.under_way.iter_mut().flat_map(|sent| &mut sent.arrivals);
        let asked = asked.chain(self.calls.local.iter_mut().flat_map(|call| &mut call.arrivals));
        for arrival in asked.filter_map(|arrival| has_left(arrival).then_some(arrival)) {
            cancelled(arrival);
            arrival.asker = Asker::Refused;
        }
    }
}
