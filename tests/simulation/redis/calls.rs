//! Random calls of weir's scripts, as the replicas of a small fleet make them: each depends on what the earlier ones answered.

use fastrand::Rng;
use serde_json::Value;

use crate::redis::packed::{Node, Packed};
use crate::redis::scripts::Script;
use crate::redis::{Reply, Server};

/// Commands, each at an instant of the server's clock.
pub(crate) type Sequence = Vec<(u64, Vec<Vec<u8>>)>;

/// The channel on which the scripts publish.
pub(crate) const CHANNEL: &str = "w:v2:announcements";

/// The run of the server that the calls are made for.
pub(crate) const RUN: &str = "0123456789abcdef0123456789abcdef01234567";

const START: u64 = 1_800_000_000_000_000;
const LEASE: u64 = 500_000;
const EPOCH: &str = "w:v2:epoch";
const EARLIER: &str = "w:v1:epoch";
const LIVE: &str = "w:v2:live";
const MOVED: &str = "w:v2:moved";

/// Limiters that are taken together, by their places.
const QUEUES: &[&[usize]] = &[&[0], &[1], &[0, 1], &[2], &[0, 1, 2]];
const NAMES: &[&str] = &["a", "b", "c:00ff"];

const RULES: &[&str] = &[
    "S 10 10000000 1",
    "S 3 10000000 1",
    "S 20 10000000 1;S 50 47000000 1",
    "S 1000 10100000 39062",
    "S 7 11000000 1;S 300 100000000 390625",
    "B 7 10000001 1 12",
    "B 7 10000001 1 1",
    "B 999983 10239062 39062 500000",
    "F 10 10100000 1 100000 1799999996300000 10000000 1800000040000000 3000000",
    "F 500 30100000 117187 100000 1799999996300000 30000000",
    "B 5 10100000 1 3;F 12 20100000 1 100000 1799999996300000 20000000;S 9 15000000 1",
    "B 7 10000001 1 20;S 400 60000000 234375;B 400 61000000 234375 400",
    "W 7 10000001 1 10000000 3",
    "W 31 10000003 1 3000001 100;B 7 10000001 1 12",
    "W 999983 10239062 39062 777777 2;S 300 47000000 1",
];

/// A booked slot, and by which queue.
#[derive(Clone, Copy)]
struct Holding {
    queue: usize,
    slot: u64,
    cost: u64,
    count: u64,
}

/// The callers, and what they know.
struct Fleet<'a> {
    rng: &'a mut Rng,
    server: &'a mut Server,
    scripts: &'a [Script],
    sequence: Sequence,
    now: u64,
    replica: u64,
    number: u64,
    known_epoch: u64,
    rules: [usize; 3],
    generations: [u64; 3],
    void_from: [u64; 3],
    held: Vec<Holding>,
    settle: u64,
}

/// Returns `count` random calls. The server is emptied, and has carried them out afterwards.
pub(crate) fn sequence(rng: &mut Rng, server: &mut Server, scripts: &[Script], count: usize) -> Sequence {
    server.restart(RUN.to_owned(), None);
    for script in scripts {
        server.execute(&[b"SCRIPT".to_vec(), b"LOAD".to_vec(), script.source.clone().into_bytes()], START);
    }
    let first = rng.usize(..RULES.len());
    let settle = if rng.u8(..4) == 0 { 0 } else { 500_000 };
    let mut fleet = Fleet {
        now: START + rng.u64(..30_000_000),
        replica: 1,
        number: 0,
        known_epoch: 0,
        rules: [first, first + 1, first + 2],
        generations: [0; 3],
        void_from: [0; 3],
        held: Vec::new(),
        sequence: Vec::new(),
        rng,
        server,
        scripts,
        settle,
    };
    while fleet.sequence.len() < count {
        fleet.step();
    }
    fleet.sequence
}

fn state_key(limiter: usize) -> String {
    format!("w:{{g}}:v2:limiter:{}", NAMES[limiter % NAMES.len()])
}

