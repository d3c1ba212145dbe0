//! The members that share a part of a store, as its last answer listed them, and what this replica has told it. Pure.

use crate::clock::{Micros, Moment};
use crate::limiter::arithmetic::share::Share;
use crate::limiter::model::{CopyExchange, Epoch, Heartbeat, HeartbeatAnswer, Member, Reported, Reports};

/// How much longer than a window a permit may matter: the replica that holds it may use it for a lease, and be heard late.
const MARGIN: Micros = Micros::from_millis(5000);

/// The largest fleet in which each replica keeps copies of what all were granted, and how many do in a larger one.
const FOLLOWERS_ALL: usize = 8;
const FOLLOWERS: usize = 3;

/// The mutual knowledge of this replica and a part of a store.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(in crate::limiter) struct Members {
    /// The instant of the store's latest answer; zero before the first.
    answered: Micros,
    /// The longest window of a limiter whose state lives there.
    longest_window: Micros,
    reported: Reported,
    version: u64,
    /// `None` before the first answer.
    listed: Option<Listed>,
    me: u64,
    /// The counted members, ascending, as last listed; and as last listed when all of them knew the list.
    counted: Vec<u64>,
    agreed: Vec<u64>,
    owed: Owed,
    phase: Phase,
}

/// The reports that members still owe.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Owed {
    /// As last told.
    reports: Reports,
    /// The latest epoch that has opened before all had reported.
    doubted: u64,
}

/// All other members, and when they were listed.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Listed {
    at: Moment,
    others: Vec<Member>,
    /// False if the store may have lost its memory a moment ago: some members may have to tell it of themselves yet.
    is_complete: bool,
}

/// The state of this replica among the members: as long as it stays it makes heartbeats.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
enum Phase {
    #[default]
    Staying,
    Left,
}

impl Members {
    /// Notes the instant of an answer of the store.
    pub(in crate::limiter) fn answered(&mut self, now: Micros) {
        self.answered = now;
    }

    /// Notes a limiter's longest window.
    pub(in crate::limiter) fn serve(&mut self, window: Micros) {
        self.longest_window = self.longest_window.max(window);
    }

    /// Notes what this replica has reported to the store.
    pub(in crate::limiter) fn set_reported(&mut self, reported: Reported) {
        self.reported = reported;
    }

    /// Returns the next heartbeat of a replica that has followed what was moved until an instant; `None` once it has left.
    pub(in crate::limiter) fn heartbeat(
        &self,
        replica: u64,
        known_epoch: u64,
        followed: Micros,
        now: Moment,
    ) -> Option<Heartbeat> {
        let aged = |listed: &Listed| {
            let passed = now - listed.at;
            // A counted member may have been granted its share until now, if the store has been away since.
            let aged = |member: &Member| match member.is_counted {
                true => *member,
                false => Member { matters_for: member.matters_for - passed, ..*member },
            };
            let aged = listed.others.iter().map(aged);
            aged.filter(|member| member.matters_for > Micros::ZERO).collect()
        };
        (self.phase == Phase::Staying).then(|| Heartbeat {
            replica,
            known_epoch,
            heard: self.answered,
            matters_for: self.longest_window + MARGIN,
            reported: self.reported,
            version: self.version,
            leaves: false,
            followed,
            members: self.listed.as_ref().map(aged).unwrap_or_default(),
            copies: CopyExchange::default(),
        })
    }

    /// Returns the last heartbeat of a replica, whose permits matter for so long still.
    pub(in crate::limiter) fn farewell(
        &mut self,
        replica: u64,
        known_epoch: u64,
        matters_for: Micros,
        now: Moment,
    ) -> Option<Heartbeat> {
        let last = self.heartbeat(replica, known_epoch, Micros::ZERO, now)?;
        self.phase = Phase::Left;
        Some(Heartbeat { matters_for, leaves: true, ..last })
    }

    /// Takes in the answer to a heartbeat of a replica. Returns whether all members have reported now, and had not before.
    pub(in crate::limiter) fn learn(&mut self, replica: u64, answer: &HeartbeatAnswer, now: Moment) -> bool {
        self.version = answer.version;
        let others = answer.members.iter().filter(|member| member.replica != replica).copied().collect();
        let is_complete = answer.epoch.settles_until.is_none();
        self.listed = Some(Listed { at: now, others, is_complete });
        let mut counted: Vec<u64> =
            answer.members.iter().filter(|member| member.is_counted).map(|member| member.replica).collect();
        counted.sort_unstable();
        self.me = replica;
        if answer.is_known_to_all && is_complete {
            self.agreed.clone_from(&counted);
        }
        self.counted = counted;
        let before = std::mem::replace(&mut self.owed.reports, answer.reports);
        (before, answer.reports) == (Reports::Awaited, Reports::Complete)
    }

    /// Returns whether an answer is the first to tell that its epoch has opened before all members had reported: the store charges what they
    /// may have been granted.
    pub(in crate::limiter) fn is_new_doubt(&mut self, answer: &HeartbeatAnswer) -> bool {
        let Epoch { id, settles_until, .. } = answer.epoch;
        let is_new = answer.reports == Reports::Awaited && settles_until.is_none() && id > self.owed.doubted;
        if is_new {
            self.owed.doubted = id;
        }
        is_new
    }

