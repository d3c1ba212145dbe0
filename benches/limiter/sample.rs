//! What has been counted so far: permits here, calls and CPU time on the server.

use std::time::{Duration, Instant};

use crate::load::{Result, process};
use crate::server::Server;

/// All since the beginning.
pub(crate) struct Sample {
    pub(crate) at: Instant,
    pub(crate) permits: u64,
    /// Script calls.
    pub(crate) calls: f64,
    /// In them.
    pub(crate) script: Duration,
    /// CPU time of Redis.
    pub(crate) redis: Duration,
    /// And of this process.
    pub(crate) own: Duration,
}

impl Sample {
    /// `permits` are counted right when the server has answered.
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
