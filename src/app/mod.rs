//! The composition root: wires the rooms together, owns every task, and ends them in order.
//!
//! Nothing is decided here. Its tasks are the proxy's and the admin's listeners, the store's probe, the limiters'
//! recovery, the lines about an outage, the writer of who has used what, and one that reloads ([`reload`]), so that reloads never overlap.

mod reload;
mod sockets;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::panic;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tracing::{error, info, warn};

use self::reload::{LOAD_TIME_MAX, Reloadable, Reloads, too_slow};
use crate::admin::{self, AdminState, Explained, FleetUsage, Reloader};
use crate::clock::{Clock, unix_now};
use crate::config::{self, Config, Handle, LoadError, Loaded, Watch, model};
use crate::limiter::Limiters;
use crate::limiter::store::Store;
use crate::limiter::store::memory::MemoryStore;
use crate::proxy::{self, Drained, Explanation, Proxy, ProxyBuildError, Reach};
use crate::redis::{RedisSetupError, RedisStore, RedisUsage};
use crate::telemetry::logging::LoggingError;
use crate::telemetry::{Logging, Metrics, Spans, WAIT_SECONDS};
use crate::usage::{Fleet, MemoryUsage, Recorder, StoreTime, Usage, UsageStore};

/// The time within which further signals count as the first: supervisors signal a process and its group, or pass a signal on twice.
const SAME_SIGNAL_TIME: Duration = Duration::from_secs(1);

