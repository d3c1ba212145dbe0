//! Real weir processes: started with a configuration file, asked over their sockets, stopped by signals.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Seek, Write as _};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use super::client::{self, Answer, Connection, Pending};
use super::metrics::Metrics;
use super::{
    PATIENCE, closed_port, eventually, poll_for, poll_for_within, raise_open_files, replace_file, wall_clock,
};

/// The number of log lines that are kept for a failed test.
const LOG_LINES_MAX: usize = 2000;

/// Free ports, and a log that the harness can read: the beginning of every configuration of [`Weir::start`].
const PREAMBLE: &str =
    "listen: 127.0.0.1:0\nadmin: {listen: 127.0.0.1:0}\nlog: {level: info, format: json, access: false}\n";

/// A running weir. Killed on drop; its log is printed when the test panics.
pub(crate) struct Weir {
    process: Child,
    log: Log,
    /// The directory of the configuration, removed on drop; `None` when the test keeps the file.
    _directory: Option<TempDir>,
    config: PathBuf,
    address: SocketAddr,
    admin: SocketAddr,
}

impl Weir {
    /// Starts weir with a configuration (without `listen`, `admin` and `log`), and waits until it listens.
    pub(crate) async fn start(config: &str) -> Weir {
        Weir::start_in(config, &[]).await
    }

    /// Starts weir like [`Weir::start`], with a wall clock that is ahead by this much.
    pub(crate) async fn start_ahead(config: &str, ahead: Duration) -> Weir {
        Weir::start_in(config, &wall_clock::ahead(ahead)).await
    }

    /// Starts weir like [`Weir::start`], with these environment variables.
    pub(crate) async fn start_in(config: &str, environment: &[(&str, String)]) -> Weir {
        Weir::start_written(&with_preamble(config), environment).await
    }

    /// Starts weir with a configuration that has a `listen` and an `admin` of its own, with the port 0.
    pub(crate) async fn start_whole(config: &str) -> Weir {
        Weir::start_written(config, &[]).await
    }

    async fn start_written(config: &str, environment: &[(&str, String)]) -> Weir {
        let directory = TempDir::with_prefix("weir-test").expect("a temporary directory");
        let path = directory.path().join("weir.yaml");
        fs::write(&path, config).expect("write the configuration");
        let mut weir = Weir::spawn(&path, environment).await;
        weir._directory = Some(directory);
        weir
    }

    /// Starts weir with a file of the test's, written by [`write_whole`] or [`with_preamble`].
    pub(crate) async fn start_at(config: &Path) -> Weir {
        Weir::spawn(config, &[]).await
    }

