//! The right to send, which settles itself: committed when the request has gone upstream, given back when
//! it is dropped before.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::clock::Micros;
use crate::limiter::model::limit::Permits;
use crate::limiter::model::refusal::Refusal;
use crate::limiter::queue::cost_queue::LATE_MAX;
use crate::limiter::queue::handle::Queue;
use crate::limiter::queue::shadow::Shadows;
use crate::limiter::queue::upstream_report::Receipt;
use crate::limiter::store::clock::StoreClock;

/// Where a slot was booked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::limiter) enum Source {
    /// In the store.
    Store,
    /// In this replica's own memory, because the store is away.
    Local,
    /// Nowhere: the store is away and the policy is to let everything pass.
    Unlimited,
}

/// The instant at which a permit may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::limiter) struct Slot {
    /// On the clock of its source.
    pub(in crate::limiter) at: Micros,
    /// On this process's clock: the first instant at which the source's clock has surely reached it.
    pub(in crate::limiter) due: Instant,
    pub(in crate::limiter) source: Source,
}

impl Slot {
    /// Whether the slot must not be used any more at `now`.
    ///
    /// It is good for one guard, by the upper bound of the store's clock. Where the bounds are wider apart than half a
    /// guard (answers take that long) nobody could ever be on time, so the distance of the bounds is added.
    pub(in crate::limiter) fn is_late(&self, clock: &StoreClock, now: Instant, guard: Micros) -> bool {
        let uncertain = clock.latest(now) - clock.earliest(now);
        let extra = if uncertain + uncertain > guard { uncertain } else { Micros::ZERO };
        self.lateness(clock, now) > guard + extra
    }

    /// How far the slot may lie back at `now`, in the worst case.
    pub(in crate::limiter) fn lateness(&self, clock: &StoreClock, now: Instant) -> Micros {
        match self.source {
            Source::Unlimited => Micros::ZERO,
            Source::Store | Source::Local => clock.latest(now) - self.at,
        }
    }
}

/// What a permit's holder sends back to the queue's worker.
pub(in crate::limiter) enum Returned {
    /// A permit that was not used.
    Unused { slot: Slot, cost: Permits },
    /// A permit that came too late to be used, of a request that wants the next one.
    Late(LatePermit),
    /// A part of a permit that was used, for its request has cost less than it had taken.
    Refund { slot: Slot, cost: Permits },
}

/// A permit that came too late, and who wants another.
pub(in crate::limiter) struct LatePermit {
    pub(in crate::limiter) slot: Slot,
    pub(in crate::limiter) cost: Permits,
    pub(in crate::limiter) arrived: Instant,
    pub(in crate::limiter) deadline: Instant,
    /// How often that has happened to this request.
    pub(in crate::limiter) late: u8,
    /// Whether it is late only because the limiter has been paused meanwhile.
    pub(in crate::limiter) is_paused: bool,
    pub(in crate::limiter) turn: Turn,
}

/// Tells a request that its turn has come.
pub(in crate::limiter) type Turn = oneshot::Sender<Result<Permit, Refusal>>;

/// The right to send one request upstream.
///
/// Dropping it before [`Permit::commit`] gives it back: to the next request of this replica while it is
/// good, else to the fleet.
#[must_use = "a permit that is dropped is given back"]
pub struct Permit {
    /// `None` where every limiter only counts.
    held: Option<Held>,
    cost: Permits,
    waited: Duration,
    /// Those that only count, and are told when the permit is used.
    pub(in crate::limiter) shadows: Option<Shadows>,
}

/// A slot in the hands of a request.
struct Held {
    shared: Arc<Queue>,
    /// `None` while another is awaited in its place.
    slot: Option<Slot>,
    clock: StoreClock,
    cost: Permits,
    whose: Whose,
    /// When it was last found good: right before the request's head was written.
    confirmed: Option<Instant>,
    /// Whether it counts among those that are being sent.
    is_sending: bool,
}

