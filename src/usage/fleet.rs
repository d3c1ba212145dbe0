//! The figures of the whole fleet: each replica tells its own every few seconds, and adds up what all have told.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::{Duration, Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::clock::StoreTime;
use super::figures::{
    Depth, Figures, LimitFigures, LimitReading, LimiterFigures, Reading, Sharing, UpstreamCount,
};
use super::forecast::Use;
use super::numbers::float;
use super::pace::{PARTS, Pace};
use super::partitions::TopPartitions;
use super::store::{ReplicaFigures, UsageStore};
use super::waits::{self, Waits};
use crate::clock::Micros;

/// Time between two looks at this replica's counts.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Samples between two exchanges, for up to [`REPLICAS_OF_PACE`] replicas; with more of them exchanges are rarer, so that the store has
/// no more to do for each.
const SAMPLES_PER_EXCHANGE: u32 = 5;
const REPLICAS_OF_PACE: u32 = 16;
/// How many exchanges a replica may miss until it no longer counts.
const MISSED_MAX: u32 = 3;
/// The samples over which a rate is taken.
const RATE_SAMPLES: usize = 10;
/// The shortest window of which a forecast is made.
const FORECAST_PER_MIN: Duration = Duration::from_secs(3600);

/// One limiter in the whole fleet.
#[derive(Clone, PartialEq, Debug)]
pub struct FleetLimiter {
    /// The name.
    pub name: Arc<str>,
    /// Permits that the fleet grants in a second.
    pub granted_per_second: f64,
    /// Permits that the fleet refuses in a second.
    pub refused_per_second: f64,
    /// Requests that wait in the fleet.
    pub waiting: u64,
    /// True while it is paused.
    pub is_paused: bool,
    /// The wait in seconds that half, 95 % and 99 % of the last minute's requests did not exceed; `None` without requests.
    pub waits: Option<[f64; 3]>,
    /// Of each long limit: its label, and in how many seconds it is spent at the present pace; infinity where it lasts.
    pub exhausted_in: Vec<(Arc<str>, f64)>,
    /// The upstream's own count of its limits, as a replica was told last.
    pub upstream_counts: Vec<UpstreamCount>,
    /// The partitions that used most and waited longest in the last minutes; `None` without a key.
    pub partitions: Option<Arc<TopPartitions>>,
}

/// The counts of a limiter of this replica over time.
struct Track {
    /// Granted and refused at the last samples, with their instants.
    samples: VecDeque<(u64, u64, u64)>,
    waits: Waits,
    /// Of each long limit, by its label.
    paces: HashMap<Arc<str>, Pace>,
}

#[derive(Default)]
struct State {
    tracks: HashMap<Arc<str>, Track>,
    readings: Vec<Reading>,
    /// The last figures of all replicas, this one included, and when they came.
    told: Vec<(Duration, Figures)>,
    told_at: Option<Instant>,
    limiters: Vec<FleetLimiter>,
}

/// The figures of the fleet.
pub struct Fleet {
    read: Box<dyn Fn(Depth) -> Vec<Reading> + Send + Sync>,
    /// The bounds of the waits that replicas count.
    wait_bounds: &'static [f64],
    store: Arc<dyn UsageStore>,
    time: Arc<StoreTime>,
    state: Mutex<State>,
}

impl Fleet {
    /// Creates the figures of a fleet, of which this replica tells what `read` returns. Waits are counted by these bounds, in seconds.
    pub fn new(
        read: impl Fn(Depth) -> Vec<Reading> + Send + Sync + 'static,
        wait_bounds: &'static [f64],
        store: Arc<dyn UsageStore>,
        time: Arc<StoreTime>,
    ) -> Fleet {
        Fleet { read: Box::new(read), wait_bounds, store, time, state: Mutex::default() }
    }

