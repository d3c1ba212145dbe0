//! A request from its arrival to its answer, and the checks that it meets on its way.

use std::rc::Rc;

use super::event::{State, Why};
use super::finding::{Evidence, What};
use super::room::Refused;
use super::usage::StateKey;
use super::waits::{Arrival, Request, Takes};
use super::{Oracle, demand, excess, limiters, over, room, waits};

/// How long after a fault of the store, or of a replica, requests may still be refused for it.
const BACK_WITHIN: u64 = 2_000_000;

impl Oracle {
    /// Takes in a request: what it may wait is the least of its own and its limiters'.
    pub(super) fn arrive(
        &mut self,
        number: u64,
        replica: usize,
        costs: &[(State, u64)],
        wait_max: Option<u64>,
    ) {
        let enforced = || {
            costs
                .iter()
                .filter_map(|(state, cost)| Some((*state, *cost, self.limiters.enforced(state.limiter)?)))
        };
        let waits = enforced().map(|(_, _, limiter)| limiter.model.wait_max.unwrap_or(0));
        let own_wait = wait_max.unwrap_or(u64::MAX);
        let wait = waits.min().unwrap_or(0).min(own_wait);
        let waiting_max = enforced()
            .map(|(_, _, limiter)| limiter.model.max_waiting.saturating_add(limiter.model.slots_max))
            .min()
            .unwrap_or(u64::MAX);
        let takes: Takes =
            enforced().map(|(state, _, limiter)| (self.key(state, replica), limiter.version)).collect();
        let costs: Rc<[u64]> = enforced().map(|(_, cost, _)| cost).collect();
        for ((key, _), cost) in takes.iter().zip(&*costs) {
            let state = self.states.entry(*key).or_default();
            state.arrive(self.now, *cost, wait >= demand::WAIT_MIN, takes.len() == 1);
        }
        let arrival = Arrival { number, replica, takes, costs, own_wait, wait, waiting_max };
        self.requests.arrive(self.now, arrival, self.settings.floor_wait, &self.faults);
    }

    /// Takes in that a request has a place in its queue: there may be so many.
    pub(super) fn wait(&mut self, number: u64) {
        let Some((request, waiting)) = self.requests.wait(number) else {
            self.counts.senseless += 1;
            return;
        };
        // A permit of the present waits until its instant has surely come, which is later the slower the answers are.
        if waiting > request.waiting_max && !self.faults.is_slow(self.now) {
            let is_of_line = |(key, _): &(StateKey, u32)| {
                self.limiters.enforced(key.state.limiter).is_some_and(|limiter| limiter.model.slots_max > 0)
            };
            let lasts = if request.takes.iter().any(is_of_line) { waits::CROWD_LASTS } else { 0 };
            self.requests.note_crowd(self.now + lasts, request);
        } else {
            self.report(What::TooManyWaiting, &request, None);
        }
    }

    /// Removes a request that has an answer or is gone: what it asked for is no longer pending.
    fn remove(&mut self, number: u64) -> Option<Request> {
        let Some(request) = self.requests.remove(number) else {
            self.counts.senseless += 1;
            return None;
        };
        self.answered.push_back((self.now, request.replica));
        for (key, cost) in request.taken() {
            if let Some(state) = self.states.get_mut(&key) {
                state.unanswered = state.unanswered.saturating_sub(cost);
            }
        }
        Some(request)
    }

    /// Takes in that a request is written upstream, and judges every window that it enters.
    pub(super) fn send(&mut self, number: u64, store_clock: u64) {
        self.judge_order(number);
        let Some(request) = self.remove(number) else { return };
        self.counts.sent += 1;
        let late = waits::judge_wait(&request, self.now, &self.faults);
        self.report(What::Waited, &request, late);
        for (key, cost) in request.taken() {
            // A reload may have put the limiter into shadow mode since the request came, or taken it away.
            let Some(limiter) = self.limiters.enforced(key.state.limiter) else { continue };
            let state = self.states.entry(key).or_default();
            state.history.push(self.now, cost);
            state.store_ahead = store_clock.checked_signed_diff(self.now);
            let write = over::Request { at: self.now, cost, store_clock };
            let evidence = over::judge(state, limiter, &self.faults, write, self.stepped);
            self.reports.judge(self.now, What::Over, limiter.named(), evidence);
            if let Some(evidence) = excess::judge(state, limiter, &self.faults, self.now) {
                self.reports.judge(self.now, What::Unpaid, limiter.named(), evidence);
            }
        }
    }