/// Returns the keys of a call that writes the state of a limiter.
fn written(limiter: usize) -> [String; 5] {
    [EPOCH, &state_key(limiter), EARLIER, LIVE, MOVED].map(str::to_owned)
}

impl Fleet<'_> {
    fn step(&mut self) {
        self.now += match self.rng.u8(..10) {
            0..4 => self.rng.u64(..3),
            4..8 => self.rng.u64(..2_000_000),
            8 => 600_000,
            _ => 10_000_000,
        };
        self.replica = if self.rng.u8(..4) == 0 { self.rng.u64(1..4) } else { self.replica };
        match self.rng.u8(..100) {
            0..52 => self.reserve(),
            52..60 => self.heartbeat(),
            60..68 => self.write_back(),
            68..78 => self.report_upstream(),
            78..82 => self.pause(),
            82..85 => self.reset(),
            85..90 => self.inspect(),
            90..93 => self.register_replica(),
            93..95 => self.change_rules(),
            95..97 => self.repeat(),
            _ => self.lose(),
        }
    }

    /// Carries a command out, and notes it.
    fn execute(&mut self, command: Vec<Vec<u8>>) -> Reply {
        let (reply, _) = self.server.execute(&command, self.now);
        self.sequence.push((self.now, command));
        reply
    }

    /// Calls a script. Returns its answer.
    fn call(&mut self, name: &str, keys: &[String], arguments: Packed) -> Node {
        let sha = self.scripts.iter().find(|script| script.name == name).map_or("", |script| &script.sha);
        let mut command =
            vec![b"EVALSHA".to_vec(), sha.as_bytes().to_vec(), keys.len().to_string().into_bytes()];
        command.extend(keys.iter().map(|key| key.as_bytes().to_vec()));
        command.push(arguments.0);
        match self.execute(command) {
            Reply::Bulk(bytes) => Node::read(&bytes),
            _ => Node::NOTHING,
        }
    }

    fn run(&mut self) -> &'static str {
        match self.rng.u8(..20) {
            0 => "",
            1..4 => "?",
            4 => "ffff",
            _ => RUN,
        }
    }

    fn channel(&mut self) -> &'static str {
        if self.rng.u8(..4) == 0 { "" } else { CHANNEL }
    }

    fn limiter(&mut self) -> usize {
        self.rng.usize(..NAMES.len())
    }

    fn rules_text(&self, limiter: usize) -> &'static str {
        RULES[self.rules[limiter] % RULES.len()]
    }

    fn learn_epoch(&mut self, epoch: &Node) {
        self.known_epoch = self.known_epoch.max(epoch.int_at(1));
    }

    fn reserve(&mut self) {
        let queue = self.rng.usize(..QUEUES.len());
        let limiters = QUEUES[queue];
        let mut keys: Vec<String> = limiters.iter().map(|limiter| state_key(*limiter)).collect();
        let states: Vec<&str> = limiters.iter().map(|limiter| NAMES[*limiter]).collect();
        keys.push(format!("w:{{g}}:v2:queue:{}", states.join("+")));
        keys.extend([EPOCH, EARLIER, LIVE, MOVED].map(str::to_owned));
        let given_back = self.given_back(queue);
        let reschedule = self.reschedule(queue);
        let runs = self.runs();
        self.number += u64::from(self.rng.bool());
        let call = if self.rng.u8(..4) == 0 { 0 } else { self.number };
        let mut arguments = Packed::default()
            .with(0)
            .with(LEASE)
            .with(self.replica)
            .with(call)
            .with(self.known_epoch)
            .with(self.run());
        let callers: Vec<Value> = limiters
            .iter()
            .flat_map(|limiter| [self.rules_text(*limiter).into(), self.generations[*limiter].into()])
            .collect();
        arguments = arguments.with(self.settle).with(self.channel()).with(callers);
        arguments =
            arguments.with(&given_back).with(&reschedule).with(self.rng.u64(..30_000_000)).with(&runs);
        let lead = if self.rng.u8(..4) == 0 { self.rng.u64(..500_000) } else { 0 };
        let count = runs.len() as u64 / 3;
        arguments = arguments.with(self.rng.u64(..=count)).with(self.rng.u64(..=count));
        arguments = arguments.with(lead).with(self.rng.u64(..30)).with(self.rng.u64(..500));
        // Some come too late to give anything back.
        let taken_back_until = if self.rng.u8(..8) == 0 { self.now - self.rng.u64(..2) } else { 0 };
        let answer = self.call("reserve", &keys, arguments.with(taken_back_until));
        self.learn(queue, &answer, &runs);
    }

    /// Notes what an answer to a reserve call tells.
    fn learn(&mut self, queue: usize, answer: &Node, runs: &[u64]) {
        self.learn_epoch(answer.at(0));
        for (row, limiter) in answer.at(1).list().iter().zip(QUEUES[queue]) {
            self.generations[*limiter] = row.int_at(0);
            self.void_from[*limiter] = row.int_at(1);
        }
        // The outcomes are in the order of the runs.
        let mut costs =
            runs.chunks(3).flat_map(|run| std::iter::repeat_n(run[0], usize::try_from(run[2]).unwrap_or(0)));
        for outcome in answer.at(5).list() {
            let count = outcome.int_at(0);
            let cost = costs.next().unwrap_or(1);
            costs.by_ref().take(usize::try_from(count).unwrap_or(1).saturating_sub(1)).for_each(drop);
            if outcome.list().len() == 2 {
                self.held.push(Holding { queue, slot: outcome.int_at(1), cost, count });
            }
        }
        let rescheduled = answer.at(4).list().iter().filter(|row| row.int_at(1) > 0);
        self.held.extend(rescheduled.map(|row| Holding {
            queue,
            slot: row.int_at(1),
            cost: 1,
            count: row.int_at(0),
        }));
    }

    fn runs(&mut self) -> Vec<u64> {
        let mut runs = Vec::new();
        for _ in 0..self.rng.usize(..4) {
            let cost = if self.rng.u8(..9) == 0 { self.rng.u64(1..400) } else { self.rng.u64(1..4) };
            let wait = match self.rng.u8(..3) {
                0 => 0,
                1 => self.rng.u64(1..20_000_000),
                _ => 60_000_000,
            };
            runs.extend([cost, wait, self.rng.u64(1..12)]);
        }
        runs
    }

    /// Returns some of the holdings of a queue that were booked earlier, which are held no more.
    fn given_back(&mut self, queue: usize) -> Vec<u64> {
        let mut numbers = Vec::new();
        for _ in 0..self.rng.usize(..3) {
            let own: Vec<usize> =
                (0..self.held.len()).filter(|index| self.held[*index].queue == queue).collect();
            let Some(index) = self.rng.choice(own) else { break };
            let holding = self.held.swap_remove(index);
            let count = self.rng.u64(1..=holding.count);
            numbers.extend([holding.slot, holding.cost, count]);
        }
        numbers
    }

    /// Returns the void holdings of a queue, ascending; now and then one that is not void.
    fn reschedule(&mut self, queue: usize) -> Vec<u64> {
        let is_any = self.rng.u8(..20) == 0;
        let void_from =
            QUEUES[queue].iter().map(|limiter| self.void_from[*limiter]).filter(|at| *at > 0).min();
        let (now, from) = (self.now, if is_any { Some(0) } else { void_from });
        let Some(from) = from else { return Vec::new() };
        let mut void: Vec<Holding> = Vec::new();
        self.held.retain(|holding| {
            let is_void = holding.queue == queue && holding.slot >= from.max(now) && void.len() < 8;
            if is_void {
                void.push(*holding);
            }
            !is_void
        });
        void.sort_by_key(|holding| (holding.slot, holding.cost));
        void.iter().flat_map(|holding| [holding.slot, holding.cost, holding.count]).collect()
    }

    fn heartbeat(&mut self) {
        let replica = if self.rng.u8(..8) == 0 { 0 } else { self.replica };
        let heard =
            if self.rng.u8(..4) == 0 { 0 } else { self.now.saturating_sub(self.rng.u64(..2_000_000)) };
        let reported =
            |rng: &mut Rng, known: u64| if rng.u8(..4) == 0 { 0 } else { known - rng.u64(..2).min(known) };
        let (memory, epoch) = (reported(self.rng, self.known_epoch), reported(self.rng, self.known_epoch));
        let arguments =
            Packed::default().with(0).with(self.known_epoch).with(self.run()).with(500_000).with(15_000_000);
        let arguments =
            arguments.with(replica).with(heard).with(self.rng.u64(..60_000_000)).with(memory).with(epoch);
        let known: Vec<u64> = (0..self.rng.u64(..3))
            .flat_map(|_| [self.rng.u64(1..6), self.rng.u64(..30_000_000), self.rng.u64(..2)])
            .collect();
        let followed = if self.rng.bool() { 0 } else { self.now.saturating_sub(self.rng.u64(..12_000_000)) };
        let arguments =
            arguments.with(self.rng.u64(..9)).with(self.rng.u8(..8) == 0).with(followed).with(&known);
        let has: Vec<u64> =
            (0..self.rng.u64(..3)).flat_map(|_| [self.rng.u64(1..6), self.rng.u64(..9)]).collect();
        let told = self.rng.usize(..3);
        let follows = self.rng.bool();
        let mut copies = Vec::new();
        for _ in 0..told {
            let shift = self.rng.i64(-2_000_000..2_000_000);
            let first = self.now.saturating_sub(self.rng.u64(..3_000_000));
            let text = format!("\na {first}:{} 20:1\nb {first}:2", self.rng.u64(1..4));
            copies.push((self.rng.u64(1..6), self.rng.u64(1..9), self.rng.bool(), shift, first, text));
        }
        let arguments = arguments.with((follows, has, copies));
        let answer = self.call("heartbeat", &[EPOCH, EARLIER, LIVE, MOVED].map(str::to_owned), arguments);
        self.learn_epoch(answer.at(0));
    }

    fn write_back(&mut self) {
        let limiter = self.limiter();
        self.number += u64::from(self.rng.u8(..4) > 0);
        let arguments = Packed::default()
            .with(0)
            .with(self.known_epoch)
            .with(self.run())
            .with(500_000)
            .with(LEASE)
            .with(self.replica);
        let mut ages: Vec<i64> =
            (0..self.rng.usize(..20)).map(|_| self.rng.i64(-1_000_000..15_000_000)).collect();
        ages.sort_by(|one, other| other.cmp(one));
        let sent = if self.rng.u8(..5) == 0 { 0 } else { self.now - self.rng.u64(..3_000_000) };
        let arguments =
            arguments.with(self.number).with(self.rules_text(limiter)).with(self.rng.bool()).with(sent);
        let bookings: Vec<i64> = ages.into_iter().flat_map(|age| [age, self.rng.i64(1..10)]).collect();
        let arguments = arguments.with(bookings);
        let answer = self.call("write_back", &written(limiter), arguments);
        self.learn_epoch(&answer);
    }

    fn slot_ago(&mut self) -> u64 {
        let most = if self.rng.bool() { 3_000_000 } else { 20_000_000 };
        self.now - self.rng.u64(..most)
    }

    fn report_upstream(&mut self) {
        let limiter = self.limiter();
        let arguments =
            Packed::default().with(0).with(self.known_epoch).with(self.run()).with(self.settle).with(LEASE);
        let arguments = arguments.with(self.replica).with(self.rules_text(limiter)).with(self.channel());
        let wait = if self.rng.bool() { 0 } else { self.rng.u64(1..30_000_000) };
        let status = if self.rng.bool() { 429 } else { 503 };
        let ago = if self.rng.bool() { 0 } else { self.rng.u64(..3_000_000) };
        let asked = [wait, 700_000, 20_000_000, self.rng.u64(..3_000_000), self.rng.u64(..1100), status, ago];
        let asked = if self.rng.bool() { &asked[..] } else { &[] };
        let cost = if self.rng.u8(..4) == 0 { self.rng.u64(1..20) } else { 0 };
        let refused: Vec<u64> =
            (0..self.rng.usize(..3)).flat_map(|_| [self.slot_ago(), self.rng.u64(1..20)]).collect();
        let remaining: Vec<u64> = (0..self.rng.u64(..3))
            .flat_map(|rule| {
                let [permits, length] = [self.rng.u64(..30), self.rng.u64(1..20_000_000)];
                [rule, permits, length, self.slot_ago(), self.rng.u64(..1_000_000)]
            })
            .collect();
        let arguments = arguments.with(asked).with(cost).with(&refused).with(&remaining);
        let answer = self.call("report_upstream", &written(limiter), arguments);
        self.learn_epoch(answer.at(0));
    }

    /// Returns the key of a state, or what the keys of all states of a limiter begin with.
    fn some_state(&mut self) -> String {
        let limiter = self.limiter();
        let key = state_key(limiter);
        if self.rng.u8(..4) == 0 { key.trim_end_matches(":00ff").to_owned() } else { key }
    }

    fn pause(&mut self) {
        let lasting = if self.rng.u8(..3) == 0 { 0 } else { self.rng.u64(1..20_000_000) };
        let arguments = Packed::default().with(0).with(0).with(self.run()).with(500_000).with(lasting);
        let ago = if self.rng.bool() { 0 } else { self.rng.u64(..3_000_000) };
        let arguments = arguments.with(ago).with(3_600_000_000_u64).with(self.channel()).with(self.replica);
        let keys = [EPOCH.to_owned(), self.some_state(), LIVE.to_owned()];
        self.call("pause", &keys, arguments);
    }

    fn reset(&mut self) {
        let arguments = Packed::default().with(0).with(0).with(self.run()).with(500_000).with(107_000_000);
        let keys = [EPOCH.to_owned(), self.some_state(), LIVE.to_owned()];
        self.call("reset", &keys, arguments);
    }

    fn inspect(&mut self) {
        let limiter = self.limiter();
        let arguments = Packed::default().with(0).with(self.rules_text(limiter));
        self.call("inspect", &[state_key(limiter), EPOCH.to_owned()], arguments);
    }

    fn register_replica(&mut self) {
        let arguments =
            Packed::default().with(0).with(15_000_000).with(self.replica << 40 | 0xf_edcb).with("1.2.3");
        let arguments = arguments.with("c0ffee".repeat(self.rng.usize(1..12))).with("höst");
        let arguments = arguments.with(self.rng.u8(..5) == 0);
        self.call("register_replica", &["w:v1:replicas".to_owned()], arguments);
    }

    fn change_rules(&mut self) {
        let limiter = self.limiter();
        self.rules[limiter] = self.rng.usize(..RULES.len());
    }

    /// Makes an earlier call once more.
    fn repeat(&mut self) {
        let back = self.rng.usize(1..4);
        if let Some((_, command)) = self.sequence.iter().rev().nth(back - 1).cloned() {
            self.execute(command);
        }
    }

    /// Loses a key, or all, or makes one unreadable.
    fn lose(&mut self) {
        let limiter = self.limiter();
        let key = match self.rng.u8(..5) {
            0 => EPOCH.to_owned(),
            4 => if self.rng.bool() { LIVE } else { MOVED }.to_owned(),
            1 => format!("w:{{g}}:v2:queue:{}", NAMES[limiter]),
            _ => state_key(limiter),
        };
        let garbage: &[u8] = if self.rng.bool() { b"\x93\x01\x02" } else { b"\x92\x01\x02" };
        let words: [&[u8]; 3] = match self.rng.u8(..6) {
            0 => [b"FLUSHALL", b"SYNC", b""],
            1 => [b"SET", key.as_bytes(), garbage],
            _ => [b"DEL", key.as_bytes(), b""],
        };
        self.execute(words.iter().filter(|word| !word.is_empty()).map(|word| word.to_vec()).collect());
    }
}
