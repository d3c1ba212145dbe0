//! Reloads, in two stages and one at a time.
//!
//! [`Reloadable::prepare`] reads the file and everything that it names, and builds all that is to come into force. It may
//! fail at any step, and then nothing has changed. [`PreparedReload::commit`] puts it in force and cannot fail.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::admin::ReloadRequest;
use crate::clock::unix_now;
use crate::config::{self, Change, Handle, LoadError, Loaded, Reload, Watch};
use crate::limiter::{Limiters, PreparedLimiters};
use crate::proxy::{PreparedProxy, Proxy, ProxyBuildError};
use crate::telemetry::{Logging, Metrics};

/// The longest time of reading the file and all that it names, which takes milliseconds: a pipe without a writer, or a mount that hangs, must
/// hold up neither later reloads nor the end. Who asked through the admin API still waits then, and is told why.
pub(super) const LOAD_TIME_MAX: Duration = Duration::from_secs(20);
/// The most readings that hang. Each keeps a thread until its file answers.
const HANGING_MAX: usize = 8;

/// A reading of the file, in a thread of its own.
type Loading = JoinHandle<Result<PreparedReload, LoadError>>;

/// Reloads at every change of the file, at SIGHUP and on request.
pub(super) struct Reloads {
    pub(super) path: PathBuf,
    pub(super) watch: Watch,
    pub(super) hangup: Signal,
    pub(super) requests: mpsc::Receiver<ReloadRequest>,
    pub(super) parts: Arc<Reloadable>,
    /// The longest time of a reading.
    pub(super) load_time_max: Duration,
    /// The readings that were given up. Nobody can end them.
    pub(super) hanging: Vec<Loading>,
}

impl Reloads {
    /// Returns the reloads of a file, for three causes.
    pub(super) fn new(
        path: PathBuf,
        (watch, hangup, requests): (Watch, Signal, mpsc::Receiver<ReloadRequest>),
        parts: Arc<Reloadable>,
    ) -> Reloads {
        let (load_time_max, hanging) = (LOAD_TIME_MAX, Vec::new());
        Reloads { path, watch, hangup, requests, parts, load_time_max, hanging }
    }

    /// Reloads one after the other until `end`.
    pub(super) async fn run(mut self, end: CancellationToken) {
        loop {
            let request = tokio::select! {
                () = end.cancelled() => return,
                () = self.watch.changed() => None,
                _ = self.hangup.recv() => None,
                // The channel closes with the admin listener, which ends with everything else.
                Some(request) = self.requests.recv() => Some(request),
            };
            let Some(reload) = end.run_until_cancelled(self.reload()).await else { return };
            if let (Some(request), Some(reload)) = (request, reload) {
                // The client may have gone.
                let _ = request.send(reload.outcome.clone());
            }
        }
    }

    async fn reload(&mut self) -> Option<Arc<Reload>> {
        match self.load().await? {
            Ok(prepared) => prepared.commit(),
            Err(error) => self.parts.refuse(error),
        }
        self.parts.handle.last_reload()
    }

    /// Reads the file and prepares what it says, within the time for that. What is ready later is not used: the files may be others by then.
    async fn load(&mut self) -> Option<Result<PreparedReload, LoadError>> {
        self.hanging.retain(|loading| !loading.is_finished());
        if self.hanging.len() >= HANGING_MAX {
            let message = "earlier readings of the files still hang: a restart ends them";
            return Some(Err(LoadError::whole(&self.path, message)));
        }
        let (parts, path) = (self.parts.clone(), self.path.clone());
        // Reading files may take its time, and must hold up no request.
        let mut loading = tokio::task::spawn_blocking(move || parts.load(&path));
        if let Ok(loaded) = timeout(self.load_time_max, &mut loading).await {
            return loaded.ok();
        }
        self.hanging.push(loading);
        Some(Err(too_slow(&self.path, self.load_time_max)))
    }
}

/// Returns the error of a reading that was given up.
pub(super) fn too_slow(path: &Path, load_time_max: Duration) -> LoadError {
    let message = format!("reading it, and the files that it names, took longer than {load_time_max:?}");
    LoadError::whole(path, message)
}

/// The parts of a running weir that a reload changes.
pub(super) struct Reloadable {
    pub(super) limiters: Limiters,
    pub(super) proxy: Proxy,
    pub(super) logging: Option<Logging>,
    pub(super) handle: Arc<Handle>,
    pub(super) metrics: Metrics,
}

impl Reloadable {
    /// Reads a file and prepares what it says. Blocks.
    fn load(self: &Arc<Self>, path: &Path) -> Result<PreparedReload, LoadError> {
        let loaded = config::load(path)?;
        self.prepare(loaded).map_err(|error| LoadError::whole(path, error.to_string()))
    }

    /// Prepares a valid configuration: limiters first, because routes resolve theirs among them. Blocks. Changes
    /// nothing.
    pub(super) fn prepare(self: &Arc<Self>, loaded: Loaded) -> Result<PreparedReload, ProxyBuildError> {
        let limiters = self.limiters.prepare(&loaded.config.limiters);
        let proxy = self.proxy.prepare(&loaded.config, &limiters)?;
        let changes = loaded.changes_since(&self.handle.loaded());
        Ok(PreparedReload { parts: self.clone(), limiters, proxy, loaded, changes })
    }

    /// Records that a file was refused.
    fn refuse(&self, error: LoadError) {
        for problem in &error.problems {
            error!(%problem, "configuration not reloaded");
        }
        self.metrics.reload(false, unix_now().as_secs_f64());
        self.handle.refuse(error);
    }
}

/// A reload that owns everything that is to come into force.
pub(super) struct PreparedReload {
    parts: Arc<Reloadable>,
    limiters: PreparedLimiters,
    proxy: PreparedProxy,
    loaded: Loaded,
    /// The differences from the configuration in force.
    changes: Vec<Change>,
}

impl PreparedReload {
    /// Puts the configuration in force.
    ///
    /// Limiters come first: a request must not find a route whose limiters are not in force, because pauses and freed
    /// slots would miss them and recovery would not know their part of the store. A request that arrives between the two
    /// swaps takes an old route; it finds the new limits of a changed limiter, and a removed limiter, which lives as
    /// long as a route or a request holds it. The same is true of every request under way: it keeps the configuration
    /// that it began with, but for its limits and the values of the headers that its route sets. What merely shows the configuration comes last, so that an answer never
    /// names one that is not in force yet.
    pub(super) fn commit(self) {
        let PreparedReload { parts, limiters, proxy, loaded, changes } = self;
        limiters.commit();
        proxy.commit();
        let config = loaded.config.clone();
        if let Some(logging) = &parts.logging {
            logging.apply(&config.log);
        }
        parts.limiters.configured(&config.hash);
        let restart_needed = parts.handle.publish(loaded, changes);
        parts.metrics.reload(true, unix_now().as_secs_f64());
        info!(hash = %config.hash, "configuration reloaded");
        for key in restart_needed {
            warn!(key, "this change needs a restart; the rest is in force");
        }
    }
}