    /// Samples and exchanges until `end`.
    pub async fn run(&self, end: CancellationToken) {
        let mut ticks = interval(SAMPLE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut samples_left = 0;
        loop {
            tokio::select! {
                biased;
                () = end.cancelled() => break,
                _ = ticks.tick() => {}
            }
            let depth = if samples_left == 0 { Depth::Partitions } else { Depth::Counts };
            self.sample(self.time.now_us(), depth);
            if samples_left == 0 {
                samples_left = SAMPLES_PER_EXCHANGE * self.exchanges_every();
                self.exchange(false).await;
            }
            samples_left -= 1;
        }
        // After a failure this replica is no longer counted when it has been silent for long enough.
        self.exchange(true).await;
    }

    /// Returns the limiters of this replica's configuration as the whole fleet uses them, in its order.
    pub fn limiters(&self) -> Vec<FleetLimiter> {
        let state = self.state();
        let passed = state.told_at.map_or(0.0, |at| at.elapsed().as_secs_f64());
        let aged = state.limiters.iter().cloned().map(|limiter| FleetLimiter {
            exhausted_in: limiter
                .exhausted_in
                .into_iter()
                .map(|(label, seconds)| (label, (seconds - passed).max(0.0)))
                .collect(),
            ..limiter
        });
        aged.collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns by how much exchanges are rarer, because of the number of replicas.
    fn exchanges_every(&self) -> u32 {
        u32::try_from(self.state().told.len()).unwrap_or(u32::MAX).div_ceil(REPLICAS_OF_PACE).max(1)
    }

    /// Takes in this replica's counts.
    fn sample(&self, now_us: u64, depth: Depth) {
        let readings = (self.read)(depth);
        let mut state = self.state();
        state.tracks.retain(|name, _| readings.iter().any(|reading| reading.name == *name));
        for reading in &readings {
            let track = state.tracks.entry(Arc::clone(&reading.name)).or_insert_with(|| Track {
                samples: VecDeque::new(),
                waits: Waits::default(),
                paces: HashMap::new(),
            });
            track.sample(now_us, reading);
        }
        state.readings = readings;
    }

    async fn exchange(&self, leaves: bool) {
        let now_us = self.time.now_us();
        let mine = self.state().figures(now_us);
        let counts_for = SAMPLE_INTERVAL * SAMPLES_PER_EXCHANGE * self.exchanges_every() * MISSED_MAX;
        // Names and numbers can always be written.
        let text = serde_json::to_string(&mine).unwrap_or_default();
        let told = match self.store.exchange(&text, counts_for, leaves).await {
            Ok((now_us, told)) => {
                self.time.set(now_us);
                told
            }
            // Without the store this replica knows of itself alone.
            Err(_) => Vec::new(),
        };
        let others = told.into_iter().filter(|told| !told.is_this).filter_map(
            |ReplicaFigures { ago, figures, .. }| {
                // Another version of weir may tell something else.
                Some((ago, serde_json::from_str::<Figures>(&figures).ok()?))
            },
        );
        let told: Vec<_> = std::iter::once((Duration::ZERO, mine)).chain(others).collect();
        let mut state = self.state();
        state.limiters =
            state.readings.iter().map(|reading| added_up(reading, &told, self.wait_bounds)).collect();
        state.told = told;
        state.told_at = Some(Instant::now());
    }
}

impl Track {
    fn sample(&mut self, now_us: u64, reading: &Reading) {
        if self.samples.len() > RATE_SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back((now_us, reading.granted, reading.refused));
        self.waits.sample(now_us, &reading.waits);
        let long = || reading.limits.iter().filter(|limit| is_long(limit));
        self.paces.retain(|label, _| long().any(|limit| limit.label == *label));
        for limit in long() {
            let pace = self.paces.entry(Arc::clone(&limit.label)).or_insert_with(|| Pace::new(limit.per_us));
            pace.sample(now_us, reading.granted);
        }
    }

    /// Returns the permits granted and refused in a second.
    fn rates(&self) -> (f64, f64) {
        let (Some(first), Some(last)) = (self.samples.front(), self.samples.back()) else {
            return (0.0, 0.0);
        };
        let seconds = float(last.0.saturating_sub(first.0)) / 1e6;
        if seconds <= 0.0 {
            return (0.0, 0.0);
        }
        let rate = |first: u64, last: u64| float(last.saturating_sub(first)) / seconds;
        (rate(first.1, last.1), rate(first.2, last.2))
    }
}

impl State {
    /// Returns what this replica tells.
    fn figures(&self, now_us: u64) -> Figures {
        let limiter = |reading: &Reading| {
            let track = self.tracks.get(&reading.name)?;
            let (granted_per_second, refused_per_second) = track.rates();
            let limits = reading.limits.iter().filter_map(|limit| {
                let pace = track.paces.get(&limit.label)?;
                let lately = pace.lately(now_us);
                let lately = (lately.permits, lately.over_us, lately.first_ago_us);
                let into_part_us = now_us % pace.part_us();
                let label = Arc::clone(&limit.label);
                Some(LimitFigures::new(label, lately, pace.parts(now_us), into_part_us, limit.available))
            });
            Some(LimiterFigures {
                name: Arc::clone(&reading.name),
                granted_per_second,
                refused_per_second,
                waiting: reading.waiting,
                waits: track.waits.lately(),
                limits: limits.collect(),
                upstream_counts: reading.upstream_counts.clone(),
                partitions: reading.partitions.as_deref().cloned(),
            })
        };
        Figures { limiters: self.readings.iter().filter_map(limiter).collect() }
    }
}

/// Adds up what all replicas have told of a limiter.
fn added_up(reading: &Reading, told: &[(Duration, Figures)], wait_bounds: &[f64]) -> FleetLimiter {
    let told: Vec<(Duration, &LimiterFigures)> = told
        .iter()
        .filter_map(|(ago, figures)| {
            Some((*ago, figures.limiters.iter().find(|limiter| limiter.name == reading.name)?))
        })
        .collect();
    // This replica's figures are the first.
    let of_limits = if reading.sharing == Sharing::Fleet { &told[..] } else { &told[..told.len().min(1)] };
    let forecast = |limit: &LimitReading| {
        let figures: Vec<(Duration, &LimitFigures)> = of_limits
            .iter()
            .filter_map(|(ago, limiter)| {
                Some((*ago, limiter.limits.iter().find(|told| told.label == limit.label)?))
            })
            .collect();
        (Arc::clone(&limit.label), used(limit, &figures).exhausted_in())
    };
    let sum = |of: fn(&LimiterFigures) -> f64| told.iter().map(|(_, limiter)| of(limiter)).sum();
    FleetLimiter {
        name: Arc::clone(&reading.name),
        granted_per_second: sum(|limiter| limiter.granted_per_second),
        refused_per_second: sum(|limiter| limiter.refused_per_second),
        waiting: told.iter().map(|(_, limiter)| limiter.waiting).sum(),
        is_paused: reading.is_paused,
        waits: waits::quantiles(wait_bounds, told.iter().map(|(_, limiter)| &limiter.waits[..])),
        exhausted_in: reading.limits.iter().filter(|limit| is_long(limit)).map(forecast).collect(),
        upstream_counts: latest_counts(
            told.iter().map(|(ago, limiter)| (*ago, &limiter.upstream_counts[..])),
        ),
        partitions: reading.partitions.as_ref().map(|_| {
            let told = told.iter().filter_map(|(ago, limiter)| Some((*ago, limiter.partitions.as_ref()?)));
            Arc::new(TopPartitions::added_up(told))
        }),
    }
}

/// Returns the latest of the upstream's counts of each limit, in the order of their labels.
fn latest_counts<'a>(told: impl Iterator<Item = (Duration, &'a [UpstreamCount])>) -> Vec<UpstreamCount> {
    let mut latest: BTreeMap<&str, UpstreamCount> = BTreeMap::new();
    for (ago, counts) in told {
        for count in counts {
            let age_us = count.age_us.saturating_add(Micros::from(ago).0);
            if latest.get(&*count.limit).is_none_or(|known| age_us < known.age_us) {
                latest.insert(&count.limit, UpstreamCount { age_us, ..count.clone() });
            }
        }
    }
    latest.into_values().collect()
}

