//! Faults, and the time since anything was disturbed.

use std::collections::{BTreeMap, VecDeque};

use super::event::{Excess, FaultKind, LimiterModel, Policy};

/// How much longer than its window a limiter with [`Policy::Allow`] is not judged after a fault of the store.
const ALLOW_AFTER: u64 = 1_000_000;

/// A fault that goes on, or has ended lately.
struct Fault {
    kind: FaultKind,
    end: Option<u64>,
}

/// A replica's standstills.
#[derive(Default)]
struct Standstill {
    since: Option<u64>,
    total: u64,
    last_end: u64,
}

/// How long a stall is remembered: for longer than a request may be late.
const STALLS_KEPT: u64 = 60_000_000;

/// A time in which a replica does nothing.
#[derive(Clone, Copy)]
struct Stall {
    from: u64,
    until: u64,
}

/// All faults that may still matter.
#[derive(Default)]
pub(crate) struct Faults {
    faults: BTreeMap<u64, Fault>,
    stopped: BTreeMap<usize, Standstill>,
    /// Of each replica, the last ones, in order.
    stalled: BTreeMap<usize, VecDeque<Stall>>,
    /// The end of the last disturbance of the whole fleet.
    disturbed: u64,
    /// The end of the last fault after which somebody may not know what was granted.
    lost: Option<u64>,
    /// How many such faults there were.
    losses: u64,
    /// How long a replica may act on what it last heard.
    lease: u64,
    /// How long a replica waits for an answer of the store, and a lease.
    floor_wait: u64,
}

impl Faults {
    /// Returns no faults.
    pub(crate) fn new(lease: u64, floor_wait: u64) -> Faults {
        Faults { lease, floor_wait, ..Faults::default() }
    }

    /// Takes in a fault.
    pub(crate) fn begin(&mut self, fault: u64, kind: FaultKind) {
        self.faults.insert(fault, Fault { kind, end: None });
    }

    /// Takes in the end of a fault. False: no such fault goes on.
    pub(crate) fn end(&mut self, at: u64, fault: u64) -> bool {
        let Some(fault) = self.faults.get_mut(&fault).filter(|fault| fault.end.is_none()) else {
            return false;
        };
        fault.end = Some(at);
        let loses_knowledge = fault.kind.loses_knowledge;
        self.disturb(at);
        if loses_knowledge {
            self.lose(at);
        }
        true
    }

    /// Takes in something that may change what is sent for a while: a reload, a replica's end.
    pub(crate) fn disturb(&mut self, at: u64) {
        self.disturbed = at;
    }

    /// Takes in that somebody may not know what was granted until now. The store grants again two leases later, and what nobody can
    /// vouch for counts as used then.
    pub(crate) fn lose(&mut self, at: u64) {
        self.lost = Some(at + 2 * self.lease);
        self.losses += 1;
    }

    /// Returns the end of the last fault after which somebody may not know what was granted.
    pub(crate) fn lost(&self) -> Option<u64> {
        self.lost
    }

    /// Takes in that a replica stands still.
    pub(crate) fn stop(&mut self, at: u64, replica: usize) {
        self.stopped.entry(replica).or_default().since.get_or_insert(at);
    }

    /// Takes in that a replica runs again, or has ended.
    pub(crate) fn go_on(&mut self, at: u64, replica: usize) {
        let standstill = self.stopped.entry(replica).or_default();
        if let Some(since) = standstill.since.take() {
            standstill.total += at - since;
            standstill.last_end = at;
            self.disturb(at);
        }
    }

    /// Takes in that a replica does nothing until an instant. A stall that it was in ends here.
    pub(crate) fn stall(&mut self, at: u64, replica: usize, until: u64) {
        let stalls = self.stalled.entry(replica).or_default();
        while stalls.front().is_some_and(|stall| stall.until + STALLS_KEPT < at) {
            stalls.pop_front();
        }
        if let Some(last) = stalls.back_mut() {
            last.until = last.until.min(at);
        }
        stalls.push_back(Stall { from: at, until });
    }

    /// Returns when a replica does at the earliest what it has to do at an instant: at the end of its latest stall, if that began before.
    pub(crate) fn awake_from(&self, replica: usize, at: u64) -> u64 {
        let stall = self.last_stall(replica).filter(|stall| stall.from <= at);
        stall.map_or(at, |stall| stall.until.max(at))
    }

    /// Returns for how long of a time a replica did nothing.
    pub(crate) fn stalled_within(&self, replica: usize, from: u64, until: u64) -> u64 {
        let stalls = self.stalled.get(&replica).into_iter().flatten().rev();
        let within = |stall: &Stall| stall.until.min(until).saturating_sub(stall.from.max(from));
        stalls.take_while(|stall| stall.until > from).map(within).sum()
    }

    fn last_stall(&self, replica: usize) -> Option<&Stall> {
        self.stalled.get(&replica)?.back()
    }