    /// Judges the order of a request that is sent now, if nothing has disturbed it since long before the first one came.
    pub(super) fn judge_order(&mut self, number: u64) {
        let Some(((arrived, first), request)) =
            self.requests.first_in_line(number).filter(|_| self.settings.judges_order)
        else {
            return;
        };
        let limiters = request.takes.iter().filter_map(|(key, _)| self.limiters.get(key.state.limiter));
        let is_calm = |limiter: &limiters::Limiter| {
            if limiter.model.is_shared {
                return false;
            }
            let from = arrived.saturating_sub(limiter.window() + demand::BACK);
            limiter.is_unpaused_since(from) && self.faults.calm_since().is_some_and(|calm| calm <= from)
        };
        if limiters.clone().count() < request.takes.len() || !limiters.into_iter().all(is_calm) {
            return;
        }
        let evidence = (arrived < request.arrived).then(|| Evidence {
            sent: request.arrived,
            limit: arrived,
            detail: format!("request {number} before request {first}, in replica {}", request.replica),
        });
        let request = request.clone();
        self.report(What::Order, &request, evidence);
    }

    /// Takes in a refusal.
    pub(super) fn refuse(&mut self, number: u64, why: Why, store_clock: u64) {
        let Some(request) = self.remove(number) else { return };
        self.counts.refused += 1;
        let late = waits::judge_wait(&request, self.now, &self.faults);
        self.report(What::Waited, &request, late);
        match why {
            Why::RateLimited => self.judge_refusal(&request, store_clock),
            Why::StoreUnavailable => {
                self.judge_unavailable(&request);
                self.abandon(&request);
            }
            Why::Closed => self.abandon(&request),
            Why::TooCostly => self.judge_too_costly(&request),
            Why::QueueFull => self.judge_full(&request),
        }
    }

    /// Judges a refusal for want of a permit: some limit of some state must have had no room.
    fn judge_refusal(&mut self, request: &Request, store_clock: u64) {
        let Request { arrived, replica, .. } = *request;
        let margin = self.settings.refusal_margin;
        let decided = margin.map_or(self.now, |margin| arrived.saturating_sub(margin));
        let mut found: Option<(Evidence, u32)> = None;
        for (key, cost) in request.taken() {
            let refused = Refused { at: self.now, decided, cost, arrived, replica, store_clock };
            let limiter = self.limiters.enforced(key.state.limiter).filter(|limiter| {
                room::is_judged(limiter, &self.limiters, &self.faults, refused, self.settings.lease)
            });
            let (Some(limiter), Some(state)) = (limiter, self.states.get_mut(&key)) else { return };
            let (percent, losses) = (self.settings.prefetch_percent, self.faults.losses());
            match room::room(state, limiter, refused, percent, losses) {
                Some(evidence) => found = Some((evidence, key.state.limiter)),
                None => return self.report(What::RefusedWithRoom, request, None),
            }
        }
        if let Some((evidence, id)) = found
            && let Some(limiter) = self.limiters.get(id)
        {
            self.reports.judge(self.now, What::RefusedWithRoom, limiter.named(), Some(evidence));
        }
    }

