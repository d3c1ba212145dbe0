//! One replica: today's real `Limiters` over the real `RedisStore`, on a paused runtime of its own that the world steps.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;
use weir::clock::{Clock, Micros};
use weir::config::model;
use weir::entropy::Entropy;
use weir::limiter::model::{Limiter, LimiterName};
use weir::limiter::store::Store;
use weir::limiter::{Applied, LimiterSet, Limiters};
use weir::redis::RedisStore;
use weir::telemetry::Metrics;

use crate::client::{Command, Note, Notes, Request};
use crate::network::Dialer;

thread_local! {
    /// Wakes the future that waits until the runtime of this thread has nothing to do.
    static IDLE: RefCell<Option<Waker>> = const { RefCell::new(None) };
    /// The time since the machine of the replica that is being stepped has started.
    static SINCE_BOOT: Cell<u64> = const { Cell::new(0) };
}

/// Waits until the runtime has nothing to do. Tokio would move its paused clock then; this keeps it from that.
async fn idle() {
    let mut has_parked = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_parked, true) {
            return Poll::Ready(());
        }
        IDLE.with_borrow_mut(|idle| *idle = Some(context.waker().clone()));
        Poll::Pending
    })
    .await;
}

/// The clock of a machine: it may run too fast or too slow, and it may have stood still.
#[derive(Clone, Copy, Debug)]
pub struct LocalClock {
    /// True time and time of this clock at one instant.
    anchor: (u64, u64),
    /// By how many millionths it is too fast.
    drift_ppm: i64,
}

impl LocalClock {
    pub fn new(now: u64, shown: u64, drift_ppm: i64) -> LocalClock {
        LocalClock { anchor: (now, shown), drift_ppm }
    }

    /// Returns what the clock shows at an instant of true time.
    pub fn shown(&self, now: u64) -> u64 {
        let passed = i128::from(now.saturating_sub(self.anchor.0));
        let shown = i128::from(self.anchor.1) + passed * (1_000_000 + i128::from(self.drift_ppm)) / 1_000_000;
        u64::try_from(shown).unwrap_or_default()
    }

    /// Returns the first instant of true time at which the clock shows at least this.
    pub fn when(&self, shown: u64) -> u64 {
        let missing = i128::from(shown.saturating_sub(self.anchor.1)) * 1_000_000;
        let rate = 1_000_000 + i128::from(self.drift_ppm);
        self.anchor.0 + u64::try_from((missing + rate - 1) / rate).unwrap_or_default()
    }

    /// Moves the clock by a step, forward or back.
    pub fn step(&mut self, now: u64, by: i64) {
        self.anchor = (now, self.shown(now).saturating_add_signed(by));
    }
}

/// The settings of a replica's start.
pub struct Start<'a> {
    /// The true time.
    pub now: u64,
    /// The wall time that its machine shows, in microseconds since the Unix epoch.
    pub wall: u64,
    pub drift_ppm: i64,
    pub seed: u64,
    pub store: &'a model::RedisStore,
    pub limiters: &'a [Arc<Limiter>],
    pub routes: &'a [Vec<String>],
}

/// A running replica.
pub struct Replica {
    runtime: Runtime,
    limiters: Limiters,
    routes: Vec<Option<LimiterSet>>,
    pub dialer: Dialer,
    notes: Notes,
    /// The replica's monotonic clock, from its start on.
    clock: LocalClock,
    /// The time of `clock` to which the runtime was stepped.
    stepped: u64,
    /// How long the machine has slept.
    slept: u64,
    end: CancellationToken,
}

impl Replica {
    /// Starts a replica, as `App::start` does. It notes that it is ready when the store has settled.
    pub fn start(start: &Start<'_>) -> Result<Replica, String> {
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .on_thread_park(|| {
                if let Some(waker) = IDLE.with_borrow_mut(Option::take) {
                    waker.wake();
                }
            })
            .build()
            .map_err(|error| error.to_string())?;
        let inside = runtime.enter();
        let draws = Mutex::new(fastrand::Rng::with_seed(start.seed));
        let entropy = Entropy::new(move || draws.lock().unwrap_or_else(PoisonError::into_inner).u64(..));
        let (metrics, dialer, end) = (Metrics::new(), Dialer::default(), CancellationToken::new());
        let store = RedisStore::over(Arc::new(dialer.clone()), start.store, entropy.clone(), metrics.store());
        let store = Arc::new(store.map_err(|error| error.to_string())?);
        SINCE_BOOT.set(0);
        let clock = Clock::starting_at(Micros(start.wall), || Micros(SINCE_BOOT.get()));
        let (shared, size): (Arc<dyn Store>, _) = (store.clone(), start.store.fleet_size);
        let limiters = Limiters::with_entropy(shared, clock, entropy, size, metrics);
        let (probing, listening) = (store.clone(), store);
        let (probe_end, listen_end) = (end.clone(), end.clone());
        runtime.spawn(async move { probing.probe(probe_end).await });
        runtime.spawn(async move { listening.listen(listen_end).await });
        drop(inside);
        let clock = LocalClock::new(start.now, 0, start.drift_ppm);
        let notes = Notes::default();
        let routes = Vec::new();
        let mut replica =
            Replica { runtime, limiters, routes, dialer, notes, clock, stepped: 0, slept: 0, end };
        replica.configure(start.limiters, start.routes)?;
        replica.spawn_recovery();
        Ok(replica)
    }

