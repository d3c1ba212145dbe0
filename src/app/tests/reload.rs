//! A reload that fails while it is prepared, at each of its steps, and one that comes into force.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FileType, Mode};
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::admin::ReloadRequest;
use crate::app::reload::{Reloadable, Reloads};
use crate::clock::Clock;
use crate::config::model::{Config, Http2, ServerTls};
use crate::config::{self, Handle, Loaded, Outcome, Watch};
use crate::limiter::model::limit::{LimiterName, Permits, Scope};
use crate::limiter::store::memory::MemoryStore;
use crate::limiter::{Demand, Entered, LimiterSet, LimiterStatus, Limiters, Partition};
use crate::proxy::{Proxy, Reach};
use crate::telemetry::{Metrics, Spans};
use crate::usage::Usage;

const SECOND: Duration = Duration::from_secs(1);

/// One permit a second of `api`, and a limiter with a key. `leaves` is used by no route.
const RUNNING: &str = "
limiters:
  api: {limits: [1/1s], queue: {timeout: 60s, max_waiting: 100}}
  tenants: {limits: [100/1h], key: [header:x-tenant]}
  leaves: {limits: [10/1h]}
routes:
  - {name: one, match: {path: /}, upstream: \"http://127.0.0.1:9\", limiter: api}
";

/// Every kind of change: another limit, a key that is gone, another scope, a limiter that comes and one that goes.
const NEXT: &str = "
limiters:
  api: {limits: [1000/1s], queue: {timeout: 60s, max_waiting: 7}}
  tenants: {limits: [100/1h]}
  comes: {limits: [10/1h], scope: per_replica}
routes:
  - {name: one, match: {path: /}, upstream: \"http://127.0.0.1:9\", limiter: api}
  - {name: two, match: {path: /two}, upstream: \"https://127.0.0.1:9\", limiter: tenants}
";

fn loaded(text: &str, change: impl FnOnce(&mut Config)) -> Loaded {
    let mut loaded = config::parse(Path::new("weir.yaml"), text).unwrap();
    change(Arc::make_mut(&mut loaded.config));
    loaded
}

/// Files of each kind: sound, and not what they should be.
struct Files {
    _directory: TempDir,
    certificate: PathBuf,
    key: PathBuf,
    junk: PathBuf,
    absent: PathBuf,
}

impl Files {
    fn new() -> Files {
        let directory = TempDir::new().unwrap();
        let at = |name: &str| directory.path().join(name);
        let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (certificate, key, junk, absent) = (at("cert.pem"), at("key.pem"), at("junk.pem"), at("absent"));
        std::fs::write(&certificate, signed.cert.pem()).unwrap();
        std::fs::write(&key, signed.signing_key.serialize_pem()).unwrap();
        std::fs::write(&junk, "junk").unwrap();
        Files { _directory: directory, certificate, key, junk, absent }
    }

    fn server(&self, cert: &Path, key: &Path, client_ca: Option<&Path>) -> Option<ServerTls> {
        Some(ServerTls { cert: cert.into(), key: key.into(), client_ca: client_ca.map(Into::into) })
    }
}

type Change<'a> = Box<dyn FnOnce(&mut Config) + 'a>;

/// Each step of preparing a reload, made to fail.
fn failures(files: &Files) -> Vec<(&'static str, Change<'_>)> {
    let Files { certificate, key, junk, absent, .. } = files;
    let name = |name: &str| LimiterName::parse(name).unwrap();
    vec![
        ("ca, absent", Box::new(|config| config.routes[1].upstream.ca = Some(absent.clone()))),
        ("ca, junk", Box::new(|config| config.routes[1].upstream.ca = Some(junk.clone()))),
        ("cert", Box::new(|config| config.routes[1].upstream.identity = Some((absent.clone(), key.clone())))),
        (
            "key",
            Box::new(|config| {
                config.routes[1].upstream.identity = Some((certificate.clone(), junk.clone()));
            }),
        ),
        ("server name", Box::new(|config| config.routes[1].upstream.host = "no name".into())),
        (
            "host",
            Box::new(|config| {
                config.routes[1].upstream.authority = "\n".into();
                config.routes[1].upstream.http2 = Http2::Off;
            }),
        ),
        (
            "unknown limiter",
            Box::new(move |config| {
                config.routes[1].limiters = vec![(name("unknown"), Arc::new([]))];
            }),
        ),
        (
            "limiter set",
            Box::new(move |config| {
                config.routes[1].limiters = vec![(name("api"), Arc::new([])), (name("comes"), Arc::new([]))];
            }),
        ),
        ("server.tls.cert", Box::new(|config| config.server.tls = files.server(absent, key, None))),
        ("server.tls.key", Box::new(|config| config.server.tls = files.server(certificate, junk, None))),
        (
            "server.tls.client_ca",
            Box::new(|config| {
                config.server.tls = files.server(certificate, key, Some(junk));
            }),
        ),
    ]
}

fn running() -> Arc<Reloadable> {
    let (clock, metrics, loaded) = (Clock::of_runtime(), Metrics::new(), loaded(RUNNING, |_| ()));
    let limiters = Limiters::new(Arc::new(MemoryStore::new(clock)), clock, 1, metrics.clone());
    let prepared = limiters.prepare(&loaded.config.limiters);
    let proxy = Proxy::new(
        metrics.clone(),
        Usage::default(),
        Spans::default(),
        &loaded.config,
        &prepared,
        Reach::default(),
    );
    let proxy = proxy.unwrap();
    prepared.commit();
    let handle = Arc::new(Handle::new(loaded));
    Arc::new(Reloadable { limiters, proxy, logging: None, handle, metrics })
}

fn limiter_set(limiters: &Limiters, name: &str) -> LimiterSet {
    limiters.limiter_set(&[LimiterName::parse(name).unwrap()]).unwrap().unwrap()
}

/// Takes a permit once its slot has come.
async fn pass(set: &LimiterSet, partition: Option<Partition>) {
    let demand = Demand::of(Permits::ONE);
    let permit = match set.enter(&[partition], demand).await.unwrap() {
        Entered::Granted(permit) => permit,
        Entered::Waiting(ticket) => ticket.turn().await.unwrap(),
    };
    permit.commit();
}

/// Requests that wait, each for its second.
fn queue_up(set: &LimiterSet, count: usize) -> Vec<JoinHandle<Instant>> {
    let waits = |set: LimiterSet| async move {
        pass(&set, None).await;
        Instant::now()
    };
    (0..count).map(|_| tokio::spawn(waits(set.clone()))).collect()
}

/// Everything that can be seen of the configuration in force.
async fn shown(parts: &Reloadable) -> (String, Vec<String>, Arc<str>) {
    let statuses = parts.limiters.inspect().await;
    let status = |status: &LimiterStatus| {
        let LimiterStatus { limiter, waiting, granted, refused, .. } = status;
        format!("{limiter:?}, {waiting} waiting, {granted} granted, {refused} refused")
    };
    let statuses = statuses.iter().map(status).collect();
    let series = parts.metrics.render();
    let series = series.lines().filter(|line| line.starts_with("weir_")).collect::<Vec<_>>().join("\n");
    (series, statuses, parts.handle.config().hash.clone())
}

#[tokio::test(start_paused = true)]
async fn a_failure_at_any_step_of_preparing_changes_nothing() {
    let (files, parts) = (Files::new(), running());
    let one = Some(Partition::of([Some(&b"one"[..])]));
    let (api, tenants) = (limiter_set(&parts.limiters, "api"), limiter_set(&parts.limiters, "tenants"));
    pass(&tenants, one).await;
    let start = Instant::now();
    let waiting = queue_up(&api, 30);
    sleep(SECOND / 2).await;
    for (step, change) in failures(&files) {
        let before = shown(&parts).await;
        let refused = parts.prepare(loaded(NEXT, change));
        assert!(refused.is_err(), "{step}");
        // Every worker has had its turn.
        sleep(SECOND / 1000).await;
        assert_eq!(shown(&parts).await, before, "{step}");
        // The partition is the same one, and so is the limiter that the refused file removes.
        pass(&tenants, one).await;
        assert_eq!(
            parts
                .limiters
                .find(&LimiterName::parse("tenants").unwrap(), one)
                .unwrap()
                .inspect()
                .await
                .refused,
            0
        );
    }
    let mut passed = Vec::new();
    for request in waiting {
        passed.push(request.await.unwrap() - start);
    }
    passed.sort();
    for (place, at) in passed.iter().enumerate() {
        assert!(
            *at >= SECOND * u32::try_from(place).unwrap(),
            "{place} passed after {at:?}, at one a second"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_prepared_reload_is_not_in_force_before_its_commit() {
    let parts = running();
    let api = limiter_set(&parts.limiters, "api");
    let start = Instant::now();
    let waiting = queue_up(&api, 30);
    sleep(SECOND * 3 / 2).await;
    let before = shown(&parts).await;
    let prepared = parts.prepare(loaded(NEXT, |_| ())).unwrap();
    sleep(SECOND / 1000).await;
    assert_eq!(shown(&parts).await, before);
    sleep(SECOND).await;
    prepared.commit();
    for request in waiting {
        request.await.unwrap();
    }
    assert!(start.elapsed() < 5 * SECOND, "{:?}", start.elapsed());
    let (series, ..) = shown(&parts).await;
    for series_of in ["limiter=\"comes\"", "route=\"two\"", "limit=\"1000/1s\""] {
        assert!(series.contains(series_of), "{series_of} is missing in {series}");
    }
    for gone in ["limiter=\"leaves\"", "limit=\"1/1s\""] {
        assert!(!series.contains(gone), "{gone} is still in {series}");
    }
    let comes = parts.limiters.find(&LimiterName::parse("comes").unwrap(), None).unwrap();
    assert_eq!(comes.inspect().await.limiter.scope, Scope::PerReplica);
}

/// Reloads of a file that is a pipe without a writer: who opens it hangs.
struct Hanging {
    directory: TempDir,
    parts: Arc<Reloadable>,
    requests: mpsc::Sender<ReloadRequest>,
    end: CancellationToken,
    reloads: JoinHandle<()>,
}

impl Hanging {
    fn new(load_time_max: Duration) -> Hanging {
        let (directory, parts, end) = (TempDir::new().unwrap(), running(), CancellationToken::new());
        let path = directory.path().join("weir.yaml");
        std::fs::write(&path, RUNNING).unwrap();
        let (requests, receiver) = mpsc::channel(1);
        let reloads = Reloads {
            watch: Watch::new(&path),
            path: path.clone(),
            hangup: signal(SignalKind::hangup()).unwrap(),
            requests: receiver,
            parts: parts.clone(),
            load_time_max,
            hanging: Vec::new(),
        };
        std::fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let reloads = tokio::spawn(reloads.run(end.clone()));
        Hanging { directory, parts, requests, end, reloads }
    }

    /// Asks for a reload.
    async fn ask(&self) -> oneshot::Receiver<Outcome> {
        let (request, outcome) = oneshot::channel();
        self.requests.send(request).await.unwrap();
        outcome
    }
}

#[tokio::test]
async fn a_reading_that_hangs_is_a_refused_reload_and_the_next_one_is_carried_out() {
    let hanging = Hanging::new(SECOND / 20);
    let asked = async || timeout(20 * SECOND, hanging.ask().await).await.unwrap().unwrap();
    // The watch reloads, too.
    for asked_before in 0.. {
        let Outcome::Refused { problems } = asked().await else { panic!("a pipe") };
        let problem = problems[0].to_string();
        if problem.contains("earlier readings of the files still hang") {
            break;
        }
        assert!(problem.contains("took longer than 50ms"), "{problem}");
        assert!(asked_before < 8, "threads without bounds");
    }
    assert!(hanging.parts.metrics.render().contains("weir_config_last_reload_successful 0"));
    // A writer sets them free, and the next one reads a file.
    let path = hanging.directory.path().join("weir.yaml");
    std::fs::rename(&path, hanging.directory.path().join("pipe")).unwrap();
    std::fs::write(&path, RUNNING).unwrap();
    std::fs::write(hanging.directory.path().join("pipe"), "").unwrap();
    let end = Instant::now() + 20 * SECOND;
    while !matches!(asked().await, Outcome::Applied { .. }) {
        assert!(Instant::now() < end, "no reload is carried out");
    }
    hanging.end.cancel();
    timeout(20 * SECOND, hanging.reloads).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_reading_that_hangs_does_not_hold_up_the_end() {
    let hanging = Hanging::new(3600 * SECOND);
    // The channel has room for one: the first request has been taken when there is room for the second.
    let (outcome, waiting) = (hanging.ask().await, hanging.ask().await);
    hanging.end.cancel();
    timeout(20 * SECOND, hanging.reloads).await.unwrap().unwrap();
    assert!(outcome.await.is_err() && waiting.await.is_err());
    // The runtime of the test waits for its threads, of which one opens the pipe.
    std::fs::write(hanging.directory.path().join("weir.yaml"), "").unwrap();
}
