//! Carries out one call for a line: takes tickets in, deals slots to those who are next, and refuses those who would wait for too long.
//!
//! Pure. The lowest class goes first; within a class, start-time fair queueing in turns. No slot lies further ahead than the call says.
//! A request that is next and finds no room by then holds up everything behind it, so that a large cost is not passed by small ones for ever;
//! but where a ceiling alone is in its way, those pass that do not need it. The twin is `lua/scripts/deal.lua`.

use crate::clock::Micros;
use crate::limiter::arithmetic::line::{Flow, Key, Line, permits_of};
use crate::limiter::arithmetic::moving::place_void;
use crate::limiter::arithmetic::prospects::{Newcomers, refuse_newcomers};
use crate::limiter::arithmetic::room::{
    DealTerms, Next, Room, States, earliest_for_costs, searches_from, seen,
};
use crate::limiter::arithmetic::search::Search;
use crate::limiter::model::{Answer, CLASSES_MAX, Call, Dealt, LineAnswer, LineCall, Violated};

/// A turn takes that part of what the limits grant within the time that slots are dealt ahead, one permit at least: a call takes some
/// tens of turns at any rate, and shares are off by no more than a turn.
const TURNS: u64 = 32;

/// The most instants at which one call deals; one less for each three flows, which cost a call something, too. The rest comes with the next one.
const DEALS_MAX: usize = 32;
const DEALS_LEAST: usize = 12;

/// How often one call looks for room from now on again, because another replica hears of its slots sooner.
const SEARCHES_MAX: usize = 12;

/// A call that moves and gives back more permits and slots than these, in all limiters, leaves it to the next one, which is at once, to tell how
/// long requests wait.
const TAKEN_IN_MAX: u64 = 20;

/// A replica calls again within this part of the time that slots are dealt ahead (2/5), if any can be dealt then.
const AGAIN: u64 = 5;

/// Carries out `call` at `now` over a queue's limiters and its line.
pub fn deal(
    now: Micros,
    lease: Micros,
    states: States<'_, '_>,
    line: &mut Line,
    call: &Call,
    asked: &LineCall,
) -> Answer {
    for (index, (state, rules)) in states.iter_mut().enumerate() {
        state.open(now, rules, lease, call.replica);
        state.keep_places(call.generations.get(index).copied().unwrap_or_default(), now + lease);
    }
    let void: u64 = states.iter().map(|(state, _)| state.void_permits()).sum();
    place_void(now, states);
    let tells_waits = void + (asked.unused.len() * states.len()) as u64 <= TAKEN_IN_MAX;
    let limiters = states.len().saturating_sub(asked.ceilings);
    let own_lead = call.lead.min(Micros(asked.ahead.0 / 2));
    let terms =
        DealTerms { now, lease, replica: call.replica, ahead: asked.ahead, own_lead, limiters, tells_waits };
    line.forget(now, lease);
    let first_moved = Micros(line.deal) + lease;
    let has_forgotten = line.hear(now, call.replica, asked);
    drop_void(states, line, call.replica, first_moved);
    for spread in &mut line.spreads {
        spread.review_spread(now, || states.iter().flat_map(|(state, _)| state.rules()));
    }
    for unused in &asked.unused {
        let generation = |index| call.generations.get(index).copied().unwrap_or_default();
        give_back(states, generation, unused.slot, unused.count, &unused.costs);
        line.take_back(unused);
    }
    let keys: Vec<Key> = asked
        .wants
        .iter()
        .map(|want| Key { replica: call.replica, origin: want.flow, costs: want.costs.clone() })
        .collect();
    let wants = keys.iter().zip(&asked.wants);
    let counts: Vec<_> = wants.map(|(key, want)| line.reconcile(now, asked.ahead, key, want)).collect();
    let next = Dealing::new(terms, states, line).run(states);
    let newcomers = Newcomers { asked, keys: &keys, counts, refusal_budget: call.refusal_budget };
    let (mut line_answer, is_cut) = refuse_newcomers(terms, states, line, newcomers, next);
    line_answer.has_forgotten = has_forgotten;
    line_answer.again = call_again(terms, line, next.map(|next| next.at), is_cut);
    line.generations = states.iter().map(|(state, _)| state.generation().number).collect();
    answer(terms, states, line, call, line_answer)
}

