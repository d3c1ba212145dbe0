//! Serves from this replica's own memory while the store is away.

use std::slice;

use super::events::{Event, LocalAnswer};
use super::state::{FleetUsage, Worker};
use crate::clock::{Micros, Moment};
use crate::limiter::arithmetic::algorithm::fixed_window::CLOCKS_APART;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::arithmetic::rule::{Rule, SOON};
use crate::limiter::arithmetic::share::Share;
use crate::limiter::model::{
    Answer, Call, Costs, Holding, OnStoreFailure, Outcome, RetryDelay, Run, UNKNOWN_GENERATION,
};
use crate::limiter::queue::active_limiter::Usage;
use crate::limiter::recovery::fallback::Fallback;
use crate::limiter::recovery::grants::{booked, granted_of};
use crate::limiter::recovery::offline_grants::OwnPart;

/// The most limiters and partitions whose usage is kept for an outage after their queues have ended, until it has left their windows: some
/// 150 MB. Further ones begin an outage as if they had not been used.
const USAGES_MAX: usize = 100_000;

/// How long before a store's first failed call it must have told a limiter's usage: as long as some requests take to come.
const HEARD_LATELY: Micros = Micros::from_millis(905);

impl Worker {
    /// Takes in the fleet's usage from the answer to a call that was sent at a moment.
    pub(super) fn observe_usage(&mut self, at: Moment, answer: &Answer) {
        self.queue.left.set(at, &answer.available);
        let told = answer.available.iter().zip(&answer.lacking).zip(self.waited_for(answer));
        let limiters = self.queue.instances.iter().zip(told).zip(self.store_calls.limiter_refs.iter());
        let each = limiters.map(|((instance, ((available, lacking), booked_until)), limiter_ref)| {
            instance.active.show_available(instance.partition, available);
            let rules = limiter_ref.rules.iter().zip(available);
            let used =
                rules.map(|(rule, left)| rule.capacity().saturating_sub(*left)).fold(*lacking, u64::max);
            let usage = Usage { used, at: Some(at), answered: answer.now, booked_until };
            instance.active.hear(usage);
            usage
        });
        self.usage = FleetUsage { each: each.collect(), is_old: false, unheard_until: Moment(0) };
        self.forget_unknown();
    }

    /// Returns the last booked slot for each limiter for which requests may have waited when the store answered. One that has more left than another
    /// limiter of the queue allows in the time before an outage makes nobody wait, whatever is booked ahead.
    fn waited_for(&self, answer: &Answer) -> Vec<Option<Micros>> {
        let Some(last) = Some(answer.last).filter(|last| *last > answer.now) else {
            return vec![None; answer.available.len()];
        };
        let span = (last - answer.now).min(self.heard_lately());
        let most_of = |of: &LimiterRef| of.rules.iter().map(|rule| rule.most_within(span)).min();
        let most: Vec<_> = self.store_calls.limiter_refs.iter().map(most_of).collect();
        let limiters = answer.available.iter().zip(&answer.paused).enumerate();
        let waited_for = limiters.map(|(place, (available, paused))| {
            let left = available.iter().copied().min().filter(|_| *paused <= answer.now).unwrap_or_default();
            let others = most.iter().enumerate().filter(|(other, _)| *other != place);
            let passes = others.filter_map(|(_, most)| *most).min();
            passes.is_none_or(|passes| left < passes).then_some(last)
        });
        waited_for.collect()
    }

    /// Takes back what this replica's memory was charged with because nobody had heard of it, now that the store has told what is used: that counts
    /// there at once, for a queue of the limiter whose own outage goes on.
    fn forget_unknown(&self) {
        let local = self.queue.with_policy(OnStoreFailure::Local);
        let known =
            local.map(|place| self.fallback.store.forget_unknown(&self.store_calls.limiter_refs[place]));
        if known.fold(false, |any, was_unknown| any | was_unknown) {
            self.charge_usage();
        }
    }

