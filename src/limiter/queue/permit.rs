//! The right to send. A permit settles itself: committed when its request has gone upstream, given back when it is dropped
//! before.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::clock::{Micros, Moment};
use crate::limiter::model::{Costs, Flow, LimiterName, Refusal};
use crate::limiter::queue::active_limiter::{ActiveLimiter, LimiterInstance};
use crate::limiter::queue::quota_left::{LastLeft, QuotaLeft};
use crate::limiter::queue::request::{Holder, LATE_MAX, RequestId, Unusable};
use crate::limiter::queue::shadow::Shadows;
use crate::limiter::queue::slot::{Slot, Source};
use crate::limiter::queue::upstream_report::{PendingReport, UpstreamSignal, Window};
use crate::limiter::store::clock::StoreClock;

/// A permit, or a part of one, on its way back to the queue's worker.
pub(in crate::limiter) enum Returned {
    /// A permit that was not used.
    Unused { slot: Slot, costs: Costs, flow: Flow },
    /// A permit that must not be used now, with the request that waits for another, or for this one again.
    Exchanged(Exchange),
    /// A part of a used permit: the request has cost less than it had taken.
    Refund { slot: Slot, costs: Costs, flow: Flow },
}

/// A permit that must not be used now, with its request.
pub(in crate::limiter) struct Exchange {
    pub(in crate::limiter) slot: Slot,
    pub(in crate::limiter) costs: Costs,
    /// The request; a late slot is counted already.
    pub(in crate::limiter) holder: Holder,
    pub(in crate::limiter) why: Unusable,
    pub(in crate::limiter) turn: Turn,
}

/// Delivers a waiting request's permit, or its refusal.
pub(in crate::limiter) type Turn = oneshot::Sender<Result<Permit, Refusal>>;

/// A report on a request that was sent, for the queue of its permit.
pub(in crate::limiter) enum PermitReport {
    /// The quota signals in the upstream's answer, or a cost above the permit's.
    Signal(PendingReport),
    /// A cost below the permit's.
    Refund(Returned),
}

/// The queue of a permit, a ticket or a receipt, as these see it.
pub(in crate::limiter) trait OriginQueue: Send + Sync {
    /// Returns how long after its slot a permit stays good.
    fn guard(&self) -> Micros;

    /// Returns the present moment.
    fn now(&self) -> Moment;

    /// Returns whether a slot lies in a pause that was announced after it was booked.
    fn is_paused(&self, due: Moment, now: Moment) -> bool;

    /// Returns whether a slot may be used: within the lease, in the epoch or outage in which it was booked.
    fn is_usable(&self, slot: &Slot, now: Moment) -> bool;

    /// Returns the number of the queue's limiters.
    fn limiters(&self) -> usize;

    /// Takes in what a request has taken of each limiter, and what stays charged of it.
    fn settle(&self, taken: &[u64], charged: &[u64]);

    /// Returns whether a limiter of the queue heeds the quota that the upstream reports.
    fn follows_upstream(&self) -> bool;

    /// Returns what is left of the limits, as the store last said, and the limiters or partitions that they are of.
    fn left(&self) -> (&LastLeft, &[LimiterInstance]);

    /// Returns whether requests wait.
    fn has_waiting(&self) -> bool;

    /// Counts a permit that is handed out.
    fn permit_out(&self);

    /// Counts a permit that was used or given back. One that is given back is handed to the worker before, so that the worker
    /// does not end meanwhile.
    fn permit_in(&self);

    /// Counts a permit whose request has still to be woken and sent.
    fn enter_flight(&self);

    /// Counts a permit whose request was sent, or waits for a connection.
    fn leave_flight(&self);

    /// Counts a used permit.
    fn count_used(&self, source: Source, flow: Flow, costs: &Costs);

    /// Records how long after its slot a permit was used, or found too late.
    fn count_late(&self, late: Micros);

    /// Counts a permit that was given back unused.
    fn count_cancelled(&self, flow: Flow, costs: &Costs);

    /// Hands a permit back to the worker. It is dropped if the queue has ended.
    fn hand_back(&self, returned: Returned);