    /// Judges a refusal for a full queue: so many must have waited at its replica since it was asked for, of all queues together, and in the
    /// time before in which the store may not have answered: until it has, those that leave keep their places.
    fn judge_full(&mut self, request: &Request) {
        let replica = request.replica;
        let limiters = request.takes.iter().filter_map(|(key, _)| self.limiters.enforced(key.state.limiter));
        let places = limiters.map(|limiter| limiter.model.max_waiting).min().unwrap_or(u64::MAX);
        let asked = self.now.saturating_sub(self.settings.floor_wait + self.settings.lease);
        while self.answered.front().is_some_and(|(at, _)| *at < asked) {
            self.answered.pop_front();
        }
        let gone = self.answered.iter().filter(|(_, of)| *of == replica).count();
        // The request itself is gone already.
        let present = (self.requests.of_replica(replica).len() + gone) as u64;
        let is_calm = self.limiters.are_unchanged_since(asked)
            && self.limiters.are_of_one_configuration()
            && !self.faults.stood_still_since(replica, asked);
        // Where callers share a quota, or there is no queue, as many may wait as do.
        let is_crowded = |(key, _): &(StateKey, u32)| {
            self.limiters.get(key.state.limiter).is_some_and(|limiter| limiter.model.is_crowded)
        };
        let is_bounded = places < u64::MAX && !request.takes.iter().any(is_crowded);
        let evidence = (is_bounded && present <= places && is_calm).then(|| Evidence {
            sent: present,
            limit: places,
            detail: format!("request {}, in replica {replica}", request.number),
        });
        self.report(What::RefusedWithPlaces, request, evidence);
    }

    /// Judges a refusal for a cost that a limit can never hold. A ceiling of those that share a limiter holds half of it at least.
    fn judge_too_costly(&mut self, request: &Request) {
        let before = request.arrived.saturating_sub(self.settings.lease);
        let limit = |(key, cost): (StateKey, u64)| {
            let limiter = self.limiters.enforced(key.state.limiter)?;
            let most = limiter.model.cost_max() / (1 + u64::from(limiter.model.is_shared));
            (cost <= most).then_some((cost, most))
        };
        let held: Option<Vec<_>> = request.taken().map(limit).collect();
        let is_calm = self.limiters.are_unchanged_since(before) && self.limiters.are_of_one_configuration();
        let largest = held.filter(|_| is_calm).and_then(|held| held.into_iter().max());
        let detail = || format!("request {} is refused for its cost", request.number);
        let evidence = largest.map(|(cost, most)| Evidence { sent: cost, limit: most, detail: detail() });
        self.report(What::RefusedWithRoom, request, evidence);
    }

    /// Judges a refusal for want of the store, which must have had a reason while the request was there, or right before.
    fn judge_unavailable(&mut self, request: &Request) {
        let excused = BACK_WITHIN.saturating_add(self.now - request.arrived);
        let is_there = !self.faults.stood_still_since(request.replica, request.arrived)
            && self.faults.is_store_untouched_since(self.now.saturating_sub(excused));
        let detail = || format!("request {}, in replica {}", request.number, request.replica);
        let evidence = is_there.then(|| Evidence {
            sent: self.now - request.arrived,
            limit: request.wait,
            detail: detail(),
        });
        self.report(What::Unavailable, request, evidence);
    }

    /// Takes in that a client has gone.
    pub(super) fn leave(&mut self, number: u64) {
        if let Some(request) = self.remove(number) {
            self.counts.left += 1;
            self.abandon(&request);
        }
    }

    /// Takes in that a request has gone with its replica, which gives nothing back: what was booked for it goes unused.
    pub(super) fn orphan(&mut self, number: u64) {
        let Some(request) = self.remove(number) else { return };
        self.counts.left += 1;
        self.abandon(&request);
        for (key, _) in request.takes.iter() {
            if let Some(state) = self.states.get_mut(key) {
                state.orphaned_until = state.orphaned_until.max(request.arrived.saturating_add(request.wait));
            }
        }
    }

    /// Counts the permits of a request that is gone for a lease: they may be booked until weir has given them back.
    fn abandon(&mut self, request: &Request) {
        for (key, cost) in request.taken() {
            if let Some(state) = self.states.get_mut(&key) {
                state.abandon(self.now + self.settings.lease, cost);
            }
        }
    }
}
