//! The cost of the reserve script in Redis: the time of a call, the memory of a limiter, the longest call after an idle
//! time.
//!
//! `cargo bench --bench lua` needs `redis-server`. It drives the real store; the times are the server's own
//! (`SLOWLOG`), the median of many calls on the same state. Exits with 1 when a bound is broken.

mod cases;
#[expect(dead_code, reason = "other benches ask for more of a process")]
mod load;
#[expect(dead_code, reason = "the other bench reads the CPU time of its process")]
mod server;

use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cases::{CASES, Case, call};
use load::Result;
use server::Server;
use weir::clock::Micros;
use weir::config::model::{self, RedisNode, RedisServers, Secret};
use weir::limiter::arithmetic::limiter_ref::LimiterRef;
use weir::limiter::model::call::Outcome;
use weir::limiter::model::heartbeat::Heartbeat;
use weir::limiter::store::Store;
use weir::redis::RedisStore;
use weir::telemetry::Metrics;

/// The number of requests in a call, and of the runs in which they come: a run arrives in the same millisecond.
const BATCHES: [(u64, u64); 5] = [(1, 1), (10, 1), (100, 1), (1000, 1), (1000, 1000)];
/// The number of calls on the same state.
const REPEATS: usize = 15;
/// The window of the first limit of every case.
const WINDOW: Duration = Duration::from_secs(1);
/// A wait that is longer than any here.
const WAIT_MAX: Micros = Micros::from_millis(3_600_000);
/// The bound on the memory of a saturated limiter with a window of requests waiting.
const BYTES_MAX: u64 = 32 * 1024;
/// The bound on the time of a call after an idle time.
const AFTER_IDLE_US_MAX: u64 = 1000;

