//! The limiters in force, and what limiters are created with.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use crate::limiter::model::{ActionByHand, Moved};
use crate::limiter::queue::active_limiter::{ActiveLimiter, LimiterInstance};
use crate::limiter::recovery::heartbeat::HeartbeatNotice;
use crate::limiter::recovery::session::StoreSession;
use crate::limiter::registry::queues::Queues;
use crate::limiter::registry::store_sessions::StoreSessions;
use crate::telemetry::Metrics;

/// The limiters in force.
pub(super) struct InForce {
    pub(super) sessions: StoreSessions,
    pub(super) queues: Arc<Queues>,
    pub(super) metrics: Metrics,
    /// The limiters, in the order of the configuration.
    limiters: Mutex<Vec<Arc<ActiveLimiter>>>,
}

impl InForce {
    /// Creates the registry's state, without limiters.
    pub(super) fn new(sessions: StoreSessions, queues: Arc<Queues>, metrics: Metrics) -> InForce {
        InForce { sessions, queues, metrics, limiters: Mutex::default() }
    }

    /// Returns the limiters in force, in the order of the configuration.
    pub(super) fn limiters(&self) -> Vec<Arc<ActiveLimiter>> {
        self.limiters.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts these limiters in the place of those in force, which are returned.
    pub(super) fn replace(&self, next: Vec<Arc<ActiveLimiter>>) -> Vec<Arc<ActiveLimiter>> {
        std::mem::replace(&mut *self.limiters.lock().unwrap_or_else(PoisonError::into_inner), next)
    }

    /// Passes on what a heartbeat has heard.
    pub(super) fn notify(&self, notice: HeartbeatNotice<'_>) {
        match notice {
            HeartbeatNotice::LinkChanged => self.queues.wake_all(),
            HeartbeatNotice::AllMoved(session, at) => {
                self.queues.notify_moved(at, |LimiterInstance { active, .. }| is_of(active, session));
            }
            HeartbeatNotice::Moved(session, moved, at) => {
                let moved: HashSet<&Moved> = moved.iter().collect();
                self.queues.notify_moved(at, |LimiterInstance { active, partition }| {
                    is_of(active, session)
                        && (moved.contains(&(active.name.clone(), *partition))
                            || moved.contains(&(active.name.clone(), None)))
                });
            }
            HeartbeatNotice::ByHand(session, actions) => {
                actions.iter().for_each(|action| self.follow_by_hand(session, action));
            }
        }
    }

    /// Keeps to an action by hand that a part of the store has. A limiter of this name that has its state elsewhere is not concerned: each
    /// replica has it for itself by now, or a reload has moved it to another part.
    fn follow_by_hand(&self, session: &StoreSession, action: &ActionByHand) {
        let is_meant = |active: &Arc<ActiveLimiter>| active.name == action.name && is_of(active, session);
        for active in self.limiters().into_iter().filter(is_meant) {
            let instance = LimiterInstance { active, partition: action.partition };
            self.queues.follow_by_hand(&instance, action);
        }
    }
}

/// Returns whether a limiter has its state in this part of the store. One of its name may have it in another, which has a clock of its own.
fn is_of(active: &ActiveLimiter, session: &StoreSession) -> bool {
    std::ptr::eq(&raw const *active.session, session)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::time::Duration;

    use super::*;
    use crate::clock::{Clock, Micros};
    use crate::entropy::Entropy;
    use crate::limiter::model::{Epoch, HeartbeatAnswer, Limiter, LimiterName, PauseStretch};
    use crate::limiter::recovery::fallback::Fallback;
    use crate::limiter::recovery::fleet::Fleet;
    use crate::limiter::registry::prepared_limiters::PreparedLimiters;
    use crate::limiter::registry::queues::LINGER;
    use crate::limiter::store::memory::MemoryStore;
    use crate::limiter::tests::latent_store::LatentStore;
    use crate::limiter::tests::limiter;

    const SECOND: Duration = Duration::from_secs(1);

    fn session(clock: Clock) -> Arc<StoreSession> {
        let session = Arc::new(StoreSession::new(LatentStore::new(clock, Duration::ZERO), clock));
        answered(&session);
        session
    }

    fn answered(session: &StoreSession) {
        let epoch = Epoch { now: session.now(), id: 1, memory: 1, ..Epoch::default() };
        session.answered(session.moment(), epoch);
    }

    /// Returns a registry whose store has answered.
    fn in_force(clock: Clock) -> Arc<InForce> {
        let (store, entropy) = (MemoryStore::for_outages(clock), Entropy::system());
        let fallback = Fallback { replica: 1, store, clock, entropy, fleet: Fleet::new(1, 1) };
        let sessions = StoreSessions::new(LatentStore::new(clock, Duration::ZERO), clock);
        answered(&sessions.overall);
        let queues = Arc::new(Queues::new(Arc::new(fallback), LINGER));
        Arc::new(InForce::new(sessions, queues, Metrics::new()))
    }

    fn named(name: &str) -> Arc<Limiter> {
        let name = LimiterName::parse(name).unwrap();
        Arc::new(Limiter { name, ..Limiter::clone(&limiter(10, SECOND, SECOND)) })
    }

    /// Returns the pause of a limiter for a minute.
    fn pause_of(limiter: &Limiter, clock: Clock) -> ActionByHand {
        let stretch = PauseStretch { from: clock.now(), until: clock.now() + Micros::from_millis(60_000) };
        ActionByHand { name: limiter.name.clone(), partition: None, stretch, replica: 2 }
    }

    fn are_paused(in_force: &InForce) -> Vec<bool> {
        in_force.limiters().iter().map(|active| active.pauses.is_paused()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn actions_by_hand_of_another_part_of_the_store_concern_no_limiter_of_that_name() {
        let clock = Clock::of_runtime();
        let (in_force, left, api) = (in_force(clock), session(clock), named("api"));
        PreparedLimiters::new(&in_force, std::slice::from_ref(&api)).commit();
        let actions = [pause_of(&api, clock)];
        in_force.notify(HeartbeatNotice::ByHand(&left, &actions));
        assert_eq!(are_paused(&in_force), [false]);
        in_force.notify(HeartbeatNotice::ByHand(&in_force.sessions.overall, &actions));
        assert_eq!(are_paused(&in_force), [true]);
    }

    #[tokio::test(start_paused = true)]
    async fn bookings_that_another_part_of_the_store_has_moved_concern_no_queue_of_that_name() {
        let clock = Clock::of_runtime();
        let (in_force, left, api) = (in_force(clock), session(clock), named("api"));
        PreparedLimiters::new(&in_force, std::slice::from_ref(&api)).commit();
        let instance = LimiterInstance { active: in_force.limiters()[0].clone(), partition: None };
        let queue = in_force.queues.find(&[instance]).unwrap();
        // Its worker has no turn meanwhile.
        let told = |notice| {
            in_force.notify(notice);
            queue.take_events(&mut VecDeque::new(), 0, clock.moment()).events.moved
        };
        let (moved, at, own) = ([(api.name.clone(), None)], clock.now(), &in_force.sessions.overall);
        assert_eq!(told(HeartbeatNotice::Moved(&left, &moved, at)), None);
        assert_eq!(told(HeartbeatNotice::AllMoved(&left, at)), None);
        assert_eq!(told(HeartbeatNotice::Moved(own, &moved, at)), Some(at));
        assert_eq!(told(HeartbeatNotice::AllMoved(own, at)), Some(at));
    }

    #[tokio::test(start_paused = true)]
    async fn a_limiter_hears_of_actions_by_hand_from_before_the_reload_with_which_it_comes() {
        let clock = Clock::of_runtime();
        let (in_force, all) = (in_force(clock), ["first", "second"].map(named));
        PreparedLimiters::new(&in_force, &all[..1]).commit();
        let by_hand = all.iter().map(|limiter| pause_of(limiter, clock)).collect();
        let (session, answer) =
            (&in_force.sessions.overall, HeartbeatAnswer { by_hand, ..HeartbeatAnswer::default() });
        let beat = || {
            let actions = session.take_by_hand(&answer);
            in_force.notify(HeartbeatNotice::ByHand(session, &actions));
            actions.len()
        };
        assert_eq!((beat(), are_paused(&in_force)), (2, vec![true]));
        PreparedLimiters::new(&in_force, &all).commit();
        assert_eq!((beat(), are_paused(&in_force)), (1, vec![true, true]));
        PreparedLimiters::new(&in_force, &all).commit();
        assert_eq!(beat(), 0, "no limiter has come");
    }
}
