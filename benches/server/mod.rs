//! A Redis server for a bench: on a free port, with nothing on disk, ended on drop.

use std::process::{Command, Stdio};

use redis::aio::MultiplexedConnection;
use tempfile::TempDir;

use crate::load::Result;
use crate::load::process::{Process, free_address};

/// A server of its own, in a directory of its own.
pub(crate) struct Server {
    pub(crate) process: Process,
    /// The URL for the store.
    pub(crate) url: String,
    /// A connection for the bench's own commands.
    pub(crate) connection: MultiplexedConnection,
    /// The directory is removed when the process has ended.
    _directory: TempDir,
}

impl Server {
    /// Starts a server by `launcher`, or directly if that is empty, with `options` beside the usual ones.
    pub(crate) async fn start(launcher: &[&str], options: &[&str]) -> Result<Server> {
        let (directory, address) = (TempDir::with_prefix("weir-bench")?, free_address()?);
        let words: Vec<&str> = launcher.iter().copied().chain(["redis-server"]).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).args(["--bind", "127.0.0.1", "--port", &address.port().to_string()]);
        command.args(["--save", "", "--appendonly", "no", "--dir"]).arg(directory.path()).args(options);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let process = Process::start(command, &[address]);
        let process = process.map_err(|error| format!("{}, which this needs: {error}", words.join(" ")))?;
        let url = format!("redis://{address}");
        let connection = redis::Client::open(url.as_str())?.get_multiplexed_async_connection().await?;
        Ok(Server { process, url, connection, _directory: directory })
    }

    /// Removes all data.
    pub(crate) async fn flush(&mut self) -> Result<()> {
        Ok(redis::cmd("FLUSHALL").exec_async(&mut self.connection).await?)
    }
}
