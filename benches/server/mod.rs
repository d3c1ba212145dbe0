//! A Redis server for a bench: on a free port, with nothing on disk, gone when it is dropped.

use std::process::{Command, Stdio};

use redis::aio::MultiplexedConnection;
use tempfile::TempDir;

use crate::load::Result;
use crate::load::process::{Process, free_address};

/// A server of its own, in a directory of its own.
pub(crate) struct Server {
    pub(crate) process: Process,
    /// Where the store finds it.
    pub(crate) url: String,
    /// For what the bench itself asks.
    pub(crate) connection: MultiplexedConnection,
    /// Removed when the process has ended.
    _directory: TempDir,
}

impl Server {
    /// `launcher` is what starts it, if it does not start itself, `options` what it is told beside the usual.
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

    /// Forgets everything.
    pub(crate) async fn flush(&mut self) -> Result<()> {
        Ok(redis::cmd("FLUSHALL").exec_async(&mut self.connection).await?)
    }
}
