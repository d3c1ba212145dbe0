//! The answers of the scripts as values, as the header of each script's file describes them.

use std::time::Duration;

use redis::Value;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::clock::Micros;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::call::{Answer, Call, Freed, Generation, Outcome, RetryDelay, Violated};
use crate::limiter::model::epoch::{Epoch, Reset};
use crate::limiter::model::grant_copy::GrantCopy;
use crate::limiter::model::heartbeat::{HeartbeatAnswer, Member, Reports};
use crate::limiter::model::line::{CLASSES_MAX, Dealt, Last, LineAnswer, LineCall, NotTaken};
use crate::limiter::model::pause::{ActionByHand, Cause, Lasting, PauseStretch, Reason};
use crate::limiter::model::upstream_report::ReportResult;
use crate::limiter::store::StateView;
use crate::limiter::{Replica, printable};
use crate::redis::keys;
use crate::usage::Stamp;

fn unpack<T: DeserializeOwned>(value: &Value) -> Option<T> {
    let Value::BulkString(packed) = value else { return None };
    rmp_serde::from_slice(packed).ok()
}

/// The most slots that a call deals: far more than wait at a replica.
const DEALT_MAX: u64 = 10_000_000;

#[derive(Deserialize)]
struct EpochRow(u64, u64, u64, u64, u64);

impl From<EpochRow> for Epoch {
    fn from(EpochRow(now, id, settles_until, reset_at, memory): EpochRow) -> Epoch {
        let settles_until = (settles_until > 0).then_some(Micros(settles_until));
        Epoch { now: Micros(now), id, settles_until, reset_at: Micros(reset_at), memory }
    }
}

#[derive(Deserialize)]
struct LimiterRow {
    number: u64,
    void_from: u64,
    before: u64,
    available: Vec<u64>,
    paused_until: u64,
    is_disputed: u64,
    lacking: u64,
}

#[derive(Deserialize)]
struct ReserveRow {
    epoch: EpochRow,
    limiters: Vec<LimiterRow>,
    last: u64,
    freed: (u64, u64),
    rescheduled: Vec<(u64, u64)>,
    outcomes: Vec<Vec<u64>>,
}

/// Returns the answer of `reserve.lua`, if it is one to this call.
pub(super) fn reserve(value: &Value, limiter_refs: &[LimiterRef], call: &Call) -> Option<Answer> {
    let row: ReserveRow = unpack(value)?;
    let mut answer = of_limiters(row.epoch, row.limiters, limiter_refs)?;
    answer.last = Micros(row.last);
    let (at, permits) = row.freed;
    answer.freed = (permits > 0).then_some(Freed { at: Micros(at), permits });
    if answer.epoch.settles_until.is_some() {
        return (row.rescheduled.is_empty() && row.outcomes.is_empty()).then_some(answer);
    }
    let slot = |(count, at)| (count, (at > 0).then_some(Micros(at)));
    answer.rescheduled = row.rescheduled.into_iter().map(slot).collect();
    answer.outcomes =
        row.outcomes.iter().map(|row| outcome(row, &answer.available)).collect::<Option<_>>()?;
    is_of(&answer, call).then_some(answer)
}

#[derive(Deserialize)]
struct DealRow {
    epoch: EpochRow,
    limiters: Vec<LimiterRow>,
    last: u64,
    deal: u64,
    again: u64,
    /// Flow, class, slot, count and costs of each.
    dealt: Vec<(u64, u64, u64, u64, Vec<u64>)>,
    not_taken: Vec<Vec<u64>>,
    /// Of each want: the permits before its last request and the microseconds until that, by turns; negative: not told.
    last_ones: Vec<i64>,
    has_forgotten: u8,
}

/// Returns the answer of `deal.lua`, if it is one to this call.
pub(super) fn deal(value: &Value, limiter_refs: &[LimiterRef], line: &LineCall) -> Option<Answer> {
    let row: DealRow = unpack(value)?;
    let dealt = row.dealt.iter().try_fold(0_u64, |sum, (_, _, _, count, _)| sum.checked_add(*count))?;
    if dealt > DEALT_MAX {
        return None;
    }
    let mut answer = of_limiters(row.epoch, row.limiters, limiter_refs)?;
    answer.last = Micros(row.last);
    let not_taken = row.not_taken.iter().map(|row| not_taken(row, line, &answer.available));
    let fits = |costs: &[u64]| costs.len() == limiter_refs.len();
    let line = LineAnswer {
        deal: row.deal,
        again: Micros(row.again),
        not_taken: not_taken.collect::<Option<_>>()?,
        dealt: row
            .dealt
            .into_iter()
            .map(|(flow, class, slot, count, costs)| {
                let class = usize::try_from(class).ok().filter(|class| *class < CLASSES_MAX)?;
                fits(&costs).then_some(Dealt { flow, class, slot: Micros(slot), count, costs })
            })
            .collect::<Option<_>>()?,
        lasts: row.last_ones.as_chunks().0.iter().map(|row| last(*row)).collect(),
        has_forgotten: row.has_forgotten > 0,
    };
    answer.line = Some(Box::new(line));
    Some(answer)
}

