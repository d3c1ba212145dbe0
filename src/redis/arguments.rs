//! The keys and arguments of each script, as the header of its file names them.
//!
//! The arguments are MessagePack values one after the other, in the order of the fields here.

use serde::Serialize;

use crate::clock::Micros;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::arithmetic::moving::RESCHEDULE_MAX;
use crate::limiter::model::call::{Call, Holding, Run};
use crate::limiter::model::grant_copy::CopyExchange;
use crate::limiter::model::heartbeat::{Heartbeat, Member};
use crate::limiter::model::line::{LineCall, Waiting};
use crate::limiter::model::pause::{PAUSE_MAX, PauseByHand, PauseRequest};
use crate::limiter::model::upstream_report::{Remaining, UpstreamReport};
use crate::limiter::model::write_back::{Unknown, WriteBack};
use crate::limiter::{MEMBERSHIP_TTL, Replica};
use crate::redis::keys;

/// The keys of a call, and its packed arguments.
pub(super) struct Arguments {
    pub(super) keys: Vec<String>,
    pub(super) packed: Vec<u8>,
}

impl Arguments {
    pub(super) fn new(keys: impl Into<Vec<String>>, values: &impl Serialize) -> Arguments {
        // Numbers, texts and lists of them can always be packed.
        let mut packed = rmp_serde::to_vec(values).unwrap_or_default();
        // The values without the array that holds them: Lua unpacks them all at once, without a table. Its mark is one byte for up to
        // fifteen of them, else three.
        const ARRAY_16: u8 = 0xdc;
        let mark = if packed.first() == Some(&ARRAY_16) { 3 } else { 1 };
        packed.drain(..packed.len().min(mark));
        Arguments { keys: keys.into(), packed }
    }
}

/// The values that all calls of a store share.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    /// The prefix of the keys.
    pub(super) prefix: &'a str,
    /// The key of the epoch.
    pub(super) epoch: &'a str,
    /// The key of the set that notes until when each state lives.
    pub(super) live: &'a str,
    /// The key of the set that notes when bookings of a state were last moved.
    pub(super) moved: &'a str,
    /// The key of the epoch of the earlier layout.
    pub(super) earlier_epoch: &'a str,
    /// True on a Cluster, where a limiter's group decides where its state lives.
    pub(super) is_cluster: bool,
    /// The channel for announcements; none if empty.
    pub(super) channel: &'a str,
    /// The run of the server that is connected; empty if it is not known.
    pub(super) run: &'a str,
    /// How long a new epoch takes to open; zero: there are no epochs.
    pub(super) settle: Micros,
    /// How long a changed limit leaves bookings where they are.
    pub(super) lease: Micros,
    /// The instant of the call; zero: the server's own clock.
    pub(super) now: Micros,
}

impl Context<'_> {
    fn limiter_keys(&self, limiter_ref: &LimiterRef) -> [String; 2] {
        [self.epoch.to_owned(), keys::limiter(self.prefix, limiter_ref, self.is_cluster)]
    }

    /// Returns the keys of an action by hand on a limiter.
    fn keys_by_hand(&self, limiter_ref: &LimiterRef) -> [String; 3] {
        let [epoch, state] = self.limiter_keys(limiter_ref);
        [epoch, state, self.live.to_owned()]
    }

    /// Returns the keys of a call that writes the state of a limiter.
    fn written_keys(&self, limiter_ref: &LimiterRef) -> Vec<String> {
        self.limiter_keys(limiter_ref)
            .into_iter()
            .chain(self.rest(std::slice::from_ref(limiter_ref)))
            .collect()
    }

    /// Returns the keys of a call for a queue: its states, its own one, and the others.
    fn keys_with(&self, limiter_refs: &[LimiterRef], own: String) -> Vec<String> {
        let states = limiter_refs.iter().map(|one| keys::limiter(self.prefix, one, self.is_cluster));
        states.chain([own, self.epoch.to_owned()]).chain(self.rest(limiter_refs)).collect()
    }

    /// Returns the last keys of a call that writes these states: first those of the part of the store, then the states in the earlier
    /// layout.
    fn rest(&self, limiter_refs: &[LimiterRef]) -> impl Iterator<Item = String> {
        let states = limiter_refs.iter().map(|one| keys::earlier_limiter(self.prefix, one));
        [self.earlier_epoch, self.live, self.moved].map(str::to_owned).into_iter().chain(states)
    }
}

/// One value of a list that holds texts and numbers.
#[derive(Serialize)]
#[serde(untagged)]
enum Mixed {
    Text(String),
    Number(u64),
}

