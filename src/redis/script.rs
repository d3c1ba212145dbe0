//! The Lua scripts: embedded, called by their SHA-1, sent whole to a server that does not know them.

use super::servers::Wire;
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};

/// What every script shares, in front of each.
macro_rules! source {
    ($file:literal) => {
        concat!(
            include_str!("../../lua/timeline.lua"),
            "\n",
            include_str!("../../lua/epoch.lua"),
            "\n",
            include_str!($file)
        )
    };
}

/// About what a key and another argument take in a command.
const KEY_BYTES: usize = 64;
const ARGUMENT_BYTES: usize = 24;

/// A script of this room.
pub(super) struct Script {
    source: &'static str,
    sha: String,
}

impl Script {
    /// Gives back, exchanges and books.
    pub(super) fn reserve() -> Script {
        Script::new(source!("../../lua/scripts/reserve.lua"))
    }

    /// Reads what is left.
    pub(super) fn inspect() -> Script {
        Script::new(source!("../../lua/scripts/inspect.lua"))
    }

    /// Keeps the epoch alive.
    pub(super) fn epoch_keep() -> Script {
        Script::new(source!("../../lua/scripts/heartbeat.lua"))
    }

    /// Charges what was lost.
    pub(super) fn write_back() -> Script {
        Script::new(source!("../../lua/scripts/write_back.lua"))
    }

    /// Forgets what was used.
    pub(super) fn reset() -> Script {
        Script::new(source!("../../lua/scripts/reset.lua"))
    }

    /// Hears what an upstream said.
    pub(super) fn report_upstream() -> Script {
        Script::new(source!("../../lua/scripts/report_upstream.lua"))
    }

    /// Pauses by hand.
    pub(super) fn pause() -> Script {
        Script::new(source!("../../lua/scripts/pause.lua"))
    }

    /// Tells the fleet of a replica.
    pub(super) fn register_replica() -> Script {
        Script::new(source!("../../lua/scripts/register_replica.lua"))
    }

    fn new(source: &'static str) -> Script {
        Script { source, sha: redis::Script::new(source).get_hash().to_owned() }
    }

    /// Its text.
    #[cfg(test)]
    pub(super) fn source(&self) -> &'static str {
        self.source
    }

    /// The beginning of a call by the script's hash, with room for so many arguments.
    pub(super) fn command(&self, keys: &[String], arguments: usize) -> Cmd {
        let bytes = (keys.len() + 2) * KEY_BYTES + arguments * ARGUMENT_BYTES;
        let mut command = Cmd::with_capacity(3 + keys.len() + arguments, bytes);
        command.arg("EVALSHA").arg(&self.sha).arg(keys.len()).arg(keys);
        command
    }

    /// Makes the call. A server that does not know the script had not carried it out: it is sent the script with the call, and
    /// knows it then. Returns whether that was so.
    pub(super) async fn call(&self, wire: &mut Wire, command: &Cmd) -> (bool, Result<Value, RedisError>) {
        match command.query_async(wire).await {
            Err(error) if forgotten(&error) => {
                let mut whole = redis::cmd("EVAL");
                whole.arg(self.source);
                for argument in command.args_iter().skip(2) {
                    if let redis::Arg::Simple(argument) = argument {
                        whole.arg(argument);
                    }
                }
                (true, whole.query_async(wire).await)
            }
            result => (false, result),
        }
    }
}

fn forgotten(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}
