//! The composition root: wires the rooms together, owns every task, and ends them in order.
//!
//! Nothing is decided here. What runs: the proxy's and the admin's listeners, the store's probe, and one
//! task that reloads, so that reloads never overlap whoever asks for them.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use thiserror::Error;
use tokio::net::{TcpListener, TcpSocket};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info, warn};

use crate::admin::{self, AdminState, ReloadRequest, Reloader};
use crate::clock::Clock;
use crate::config::{self, Config, Handle, LoadError, Loaded, Reload, Watch, model};
use crate::limiter::Limiters;
use crate::limiter::store::Store;
use crate::limiter::store::memory::MemoryStore;
use crate::proxy::{self, Drained, Proxy, ProxyBuildError};
use crate::redis::{RedisSetupError, RedisStore};
use crate::telemetry::logging::LoggingError;
use crate::telemetry::{Logging, Metrics, Spans};

/// Connections that the kernel holds until they are accepted: a burst of a whole fleet.
const BACKLOG: u32 = 4096;

/// weir could not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The configuration is not valid.
    #[error("the configuration is not valid\n{0}")]
    Config(LoadError),
    /// Logging.
    #[error(transparent)]
    Logging(#[from] LoggingError),
    /// An address cannot be listened on.
    #[error("cannot listen on {address} ({key}): {error}")]
    Listen {
        /// The key in the configuration.
        key: &'static str,
        /// The address.
        address: SocketAddr,
        /// Why not.
        error: io::Error,
    },
    /// The Redis store.
    #[error(transparent)]
    Redis(#[from] RedisSetupError),
    /// The routes.
    #[error(transparent)]
    Proxy(#[from] ProxyBuildError),
    /// Signals.
    #[error("cannot listen to signals: {0}")]
    Signals(io::Error),
    /// Not everything had finished when the drain time was over.
    #[error("the drain time was over before everything had finished")]
    Cut,
}

/// Where a configuration comes from, and what a reload changes beside the rooms.
pub struct Source {
    /// The file.
    pub path: PathBuf,
    /// What notices that it changes, begun before it was read.
    pub watch: Watch,
    /// The process's logging.
    pub logging: Logging,
}

/// Runs `weir serve` until SIGTERM or SIGINT, then drains.
///
/// # Errors
/// If weir cannot start, or did not finish within its drain time.
pub async fn serve(path: &Path) -> Result<(), StartError> {
    let watch = Watch::new(path);
    let loaded = config::load(path).map_err(StartError::Config)?;
    let logging = Logging::init(&loaded.config.log)?;
    raise_file_limit();
    let mut end = Ending::new()?;
    let app = App::start(loaded, Some(Source { path: path.to_owned(), watch, logging })).await?;
    end.signal().await;
    info!("draining");
    tokio::select! {
        drained = app.drain() => match drained {
            Drained::Clean => Ok(()),
            Drained::Cut => Err(StartError::Cut),
        },
        () = end.signal() => Err(StartError::Cut),
    }
}

/// Each waiting request holds a connection: the soft limit of 1024 that many systems begin with is for
/// programs that use `select`.
fn raise_file_limit() {
    if let Err(error) = rlimit::increase_nofile_limit(u64::MAX) {
        warn!(%error, "cannot raise the limit of open files");
    }
}

/// SIGTERM and SIGINT.
struct Ending {
    terminate: Signal,
    interrupt: Signal,
}

impl Ending {
    fn new() -> Result<Ending, StartError> {
        let listen = |kind| signal(kind).map_err(StartError::Signals);
        Ok(Ending {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    async fn signal(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
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
    /// Ends everything else.
    end: CancellationToken,
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
        let proxy_listener = listen("listen", config.listen)?;
        let admin_listener = listen("admin.listen", config.admin.listen)?;
        let proxy_address = address("listen", config.listen, &proxy_listener)?;
        let admin_address = address("admin.listen", config.admin.listen, &admin_listener)?;
        let limiters = limiters(&config, &metrics, &tasks, &end)?;
        limiters.apply(&config.limiters);
        limiters.configured(&config.hash);
        // The kernel holds those who come meanwhile.
        limiters.settle().await;
        let (following, ended) = (limiters.clone(), end.clone());
        tasks.spawn(async move { ended.run_until_cancelled(following.follow()).await });
        let (keeping, ended) = (limiters.clone(), end.clone());
        tasks.spawn(async move { ended.run_until_cancelled(keeping.keep()).await });
        let spans = Spans::from_environment();
        let proxy = Proxy::new(metrics.clone(), spans.clone(), &config, &limiters)?;
        metrics.started(unix_seconds());

        let handle = Arc::new(Handle::new(loaded));
        let (draining, is_draining) = watch::channel(false);
        let (reloader, requests) = Reloader::channel();
        let state = AdminState {
            metrics: metrics.clone(),
            limiters: limiters.clone(),
            config: handle.clone(),
            reloader,
            draining: is_draining,
            dashboard: admin::Dashboard::default(),
        };
        let reloads =
            Reloads { logging: None, handle, proxy: proxy.clone(), limiters: limiters.clone(), metrics };
        let hangup = signal(SignalKind::hangup()).map_err(StartError::Signals)?;
        let serving = tasks.spawn(proxy::serve(proxy_listener, proxy.clone(), drain.clone()));
        tasks.spawn(admin::serve(admin_listener, state, end.clone()));
        tasks.spawn(reloads.run(source, requests, hangup, end.clone()));
        info!(address = %proxy_address, "listening");
        info!(address = %admin_address, "admin listening");
        Ok(App { proxy_address, admin_address, serving, proxy, limiters, spans, draining, drain, end, tasks })
    }

    /// Where applications send their calls.
    pub fn proxy_address(&self) -> SocketAddr {
        self.proxy_address
    }

    /// Where metrics and live state are.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin_address
    }

    /// Takes no more requests, lets those under way and waiting finish, and ends every task.
    ///
    /// The order: first `/readyz` says so, so that a load balancer looks elsewhere; then the proxy drains, while
    /// its limiters still grant; then what is left of their slots is given back, and what was seen of the last requests is sent;
    /// then the rest.
    pub async fn drain(self) -> Drained {
        let _ = self.draining.send(true);
        self.drain.cancel();
        let drained = self.serving.await.unwrap_or(Drained::Cut);
        self.limiters.close().await;
        self.proxy.close().await;
        self.spans.close().await;
        self.end.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        drained
    }
}

/// The limiters over the configured store.
fn limiters(
    config: &Config,
    metrics: &Metrics,
    tasks: &TaskTracker,
    end: &CancellationToken,
) -> Result<Limiters, StartError> {
    let clock = Clock::start();
    let (store, fleet_size): (Arc<dyn Store>, u32) = match &config.store {
        model::Store::Memory => {
            // It is never away.
            metrics.store().set_up(true);
            (Arc::new(MemoryStore::new(clock)), 1)
        }
        model::Store::Redis(settings) => {
            let store = Arc::new(RedisStore::new(settings, metrics.store())?);
            let (probed, end) = (store.clone(), end.clone());
            let (listening, unheard) = (store.clone(), end.clone());
            tasks.spawn(async move { probed.probe(end).await });
            tasks.spawn(async move { listening.listen(unheard).await });
            (store, settings.fleet_size)
        }
    };
    Ok(Limiters::new(store, clock, fleet_size, metrics.clone()))
}

fn listen(key: &'static str, address: SocketAddr) -> Result<TcpListener, StartError> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    let listener = socket.and_then(|socket| {
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    });
    listener.map_err(|error| StartError::Listen { key, address, error })
}

fn address(key: &'static str, address: SocketAddr, listener: &TcpListener) -> Result<SocketAddr, StartError> {
    listener.local_addr().map_err(|error| StartError::Listen { key, address, error })
}

/// Takes up changed configurations, one at a time.
struct Reloads {
    logging: Option<Logging>,
    handle: Arc<Handle>,
    proxy: Proxy,
    limiters: Limiters,
    metrics: Metrics,
}

impl Reloads {
    async fn run(
        mut self,
        source: Option<Source>,
        mut requests: mpsc::Receiver<ReloadRequest>,
        mut hangup: Signal,
        end: CancellationToken,
    ) {
        let Some(Source { path, mut watch, logging }) = source else { return };
        self.logging = Some(logging);
        loop {
            let request = tokio::select! {
                () = end.cancelled() => return,
                () = watch.changed() => None,
                _ = hangup.recv() => None,
                // None are left when the admin listener has ended, and then everything ends.
                Some(request) = requests.recv() => Some(request),
            };
            let reload = self.reload(&path).await;
            if let (Some(request), Some(reload)) = (request, reload) {
                // Whoever asked may have left.
                let _ = request.send(reload.outcome.clone());
            }
        }
    }

    async fn reload(&self, path: &Path) -> Option<Arc<Reload>> {
        let file = path.to_owned();
        let loaded = tokio::task::spawn_blocking(move || config::load(&file)).await.ok()?;
        let loaded = loaded.and_then(|loaded| self.take_up(path, loaded));
        if let Err(refused) = loaded {
            self.refuse(refused);
        }
        self.handle.last_reload()
    }

    /// Puts a valid configuration in force: limiters first, because routes name them.
    fn take_up(&self, path: &Path, loaded: Loaded) -> Result<(), LoadError> {
        let (before, config) = (self.handle.config(), loaded.config.clone());
        self.limiters.apply(&config.limiters);
        if let Err(error) = self.proxy.apply(&config, &self.limiters) {
            self.limiters.apply(&before.limiters);
            return Err(LoadError::whole(path, error.to_string()));
        }
        if let Some(logging) = &self.logging {
            logging.apply(&config.log);
        }
        self.limiters.configured(&config.hash);
        let restart_needed = self.handle.publish(loaded);
        self.metrics.reload(true, unix_seconds());
        info!(hash = %config.hash, "configuration reloaded");
        for key in restart_needed {
            warn!(key, "this change needs a restart; the rest is in force");
        }
        Ok(())
    }

    fn refuse(&self, refused: LoadError) {
        for problem in &refused.problems {
            error!(%problem, "configuration not reloaded");
        }
        self.metrics.reload(false, unix_seconds());
        self.handle.refuse(refused);
    }
}

fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
