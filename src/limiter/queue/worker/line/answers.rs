//! Takes in an answer of the store, or of this replica's own memory.

use crate::clock::{Micros, Moment};
use crate::limiter::model::{Answer, Costs, Dealt, Generations, Last, LineAnswer, Outcome, Unused};
use crate::limiter::queue::pause::in_pause;
use crate::limiter::queue::request::Asker;
use crate::limiter::queue::slot::{Slot, Source};
use crate::limiter::queue::worker::common::void_from;
use crate::limiter::queue::worker::events::{Action, Context, LocalAnswer};

use super::{FlowQueueKey, LineCore, Sent, Told, Unneeded};

/// How soon the next call may follow an answer that asks for one at once.
const AGAIN_MIN: Micros = Micros::from_millis(1);

impl LineCore {
    /// Takes in the store's answer to the call under way.
    pub(super) fn answered(
        &mut self,
        answer: &Answer,
        sent_at: Moment,
        context: &Context,
        out: &mut Vec<Action>,
    ) {
        let Some(sent) = self.calls.under_way.take() else { return };
        // It may have waited for long before it was sent.
        self.calls.contact = Some(sent_at);
        if sent.line != self.calls.line {
            // As all that was dealt in the line before, this counts as used.
            self.tell_again(&sent, context.now);
            return;
        }
        self.observe_generations(answer, context.now, out);
        self.owed.heard = answer.epoch.id;
        self.flow_queues.values_mut().for_each(|flow_queue| flow_queue.queue.refresh(&context.clock));
        let Some(line) = &answer.line else { return };
        self.calls.told = self.take_line(
            (line, answer.now, Micros(u64::MAX)),
            &sent,
            Source::Store(self.owed.epoch),
            context,
            out,
        );
    }

    /// Takes in the answer of this replica's own memory.
    pub(super) fn answered_locally(&mut self, local: &LocalAnswer, context: &Context, out: &mut Vec<Action>) {
        let Some(sent) = self.calls.asked_locally.take() else { return };
        let source = Source::Local(self.outage());
        // No replica can know whether the others leave enough for a cost above its share.
        let refusal = self.limits.store_unavailable();
        let is_costly =
            |costs: &Costs| local.costs_max.iter().enumerate().any(|(place, max)| costs.at(place) > *max);
        for want in sent.wants.iter().filter(|want| is_costly(&want.key.costs)) {
            let Some(flow_queue) = self.flow_queues.get_mut(&want.key) else { continue };
            for waiter in flow_queue.queue.take_waiters() {
                let costs = want.key.costs.clone();
                out.push(Action::Refuse(Asker::Request(waiter.request), costs, refusal.clone()));
            }
        }
        let Some(line) = &local.answer.line else { return };
        self.calls.told_locally =
            self.take_line((line, local.answer.now, local.known_within), &sent, source, context, out);
    }

    /// Takes the slots out that a change of generations has voided, to give them back: their requests have none again.
    fn observe_generations(&mut self, answer: &Answer, now: Moment, out: &mut Vec<Action>) {
        let numbers: Generations = answer.generations.iter().map(|generation| generation.number).collect();
        if numbers == self.owed.generations {
            return;
        }
        let known = std::mem::replace(&mut self.owed.generations, numbers);
        let from = void_from(&answer.generations, &known);
        let void = self.lose(|slot| matches!(slot.source, Source::Store(_)) && slot.at >= from, now);
        if !void.is_empty() {
            out.push(Action::LogMoved(void.len()));
        }
        for (key, slot) in void {
            self.give_back_later(self.unused(&key, slot.at), known.clone());
        }
    }

    /// Leaves the permits of a slot to the next call to give back.
    pub(super) fn give_back_later(&mut self, unused: Unused, generations: Generations) {
        let is_same = |last: &&mut Unneeded| {
            last.generations == generations && Unused { count: unused.count, ..last.unused.clone() } == unused
        };
        match self.owed.unused.back_mut().filter(is_same) {
            Some(last) => last.unused.count += unused.count,
            None => self.owed.unused.push_back(Unneeded { unused, generations }),
        }
    }

