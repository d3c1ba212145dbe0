//! One run, drawn from its seed: the fleet, its configurations, the demand, and what happens.

mod faults;

use std::fmt::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use clap::ValueEnum;
use fastrand::Rng;
use weir::config::{self, Config};

use crate::fault::Fault;
use crate::plan::faults::{AWAY_WINDOW, Pace};

const MILLI: u64 = 1_000;
const SECOND: u64 = 1_000_000;

/// How long a script usually takes.
pub const SCRIPT_TIME: Range<u64> = 40..160;

/// How a run is drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Mix {
    /// Everything.
    Random,
    /// Everything, with a fault every second or three, so that many meet.
    Dense,
    /// Three replicas, one limiter, demand three times the limit, a fault every two seconds: for measuring speed.
    Standard,
    /// No faults: use, order and waits are judged most strictly.
    Calm,
    /// Everything, with one limiter whose quota callers share.
    Share,
    /// Everything, with two limiters of one route that have costs of their own, most of which are settled by the response.
    Tokens,
    /// Everything, and the only faults are that the store loses its memory right after a replica, or all, were cut off from it, or hear it late.
    Losses,
    /// Everything with windows of five minutes, and the only fault is that all replicas end behind a silence of the store in which nobody calls,
    /// and come back when it has had time to forget what it should not.
    Away,
    /// Everything, with one limiter of a short limit and one of an hour, and the faults are those that an hour outlives: the store is silent, once
    /// or twice, is restarted with its data, and replicas end, one or all, in order or not.
    Hours,
    /// Everything, with limits whose bookings are kept in wide cells of time, as those of very many permits are. What they do not use by that
    /// is no finding: only what is over.
    Cells,
    /// Everything, and every second fault is a reload that changes limits by more than the other mixes do: to any algorithm, rate and window.
    Changes,
}

impl Mix {
    fn is_random(self) -> bool {
        !matches!(self, Mix::Standard | Mix::Calm)
    }

    /// Returns whether the oracle can tell how much such limits leave free.
    pub fn is_exact(self) -> bool {
        self != Mix::Cells
    }

    /// Returns whether the fleet wants more than it may have all the time, and only the faults of this mix disturb it.
    fn is_of_recovery(self) -> bool {
        matches!(self, Mix::Losses | Mix::Away | Mix::Hours)
    }
}

/// The window of the long limit of the mix [`Mix::Hours`].
const HOUR: u64 = 3600 * SECOND;

/// How many callers share a quota: a, b and c.
pub const CALLERS: u64 = 3;

/// How callers share a quota, as a configuration says it.
const SHARES: [&str; 4] = [
    "{by: 'header:x-caller', weights: {a: 3}}",
    "{by: 'header:x-caller', weights: {b: 2}, classes: [{name: first, of: [a]}, {name: rest}], ahead: 100ms}",
    "{by: 'header:x-caller', classes: [{name: first, of: [a], floor: 20%}, {name: rest, ceiling: 70%}]}",
    "{by: 'header:x-caller', classes: [{name: first, of: [b]}, {name: second, of: [c], ceiling: 50%}, {name: rest}], ahead: 1s}",
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Algorithm {
    SlidingWindow,
    TokenBucket { burst: u64 },
    LeakyBucket,
    FixedWindow,
    WarmUp,
}

/// One limit of a limiter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limit {
    pub rate: u64,
    /// The window in microseconds.
    pub per: u64,
    pub algorithm: Algorithm,
    /// How many instants of a sliding window are kept apart, where there are not as many as usual.
    pub precision: Option<u64>,
}

/// A limiter of a configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limiter {
    pub name: String,
    pub limits: Vec<Limit>,
    /// The longest wait in microseconds, and the most that wait.
    pub queue: Option<(u64, u64)>,
    /// `local`, `reject` or `allow`.
    pub policy: &'static str,
    pub group: Option<&'static str>,
    pub is_keyed: bool,
    pub is_shadow: bool,
    pub is_per_replica: bool,
    pub follows_upstream: bool,
    /// How callers share the quota.
    pub share: Option<&'static str>,
    /// The guard in microseconds, where it is not the usual one.
    pub guard: Option<u64>,
    /// The most partitions at once in a replica, where that is bounded.
    pub max_partitions: Option<u64>,
}

