//! The use of one state of a limiter: requests sent, waiting and arrived.

use std::collections::VecDeque;

use super::event::State;
use super::excess::Excesses;
use super::over::Meter;

/// The length of a tick, in which demand is counted.
pub(crate) const TICK: u64 = 500_000;
/// The most ticks of demand that are kept: limits of longer windows are not judged by their use.
pub(crate) const TICKS_MAX: usize = 600;

/// How much longer a history is kept in which responses have cost more than their estimates.
const KEPT_WITH_EXCESS: u64 = 60_000_000;

/// A state of a limiter; of one replica, if each enforces the limiter by itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct StateKey {
    /// The limiter and its partition.
    pub(crate) state: State,
    /// The replica, if it is a state of its own.
    pub(crate) replica: Option<usize>,
}

/// Permits used at an instant.
#[derive(Clone, Copy, Debug)]
struct Use {
    at: u64,
    cost: u64,
    /// The permits used before, since the beginning.
    before: u64,
}

/// The permits used, by instant.
#[derive(Default, Debug)]
pub(crate) struct History {
    uses: VecDeque<Use>,
    total: u64,
    /// Nothing is known of earlier instants.
    pub(crate) known_from: u64,
}

impl History {
    /// Takes in permits used now.
    pub(crate) fn push(&mut self, at: u64, cost: u64) {
        self.uses.push_back(Use { at, cost, before: self.total });
        self.total += cost;
    }

    /// Returns the permits used before an instant, since the beginning.
    fn before(&self, at: u64) -> u64 {
        let index = self.uses.partition_point(|used| used.at < at);
        self.uses.get(index).map_or(self.total, |used| used.before)
    }

    /// Returns the permits used from one instant to another, without the second.
    pub(crate) fn used(&self, from: u64, until: u64) -> u64 {
        self.before(until).saturating_sub(self.before(from))
    }

    /// Takes back permits of a use whose cost was lower.
    fn settle(&mut self, sent_at: u64, less: u64) {
        let mut index = self.uses.partition_point(|used| used.at < sent_at);
        while self.uses.get(index).is_some_and(|used| used.at == sent_at && used.cost < less) {
            index += 1;
        }
        let Some(used) = self.uses.get_mut(index).filter(|used| used.at == sent_at) else { return };
        used.cost -= less;
        self.uses.range_mut(index + 1..).for_each(|later| later.before -= less);
        self.total -= less;
    }

    fn forget(&mut self, before: u64) {
        while let Some(used) = self.uses.front().filter(|used| used.at < before) {
            self.known_from = used.at + 1;
            self.uses.pop_front();
        }
    }

    fn clear(&mut self) {
        self.uses.clear();
    }
}

/// The use of one state.
#[derive(Default, Debug)]
pub(crate) struct StateUse {
    /// The permits used.
    pub(crate) history: History,
    /// The cost of responses beyond their estimates.
    pub(crate) excesses: Excesses,
    /// For each limit, by the number of its rule, what does not follow from the history.
    pub(crate) meters: Vec<(u32, Meter)>,
    /// The cost of requests that have not been answered.
    pub(crate) unanswered: u64,
    /// The cost of requests that went away, and until when their permits may still be booked.
    abandoned: VecDeque<(u64, u64)>,
    /// Until when slots may be booked for requests of a replica that was killed. Nobody gives them back.
    pub(crate) orphaned_until: u64,
    /// The cost of requests that can wait for a second, by tick; the last one is `last_tick`.
    demand: VecDeque<u64>,
    last_tick: u64,
    /// The last time that a request came which needed another limiter, too.
    pub(crate) shared_at: Option<u64>,
    /// The highest cost so far.
    pub(crate) cost_max: u64,
    /// The store's clock less the true time, when it was seen last.
    pub(crate) store_ahead: Option<i64>,
}

impl StateUse {
    /// Takes in the cost of a request that has arrived.
    pub(crate) fn arrive(&mut self, at: u64, cost: u64, waits: bool, is_alone: bool) {
        self.unanswered += cost;
        self.cost_max = self.cost_max.max(cost);
        if !is_alone {
            self.shared_at = Some(at);
        }
        self.advance(at / TICK);
        if let Some(last) = self.demand.back_mut().filter(|_| waits) {
            *last += cost;
        }
    }

    /// Begins ticks up to `tick`.
    fn advance(&mut self, tick: u64) {
        if self.demand.is_empty() || tick.saturating_sub(self.last_tick) > TICKS_MAX as u64 {
            self.demand.clear();
            self.demand.push_back(0);
            self.last_tick = tick;
        }
        while self.last_tick < tick {
            self.demand.push_back(0);
            self.last_tick += 1;
        }
        while self.demand.len() > TICKS_MAX {
            self.demand.pop_front();
        }
    }

    /// Returns the cost of the requests of a tick that could wait.
    pub(crate) fn demand(&self, tick: u64) -> u64 {
        let behind = self.last_tick.checked_sub(tick).and_then(|behind| usize::try_from(behind).ok());
        let index = behind.and_then(|behind| self.demand.len().checked_sub(behind + 1));
        index.and_then(|index| self.demand.get(index)).copied().unwrap_or(0)
    }

    /// Takes in that a request has gone, whose permit may be booked until an instant.
    pub(crate) fn abandon(&mut self, until: u64, cost: u64) {
        self.abandoned.push_back((until, cost));
    }

    /// Returns the cost of all that may have a permit booked and has not used it.
    pub(crate) fn pending(&mut self, at: u64) -> u64 {
        while self.abandoned.front().is_some_and(|(until, _)| *until <= at) {
            self.abandoned.pop_front();
        }
        self.unanswered + self.abandoned.iter().map(|(_, cost)| cost).sum::<u64>()
    }

    /// Takes in the lower cost of a request sent earlier.
    pub(crate) fn settle(&mut self, sent_at: u64, less: u64) {
        self.history.settle(sent_at, less);
        self.meters.iter_mut().for_each(|(_, meter)| meter.settle(sent_at, less));
    }

    /// Forgets what was sent: it no longer counts.
    pub(crate) fn reset(&mut self) {
        self.history.clear();
        self.meters.clear();
    }

    /// Forgets what was sent before an instant. True: nothing is left to know.
    pub(crate) fn forget(&mut self, before: u64) -> bool {
        // An excess takes many windows to show.
        let kept = if self.excesses.is_empty() { before } else { before.saturating_sub(KEPT_WITH_EXCESS) };
        self.history.forget(kept);
        self.excesses.forget(kept);
        self.history.uses.is_empty() && self.unanswered == 0 && (self.last_tick + 1) * TICK < before
    }
}