fn last([before, wait]: [i64; 2]) -> Option<Last> {
    Some(Last { before: u64::try_from(before).ok()?, wait: Micros(u64::try_from(wait).ok()?) })
}

fn not_taken(row: &[u64], line: &LineCall, available: &[Vec<u64>]) -> Option<NotTaken> {
    let [want, group, rest @ ..] = row else { return None };
    let (want, group) = (usize::try_from(*want).ok()?, usize::try_from(*group).ok()?);
    line.wants.get(want)?.waiting.get(group)?;
    let (count, outcome) = outcome(rest, available)?;
    Some(NotTaken { want, group, count, outcome })
}

/// Returns an answer that tells of the epoch and the limiters.
fn of_limiters(epoch: EpochRow, rows: Vec<LimiterRow>, limiter_refs: &[LimiterRef]) -> Option<Answer> {
    let epoch = Epoch::from(epoch);
    let mut answer = Answer { now: epoch.now, epoch, ..Answer::default() };
    if rows.len() != limiter_refs.len() {
        return None;
    }
    for (limiter, limiter_ref) in rows.into_iter().zip(limiter_refs) {
        if limiter.available.len() != limiter_ref.rules.len() {
            return None;
        }
        let LimiterRow { number, void_from, before, available, paused_until, is_disputed, lacking } = limiter;
        answer.generations.push(Generation { number, void_from: Micros(void_from), before });
        answer.available.push(available);
        answer.lacking.push(lacking);
        answer.paused.push(Micros(paused_until));
        answer.is_disputed |= is_disputed > 0;
    }
    Some(answer)
}

/// Returns true if an answer tells of no more void permits and requests than the call did. Those that it leaves go with the next call.
fn is_of(answer: &Answer, call: &Call) -> bool {
    let total = |mut counts: Box<dyn Iterator<Item = u64> + '_>| counts.try_fold(0, u64::checked_add);
    let fits = |told: Option<u64>, asked: Option<u64>| {
        told.is_some_and(|told| asked.is_none_or(|asked| told <= asked))
    };
    let outcomes = total(Box::new(answer.outcomes.iter().map(|(count, _)| *count)));
    let asked = total(Box::new(call.runs.iter().map(|run| run.count)));
    let rescheduled = total(Box::new(answer.rescheduled.iter().map(|(count, _)| *count)));
    let void = total(Box::new(call.reschedule.iter().map(|holding| holding.count)));
    fits(rescheduled, void) && fits(outcomes, asked)
}