    /// Returns whether other replicas may have been granted permits of which this one has not heard. One that is alone, or has never seen the store,
    /// knows of nobody else.
    fn has_others(&self) -> bool {
        let is_alone = self.session.members().is_alone() && self.strangers() == 0;
        !is_alone && self.session.epoch() != 0
    }

    /// Returns the fleet's usage of a limiter as this queue was last told, and whether others may have been granted everything since an earlier
    /// outage. Where that is too long ago, it is as another queue of the limiter was told: a queue may be idle, or new, while others ask for the
    /// limiter all the time.
    fn usage_of(&self, place: usize) -> (Usage, bool) {
        let own = self.usage.each.get(place).copied().unwrap_or_default();
        let is_stale = |usage: &Usage| usage.is_stale(self.away_since(), self.heard_lately());
        let other = self.queue.instances[place].active.heard().filter(|other| !is_stale(other));
        let other = other.filter(|_| is_stale(&own)).map(|other| (other, false));
        other.unwrap_or((own, self.usage.is_old && self.has_others()))
    }

    /// Charges this replica's memory with its part of the usage at the last contact with the store.
    ///
    /// A share is the limit divided by the replicas that have one, and so is the part of the usage: all replicas together have left
    /// what the fleet had left. The tightest limit counts as full in two cases:
    /// - requests waited for the limiter: at the last booked slot, but not after the present moment, as nobody uses a slot of the store
    ///   from here on;
    /// - the store has granted nothing since an earlier outage: at the last contact, because other replicas, if there are any, may have been
    ///   granted everything. That counts until the store tells what is used.
    ///
    /// The permits that this replica was granted lately are charged in full: all replicas that have a share have heard of the limit since
    /// then, if not of these permits.
    ///
    /// The charge is at least that usage: another queue of the limiter may have charged it already.
    ///
    /// Nobody knows what other replicas were granted since then. So a limit that is soon whole again counts as used up when the
    /// outage began: by then every slot of the store has been used or is void. Beside one that is not, it grants nothing until it is whole, and
    /// the other one is not charged. Any limit of which this replica has not heard lately, or never, counts as used up, however lately it was
    /// started.
    pub(super) fn begin_outage(&mut self) {
        if self.usage.is_old && self.session.away_since().is_none() {
            // One of this queue alone, without an answer since the last: it goes on, and all is charged.
            return;
        }
        self.charge_usage();
        self.usage.unheard_until = self.unheard_until();
        self.usage.is_old = true;
        if !self.has_others() {
            return;
        }
        let Fallback { store, clock, replica, .. } = &*self.fallback;
        let since = self.away_since().map_or_else(|| clock.now(), |since| clock.at(since));
        let places = self.queue.with_policy(OnStoreFailure::Local);
        for (place, limiter_ref) in places.zip(self.local_refs().unwrap_or_default()) {
            let is_stale = self.usage_of(place).0.is_stale(self.away_since(), self.heard_lately());
            let rules = &limiter_ref.rules;
            let closed = if is_stale {
                (since, rules.iter().map(Rule::lacking_max).max().unwrap_or_default())
            } else if rules.iter().all(|rule| rule.soon_whole().is_some()) {
                (since, rules.iter().filter_map(Rule::soon_whole).max().unwrap_or_default())
            } else {
                // A charge would count under the others, too: for a day under a limit a day.
                (since + rules.iter().filter_map(Rule::soon_whole_after).max().unwrap_or_default(), 0)
            };
            store.charge_unknown_at(clock.now(), &limiter_ref, closed, *replica);
        }
    }