/// A route: its limiters by their names, and who calls it.
#[derive(Clone, PartialEq, Debug)]
pub struct Route {
    pub limiters: Vec<String>,
    /// The number of partitions of its keyed limiters.
    pub partitions: u64,
    /// Requests a second by the whole fleet.
    pub demand: f64,
    /// The highest cost of a request.
    pub cost_max: u64,
    /// True if a request costs one permit of the first limiter, and only the others have a cost.
    pub has_own_costs: bool,
    /// How many callers there are, where they share the quota.
    pub callers: u64,
    /// The part of the requests that name a shorter wait, in percent.
    pub hasty_percent: u64,
    /// The part of the clients that go away while they wait, in percent.
    pub leaving_percent: u64,
    /// The part of the requests whose cost is settled by the response, in percent.
    pub settled_percent: u64,
}

/// One configuration of the fleet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Configuration {
    pub limiters: Vec<Limiter>,
}

/// The responses whose cost is known late.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LateResponses {
    /// The part of the settled responses, in percent.
    pub percent: u64,
    /// How long their bodies take at most, in microseconds.
    pub most: u64,
}

impl LateResponses {
    /// Draws them from a stream of their own: nothing else that a seed draws depends on them.
    fn draw(seed: u64, mix: Mix) -> LateResponses {
        let mut rng = Rng::with_seed(seed ^ 0x1a7e);
        if mix == Mix::Standard || rng.bool() {
            return LateResponses::default();
        }
        let percent = [5, 30, 100][rng.usize(..3)];
        LateResponses { percent, most: [SECOND, 5 * SECOND, 20 * SECOND][rng.usize(..3)] }
    }
}

/// One run.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    pub seed: u64,
    pub replicas: usize,
    pub fleet_size: u64,
    /// The timeout of a call to the store, in milliseconds.
    pub store_timeout_ms: u64,
    /// How long a script takes, in microseconds.
    pub script_time: Range<u64>,
    /// The usual time of a byte on its way, in microseconds.
    pub latency: u64,
    /// By how many millionths the clocks of replicas are too fast or too slow at most.
    pub drift_ppm: i64,
    /// The longest stall of a replica in ordinary time, in microseconds.
    pub hiccup: u64,
    pub configurations: Vec<Configuration>,
    pub routes: Vec<Route>,
    pub late_responses: LateResponses,
    pub faults: Vec<Fault>,
    /// When demand begins and ends, in microseconds.
    pub demand: (u64, u64),
    /// The end of the run.
    pub end: u64,
}