fn outcome(row: &[u64], available: &[Vec<u64>]) -> Option<(u64, Outcome)> {
    match *row {
        [count, slot] => Some((count, Outcome::Booked(Micros(slot)))),
        [count, code, delay, advised, is_spread, limiter, limit] => {
            let violated =
                Violated { limiter: usize::try_from(limiter).ok()?, limit: usize::try_from(limit).ok()? };
            let available = *available.get(violated.limiter)?.get(violated.limit)?;
            let (delay, advised, is_spread) = (Micros(delay), Micros(advised), is_spread > 0);
            let delay = RetryDelay { delay, advised, is_spread, violated, available };
            match code {
                1 => Some((count, Outcome::TooFar(delay))),
                2 => Some((count, Outcome::Full(delay))),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Returns the answer of `inspect.lua`.
pub(super) fn inspect(value: &Value, limiter_ref: &LimiterRef) -> Option<StateView> {
    type Row = (u64, u64, (u64, u64, u64, u64), Vec<u64>);
    let (now, last, (until, status, named, replica), available): Row = unpack(value)?;
    let (now, until) = (Micros(now), Micros(until));
    let pause =
        if until > now { Some(Lasting { until, cause: cause_of(status, named, replica)? }) } else { None };
    let fits = available.len() == limiter_ref.rules.len();
    fits.then_some(StateView { now, last: Micros(last), pause, available })
}

/// Returns why a limiter is paused: the status of the answer that refused, zero by hand; whether it named the instant; and the
/// replica, which is never zero.
pub(super) fn cause_of(status: u64, named: u64, replica: u64) -> Option<Cause> {
    let reason = match u16::try_from(status).ok()? {
        0 => Reason::ByHand,
        status => Reason::Upstream { status, is_named: named > 0 },
    };
    (replica > 0).then_some(Cause { reason, replica })
}

#[derive(Deserialize)]
struct HeartbeatRow {
    epoch: EpochRow,
    resets: Vec<(String, u64)>,
    members: (u64, u64),
    rows: Vec<(u64, u64, u64)>,
    told: (u64, u64),
    moved: Vec<String>,
    earlier_epoch: u64,
    awaited: Vec<u64>,
    copies: Vec<(u64, u64, u64, i64, u64, String)>,
    by_hand: Vec<(String, u64, u64, u64)>,
}

/// Returns the answer of `heartbeat.lua`. A key of another layout is another version's, and left out.
pub(super) fn heartbeat(value: &Value) -> Option<HeartbeatAnswer> {
    let HeartbeatRow {
        epoch,
        resets,
        members: (version, is_known_to_all),
        rows,
        told: (is_complete, is_settled),
        moved,
        earlier_epoch,
        awaited,
        copies,
        by_hand,
    } = unpack(value)?;
    let reset = |(key, at): (String, u64)| {
        let (name, partition) = keys::limiter_of(&key)?;
        Some(Reset { name, partition, at: Micros(at) })
    };
    let member = |(replica, matters_for, is_counted)| Member {
        replica,
        matters_for: Micros(matters_for),
        is_counted: is_counted > 0,
    };
    let copy =
        |(replica, number, is_final, shift, written, text): (u64, u64, u64, i64, u64, String)| GrantCopy {
            replica,
            number,
            is_final: is_final > 0,
            shift,
            written: Micros(written),
            text: text.into(),
        };
    let action = |(key, from, until, replica): (String, u64, u64, u64)| {
        let (name, partition) = keys::limiter_of(&key)?;
        let stretch = PauseStretch { from: Micros(from), until: Micros(until) };
        Some(ActionByHand { name, partition, stretch, replica })
    };
    Some(HeartbeatAnswer {
        epoch: epoch.into(),
        resets: resets.into_iter().filter_map(reset).collect(),
        version,
        is_known_to_all: is_known_to_all > 0,
        members: rows.into_iter().map(member).collect(),
        reports: if is_settled > 0 { Reports::Complete } else { Reports::Awaited },
        moved: (is_complete > 0).then(|| moved.iter().filter_map(|key| keys::limiter_of(key)).collect()),
        earlier_epoch,
        awaited,
        copies: copies.into_iter().map(copy).collect(),
        by_hand: by_hand.into_iter().filter_map(action).collect(),
    })
}

/// Returns the answer of `write_back.lua` and `reset.lua`.
pub(super) fn epoch(value: &Value) -> Option<Epoch> {
    unpack::<EpochRow>(value).map(Into::into)
}

/// Returns the answer of `hand_over.lua`: from where to go on; `None` if all is done.
pub(super) fn hand_over(value: &Value) -> Option<Option<u64>> {
    let (from,): (u64,) = unpack(value)?;
    Some((from > 0).then_some(from))
}

/// Returns the answer of `report_upstream.lua` and `pause.lua`.
pub(super) fn report(value: &Value) -> Option<ReportResult> {
    let (epoch, paused_until, external_usage): (EpochRow, u64, u64) = unpack(value)?;
    Some(ReportResult { epoch: epoch.into(), paused_until: Micros(paused_until), external_usage })
}

/// A replica's number, the microseconds since its last call, its figures.
pub(super) type FiguresRow = (u64, u64, String);

/// Returns the answer of `figures.lua`: the store's clock, and what each replica has told.
pub(super) fn figures(value: &Value) -> Option<(u64, Vec<FiguresRow>)> {
    unpack(value)
}

/// The fleet's counts of one period, by name: granted, refused, waited, cancelled.
pub(super) type Rows = Vec<(String, u64, u64, u64, u64)>;

/// Returns the answer of `usage.lua`.
pub(super) fn usage(value: &Value) -> Option<(Stamp, Vec<Rows>)> {
    /// A name or a count: the rows of a period are one flat list.
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Item {
        Count(u64),
        Name(String),
    }
    let (now_us, since_us, periods): (u64, u64, Vec<Vec<Item>>) = unpack(value)?;
    let row = |items: &[Item]| match items {
        [
            Item::Name(name),
            Item::Count(granted),
            Item::Count(refused),
            Item::Count(waited),
            Item::Count(cancelled),
        ] => Some((name.clone(), *granted, *refused, *waited, *cancelled)),
        _ => None,
    };
    let rows = |items: &Vec<Item>| items.chunks(5).map(row).collect::<Option<Rows>>();
    let periods = periods.iter().map(rows).collect::<Option<Vec<Rows>>>()?;
    Some((Stamp { now_us, since_us }, periods))
}

/// Returns the answer of `register_replica.lua`. Other versions of weir wrote parts of it, which are made printable.
pub(super) fn replicas(value: &Value) -> Option<Vec<Replica>> {
    type Row = (u64, u64, String, String, String);
    let replica = |(id, seen_ago_micros, version, configuration, host): Row| Replica {
        id,
        version: printable(&version),
        configuration: printable(&configuration),
        host: printable(&host),
        seen_ago: Duration::from_micros(seen_ago_micros),
    };
    Some(unpack::<Vec<Row>>(value)?.into_iter().map(replica).collect())
}
