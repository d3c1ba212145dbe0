//! A crowd that waits on several limiters at once while its bookings are moved: the longest script call, and the order in which
//! requests are sent.

use clap::ValueEnum;
use serde_json::{Value, json};

use crate::fault::{Fault, Kind};
use crate::plan::{
    Algorithm, CALLERS, Configuration, LateResponses, Limit, Limiter, Plan, Route, SCRIPT_TIME,
};
use crate::world::World;

const MILLI: u64 = 1_000;
const SECOND: u64 = 1_000_000;

const REPLICAS: usize = 3;

/// The time in which the crowd comes, and how long before its end the move is: who comes then is a newcomer.
const COMES_IN: u64 = 2 * SECOND;
const NEWCOMERS: u64 = 200 * MILLI;

/// Any reason to move the bookings of a crowd.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Change {
    /// Nothing: the calls as they are otherwise.
    None,
    /// The upstream's 429, with a wait of 3 s, which pauses every limiter.
    Refused,
    /// A pause by hand of one limiter.
    Pause,
    /// A reload that halves the rate of one limiter, and reaches the replicas one after the other.
    Reload,
    /// A reset of one limiter.
    Reset,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum AlgorithmName {
    Sliding,
    Token,
    Leaky,
    Fixed,
    WarmUp,
}

/// The most instructions that a script call takes, whatever has moved and however many wait. A server carries out some 50 in a microsecond.
const INSTRUCTIONS_MAX: u64 = 100_000;

/// The most pairs of requests, in percent, that leave a crowd of the short form out of order: more than at 3 x 3000, where fewer of all wait for the first places.
const INVERTED_MAX: f64 = 2.0;

/// The crowds of the short form: at fewer replicas' requests than `scripts/simulate --move` has, but more than one call can pass.
const SHORT: [(Change, usize, AlgorithmName, Option<u64>); 11] = [
    (Change::Refused, 2, AlgorithmName::Sliding, None),
    (Change::Pause, 1, AlgorithmName::Token, None),
    (Change::Reload, 1, AlgorithmName::Sliding, None),
    (Change::Reset, 1, AlgorithmName::Leaky, None),
    (Change::Refused, 8, AlgorithmName::Sliding, None),
    (Change::Refused, 2, AlgorithmName::Leaky, None),
    (Change::Reload, 1, AlgorithmName::Token, None),
    (Change::Reset, 1, AlgorithmName::WarmUp, None),
    (Change::None, 1, AlgorithmName::Sliding, Some(3)),
    (Change::Pause, 1, AlgorithmName::Sliding, Some(64)),
    (Change::Refused, 2, AlgorithmName::Sliding, Some(64)),
];
const SHORT_WAITING: u64 = 500;

/// How callers share the quota of a crowd, where they do.
const SHARE: &str = "{by: 'header:x-caller', weights: {a: 3}, classes: [{name: first, of: [a], floor: 20%}, {name: rest, ceiling: 70%}]}";

/// Moves crowds on one to eight limiters. Returns whether no script call takes too long, and the order holds.
pub fn short_form() -> Result<bool, String> {
    let mut is_good = true;
    for (change, limiters, algorithm, callers) in SHORT {
        let shown =
            Crowd { change, limiters, algorithm, waiting: SHORT_WAITING, costs: 1, callers }.run(1)?;
        let is_short = shown["instructions"].as_u64().is_some_and(|most| most <= INSTRUCTIONS_MAX);
        let inverted_percent = shown["inverted_percent"].as_f64();
        // Where callers share the quota, who came first need not go first.
        let is_ordered = callers.is_some() || inverted_percent.is_some_and(|percent| percent <= INVERTED_MAX);
        let finding = match (is_short, is_ordered) {
            (true, true) => "",
            (false, _) => "a script call takes too long: ",
            (true, false) => "requests lose their order: ",
        };
        println!("{finding}{shown}");
        is_good &= is_short && is_ordered;
    }
    Ok(is_good)
}

/// A crowd: on how many limiters of which algorithm how many wait at each replica.
#[derive(Clone, Copy, Debug)]
pub struct Crowd {
    pub change: Change,
    pub limiters: usize,
    pub algorithm: AlgorithmName,
    pub waiting: u64,
    /// How many different costs requests have, of all limiters but the first, if there is more than one.
    pub costs: u64,
    /// How many callers share the quota of the first limiter, if any do.
    pub callers: Option<u64>,
}

