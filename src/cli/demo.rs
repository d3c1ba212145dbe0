//! `weir demo`: a provider with a quota, weir in front of it, and more traffic than the quota allows, all in this
//! process and on loopback.
//!
//! Prints the counts of the applications and of the provider, not weir's own.

mod provider;
mod screen;
mod traffic;

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::provider::{Provider, Tally};
use self::screen::{Row, Screen, Setting};
use self::traffic::{Totals, Traffic};
use crate::app::{App, Ending, StartError};
use crate::config::model::{Http2, LogFormat, PathMatch, Upstream};
use crate::config::{self, Config, LoadError, Loaded};
use crate::telemetry::Logging;
use crate::telemetry::logging::LoggingError;

/// The configuration of the demo, which first-time users copy.
const QUICKSTART: &str = include_str!("../../config/quickstart.yaml");

/// The reason why the demo could not run.
#[derive(Debug, Error)]
pub enum DemoError {
    /// A port could not be set up.
    #[error("cannot set up the demo")]
    Setup(#[source] io::Error),
    /// The output could not be written.
    #[error("cannot write")]
    Output(#[from] io::Error),
    /// The built-in configuration is not valid.
    #[error(transparent)]
    Config(#[from] LoadError),
    /// Logging could not be set up.
    #[error(transparent)]
    Logging(#[from] LoggingError),
    /// weir could not start.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Runs the demo until a signal, or for a number of seconds.
///
/// # Errors
/// If the demo cannot be set up, or its output cannot be written.
pub async fn run(seconds: Option<NonZeroU32>) -> Result<(), DemoError> {
    let mut signals = Ending::new()?;
    let provider = Provider::bind().await.map_err(DemoError::Setup)?;
    let loaded = quickstart(provider.address())?;
    let config = Arc::clone(&loaded.config);
    let logging = Logging::init(&config.log)?;
    let path = example_path(&config);
    let limiter = config.limiters.first().cloned();
    let app = match App::start(loaded.clone(), None).await {
        // Another process, perhaps another weir, has the usual ports.
        Err(StartError::Listen { .. }) => App::start(on_free_ports(loaded), None).await?,
        started => started?,
    };

    let setting = Setting {
        proxy: app.proxy_address(),
        admin: app.admin_address(),
        provider: provider.address(),
        path,
        limiter,
    };
    let tally = provider.tally();
    let tasks = TaskTracker::new();
    let shutdown = CancellationToken::new();
    let stop_traffic = CancellationToken::new();
    tasks.spawn(provider.serve(shutdown.clone()));
    let totals = Totals::default();
    let traffic = Traffic { target: setting.proxy, path: setting.path.clone(), totals: totals.clone() };
    let traffic = tasks.spawn(traffic.run(stop_traffic.clone()));

    let mut screen = Screen::stdout();
    let start = Instant::now();
    let shown = show(&mut screen, &setting, &totals, &tally, seconds, &mut signals).await;

    // The applications stop first, then weir, then the provider, so that waiting requests still get their turn.
    let finish = async {
        stop_traffic.cancel();
        let _ = traffic.await;
        app.drain().await;
        shutdown.cancel();
        tasks.close();
        tasks.wait().await;
    };
    tokio::select! {
        () = finish => {}
        // A second signal ends the demo at once.
        () = signals.second_signal() => {}
    }
    logging.flush();
    shown?;
    // With the time in which the waiting requests got their turn: they are among those forwarded.
    screen.summary(start.elapsed(), &totals.read(), tally())?;
    Ok(())
}

/// Prints one row a second until the end.
async fn show(
    screen: &mut Screen,
    setting: &Setting,
    totals: &Totals,
    provider: &impl Fn() -> Tally,
    seconds: Option<NonZeroU32>,
    signals: &mut Ending,
) -> io::Result<()> {
    const SECOND: Duration = Duration::from_secs(1);
    screen.opening(setting)?;
    let start = Instant::now();
    let mut ticks = interval_at(start + SECOND, SECOND);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut forwarded_before = 0;
    loop {
        tokio::select! {
            () = signals.signal() => break,
            _ = ticks.tick() => {}
        }
        let now = totals.read();
        let time = start.elapsed();
        let forwarded_now = now.forwarded.saturating_sub(forwarded_before);
        forwarded_before = now.forwarded;
        screen.row(&Row { time, totals: now, forwarded_now, violations: provider().violations })?;
        if seconds.is_some_and(|seconds| time.as_secs() >= u64::from(seconds.get())) {
            break;
        }
    }
    screen.ending(totals.read().waiting())
}

/// Returns the quickstart configuration with the provider as its upstream.
fn quickstart(provider: SocketAddr) -> Result<Loaded, LoadError> {
    let loaded = config::parse(Path::new("config/quickstart.yaml"), QUICKSTART)?;
    let mut config = Config::clone(&loaded.config);
    // The rows are the output; only warnings may come between them.
    config.log.level = tracing::Level::WARN;
    config.log.format = LogFormat::Text;
    config.log.access = None;
    for route in &mut config.routes {
        route.upstream = Upstream {
            tls: false,
            host: provider.ip().to_string().into(),
            port: provider.port(),
            authority: provider.to_string().into(),
            base_path: "".into(),
            http2: Http2::Off,
            ..route.upstream.clone()
        };
    }
    Ok(loaded.with_config(config))
}

/// Returns the configuration with free ports for both listeners.
fn on_free_ports(loaded: Loaded) -> Loaded {
    let mut config = Config::clone(&loaded.config);
    config.listen.set_port(0);
    config.admin.listen.set_port(0);
    loaded.with_config(config)
}

/// Returns a path of the first route.
fn example_path(config: &Config) -> String {
    match config.routes.first().map(|route| &route.matches.path) {
        Some(PathMatch::Prefix(path) | PathMatch::Exact(path)) => path.clone(),
        Some(PathMatch::Any | PathMatch::Pattern(_)) | None => "/".to_owned(),
    }
}