/// The reason why weir could not start, or ended without having finished everything.
#[derive(Debug, Error)]
pub enum StartError {
    /// The configuration is not valid.
    #[error("the configuration is not valid\n{0}")]
    Config(LoadError),
    /// The configuration cannot be read in time.
    #[error("cannot read the configuration\n{0}")]
    Slow(LoadError),
    /// Logging could not be set up.
    #[error(transparent)]
    Logging(#[from] LoggingError),
    /// An address cannot be listened on.
    #[error("cannot listen on {address} ({key}): {error}")]
    Listen {
        /// The key in the configuration.
        key: &'static str,
        /// The address.
        address: SocketAddr,
        /// The reason.
        error: io::Error,
    },
    /// The Redis store could not be set up.
    #[error(transparent)]
    Redis(#[from] RedisSetupError),
    /// The proxy could not be set up: its certificates, upstreams or routes.
    #[error(transparent)]
    Proxy(#[from] ProxyBuildError),
    /// The handlers of signals could not be set up.
    #[error("cannot listen to signals: {0}")]
    Signals(io::Error),
    /// The drain time was over before everything had finished.
    #[error("the drain time was over before everything had finished")]
    Cut,
    /// A second signal came before everything had finished.
    #[error("a second signal came before everything had finished")]
    Interrupted,
}

/// The source of configurations, and the process's logging, which a reload changes too.
pub struct Source {
    /// The configuration file.
    pub path: PathBuf,
    /// Notices changes of the file. Begun before the file was read.
    pub watch: Watch,
    /// Applies `log` of each configuration.
    pub logging: Logging,
    /// Reloads. Listened for from the start, because a signal that nobody listens for ends the process.
    pub hangup: Signal,
}

/// Runs `weir serve` until SIGTERM or SIGINT, then drains.
///
/// # Errors
/// If weir cannot start, or did not finish within its drain time.
pub async fn serve(path: &Path) -> Result<(), StartError> {
    let (hangup, mut end) = (listen_for(SignalKind::hangup())?, Ending::new()?);
    let (watch, loaded) = tokio::select! {
        read = first_reading(path, LOAD_TIME_MAX) => read?,
        () = end.signal() => return Ok(()),
    };
    let logging = LastLines(Logging::init(&loaded.config.log)?);
    raise_file_limit(loaded.config.server.max_connections);
    let source = Source { path: path.to_owned(), watch, logging: logging.0.clone(), hangup };
    let app = App::start(loaded, Some(source)).await?;
    end.signal().await;
    info!("draining");
    tokio::select! {
        drained = app.drain() => match drained {
            Drained::Clean => Ok(()),
            Drained::Cut => Err(StartError::Cut),
        },
        () = end.second_signal() => Err(StartError::Interrupted),
    }
}

/// Reads the configuration and begins to watch it, within the time for that. It may lie on a mount that hangs, and a signal must end weir
/// also then.
async fn first_reading(path: &Path, load_time_max: Duration) -> Result<(Watch, Loaded), StartError> {
    let file = path.to_owned();
    let reading = spawn_blocking(move || {
        let watch = Watch::new(&file);
        config::load(&file).map(|loaded| (watch, loaded))
    });
    match timeout(load_time_max, reading).await {
        Ok(Ok(read)) => read.map_err(StartError::Config),
        Ok(Err(panicked)) => panic::resume_unwind(panicked.into_panic()),
        Err(_) => Err(StartError::Slow(too_slow(path, load_time_max))),
    }
}

/// Writes the last log lines at the end, however the end comes.
struct LastLines(Logging);

impl Drop for LastLines {
    fn drop(&mut self) {
        self.0.flush();
    }
}

/// Raises the soft limit of open files to the hard one. Each waiting request holds a connection, and the usual soft limit
/// of 1024 is for programs that use `select`. Warns if fewer are left than `max_connections` clients need, with an upstream's
/// connection for each.
fn raise_file_limit(max_connections: u32) {
    let needed = 2 * u64::from(max_connections);
    match rlimit::increase_nofile_limit(u64::MAX) {
        Ok(descriptors) if descriptors < needed => {
            warn!(
                descriptors,
                needed, max_connections, "too few file descriptors for server.max_connections"
            );
        }
        Ok(_) => {}
        Err(error) => warn!(%error, "cannot raise the limit of open files"),
    }
}

fn listen_for(kind: SignalKind) -> Result<Signal, StartError> {
    signal(kind).map_err(StartError::Signals)
}

/// SIGTERM and SIGINT, which end weir, and SIGUSR1 and SIGUSR2, which would kill it if nobody listened for them.
pub(crate) struct Ending {
    terminate: Signal,
    interrupt: Signal,
    user1: Signal,
    user2: Signal,
}

impl Ending {
    /// Begins to listen for the signals.
    pub(crate) fn new() -> Result<Ending, StartError> {
        Ok(Ending {
            terminate: listen_for(SignalKind::terminate())?,
            interrupt: listen_for(SignalKind::interrupt())?,
            user1: listen_for(SignalKind::user_defined1())?,
            user2: listen_for(SignalKind::user_defined2())?,
        })
    }

    /// Waits for a signal that ends weir.
    pub(crate) async fn signal(&mut self) {
        loop {
            let ignored = tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.user1.recv() => "SIGUSR1",
                _ = self.user2.recv() => "SIGUSR2",
            };
            // Rules for log rotation send them, to have files opened anew.
            info!(signal = ignored, "ignored: logs go to standard error");
        }
    }

    /// Waits for a signal that does not belong to the last one.
    pub(crate) async fn second_signal(&mut self) {
        let same = async {
            loop {
                self.signal().await;
            }
        };
        let _ = timeout(SAME_SIGNAL_TIME, same).await;
        self.signal().await;
    }
}

/// A running weir.
pub struct App {
    proxy_address: SocketAddr,
    admin_address: SocketAddr,
    serving: JoinHandle<Drained>,
    proxy: Proxy,
    limiters: Limiters,
    spans: Spans,
    draining: watch::Sender<bool>,
    /// Ends the proxy's listener.
    drain: CancellationToken,
    /// Writes the last counts of who has used what.
    last_counts: LastCounts,
    /// Ends everything else, also when weir is dropped before it has drained: a thread waits for it.
    end: DropGuard,
    tasks: TaskTracker,
}

impl App {
    /// Starts everything. Without a source there is nothing to reload.
    ///
    /// # Errors
    /// If an address, the store or a route cannot be used. Nothing is left running then.
    pub async fn start(loaded: Loaded, source: Option<Source>) -> Result<App, StartError> {
        let config = loaded.config.clone();
        let metrics = Metrics::new();
        let (tasks, end, drain) = (TaskTracker::new(), CancellationToken::new(), CancellationToken::new());
        let end_guard = end.clone().drop_guard();
        let (proxy_listener, proxy_address) = listen("listen", config.listen)?;
        let (admin_listener, admin_address) = listen("admin.listen", config.admin.listen)?;
        let (limiters, usage_store) = limiters(&config, &metrics, &tasks, &end)?;
        let usage = Usage::default();
        let fleet_usage = fleet_usage(&usage, usage_store, &limiters);
        // In two stages, as a reload.
        let prepared = limiters.prepare(&config.limiters);
        let spans = Spans::from_environment();
        let proxy = Proxy::new(metrics.clone(), usage, spans.clone(), &config, &prepared, Reach::default())?;
        prepared.commit();
        limiters.configured(&config.hash);
        // The kernel holds connections that come meanwhile.
        limiters.settle().await;
        keep(&limiters, &tasks, &end);
        let last_counts = LastCounts::of(&fleet_usage, &tasks);
        metrics.started(unix_now().as_secs_f64());

        let handle = Arc::new(Handle::new(loaded));
        let (draining, is_draining) = watch::channel(false);
        let (reloader, requests) = Reloader::channel();
        let explain = explain(&proxy);
        let watched = proxy.clone();
        let breakers: admin::Breakers = Arc::new(move || watched.breakers());
        let state = AdminState {
            explain,
            breakers,
            metrics: metrics.clone(),
            limiters: limiters.clone(),
            config: handle.clone(),
            reloader,
            draining: is_draining,
            dashboard: admin::Dashboard::default(),
            last_scrape: Arc::default(),
            usage: fleet_usage,
            workers: tokio::runtime::Handle::current(),
        };
        if let Some(Source { path, watch, logging, hangup }) = source {
            logging.count_in(&metrics);
            let (limiters, proxy, logging) = (limiters.clone(), proxy.clone(), Some(logging));
            let parts = Arc::new(Reloadable { limiters, proxy, logging, handle, metrics });
            tasks.spawn(Reloads::new(path, (watch, hangup, requests), parts).run(end.clone()));
        }
        let serving = tasks.spawn(proxy::serve(proxy_listener, proxy.clone(), drain.clone()));
        let ended = end.clone();
        tasks.spawn_blocking(move || {
            let served = admin_listener.into_std().and_then(|listener| admin::serve(listener, state, ended));
            if let Err(error) = served {
                error!(%error, "the admin listener does not serve");
            }
        });
        info!(address = %proxy_address, "listening");
        info!(address = %admin_address, "admin listening");
        Ok(App {
            proxy_address,
            admin_address,
            serving,
            proxy,
            limiters,
            spans,
            draining,
            drain,
            last_counts,
            end: end_guard,
            tasks,
        })
    }

    /// Returns the address for applications.
    pub fn proxy_address(&self) -> SocketAddr {
        self.proxy_address
    }

    /// Returns the address for metrics and live state.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin_address
    }

    /// Accepts no more requests, lets waiting and running ones finish, and ends every task.
    ///
    /// The order: `/readyz` fails, so that a load balancer looks elsewhere; the proxy drains, while its limiters still
    /// grant; slots that are left are given back, and the last spans are sent; then the rest ends.
    pub async fn drain(self) -> Drained {
        let _ = self.draining.send(true);
        self.drain.cancel();
        let drained = self.serving.await.unwrap_or(Drained::Cut);
        self.last_counts.write().await;
        self.limiters.close().await;
        self.proxy.close().await;
        self.spans.close().await;
        drop(self.end);
        self.tasks.close();
        self.tasks.wait().await;
        drained
    }
}

/// Returns what explains requests, for the admin listener.
fn explain(proxy: &Proxy) -> admin::Explain {
    let proxy = proxy.clone();
    Arc::new(move |request, body, peer| {
        let Explanation { document, limiters } = proxy.explain(request, body, peer);
        Explained { document, limiters }
    })
}

/// Starts what limiters do beside requests: follow announcements, recover, and tell of outages.
fn keep(limiters: &Limiters, tasks: &TaskTracker, end: &CancellationToken) {
    let (following, ended) = (limiters.clone(), end.clone());
    tasks.spawn(async move { ended.run_until_cancelled(following.follow()).await });
    let (keeping, ended) = (limiters.clone(), end.clone());
    tasks.spawn(async move { ended.run_until_cancelled(keeping.keep()).await });
    let (telling, ended) = (limiters.clone(), end.clone());
    tasks.spawn(async move { ended.run_until_cancelled(telling.tell_outages()).await });
}

/// Creates what this replica knows of the use by the whole fleet.
fn fleet_usage(usage: &Usage, store: Arc<dyn UsageStore>, limiters: &Limiters) -> FleetUsage {
    let (time, limiters) = (Arc::<StoreTime>::default(), limiters.clone());
    let recorder = Recorder::new(usage.clone(), Arc::clone(&store), Arc::clone(&time));
    let fleet = Fleet::new(move |depth| limiters.readings(depth), WAIT_SECONDS, store, time);
    FleetUsage { recorder: Arc::new(recorder), fleet: Arc::new(fleet) }
}

/// The task that tells the store what this replica uses.
struct LastCounts {
    task: JoinHandle<()>,
    end: CancellationToken,
}

impl LastCounts {
    fn of(usage: &FleetUsage, tasks: &TaskTracker) -> LastCounts {
        let (FleetUsage { recorder, fleet }, end) = (usage.clone(), CancellationToken::new());
        let (ended, also_ended) = (end.clone(), end.clone());
        let run = async move {
            tokio::join!(recorder.run(ended), fleet.run(also_ended));
        };
        LastCounts { task: tasks.spawn(run), end }
    }