    /// Returns until when limits count as used up in this outage because others may have been granted everything: how much is left of them the
    /// store alone may know.
    fn unheard_until(&self) -> Moment {
        let since = self.away_since().unwrap_or_else(|| self.session.moment());
        let is_unheard = |place: &usize| {
            let (usage, is_old) = self.usage_of(*place);
            is_old || usage.is_stale(self.away_since(), self.heard_lately())
        };
        let places = self.queue.with_policy(OnStoreFailure::Local).filter(|_| self.has_others());
        let rules =
            places.filter(is_unheard).flat_map(|place| self.store_calls.limiter_refs[place].rules.iter());
        since + rules.map(|rule| rule.quota().span(rule.lacking_max())).max().unwrap_or_default()
    }

    fn charge_usage(&self) {
        let Fallback { store, clock, replica, .. } = &*self.fallback;
        let (share, now) = (self.share(), clock.now());
        let since = self.away_since().unwrap_or_else(|| self.session.moment());
        let lately =
            self.session.clock().map(|known| known.earliest(since) - self.heard_lately()).unwrap_or_default();
        for place in self.queue.with_policy(OnStoreFailure::Local) {
            let (Usage { used: all, at, answered, booked_until }, is_old) = self.usage_of(place);
            // The latest moment that this instant of the store's clock can be; in calendar windows, the one that the share takes it for.
            let last = booked_until.unwrap_or(answered);
            let due = self.session.clock().map(|known| clock.at(known.due(last)));
            let in_windows = Micros(last.0.saturating_add_signed(share.clock_ahead.saturating_neg()));
            let contact = clock.at(at.unwrap_or_default()).max(due.unwrap_or_default()).max(in_windows);
            // The share's calendar windows begin that much later than the store's.
            let at = contact.min(now) + CLOCKS_APART;
            let whole = &self.store_calls.limiter_refs[place];
            let Some((limiter_ref, parts)) = whole.share(share).zip(whole.place(share)) else { continue };
            // Of what was granted lately not all replicas with a share may have heard, so that nobody else charges it.
            let ledger = self.session.ledger();
            let own = ledger.granted_since(whole, lately);
            // A slot that is booked ahead is in use at its slot, and not yet when the store answered.
            let ahead = ledger.granted_since(whole, answered + Micros::ONE);
            drop(ledger);
            let others = all.saturating_sub(own - ahead.min(own));
            let used = others.div_ceil(parts.parts.max(1)) + own;
            let full = |of: fn(&Rule) -> u64| limiter_ref.rules.iter().map(of).min().unwrap_or_default();
            let is_full = booked_until.is_some();
            let used = if is_full { used.max(full(Rule::capacity)) } else { used };
            store.charge_at(now, &limiter_ref, (at, used), *replica);
            if is_old {
                store.charge_unknown_at(now, &limiter_ref, (at, full(Rule::lacking_max)), *replica);
            }
        }
    }

    /// Returns when the outage began, of the store or of this queue alone; `None` if there is none.
    fn away_since(&self) -> Option<Moment> {
        let own = || self.own_fault.away_since(&self.session.terms, self.session.moment());
        self.session.away_since().or_else(own)
    }

    /// Returns how long before an outage the store must have told a limiter's usage: an outage takes a call's deadline and a lease to begin,
    /// and nobody is granted anything meanwhile.
    fn heard_lately(&self) -> Micros {
        self.session.terms.away_after + HEARD_LATELY
    }

    /// Keeps the known usage in this replica's memory, for the next worker of the limiter if the store is unreachable then.
    pub(super) fn keep_usage(&self) {
        let has_any = self.usage.each.iter().any(|usage| usage.used > 0);
        let has_room = || self.fallback.store.len() < USAGES_MAX;
        if has_any && self.core.outage() == 0 && self.session.store.may_fail() && has_room() {
            self.charge_usage();
        }
    }