/// Returns the use of a limit by those that have told of it.
fn used(limit: &LimitReading, told: &[(Duration, &LimitFigures)]) -> Use {
    // The use began with the first permit of any replica.
    let first_ago_us = told.iter().filter_map(|(_, figures)| figures.lately.2).max();
    let pace = told.iter().map(|(_, figures)| {
        let (permits, over_us, _) = figures.lately;
        let over_us = first_ago_us.map_or(over_us, |first_us| over_us.min(first_us));
        if over_us == 0 { 0.0 } else { float(permits) * 1e6 / float(over_us) }
    });
    let mut parts = [0.0; PARTS];
    for (age, part) in parts.iter_mut().enumerate() {
        *part = told.iter().map(|(_, figures)| float(figures.part(age))).sum();
    }
    let fresh = |figures: &(Duration, &LimitFigures)| {
        let (available, age_us) = figures.1.available?;
        Some((Duration::from_micros(age_us) + figures.0, available))
    };
    let available = told.iter().filter_map(fresh).min().map(|(_, available)| float(available));
    let known: f64 = parts.iter().sum();
    Use {
        rate: float(limit.rate),
        per: float(limit.per_us) / 1e6,
        refill: limit.refill,
        available: available.unwrap_or_else(|| (float(limit.rate) - known).max(0.0)),
        pace: pace.sum(),
        parts,
        into_part: told.first().map_or(0.0, |(_, figures)| float(figures.into_part_us) / 1e6),
    }
}

