//! The limiters as configured, and for each limit what was in force when.
//!
//! A window is judged by the largest rate that was in force in it: after a reload a replica may have the old one for a lease.

use std::collections::{BTreeMap, BTreeSet};

use super::event::{Algorithm, LimitModel, LimiterModel, Scope};
use super::faults::Faults;
use super::finding::Named;

/// The most that a limit allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bounds {
    /// Permits in a window.
    pub(crate) rate: u64,
    /// Permits in a full bucket.
    pub(crate) burst: u64,
    /// How late a permit may be used.
    pub(crate) guard: u64,
}

impl Bounds {
    fn largest(self, other: Bounds) -> Bounds {
        let Bounds { rate, burst, guard } = other;
        Bounds { rate: self.rate.max(rate), burst: self.burst.max(burst), guard: self.guard.max(guard) }
    }

    /// Returns the bounds with so many percent more.
    pub(crate) fn raised(self, percent: u64) -> Bounds {
        let raise = |permits: u64| permits.saturating_add(permits.saturating_mul(percent).div_ceil(100));
        Bounds { rate: raise(self.rate), burst: raise(self.burst), guard: self.guard }
    }
}

/// A limit over all reloads that keep its algorithm and its window.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    /// Its number: a limit with another window is another rule.
    pub(crate) id: u32,
    /// The limit as configured last.
    pub(crate) limit: LimitModel,
    /// Windows that begin earlier are not judged: not all had the limit.
    pub(crate) since: u64,
    /// The earlier values, each with the end of its time.
    versions: Vec<(Bounds, u64)>,
}

impl Rule {
    /// Returns the most that was in force in a window that begins at `from` and ends now.
    pub(crate) fn bounds(&self, from: u64) -> Bounds {
        let in_force = self.versions.iter().filter(|(_, until)| *until > from).map(|(bounds, _)| *bounds);
        in_force.reduce(Bounds::largest).unwrap_or_else(|| self.last())
    }

    /// Returns what is in force after the last reload.
    pub(crate) fn last(&self) -> Bounds {
        self.versions.last().map_or(Bounds { rate: 0, burst: 0, guard: 0 }, |(bounds, _)| *bounds)
    }

    /// Returns the window that weir keeps free at the most: longer by the guard, and by the grid on which it counts.
    pub(crate) fn widened(&self) -> u64 {
        self.limit.per + self.last().guard + self.limit.per / 200 + 2
    }

    /// Takes in a reload: the old bounds may be used for a lease.
    fn change(&mut self, limit: &LimitModel, guard: u64, until: u64) {
        if let Some(last) = self.versions.last_mut() {
            last.1 = until;
        }
        self.versions.retain(|(_, end)| end.saturating_add(2 * limit.per) > until);
        self.versions.push((bounds(limit, guard), u64::MAX));
        self.limit = limit.clone();
    }
}

fn bounds(limit: &LimitModel, guard: u64) -> Bounds {
    let burst = if let Algorithm::TokenBucket { burst } = limit.algorithm { burst } else { 1 };
    Bounds { rate: limit.rate, burst, guard }
}

/// Returns whether two limits count the same windows.
fn are_alike(one: &LimitModel, other: &LimitModel) -> bool {
    one.per == other.per && std::mem::discriminant(&one.algorithm) == std::mem::discriminant(&other.algorithm)
}

/// A limiter in force.
#[derive(Debug)]
pub(crate) struct Limiter {
    /// The limiter as configured.
    pub(crate) model: LimiterModel,
    /// The number of the reload that changed it last: requests of two versions may have two queues.
    pub(crate) version: u32,
    /// Its limits.
    pub(crate) rules: Vec<Rule>,
    /// The pauses that go on.
    pub(crate) paused: BTreeSet<Scope>,
    /// The begin of the last pause, its length, and its end.
    paused_at: u64,
    paused_for: u64,
    pub(crate) resumed: Option<u64>,
    /// The oracle may not know all that weir counts from before: the limiter is new, or was in shadow mode.
    pub(crate) known_from: u64,
    /// The limiter with earlier policies, and until when each may have been followed.
    before: Vec<(LimiterModel, u64)>,
    /// Until when it matters that replicas had different guards; zero: they never had.
    unlike_until: u64,
}

impl Limiter {
    /// Returns the percentage by which windows that begin at an instant may be over, by the policies followed in them; `None`: they
    /// are not judged.
    pub(crate) fn excess(&self, faults: &Faults, begin: u64) -> Option<u64> {
        let followed = self.before.iter().filter(|(_, until)| begin < *until).map(|(model, _)| model);
        let excesses = followed.chain([&self.model]).map(|model| faults.excess(model, begin));
        let excess = excesses.reduce(|one, other| Some(one?.max(other?))).flatten()?;
        // Those with a small guard leave too little free for those that use their slots later.
        Some(if begin < self.unlike_until { excess.saturating_add(100) } else { excess })
    }