    /// Passes the report on a sent request to the worker.
    ///
    /// # Errors
    /// The same report, if the queue has ended.
    fn report(&self, report: PermitReport) -> Result<(), PermitReport>;

    /// Tells the worker that a waiting request may have left.
    fn leave(&self, request: RequestId);

    /// Tells that a request has left which waits for a permit in place of one that it has exchanged.
    fn exchange_left(&self);

    /// Returns the refusal of a queue that has ended.
    fn closed(&self) -> Refusal;
}

/// The grantor of a permit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Provenance {
    /// The store.
    Store,
    /// This replica, from its share, during an outage of the store.
    Share,
    /// Nobody: during an outage of the store everything passes.
    Unlimited,
}

/// The right to send one request upstream.
///
/// Dropping it before [`Permit::commit`] gives it back: to the next request of this replica while it is
/// good, else to the fleet.
#[must_use = "a permit that is dropped is given back"]
pub struct Permit {
    /// `None` where every limiter only counts.
    held: Option<HeldSlot>,
    /// The limiters that only count, charged when the permit is used.
    pub(in crate::limiter) shadows: Option<Shadows>,
}

/// The slot that a request holds.
struct HeldSlot {
    queue: Arc<dyn OriginQueue>,
    slot: Hold,
    clock: StoreClock,
    costs: Costs,
    holder: Holder,
    waited: Duration,
    /// When the slot was last checked, right before the request's head was written.
    confirmed: Option<Moment>,
    /// True if it counts among the queue's permits in flight.
    is_in_flight: bool,
}

/// A request's hold on its slot.
#[derive(Clone, Copy)]
enum Hold {
    /// The right to use it.
    Slot(Slot),
    /// Nothing: it was handed back while the request waits for a connection.
    SetAside(Slot),
    /// Nothing: it was used, or another is awaited in its place.
    Settled,
}

impl Permit {
    pub(in crate::limiter) fn new(
        queue: Arc<dyn OriginQueue>,
        slot: Slot,
        clock: StoreClock,
        costs: Costs,
        (holder, waited): (Holder, Duration),
    ) -> Permit {
        queue.permit_out();
        let slot = Hold::Slot(slot);
        let (confirmed, is_in_flight) = (None, false);
        let held = HeldSlot { queue, slot, clock, costs, holder, waited, confirmed, is_in_flight };
        Permit { held: Some(held), shadows: None }
    }

    /// Counts the permit as in flight: its request has still to be woken.
    pub(in crate::limiter) fn in_flight(mut self) -> Permit {
        if let Some(held) = &mut self.held {
            held.is_in_flight = true;
            held.queue.enter_flight();
        }
        self
    }

    /// Returns a permit without a booking, for a request whose limiters all only count.
    pub(in crate::limiter) fn free() -> Permit {
        Permit { held: None, shadows: None }
    }

    /// Confirms the permit, as [`Permit::confirm`] does, if it is good right before the request's head is written. Returns whether it is.
    pub fn confirm_at_once(&mut self) -> bool {
        let Some(held) = &mut self.held else { return true };
        let is_good = held.check().is_none();
        if is_good {
            held.leave_flight();
        }
        is_good
    }

    /// Makes sure, right before the request's head is written, that the permit is still good.
    ///
    /// A slot is good for one guard, and within the lease of the store's last answer. A permit that is later than one guard
    /// is exchanged for the queue's next one, after a wait for that, up to [`LATE_MAX`] times, and so is one that was set aside.
    /// One whose lease is over waits for an answer of the store.
    ///
    /// # Errors
    /// A refusal if no other slot lies within the request's wait.
    pub async fn confirm(&mut self) -> Result<(), Refusal> {
        while let Some(held) = &mut self.held
            && let Some(next) = held.exchange_if_unusable()
        {
            let permit = next.answered().await.unwrap_or_else(|| Err(held.queue.closed()))?;
            self.held = permit.held;
        }
        if let Some(held) = &mut self.held {
            held.leave_flight();
        }
        Ok(())
    }