/// The request that gets a permit.
#[derive(Clone, Copy)]
pub(in crate::limiter) struct Whose {
    pub(in crate::limiter) arrived: Instant,
    pub(in crate::limiter) deadline: Instant,
    pub(in crate::limiter) waited: Duration,
    /// How often its slot came too late.
    pub(in crate::limiter) late: u8,
}

impl Permit {
    pub(in crate::limiter) fn new(
        shared: Arc<Queue>,
        slot: Slot,
        clock: StoreClock,
        cost: Permits,
        whose: Whose,
    ) -> Permit {
        shared.permit_out();
        let waited = whose.waited;
        let held = Held { shared, slot: Some(slot), clock, cost, whose, confirmed: None, is_sending: false };
        Permit { held: Some(held), cost, waited, shadows: None }
    }

    /// Its request does not run yet, and has still to be woken.
    pub(in crate::limiter) fn sending(mut self) -> Permit {
        if let Some(held) = &mut self.held {
            held.is_sending = true;
            held.shared.sending();
        }
        self
    }

    /// A permit that nobody had to book.
    pub(in crate::limiter) fn free(cost: Permits) -> Permit {
        Permit { held: None, cost, waited: Duration::ZERO, shadows: None }
    }

    /// Makes sure, right before the request's head is written, that the permit is still good.
    ///
    /// A slot is good for one guard. Who comes later (a connection took long to open) changes the slot for the
    /// queue's next one and waits for that, up to [`LATE_MAX`] times.
    ///
    /// # Errors
    /// A refusal where no other slot lies within the request's wait.
    pub async fn confirm(&mut self) -> Result<(), Refusal> {
        while let Some(held) = &mut self.held
            && let Some(next) = held.exchange_if_late()
        {
            let permit = next.await.unwrap_or_else(|_| Err(held.shared.closed()))?;
            (self.held, self.waited) = (permit.held, permit.waited);
        }
        self.set_aside();
        Ok(())
    }

    /// Lets another permit out in place of this one: its request waits for something else than the processor now, a
    /// connection that is being opened or the response.
    pub fn set_aside(&mut self) {
        if let Some(held) = &mut self.held {
            held.sent();
        }
    }

    /// The request is going upstream: the permit is spent. `None` where nobody had to book it.
    pub fn commit(mut self) -> Option<Receipt> {
        if let Some(shadows) = &self.shadows {
            shadows.charge(self.cost);
        }
        let Held { shared, slot, clock, cost, confirmed, .. } = self.held.as_mut()?;
        let (slot, sent) = (slot.take()?, confirmed.unwrap_or_else(Instant::now));
        shared.count_used(slot.source, *cost);
        shared.count_late(slot.lateness(clock, sent));
        shared.permit_in();
        Some(Receipt { shared: shared.clone(), slot, cost: *cost, sent })
    }

    /// How long the request waited for its slot; zero if it was granted at once.
    pub fn waited(&self) -> Duration {
        self.waited
    }
}

impl Held {
    /// Gives the slot away for another one if it is too late, and returns where that comes.
    fn exchange_if_late(&mut self) -> Option<oneshot::Receiver<Result<Permit, Refusal>>> {
        let now = Instant::now();
        self.confirmed = Some(now);
        let Whose { arrived, deadline, late, .. } = self.whose;
        let slot = self.slot?;
        let is_paused = self.shared.is_paused(slot.due, now);
        let is_late = late < LATE_MAX && slot.is_late(&self.clock, now, self.shared.guard());
        if !is_paused && !is_late {
            return None;
        }
        self.slot = None;
        let (turn, next) = oneshot::channel();
        let late = late + u8::from(is_late);
        let returned = LatePermit { slot, cost: self.cost, arrived, deadline, late, is_paused, turn };
        self.shared.hand_back(Returned::Late(returned));
        self.shared.permit_in();
        self.sent();
        Some(next)
    }

    fn sent(&mut self) {
        if std::mem::take(&mut self.is_sending) {
            self.shared.sent();
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.sent();
        if let Some(slot) = self.slot.take() {
            self.shared.count_cancelled(self.cost);
            self.shared.hand_back(Returned::Unused { slot, cost: self.cost });
            self.shared.permit_in();
        }
    }
}