    async fn spawn(config: &Path, environment: &[(&str, String)]) -> Weir {
        raise_open_files();
        let mut process = command(&["serve", "--config", &config.to_string_lossy()])
            .envs(environment.iter().map(|(name, value)| (*name, value)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start weir");
        let log = Log::follow(&mut process);
        let unset = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut weir =
            Weir { process, log, _directory: None, config: config.into(), address: unset, admin: unset };
        weir.address = weir.wait_for_address("listening").await;
        weir.admin = weir.wait_for_address("admin listening").await;
        weir
    }

    /// Starts weir like [`Weir::start`], with its log, access log included, in a file that nobody reads.
    pub(crate) async fn start_logging_to(log: fs::File, config: &str) -> Weir {
        let directory = TempDir::with_prefix("weir-test").expect("a temporary directory");
        let path = directory.path().join("weir.yaml");
        let address = || SocketAddr::from(([127, 0, 0, 1], closed_port()));
        let (address, admin) = (address(), address());
        let preamble = PREAMBLE.replacen("127.0.0.1:0", &address.to_string(), 1);
        let preamble =
            preamble.replacen("127.0.0.1:0", &admin.to_string(), 1).replace("access: false", "access: true");
        fs::write(&path, format!("{preamble}{config}")).expect("write the configuration");
        let mut command = command(&["serve", "--config", &path.to_string_lossy()]);
        let process = command.stdout(Stdio::null()).stderr(log).spawn().expect("start weir");
        let log = Log::default();
        let weir = Weir { process, log, _directory: Some(directory), config: path, address, admin };
        let health = weir.admin("/healthz");
        eventually("weir's health", async || client::get(&health).await.is_ok()).await;
        weir
    }

    /// Starts replicas of one configuration.
    pub(crate) async fn fleet(replicas: usize, config: &str) -> Vec<Weir> {
        let mut fleet = Vec::with_capacity(replicas);
        for _ in 0..replicas {
            fleet.push(Weir::start(config).await);
        }
        fleet
    }

    async fn wait_for_address(&mut self, message: &str) -> SocketAddr {
        let what = format!("weir's log line {message:?}");
        poll_for(&what, async || {
            if let Ok(Some(status)) = self.process.try_wait() {
                panic!("weir ended with {status} before it listened");
            }
            self.log.field_of(message, "address").map(|text| text.parse().expect("an address"))
        })
        .await
    }

    /// Returns a URL for applications.
    pub(crate) fn url(&self, target: &str) -> String {
        format!("http://{}{target}", self.address)
    }

    /// Returns `127.0.0.1:PORT`, the address for applications.
    pub(crate) fn host(&self) -> String {
        self.address.to_string()
    }

    /// Returns a URL of the admin listener.
    pub(crate) fn admin(&self, target: &str) -> String {
        format!("http://{}{target}", self.admin)
    }

    /// Sends a GET through weir and waits for its answer.
    pub(crate) async fn get(&self, target: &str) -> Answer {
        client::get(&self.url(target)).await.unwrap_or_else(|error| panic!("no answer from weir: {error}"))
    }

    /// Begins `count` GETs of `target` through weir, each on a connection of its own.
    pub(crate) fn begin(&self, count: usize, target: &str) -> Vec<Pending> {
        (0..count).map(|_| Pending::get(&self.url(target))).collect()
    }

    /// Opens a connection for requests through weir.
    pub(crate) async fn connect(&self) -> Connection {
        Connection::open(&self.host()).await.expect("weir accepts")
    }

    /// Returns the available permits of each of a limiter's limits, by the admin API.
    pub(crate) async fn available(&self, limiter: &str) -> Vec<u64> {
        self.available_at(&format!("/api/limiters/{limiter}")).await
    }

    /// Returns the available permits of one partition, for each limit.
    pub(crate) async fn available_of(&self, limiter: &str, partition: &str) -> Vec<u64> {
        self.available_at(&format!("/api/limiters/{limiter}?partition={partition}")).await
    }

    async fn available_at(&self, target: &str) -> Vec<u64> {
        let state = self.ask(target).await;
        assert_eq!(state.status, 200, "{}", state.text());
        let state = state.json();
        let limits = state["limits"].as_array().unwrap_or_else(|| panic!("limits in {state}"));
        let available = |limit: &Value| limit["available"].as_u64();
        limits
            .iter()
            .map(|limit| available(limit).unwrap_or_else(|| panic!("available in {state}")))
            .collect()
    }

    /// Sends a GET to the admin listener.
    pub(crate) async fn ask(&self, target: &str) -> Answer {
        client::get(&self.admin(target)).await.unwrap_or_else(|error| panic!("no answer from admin: {error}"))
    }

    /// Sends a POST without a body to the admin listener.
    pub(crate) async fn tell(&self, target: &str) -> Answer {
        self.tell_with(target, "").await
    }

    /// Sends a POST to the admin listener.
    pub(crate) async fn tell_with(&self, target: &str, body: &str) -> Answer {
        let request = client::Request::post(target, body.as_bytes());
        client::send(&self.admin(target), request)
            .await
            .unwrap_or_else(|error| panic!("no answer from admin: {error}"))
    }

    /// Scrapes the metrics.
    pub(crate) async fn metrics(&self) -> Metrics {
        Metrics::parse(&self.ask("/metrics").await.text())
    }

    /// Returns the number of waiting requests, by the gauge.
    pub(crate) async fn waiting(&self) -> f64 {
        self.metrics().await.sum("weir_queue_waiting", &[])
    }

    /// Waits until this many requests wait.
    pub(crate) async fn wait_for_waiting(&self, count: usize) {
        let what = format!("{count} waiting requests");
        eventually(&what, async || self.waiting().await >= count as f64).await;
    }

    /// Waits until no request waits.
    pub(crate) async fn wait_for_empty_queue(&self) {
        eventually("an empty queue", async || self.waiting().await == 0.0).await;
    }

    /// Returns the number of configurations that were applied (`ok`) or refused (`error`).
    pub(crate) async fn reloads(&self, result: &str) -> f64 {
        self.metrics().await.sum("weir_config_reloads_total", &[("result", result)])
    }

    /// Returns the path of the configuration file.
    pub(crate) fn config(&self) -> &Path {
        &self.config
    }

    /// Replaces the configuration file by the preamble and this text, in one step.
    pub(crate) fn write_config(&self, config: &str) {
        write_whole(&self.config, config);
    }

    /// Writes the configuration, sends SIGHUP, and waits until weir has applied it.
    pub(crate) async fn reload(&self, config: &str) {
        let before = self.reloads("ok").await;
        self.write_config(config);
        self.signal(Signal::HUP);
        eventually("a successful reload", async || self.reloads("ok").await > before).await;
    }

    /// Replaces every replica's file, then waits until all have applied it.
    pub(crate) async fn reload_all(fleet: &[Weir], config: &str) {
        let mut before = Vec::with_capacity(fleet.len());
        for weir in fleet {
            before.push(weir.reloads("ok").await);
        }
        for weir in fleet {
            weir.write_config(config);
            weir.signal(Signal::HUP);
        }
        for (weir, before) in fleet.iter().zip(before) {
            eventually("a reload of each replica", async || weir.reloads("ok").await > before).await;
        }
    }

    /// Sends SIGTERM: weir drains.
    pub(crate) fn sigterm(&self) {
        self.signal(Signal::TERM);
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("weir runs");
    }

    /// Waits until weir has ended by itself.
    pub(crate) async fn wait_exit(&mut self, deadline: Duration) -> ExitStatus {
        poll_for_within("weir's end", deadline, async || self.try_exit()).await
    }

    /// Returns how weir has ended, if it has.
    pub(crate) fn try_exit(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().expect("weir is our child")
    }

    /// Changes how many files the running weir may have open.
    pub(crate) fn limit_open_files(&self, most: u64) {
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        let pid = Pid::from_child(&self.process);
        rustix::process::prlimit(Some(pid), Resource::Nofile, limit).expect("limit the files");
    }

    /// Returns the number of weir's open files, sockets included.
    pub(crate) fn open_files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.process.id())).expect("weir runs").count()
    }

    /// Returns weir's CPU time so far, to ten milliseconds.
    pub(crate) fn cpu_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id())).expect("it lives");
        // The name, in parentheses, may hold anything; user and system time are the 14th and 15th of all fields.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks: u64 = [11, 12].iter().map(|index| fields[*index].parse::<u64>().expect("a number")).sum();
        Duration::from_millis(ticks * 10)
    }

    /// Returns weir's resident memory, in bytes.
    pub(crate) fn rss_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).expect("weir runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number of kB");
        kib * 1024
    }

    /// Stops to read weir's standard error: its pipe fills up.
    pub(crate) fn stop_reading_log(&self) {
        self.log.stop(true);
    }

    /// Reads weir's standard error again.
    pub(crate) fn read_log_again(&self) {
        self.log.stop(false);
    }

    /// Returns the log so far.
    pub(crate) fn log(&self) -> String {
        self.log.text()
    }

    /// Returns the lines of the log so far that have this target.
    pub(crate) fn log_of(&self, target: &str) -> Vec<Value> {
        let lines = self.log.lock();
        let lines = lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|line| line["target"] == target).collect()
    }

    /// Waits until one line of the log holds all of these words.
    pub(crate) async fn wait_for_log(&self, words: &[&str]) {
        let what = format!("a log line with {words:?}");
        eventually(&what, async || {
            self.log.lock().iter().any(|line| words.iter().all(|word| line.contains(word)))
        })
        .await;
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
        self.log.stop(false);
        if thread::panicking() {
            println!("--- log of the weir on {} ---\n{}", self.address, self.log.text());
        }
    }
}