    /// Sets the request aside while it waits for a connection, if others wait: hands its slot back, which the next request can use
    /// while it is good. [`Permit::confirm`] waits for another slot then, by the request's arrival. Returns whether the slot has been
    /// handed back. In any case the queue hands out another permit in place of this one, whose request does not wait for the processor.
    pub fn set_aside(&mut self) -> bool {
        let Some(held) = &mut self.held else { return true };
        held.leave_flight();
        if held.queue.has_waiting() {
            held.set_aside();
        }
        !matches!(held.slot, Hold::Slot(_))
    }

    /// Spends the permit: the request goes upstream. Returns `None` if nothing was booked for it.
    pub fn commit(mut self) -> Option<Receipt> {
        if let Some(shadows) = &self.shadows {
            shadows.charge();
        }
        let HeldSlot { queue, slot: hold, clock, costs, confirmed, holder, .. } = self.held.as_mut()?;
        let Hold::Slot(slot) = *hold else { return None };
        *hold = Hold::Settled;
        let sent = confirmed.unwrap_or_else(|| queue.now());
        queue.count_used(slot.source, holder.flow, costs);
        queue.count_late(slot.lateness(clock, sent));
        queue.permit_in();
        Some(Receipt { queue: queue.clone(), slot, costs: costs.clone(), sent, flow: holder.flow })
    }

    /// Returns who has granted the permit; the store, where nothing was booked.
    pub fn provenance(&self) -> Provenance {
        let slot = self.held.as_ref().and_then(|held| match held.slot {
            Hold::Slot(slot) | Hold::SetAside(slot) => Some(slot),
            Hold::Settled => None,
        });
        match slot.map(|slot| slot.source) {
            Some(Source::Local(_)) => Provenance::Share,
            Some(Source::Unlimited) => Provenance::Unlimited,
            Some(Source::Store(_)) | None => Provenance::Store,
        }
    }

    /// Returns how long the request waited for its slot; zero if it was granted at once.
    pub fn waited(&self) -> Duration {
        self.held.as_ref().map_or(Duration::ZERO, |held| held.waited)
    }
}

impl HeldSlot {
    /// Checks the slot now. Returns it with the reason why it must not be used; `None` if it is good.
    fn check(&mut self) -> Option<(Slot, Unusable)> {
        let slot = match self.slot {
            Hold::Slot(slot) => slot,
            Hold::SetAside(slot) => return Some((slot, Unusable::SetAside)),
            Hold::Settled => return None,
        };
        let now = self.queue.now();
        self.confirmed = Some(now);
        let why = if self.holder.late < LATE_MAX && slot.is_late(&self.clock, now, self.queue.guard()) {
            Unusable::Late
        } else if self.queue.is_paused(slot.due, now) {
            Unusable::Paused
        } else if !self.queue.is_usable(&slot, now) {
            Unusable::Unheard
        } else {
            return None;
        };
        Some((slot, why))
    }

    /// Hands a slot that must not be used back, and returns the channel on which the next one comes. `None` if the slot is good.
    fn exchange_if_unusable(&mut self) -> Option<NextPermit> {
        let (slot, why) = self.check()?;
        self.slot = Hold::Settled;
        let (turn, next) = oneshot::channel();
        let late = self.holder.late + u8::from(why == Unusable::Late);
        let holder = Holder { late, ..self.holder };
        self.queue.hand_back(Returned::Exchanged(Exchange {
            slot,
            costs: self.costs.clone(),
            holder,
            why,
            turn,
        }));
        self.queue.permit_in();
        self.leave_flight();
        Some(NextPermit { queue: Arc::clone(&self.queue), next: Some(next) })
    }

    fn set_aside(&mut self) {
        if let Hold::Slot(slot) = self.slot {
            self.slot = Hold::SetAside(slot);
            self.queue.hand_back(Returned::Unused {
                slot,
                costs: self.costs.clone(),
                flow: self.holder.flow,
            });
        }
    }

    fn leave_flight(&mut self) {
        if std::mem::take(&mut self.is_in_flight) {
            self.queue.leave_flight();
        }
    }
}

/// Waits for the permit in place of one that was exchanged. A drop tells the queue that its request has left.
struct NextPermit {
    queue: Arc<dyn OriginQueue>,
    next: Option<oneshot::Receiver<Result<Permit, Refusal>>>,
}

