//! Searches for room under several limiters at once. Pure.

use std::sync::Arc;

use crate::clock::Micros;
use crate::limiter::arithmetic::line::Line;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::arithmetic::search::Search;
use crate::limiter::arithmetic::state::LimiterState;
use crate::limiter::model::{Answer, Epoch, Violated};

/// The states of a queue's limiters, each with its caller's rules. The ceilings come last.
pub(in crate::limiter::arithmetic) type States<'a, 'b> = &'a mut [(&'b mut LimiterState, Arc<[Rule]>)];

/// How long another replica than the caller takes to hear of a slot after it has called.
const LEAD_MAX: Micros = Micros::from_millis(30);
/// How long a replica may be late with its call, at least, before it is passed over. It costs a replica that lives its turn, until it calls,
/// and one that has died what the line deals to it meanwhile.
const GRACE_MIN: Micros = Micros::from_millis(100);

/// The part of a call's terms that does not change while it is carried out.
#[derive(Clone, Copy)]
pub(in crate::limiter::arithmetic) struct DealTerms {
    pub(in crate::limiter::arithmetic) now: Micros,
    pub(in crate::limiter::arithmetic) lease: Micros,
    pub(in crate::limiter::arithmetic) replica: u64,
    pub(in crate::limiter::arithmetic) ahead: Micros,
    /// How far ahead of now the caller's own slots begin at least: its answer takes so long.
    pub(in crate::limiter::arithmetic) own_lead: Micros,
    /// The number of limiters that are no ceilings.
    pub(in crate::limiter::arithmetic) limiters: usize,
    /// True if the call tells how long requests wait; else it leaves that to the next one.
    pub(in crate::limiter::arithmetic) tells_waits: bool,
}

impl DealTerms {
    pub(in crate::limiter::arithmetic) fn until(self) -> Micros {
        self.now + self.ahead
    }

    pub(in crate::limiter::arithmetic) fn reach(self, line: &Line, replica: u64) -> Option<Micros> {
        if replica == self.replica {
            return Some(self.now + self.own_lead);
        }
        let lead = LEAD_MAX.min(Micros(self.ahead.0 / 4));
        let grace = GRACE_MIN.max(Micros(self.ahead.0 / 2)).min(self.lease);
        line.reach(replica, self.replica, self.now, (grace, lead))
    }
}

pub(in crate::limiter::arithmetic) fn searches_from<'a>(
    states: States<'a, '_>,
    from: Micros,
) -> Vec<Search<'a>> {
    states.iter_mut().map(|(state, _)| state.search(from)).collect()
}

/// Returns what every answer tells of the limiters of a call.
pub(in crate::limiter::arithmetic) fn seen(
    now: Micros,
    states: &[(&mut LimiterState, Arc<[Rule]>)],
) -> Answer {
    Answer {
        now,
        epoch: Epoch { now, ..Epoch::default() },
        generations: states.iter().map(|(state, _)| state.generation()).collect(),
        available: states.iter().map(|(state, rules)| state.available(now, rules)).collect(),
        lacking: states.iter().map(|(state, _)| state.lacking_behind(now)).collect(),
        is_disputed: states.iter().any(|(state, _)| state.is_disputed()),
        paused: states.iter().map(|(state, _)| state.paused_until(now)).collect(),
        last: states.iter().filter_map(|(state, _)| state.timeline().last()).max().unwrap_or_default(),
        ..Answer::default()
    }
}

/// The earliest instant at which there is room for a request that is next.
#[derive(Clone, Copy)]
pub(in crate::limiter::arithmetic) struct Next {
    pub(in crate::limiter::arithmetic) at: Micros,
    /// The limit that it waits for; `None` if only the call has dealt enough.
    pub(in crate::limiter::arithmetic) violated: Option<Violated>,
}

/// The earliest instant at which every limiter has room.
#[derive(Clone, Copy)]
pub(in crate::limiter::arithmetic) struct Room {
    pub(in crate::limiter::arithmetic) at: Micros,
    /// For how many requests.
    pub(in crate::limiter::arithmetic) count: u64,
    pub(in crate::limiter::arithmetic) violated: Violated,
}

/// Moves the searches of the limiters that a request needs to the earliest instant at which all have room.
pub(in crate::limiter::arithmetic) fn earliest_for_costs(searches: &mut [Search<'_>], costs: &[u64]) -> Room {
    let mut violated = Violated::default();
    let needed = || costs.iter().enumerate().filter(|(_, cost)| **cost > 0);
    let mut at = needed().map(|(index, _)| searches[index].at()).max().unwrap_or_default();
    loop {
        let (mut count, mut has_moved) = (u64::MAX, false);
        for (limiter, cost) in needed() {
            let search = &mut searches[limiter];
            search.advance(at);
            let found = search.earliest(*cost);
            if let Some(limit) = found.limited_by {
                violated = Violated { limiter, limit };
            }
            has_moved |= found.at > at;
            at = found.at;
            count = count.min(found.room / cost);
        }
        if !has_moved {
            return Room { at, count: count.max(1), violated };
        }
    }
}