#[derive(Serialize)]
struct Reserve<'a> {
    given_now: u64,
    lease: u64,
    replica: u64,
    call: u64,
    known_epoch: u64,
    run: &'a str,
    settle: u64,
    channel: &'a str,
    callers: Vec<Mixed>,
    given_back: Vec<u64>,
    reschedule: Vec<u64>,
    reschedule_wait: u64,
    runs: Vec<u64>,
    replacing_runs: usize,
    prefetching_runs: usize,
    lead: u64,
    queue_slots_left: u64,
    refusal_budget: u64,
    taken_back_until: u64,
}

/// Returns the arguments of `reserve.lua`. `number` is the call's among those of the replica; zero: it is never repeated.
pub(super) fn reserve(
    context: &Context<'_>,
    limiter_refs: &[LimiterRef],
    call: &Call,
    number: u64,
) -> Arguments {
    let keys = context.keys_with(limiter_refs, keys::queue(context.prefix, limiter_refs, context.is_cluster));
    let holding = |holding: &Holding| [holding.slot.0, holding.cost, holding.count];
    let run = |run: &Run| [run.cost, run.wait_max.0, run.count];
    let values = Reserve {
        given_now: context.now.0,
        lease: context.lease.0,
        replica: call.replica,
        call: number,
        known_epoch: call.epoch,
        run: context.run,
        settle: context.settle.0,
        channel: context.channel,
        callers: callers(limiter_refs, call),
        given_back: call.give_back.iter().flat_map(holding).collect(),
        reschedule: call.reschedule.iter().flat_map(holding).collect(),
        reschedule_wait: call.reschedule_wait.0,
        runs: call.runs.iter().flat_map(run).collect(),
        replacing_runs: call.replacing_runs,
        prefetching_runs: call.prefetching_runs,
        lead: call.lead.0,
        queue_slots_left: call.queue_slots_left,
        refusal_budget: call.refusal_budget,
        taken_back_until: call.taken_back_until.0,
    };
    Arguments::new(keys, &values)
}

/// One row of a list of slots that are not needed: flow, class, slot, count, costs.
#[derive(Serialize)]
struct UnusedRow<'a>(u64, u64, u64, u64, &'a [u64]);

/// One row of a list of requests without a slot: flow, class, weight, costs, groups, those that have left, how many of the groups are known.
#[derive(Serialize)]
struct WantRow<'a>(u64, u64, u64, &'a [u64], Vec<u64>, Vec<u64>, u64);

#[derive(Serialize)]
struct Deal<'a> {
    given_now: u64,
    lease: u64,
    replica: u64,
    call: u64,
    known_epoch: u64,
    run: &'a str,
    settle: u64,
    callers: Vec<Mixed>,
    ceilings: u64,
    ahead: u64,
    known: u64,
    begins: bool,
    places: Vec<u64>,
    unused: Vec<UnusedRow<'a>>,
    wants: Vec<WantRow<'a>>,
    lead: u64,
    refusal_budget: u64,
    expected: &'a [u64],
}

/// Returns the arguments of `deal.lua`. `number` is the call's among those of the replica; zero: it is never repeated.
pub(super) fn deal(
    context: &Context<'_>,
    limiter_refs: &[LimiterRef],
    (call, line): (&Call, &LineCall),
    number: u64,
) -> Arguments {
    let keys = context.keys_with(limiter_refs, keys::line(context.prefix, limiter_refs, context.is_cluster));
    let group = |of: &Waiting| [of.oldest.0, of.newest.0, of.wait_max.0, of.count];
    let wants = line.wants.iter().map(|of| {
        let groups = of.waiting.iter().flat_map(group).collect();
        let left = of.left.iter().flat_map(|(ago, count)| [ago.0, *count]).collect();
        WantRow(of.flow, of.class as u64, of.weight, &of.costs, groups, left, of.begins_with_known.into())
    });
    let unused =
        line.unused.iter().map(|of| UnusedRow(of.flow, of.class as u64, of.slot.0, of.count, &of.costs));
    let values = Deal {
        given_now: context.now.0,
        lease: context.lease.0,
        replica: call.replica,
        call: number,
        known_epoch: call.epoch,
        run: context.run,
        settle: context.settle.0,
        callers: callers(limiter_refs, call),
        ceilings: line.ceilings as u64,
        ahead: line.ahead.0,
        known: line.known,
        begins: line.begins,
        places: line.places.to_vec(),
        unused: unused.collect(),
        wants: wants.collect(),
        lead: call.lead.0,
        refusal_budget: call.refusal_budget,
        expected: &line.expected,
    };
    Arguments::new(keys, &values)
}

