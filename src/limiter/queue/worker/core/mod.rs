//! The core of a queue's worker. Pure: events and the present moment in, actions out. It knows no task, no channel, no lock and no
//! clock; a request is a number. A recorded list of events gives the same actions anywhere.
//!
//! Invariants, restored after every event:
//! - in each cost queue each request has a slot that is held or asked for, and no more slots are held than requests wait: surplus slots
//!   are given back, surplus requests refused. Slots asked for beyond that, because requests have gone, are in a call under way;
//! - what the cost queues count as asked for (`wanted`) is, cost by cost, `replace` and `reschedule` of what the next calls owe, of the
//!   call under way, and of the call to this replica's own memory. A worker that closes asks for no slot in place of another;
//! - no slot is handed out before the store's clock has surely reached it, later than its guard (but see
//!   [`Waiter::holder`](crate::limiter::queue::cost_queue::Waiter::holder)), outside the lease of the last answer, or in another
//!   epoch or outage than its own;
//! - while a slot is held that is due within two leases, the store is heard at least twice in a lease, by an answer or by a heartbeat, so
//!   that a change of the limits is known before it voids anything;
//! - no more requests wait than may: one that comes back with a late slot displaces the last that came;
//! - no request waits longer than its wait and a slack, or than the store may take to answer where that is longer, whatever the
//!   link and the pause are.
//!
//! The fates of a slot:
//! - it is *replaced*: given back, with another one asked for ([`BookedCore::replace_slot`]). So it is with a slot that came too late, with a
//!   whole cost queue behind one (*rebooked*), and with the last slots of a queue, for permits that were freed before them (*traded*);
//! - it is *void*: the store has moved its booking, as an answer's generations tell. It is *rescheduled* with the next call, which asks
//!   for its new place;
//! - it is *lost*: the store has forgotten it, with all that is of an earlier epoch. Another one is asked for, and nothing is given back.
//!
//! A pause, a reset, a reload and external usage all come about in the same way. They are told as `Moved` or `Reconfigured`, so that
//! `is_outdated` makes a call at once. In its answer the generations of the limiters are others, and `observe_generations` takes the void slots
//! out of the cost queues. The next call asks for their new places (`take_rescheduled`), and who gets none that is near enough is refused. Where a
//! request needs two limiters of which only one has moved, its slot stands in the other one's books at the old place: `release_unmoved` gives it
//! back there first, and a heartbeat later, when the other replicas have done the same, the new places are asked for.
//!
//! [`events`](super::events) names what goes in and out. `asking` builds the next call, `answers` takes in an answer, `links` does what
//! follows from the state of the store, `serving` hands slots out, `refusing` refuses, `bursts` knows how many permits can be sent at once,
//! `prefetching` and `ending` do as their names say.

mod answers;
mod asking;
mod bursts;
mod ending;
mod leaving;
mod links;
mod prefetching;
mod refunds;
mod refusing;
mod serving;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::common::{IDLE, Pause, Stay, is_usable, outage_of};
use super::events::{Action, Context, Event, ReturnReason};
use super::limits::Limits;
use crate::clock::{Micros, Moment};
use crate::limiter::model::{Costs, Freed, Generations, Holding, Permits, UNKNOWN_GENERATION};
use crate::limiter::queue::cost_queue::{CostQueue, DEADLINE_SLACK, REFUSAL_MARGIN};
use crate::limiter::queue::prefetch::Pace;
use crate::limiter::queue::request::{Arrival, Unusable};
use crate::limiter::queue::slot::{Slot, Source};
use crate::limiter::recovery::link::Link;
use bursts::Bursts;
use refunds::Refunds;

/// How long after its deadline a request without a slot is refused: behind the last slot that it may still get.
const REFUSAL_SLACK: Micros = Micros(DEADLINE_SLACK.0 + REFUSAL_MARGIN.0);

/// The core of the worker of a queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::limiter) struct BookedCore {
    limits: Limits,
    /// The waiting requests and their slots, by cost.
    cost_queues: BTreeMap<Permits, CostQueue>,
    arrivals: Arrivals,
    owed: Owed,
    trade: Trade,
    calls: Calls,
    /// The state of the store, as last told.
    link: Link,
    pause: Pause,
    prefetch: Prefetching,
    stay: Stay,
}

