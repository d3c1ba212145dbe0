//! The Lua scripts: embedded, called by their SHA-1, loaded again when the server has forgotten them.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};

/// What every script shares, in front of each.
macro_rules! source {
    ($file:literal) => {
        concat!(
            include_str!("../../lua/calendar.lua"),
            "\n",
            include_str!("../../lua/epoch.lua"),
            "\n",
            include_str!($file)
        )
    };
}

/// A script of this room.
pub(super) struct Script {
    source: &'static str,
    sha: String,
}

impl Script {
    /// Gives back, exchanges and books.
    pub(super) fn reserve() -> Script {
        Script::new(source!("../../lua/reserve.lua"))
    }

    /// Reads what is left.
    pub(super) fn inspect() -> Script {
        Script::new(source!("../../lua/inspect.lua"))
    }

    /// Keeps the epoch alive.
    pub(super) fn epoch_keep() -> Script {
        Script::new(source!("../../lua/epoch_keep.lua"))
    }

    /// Charges what was lost.
    pub(super) fn write_back() -> Script {
        Script::new(source!("../../lua/write_back.lua"))
    }

    fn new(source: &'static str) -> Script {
        Script { source, sha: redis::Script::new(source).get_hash().to_owned() }
    }

    /// Its text.
    pub(super) fn source(&self) -> &'static str {
        self.source
    }

    /// The beginning of a call.
    pub(super) fn command(&self, keys: &[String]) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.sha).arg(keys.len()).arg(keys);
        command
    }

    /// Makes the call. A server that does not know the script is given it, and the call is repeated: it had not been
    /// carried out. Returns whether that was so.
    pub(super) async fn call(
        &self,
        connection: &mut MultiplexedConnection,
        command: &Cmd,
    ) -> (bool, Result<Value, RedisError>) {
        match command.query_async(connection).await {
            Err(error) if forgotten(&error) => {
                let loaded = redis::cmd("SCRIPT").arg("LOAD").arg(self.source).exec_async(connection).await;
                match loaded {
                    Ok(()) => (true, command.query_async(connection).await),
                    Err(error) => (true, Err(error)),
                }
            }
            result => (false, result),
        }
    }
}

fn forgotten(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}