    /// Returns whether this replica keeps copies of what others were granted: all do in a small fleet, a few in a large one.
    pub(in crate::limiter) fn follows(&self) -> bool {
        let before_me = self.counted.iter().filter(|member| **member < self.me).count();
        self.counted.len() <= FOLLOWERS_ALL || before_me < FOLLOWERS
    }

    /// Returns whether no other replica can have been granted anything that matters, as the store said last.
    pub(in crate::limiter) fn is_alone(&self) -> bool {
        self.listed.as_ref().is_some_and(|listed| listed.others.is_empty())
    }

    /// Returns how many of these replicas are no counted members: they keep their keys in another layout.
    pub(in crate::limiter) fn strangers(&self, listed: &[u64]) -> u64 {
        listed.iter().filter(|replica| **replica != self.me && !self.counted.contains(replica)).count() as u64
    }

    /// Returns this replica's share while the store is away: of `assumed` replicas at least before the store has listed all. `strangers`
    /// have shares, too, which are rounded down.
    ///
    /// Invariant: the shares of all members sum up to no more than the whole. A change of the members makes shares larger only when
    /// every member knows of it: until then each has the smaller one, and a new member none. A replica to which the store has not listed all
    /// yet knows of no members, as before its first answer: what it takes is in addition.
    pub(in crate::limiter) fn share(&self, assumed: u64, strangers: u64) -> Share {
        let is_new = self.agreed.is_empty();
        if is_new && self.listed.as_ref().is_none_or(|listed| !listed.is_complete) {
            let parts = assumed.max(self.counted.len() as u64 + strangers).max(1);
            return Share { parts, place: None, clock_ahead: 0 };
        }
        let Some(place) = self.agreed.iter().position(|member| *member == self.me) else {
            return Share::NONE;
        };
        let parts = self.agreed.len().max(self.counted.len()) as u64 + strangers;
        let is_agreed = self.agreed == self.counted && strangers == 0;
        Share { parts, place: is_agreed.then_some(place as u64), clock_ahead: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_of_another_layout_have_shares_too() {
        let mut known = Members::default();
        let member = |replica| Member { replica, matters_for: Micros::ZERO, is_counted: true };
        let members = vec![member(1), member(2)];
        known.learn(
            2,
            &HeartbeatAnswer { version: 1, is_known_to_all: true, members, ..HeartbeatAnswer::default() },
            Moment(1),
        );
        let strangers = known.strangers(&[1, 2, 7]);
        assert_eq!((known.strangers(&[1, 2]), strangers), (0, 1));
        assert_eq!(known.share(1, 0), Share { parts: 2, place: Some(1), clock_ahead: 0 });
        assert_eq!(known.share(1, strangers), Share { parts: 3, place: None, clock_ahead: 0 });
    }
    #[test]
    fn a_counted_member_matters_for_as_long_behind_an_outage() {
        let mut known = Members::default();
        let member =
            |replica, is_counted| Member { replica, matters_for: Micros::from_millis(7000), is_counted };
        let members = vec![member(1, true), member(2, true), member(3, false)];
        let answer =
            HeartbeatAnswer { version: 1, is_known_to_all: true, members, ..HeartbeatAnswer::default() };
        known.learn(1, &answer, Moment(0));
        let told = |now| known.heartbeat(1, 1, Micros::ZERO, Moment(now)).unwrap().members;
        let left = Member { matters_for: Micros::from_millis(6000), ..member(3, false) };
        assert_eq!(told(1_000_000), [member(2, true), left]);
        assert_eq!(told(30_000_000), [member(2, true)]);
    }

    /// Returns the answer that lists these as counted members, known to all of them or not.
    fn listing(version: u64, members: &[u64], is_known_to_all: bool) -> HeartbeatAnswer {
        let member = |replica: &u64| Member { replica: *replica, matters_for: Micros::ONE, is_counted: true };
        let members = members.iter().map(member).collect();
        HeartbeatAnswer { version, is_known_to_all, members, ..HeartbeatAnswer::default() }
    }

    #[test]
    fn a_heartbeat_says_what_this_replica_has_heard_and_reported() {
        let mut known = Members::default();
        let told = |known: &Members| known.heartbeat(1, 3, Micros(9), Moment(0)).unwrap();
        let first = told(&known);
        assert_eq!(
            (first.replica, first.known_epoch, first.followed, first.heard),
            (1, 3, Micros(9), Micros::ZERO)
        );
        assert_eq!((first.leaves, first.version, first.members), (false, 0, vec![]));
        known.answered(Micros(70));
        known.serve(Micros::from_millis(60_000));
        known.serve(Micros::from_millis(1000));
        let reported = Reported { memory: 2, epoch: 3 };
        known.set_reported(reported);
        known.learn(1, &listing(5, &[1, 2], true), Moment(0));
        let next = told(&known);
        assert_eq!((next.heard, next.reported, next.version), (Micros(70), reported, 5));
        assert_eq!(next.matters_for, Micros::from_millis(65_000), "the longest window and a margin");
    }

    #[test]
    fn a_farewell_is_the_last_heartbeat() {
        let mut known = Members::default();
        let farewell = known.farewell(1, 3, Micros(40), Moment(0)).unwrap();
        assert_eq!((farewell.leaves, farewell.matters_for), (true, Micros(40)));
        assert_eq!(known.heartbeat(1, 3, Micros::ZERO, Moment(0)), None);
        assert_eq!(known.farewell(1, 3, Micros(40), Moment(0)), None);
    }

    #[test]
    fn the_last_report_that_was_awaited_is_noticed_once() {
        let mut known = Members::default();
        let reports = |reports| HeartbeatAnswer { reports, ..listing(1, &[1, 2], true) };
        let steps =
            [Reports::Awaited, Reports::Complete, Reports::Complete, Reports::Awaited, Reports::Complete];
        let noticed = steps.map(|step| known.learn(1, &reports(step), Moment(0)));
        assert_eq!(noticed, [false, true, false, false, true]);
    }

    #[test]
    fn an_epoch_that_opens_in_doubt_is_noticed_once() {
        let mut known = Members::default();
        let mut notices = |id, settles_until, reports| {
            let epoch = Epoch { id, settles_until, ..Epoch::default() };
            known.is_new_doubt(&HeartbeatAnswer { epoch, reports, ..HeartbeatAnswer::default() })
        };
        assert!(!notices(3, None, Reports::Complete));
        assert!(!notices(4, Some(Micros(9)), Reports::Awaited), "they may report still");
        assert!(!notices(4, None, Reports::Complete));
        assert!(!notices(5, Some(Micros(9)), Reports::Awaited));
        assert!(notices(5, None, Reports::Awaited));
        assert!(!notices(5, None, Reports::Awaited));
        assert!(notices(6, None, Reports::Awaited), "another epoch");
    }

    #[test]
    fn all_of_a_small_fleet_follow_and_the_first_of_a_large_one() {
        let followers = |members: &[u64]| -> Vec<u64> {
            let of = |me: &u64| {
                let mut known = Members::default();
                known.learn(*me, &listing(1, members, true), Moment(0));
                known.follows().then_some(*me)
            };
            members.iter().filter_map(of).collect()
        };
        assert_eq!(followers(&[8, 7, 6, 5, 4, 3, 2, 1]).len(), 8);
        assert_eq!(followers(&[9, 8, 7, 6, 5, 4, 3, 2, 1]), [3, 2, 1]);
    }

    #[test]
    fn a_replica_is_alone_when_the_store_lists_no_other() {
        let mut known = Members::default();
        assert!(!known.is_alone(), "it does not know");
        known.learn(1, &listing(1, &[1], true), Moment(0));
        assert!(known.is_alone());
        known.learn(1, &listing(2, &[1, 2], false), Moment(0));
        assert!(!known.is_alone());
    }

    #[test]
    fn a_list_of_a_settling_store_sets_no_share() {
        let epoch = Epoch { settles_until: Some(Micros(9)), ..Epoch::default() };
        let settling = |members| HeartbeatAnswer { epoch, ..listing(1, members, true) };
        let mut known = Members::default();
        known.learn(1, &settling(&[1]), Moment(0));
        assert_eq!(known.share(3, 0), Share { parts: 3, place: None, clock_ahead: 0 });
        known.learn(1, &listing(1, &[1, 2], true), Moment(0));
        known.learn(1, &settling(&[1]), Moment(0));
        assert_eq!(
            known.share(1, 0),
            Share { parts: 2, place: None, clock_ahead: 0 },
            "the other one has its half"
        );
        known.learn(1, &listing(1, &[1], true), Moment(0));
        assert_eq!(known.share(3, 0), Share { parts: 1, place: Some(0), clock_ahead: 0 });
    }

    #[test]
    fn shares_grow_when_all_know_the_members_and_shrink_at_once() {
        let mut known = Members::default();
        assert_eq!(known.share(0, 0), Share { parts: 1, place: None, clock_ahead: 0 });
        known.learn(2, &listing(1, &[1, 2], false), Moment(0));
        assert_eq!(known.share(1, 0), Share::NONE, "a new member");
        known.learn(2, &listing(1, &[2, 1], true), Moment(0));
        assert_eq!(known.share(1, 0), Share { parts: 2, place: Some(1), clock_ahead: 0 });
        known.learn(2, &listing(2, &[1, 2, 3], false), Moment(0));
        assert_eq!(known.share(1, 0), Share { parts: 3, place: None, clock_ahead: 0 });
        known.learn(2, &listing(3, &[2], false), Moment(0));
        assert_eq!(known.share(1, 0), Share { parts: 2, place: None, clock_ahead: 0 });
        known.learn(2, &listing(3, &[2], true), Moment(0));
        assert_eq!(known.share(1, 0), Share { parts: 1, place: Some(0), clock_ahead: 0 });
    }
}