impl Crowd {
    /// Returns the run.
    fn plan(&self, seed: u64) -> Plan {
        let algorithm = match self.algorithm {
            AlgorithmName::Sliding => Algorithm::SlidingWindow,
            AlgorithmName::Token => Algorithm::TokenBucket { burst: 20 },
            AlgorithmName::Leaky => Algorithm::LeakyBucket,
            AlgorithmName::Fixed => Algorithm::FixedWindow,
            AlgorithmName::WarmUp => Algorithm::WarmUp,
        };
        let limiter = |place: usize| Limiter {
            name: format!("limiter-{place}"),
            limits: vec![Limit {
                rate: if place > 0 { 200 * self.costs } else { 200 },
                per: SECOND,
                algorithm,
                precision: None,
            }],
            queue: Some((120 * SECOND, 2 * self.waiting)),
            policy: "local",
            group: None,
            is_keyed: false,
            is_shadow: false,
            is_per_replica: false,
            follows_upstream: false,
            share: self.callers.filter(|_| place == 0).map(|_| SHARE),
            guard: None,
            max_partitions: None,
        };
        let limiters: Vec<Limiter> = (0..self.limiters).map(limiter).collect();
        let mut halved = limiters.clone();
        halved[0].limits[0].rate /= 2;
        let all = self.waiting * REPLICAS as u64;
        let route = Route {
            limiters: limiters.iter().map(|limiter| limiter.name.clone()).collect(),
            partitions: 1,
            demand: all as f64 * SECOND as f64 / COMES_IN as f64,
            cost_max: self.costs,
            has_own_costs: self.costs > 1,
            callers: self.callers.unwrap_or(CALLERS),
            hasty_percent: 0,
            leaving_percent: 0,
            settled_percent: 0,
        };
        let begin = SECOND;
        let at = begin + COMES_IN - NEWCOMERS;
        let kind = match self.change {
            Change::None => None,
            Change::Refused => Some(Kind::UpstreamPause { lasts: 300 * MILLI, wait: 3 * SECOND }),
            Change::Pause => Some(Kind::Pause { limiter: 0, lasts: 3 * SECOND }),
            Change::Reload => Some(Kind::Reload { configuration: 1, lag: 300 * MILLI }),
            Change::Reset => Some(Kind::Reset { limiter: 0 }),
        };
        Plan {
            seed,
            replicas: REPLICAS,
            fleet_size: REPLICAS as u64,
            store_timeout_ms: 100,
            script_time: SCRIPT_TIME,
            latency: 60,
            drift_ppm: 20,
            hiccup: 0,
            configurations: vec![Configuration { limiters }, Configuration { limiters: halved }],
            routes: vec![route],
            late_responses: LateResponses::default(),
            faults: kind.into_iter().map(|kind| Fault { at, kind }).collect(),
            demand: (begin, begin + COMES_IN),
            end: begin + COMES_IN + 121 * SECOND,
        }
    }

    /// Carries the run of a seed out. Returns what it shows.
    pub fn run(&self, seed: u64) -> Result<Value, String> {
        let plan = self.plan(seed);
        let outcome = World::run(&plan, false)?;
        let at = plan.demand.1 - NEWCOMERS;
        let moved: Vec<u64> = outcome.sent.iter().filter(|(sent, _)| *sent > at).map(|(_, id)| *id).collect();
        // The first that is sent behind the longest time without any.
        let (mut before, mut first, mut gap) = (at, at, 0);
        for (sent, _) in outcome.sent.iter().filter(|(sent, _)| *sent > at) {
            if sent - before > gap {
                (gap, first) = (sent - before, *sent);
            }
            before = *sent;
        }
        let ended = outcome.sent.last().map_or(at, |(sent, _)| *sent);
        Ok(json!({
            "change": format!("{:?}", self.change),
            "limiters": self.limiters,
            "algorithm": format!("{:?}", self.algorithm),
            "costs": self.costs,
            "callers": self.callers,
            "sent": outcome.sent.len(),
            "instructions": outcome.longest_script,
            "inverted_percent": inverted_percent(&moved),
            "longest_gap_s": gap as f64 / 1e6,
            "resumes_s": (first - at) as f64 / 1e6,
            "ends_s": (ended - at) as f64 / 1e6,
            "calls": outcome.calls,
            "findings": outcome.findings.iter().map(|finding| format!("{:?}", finding.what)).collect::<Vec<_>>(),
        }))
    }
}

/// Returns how many pairs of requests, which are numbered as they came, are out of order.
fn inverted_percent(sent: &[u64]) -> f64 {
    let later_first = |(place, id): (usize, &u64)| sent[..place].iter().filter(|other| *other > id).count();
    let inverted: usize = sent.iter().enumerate().map(later_first).sum();
    let pairs = sent.len() * sent.len().saturating_sub(1) / 2;
    100.0 * inverted as f64 / pairs.max(1) as f64
}