/// The requests for the next call.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Arrivals {
    list: VecDeque<Arrival>,
    /// A moment before which no wait ends: neither that of one in the list, nor that of one in the call under way.
    first_end: Option<Moment>,
}

/// Work for the next calls.
///
/// After every turn each cost queue has `slots + wanted >= waiters`. A slot is counted in `wanted` from the step that takes the one before it
/// out of the cost queue to the step that holds it, or refuses a request for want of it. Meanwhile it is in one of these places:
///
/// | from | to | by |
/// |---|---|---|
/// | the cost queue | `replace` | [`BookedCore::want`], mostly in [`BookedCore::replace_slot`] |
/// | the cost queue, void | `reschedule` | `observe_generations` |
/// | `reschedule` | `replace` | `lose_rescheduled` |
/// | `replace`, `reschedule` | [`Calls::under_way`] | `make_call` |
/// | `replace` | [`Calls::local`] | `serve_without_store`, by `local` |
/// | `replace` | the cost queue, as a slot without a limit | `serve_without_store`, by `allow` |
/// | `replace` | nowhere: a request is refused | `serve_without_store`, by `reject` |
/// | `replace` | nowhere: its request is refused already | `close` |
/// | a call | the cost queue | [`BookedCore::hold_wanted`] |
/// | a call | nowhere: a request is refused | `refuse_without_slot` |
/// | a call | `replace` again | `put_back_call`, or [`BookedCore::owe`] for what an answer leaves |
/// | a call | `reschedule` again | `take_rescheduled`, for what an answer leaves |
///
/// When requests leave, `give_back_surplus` takes out of `replace` what nobody needs any more, and gives back what is held beyond that.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Owed {
    /// The epoch in which all slots of the store were booked.
    epoch: u64,
    /// The generation of each limiter's limits, as last answered.
    generations: Generations,
    /// The slots to give back, with the generations under which they were booked.
    give_back: VecDeque<(Holding, Generations)>,
    refunds: Refunds,
    reschedule: Reschedule,
    /// The number of slots of each cost to ask for in place of others.
    replace: BTreeMap<Permits, usize>,
    /// The cost queues in which a slot came too late. Its replacement fits only behind all other slots, so that a permit would
    /// be lost with each late slot. So the whole cost queue is booked anew, at the pace at which this replica really sends: in the store,
    /// or in this replica's share.
    rebook: BTreeSet<Permits>,
}

/// The void slots, which the next call reschedules.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Reschedule {
    /// The slots, ascending, and their costs.
    slots: VecDeque<(Slot, Permits)>,
    /// The generations under which they were booked.
    generations: Generations,
    /// When they may be rescheduled: where only some limiters have moved, other replicas need time to hear of it.
    from: Moment,
}

/// Permits that were freed before the queue's last slot.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Trade {
    /// As last announced or answered.
    freed: Option<Freed>,
    /// Those for which no slot could be traded.
    fruitless: Option<Freed>,
}

/// The calls to the store, and to this replica's own memory.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Calls {
    under_way: Option<Sent>,
    /// The call to this replica's own memory. Its answer comes at once.
    local: Option<LocalCall>,
    /// When the latest answered call was sent.
    contact: Option<Moment>,
    /// When the latest heartbeat was sent that spares the queue a call; `None` if none does.
    unmoved_at: Option<Moment>,
    /// The moment before which no call is made: one has failed, or an outage has begun, in which what waits is served by the policies
    /// first.
    not_before: Moment,
    /// Until when this replica's own memory is not asked: nobody knows how much it has before the store is back.
    shut_until: Moment,
    /// True until the next call: the store does not know of changed limits yet, or the queue of moved bookings.
    is_outdated: bool,
    /// How many slots have come since the latest call.
    passed: usize,
    /// How many permits can be sent at once.
    bursts: Bursts,
}

/// A call to this replica's own memory, with what it was made for.
#[derive(Clone, PartialEq, Eq, Debug)]
struct LocalCall {
    /// The number of slots of each cost that are asked for in place of others.
    replace: Vec<(Permits, usize)>,
    /// The new requests, behind them.
    arrivals: Vec<Arrival>,
}

