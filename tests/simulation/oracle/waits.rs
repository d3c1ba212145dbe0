//! Requests without an answer: how long they wait, how many, and in which order they are sent.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::rc::Rc;

use super::faults::Faults;
use super::finding::Evidence;
use super::usage::StateKey;

/// How long after its wait a request may be answered, without the time in which its replica stalls meanwhile: what it has to do then
/// takes several steps, each of which may be stalled anew.
pub(crate) const LATE: u64 = 100_000;
/// For how long too many may wait in a line: what one call of the store has had no time for, the next one answers.
pub(crate) const CROWD_LASTS: u64 = 20_000;
/// How soon a request is looked at again whose replica stands still.
const AGAIN: u64 = 10_000;

/// The states that a request takes permits from, each with the version of its limiter.
pub(crate) type Takes = Rc<[(StateKey, u32)]>;

/// A request without an answer.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Its number.
    pub(crate) number: u64,
    /// Its replica.
    pub(crate) replica: usize,
    /// Its states; empty: nothing limits it.
    pub(crate) takes: Takes,
    /// Its cost at each of them.
    pub(crate) costs: Rc<[u64]>,
    /// Its arrival.
    pub(crate) arrived: u64,
    /// When its replica saw it at the earliest.
    seen: u64,
    /// How long it may wait.
    pub(crate) wait: u64,
    /// How long it may wait by itself.
    own_wait: u64,
    /// How many may wait in its queue.
    pub(crate) waiting_max: u64,
    /// The longest time until its answer.
    pub(crate) answered_within: u64,
    /// How long its replica had stood still when it came.
    stopped_before: u64,
    /// Since when its connection is awaited, how long connections took before, and when the last one was there.
    connecting: Option<u64>,
    connected_in: u64,
    connected: u64,
    /// How long its replica stalled after its wait, before its connection was awaited for the last time.
    stalled: u64,
    is_waiting: bool,
    is_found_late: bool,
}

impl Request {
    /// Iterates over its states, with its cost at each.
    pub(crate) fn taken(&self) -> impl Iterator<Item = (StateKey, u64)> {
        self.takes.iter().zip(&*self.costs).map(|((key, _), cost)| (*key, *cost))
    }

    /// Returns how long it has waited, without the time in which its replica stood still, without that of its connection, and without
    /// stalls after its wait.
    fn waited(&self, at: u64, faults: &Faults) -> u64 {
        self.waited_with_stall(at, faults) - self.last_stalled(at, faults)
    }

    /// As [`Request::waited`], with the stalls since its last connection.
    fn waited_with_stall(&self, at: u64, faults: &Faults) -> u64 {
        let connecting = self.connecting.map_or(0, |since| at - since) + self.connected_in;
        let stopped = faults.stopped_for(at, self.replica) - self.stopped_before;
        at.saturating_sub(self.seen).saturating_sub(connecting + stopped + self.stalled)
    }

    /// Returns for how long its replica stalled after its wait and since its last connection.
    fn last_stalled(&self, at: u64, faults: &Faults) -> u64 {
        if self.connecting.is_some() {
            return 0;
        }
        let late = self.waited_with_stall(at, faults).saturating_sub(self.answered_within - LATE);
        faults.stalled_within(self.replica, (at - late).max(self.connected), at)
    }
}

/// Returns the evidence if a request has waited too long, and was not found late before.
pub(crate) fn judge_wait(request: &Request, at: u64, faults: &Faults) -> Option<Evidence> {
    let waited = request.waited(at, faults);
    (waited > request.answered_within && !request.is_found_late).then(|| Evidence {
        sent: waited,
        limit: request.answered_within,
        detail: format!(
            "request {} of replica {}, wait {} us",
            request.number, request.replica, request.wait
        ),
    })
}

/// The costs and the wait of a request, and its arrival and number.
type LineKey = (Rc<[u64]>, u64);
type InLine = (u64, u64);