/// Returns the answer, with the slots that lie ready for the caller.
fn answer(
    terms: DealTerms,
    states: States<'_, '_>,
    line: &Line,
    call: &Call,
    mut line_answer: LineAnswer,
) -> Answer {
    let DealTerms { now, .. } = terms;
    line_answer.deal = line.deal;
    let own = line.dealt_slots.iter().filter(|dealt| dealt.key.replica == call.replica);
    line_answer.dealt = own
        .map(|dealt| {
            let Key { origin, costs, .. } = dealt.key.clone();
            Dealt { flow: origin, class: dealt.class, slot: dealt.slot, count: dealt.count, costs }
        })
        .collect();
    Answer { line: Some(Box::new(line_answer)), ..seen(now, states) }
}

/// Returns when the caller shall call again, and notes it; zero if it has no tickets. `next` is when the line finds room next, if it was
/// looked for; before that nothing can be dealt.
fn call_again(terms: DealTerms, line: &mut Line, next: Option<Micros>, is_cut: bool) -> Micros {
    let DealTerms { now, ahead, replica, .. } = terms;
    let waits = line.flows.iter().flat_map(|flow| &flow.runs).any(|run| run.key.replica == replica);
    if !waits && !is_cut {
        return Micros::ZERO;
    }
    let soon = now + Micros(ahead.0 * 2 / AGAIN);
    let again = match next {
        _ if is_cut => now,
        Some(next) if next <= now => now,
        Some(next) => soon.max(next - ahead),
        None => soon,
    };
    line.promise(replica, again);
    again
}

/// Takes the permits of a slot back from every limiter.
fn give_back(
    states: States<'_, '_>,
    generation: impl Fn(usize) -> u64,
    slot: Micros,
    count: u64,
    costs: &[u64],
) {
    for (index, ((state, _), cost)) in states.iter_mut().zip(costs).enumerate() {
        if *cost > 0 {
            let mut cursor = state.cursor(slot, generation(index));
            state.give_back(&mut cursor, cost * count);
        }
    }
}

/// Takes back the caller's slots that lie ready and that a change of the limits has voided: their requests have no slot then.
///
/// Only their replicas know whether they have heard of them: one that has not said so when it calls has not. The others give theirs back
/// themselves. A change that was missed moved nothing before `first_moved`.
fn drop_void(states: States<'_, '_>, line: &mut Line, replica: u64, first_moved: Micros) {
    let known = std::mem::take(&mut line.generations);
    let changed =
        states.iter().zip(&known).filter(|((state, _), known)| state.generation().number != **known);
    let void_from = changed.map(|((state, _), known)| {
        let generation = state.generation();
        if generation.before == *known { generation.void_from } else { first_moved }
    });
    if let Some(void_from) = void_from.min() {
        let void =
            line.dealt_slots.iter_mut().filter(|dealt| dealt.void.is_empty() && dealt.slot >= void_from);
        void.for_each(|dealt| dealt.void.clone_from(&known));
    }
    let own = line.dealt_slots.extract_if(.., |dealt| dealt.key.replica == replica && !dealt.void.is_empty());
    for dealt in own.collect::<Vec<_>>() {
        give_back(states, |index| dealt.void[index], dealt.slot, dealt.count, &dealt.key.costs);
    }
}

/// Why a turn ends.
#[derive(Clone, Copy)]
enum TurnEnd {
    /// All of it was dealt.
    Full,
    /// There is no room before this instant, because of a ceiling.
    BeyondCeiling(Next),
    /// There is no room before this instant.
    Beyond(Next),
    /// The call has dealt enough.
    Enough,
}