    /// Takes in whether replicas have different guards now.
    fn compare_guards(&mut self, at: u64, lease: u64, are_unlike: bool) {
        if are_unlike {
            self.unlike_until = u64::MAX;
        } else if self.unlike_until == u64::MAX {
            self.unlike_until = at + lease + self.model.guard;
        }
    }

    /// Returns its longest window, widened by what weir keeps free.
    pub(crate) fn window(&self) -> u64 {
        self.rules.iter().map(Rule::widened).max().unwrap_or(0)
    }

    /// Returns the limiter as findings name it.
    pub(crate) fn named(&self) -> Named<'_> {
        Named { id: self.model.id, name: &self.model.name, window: self.window() }
    }

    /// Returns whether no pause goes on or has ended since an instant.
    pub(crate) fn is_unpaused_since(&self, from: u64) -> bool {
        self.paused.is_empty() && self.resumed.is_none_or(|resumed| resumed <= from)
    }

    /// Returns the rules of a new configuration. Each limit goes on as the old rule that is like it, or is a new rule.
    fn reload(&mut self, model: &LimiterModel, until: u64, next_rule: &mut u32) {
        let mut old = std::mem::take(&mut self.rules);
        for limit in &model.limits {
            let rule = match old.iter().position(|rule| are_alike(&rule.limit, limit)) {
                Some(index) => {
                    let mut rule = old.remove(index);
                    if rule.last() != bounds(limit, model.guard) {
                        rule.change(limit, model.guard, until);
                    }
                    rule
                }
                None => new_rule(limit, model.guard, until, next_rule),
            };
            self.rules.push(rule);
        }
        let old = &self.model;
        if (old.is_shadow, old.is_per_replica) != (model.is_shadow, model.is_per_replica) {
            self.known_from = until;
        }
        if old.policy != model.policy {
            // Requests that wait keep what was booked for them, and go by the policy that they came under.
            let waits = old.wait_max.unwrap_or_default();
            self.before.retain(|(_, followed)| followed.saturating_add(waits) > until);
            self.before.push((old.clone(), until + waits));
        }
        self.model = model.clone();
    }
}

fn new_rule(limit: &LimitModel, guard: u64, since: u64, next_rule: &mut u32) -> Rule {
    *next_rule += 1;
    Rule { id: *next_rule, limit: limit.clone(), since, versions: vec![(bounds(limit, guard), u64::MAX)] }
}

/// All limiters in force.
#[derive(Default, Debug)]
pub(crate) struct Limiters {
    all: BTreeMap<u32, Limiter>,
    /// The configuration of the whole fleet, and those that single replicas have got since.
    of_fleet: Vec<LimiterModel>,
    by_replica: BTreeMap<usize, Vec<LimiterModel>>,
    reloads: u32,
    rules: u32,
    /// The instant of the last reload, if there was one after the start.
    reloaded: Option<u64>,
}

impl Limiters {
    /// Takes in a start or a reload; returns the limiters that are no more.
    pub(crate) fn configure(
        &mut self,
        at: u64,
        lease: u64,
        replica: Option<usize>,
        models: &[LimiterModel],
    ) -> Vec<u32> {
        if let Some(replica) = replica {
            self.by_replica.insert(replica, models.to_vec());
        } else {
            self.by_replica.clear();
            self.of_fleet = models.to_vec();
        }
        self.apply(at, lease)
    }

    /// Forgets the configuration of a replica that has ended; returns the limiters that are no more.
    pub(crate) fn end_replica(&mut self, at: u64, lease: u64, replica: usize) -> Vec<u32> {
        let had_own = self.by_replica.remove(&replica).is_some();
        if had_own && !(self.by_replica.is_empty() && self.of_fleet.is_empty()) {
            return self.apply(at, lease);
        }
        Vec::new()
    }

    fn apply(&mut self, at: u64, lease: u64) -> Vec<u32> {
        let is_start = self.reloads == 0;
        self.reloads += 1;
        if !is_start {
            self.reloaded = Some(at);
        }
        let models = loosest(self.by_replica.values().chain([&self.of_fleet]).map(Vec::as_slice));
        for model in &models {
            self.put(model, at, lease);
            let are_unlike = self.have_unlike_guards(model.id);
            if let Some(limiter) = self.all.get_mut(&model.id) {
                limiter.compare_guards(at, lease, are_unlike);
            }
        }
        let gone: Vec<u32> =
            self.all.keys().copied().filter(|id| models.iter().all(|model| model.id != *id)).collect();
        self.all.retain(|id, _| !gone.contains(id));
        gone
    }

    /// Returns whether replicas have different guards of a limiter.
    fn have_unlike_guards(&self, id: u32) -> bool {
        let all = self.by_replica.values().chain([&self.of_fleet]).flatten();
        let mut guards = all.filter(|model| model.id == id).map(|model| model.guard);
        guards.next().is_some_and(|first| guards.any(|guard| guard != first))
    }