    /// Takes in what a line has dealt, and whom it does not take.
    fn take_line(
        &mut self,
        (line, answered, known_within): (&LineAnswer, Micros, Micros),
        sent: &Sent,
        source: Source,
        context: &Context,
        out: &mut Vec<Action>,
    ) -> Told {
        let clock = context.clock_of(source);
        for dealt in &line.dealt {
            let slot = Slot { at: dealt.slot, due: clock.due(dealt.slot), source };
            (0..dealt.count).for_each(|_| self.hold(dealt, slot, out));
        }
        self.refuse_not_taken(line, sent, known_within, out);
        for (want, last) in sent.wants.iter().zip(&line.lasts) {
            let Some(flow_queue) = self.flow_queues.get_mut(&want.key) else { continue };
            if let Some(Last { before, wait }) = *last {
                (flow_queue.before, flow_queue.wait) = (before, wait);
            }
            let last = want.groups.iter().copied().max().unwrap_or_default();
            flow_queue.answered_until = flow_queue.answered_until.max(last);
            flow_queue.queue.end_those_again();
        }
        let again = (line.again > Micros::ZERO).then(|| clock.due(line.again).max(context.now + AGAIN_MIN));
        // It has dealt enough, or has left some newcomers to the next call.
        if line.again > Micros::ZERO && line.again <= answered {
            self.tell_again(sent, context.now);
        }
        if line.has_forgotten {
            self.tell_others(sent, context.now);
        }
        Told { known: line.deal, again }
    }

    /// Refuses the requests that a line does not take. A longer delay than one that is surely known is not told.
    fn refuse_not_taken(
        &mut self,
        line: &LineAnswer,
        sent: &Sent,
        known_within: Micros,
        out: &mut Vec<Action>,
    ) {
        for not_taken in &line.not_taken {
            let Some(want) = sent.wants.get(not_taken.want) else { continue };
            let until = want.groups.get(not_taken.group).copied().unwrap_or_default();
            let (Outcome::TooFar(away) | Outcome::Full(away)) = not_taken.outcome else { continue };
            let count = usize::try_from(not_taken.count).unwrap_or(usize::MAX);
            let refusal = match not_taken.outcome {
                Outcome::TooFar(_) if away.delay > known_within => self.limits.store_unavailable(),
                outcome => self.limits.refusal(outcome, away.advised),
            };
            let Some(flow_queue) = self.flow_queues.get_mut(&want.key) else { continue };
            for waiter in flow_queue.queue.take_last_until(until, count) {
                let refusal = in_pause(refusal.clone(), self.pause.now.as_ref(), waiter.holder.deadline);
                let costs = want.key.costs.clone();
                out.push(Action::Refuse(Asker::Request(waiter.request), costs, refusal));
            }
        }
    }

    /// Lets the flow queues of a call be told of again: the line has left some newcomers to the next one.
    fn tell_again(&mut self, sent: &Sent, now: Moment) {
        for want in &sent.wants {
            if let Some(flow_queue) = self.flow_queues.get_mut(&want.key) {
                flow_queue.told_until = want.told_until;
                // Not before that, even where the call has not told of all: those who are left come first.
                flow_queue.tell_at = Some(now + AGAIN_MIN);
            }
        }
    }

    /// Lets the flow queues be told of that a call has not told of.
    fn tell_others(&mut self, sent: &Sent, now: Moment) {
        for (key, flow_queue) in &mut self.flow_queues {
            let is_told = sent.wants.iter().any(|want| want.key == *key);
            if !is_told && flow_queue.queue.without_slot().len() > 0 {
                flow_queue.tell_by(now);
            }
        }
    }

    /// Puts a dealt slot into its flow queue. One for a flow queue where nobody waits is given back.
    fn hold(&mut self, dealt: &Dealt, slot: Slot, out: &mut Vec<Action>) {
        let limiters = self.limits.policies.len();
        let is_one = |key: &&FlowQueueKey| {
            key.flow.id == dealt.flow
                && key.costs.of(limiters).zip(&dealt.costs).all(|(cost, dealt)| cost == *dealt)
        };
        let key = self.flow_queues.keys().find(is_one).cloned();
        if let Some(flow_queue) = key.and_then(|key| self.flow_queues.get_mut(&key)) {
            flow_queue.queue.hold(slot);
            return;
        }
        let Dealt { flow, class, costs, .. } = dealt.clone();
        self.give_back_unused(Unused { flow, class, slot: slot.at, count: 1, costs }, slot.source, out);
    }
}
