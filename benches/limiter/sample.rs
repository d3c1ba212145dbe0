//! The counters at an instant: permits here, calls and CPU time on the server.

use std::time::{Duration, Instant};

use crate::load::{Result, process};
use crate::server::Server;

/// The counters since the beginning.
pub(crate) struct Sample {
    pub(crate) at: Instant,
    pub(crate) permits: u64,
    /// The number of script calls.
    pub(crate) calls: f64,
    /// The time in script calls.
    pub(crate) script: Duration,
    /// The CPU time of Redis.
    pub(crate) redis: Duration,
    /// The CPU time of this process.
    pub(crate) own: Duration,
}

impl Sample {
    /// Reads all counters; `permits` is called right after the server's answer.
    pub(crate) async fn take(server: &mut Server, permits: impl Fn() -> u64) -> Result<Sample> {
        let told: String = redis::cmd("INFO").arg("commandstats").query_async(&mut server.connection).await?;
        let (at, permits) = (Instant::now(), permits());
        let (redis, own) = (server.process.cpu()?, process::cpu(std::process::id())?);
        // `calls=12,usec=34,...`; no line before the first call.
        let statistics =
            told.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:")).unwrap_or_default();
        let statistic = |name: &str| {
            let mut parts = statistics.split(',').filter_map(|part| part.strip_prefix(name));
            parts.next().and_then(|text| text.parse::<f64>().ok()).unwrap_or_default()
        };
        let script = Duration::from_secs_f64(statistic("usec=") / 1e6);
        Ok(Sample { at, permits, calls: statistic("calls="), script, redis, own })
    }
}