fn is_long(limit: &LimitReading) -> bool {
    u128::from(limit.per_us) >= FORECAST_PER_MIN.as_micros()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use futures_util::future::{BoxFuture, FutureExt, ready};
    use tokio::time::sleep;

    use super::*;
    use crate::usage::forecast::Refill;
    use crate::usage::period::Period;
    use crate::usage::store::{Record, Stamp, UsageError};
    use crate::usage::unstored::Batch;

    /// A store on virtual time that replicas share.
    struct Shared {
        begin: Instant,
        told: Arc<Mutex<HashMap<u64, (Instant, String)>>>,
        replica: u64,
    }

    const BEGIN_US: u64 = 1_800_000_123_456_789;

    impl UsageStore for Shared {
        fn add<'a>(&'a self, _batch: &'a Batch) -> BoxFuture<'a, Result<Stamp, UsageError>> {
            ready(Err(UsageError("none".to_owned()))).boxed()
        }

        fn read<'a>(&'a self, _periods: &'a [Period]) -> BoxFuture<'a, Result<Record, UsageError>> {
            ready(Err(UsageError("none".to_owned()))).boxed()
        }

        fn exchange<'a>(
            &'a self,
            figures: &'a str,
            _counts_for: Duration,
            leaves: bool,
        ) -> BoxFuture<'a, Result<(u64, Vec<ReplicaFigures>), UsageError>> {
            let mut told = self.told.lock().unwrap();
            told.insert(self.replica, (Instant::now(), figures.to_owned()));
            if leaves {
                told.remove(&self.replica);
            }
            let answer = told.iter().map(|(replica, (at, figures))| ReplicaFigures {
                is_this: *replica == self.replica,
                ago: at.elapsed(),
                figures: figures.clone(),
            });
            let now_us = BEGIN_US + u64::try_from(self.begin.elapsed().as_micros()).unwrap();
            ready(Ok((now_us, answer.collect()))).boxed()
        }
    }

    #[test]
    fn of_the_upstreams_counts_the_latest_is_shown() {
        let count =
            |limit: &str, apart, age_us| UpstreamCount { limit: limit.into(), remaining: 4, apart, age_us };
        let replicas = [
            (0, vec![count("9/1m", 1, 3_000_000), count("5/1s", 2, 0)]),
            // Older than it says by the time since it was told.
            (2, vec![count("9/1m", 3, 1_500_000)]),
            (2, vec![count("9/1m", 4, 500_000)]),
        ];
        let told = replicas.iter().map(|(ago, counts)| (Duration::from_secs(*ago), &counts[..]));
        let latest = latest_counts(told);
        assert_eq!(latest, [count("5/1s", 2, 0), count("9/1m", 4, 2_500_000)]);
    }

    fn readings(granted: u64, all: u64) -> Vec<Reading> {
        let limit = |label: &str, per: u64| LimitReading {
            label: label.into(),
            rate: 1000,
            per_us: per * 1_000_000,
            refill: Refill::Rolling,
            available: Some((1000_u64.saturating_sub(all), 0)),
        };
        let limits = vec![limit("1000/1h", 3600), limit("1000/1m", 60)];
        vec![Reading {
            name: "api".into(),
            granted,
            refused: 0,
            waiting: 2,
            sharing: Sharing::Fleet,
            is_paused: false,
            waits: vec![granted, 0],
            limits,
            upstream_counts: Vec::new(),
            partitions: None,
        }]
    }

    #[tokio::test(start_paused = true)]
    async fn every_replica_foresees_the_end_of_a_window_that_an_even_pace_spends() {
        let (begin, told) = (Instant::now(), Arc::default());
        let granted: [Arc<AtomicU64>; 2] = Default::default();
        let all = {
            let granted = granted.clone();
            move || granted.iter().map(|count| count.load(Ordering::Relaxed)).sum()
        };
        let end = CancellationToken::new();
        let fleets: Vec<Arc<Fleet>> = (0..2)
            .map(|replica| {
                let (mine, all) = (granted[replica].clone(), all.clone());
                let read = move |_| readings(mine.load(Ordering::Relaxed), all());
                let store = Shared { begin, told: Arc::clone(&told), replica: replica as u64 };
                Arc::new(Fleet::new(read, &[0.001], Arc::new(store), Arc::default()))
            })
            .collect();
        for fleet in &fleets {
            let (fleet, end) = (fleet.clone(), end.clone());
            tokio::spawn(async move { fleet.run(end).await });
        }
        sleep(Duration::from_millis(7300)).await;
        assert_eq!(fleets[0].limiters()[0].exhausted_in, [("1000/1h".into(), f64::INFINITY)]);
        // Two and a half a second, of which one replica grants most.
        let began = Instant::now();
        let mut foreseen = Vec::new();
        while all() < 1000 {
            for grant in 0..5 {
                sleep(Duration::from_millis(400)).await;
                granted[usize::from(grant == 0)].fetch_add(1, Ordering::Relaxed);
            }
            if began.elapsed() > Duration::from_secs(30) && all() < 1000 {
                let [one, other] = [0, 1].map(|replica| fleets[replica].limiters()[0].exhausted_in[0].1);
                assert!((one - other).abs() < one * 0.1 + 6.0, "{one} and {other}");
                foreseen.push(began.elapsed().as_secs_f64() + one);
            }
        }
        let took = began.elapsed().as_secs_f64();
        for foreseen in &foreseen {
            assert!((foreseen - took).abs() < took * 0.1, "{foreseen} foreseen, {took} taken");
        }
        assert!(foreseen.len() > 100);
        let whole = &fleets[1].limiters()[0];
        assert!((whole.granted_per_second - 2.5).abs() < 0.3, "{whole:?}");
        assert_eq!((whole.waiting, whole.waits), (4, Some([0.0; 3])));
        end.cancel();
        sleep(Duration::from_secs(1)).await;
        assert!(told.lock().unwrap().is_empty());
    }
}