impl Plan {
    /// Draws the run of a seed.
    pub fn draw(seed: u64, mix: Mix) -> Plan {
        let mut rng = Rng::with_seed(seed);
        let replicas = if mix == Mix::Standard { 3 } else { rng.usize(1..=5).min(rng.usize(1..=5) + 1) };
        let replicas = if matches!(mix, Mix::Losses | Mix::Away) { replicas.max(2) } else { replicas };
        let mut limiters: Vec<Limiter> = Vec::new();
        let count = match mix {
            Mix::Random | Mix::Dense | Mix::Cells | Mix::Changes => [1, 1, 1, 2, 2, 3][rng.usize(..6)],
            Mix::Tokens => 2,
            _ => 1,
        };
        for place in 0..count {
            limiters.push(Limiter::draw(format!("limiter-{place}"), mix, &mut rng));
        }
        if mix == Mix::Away {
            // Nobody calls for an idle partition when an epoch begins.
            (limiters[0].is_keyed, limiters[0].is_shadow, limiters[0].is_per_replica) = (true, false, false);
            limiters[0].limits.iter_mut().for_each(|limit| limit.per = AWAY_WINDOW);
        }
        if mix == Mix::Hours {
            limiters[0].put_beside_an_hour(&mut rng);
        }
        if mix == Mix::Tokens {
            let (first, second) = limiters.split_at_mut(1);
            second[0].serve_with(&mut first[0]);
        }
        let is_quiet = mix.is_random()
            && !matches!(mix, Mix::Dense | Mix::Changes)
            && !mix.is_of_recovery()
            && rng.u8(..3) == 0;
        let routes = draw_routes(&limiters, mix, is_quiet, &mut rng);
        if mix == Mix::Share {
            let limiter = &mut limiters[0];
            limiter.queue = Some(limiter.queue.unwrap_or((3 * SECOND, 1000)));
            limiter.is_shadow = false;
            limiter.limits.iter_mut().for_each(|limit| limit.rate = limit.rate.max(5));
            limiter.share = Some(SHARES[rng.usize(..SHARES.len())]);
        }
        let first = Configuration { limiters };
        let mut configurations = vec![first];
        for _ in 0..3 {
            let mut changed = match mix {
                Mix::Changes => configurations[0].rewritten(&mut rng),
                _ => configurations[0].changed(&mut rng),
            };
            if mix == Mix::Share && rng.bool() {
                // Weights and classes change, or the share goes.
                changed.limiters[0].share = SHARES.get(rng.usize(..SHARES.len() + 1)).copied();
            }
            changed
                .limiters
                .iter_mut()
                .filter(|one| one.share.is_some())
                .for_each(|one| one.limits[0].rate = one.limits[0].rate.max(5));
            configurations.push(changed);
        }
        // From a stream of their own, so that nothing else that a seed draws depends on them.
        let mut bounds = Rng::with_seed(seed ^ 0xb0);
        if mix == Mix::Changes || (mix.is_random() && bounds.u8(..4) == 0) {
            configurations.iter_mut().skip(1).for_each(|one| one.bound_anew(&mut bounds));
        }
        let longest = configurations.iter().flat_map(|one| &one.limiters).flat_map(|one| &one.limits);
        let longest = longest.map(|limit| limit.per).max().unwrap_or(SECOND);
        let begin = if rng.u8(..4) == 0 { rng.u64(0..8 * SECOND) } else { rng.u64(0..300 * MILLI) };
        let pace = Pace::draw(mix, is_quiet, longest, &mut rng);
        let length = (rng.u64(15..40) * SECOND).max(longest * 2).max(pace.worth()).min(90 * SECOND);
        let length = if mix == Mix::Away { AWAY_WINDOW } else { length };
        let end = begin + length;
        let faults = match mix {
            Mix::Calm => Vec::new(),
            Mix::Losses => faults::draw_losses(replicas, (begin, end), &mut rng),
            Mix::Away => faults::draw_away(replicas, begin, &mut rng),
            Mix::Hours => faults::draw_hours(replicas, (begin, end), &mut rng),
            Mix::Changes => faults::draw_changes(replicas, &configurations, (begin, end), &pace, &mut rng),
            _ => faults::draw_faults(replicas, &configurations, (begin, end), &pace, &mut rng),
        };
        // A replica that stands still for long has all its requests to answer afterwards.
        let over =
            faults.iter().map(|fault| fault.at + fault.kind.lasts()).max().unwrap_or_default().max(end);
        let exact = rng.u8(..3) > 0;
        Plan {
            seed,
            replicas,
            fleet_size: if exact { replicas as u64 } else { rng.u64(1..=3) },
            store_timeout_ms: [50, 100, 1000, 250][rng.usize(..4)],
            script_time: SCRIPT_TIME,
            latency: [30, 60, 150, 400][rng.usize(..4)],
            drift_ppm: [0, 20, 200][rng.usize(..3)],
            hiccup: if mix.is_random() { [0, 0, 5 * MILLI, 40 * MILLI][rng.usize(..4)] } else { 0 },
            configurations,
            routes,
            late_responses: LateResponses::draw(seed, mix),
            faults,
            demand: (begin, end),
            end: over + 12 * SECOND,
        }
    }

