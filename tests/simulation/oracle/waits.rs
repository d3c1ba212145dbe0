//! Requests without an answer: how long they wait, how many, and in which order they are sent.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::rc::Rc;

use super::faults::Faults;
use super::finding::Evidence;
use super::usage::StateKey;

/// How long after its wait a request may be answered.
pub(crate) const LATE: u64 = 100_000;
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
    /// Its cost.
    pub(crate) cost: u64,
    /// Its arrival.
    pub(crate) arrived: u64,
    /// How long it may wait.
    pub(crate) wait: u64,
    /// How many may wait in its queue.
    pub(crate) waiting_max: u64,
    /// The longest time until its answer.
    pub(crate) answered_within: u64,
    /// How long its replica had stood still when it came.
    stopped_before: u64,
    is_waiting: bool,
    is_found_late: bool,
}

impl Request {
    /// Returns how long it has waited, without the time in which its replica stood still.
    fn waited(&self, at: u64, faults: &Faults) -> u64 {
        (at - self.arrived).saturating_sub(faults.stopped_for(at, self.replica) - self.stopped_before)
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

/// The waiting requests of the same states in one replica.
#[derive(Default, Debug)]
struct Queue {
    waiting: u64,
    /// By cost and wait, in order of arrival.
    lines: BTreeMap<(u64, u64), BTreeSet<(u64, u64)>>,
}

/// All requests without an answer.
#[derive(Default)]
pub(crate) struct Requests {
    requests: BTreeMap<u64, Request>,
    queues: BTreeMap<(usize, Takes), Queue>,
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
    /// Its cost.
    pub(crate) cost: u64,
    /// How long it may wait.
    pub(crate) wait: u64,
    /// How many may wait in its queue.
    pub(crate) waiting_max: u64,
}

impl Requests {
    /// Takes in a request. Its answer may be late by [`LATE`], or come within `floor`, where that is longer.
    pub(crate) fn arrive(&mut self, at: u64, arrival: Arrival, floor: u64, faults: &Faults) {
        let Arrival { number, replica, takes, cost, wait, waiting_max } = arrival;
        let answered_within = wait.saturating_add(LATE).max(floor);
        let stopped_before = faults.stopped_for(at, replica);
        self.deadlines.push(Reverse((at.saturating_add(answered_within).saturating_add(1), number)));
        let (is_waiting, is_found_late) = (false, false);
        let request = Request {
            number,
            replica,
            takes,
            cost,
            arrived: at,
            wait,
            waiting_max,
            answered_within,
            stopped_before,
            is_waiting,
            is_found_late,
        };
        self.requests.insert(number, request);
    }

    /// Takes in that a request has a place in its queue; returns it, and how many wait there. `None`: there is no such request.
    pub(crate) fn wait(&mut self, number: u64) -> Option<(Request, u64)> {
        let request = self.requests.get_mut(&number)?;
        let queue = self.queues.entry((request.replica, Rc::clone(&request.takes))).or_default();
        if !request.is_waiting {
            request.is_waiting = true;
            queue.waiting += 1;
            let line = queue.lines.entry((request.cost, request.wait)).or_default();
            line.insert((request.arrived, number));
        }
        Some((request.clone(), queue.waiting))
    }

    /// Removes a request that is answered or gone.
    pub(crate) fn remove(&mut self, number: u64) -> Option<Request> {
        let request = self.requests.remove(&number)?;
        if !request.is_waiting {
            return Some(request);
        }
        let key = (request.replica, Rc::clone(&request.takes));
        if let Some(queue) = self.queues.get_mut(&key) {
            queue.waiting -= 1;
            if let Some(line) = queue.lines.get_mut(&(request.cost, request.wait)) {
                line.remove(&(request.arrived, number));
                if line.is_empty() {
                    queue.lines.remove(&(request.cost, request.wait));
                }
            }
            if queue.waiting == 0 {
                self.queues.remove(&key);
            }
        }
        Some(request)
    }

    /// Returns the arrival and number of the first request in the queue of one that waits, of the same cost and wait; and that one.
    pub(crate) fn first_in_line(&self, number: u64) -> Option<((u64, u64), &Request)> {
        let request = self.requests.get(&number).filter(|request| request.is_waiting)?;
        let queue = self.queues.get(&(request.replica, Rc::clone(&request.takes)))?;
        let first = queue.lines.get(&(request.cost, request.wait))?.first()?;
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
                let again = if faults.stands_still(request.replica) { AGAIN } else { 0 };
                self.deadlines.push(Reverse((at + left.max(again) + 1, number)));
            }
        }
        None
    }

    /// Returns the requests without an answer.
    pub(crate) fn unanswered(&self) -> impl Iterator<Item = &Request> {
        self.requests.values()
    }
}
