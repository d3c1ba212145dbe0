//! The right to send, which settles itself: committed when the request has gone upstream, given back when
//! it is dropped before.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::clock::Micros;
use crate::limiter::model::limit::Permits;
use crate::limiter::model::refusal::Refusal;
use crate::limiter::queue::shadow::Shadows;
use crate::limiter::queue::slot::{Slot, Source};
use crate::limiter::queue::upstream_report::{PendingReport, UpstreamSignal};
use crate::limiter::store::clock::StoreClock;

/// How often a request's slot may come too late and be exchanged: a busy processor is late now and then, only one that can
/// never be on time is late so often in a row.
pub(in crate::limiter) const LATE_MAX: u8 = 8;

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

/// The queue that a permit, a receipt or a ticket came from, as these see it.
pub(in crate::limiter) trait OriginQueue: Send + Sync {
    /// How long after its slot a permit stays good.
    fn guard(&self) -> Micros;

    /// Whether a slot may not be used because a limiter has been paused since it was booked.
    fn is_paused(&self, due: Instant, now: Instant) -> bool;

    /// Whether a limiter heeds the quota that the upstream reports.
    fn follows_upstream(&self) -> bool;

    /// Counts a permit that is handed out.
    fn permit_out(&self);

    /// Counts a permit that was used or given back. One that is given back is handed back before, so that the worker does not
    /// end meanwhile.
    fn permit_in(&self);

    /// Counts a permit that is on its way to the wire, and whose request must be woken first.
    fn sending(&self);

    /// Counts a permit that is no longer on its way to the wire.
    fn sent(&self);

    /// Counts a permit that was used.
    fn count_used(&self, source: Source, cost: Permits);

    /// Counts by how much a slot was used late.
    fn count_late(&self, late: Micros);

    /// Counts a permit that was given back unused.
    fn count_cancelled(&self, cost: Permits);

    /// Hands something back to the worker. If that has ended, it is dropped, and its request hears of it.
    fn hand_back(&self, returned: Returned);

    /// Tells the worker what became known of a spent permit.
    ///
    /// # Errors
    /// The same report, if the queue has ended.
    fn tell(&self, news: PermitReport) -> Result<(), PermitReport>;

    /// Tells the worker that a waiting request has left.
    fn leave(&self);

    /// The refusal of a queue that has ended.
    fn closed(&self) -> Refusal;
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
    shared: Arc<dyn OriginQueue>,
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
        shared: Arc<dyn OriginQueue>,
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

/// A permit that was spent, for what becomes known of it later.
pub struct Receipt {
    pub(in crate::limiter) shared: Arc<dyn OriginQueue>,
    pub(in crate::limiter) slot: Slot,
    pub(in crate::limiter) cost: Permits,
    pub(in crate::limiter) sent: Instant,
}

impl Receipt {
    /// Whether what the upstream leaves of its quota matters to a limiter.
    pub fn follows_upstream(&self) -> bool {
        self.shared.follows_upstream()
    }

    /// What its queue, or the one that has come in its place, has to hear of what an answer says.
    pub(in crate::limiter) fn said(&self, spoken: UpstreamSignal) -> PermitReport {
        PermitReport::Signal(PendingReport::new(spoken, self.sent, self.slot, self.cost))
    }

    /// The same, of what its request has cost: more is charged, less is given back. `None` if it is what was taken.
    pub(in crate::limiter) fn settled(&self, cost: u64) -> Option<PermitReport> {
        let taken = self.cost.get();
        if cost > taken {
            return Some(PermitReport::Signal(PendingReport::charge(cost - taken)));
        }
        let cost = Permits::new(taken - cost)?;
        Some(PermitReport::Refund(Returned::Refund { slot: self.slot, cost }))
    }
}

/// What a queue hears of a request whose permit is spent.
pub(in crate::limiter) enum PermitReport {
    Signal(PendingReport),
    Refund(Returned),
}