/// A call under way, with the requests and slots that it was made for.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Sent {
    /// When it was built. It may be sent later.
    built: Moment,
    /// The slots to reschedule and their costs, in the call's order.
    reschedule: Vec<(Slot, Permits)>,
    /// The number of slots of each cost that are asked for in place of others. They come first in the call's runs.
    replace: Vec<(Permits, usize)>,
    /// The new requests, in the order of the call's runs.
    arrivals: Vec<Arrival>,
    /// The earliest slot that is given back to be traded for an earlier one.
    traded: Option<Micros>,
    /// The cost of each permit to prefetch. They come last in the call's runs.
    prefetch: Option<Permits>,
    /// The slots that are given back, and the generations under which they were booked.
    give_back: Vec<Holding>,
    generations: Generations,
    /// The parts of used permits that are given back with them.
    refunds: Vec<(Slot, Permits)>,
}

/// The permits booked before anybody asks.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Prefetching {
    pace: Pace,
    /// How many lie ready, as last seen.
    left: u64,
    /// When the oldest become too old.
    until: Option<Moment>,
    /// How many the limits allow, as last answered.
    budget: u64,
    /// True from the order to take them out until they are told.
    is_withdrawn: bool,
}

impl BookedCore {
    /// Creates the core of a worker that stays for `linger` when it has nothing to do.
    pub(in crate::limiter) fn new(limits: Limits, linger: Micros, now: Moment) -> BookedCore {
        let generations: Generations = limits.refs.iter().map(|_| UNKNOWN_GENERATION).collect();
        BookedCore {
            limits,
            cost_queues: BTreeMap::new(),
            arrivals: Arrivals::default(),
            owed: Owed {
                epoch: 0,
                generations: generations.clone(),
                give_back: VecDeque::new(),
                refunds: Refunds::default(),
                reschedule: Reschedule { slots: VecDeque::new(), generations, from: now },
                replace: BTreeMap::new(),
                rebook: BTreeSet::new(),
            },
            trade: Trade::default(),
            calls: Calls {
                under_way: None,
                local: None,
                contact: None,
                unmoved_at: None,
                not_before: now,
                shut_until: now,
                is_outdated: false,
                passed: 0,
                bursts: Bursts::default(),
            },
            link: Link::Up { epoch: 0 },
            pause: Pause::default(),
            prefetch: Prefetching {
                pace: Pace::new(now),
                left: 0,
                until: None,
                budget: 0,
                is_withdrawn: false,
            },
            stay: Stay::new(linger),
        }
    }

    /// Takes in events that came together, and restores the invariants. The only entrance.
    ///
    /// The order of the steps:
    /// 1. all events are taken in, each by itself, and a pause that is over is dropped;
    /// 2. in an outage the policies serve what is asked for, and then slots that have come go out: a slot of the share, or one without a
    ///    limit, in the turn in which it was asked for. The request of one that has come too late is served once more;
    /// 3. requests are refused: those whose wait is over without a slot that has come, and those for whom there is no room;
    /// 4. slots that nobody needs any more are given back, and the others' requests learn that they wait. Where any do, prefetched permits
    ///    are taken out, so that no newcomer overtakes them;
    /// 5. the next call takes along what all of these leave, and a worker without work ends.
    pub(in crate::limiter) fn on(
        &mut self,
        events: impl IntoIterator<Item = Event>,
        context: &Context,
        out: &mut Vec<Action>,
    ) {
        let mut came_back = 0;
        for event in events {
            came_back += usize::from(matches!(event, Event::Returned(_, _, ReturnReason::Exchanged(..))));
            self.take(event, context, out);
        }
        self.pause.now.take_if(|paused| paused.until <= context.now);
        self.serve_without_store(context, out);
        self.hand_out(context, out);
        // The request of a slot of the share that has come too late gets another one at once.
        self.serve_without_store(context, out);
        self.refuse_ended(context.now, out);
        self.refuse_overfull(out);
        self.refuse_displaced(came_back, context.now, out);
        self.give_back_surplus(out);
        self.announce_waiting(context.now, out);
        self.withdraw_if_short(context.now, out);
        self.ask(context, out);
        self.cost_queues.retain(|_, cost_queue| !cost_queue.is_empty());
        self.end_if_idle(context.now, out);
    }