    /// Returns how long a replica has stood still in all.
    pub(crate) fn stopped_for(&self, at: u64, replica: usize) -> u64 {
        self.stopped
            .get(&replica)
            .map_or(0, |standstill| standstill.total + standstill.since.map_or(0, |since| at - since))
    }

    /// Returns whether a replica stands still.
    pub(crate) fn stands_still(&self, replica: usize) -> bool {
        self.stopped.get(&replica).is_some_and(|standstill| standstill.since.is_some())
    }

    /// Returns whether a replica has stood still since an instant.
    pub(crate) fn stood_still_since(&self, replica: usize, from: u64) -> bool {
        let has_stalled = self.last_stall(replica).is_some_and(|stall| stall.until >= from);
        let has_stopped = |one: &Standstill| one.since.is_some() || (one.total > 0 && one.last_end >= from);
        has_stalled || self.stopped.get(&replica).is_some_and(has_stopped)
    }

    /// Returns since when nothing has been disturbed; `None`: something is.
    pub(crate) fn calm_since(&self) -> Option<u64> {
        let goes_on = self.faults.values().any(|fault| fault.end.is_none())
            || self.stopped.values().any(|standstill| standstill.since.is_some());
        (!goes_on).then_some(self.disturbed)
    }

    /// Returns whether all may be expected to know what was granted since `from`.
    pub(crate) fn all_known_since(&self, from: u64) -> bool {
        let is_losing = self.faults.values().any(|fault| fault.end.is_none() && fault.kind.loses_knowledge);
        !is_losing && self.lost.is_none_or(|lost| lost <= from)
    }

    /// Returns how many faults there were after which somebody may not know what was granted.
    pub(crate) fn losses(&self) -> u64 {
        self.losses
    }

    /// Returns the percentage by which windows that begin at `from` may be over; `None`: they are not judged.
    ///
    /// The shares of replicas that are cut off at once add up, but for one: where all are, nobody else uses the store's permits.
    pub(crate) fn excess(&self, limiter: &LimiterModel, from: u64) -> Option<u64> {
        let policy = limiter.policy;
        // The first replicas divide a limit that is too small for all.
        let largest_share = 100_u64.div_ceil(limiter.shares_max().max(1));
        let (mut percent, mut of_splits, mut of_started): (u64, u64, u64) = (0, 0, 0);
        let mut apart: BTreeMap<usize, u64> = BTreeMap::new();
        for fault in self.faults.values() {
            let after = match fault.kind.name {
                _ if policy == Policy::Allow => ALLOW_AFTER,
                // It goes by its share until it finds the store, by a probe behind a call that has its time.
                "started_alone" => 2 * self.lease,
                // It notices by calls that have had their time, and then the same.
                "swallow" => self.floor_wait + 2 * self.lease,
                _ => self.lease,
            };
            if fault.end.is_some_and(|end| end + after <= from) {
                continue;
            }
            if policy == Policy::Allow && fault.kind.touches_store {
                return None;
            }
            let Excess { local, other } = fault.kind.excess;
            let excess = match policy {
                Policy::Local if local > 0 => local.max(largest_share),
                Policy::Local | Policy::Allow | Policy::Reject => other,
            };
            match (fault.kind.name, fault.kind.apart) {
                // Each of them uses its share, however many faults it has.
                (_, Some(replica)) => {
                    let of_replica = apart.entry(replica).or_default();
                    *of_replica = excess.max(*of_replica);
                }
                // Beside all that are known: a later one tells of the earlier ones, too.
                ("started_alone", None) => of_started = of_started.max(excess),
                // Each further primary has a quota of its own.
                ("failover", None) => of_splits = of_splits.saturating_add(excess),
                _ => percent = percent.max(excess),
            }
        }
        let largest = apart.values().copied().max().unwrap_or_default();
        let of_apart = apart.values().sum::<u64>().min(largest.max(100_u64.saturating_sub(largest)));
        let percent = percent.max(of_apart);
        (percent != Excess::ANY).then_some(percent.saturating_add(of_splits).saturating_add(of_started))
    }

    /// Returns whether no call to the store can have failed since an instant.
    pub(crate) fn is_store_untouched_since(&self, from: u64) -> bool {
        let touches = |fault: &Fault| fault.kind.touches_store && fault.end.is_none_or(|end| end >= from);
        !self.faults.values().any(touches)
    }

    /// Returns whether a replica is slow to hear the store, or was right before, when answers under way were sent.
    pub(crate) fn is_slow(&self, at: u64) -> bool {
        let mut slow = self.faults.values().filter(|fault| fault.kind.name == "slow");
        slow.any(|fault| fault.end.is_none_or(|end| at < end + self.lease))
    }

    /// Forgets faults that ended before an instant.
    pub(crate) fn forget(&mut self, before: u64) {
        self.faults.retain(|_, fault| fault.end.is_none_or(|end| end >= before));
    }
}
