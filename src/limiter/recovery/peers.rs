//! The members that share a part of a store, as its last answer listed them, and what this replica has told it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use crate::clock::Micros;
use crate::limiter::arithmetic::share::Share;
use crate::limiter::model::{CopyExchange, Heartbeat, HeartbeatAnswer, Member, Reported, Reports};

/// How much longer than a window a permit may matter: the replica that holds it may use it for a lease, and be heard late.
const MARGIN: Micros = Micros::from_millis(5000);

/// The largest fleet in which each replica keeps copies of what all were granted, and how many do in a larger one.
const FOLLOWERS_ALL: usize = 8;
const FOLLOWERS: usize = 3;

/// What this replica and a part of a store know of each other.
#[derive(Default)]
pub(in crate::limiter) struct Peers {
    known: Mutex<Known>,
    /// The instant of the store's latest answer; zero before the first.
    answered: AtomicU64,
    /// The longest window of a limiter whose state lives there, in microseconds.
    longest_window: AtomicU64,
}

#[derive(Default)]
struct Known {
    reported: Reported,
    version: u64,
    /// All other members, and when they were listed.
    others: Vec<Member>,
    listed: Option<Instant>,
    me: u64,
    /// The counted members, ascending, as last listed; and as last listed when all of them knew the list.
    counted: Vec<u64>,
    agreed: Vec<u64>,
    /// What members had still to report, as last told.
    reports: Reports,
    phase: Phase,
}

/// Whether this replica still makes heartbeats.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Staying,
    Left,
}

impl Peers {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the instant of an answer of the store.
    pub(in crate::limiter) fn answered(&self, now: Micros) {
        self.answered.store(now.0, Ordering::Relaxed);
    }

    /// Notes a limiter's longest window.
    pub(in crate::limiter) fn serve(&self, window: Micros) {
        self.longest_window.fetch_max(window.0, Ordering::Relaxed);
    }

    /// Notes what this replica has reported to the store.
    pub(in crate::limiter) fn set_reported(&self, reported: Reported) {
        self.lock().reported = reported;
    }

    /// Returns the next heartbeat of a replica that has followed what was moved until an instant; `None` once it has left.
    pub(in crate::limiter) fn heartbeat(
        &self,
        replica: u64,
        known_epoch: u64,
        followed: Micros,
    ) -> Option<Heartbeat> {
        let known = self.lock();
        let passed = known.listed.map(|at| Micros::from(at.elapsed())).unwrap_or_default();
        let aged = |member: &Member| Member { matters_for: member.matters_for - passed, ..*member };
        (known.phase == Phase::Staying).then(|| Heartbeat {
            replica,
            known_epoch,
            heard: Micros(self.answered.load(Ordering::Relaxed)),
            matters_for: Micros(self.longest_window.load(Ordering::Relaxed)) + MARGIN,
            reported: known.reported,
            version: known.version,
            leaves: false,
            followed,
            members: known
                .others
                .iter()
                .map(aged)
                .filter(|member| member.matters_for > Micros::ZERO)
                .collect(),
            copies: CopyExchange::default(),
        })
    }

    /// Returns the last heartbeat of a replica, whose permits matter for so long still.
    pub(in crate::limiter) fn farewell(
        &self,
        replica: u64,
        known_epoch: u64,
        matters_for: Micros,
    ) -> Option<Heartbeat> {
        let last = self.heartbeat(replica, known_epoch, Micros::ZERO)?;
        self.lock().phase = Phase::Left;
        Some(Heartbeat { matters_for, leaves: true, ..last })
    }

    /// Takes in the answer to a heartbeat of a replica. Returns whether all members have reported now, and had not before.
    pub(in crate::limiter) fn learn(&self, replica: u64, answer: &HeartbeatAnswer) -> bool {
        let mut known = self.lock();
        known.version = answer.version;
        known.others = answer.members.iter().filter(|member| member.replica != replica).copied().collect();
        known.listed = Some(Instant::now());
        let mut counted: Vec<u64> =
            answer.members.iter().filter(|member| member.is_counted).map(|member| member.replica).collect();
        counted.sort_unstable();
        known.me = replica;
        if answer.is_known_to_all {
            known.agreed.clone_from(&counted);
        }
        known.counted = counted;
        let before = std::mem::replace(&mut known.reports, answer.reports);
        (before, answer.reports) == (Reports::Awaited, Reports::Complete)
    }

    /// Returns whether this replica keeps copies of what others were granted: all do in a small fleet, a few in a large one.
    pub(in crate::limiter) fn follows(&self) -> bool {
        let known = self.lock();
        let before_me = known.counted.iter().filter(|member| **member < known.me).count();
        known.counted.len() <= FOLLOWERS_ALL || before_me < FOLLOWERS
    }

    /// Returns whether no other replica can have been granted anything that matters, as the store said last.
    pub(in crate::limiter) fn is_alone(&self) -> bool {
        let known = self.lock();
        known.listed.is_some() && known.others.is_empty()
    }

    /// Returns how many of these replicas are no counted members: they keep their keys in another layout.
    pub(in crate::limiter) fn strangers(&self, listed: &[u64]) -> u64 {
        let known = self.lock();
        listed.iter().filter(|replica| **replica != known.me && !known.counted.contains(replica)).count()
            as u64
    }

    /// Returns this replica's share while the store is away: of `assumed` replicas before the store has answered. `strangers` have shares,
    /// too, which are rounded down.
    ///
    /// Invariant: the shares of all members sum up to no more than the whole. A change of the members makes shares larger only when
    /// every member knows of it: until then each has the smaller one, and a new member none.
    pub(in crate::limiter) fn share(&self, assumed: u64, strangers: u64) -> Share {
        let known = self.lock();
        if known.listed.is_none() {
            return Share { parts: assumed.max(1), place: None, clock_ahead: 0 };
        }
        let Some(place) = known.agreed.iter().position(|member| *member == known.me) else {
            return Share::NONE;
        };
        let parts = known.agreed.len().max(known.counted.len()) as u64 + strangers;
        let is_agreed = known.agreed == known.counted && strangers == 0;
        Share { parts, place: is_agreed.then_some(place as u64), clock_ahead: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_of_another_layout_have_shares_too() {
        let peers = Peers::default();
        let member = |replica| Member { replica, matters_for: Micros::ZERO, is_counted: true };
        let members = vec![member(1), member(2)];
        peers.learn(
            2,
            &HeartbeatAnswer { version: 1, is_known_to_all: true, members, ..HeartbeatAnswer::default() },
        );
        let strangers = peers.strangers(&[1, 2, 7]);
        assert_eq!((peers.strangers(&[1, 2]), strangers), (0, 1));
        assert_eq!(peers.share(1, 0), Share { parts: 2, place: Some(1), clock_ahead: 0 });
        assert_eq!(peers.share(1, strangers), Share { parts: 3, place: None, clock_ahead: 0 });
    }
}