    /// Takes in one event; decides nothing about others.
    fn take(&mut self, event: Event, context: &Context, out: &mut Vec<Action>) {
        match event {
            Event::Arrived(arrival) => self.arrive(arrival, context.now, out),
            Event::Left(left) => self.remove(&left, out),
            Event::Returned(slot, costs, reason) => self.came_back(slot, &costs, reason, context, out),
            Event::Answered { answer, refusal_budget, sent } => {
                self.answered(&answer, (refusal_budget, sent), context, out);
            }
            Event::PutBack { is_unsent } => self.put_back_call(is_unsent),
            Event::Failed { is_unsent } => self.failed(is_unsent),
            // Of the core before this one, whose slots may have costs of their own: they count as used.
            Event::UnneededOfLine(_) => {}
            Event::Unneeded(holdings, generations) => {
                let holdings = holdings.into_iter().map(|holding| (holding, generations.clone()));
                self.owed.give_back.extend(holdings);
            }
            Event::AnsweredLocally(answer) => self.answered_locally(&answer, context, out),
            Event::Linked(link) => self.relink(link, context, out),
            Event::Reconfigured(limits) => self.reconfigure(*limits, out),
            Event::Moved => self.calls.is_outdated = true,
            Event::Unmoved(at) => {
                self.calls.unmoved_at = at;
                self.follow_clock(context);
            }
            Event::Paused(paused) => self.follow_pause(paused, context.now, out),
            Event::Reporting(is_reported) => {
                self.pause.is_reported = is_reported;
                if is_reported {
                    self.withdraw(out);
                }
            }
            Event::Freed(freed) => self.trade.freed = Some(freed),
            Event::Prefetched(seen) => self.observe_prefetched(seen, context.now, out),
            Event::Kept(is_kept) => self.stay.is_kept = is_kept,
            Event::Close => self.close(out),
        }
    }

    /// Returns the next moment at which something happens by itself.
    pub(in crate::limiter) fn wakes_at(&self, context: &Context) -> Moment {
        let now = context.now;
        let ends = self.cost_queues.values().filter_map(CostQueue::first_end).min();
        let arrivals = self.arrivals.first_end.filter(|_| self.is_asked());
        let prefetched =
            self.prefetch.until.map(|until| until.min(self.prefetch.pace.next(self.limits.guard)));
        let next = [
            self.next_slot(context),
            self.next_call(now),
            self.link.changes_at().filter(|at| *at > now),
            // One whose wait is over gets a slot that has come when another permit was sent.
            ends.filter(|at| *at > now),
            arrivals.filter(|at| *at > now),
            prefetched,
            self.stay.ends_at(),
        ];
        next.into_iter().flatten().min().unwrap_or(now + IDLE).min(now + IDLE)
    }

    /// Returns how many requests wait.
    pub(in crate::limiter) fn waiting(&self) -> usize {
        self.cost_queues.values().map(CostQueue::waiting).sum()
    }

    /// Returns when the first waiting request arrived.
    pub(in crate::limiter) fn first_arrived(&self) -> Option<Moment> {
        self.cost_queues.values().filter_map(CostQueue::first_arrived).min()
    }

    /// Returns when the first of those arrived for whom the call under way books; `None` if it books for nobody.
    pub(in crate::limiter) fn first_asked(&self) -> Option<Moment> {
        let sent = self.calls.under_way.as_ref()?;
        let is_in_place = !sent.replace.is_empty() || !sent.reschedule.is_empty();
        let first = self.first_arrived().filter(|_| is_in_place);
        let arrivals = sent.arrivals.iter().map(|arrival| arrival.arrived);
        first.into_iter().chain(arrivals).min()
    }

    /// Returns how many requests wait for the next call.
    pub(in crate::limiter) fn pending(&self) -> usize {
        self.arrivals.list.len()
    }

    /// Returns until when slots of the store may be used.
    pub(in crate::limiter) fn lease(&self) -> Moment {
        let heard = self.calls.contact.max(self.calls.unmoved_at);
        heard.map_or(Moment(0), |heard| heard + self.limits.terms.lease)
    }

    /// Returns the number of the outage whose local slots may be used; zero for none.
    pub(in crate::limiter) fn outage(&self) -> u64 {
        outage_of(self.link)
    }

    /// Returns whether a slot may be used as far as the link and the lease go: whether it is due, or in a pause, is another question
    /// ([`BookedCore::is_due`]).
    fn is_usable(&self, slot: &Slot, now: Moment) -> bool {
        is_usable(slot, self.link, self.lease(), now)
    }