/// The waiting requests of the same states in one replica.
#[derive(Default, Debug)]
struct Queue {
    waiting: u64,
    /// By costs and wait, in order of arrival.
    lines: BTreeMap<LineKey, BTreeSet<InLine>>,
}

type QueueKey = (usize, Takes);

/// All requests without an answer.
#[derive(Default)]
pub(crate) struct Requests {
    requests: BTreeMap<u64, Request>,
    queues: BTreeMap<QueueKey, Queue>,
    /// The last request of each queue in which too many have had a place at this instant, of which some may leave at once.
    crowds: BTreeMap<QueueKey, (u64, Request)>,
    deadlines: BinaryHeap<Reverse<(u64, u64)>>,
}

/// A request as it arrives.
pub(crate) struct Arrival {
    /// Its number.
    pub(crate) number: u64,
    /// Its replica.
    pub(crate) replica: usize,
    /// Its states.
    pub(crate) takes: Takes,
    /// Its cost at each of them.
    pub(crate) costs: Rc<[u64]>,
    /// How long it may wait by itself, and by its limiters, too.
    pub(crate) own_wait: u64,
    pub(crate) wait: u64,
    /// How many may wait in its queue.
    pub(crate) waiting_max: u64,
}

impl Requests {
    /// Takes in a request. It waits for so long, or `floor` where that is longer, and its answer may be late by [`LATE`].
    pub(crate) fn arrive(&mut self, at: u64, arrival: Arrival, floor: u64, faults: &Faults) {
        let Arrival { number, replica, takes, costs, own_wait, wait, waiting_max } = arrival;
        let answered_within = wait.max(floor).saturating_add(LATE);
        let stopped_before = faults.stopped_for(at, replica);
        let (connecting, connected_in, connected) = (None, 0, at);
        self.deadlines.push(Reverse((at.saturating_add(answered_within).saturating_add(1), number)));
        let (is_waiting, is_found_late) = (false, false);
        let request = Request {
            number,
            replica,
            takes,
            costs,
            arrived: at,
            seen: faults.awake_from(replica, at),
            connecting,
            connected_in,
            connected,
            stalled: 0,
            wait,
            own_wait,
            waiting_max,
            answered_within,
            stopped_before,
            is_waiting,
            is_found_late,
        };
        self.requests.insert(number, request);
    }

    /// Takes in that limiters have changed; `waits` is how long a request may wait by those that it takes permits from. One that came
    /// while its replica stood still, as it does yet, is seen by the new limiters, or was by the old ones.
    pub(crate) fn reconfigure(&mut self, at: u64, faults: &Faults, waits: impl Fn(&Takes) -> u64) {
        for request in self.requests.values_mut().filter(|request| request.waited(at, faults) == 0) {
            let longer = waits(&request.takes).min(request.own_wait).saturating_sub(request.wait);
            request.wait += longer;
            request.answered_within = request.answered_within.max(request.wait.saturating_add(LATE));
        }
    }

    /// Takes in that a request has a place in its queue; returns it, and how many wait there. `None`: there is no such request.
    pub(crate) fn wait(&mut self, number: u64) -> Option<(Request, u64)> {
        let request = self.requests.get_mut(&number)?;
        let queue = self.queues.entry((request.replica, Rc::clone(&request.takes))).or_default();
        if !request.is_waiting {
            request.is_waiting = true;
            queue.waiting += 1;
            let line = queue.lines.entry((Rc::clone(&request.costs), request.wait)).or_default();
            line.insert((request.arrived, number));
        }
        Some((request.clone(), queue.waiting))
    }

    /// Notes that more wait in the queue of a request than may.
    pub(crate) fn note_crowd(&mut self, at: u64, request: Request) {
        self.crowds.insert((request.replica, Rc::clone(&request.takes)), (at, request));
    }