    fn put(&mut self, model: &LimiterModel, at: u64, lease: u64) {
        let (version, next_rule) = (self.reloads, &mut self.rules);
        match self.all.get_mut(&model.id) {
            Some(limiter) if limiter.model == *model => {}
            Some(limiter) => {
                limiter.reload(model, at + lease, next_rule);
                limiter.version = version;
            }
            None => {
                let rules =
                    model.limits.iter().map(|limit| new_rule(limit, model.guard, 0, next_rule)).collect();
                let (paused, paused_at, paused_for, resumed) = (BTreeSet::new(), 0, 0, None);
                let known_from = if version > 1 { at + lease } else { 0 };
                self.all.insert(
                    model.id,
                    Limiter {
                        model: model.clone(),
                        version,
                        rules,
                        paused,
                        paused_at,
                        paused_for,
                        resumed,
                        known_from,
                        before: Vec::new(),
                        unlike_until: 0,
                    },
                );
            }
        }
    }

    /// Returns a limiter.
    pub(crate) fn get(&self, id: u32) -> Option<&Limiter> {
        self.all.get(&id)
    }

    /// Returns a limiter that delays and refuses.
    pub(crate) fn enforced(&self, id: u32) -> Option<&Limiter> {
        self.get(id).filter(|limiter| !limiter.model.is_shadow)
    }

    /// Takes in the begin of a pause.
    pub(crate) fn pause(&mut self, at: u64, scope: Scope) {
        if let Some(limiter) = self.all.get_mut(&scope.limiter()) {
            limiter.paused_at = at;
            limiter.paused.insert(scope);
        }
    }

    /// Takes in the end of a pause. The end of a limiter's pause ends those of its partitions.
    pub(crate) fn resume(&mut self, at: u64, scope: Scope) {
        if let Some(limiter) = self.all.get_mut(&scope.limiter()) {
            limiter.paused.retain(|paused| *paused != scope && matches!(scope, Scope::State(_)));
            (limiter.paused_for, limiter.resumed) = (at.saturating_sub(limiter.paused_at), Some(at));
        }
    }

    /// Takes in a step of the store's clock. To a clock that was set back, a pause that is over may lie ahead. It lasts as long as if it were set
    /// when its state is next asked for, within a lease.
    pub(crate) fn step_clock(&mut self, at: u64, lease: u64) {
        for limiter in self.all.values_mut() {
            let ends = at + limiter.paused_for + lease;
            limiter.resumed = limiter.resumed.map(|resumed| resumed.max(ends));
        }
    }

    /// Returns the longest window of all.
    pub(crate) fn window(&self) -> u64 {
        self.all.values().map(Limiter::window).max().unwrap_or(0)
    }

    /// Returns whether all replicas have one configuration.
    pub(crate) fn are_of_one_configuration(&self) -> bool {
        self.by_replica.values().all(|models| *models == self.of_fleet)
    }

    /// Returns whether nothing has been reloaded since an instant.
    pub(crate) fn are_unchanged_since(&self, from: u64) -> bool {
        self.reloaded.is_none_or(|reloaded| reloaded <= from)
    }
}

/// Returns for each limiter the loosest of several configurations that are in force in different replicas.
fn loosest<'a>(configurations: impl Iterator<Item = &'a [LimiterModel]>) -> Vec<LimiterModel> {
    let mut merged: BTreeMap<u32, LimiterModel> = BTreeMap::new();
    for model in configurations.flatten() {
        match merged.get_mut(&model.id) {
            Some(one) if one == model => {}
            Some(one) => loosen(one, model),
            None => {
                merged.insert(model.id, model.clone());
            }
        }
    }
    merged.into_values().collect()
}

fn loosen(one: &mut LimiterModel, other: &LimiterModel) {
    let mut others = other.limits.clone();
    one.limits.retain_mut(|limit| {
        let Some(index) = others.iter().position(|other| are_alike(limit, other)) else { return false };
        let other = others.remove(index);
        limit.rate = limit.rate.max(other.rate);
        if let (Algorithm::TokenBucket { burst }, Algorithm::TokenBucket { burst: more }) =
            (&mut limit.algorithm, other.algorithm)
        {
            *burst = more.max(*burst);
        }
        true
    });
    one.wait_max = one.wait_max.max(other.wait_max);
    one.max_waiting = one.max_waiting.max(other.max_waiting);
    one.slots_max = one.slots_max.max(other.slots_max);
    one.guard = one.guard.max(other.guard);
    one.policy = one.policy.max(other.policy);
    one.is_shadow |= other.is_shadow || one.is_per_replica != other.is_per_replica;
    one.is_crowded |= other.is_crowded;
    one.judges_room = false;
}