    /// Returns the configurations as weir reads them.
    pub fn configs(&self) -> Result<Vec<Arc<Config>>, String> {
        let read = |one: &Configuration| {
            let text = self.yaml(one);
            let loaded = config::parse(Path::new("simulated.yaml"), &text);
            loaded.map(|loaded| loaded.config).map_err(|error| format!("{error}\n{text}"))
        };
        self.configurations.iter().map(read).collect()
    }

    fn yaml(&self, configuration: &Configuration) -> String {
        let (timeout, fleet_size) = (self.store_timeout_ms, self.fleet_size);
        let mut text = format!(
            "store:\n  redis: {{url: \"redis://127.0.0.1:6379\", timeout: {timeout}ms, fleet_size: {fleet_size}, pool_size: 2}}\n"
        );
        text.push_str("limiters:\n");
        configuration.limiters.iter().for_each(|limiter| limiter.write(&mut text));
        text.push_str("routes:\n  - {name: all, match: {}, upstream: \"http://127.0.0.1:1\"");
        if self.routes.iter().any(|route| route.has_own_costs) {
            // Without it no limiter would have a cost of its own.
            let name = |(place, limiter): (usize, &Limiter)| match place {
                0 => limiter.name.clone(),
                _ => format!("{{name: {}, cost: {{header: x-cost}}}}", limiter.name),
            };
            let names: Vec<String> = configuration.limiters.iter().enumerate().map(name).collect();
            let _ = write!(text, ", limiters: [{}]", names.join(", "));
        }
        text.push_str("}\n");
        text
    }

    /// Returns the names of the limiters of each route that a configuration still has.
    pub fn routes_of(&self, configuration: usize) -> Vec<Vec<String>> {
        let limiters = &self.configurations[configuration].limiters;
        let has = |name: &&String| limiters.iter().any(|limiter| limiter.name == **name);
        self.routes.iter().map(|route| route.limiters.iter().filter(has).cloned().collect()).collect()
    }
}

impl Limit {
    fn draw(mix: Mix, rng: &mut Rng) -> Limit {
        let (rate, per) = match mix {
            Mix::Standard => (40, 2 * SECOND),
            _ => {
                let rates = [
                    (2, 10 * SECOND),
                    (20, SECOND),
                    (40, 2 * SECOND),
                    (40, 2 * SECOND),
                    (50, 5 * SECOND),
                    (100, SECOND),
                    (40, 20 * SECOND),
                    (30, 10 * SECOND),
                    (10, 60 * SECOND),
                    (10, SECOND),
                ];
                rates[rng.usize(..rates.len())]
            }
        };
        if mix == Mix::Cells {
            let precision = Some([2, 5, 16][rng.usize(..3)]);
            return Limit { rate, per, algorithm: Algorithm::SlidingWindow, precision };
        }
        let algorithm = match rng.u8(..if mix == Mix::Standard { 1 } else { 8 }) {
            0..=2 => Algorithm::SlidingWindow,
            3 => Algorithm::TokenBucket { burst: rng.u64(1..=rate) },
            4 => Algorithm::LeakyBucket,
            5 | 6 => Algorithm::FixedWindow,
            _ => Algorithm::WarmUp,
        };
        Limit { rate, per, algorithm, precision: None }
    }

    fn write(&self, text: &mut String) {
        let Limit { rate, per, algorithm, precision } = *self;
        let _ = write!(text, "{{rate: {rate}, per: {}ms, algorithm: ", per / MILLI);
        let _ = match algorithm {
            Algorithm::SlidingWindow => {
                let precision = precision.map(|precision| format!(", precision: {precision}"));
                write!(text, "sliding_window{}}}", precision.unwrap_or_default())
            }
            Algorithm::TokenBucket { burst } => write!(text, "token_bucket, burst: {burst}}}"),
            Algorithm::LeakyBucket => write!(text, "leaky_bucket}}"),
            Algorithm::FixedWindow => write!(text, "fixed_window}}"),
            Algorithm::WarmUp => write!(text, "warm_up, warm_up: 5s, cold: 3}}"),
        };
    }
}