/// The last lines of a process's standard error.
#[derive(Clone, Default)]
struct Log {
    lines: Arc<Mutex<VecDeque<String>>>,
    /// True while the lines are not to be read.
    stopped: Arc<(Mutex<bool>, Condvar)>,
}

impl Log {
    /// Reads until the process closes it; the thread ends with the process.
    fn follow(process: &mut Child) -> Log {
        let log = Log::default();
        let stderr = process.stderr.take().expect("standard error is piped");
        let own = log.clone();
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut lines = own.lock();
                if lines.len() == LOG_LINES_MAX {
                    lines.pop_front();
                }
                lines.push_back(line);
                drop(lines);
                let stopped = own.stopped.0.lock().unwrap_or_else(PoisonError::into_inner);
                let going = own.stopped.1.wait_while(stopped, |stopped| *stopped);
                drop(going.unwrap_or_else(PoisonError::into_inner));
            }
        });
        log
    }

    fn stop(&self, stop: bool) {
        *self.stopped.0.lock().unwrap_or_else(PoisonError::into_inner) = stop;
        self.stopped.1.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<String>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a field of the first line with that message.
    fn field_of(&self, message: &str, field: &str) -> Option<String> {
        let lines = self.lock();
        lines.iter().find_map(|line| {
            let line: Value = serde_json::from_str(line).ok()?;
            (line["message"] == message).then(|| line[field].as_str().map(ToOwned::to_owned))?
        })
    }

    fn text(&self) -> String {
        let lines = self.lock();
        lines.iter().fold(String::new(), |mut text, line| {
            writeln!(text, "{line}").ok();
            text
        })
    }
}

