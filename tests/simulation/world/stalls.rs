//! Lateness: replicas that do not get the processor for some milliseconds, and requests whose connection takes as long.

use std::time::Duration;

use super::{World, is_meant};

/// One in so many steps is followed by a stall in ordinary time, and one in so many requests waits for its connection, in runs that have
/// either.
const STALL_ODDS: u64 = 256;
const CONNECT_ODDS: u64 = 16;

/// The replicas whose processor is busy: by the fault, which one, the longest stall, and its odds.
pub(super) type Busy = Vec<(usize, Option<usize>, u64, u64)>;

impl World {
    /// Draws how late a place does something; zero mostly.
    fn lateness(&mut self, place: usize, usual_odds: u64) -> u64 {
        let usual = (self.plan.hiccup, usual_odds);
        let busy = self.busy.iter().filter(|(_, replica, ..)| is_meant(*replica, place));
        let causes: Vec<(u64, u64)> = busy
            .map(|(.., most, odds)| (*most, *odds))
            .chain([usual])
            .filter(|(most, _)| *most > 0)
            .collect();
        let mut draw = |(most, odds)| {
            let is_late = self.network_draws.u64(..odds) == 0;
            if is_late { self.network_draws.u64(1..=most) } else { 0 }
        };
        causes.into_iter().map(&mut draw).max().unwrap_or_default()
    }

    /// Takes the processor away from a replica that has just had it, for a while, now and then.
    pub(super) fn stall(&mut self, place: usize) {
        if self.places[place].replica.is_none() {
            return;
        }
        let late = self.lateness(place, STALL_ODDS);
        if late > 0 {
            let until = self.now + late;
            self.places[place].stalled_until = until;
            self.judge.stalled(self.now, place, until);
            self.history.add(self.now, || format!("replica {place} stalls for {late} us"));
        }
    }

    /// Draws how long a request of a replica takes from its turn until it has a connection: no time mostly.
    pub(super) fn connecting(&mut self, place: usize) -> Duration {
        Duration::from_micros(self.lateness(place, CONNECT_ODDS))
    }
}