impl Limiter {
    fn draw(name: String, mix: Mix, rng: &mut Rng) -> Limiter {
        let mut limits = vec![Limit::draw(mix, rng)];
        let is_random = mix.is_random();
        if is_random && rng.u8(..4) == 0 {
            let Limit { rate, per, precision, .. } = limits[0];
            if per <= 2 * SECOND {
                let (rate, per) = (rate * 15 / 2, per * 10);
                limits.push(Limit { rate, per, algorithm: Algorithm::SlidingWindow, precision });
            }
        }
        let queue = (!is_random || rng.u8(..4) > 0).then(|| {
            let timeout = if is_random { [500, 2000, 3000, 5000][rng.usize(..4)] } else { 3000 };
            (timeout * MILLI, if is_random { [10, 100, 1000][rng.usize(..3)] } else { 1000 })
        });
        let is_per_replica = is_random && rng.u8(..20) == 0;
        if is_per_replica && limits[0].algorithm == Algorithm::FixedWindow {
            // Its windows are those of the replica's clock, which the oracle does not see.
            limits[0].algorithm = Algorithm::SlidingWindow;
        }
        Limiter {
            name,
            limits,
            queue,
            policy: if is_random {
                ["local", "local", "local", "reject", "reject", "allow"][rng.usize(..6)]
            } else {
                "local"
            },
            group: None,
            is_keyed: is_random && rng.u8(..6) == 0,
            is_shadow: is_random && rng.u8(..12) == 0,
            is_per_replica,
            follows_upstream: is_random && rng.u8(..8) == 0,
            share: None,
            guard: None,
            max_partitions: None,
        }
    }

    /// Returns the guard in force.
    pub fn guard(&self) -> u64 {
        self.guard.unwrap_or_else(|| (self.shortest() / 100).clamp(MILLI, 20 * MILLI))
    }

    fn shortest(&self) -> u64 {
        self.limits.iter().map(|limit| limit.per).min().unwrap_or_default()
    }

    /// Puts a short limit beside one of an hour, which is used up within seconds, or never.
    fn put_beside_an_hour(&mut self, rng: &mut Rng) {
        (self.is_shadow, self.is_per_replica, self.follows_upstream) = (false, false, false);
        self.limits.truncate(1);
        let short = &mut self.limits[0];
        while short.per > 5 * SECOND {
            *short = Limit::draw(Mix::Random, rng);
        }
        let rate =
            [rng.u64(40..200), rng.u64(40..200), short.rate * 2000 * SECOND / short.per][rng.usize(..3)];
        let algorithm = [Algorithm::SlidingWindow, Algorithm::FixedWindow][usize::from(rng.u8(..4) == 0)];
        self.limits.push(Limit { rate, per: HOUR, algorithm, precision: None });
        if rng.bool() {
            self.limits.swap(0, 1);
        }
    }

    /// Makes two limiters fit for one route whose limiters have costs of their own.
    fn serve_with(&mut self, other: &mut Limiter) {
        other.is_per_replica = false;
        self.is_per_replica = false;
        (self.is_keyed, self.policy) = (other.is_keyed, other.policy);
        self.queue = other.queue.and(self.queue.or(other.queue));
    }

