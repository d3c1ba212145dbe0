//! Callers that take permits for some seconds, and their throughput.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::{JoinSet, yield_now};
use tokio::time::{MissedTickBehavior, interval, sleep};
use weir::limiter::{LimiterSet, Refusal};

use crate::fleet::{Fleet, Window, take};
use crate::load::Result;
use crate::sample::Sample;
use crate::server::Server;

/// The rate of callers that come regardless of earlier ones.
pub(crate) const OPEN_PER_SECOND: u32 = 20_000;
/// The most of those callers that are under way: beyond it the machine does not keep up, and the table shows that.
const OPEN_MAX: usize = 10_000;
/// The interval of [`Callers::EachMillisecond`].
const TICK: Duration = Duration::from_millis(1);

const REPLICAS: [usize; 2] = [1, 3];

/// The callers that ask for permits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Callers {
    /// This many callers, each of which asks for its next permit as soon as it has one.
    Loop(usize),
    /// [`OPEN_PER_SECOND`], evenly spread: the least that there is to collect.
    Spread,
    /// [`OPEN_PER_SECOND`], all of a millisecond at once, as a timer of milliseconds makes them.
    EachMillisecond,
}

/// A load.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) window: Window,
    pub(crate) replicas: usize,
    pub(crate) callers: Callers,
}

/// The default guard of a window of a second.
const GUARD: Duration = Duration::from_millis(10);
/// A limit that is never reached, with the largest state: under load it has as many instants as the precision keeps
/// apart.
pub(crate) const LONG: Window = Window { permits: 1_000_000_000, per: Duration::from_secs(1), guard: GUARD };
/// A limit that is never reached, with a handful of instants in its state.
pub(crate) const SHORT: Window = Window { per: Duration::from_millis(1), ..LONG };

/// Returns both windows with callers in a loop, in one replica and spread over three, and then the open callers.
pub(crate) fn all() -> Vec<Load> {
    let mut loads = Vec::new();
    let mut add = |window, callers: &[Callers]| {
        for replicas in REPLICAS {
            loads.extend(callers.iter().map(|callers| Load { window, replicas, callers: *callers }));
        }
    };
    let in_a_loop = [1, 10, 100, 1000].map(Callers::Loop);
    add(LONG, &in_a_loop);
    add(SHORT, &in_a_loop);
    add(LONG, &[Callers::Spread, Callers::EachMillisecond]);
    loads
}

/// The throughput of one round.
#[derive(Clone, Copy)]
pub(crate) struct Throughput {
    pub(crate) permits_per_second: f64,
    pub(crate) calls_per_permit: f64,
    pub(crate) script_us_per_permit: f64,
    pub(crate) redis_us_per_permit: f64,
    pub(crate) own_us_per_permit: f64,
    /// The parts of a core that Redis used.
    pub(crate) redis_cores: f64,
}

impl Throughput {
    fn between(before: &Sample, after: &Sample) -> Result<Throughput> {
        let permits = after.permits - before.permits;
        if permits == 0 {
            return Err("not one permit came".into());
        }
        let (permits, seconds) = (permits as f64, (after.at - before.at).as_secs_f64());
        let micros = |time: fn(&Sample) -> Duration| (time(after) - time(before)).as_secs_f64() * 1e6;
        let redis_us = micros(|sample| sample.redis);
        Ok(Throughput {
            permits_per_second: permits / seconds,
            calls_per_permit: (after.calls - before.calls) / permits,
            script_us_per_permit: micros(|sample| sample.script) / permits,
            redis_us_per_permit: redis_us / permits,
            own_us_per_permit: micros(|sample| sample.own) / permits,
            redis_cores: redis_us / 1e6 / seconds,
        })
    }

    /// Returns the permits per second that Redis would carry with a whole core.
    pub(crate) fn per_redis_core(&self) -> f64 {
        1e6 / self.redis_us_per_permit
    }
}

impl Load {
    pub(crate) async fn measure(&self, server: &mut Server, time: Duration) -> Result<Throughput> {
        server.flush().await?;
        let fleet = Fleet::start(server, self.window, self.replicas).await?;
        let counted = Arc::new(Counted::default());
        let mut tasks = JoinSet::new();
        match self.callers {
            Callers::Loop(count) => {
                for limiter_set in fleet.limiter_sets.iter().cycle().take(count) {
                    tasks.spawn(in_a_loop(limiter_set.clone(), counted.clone()));
                }
            }
            Callers::Spread | Callers::EachMillisecond => {
                let is_spread = self.callers == Callers::Spread;
                tasks.spawn(open(fleet.limiter_sets.clone(), is_spread, counted.clone()));
            }
        }
        // Until connections are busy and code is warm.
        sleep(time / 4).await;
        let before = Sample::take(server, || counted.permits()).await?;
        sleep(time).await;
        let after = Sample::take(server, || counted.permits()).await?;
        counted.is_over.store(true, Ordering::Relaxed);
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        fleet.close().await;
        Throughput::between(&before, &after)
    }
}

impl fmt::Display for Load {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Load { window, replicas, callers } = self;
        write!(formatter, "{window}, {replicas} replica(s), {callers}")
    }
}

impl fmt::Display for Callers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Callers::Loop(count) => write!(formatter, "{count}"),
            Callers::Spread => write!(formatter, "{OPEN_PER_SECOND} a second, one by one"),
            Callers::EachMillisecond => {
                write!(
                    formatter,
                    "{OPEN_PER_SECOND} a second, {} a millisecond at once",
                    OPEN_PER_SECOND / 1000
                )
            }
        }
    }
}

/// The counters that the callers share.
#[derive(Default)]
struct Counted {
    permits: AtomicU64,
    is_over: AtomicBool,
}

impl Counted {
    fn permits(&self) -> u64 {
        self.permits.load(Ordering::Relaxed)
    }

    fn count(&self) {
        self.permits.fetch_add(1, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

async fn in_a_loop(limiter_set: LimiterSet, counted: Arc<Counted>) -> std::result::Result<(), Refusal> {
    while !counted.is_over() {
        take(&limiter_set).await?;
        counted.count();
        // Yields as a request does that waits for its response. A prefetched permit makes no caller wait, and one
        // caller would take them all.
        yield_now().await;
    }
    Ok(())
}

/// Starts callers, each in a task of its own like a request, in turn at each replica.
async fn open(
    limiter_sets: Vec<LimiterSet>,
    is_spread: bool,
    counted: Arc<Counted>,
) -> std::result::Result<(), Refusal> {
    let (mut callers, begun, mut come) = (JoinSet::new(), Instant::now(), 0_u128);
    let mut limiter_sets = limiter_sets.iter().cycle();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    while !counted.is_over() {
        let due = begun.elapsed().as_nanos() * u128::from(OPEN_PER_SECOND) / 1_000_000_000;
        while come < due
            && callers.len() < OPEN_MAX
            && let Some(limiter_set) = limiter_sets.next().cloned()
        {
            let counted = counted.clone();
            callers.spawn(async move {
                take(&limiter_set).await?;
                counted.count();
                Ok(())
            });
            come += 1;
        }
        while let Some(ended) = callers.try_join_next() {
            ended.unwrap_or(Ok(()))?;
        }
        if is_spread {
            // No timer is this fine: the task looks again after all others, and takes the rest of the core.
            yield_now().await;
        } else {
            ticks.tick().await;
        }
    }
    while let Some(ended) = callers.join_next().await {
        ended.unwrap_or(Ok(()))?;
    }
    Ok(())
}