/// The result of a command that ends by itself.
#[derive(Debug)]
pub(crate) struct Finished {
    /// The exit code; `None` when a signal ended the command.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    /// Returns both output streams.
    pub(crate) fn output(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }

    /// Panics unless the command ended by itself, with that code, and without the traces of a crash.
    pub(crate) fn assert_code(&self, code: i32) {
        assert_eq!(self.code, Some(code), "{}", self.output());
        for trace in ["panicked at", "RUST_BACKTRACE", "stack backtrace", ".rs:"] {
            assert!(!self.output().contains(trace), "{trace:?} in: {}", self.output());
        }
    }
}

/// Runs weir with arguments until it ends by itself.
pub(crate) async fn run(arguments: &[&str]) -> Finished {
    finish(arguments, command(arguments)).await
}

/// Runs weir with arguments and these variables until it ends by itself.
pub(crate) async fn run_in(arguments: &[&str], environment: &[(&str, &str)]) -> Finished {
    let mut command = command(arguments);
    command.envs(environment.iter().copied());
    finish(arguments, command).await
}

/// Runs `weir check --strict` on a file, with the variables that it cannot do without (`${NAME:?why}`).
pub(crate) async fn check_strictly(path: &Path) -> Finished {
    let text = fs::read_to_string(path).expect("a configuration");
    let needed = text.split("${").skip(1).filter_map(|reference| Some(reference.split_once(":?")?.0));
    let needed = needed.filter(|name| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'));
    let arguments = ["check", "--strict", "--config", &path.to_string_lossy()];
    let mut command = command(&arguments);
    command.envs(needed.map(|name| (name, "a-credential")));
    finish(&arguments, command).await
}

/// Runs weir with arguments and this standard input until it ends by itself.
pub(crate) async fn run_with_input(arguments: &[&str], input: &str) -> Finished {
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(input.as_bytes()).expect("written");
    file.rewind().expect("rewound");
    let mut command = command(arguments);
    command.stdin(file);
    finish(arguments, command).await
}

async fn finish(arguments: &[&str], command: Command) -> Finished {
    let mut command = tokio::process::Command::from(command);
    command.kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output())
        .await
        .unwrap_or_else(|_| panic!("weir {arguments:?} did not end in {PATIENCE:?}"))
        .expect("start weir");
    let signal = output.status.signal();
    assert_eq!(signal, None, "weir {arguments:?} was ended by a signal");
    Finished {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    // The developer's environment must not change the verdict.
    command.args(arguments).stdin(Stdio::null()).env_remove("RUST_LOG").env_remove("RUST_BACKTRACE");
    command
}

/// Returns the configuration with free ports before it.
pub(crate) fn with_preamble(config: &str) -> String {
    format!("{PREAMBLE}{config}")
}

/// Writes the configuration beside the file and renames it, so that no reader sees half of it.
pub(crate) fn write_whole(path: &Path, config: &str) {
    replace_file(path, &with_preamble(config));
}