/// Returns each limiter's rules as text, and the generation that the caller knows, by turns.
fn callers(limiter_refs: &[LimiterRef], call: &Call) -> Vec<Mixed> {
    let callers = limiter_refs.iter().enumerate().flat_map(|(index, limiter_ref)| {
        let generation = call.generations.get(index).copied().unwrap_or_default();
        [Mixed::Text(limiter_ref.rules_text()), Mixed::Number(generation)]
    });
    callers.collect()
}

#[derive(Serialize)]
struct Inspect {
    given_now: u64,
    rules: String,
}

/// Returns the arguments of `inspect.lua`.
pub(super) fn inspect(context: &Context<'_>, limiter_ref: &LimiterRef) -> Arguments {
    let [epoch, state] = context.limiter_keys(limiter_ref);
    Arguments::new([state, epoch], &Inspect { given_now: context.now.0, rules: limiter_ref.rules_text() })
}

#[derive(Serialize)]
struct HeartbeatRow<'a> {
    given_now: u64,
    known_epoch: u64,
    run: &'a str,
    settle: u64,
    counts_for: u64,
    replica: u64,
    heard: u64,
    matters_for: u64,
    memory: u64,
    reported: u64,
    version: u64,
    leaves: bool,
    followed: u64,
    members: Vec<u64>,
    copies: (bool, Vec<u64>, Vec<CopyRow<'a>>),
}

#[derive(Serialize)]
struct CopyRow<'a>(u64, u64, bool, i64, u64, &'a str);

/// Returns the arguments of `heartbeat.lua`.
pub(super) fn heartbeat(context: &Context<'_>, heartbeat: &Heartbeat) -> Arguments {
    let member = |member: &Member| [member.replica, member.matters_for.0, u64::from(member.is_counted)];
    let CopyExchange { follows, known, told } = &heartbeat.copies;
    let numbers = known.iter().flat_map(|(replica, number)| [*replica, *number]).collect();
    let rows = told
        .iter()
        .map(|one| CopyRow(one.replica, one.number, one.is_final, one.shift, one.written.0, &one.text));
    let values = HeartbeatRow {
        given_now: context.now.0,
        known_epoch: heartbeat.known_epoch,
        run: context.run,
        settle: context.settle.0,
        counts_for: Micros::from(MEMBERSHIP_TTL).0,
        replica: heartbeat.replica,
        heard: heartbeat.heard.0,
        matters_for: heartbeat.matters_for.0,
        memory: heartbeat.reported.memory,
        reported: heartbeat.reported.epoch,
        version: heartbeat.version,
        leaves: heartbeat.leaves,
        followed: heartbeat.followed.0,
        members: heartbeat.members.iter().flat_map(member).collect(),
        copies: (*follows, numbers, rows.collect()),
    };
    Arguments::new(
        [context.epoch, context.earlier_epoch, context.live, context.moved].map(str::to_owned),
        &values,
    )
}

#[derive(Serialize)]
struct HandOver {
    given_now: u64,
    settle: u64,
    from: u64,
    names: Vec<String>,
}

/// Returns the arguments of `hand_over.lua`, for the states of these limiters that live until `from` or longer.
pub(super) fn hand_over(context: &Context<'_>, limiter_refs: &[LimiterRef], from: u64) -> Arguments {
    let names = limiter_refs.iter().flat_map(|one| {
        [keys::limiter(context.prefix, one, context.is_cluster), keys::earlier_limiter(context.prefix, one)]
    });
    let values =
        HandOver { given_now: context.now.0, settle: context.settle.0, from, names: names.collect() };
    Arguments::new([context.live, context.earlier_epoch].map(str::to_owned), &values)
}

#[derive(Serialize)]
struct Reset<'a> {
    given_now: u64,
    known_epoch: u64,
    run: &'a str,
    settle: u64,
    span: u64,
}

/// Returns the arguments of `reset.lua`. The permits of what is reset matter for `seen_for` at most.
pub(super) fn reset(context: &Context<'_>, limiter_ref: &LimiterRef, seen_for: Micros) -> Arguments {
    let values = Reset {
        given_now: context.now.0,
        known_epoch: 0,
        run: context.run,
        settle: context.settle.0,
        span: (seen_for + RESCHEDULE_MAX).0,
    };
    Arguments::new(context.keys_by_hand(limiter_ref), &values)
}

