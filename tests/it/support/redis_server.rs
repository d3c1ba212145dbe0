//! A real `redis-server` for one test: on a free port, in a directory of its own, without persistence.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, FromRedisValue, RedisResult};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::certificates::Certificates;
use super::closed_port;
use super::wall_clock::SteppedClock;

/// The longest time for a server to start.
const START_DEADLINE: Duration = Duration::from_secs(10);
/// The longest time for an answer: the client's own half second is too short for a busy machine.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);
/// The number of attempts to start: another process may take the port between its choice and its use.
const ATTEMPTS_MAX: u32 = 5;
const LOG: &str = "redis.log";
/// The names of the program: some distributions install Valkey in Redis's place.
const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];

/// The options of a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct RedisOptions {
    /// The port; a free one if absent.
    pub(crate) port: Option<u16>,
    /// The password that every client must send.
    pub(crate) password: Option<&'static str>,
    /// True if the server speaks TLS: [`RedisServer::url`] is then a `rediss://` one, and [`RedisServer::ca`] signs it.
    pub(crate) tls: bool,
    /// The server's wall clock.
    pub(crate) clock: Option<SteppedClock>,
}

/// A running server. Killed on drop; its log is printed when the test panics.
pub(crate) struct RedisServer {
    process: Child,
    /// The directory of the log and the certificates; removed on drop.
    directory: TempDir,
    port: u16,
    tls: Option<(u16, Certificates)>,
    password: Option<&'static str>,
    connection: Mutex<MultiplexedConnection>,
}

impl RedisServer {
    /// Starts a server without password and TLS, on a free port.
    pub(crate) async fn start() -> RedisServer {
        RedisServer::start_with(RedisOptions::default()).await
    }

    /// Starts a server and waits until it answers PING.
    pub(crate) async fn start_with(options: RedisOptions) -> RedisServer {
        let attempts = if options.port.is_some() { 1 } else { ATTEMPTS_MAX };
        RedisServer::start_as(&options, attempts, closed_port, &[]).await
    }

    /// Starts a part of something larger, on a chosen port, with further arguments.
    pub(crate) async fn start_part(choose_port: impl Fn() -> u16, arguments: &[&str]) -> RedisServer {
        RedisServer::start_as(&RedisOptions::default(), ATTEMPTS_MAX, choose_port, arguments).await
    }

    async fn start_as(
        options: &RedisOptions,
        attempts: u32,
        choose_port: impl Fn() -> u16,
        arguments: &[&str],
    ) -> RedisServer {
        let mut log = String::new();
        for _ in 0..attempts {
            let port = options.port.unwrap_or_else(&choose_port);
            match RedisServer::try_start(options, port, arguments).await {
                Ok(server) => return server,
                Err(reason) => log = reason,
            }
        }
        panic!("redis-server did not start:\n{log}");
    }

    async fn try_start(options: &RedisOptions, port: u16, further: &[&str]) -> Result<RedisServer, String> {
        let directory = TempDir::with_prefix("weir-test-redis").expect("a temporary directory");
        let tls = options.tls.then(|| (closed_port(), Certificates::write_to(directory.path())));
        let log = directory.path().join(LOG);

        // An empty file. A sentinel keeps its state in it.
        let configuration = directory.path().join("redis.conf");
        fs::write(&configuration, "").expect("write the configuration");

        let mut arguments = vec![configuration.to_string_lossy().into_owned()];
        let mut set = |key: &str, value: &str| arguments.extend([key.to_owned(), value.to_owned()]);
        set("--port", &port.to_string());
        set("--bind", "127.0.0.1");
        set("--save", "");
        set("--appendonly", "no");
        set("--dir", &directory.path().to_string_lossy());
        set("--logfile", &log.to_string_lossy());
        if let Some(password) = options.password {
            set("--requirepass", password);
        }
        if let Some((port, files)) = &tls {
            set("--tls-port", &port.to_string());
            set("--tls-ca-cert-file", &files.ca.to_string_lossy());
            set("--tls-cert-file", &files.certificate.to_string_lossy());
            set("--tls-key-file", &files.key.to_string_lossy());
            set("--tls-auth-clients", "no");
        }
        arguments.extend(further.iter().map(|argument| (*argument).to_owned()));
        let mut process = spawn(&arguments, options.clock.as_ref());
        match connect(&mut process, &plain_url(port, options.password)).await {
            Some(connection) => {
                let (password, connection) = (options.password, Mutex::new(connection));
                Ok(RedisServer { process, directory, port, tls, password, connection })
            }
            None => {
                stop(&mut process);
                Err(log_in(&directory))
            }
        }
    }