#[expect(clippy::print_stdout, reason = "the report")]
fn main() -> Result<ExitCode> {
    // Cargo passes the flag to benches; without it this is a test run, with nothing to measure.
    if !std::env::args().any(|argument| argument == "--bench") {
        return Ok(ExitCode::SUCCESS);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (report, holds) = runtime.block_on(measure())?;
    println!("{report}");
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn measure() -> Result<(String, bool)> {
    let mut server = Server::start(&[], &["--slowlog-log-slower-than", "0"]).await?;
    let mut calls = String::from(
        "| us of the script, requests in the call | 1 | 10 | 100 | 1000 | 1000 in 1000 runs | refused | bytes |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    let mut idle = String::from(
        "| us after an idle time, median (longest) | half expired, 1 | half expired, 1000 | all expired, 1 \
         | all expired, 1000 |\n|---|---|---|---|---|\n",
    );
    let mut left_alone = Vec::new();
    let mut holds = true;
    for case in &CASES {
        let Some(limiter) = Limiter::new(case, &server)? else {
            writeln!(calls, "| {} | not supported | | | | | | |", case.name)?;
            continue;
        };
        let mut state = limiter.saturate(&mut server).await?;
        let refused = limiter.time(&mut server, &state, 1, 1, Micros::ZERO).await?;
        let mut row = format!("| {} |", case.name);
        for (requests, runs) in BATCHES {
            if state.made.elapsed() > WINDOW / 2 {
                state = limiter.saturate(&mut server).await?;
            }
            write!(row, " {} |", limiter.time(&mut server, &state, requests, runs, WAIT_MAX).await?.median)?;
        }
        writeln!(calls, "{row} {} | {} |", refused.median, state.bytes)?;
        holds &= state.bytes < BYTES_MAX;

        // The usage from before the state was made has expired, the waiting requests have not.
        tokio::time::sleep_until((state.made + WINDOW).into()).await;
        let mut row = format!("| {} |", case.name);
        holds &= limiter.after_idle(&mut server, &state, &mut row).await?;
        left_alone.push((limiter, state, row));
    }
    for (limiter, state, mut row) in left_alone {
        tokio::time::sleep_until((state.made + WINDOW * 5 / 2).into()).await;
        holds &= limiter.after_idle(&mut server, &state, &mut row).await?;
        writeln!(idle, "{row}")?;
    }
    let bounds = format!(
        "Bounds: {BYTES_MAX} bytes; {AFTER_IDLE_US_MAX} us for one request after an idle time, the median."
    );
    Ok((format!("{calls}\n{idle}\n{bounds}"), holds))
}

/// One case in the real store.
struct Limiter<'a> {
    case: &'a Case,
    store: RedisStore,
    limiter_refs: Arc<[LimiterRef]>,
}

/// Every key in Redis's DUMP format, so that each measured call finds the same state.
struct State {
    keys: Vec<(Vec<u8>, Vec<u8>)>,
    bytes: u64,
    made: Instant,
}

/// The times of many calls on the same state, in microseconds of the server.
struct Times {
    median: u64,
    longest: u64,
}

impl<'a> Limiter<'a> {
    /// Returns `None` while the case is not supported.
    fn new(case: &'a Case, server: &Server) -> Result<Option<Limiter<'a>>> {
        let Some(config) = case.config() else { return Ok(None) };
        let limiter_refs = case.limiter_refs(&config).into();
        let model::Store::Redis(settings) = &config.store else { return Err("the store is Redis".into()) };
        let settings = model::RedisStore {
            servers: RedisServers::One(RedisNode { url: Secret::new(&server.url), address: String::new() }),
            ..(**settings).clone()
        };
        let store = RedisStore::new(&settings, Metrics::new().store())?;
        Ok(Some(Limiter { case, store, limiter_refs }))
    }

    async fn ask(&self, requests: u64, runs: u64, wait_max: Micros) -> Result<Option<Outcome>> {
        let answer = self
            .store
            .reserve(&self.limiter_refs, &Arc::new(call(requests, runs, wait_max)))
            .await
            .map_err(|failure| failure.error)?;
        Ok(answer.outcomes.last().map(|(_, outcome)| *outcome))
    }

    /// Uses a window of the limiter at its pace, and books another one.
    async fn saturate(&self, server: &mut Server) -> Result<State> {
        server.flush().await?;
        let mut heartbeat = Heartbeat::default();
        loop {
            let epoch = self.store.heartbeat(&heartbeat).await?.epoch;
            if epoch.settles_until.is_none() {
                break;
            }
            heartbeat.known_epoch = epoch.id;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let (permits, micros) = self.case.step();
        let steps = self.case.rate / permits;
        let mut pace = tokio::time::interval(Duration::from_micros(micros));
        for _ in 0..steps {
            pace.tick().await;
            self.ask(permits, 1, WAIT_MAX).await?;
        }
        // A bucket that is used at its pace stays full, so its content is taken now.
        self.ask(self.case.rate, 1, Micros::ZERO).await?;
        for _ in 0..steps {
            self.ask(permits, 1, WAIT_MAX).await?;
        }
        server.state().await
    }

    /// Measures calls on a state that has been idle; returns whether they keep the bound.
    async fn after_idle(&self, server: &mut Server, state: &State, row: &mut String) -> Result<bool> {
        let mut holds = true;
        for requests in [1, 1000] {
            let times = self.time(server, state, requests, 1, WAIT_MAX).await?;
            // A batch takes its own time, idle or not.
            holds &= requests > 1 || times.median < AFTER_IDLE_US_MAX;
            write!(row, " {} ({}) |", times.median, times.longest)?;
        }
        Ok(holds)
    }

    /// Measures calls on a state.
    async fn time(
        &self,
        server: &mut Server,
        state: &State,
        requests: u64,
        runs: u64,
        wait_max: Micros,
    ) -> Result<Times> {
        let mut times = Vec::with_capacity(REPEATS);
        // The first call loads the script and warms up.
        for repeat in 0..=REPEATS {
            server.restore(state).await?;
            server.forget_times().await?;
            let outcome = self.ask(requests, runs, wait_max).await?;
            let is_booked = matches!(outcome, Some(Outcome::Booked(_)));
            if is_booked != (wait_max > Micros::ZERO) {
                return Err(format!("{}: {outcome:?}", self.case.name).into());
            }
            if repeat > 0 {
                times.push(server.script_time().await?);
            }
        }
        times.sort_unstable();
        Ok(Times { median: times[REPEATS / 2], longest: times[REPEATS - 1] })
    }
}

impl Server {
    async fn state(&mut self) -> Result<State> {
        let names: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query_async(&mut self.connection).await?;
        let (mut keys, mut bytes) = (Vec::new(), 0);
        for name in names {
            let value: Vec<u8> = redis::cmd("DUMP").arg(&name).query_async(&mut self.connection).await?;
            let mut usage = redis::cmd("MEMORY");
            bytes += usage.arg("USAGE").arg(&name).query_async::<u64>(&mut self.connection).await?;
            keys.push((name, value));
        }
        Ok(State { keys, bytes, made: Instant::now() })
    }

    /// Restores the state. Its keys do not expire, so that a call finds the state at any age.
    async fn restore(&mut self, state: &State) -> Result<()> {
        for (name, value) in &state.keys {
            let mut restore = redis::cmd("RESTORE");
            restore.arg(name).arg(0).arg(value).arg("REPLACE");
            restore.exec_async(&mut self.connection).await?;
        }
        Ok(())
    }

    async fn forget_times(&mut self) -> Result<()> {
        Ok(redis::cmd("SLOWLOG").arg("RESET").exec_async(&mut self.connection).await?)
    }

    /// Returns the time of the last script.
    async fn script_time(&mut self) -> Result<u64> {
        let log: Vec<Vec<redis::Value>> =
            redis::cmd("SLOWLOG").arg("GET").arg(-1).query_async(&mut self.connection).await?;
        for entry in log {
            let [_, _, time, arguments, ..] = &entry[..] else { continue };
            let arguments: Vec<Vec<u8>> = redis::from_redis_value_ref(arguments)?;
            if arguments.first().is_some_and(|command| command.eq_ignore_ascii_case(b"EVALSHA")) {
                return Ok(redis::from_redis_value_ref(time)?);
            }
        }
        Err("no script was called".into())
    }
}