    /// Books in this replica's own memory. A cost above its share is not asked for.
    pub(super) fn book_locally(&mut self, mut call: Call) {
        let (refs, costs_max) = (self.local_refs(), self.local_costs_max());
        let cost_max = costs_max.iter().copied().min().unwrap_or(u64::MAX);
        let fits = |run: &Run| run.cost <= cost_max;
        call.replacing_runs = call.runs.iter().take(call.replacing_runs).filter(|run| fits(run)).count();
        call.runs.retain(fits);
        for want in call.line.iter_mut().flat_map(|line| &mut line.wants) {
            if cost_max == 0 || want.costs.iter().zip(&costs_max).any(|(cost, max)| cost > max) {
                want.waiting.clear();
            }
        }
        let parts = self.own_parts();
        let answer = self.ask_fallback(call.clone(), &refs.unwrap_or_default());
        let is_unheard = self.session.moment() < self.usage.unheard_until;
        let known_within = if is_unheard { SOON } else { Micros(u64::MAX) };
        // Limiters that are not kept are beside those that are only where all have the same costs.
        for (place, part) in parts.iter().enumerate() {
            let granted: Vec<_> =
                granted_of(&call, &answer, place.min(costs_max.len().saturating_sub(1))).collect();
            self.session.ledger().record_offline(answer.now, slice::from_ref(part), &granted);
        }
        self.events.push(Event::AnsweredLocally(Box::new(LocalAnswer { answer, costs_max, known_within })));
    }

    /// Gives slots back to this replica's own memory.
    pub(super) fn return_locally(&mut self, unused: &[(Micros, Costs)]) {
        let at_place = |place: usize| -> Vec<Holding> {
            let holdings =
                unused.iter().map(|(slot, costs)| Holding { slot: *slot, cost: costs.at(place), count: 1 });
            holdings.filter(|holding| holding.cost > 0).collect()
        };
        let kept: Vec<usize> = self.queue.with_policy(OnStoreFailure::Local).collect();
        for (place, limiter_ref) in
            self.store_calls.limiter_refs.iter().take(self.queue.instances.len()).enumerate()
        {
            self.session.ledger().remove_offline(slice::from_ref(limiter_ref), &at_place(place));
        }
        for (place, own) in kept.into_iter().zip(self.local_refs().unwrap_or_default()) {
            let call = Call { give_back: at_place(place), ..Call::default() };
            self.ask_fallback(call, slice::from_ref(&own));
        }
    }

    /// Records permits that are let through without a limit, as many as the limits would grant: the upstream has no more to give,
    /// and a limit that is overdrawn would stay closed long after the outage.
    pub(super) fn record_unlimited(&self, permits: &[u64]) {
        let Fallback { store, replica, .. } = &*self.fallback;
        let limiters = self.store_calls.limiter_refs.iter().zip(self.own_parts()).zip(permits);
        for ((limiter_ref, part), permits) in limiters.filter(|(_, permits)| **permits > 0) {
            let runs = vec![Run { cost: 1, wait_max: Micros::ZERO, count: *permits }];
            let call = Call {
                replica: *replica,
                generations: vec![UNKNOWN_GENERATION],
                runs,
                prefetching_runs: 1,
                ..Call::default()
            };
            let answer = store.reserve_now(slice::from_ref(limiter_ref), &call);
            let granted: Vec<_> = booked(&call, &answer).collect();
            self.session.ledger().record_offline(answer.now, slice::from_ref(&part), &granted);
        }
    }

    /// Records permits that requests have cost beyond what they had taken, and of which the store may not have heard: it is told with what
    /// was granted without it. It charges them twice where only its answer was lost. Returns the instant, by this process's clock.
    pub(super) fn record_excess(&self, place: usize, cost: u64) -> Option<Micros> {
        // More than the limits would grant is not recorded of what passes without a limit: a bucket would stay closed for long.
        let is_unlimited = self.core.outage() != 0
            && self.queue.with_policy(OnStoreFailure::Allow).any(|allowed| allowed == place);
        let parts = self.own_parts();
        let part = parts.get(place).filter(|_| !is_unlimited)?;
        let now = self.fallback.clock.now();
        self.session.ledger().record_offline(now, slice::from_ref(part), &[(now, cost)]);
        self.session.wake();
        Some(now)
    }