    /// Returns when a request is refused if it has no slot then: behind its deadline, or when the store has had its time to answer.
    fn ends(&self, asked: Moment, deadline: Moment) -> Moment {
        (deadline + REFUSAL_SLACK).max(asked + self.limits.terms.answer_wait())
    }

    /// Returns whether a request waits for the limits, and not only for the processor.
    fn is_short(&self, now: Moment) -> bool {
        self.cost_queues.values().any(|cost_queue| cost_queue.is_short(now))
    }

    /// Returns whether arrivals wait for a call to the store, or for its answer.
    fn is_asked(&self) -> bool {
        let is_sent = self.calls.under_way.as_ref().is_some_and(|sent| !sent.arrivals.is_empty());
        is_sent || !self.arrivals.list.is_empty()
    }

    /// Gives back a slot that was taken out of its cost queue, and asks for another one.
    fn replace_slot(&mut self, slot: Slot, cost: Permits, out: &mut Vec<Action>) {
        self.give_back(slot, cost, out);
        self.want(cost);
    }

    /// Asks for one more slot with the next call, to the store or to this replica's own memory.
    fn want(&mut self, cost: Permits) {
        self.cost_queues.entry(cost).or_default().wanted += 1;
        self.owe(cost, 1);
    }

    /// Leaves slots that are counted as wanted to the next call. After the worker has closed nobody wants them.
    fn owe(&mut self, cost: Permits, count: usize) {
        if count > 0 && !self.stay.is_closing() {
            *self.owed.replace.entry(cost).or_default() += count;
        }
    }

    /// Puts a slot that was asked for into its cost queue.
    fn hold_wanted(&mut self, cost: Permits, slot: Slot) {
        let cost_queue = self.cost_queues.entry(cost).or_default();
        cost_queue.wanted = cost_queue.wanted.saturating_sub(1);
        cost_queue.hold(slot);
    }

    /// Puts a request at the end of those for the next call.
    fn arrive(&mut self, mut arrival: Arrival, now: Moment, out: &mut Vec<Action>) {
        arrival.costs = self.scalar(&arrival.costs).into();
        if self.stay.is_closing() {
            return out.push(Action::Refuse(arrival.asker, arrival.costs.clone(), self.limits.closed()));
        }
        self.prefetch.pace.count(1, Some(arrival.cost()), now, self.limits.guard);
        self.expect_end(&arrival);
        self.arrivals.list.push_back(arrival);
    }

    /// Takes a permit back. A slot of which each limiter has another number of permits cannot be given back here: it counts as used.
    fn came_back(
        &mut self,
        slot: Slot,
        costs: &Costs,
        reason: ReturnReason,
        context: &Context,
        out: &mut Vec<Action>,
    ) {
        match (costs.same(), reason) {
            (Some(cost), reason) => self.take_back(slot, cost, reason, context, out),
            (None, ReturnReason::Exchanged(request, holder, _)) => {
                let reason = ReturnReason::Exchanged(request, holder, Unusable::SetAside);
                self.take_back(slot, self.scalar(costs), reason, context, out);
            }
            (None, ReturnReason::Unused(_) | ReturnReason::Refund(_)) => {}
        }
    }

    /// Returns what a request takes of every limiter. Requests with costs of their own come to this core only for a moment, by a route of
    /// before a reload.
    fn scalar(&self, costs: &Costs) -> Permits {
        costs.same().unwrap_or_else(|| costs.largest().min(self.limits.cost_max()))
    }

    fn expect_end(&mut self, arrival: &Arrival) {
        let ends = self.ends(arrival.arrived, arrival.deadline);
        self.arrivals.first_end = Some(self.arrivals.first_end.map_or(ends, |first| first.min(ends)));
    }

    /// Takes on the limits as configured now, and refuses the requests that cost more than they can ever hold.
    fn reconfigure(&mut self, limits: Limits, out: &mut Vec<Action>) {
        let before = self.limits.refs.iter().map(|one| &one.rules);
        if before.ne(limits.refs.iter().map(|one| &one.rules)) {
            // This replica's own memory moves bookings with the change, and does not tell.
            self.replace_slots(|slot| matches!(slot.source, Source::Local(_)), out);
        }
        self.limits = limits;
        self.calls.is_outdated = true;
        self.refuse_too_costly(out);
        self.withdraw(out);
    }
}