/// Deals slots in the order of the line.
struct Dealing<'a> {
    terms: DealTerms,
    /// The searches have been moved on to this instant for want of nothing but an answer of a replica.
    stood: Micros,
    line: &'a mut Line,
    /// Each replica that has tickets, with the earliest instant at which it can use a slot, if that is not too far ahead.
    reach: Vec<(u64, Option<Micros>)>,
    /// The run of each flow that is next, if the flow may go.
    heads: Vec<Option<usize>>,
    /// The limiters that have no room any more as far as slots are dealt.
    is_full: Vec<bool>,
    virtuals: [u64; CLASSES_MAX],
    /// The most permits of a turn.
    quantum: u64,
    deals_left: usize,
    searches_left: usize,
}

/// The flow whose turn it is, the start of the turn, and that of the flow of its class which comes next.
struct Turn {
    flow: usize,
    start: u64,
    next: Option<u64>,
}

impl<'a> Dealing<'a> {
    fn new(terms: DealTerms, states: States<'_, '_>, line: &'a mut Line) -> Dealing<'a> {
        let rules = states[..terms.limiters].iter().flat_map(|(state, _)| state.rules());
        let granted = rules.map(|rule| rule.quota().permits_within(terms.ahead)).min().unwrap_or_default();
        let is_full = vec![false; states.len()];
        let deals_left = DEALS_MAX.saturating_sub(line.flows.len() / 3).max(DEALS_LEAST);
        let mut dealing = Dealing {
            terms,
            stood: terms.now,
            line,
            reach: Vec::new(),
            heads: Vec::new(),
            is_full,
            virtuals: [0; CLASSES_MAX],
            quantum: (granted / TURNS).max(1),
            deals_left,
            searches_left: SEARCHES_MAX,
        };
        dealing.heads = (0..dealing.line.flows.len()).map(|flow| dealing.head(flow)).collect();
        dealing
    }

    /// Returns the first run of a flow whose replica can use a slot; `None` if a ceiling is in its way.
    fn head(&mut self, flow: usize) -> Option<usize> {
        let runs = &self.line.flows[flow].runs;
        for (place, run) in runs.iter().enumerate() {
            let replica = run.key.replica;
            let known = self.reach.iter().find(|(known, _)| *known == replica);
            let reach = known.map(|(_, reach)| *reach).unwrap_or_else(|| {
                let reach = self.terms.reach(self.line, replica).filter(|at| *at <= self.terms.until());
                self.reach.push((replica, reach));
                reach
            });
            if reach.is_some() {
                let is_full = run.key.costs.iter().zip(&self.is_full).any(|(cost, full)| *cost > 0 && *full);
                return (!is_full).then_some(place);
            }
        }
        None
    }

    fn turn(&self) -> Option<Turn> {
        let mut turn: Option<(usize, Turn)> = None;
        for (place, flow) in self.line.flows.iter().enumerate() {
            if self.heads[place].is_none() {
                continue;
            }
            let start = flow.tag.max(self.virtuals[flow.class]);
            match &mut turn {
                Some((class, first)) if *class == flow.class && start >= first.start => {
                    first.next = Some(first.next.map_or(start, |next| next.min(start)));
                }
                Some((class, first)) if *class == flow.class => {
                    *first = Turn { flow: place, start, next: Some(first.start) };
                }
                Some((class, _)) if *class < flow.class => {}
                _ => turn = Some((flow.class, Turn { flow: place, start, next: None })),
            }
        }
        turn.map(|(_, turn)| turn)
    }

    /// Deals until nobody is left who finds room as far as slots are dealt. Returns the earliest instant at which there is room for who is
    /// next; `None` if nobody was turned away.
    fn run(mut self, states: States<'_, '_>) -> Option<Next> {
        let mut searches = searches_from(states, self.terms.now);
        let mut next: Option<Next> = None;
        while let Some(turn) = self.turn()
            && let Some(head) = self.heads[turn.flow]
        {
            let replica = self.line.flows[turn.flow].runs[head].key.replica;
            if self.stood > self.reach_of(replica) {
                (searches, self.stood) = (searches_from(states, self.terms.now), self.terms.now);
                self.searches_left -= 1;
                if self.searches_left == 0 {
                    self.deals_left = 0;
                }
            }
            let end = self.deal_turn(&mut searches, &turn, head);
            let found = match end {
                TurnEnd::Full => {
                    self.heads[turn.flow] = self.head(turn.flow);
                    continue;
                }
                TurnEnd::BeyondCeiling(found) | TurnEnd::Beyond(found) => found,
                TurnEnd::Enough => Next { at: self.terms.now, violated: None },
            };
            if next.is_none_or(|next| found.at < next.at) {
                next = Some(found);
            }
            let TurnEnd::BeyondCeiling(Next { violated: Some(ceiling), .. }) = end else { break };
            self.is_full[ceiling.limiter] = true;
            self.heads = (0..self.heads.len()).map(|flow| self.head(flow)).collect();
        }
        self.line.settle(&self.virtuals);
        next
    }

    /// Deals a turn.
    fn deal_turn(&mut self, searches: &mut [Search<'_>], turn: &Turn, head: usize) -> TurnEnd {
        let flow = &self.line.flows[turn.flow];
        let run = &flow.runs[head];
        let (key, class, from) = (run.key.clone(), flow.class, self.reach_of(run.key.replica));
        let most = run.count.min(self.most(turn, &key, flow));
        let (mut left, mut end) = (most, TurnEnd::Full);
        while left > 0 && matches!(end, TurnEnd::Full) {
            end = match self.place(searches, &key.costs, from) {
                _ if self.deals_left == 0 => TurnEnd::Enough,
                Err(end) => end,
                Ok(Room { at, count, .. }) => {
                    let count = count.min(left);
                    let needed = searches.iter_mut().zip(&key.costs).filter(|(_, cost)| **cost > 0);
                    needed.for_each(|(search, cost)| search.charge(count * cost));
                    self.line.deal_slot(&key, class, at, count);
                    (left, self.deals_left) = (left - count, self.deals_left - 1);
                    TurnEnd::Full
                }
            };
        }
        self.virtuals[class] = turn.start;
        if most > left {
            self.line.end_turn((turn.flow, head), turn.start, most - left);
        }
        end
    }

    fn reach_of(&self, replica: u64) -> Micros {
        let known = self.reach.iter().find(|(known, _)| *known == replica);
        known.and_then(|(_, reach)| *reach).unwrap_or(self.terms.now)
    }

    /// Returns for how many requests a turn is: until the next flow's turn comes, but a few at least. Of several runs of a flow none goes
    /// for longer, so that those who came at the same time go together.
    fn most(&self, turn: &Turn, key: &Key, flow: &Flow) -> u64 {
        let price = key.price();
        let few = (self.quantum / price).max(1);
        let most = match turn.next {
            Some(next) => few.max(permits_of(next - turn.start, flow.weight) / price + 1),
            None => u64::MAX,
        };
        if flow.runs.len() > 1 { most.min(few) } else { most }
    }

    /// Returns where a request finds room, no earlier than its replica can use it; or why it finds none.
    fn place(&mut self, searches: &mut [Search<'_>], costs: &[u64], from: Micros) -> Result<Room, TurnEnd> {
        let (limiters, until) = (self.terms.limiters, self.terms.until());
        loop {
            for (index, cost) in costs.iter().enumerate().skip(limiters).filter(|(_, cost)| **cost > 0) {
                let found = searches[index].earliest(*cost);
                if found.at > until {
                    let violated = Violated { limiter: index, limit: found.limited_by.unwrap_or_default() };
                    return Err(TurnEnd::BeyondCeiling(Next { at: found.at, violated: Some(violated) }));
                }
            }
            let room = earliest_for_costs(searches, costs);
            if room.at >= from {
                let next = Next { at: room.at, violated: Some(room.violated) };
                return if room.at > until { Err(TurnEnd::Beyond(next)) } else { Ok(room) };
            }
            searches.iter_mut().for_each(|search| search.advance(from));
            self.stood = from;
        }
    }
}