    /// Returns this replica's share while the store is away. It is the same to all its workers for a whole outage.
    pub(super) fn share(&self) -> Share {
        let Fallback { clock, fleet, .. } = &*self.fallback;
        let known = self.session.away_since().zip(self.session.clock());
        let ahead = known.map(|(since, store)| signed(store.earliest(since)) - signed(clock.at(since)));
        let strangers = self.strangers();
        let share = self.session.members().share(fleet.assumed(), strangers);
        Share { clock_ahead: ahead.unwrap_or_default(), ..share }
    }

    /// Returns the number of replicas that share the store by another layout of its keys.
    fn strangers(&self) -> u64 {
        self.session.members().strangers(&self.fallback.fleet.listed())
    }

    /// Returns this replica's shares of the limiters that are enforced locally; `None` if it has none of one.
    fn local_refs(&self) -> Option<Vec<LimiterRef>> {
        let (share, places) = (self.share(), self.queue.with_policy(OnStoreFailure::Local));
        places.map(|place| self.store_calls.limiter_refs[place].share(share)).collect()
    }

    /// Returns the largest cost that this replica's share of each limiter that is enforced locally can ever hold. A replica without a share
    /// of one grants nothing of any.
    fn local_costs_max(&self) -> Vec<u64> {
        let share = self.share();
        let places: Vec<usize> = self.queue.with_policy(OnStoreFailure::Local).collect();
        let most = |place: &usize| {
            let share = self.store_calls.limiter_refs[*place].place(share)?;
            Some(share.of(self.queue.instances[*place].cost_max().get()))
        };
        let costs_max: Option<Vec<u64>> = places.iter().map(most).collect();
        costs_max.unwrap_or_else(|| vec![0; places.len()])
    }

    /// Returns what this replica may grant of each limiter by itself: its share, or the whole where the limit is not kept.
    fn own_parts(&self) -> Vec<OwnPart> {
        let Fallback { store, clock, .. } = &*self.fallback;
        let share = self.share();
        let shared: Vec<usize> = self.queue.with_policy(OnStoreFailure::Local).collect();
        let part = |(place, whole): (usize, &LimiterRef)| {
            let share = shared.contains(&place).then(|| whole.share(share)).flatten();
            let share = share.unwrap_or_else(|| whole.clone());
            let lacking = store.lacking_at(clock.now(), &share);
            OwnPart { whole: whole.clone(), share, lacking }
        };
        self.store_calls.limiter_refs[..self.queue.instances.len()].iter().enumerate().map(part).collect()
    }

    /// Makes a call to this replica's memory, for its shares of the limiters that are enforced locally.
    fn ask_fallback(&self, mut call: Call, limiter_refs: &[LimiterRef]) -> Answer {
        let Fallback { store, replica, .. } = &*self.fallback;
        let places: Vec<usize> = self.queue.with_policy(OnStoreFailure::Local).collect();
        call.replica = *replica;
        call.generations = vec![UNKNOWN_GENERATION; limiter_refs.len()];
        let mut answer = store.reserve_now(limiter_refs, &call);
        let of_line = answer.line.iter_mut().flat_map(|line| &mut line.not_taken);
        let outcomes = answer.outcomes.iter_mut().map(|(_, outcome)| outcome);
        for outcome in outcomes.chain(of_line.map(|not_taken| &mut not_taken.outcome)) {
            if let Outcome::TooFar(RetryDelay { violated, .. }) | Outcome::Full(RetryDelay { violated, .. }) =
                outcome
            {
                violated.limiter = places.get(violated.limiter).copied().unwrap_or_default();
            }
        }
        answer
    }
}

fn signed(at: Micros) -> i64 {
    i64::try_from(at.0).unwrap_or(i64::MAX)
}
