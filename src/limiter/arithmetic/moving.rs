//! Gives the void bookings of a queue's limiters their new places.
//!
//! Those that were made at one instant at several limiters belong to requests that need all of these, and get a place at which all have room.
//! By themselves, the limiters would move them to different places, of which no request could use any. Pure. The twin is
//! `lua/reschedule.lua`, which may take several calls.

use crate::clock::Micros;
use crate::limiter::arithmetic::reschedule::Moving;
use crate::limiter::arithmetic::room::States;
use crate::limiter::arithmetic::search::earliest_of;

/// How far ahead bookings are moved: a little over the longest wait of a request. Requests of later bookings have left by then, or will be
/// refused.
pub(crate) const RESCHEDULE_MAX: Micros = Micros::from_millis(25 * 3_600_000);

/// How many permits are looked at, to know whether two limiters have those of the same requests.
const FIRST: u64 = 512;

/// Lets limiters of a queue that have not moved move with the first one that has, from a lease ahead on, if nearly all their bookings are of
/// the same requests, as the first ones show. Else these would keep places there which they cannot use any more, in the way of those that they
/// get.
pub(in crate::limiter::arithmetic) fn join(now: Micros, lease: Micros, states: States<'_, '_>) {
    let first = states.iter().map(|(state, _)| state).find(|state| state.void_permits() > 0);
    let Some(first) = first else { return };
    let from = first.generation().void_from.max(now + lease);
    let sample = first.void_from(from, FIRST);
    states.iter_mut().for_each(|(state, _)| state.join(now, from, lease, sample));
}

/// Gives all void bookings of some states a place, the first ones first.
pub(in crate::limiter) fn place_void(now: Micros, states: States<'_, '_>) {
    let mut moving: Vec<Moving<'_>> = states.iter_mut().filter_map(|(state, _)| state.moving()).collect();
    while let Some(first) =
        moving.iter().filter_map(|state| state.void.first_void()).map(|entry| entry.at).min()
    {
        let mut together: Vec<&mut Moving<'_>> =
            moving.iter_mut().filter(|state| state.void.is_void(first)).collect();
        let permits =
            together.iter().filter_map(|state| state.void.first_void()).map(|entry| entry.permits).min();
        let found = earliest_of(&mut together, 1);
        let permits = permits.unwrap_or_default().min(found.room);
        for state in together {
            if found.at > now + RESCHEDULE_MAX {
                state.void.drop_void();
            } else {
                state.search.charge(permits);
                state.void.place(permits, found.at);
            }
        }
    }
}