    fn write(&self, text: &mut String) {
        let _ = write!(text, "  {}:\n    limits: [", self.name);
        for (place, limit) in self.limits.iter().enumerate() {
            text.push_str(if place > 0 { ", " } else { "" });
            limit.write(text);
        }
        let _ = write!(text, "]\n    on_store_failure: {}\n", self.policy);
        let _ = match self.queue {
            Some((timeout, most)) => {
                writeln!(text, "    queue: {{timeout: {}ms, max_waiting: {most}}}", timeout / MILLI)
            }
            None => writeln!(text, "    queue: off"),
        };
        if let Some(guard) = self.guard {
            let _ = writeln!(text, "    guard: {}ms", guard / MILLI);
        }
        if let Some(most) = self.max_partitions {
            let _ = writeln!(text, "    max_partitions: {most}");
        }
        if let Some(share) = self.share {
            let _ = writeln!(text, "    share: {share}");
        }
        if let Some(group) = self.group {
            let _ = writeln!(text, "    group: {group}");
        }
        for (is_set, line) in [
            (self.is_keyed, "key: [\"header:x-tenant\"]"),
            (self.is_shadow, "mode: shadow"),
            (self.is_per_replica, "scope: per_replica"),
            (self.follows_upstream, "sync: headers"),
        ] {
            if is_set {
                let _ = writeln!(text, "    {line}");
            }
        }
    }
}

impl Configuration {
    /// Returns a configuration with one change that an operator might make.
    fn changed(&self, rng: &mut Rng) -> Configuration {
        let mut limiters = self.limiters.clone();
        let (count, place) = (limiters.len(), rng.usize(..limiters.len()));
        let limiter = &mut limiters[place];
        match rng.u8(..7) {
            0 => limiter.limits[0].rate = (limiter.limits[0].rate / 2).max(1),
            1 => limiter.limits[0].rate *= 2,
            2 => limiter.limits[0] = Limit { algorithm: Algorithm::SlidingWindow, ..limiter.limits[0] },
            3 if !limiter.is_per_replica => limiter.limits[0].algorithm = Algorithm::FixedWindow,
            4 => {
                // Limiters of one route stay in one group.
                limiters.iter_mut().for_each(|limiter| limiter.group = Some("other"));
            }
            5 => limiter.queue = limiter.queue.map(|(timeout, most)| (timeout / 2, most)),
            _ if count > 1 => drop(limiters.remove(place)),
            _ => limiter.policy = "reject",
        }
        for limiter in &mut limiters {
            let rate = limiter.limits[0].rate;
            if let Algorithm::TokenBucket { burst } = &mut limiter.limits[0].algorithm {
                *burst = (*burst).min(rate);
            }
        }
        Configuration { limiters }
    }

    /// Gives some limiters another guard, and some with a key a bound of their partitions. A window is longer than the guard and the half
    /// second after a reload in which slots are used as they were booked.
    fn bound_anew(&mut self, rng: &mut Rng) {
        for limiter in &mut self.limiters {
            let guard = [8 * MILLI, 30 * MILLI, 100 * MILLI, 250 * MILLI][rng.usize(..4)];
            if rng.bool() && guard + 500 * MILLI < limiter.shortest() {
                limiter.guard = Some(guard);
            }
            if limiter.is_keyed && rng.bool() {
                limiter.max_partitions = Some(rng.u64(1..=3));
            }
        }
    }

    /// Returns a configuration in which one limiter has got one to three other limits, as by somebody who has learned what the upstream allows.
    fn rewritten(&self, rng: &mut Rng) -> Configuration {
        let mut limiters = self.limiters.clone();
        let place = rng.usize(..limiters.len());
        let limiter = &mut limiters[place];
        for _ in 0..rng.u8(1..=3) {
            let has_second = limiter.limits.len() > 1;
            let first = &mut limiter.limits[0];
            let factor = [2, 3, 10][rng.usize(..3)];
            match rng.u8(..7) {
                0 => first.rate = (first.rate / factor).max(1),
                1 => first.rate *= factor,
                2 => first.per = (first.per / factor / MILLI * MILLI).max(500 * MILLI),
                3 => first.per = (first.per * factor).min(120 * SECOND),
                4 => first.algorithm = Limit::draw(Mix::Random, rng).algorithm,
                5 => first.algorithm = Algorithm::TokenBucket { burst: rng.u64(1..=first.rate) },
                6 if has_second => drop(limiter.limits.remove(rng.usize(..2))),
                _ => {
                    let second =
                        Limit { rate: first.rate * 5, per: first.per * 8, ..Limit::draw(Mix::Random, rng) };
                    limiter.limits.push(second);
                }
            }
        }
        for limit in &mut limiter.limits {
            match &mut limit.algorithm {
                Algorithm::TokenBucket { burst } => *burst = (*burst).min(limit.rate),
                // A fixed window divides a day.
                algorithm @ Algorithm::FixedWindow
                    if limiter.is_per_replica || !(24 * 3600 * SECOND).is_multiple_of(limit.per) =>
                {
                    *algorithm = Algorithm::SlidingWindow;
                }
                _ => {}
            }
        }
        Configuration { limiters }
    }
}