#[derive(Serialize)]
struct Pause<'a> {
    given_now: u64,
    known_epoch: u64,
    run: &'a str,
    settle: u64,
    lasting: u64,
    ago: u64,
    longest: u64,
    channel: &'a str,
    replica: u64,
}

/// Returns the arguments of `pause.lua` for a pause by hand through a replica.
pub(super) fn pause(context: &Context<'_>, limiter_ref: &LimiterRef, pause: &PauseByHand) -> Arguments {
    let PauseByHand { lasting, ago, replica } = *pause;
    let values = Pause {
        given_now: context.now.0,
        known_epoch: 0,
        run: context.run,
        settle: context.settle.0,
        lasting: lasting.0,
        ago: ago.0,
        longest: PAUSE_MAX.0,
        channel: context.channel,
        replica,
    };
    Arguments::new(context.keys_by_hand(limiter_ref), &values)
}

#[derive(Serialize)]
struct ReportUpstream<'a> {
    given_now: u64,
    known_epoch: u64,
    run: &'a str,
    settle: u64,
    lease: u64,
    replica: u64,
    rules: String,
    channel: &'a str,
    asked: Vec<u64>,
    cost: u64,
    refused: Vec<u64>,
    remaining: Vec<u64>,
}

/// Returns the arguments of `report_upstream.lua`.
pub(super) fn report_upstream(
    context: &Context<'_>,
    limiter_ref: &LimiterRef,
    report: &UpstreamReport,
) -> Arguments {
    let asked = report.pause.map(|request| {
        let PauseRequest { wait, fallback, max, sent_ago, jitter, status, made_ago } = request;
        // No time at all is a microsecond: zero stands for no instant.
        let wait = wait.map_or(Micros::ZERO, |wait| wait.max(Micros::ONE));
        vec![wait.0, fallback.0, max.0, sent_ago.0, jitter, u64::from(status), made_ago.0]
    });
    let remaining = report.remaining.iter().flat_map(|(index, remaining)| {
        let Remaining { permits, per, slot, took } = *remaining;
        [*index as u64, permits, per.0, slot.0, took.0]
    });
    let values = ReportUpstream {
        given_now: context.now.0,
        known_epoch: report.known_epoch,
        run: context.run,
        settle: context.settle.0,
        lease: context.lease.0,
        replica: report.replica,
        rules: limiter_ref.rules_text(),
        channel: context.channel,
        asked: asked.unwrap_or_default(),
        cost: report.cost,
        refused: report.refused.iter().flat_map(|(slot, permits)| [slot.0, *permits]).collect(),
        remaining: remaining.collect(),
    };
    Arguments::new(context.written_keys(limiter_ref), &values)
}

#[derive(Serialize)]
struct WrittenBack<'a> {
    given_now: u64,
    known_epoch: u64,
    run: &'a str,
    settle: u64,
    lease: u64,
    replica: u64,
    number: u64,
    rules: String,
    was_away: bool,
    sent: u64,
    bookings: Vec<i64>,
}

/// Returns the arguments of `write_back.lua`.
pub(super) fn write_back(context: &Context<'_>, limiter_ref: &LimiterRef, write: &WriteBack) -> Arguments {
    let booking = |(ago, permits): &(i64, u64)| [*ago, i64::try_from(*permits).unwrap_or(i64::MAX)];
    let values = WrittenBack {
        given_now: context.now.0,
        known_epoch: write.epoch,
        run: context.run,
        settle: context.settle.0,
        lease: context.lease.0,
        replica: write.replica,
        number: write.number,
        rules: limiter_ref.rules_text(),
        was_away: write.unknown == Unknown::Away,
        sent: write.sent.0,
        bookings: write.entries.iter().flat_map(booking).collect(),
    };
    Arguments::new(context.written_keys(limiter_ref), &values)
}

#[derive(Serialize)]
struct RegisterReplica<'a> {
    given_now: u64,
    counts_for: u64,
    caller: u64,
    version: &'a str,
    configuration: &'a str,
    host: &'a str,
    leaves: bool,
}

/// Returns the arguments of `register_replica.lua`.
pub(super) fn register_replica(prefix: &str, me: &Replica, leaves: bool) -> Arguments {
    let values = RegisterReplica {
        given_now: 0,
        counts_for: Micros::from(MEMBERSHIP_TTL).0,
        caller: me.id,
        version: &me.version,
        configuration: &me.configuration,
        host: &me.host,
        leaves,
    };
    Arguments::new([keys::replicas(prefix)], &values)
}