    /// Returns the value of weir's `store.redis.url`, with the password.
    pub(crate) fn url(&self) -> String {
        match &self.tls {
            Some((port, _)) => plain_url(*port, self.password).replacen("redis:", "rediss:", 1),
            None => plain_url(self.port, self.password),
        }
    }

    /// Stops the process, or lets it continue.
    pub(crate) fn freeze(&self, frozen: bool) {
        let pid = Pid::from_child(&self.process);
        kill_process(pid, if frozen { Signal::STOP } else { Signal::CONT }).expect("it runs");
    }

    /// Returns the listening port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Returns the certificate of the server's authority, if the server speaks TLS.
    pub(crate) fn ca(&self) -> Option<PathBuf> {
        self.tls.as_ref().map(|(_, files)| files.ca.clone())
    }

    /// Returns weir's `store`, in flow style. The timeout is long, for a machine that is busy with other tests.
    pub(crate) fn store(&self) -> String {
        let tls = self.ca().map_or_else(String::new, |ca| format!(", tls: {{ca: {}}}", ca.display()));
        format!("{{redis: {{url: \"{}\", timeout: 1s{tls}}}}}", self.url())
    }

    /// Runs a command.
    pub(crate) async fn command(&self, command: &[&str]) -> redis::Value {
        let connection = self.kept_connection();
        run(connection, command).await.unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// Runs a command that may be refused, also after the server has closed all connections, which sentinels make it do
    /// when they change its role.
    pub(super) async fn try_command<T: FromRedisValue>(&self, command: &[&str]) -> RedisResult<T> {
        let mut connection = self.kept_connection();
        if run::<String>(connection.clone(), &["PING"]).await.is_err() {
            connection = open(&plain_url(self.port, self.password)).await?;
            *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = connection.clone();
        }
        run(connection, command).await
    }

    fn kept_connection(&self) -> MultiplexedConnection {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Like [`RedisServer::try_command`]; panics when it is refused.
    pub(super) async fn query<T: FromRedisValue>(&self, command: &[&str]) -> T {
        self.try_command(command).await.unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// Returns a field of INFO, or of another command with the same format; `None` if there is no such field or no
    /// answer.
    pub(super) async fn field(&self, command: &[&str], name: &str) -> Option<String> {
        let text: String = self.try_command(command).await.ok()?;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.map(|value| value.trim().to_owned())
    }

    /// Returns whether the server calls itself a primary.
    pub(super) async fn is_primary(&self) -> bool {
        self.field(&["INFO", "replication"], "role").await.as_deref() == Some("master")
    }

    /// Returns whether the server is a replica that has caught up with its primary.
    pub(super) async fn is_linked(&self) -> bool {
        self.field(&["INFO", "replication"], "master_link_status").await.as_deref() == Some("up")
    }

    /// Returns the number of calls of each command since the start, by its name in lower case.
    pub(crate) async fn command_calls(&self) -> HashMap<String, u64> {
        let info = self.command(&["INFO", "commandstats"]).await;
        let info: String = redis::from_redis_value(info).expect("INFO is text");
        info.lines().filter_map(parse_command_calls).collect()
    }

    /// Returns the number of script calls since the start.
    pub(crate) async fn script_calls(&self) -> u64 {
        let calls = self.command_calls().await;
        ["eval", "evalsha", "fcall"].iter().filter_map(|name| calls.get(*name)).sum()
    }

    /// Returns a number from INFO.
    pub(crate) async fn info(&self, section: &str, name: &str) -> u64 {
        let value = self.field(&["INFO", section], name).await;
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no number {name} in {section}"))
    }

    /// Returns the number of writes since the start, those of expiries included.
    pub(crate) async fn changes(&self) -> u64 {
        self.info("persistence", "rdb_changes_since_last_save").await
    }

    /// Returns the number of keys, without weir's epoch, lists of states and moves, and replicas, and the fleet's figures, which stay for
    /// weeks. Expired keys that the server has not removed yet count.
    pub(crate) async fn size(&self) -> u64 {
        let number = |value| redis::from_redis_value::<u64>(value).expect("a number");
        let figures: Vec<String> =
            redis::from_redis_value(self.command(&["KEYS", "*{usage}:*"]).await).expect("KEYS is a list");
        const OWN: [&str; 4] = ["weir:v2:epoch", "weir:v2:live", "weir:v2:moved", "weir:v1:replicas"];
        let own = number(self.command(&[&["EXISTS"], &OWN[..]].concat()).await);
        number(self.command(&["DBSIZE"]).await).saturating_sub(own + figures.len() as u64)
    }

    /// Returns all keys.
    pub(crate) async fn keys(&self) -> Vec<String> {
        redis::from_redis_value(self.command(&["KEYS", "*"]).await).expect("KEYS is a list")
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        stop(&mut self.process);
        if std::thread::panicking() {
            println!("redis-server on port {}:\n{}", self.port, log_in(&self.directory));
        }
    }
}

fn log_in(directory: &TempDir) -> String {
    fs::read_to_string(directory.path().join(LOG)).unwrap_or_default()
}

fn spawn(arguments: &[String], clock: Option<&SteppedClock>) -> Child {
    let environment: Vec<_> = clock.iter().flat_map(|clock| clock.environment()).collect();
    for program in PROGRAMS {
        let started = Command::new(program)
            .args(arguments)
            .envs(environment.clone())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        match started {
            Ok(process) => return process,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => panic!("start {program}: {error}"),
        }
    }
    panic!("no redis-server on the PATH: scripts/test installs it");
}

fn stop(process: &mut Child) {
    process.kill().ok();
    process.wait().ok();
}

/// Returns a connection that has answered PING; `None` when the process ends or the deadline passes.
async fn connect(process: &mut Child, url: &str) -> Option<MultiplexedConnection> {
    let end = Instant::now() + START_DEADLINE;
    while Instant::now() < end && matches!(process.try_wait(), Ok(None)) {
        if let Ok(connection) = open(url).await
            && run::<String>(connection.clone(), &["PING"]).await.is_ok()
        {
            return Some(connection);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    None
}

async fn open(url: &str) -> RedisResult<MultiplexedConnection> {
    let client = redis::Client::open(url).expect("the harness makes valid addresses");
    let patient = AsyncConnectionConfig::new().set_response_timeout(Some(ANSWER_DEADLINE));
    client.get_multiplexed_async_connection_with_config(&patient).await
}

async fn run<T: FromRedisValue>(mut connection: MultiplexedConnection, command: &[&str]) -> RedisResult<T> {
    redis::cmd(command[0]).arg(&command[1..]).query_async(&mut connection).await
}

fn plain_url(port: u16, password: Option<&str>) -> String {
    let user = password.map_or_else(String::new, |password| format!(":{password}@"));
    format!("redis://{user}127.0.0.1:{port}/0")
}

/// Parses `cmdstat_evalsha:calls=12,usec=...` into (`evalsha`, 12).
fn parse_command_calls(line: &str) -> Option<(String, u64)> {
    let (name, values) = line.trim().strip_prefix("cmdstat_")?.split_once(":calls=")?;
    let calls = values.split(',').next()?.parse().ok()?;
    Some((name.to_lowercase(), calls))
}