    fn spawn_recovery(&self) {
        let (limiters, notes, end) = (self.limiters.clone(), self.notes.clone(), self.end.clone());
        self.runtime.spawn(async move {
            limiters.settle().await;
            notes.add(Note::Ready);
            let following = limiters.clone();
            let ended = end.clone();
            tokio::spawn(async move { ended.run_until_cancelled(following.follow()).await });
            end.run_until_cancelled(limiters.keep()).await;
        });
    }

    /// Puts these limiters and routes in force: a reload.
    pub fn configure(&mut self, limiters: &[Arc<Limiter>], routes: &[Vec<String>]) -> Result<(), String> {
        self.show_clock();
        let _inside = self.runtime.enter();
        let prepared = self.limiters.prepare(limiters);
        let sets = routes.iter().map(|names| {
            let names: Vec<_> = names.iter().filter_map(|name| LimiterName::parse(name)).collect();
            prepared.limiter_set(&names).map_err(|error| error.to_string())
        });
        self.routes = sets.collect::<Result<_, _>>()?;
        prepared.commit();
        self.limiters.configured(&"simulated".into());
        Ok(())
    }

    /// Begins a request. Its notes come with the next steps.
    pub fn begin(&self, request: Request) {
        if let Some(Some(limiter_set)) = self.routes.get(request.route) {
            self.runtime.spawn(request.run(limiter_set.clone(), self.notes.clone()));
        }
    }

    /// Begins what an operator asks for.
    pub fn operate(&self, limiter: &str, command: Command) {
        let name = LimiterName::parse(limiter);
        let Some(Ok(inspection)) = name.map(|name| self.limiters.find(&name, None)) else { return };
        let (limiter, notes) = (limiter.to_owned(), self.notes.clone());
        self.runtime.spawn(async move {
            let done = match command {
                Command::Pause(lasting) => matches!(inspection.pause(lasting).await, Ok(Applied::Fleet)),
                Command::Reset => inspection.reset().await.is_ok(),
            };
            notes.add(Note::Operated { limiter, command, done });
        });
    }

    /// Begins to end, as after SIGTERM when all requests are done. It notes the end.
    pub fn close(&self) {
        let (limiters, notes) = (self.limiters.clone(), self.notes.clone());
        self.runtime.spawn(async move {
            limiters.close().await;
            notes.add(Note::Closed);
        });
    }

    /// Shows the time since the start of the replica's machine to its tasks. It has run on while the machine slept.
    fn show_clock(&self) {
        SINCE_BOOT.set(self.stepped + self.slept);
    }

    /// Runs everything that is to be done until an instant of true time. Returns what has happened.
    pub fn step(&mut self, now: u64) -> Vec<Note> {
        let shown = self.clock.shown(now);
        let by = shown.saturating_sub(self.stepped);
        self.stepped = self.stepped.max(shown);
        self.show_clock();
        self.runtime.block_on(async {
            if by > 0 {
                tokio::time::advance(Duration::from_micros(by)).await;
            }
            // Timers that were due ring at the end of the first, and what they wake is done in the second.
            idle().await;
            idle().await;
        });
        self.notes.take()
    }

    /// Ends the replica, as SIGKILL does. Returns what has become of its requests.
    pub fn end(self) -> Vec<Note> {
        let Replica { runtime, notes, .. } = self;
        drop(runtime);
        notes.take()
    }

    /// Returns when the next timer can ring: at the next whole millisecond of its runtime.
    pub fn next_tick(&self) -> u64 {
        self.clock.when((self.stepped / 1000 + 1) * 1000)
    }

    /// Lets the machine sleep for a time: its monotonic clock stands still meanwhile.
    pub fn sleep(&mut self, now: u64, slept: u64) {
        self.clock.step(now, -i64::try_from(slept).unwrap_or(i64::MAX));
        self.slept += slept;
    }
}
