//! The Lua scripts: put together from the files in `lua/`, called by their SHA-1, sent whole to a server that does not know them.

use std::time::Duration;

use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};

use crate::redis::arguments::Arguments;
use crate::redis::servers::Wire;
use crate::telemetry::StoreOp;

macro_rules! lua {
    ($file:literal) => {
        include_str!(concat!("../../lua/", $file, ".lua"))
    };
}

/// Every algorithm; a further one is a line more.
const ALGORITHMS: &[&str] = &[
    lua!("algorithm/sliding_window"),
    lua!("algorithm/bucket"),
    lua!("algorithm/fixed_window"),
    lua!("algorithm/warm_up"),
];

/// Keys, and the epoch that every state belongs to.
const KEYS: &[&str] =
    &[lua!("prelude"), lua!("store"), lua!("epoch"), lua!("copies"), lua!("earlier_layout")];

/// The arithmetic of a stored state.
const STATE: &[&[&str]] = &[
    &[lua!("algorithm"), lua!("rule"), lua!("pages"), lua!("timeline")],
    ALGORITHMS,
    &[lua!("external_usage"), lua!("pause"), lua!("state")],
];

/// The search in a state, and its changes.
const SEARCH: &[&str] =
    &[lua!("search"), lua!("recovery"), lua!("reschedule"), lua!("earlier_state"), lua!("open")];

/// The estimated bytes of a key in a command, and of the framing of the arguments.
const KEY_BYTES: usize = 64;

/// A script, as a server runs it.
pub(super) struct Script {
    source: String,
    sha: String,
}

/// The script of each operation, in their order.
pub(super) struct Scripts([Script; StoreOp::ALL.len()]);

impl Scripts {
    pub(super) fn new() -> Scripts {
        Scripts(StoreOp::ALL.map(Script::of))
    }

    /// Returns the script of an operation.
    pub(super) fn of(&self, op: StoreOp) -> &Script {
        &self.0[op as usize]
    }
}

impl Script {
    /// Puts together the script of an operation.
    fn of(op: StoreOp) -> Script {
        let key = |script| Script::new(&[KEYS, &[script]].concat());
        let state = |rest: &[&[&str]]| Script::new(&[&[KEYS], STATE, rest].concat().concat());
        match op {
            StoreOp::Reserve => state(&[SEARCH, &[lua!("queue_order"), lua!("scripts/reserve")]]),
            StoreOp::Deal => state(&[
                SEARCH,
                &[lua!("queue_order"), lua!("line"), lua!("prospects"), lua!("scripts/deal")],
            ]),
            StoreOp::Inspect => state(&[&[lua!("scripts/inspect")]]),
            StoreOp::Heartbeat | StoreOp::Ping => key(lua!("scripts/heartbeat")),
            StoreOp::WriteBack => state(&[SEARCH, &[lua!("scripts/write_back")]]),
            StoreOp::RegisterReplica => key(lua!("scripts/register_replica")),
            StoreOp::Reset => key(lua!("scripts/reset")),
            StoreOp::ReportUpstream => {
                state(&[SEARCH, &[lua!("upstream_report"), lua!("scripts/report_upstream")]])
            }
            StoreOp::Pause => key(lua!("scripts/pause")),
            StoreOp::HandOver => state(&[SEARCH, &[lua!("scripts/hand_over")]]),
            StoreOp::Usage => key(lua!("scripts/usage")),
            StoreOp::Figures => key(lua!("scripts/figures")),
        }
    }

    fn new(parts: &[&str]) -> Script {
        let source = parts.join("\n");
        let sha = redis::Script::new(&source).get_hash().to_owned();
        Script { source, sha }
    }

    /// Returns a call of the script by its hash.
    pub(super) fn command(&self, Arguments { keys, packed }: &Arguments) -> Cmd {
        let mut command = Cmd::with_capacity(4 + keys.len(), (keys.len() + 2) * KEY_BYTES + packed.len());
        command.arg("EVALSHA").arg(&self.sha).arg(keys.len()).arg(keys).arg(packed);
        command
    }

    /// Returns the command by which a server gets to know the script.
    pub(super) fn load(&self) -> Cmd {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(&self.source);
        load
    }

    /// Makes a call as [`Script::call`] does, and waits for a replica of the server to have it, too. Returns also how many have.
    /// The connection answers nothing else meanwhile.
    pub(super) async fn call_confirmed(
        &self,
        wire: &mut Wire,
        command: &Cmd,
        wait: Duration,
    ) -> (bool, Result<(Value, u64), RedisError>) {
        match confirmed(wire, command, wait).await {
            Err(error) if is_unknown(&error) => (true, confirmed(wire, &self.whole(command), wait).await),
            result => (false, result),
        }
    }

    /// Returns a call with the whole script.
    fn whole(&self, command: &Cmd) -> Cmd {
        let mut whole = redis::cmd("EVAL");
        whole.arg(&self.source);
        for argument in command.args_iter().skip(2) {
            if let redis::Arg::Simple(argument) = argument {
                whole.arg(argument);
            }
        }
        whole
    }

    /// Makes a call. A server that does not know the script has carried nothing out: it receives the call again with the whole
    /// script, which it knows from then on. Returns whether that was necessary.
    pub(super) async fn call(&self, wire: &mut Wire, command: &Cmd) -> (bool, Result<Value, RedisError>) {
        match command.query_async(wire).await {
            Err(error) if is_unknown(&error) => (true, self.whole(command).query_async(wire).await),
            result => (false, result),
        }
    }
}

/// Makes a call, and waits for one replica. Returns how many have confirmed it.
async fn confirmed(wire: &mut Wire, command: &Cmd, wait: Duration) -> Result<(Value, u64), RedisError> {
    let mut both = redis::pipe();
    both.add_command(command.clone());
    both.cmd("WAIT").arg(1).arg(wait.as_millis().max(1).to_string());
    let mut answers = wire.req_packed_commands(&both, 0, 2).await?.into_iter();
    let value = answers.next().unwrap_or(Value::Nil).extract_error()?;
    let count = answers.next().unwrap_or(Value::Int(0)).extract_error()?;
    Ok((value, redis::from_redis_value(count)?))
}

/// Returns the name and the text of every script, for a server that is simulated.
pub fn script_texts() -> Vec<(&'static str, String)> {
    // A probe has the script of a heartbeat.
    let ops = StoreOp::ALL.into_iter().filter(|op| *op != StoreOp::Ping);
    ops.map(|op| (op.as_str(), Script::of(op).source)).collect()
}

fn is_unknown(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}
