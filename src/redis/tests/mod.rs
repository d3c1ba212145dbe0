//! Tests of the scripts on a real Redis.

mod calls;
mod copies;
mod data_loss;
mod doubts;
mod earlier_layout;
mod epochs;
mod fleet;
mod heartbeats;
mod late_connections;
mod line;
mod line_parity;
mod long_queues;
mod lost_answers;
mod lua_parity;
mod pause_parity;
mod rounding;
mod scripts;
mod silences;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::clock::Micros;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::arithmetic::state::LimiterState;
use crate::limiter::model::call::{Answer, Call};
use crate::limiter::model::epoch::Epoch;
use crate::limiter::model::heartbeat::{Heartbeat, HeartbeatAnswer};
use crate::limiter::model::pause::PauseByHand;
use crate::limiter::model::upstream_report::{ReportResult, UpstreamReport};
use crate::limiter::model::write_back::WriteBack;
use crate::limiter::store::StateView;
use crate::redis::answers;
use crate::redis::arguments::{self, Arguments, Context};
use crate::redis::script::Scripts;
use crate::telemetry::StoreOp;

/// The tested instants: the age of the epoch makes numbers as large as they really are.
const START: u64 = 1_800_000_000_000_000;
/// The name of a server's socket in its directory.
const SOCKET: &str = "redis.sock";
const LEASE: Micros = Micros::from_millis(500);

/// Calls of a fleet without epochs.
const CONTEXT: Context<'static> = Context {
    prefix: "model",
    epoch: "model:epoch",
    live: "model:live",
    moved: "model:moved",
    earlier_epoch: "model:earlier",
    is_cluster: true,
    channel: "",
    run: "",
    settle: Micros::ZERO,
    lease: LEASE,
    now: Micros::ZERO,
};

/// Returns the context of a call at an instant.
fn at(now: Micros) -> Context<'static> {
    Context { now, ..CONTEXT }
}

/// A real Redis that knows all scripts, and calls of them at given instants.
struct TestStore {
    scripts: Scripts,
    connection: redis::Connection,
    process: Child,
    socket: tempfile::TempDir,
}

impl TestStore {
    fn start() -> TestStore {
        let socket = tempfile::tempdir().unwrap();
        let path = socket.path().join(SOCKET);
        let process = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--unixsocket"])
            .arg(&path)
            .current_dir(socket.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed (scripts/test does that)");
        let mut connection = connect(&path);
        let scripts = Scripts::new();
        for op in StoreOp::ALL {
            scripts.of(op).load().exec(&mut connection).unwrap();
        }
        TestStore { scripts, connection, process, socket }
    }

    /// Returns the path of the server's socket.
    fn socket(&self) -> PathBuf {
        self.socket.path().join(SOCKET)
    }

    fn flush(&mut self) {
        redis::cmd("FLUSHALL").exec(&mut self.connection).unwrap();
    }

    /// Returns how much of a processor the server has used. Other than the time that passes, this knows nothing of what else is running.
    fn processor_time(&mut self) -> Duration {
        let info: String = redis::cmd("INFO").arg("cpu").query(&mut self.connection).unwrap();
        let seconds = |field| -> f64 {
            let line =
                info.lines().find_map(|line| line.strip_prefix(field)).expect("a field of every Redis");
            line.trim().parse().expect("a number")
        };
        Duration::from_secs_f64(seconds("used_cpu_user:") + seconds("used_cpu_sys:"))
    }

    fn call(&mut self, op: StoreOp, arguments: &Arguments) -> redis::RedisResult<redis::Value> {
        self.scripts.of(op).command(arguments).query(&mut self.connection)
    }

    /// Makes a call that is never repeated.
    fn reserve(&mut self, context: &Context<'_>, limiter_refs: &[LimiterRef], call: &Call) -> Answer {
        self.reserve_numbered(context, limiter_refs, call, 0)
    }

    fn reserve_numbered(
        &mut self,
        context: &Context<'_>,
        limiter_refs: &[LimiterRef],
        call: &Call,
        number: u64,
    ) -> Answer {
        let arguments = arguments::reserve(context, limiter_refs, call, number);
        let value = self.call(StoreOp::Reserve, &arguments).unwrap();
        answers::reserve(&value, limiter_refs, call).expect("a well-formed answer")
    }

    /// Makes a call for a line; the number zero is never repeated.
    fn deal(
        &mut self,
        context: &Context<'_>,
        limiter_refs: &[LimiterRef],
        call: &Call,
        number: u64,
    ) -> redis::RedisResult<Answer> {
        let line = call.line.as_ref().expect("a call for a line");
        let value =
            self.call(StoreOp::Deal, &arguments::deal(context, limiter_refs, (call, line), number))?;
        Ok(answers::deal(&value, limiter_refs, line).expect("a well-formed answer"))
    }

    fn inspect(&mut self, context: &Context<'_>, limiter_ref: &LimiterRef) -> StateView {
        let value = self.call(StoreOp::Inspect, &arguments::inspect(context, limiter_ref)).unwrap();
        answers::inspect(&value, limiter_ref).expect("a well-formed answer")
    }

    fn report_upstream(
        &mut self,
        context: &Context<'_>,
        limiter_ref: &LimiterRef,
        report: &UpstreamReport,
    ) -> ReportResult {
        let arguments = arguments::report_upstream(context, limiter_ref, report);
        let value = self.call(StoreOp::ReportUpstream, &arguments).unwrap();
        answers::report(&value).expect("a well-formed answer")
    }

    fn pause(
        &mut self,
        context: &Context<'_>,
        limiter_ref: &LimiterRef,
        pause: &PauseByHand,
    ) -> ReportResult {
        let arguments = arguments::pause(context, limiter_ref, pause);
        let value = self.call(StoreOp::Pause, &arguments).unwrap();
        answers::report(&value).expect("a well-formed answer")
    }

    fn write_back(&mut self, context: &Context<'_>, limiter_ref: &LimiterRef, write: &WriteBack) -> Epoch {
        let value = self.call(StoreOp::WriteBack, &arguments::write_back(context, limiter_ref, write));
        answers::epoch(&value.unwrap()).expect("a well-formed answer")
    }

    fn heartbeat(&mut self, context: &Context<'_>, heartbeat: &Heartbeat) -> HeartbeatAnswer {
        let value = self.call(StoreOp::Heartbeat, &arguments::heartbeat(context, heartbeat)).unwrap();
        answers::heartbeat(&value).expect("a well-formed answer")
    }

    fn reset(&mut self, context: &Context<'_>, limiter_ref: &LimiterRef) -> redis::RedisResult<Epoch> {
        let seen_for = limiter_ref.rules.iter().map(Rule::seen_for).max().unwrap_or_default();
        let value = self.call(StoreOp::Reset, &arguments::reset(context, limiter_ref, seen_for))?;
        Ok(answers::epoch(&value).expect("a well-formed answer"))
    }
}

/// Drops a state that can no longer matter. Each longer life is noted with a margin, as the server does.
fn keep(now: Micros, state: &mut LimiterState, lives_until: &mut Micros) {
    let expires = state.expires();
    if expires > now.max(*lives_until) {
        *lives_until = expires + Micros((expires - now).0 / 4);
    }
    if *lives_until <= now {
        (*state, *lives_until) = (LimiterState::default(), Micros::ZERO);
    }
}

fn connect(path: &Path) -> redis::Connection {
    let client = redis::Client::open(format!("unix://{}", path.display())).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match client.get_connection() {
            Ok(connection) => return connection,
            Err(error) => assert!(Instant::now() < deadline, "redis-server does not start: {error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Drop for TestStore {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