fn draw_routes(limiters: &[Limiter], mix: Mix, is_quiet: bool, rng: &mut Rng) -> Vec<Route> {
    let is_random = mix.is_random();
    let has_own_costs = mix == Mix::Tokens;
    let shared =
        limiters.len() > 1 && (has_own_costs || rng.bool()) && limiters.iter().all(|one| !one.is_per_replica);
    let sets: Vec<Vec<&Limiter>> =
        if shared { vec![limiters.iter().collect()] } else { limiters.iter().map(|one| vec![one]).collect() };
    let mut draw = |set: &Vec<&Limiter>| {
        // A small limit of an hour is hardly used in a run, and a large one as fast as the short one beside it allows.
        let per = |limit: &Limit| if mix == Mix::Hours { limit.per.min(400 * SECOND) } else { limit.per };
        let pace = |limit: &Limit| limit.rate as f64 * SECOND as f64 / per(limit) as f64;
        let pace = set.iter().flat_map(|one| &one.limits).map(pace).fold(f64::INFINITY, f64::min);
        // Where there is no demand, nobody can say what is not used.
        let factor = if is_random && !is_quiet && !mix.is_of_recovery() {
            [0.1, 0.5, 1.0, 1.5, 3.0, 3.0][rng.usize(..6)]
        } else if mix == Mix::Away {
            // All of a window within seconds.
            60.0
        } else {
            3.0
        };
        let costly = set.iter().skip(usize::from(has_own_costs));
        let smallest = costly.flat_map(|one| &one.limits).map(cost_max).min().unwrap_or(1);
        // Without faults too, some have costs, and clients that leave or are in haste.
        let is_varied = is_random || (mix == Mix::Calm && rng.bool());
        // A run that varies without faults varies a lot: it has nothing else to show.
        let often = |odds: u8| if mix == Mix::Calm { 2 } else { odds };
        let cost_max = match mix {
            Mix::Tokens => rng.u64(1..=smallest),
            _ if is_varied && rng.u8(..often(4)) == 0 => smallest.min(5),
            _ => 1,
        };
        let percent = |rng: &mut Rng, odds: u8, most: u64| {
            if is_varied && rng.u8(..often(odds)) == 0 { rng.u64(1..=most) } else { 0 }
        };
        let partitions = if set.iter().any(|one| one.is_keyed) { rng.u64(1..=3) } else { 1 };
        Route {
            limiters: set.iter().map(|one| one.name.clone()).collect(),
            partitions,
            demand: (pace * factor * partitions as f64 * 2.0 / (1 + cost_max) as f64).max(0.3),
            cost_max,
            has_own_costs,
            callers: CALLERS,
            hasty_percent: percent(rng, 4, 50),
            leaving_percent: percent(rng, 4, 50),
            settled_percent: if has_own_costs { rng.u64(30..=100) } else { percent(rng, 8, 30) },
        }
    };
    sets.iter().map(&mut draw).collect()
}

/// Returns the largest cost that a limit can ever hold.
fn cost_max(limit: &Limit) -> u64 {
    match limit.algorithm {
        Algorithm::TokenBucket { burst } => burst,
        // Where permits are spaced, those of a request are due together, and what follows is so much further away.
        _ => limit.rate,
    }
}