impl NextPermit {
    /// Returns the answer; `None` if the queue has ended.
    async fn answered(mut self) -> Option<Result<Permit, Refusal>> {
        let answer = self.next.as_mut()?.await.ok();
        self.next = None;
        answer
    }
}

impl Drop for NextPermit {
    fn drop(&mut self) {
        if self.next.take().is_some() {
            self.queue.exchange_left();
        }
    }
}

impl Drop for HeldSlot {
    fn drop(&mut self) {
        self.leave_flight();
        self.set_aside();
        if matches!(self.slot, Hold::SetAside(_)) {
            self.queue.count_cancelled(self.holder.flow, &self.costs);
            self.queue.permit_in();
        }
    }
}

/// A spent permit, by which later reports on its request reach the queue.
#[derive(Clone)]
pub struct Receipt {
    pub(in crate::limiter) queue: Arc<dyn OriginQueue>,
    pub(in crate::limiter) slot: Slot,
    pub(in crate::limiter) costs: Costs,
    pub(in crate::limiter) sent: Moment,
    pub(in crate::limiter) flow: Flow,
}

impl Receipt {
    /// Returns whether a limiter heeds the quota that the upstream reports.
    pub fn follows_upstream(&self) -> bool {
        self.queue.follows_upstream()
    }

    /// Returns what is left of the tightest limit of those limiters for which `is_meant` holds, as the store last said; `None` if that is not
    /// known, or the store did not grant the permit.
    pub fn quota_left(&self, is_meant: impl Fn(&LimiterName) -> bool) -> Option<QuotaLeft> {
        let (left, instances) = self.queue.left();
        matches!(self.slot.source, Source::Store(_)).then(|| left.tightest(instances, is_meant))?
    }

    /// Returns whether it is time to compare the upstream's count with weir's, which is now and then.
    pub fn compares_upstream(&self) -> bool {
        let (_, instances) = self.queue.left();
        let is_due = |instance: &LimiterInstance| instance.active.upstream_counts.is_due(self.sent);
        matches!(self.slot.source, Source::Store(_)) && instances.iter().any(is_due)
    }

    /// Compares the upstream's count, as its response tells it, with weir's.
    pub fn compare_upstream(&self, windows: &[Window]) {
        let (left, instances) = self.queue.left();
        left.compare(instances, windows);
    }

    /// Returns the report of the quota signals in the upstream's answer.
    pub(in crate::limiter) fn signalled(&self, signal: UpstreamSignal) -> PermitReport {
        let sent = (self.sent, self.queue.now());
        PermitReport::Signal(PendingReport::new(signal, sent, self.slot, self.costs.clone()))
    }

    /// Returns whether the permit was taken of these limiters, and of no others.
    pub(in crate::limiter) fn is_of<'a>(
        &self,
        limiters: impl Iterator<Item = &'a Arc<ActiveLimiter>>,
    ) -> bool {
        let (_, instances) = self.queue.left();
        instances.iter().map(|instance| Arc::as_ptr(&instance.active)).eq(limiters.map(Arc::as_ptr))
    }

    /// Returns what the request took of each limiter of its queue.
    pub(in crate::limiter) fn taken(&self) -> impl Iterator<Item = u64> {
        self.costs.of(self.queue.limiters())
    }

    /// Returns the reports of what stays charged at each limiter of its queue: more than was taken is charged, less is given back.
    pub(in crate::limiter) fn settled(&self, charged: &[u64]) -> Vec<PermitReport> {
        let pairs = || self.taken().zip(charged);
        let more = Costs::each_or_same(pairs().map(|(taken, charged)| charged.saturating_sub(taken)));
        let less = Costs::each_or_same(pairs().map(|(taken, charged)| taken.saturating_sub(*charged)));
        let charge = more.map(|more| PermitReport::Signal(PendingReport::charge(self.flow, &more)));
        let refund = less
            .map(|costs| PermitReport::Refund(Returned::Refund { slot: self.slot, costs, flow: self.flow }));
        charge.into_iter().chain(refund).collect()
    }
}