    /// Writes what is left, and ends the task.
    async fn write(self) {
        self.end.cancel();
        let _ = self.task.await;
    }
}

/// Creates the limiters over the configured store, and starts the store's tasks. Returns also the place for the fleet's counts.
fn limiters(
    config: &Config,
    metrics: &Metrics,
    tasks: &TaskTracker,
    end: &CancellationToken,
) -> Result<(Limiters, Arc<dyn UsageStore>), StartError> {
    let clock = Clock::start();
    let mut redis = None;
    let (store, fleet_size): (Arc<dyn Store>, u32) = match &config.store {
        model::Store::Memory => {
            // The memory store is always up.
            metrics.store().set_up(true);
            (Arc::new(MemoryStore::new(clock)), 1)
        }
        model::Store::Redis(settings) => {
            let store = Arc::new(RedisStore::new(settings, metrics.store())?);
            let (probed, end) = (store.clone(), end.clone());
            let (listening, listen_end) = (store.clone(), end.clone());
            tasks.spawn(async move { probed.probe(end).await });
            tasks.spawn(async move { listening.listen(listen_end).await });
            redis = Some(RedisStore::clone(&store));
            (store, settings.fleet_size)
        }
    };
    let limiters = Limiters::new(store, clock, fleet_size, metrics.clone());
    let usage: Arc<dyn UsageStore> = match redis {
        Some(redis) => Arc::new(RedisUsage::new(redis, limiters.replica())),
        None => Arc::new(MemoryUsage::default()),
    };
    Ok((limiters, usage))
}

/// Listens on the address of a key.
fn listen(key: &'static str, address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    sockets::listen(address).map_err(|error| StartError::Listen { key, address, error })
}