    /// Returns the crowds that were noted as of before an instant, and in which too many wait on: how many wait in each.
    pub(crate) fn crowds_before(&mut self, at: u64) -> Vec<(Request, u64)> {
        let mut found = Vec::new();
        self.crowds.retain(|key, (noted, request)| {
            if at <= *noted {
                return true;
            }
            let waiting = self.queues.get(key).map_or(0, |queue| queue.waiting);
            if waiting > request.waiting_max {
                found.push((request.clone(), waiting));
            }
            false
        });
        found
    }

    /// Takes in that a request has its turn and waits for its connection. It has left its queue.
    pub(crate) fn connect(&mut self, at: u64, number: u64, faults: &Faults) {
        self.leave_queue(number);
        if let Some(request) = self.requests.get_mut(&number)
            && request.connecting.is_none()
        {
            request.stalled += request.last_stalled(at, faults);
            request.connecting = Some(at);
        }
    }

    /// Takes in that the connection of a request is there.
    pub(crate) fn connected(&mut self, at: u64, number: u64) {
        if let Some(request) = self.requests.get_mut(&number)
            && let Some(since) = request.connecting.take()
        {
            request.connected_in += at - since;
            request.connected = at;
        }
    }

    /// Removes a request that is answered or gone.
    pub(crate) fn remove(&mut self, number: u64) -> Option<Request> {
        self.leave_queue(number);
        self.requests.remove(&number)
    }

    /// Takes a request out of its queue, if it is in one.
    fn leave_queue(&mut self, number: u64) {
        let Some(request) = self.requests.get_mut(&number).filter(|request| request.is_waiting) else {
            return;
        };
        request.is_waiting = false;
        let key = (request.replica, Rc::clone(&request.takes));
        let Some(queue) = self.queues.get_mut(&key) else { return };
        queue.waiting -= 1;
        let line_key = (Rc::clone(&request.costs), request.wait);
        if let Some(line) = queue.lines.get_mut(&line_key) {
            line.remove(&(request.arrived, number));
            if line.is_empty() {
                queue.lines.remove(&line_key);
            }
        }
        if queue.waiting == 0 {
            self.queues.remove(&key);
        }
    }

    /// Returns the arrival and number of the first request in the queue of one that waits, of the same costs and wait; and that one.
    pub(crate) fn first_in_line(&self, number: u64) -> Option<((u64, u64), &Request)> {
        let request = self.requests.get(&number).filter(|request| request.is_waiting)?;
        let queue = self.queues.get(&(request.replica, Rc::clone(&request.takes)))?;
        let first = queue.lines.get(&(Rc::clone(&request.costs), request.wait))?.first()?;
        Some((*first, request))
    }

    /// Returns the numbers of the requests of a replica.
    pub(crate) fn of_replica(&self, replica: usize) -> Vec<u64> {
        self.requests
            .values()
            .filter(|request| request.replica == replica)
            .map(|request| request.number)
            .collect()
    }

    /// Returns the next request that has waited too long by now.
    pub(crate) fn next_late(&mut self, at: u64, faults: &Faults) -> Option<(Request, Evidence)> {
        while let Some(Reverse((due, number))) =
            self.deadlines.peek().copied().filter(|Reverse((due, _))| *due <= at)
        {
            self.deadlines.pop();
            let Some(request) = self.requests.get_mut(&number) else { continue };
            // The deadline of an earlier request with the same number.
            if due <= request.arrived {
                continue;
            }
            if let Some(evidence) = judge_wait(request, at, faults) {
                request.is_found_late = true;
                return Some((request.clone(), evidence));
            }
            let left = request.answered_within.saturating_sub(request.waited(at, faults));
            if !request.is_found_late {
                let is_excused = faults.stands_still(request.replica) || request.connecting.is_some();
                let again = if is_excused { AGAIN } else { 0 };
                let at = faults.awake_from(request.replica, at + left.max(again));
                self.deadlines.push(Reverse((at + 1, number)));
            }
        }
        None
    }

    /// Returns the requests without an answer.
    pub(crate) fn unanswered(&self) -> impl Iterator<Item = &Request> {
        self.requests.values()
    }
}
