//! `weir limiters`, `pause`, `resume`, `reset`, `reload`, `replicas` and `health`: requests to the admin listener of a running weir.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::header::{AUTHORIZATION, HOST, WWW_AUTHENTICATE};
use http::{Method, Request, Response, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use url::{Url, form_urlencoded};

use super::check::unless_closed;
use super::table::{aligned, plain};
use super::{address, partitions, shares};
use crate::admin;
use crate::clock::unix_now;

/// The variable with the token of `admin.token`. Everyone on the machine could read a token in an argument.
const TOKEN_VARIABLE: &str = "WEIR_ADMIN_TOKEN";

/// The longest wait for a connection: an address at which nothing is says nothing, and an answer may take much longer.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// The longest wait for an answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
/// The longest wait for the answer to a reload: longer than weir itself waits for the files, and then says what it waits for.
const RELOAD_TIME_MAX: Duration = admin::RELOAD_TIME_MAX.saturating_add(Duration::from_secs(5));
/// The largest answer; a thousand limiters need only a part of it.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The interval of `--watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// The weir to ask, and the form of its answer.
#[derive(Debug, Args)]
pub struct Remote {
    /// The admin listener of any replica; its token is read from WEIR_ADMIN_TOKEN
    #[arg(
        long,
        value_name = "URL",
        env = "WEIR_ADMIN_URL",
        hide_env_values = true,
        default_value = address::DEFAULT,
        value_parser = address::parse
    )]
    admin: Url,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

/// A limiter, or one of its partitions.
#[derive(Debug, Args)]
pub struct LimiterArguments {
    /// The limiter
    pub name: String,
    /// A partition: the values of the limiter's key, in order
    #[arg(long, value_name = "VALUE")]
    pub partition: Vec<String>,
}

/// The reason why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// No weir answers at the address.
    #[error("cannot reach {admin}: {reason}; is weir running there? Name another address with `--admin URL`")]
    Unreachable {
        /// The address.
        admin: Url,
        /// The reason.
        reason: String,
    },
    /// weir refused the request.
    #[error("{0}")]
    Refused(String),
    /// The answer could not be printed.
    #[error("cannot print the answer")]
    Output(#[from] std::io::Error),
}

/// `weir limiters`: prints the live state of all limiters or of one, or the partitions of one that matter; with `watch` every second.
///
/// # Errors
/// If there is no answer, or it cannot be printed.
pub async fn limiters(
    remote: Remote,
    limiter: Option<LimiterArguments>,
    top: bool,
    watch: bool,
) -> Result<ExitCode, RemoteError> {
    loop {
        let path =
            limiter.as_ref().map_or_else(|| "/api/limiters".to_owned(), |limiter| path_of(limiter, ""));
        let answer = remote.ask(Method::GET, &path, "").await?;
        if top && answer["partitioned"] == false {
            return Err(RemoteError::Refused("this limiter has no key, so it has no partitions".to_owned()));
        }
        if watch && std::io::stdout().is_terminal() {
            // Moves the cursor home and clears the screen below.
            write!(std::io::stdout().lock(), "\x1b[H\x1b[J")?;
        }
        remote.show(&answer, if top { partitions::tables } else { limiters_tables })?;
        if !watch {
            return Ok(ExitCode::SUCCESS);
        }
        sleep(WATCH_INTERVAL).await;
    }
}

/// `weir pause`, `resume` or `reset`: acts on all replicas, and prints the state afterwards.
///
/// # Errors
/// If weir refused, there is no answer, or it cannot be printed.
pub async fn act(
    remote: Remote,
    limiter: LimiterArguments,
    action: &str,
    lasting: Option<&str>,
) -> Result<ExitCode, RemoteError> {
    let body = lasting.map(|lasting| serde_json::json!({"for": lasting}).to_string()).unwrap_or_default();
    let answer = remote.ask(Method::POST, &path_of(&limiter, action), &body).await?;
    remote.show(&answer, limiters_tables)?;
    if !remote.json
        && let Some(detail) = answer["detail"].as_str()
    {
        writeln!(std::io::stdout().lock(), "{}", plain(&detail.into()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// `weir replicas`: prints the replicas that share the store.
///
/// # Errors
/// If there is no answer, or it cannot be printed.
pub async fn replicas(remote: Remote) -> Result<ExitCode, RemoteError> {
    let answer = remote.ask(Method::GET, "/api/replicas", "").await?;
    remote.show(&answer, |answer| vec![replicas_table(answer)])?;
    Ok(ExitCode::SUCCESS)
}

/// `weir reload`: makes a replica read its file, and prints what has changed, or every problem.
///
/// # Errors
/// If there is no answer, or it cannot be printed.
pub async fn reload(remote: Remote) -> Result<ExitCode, RemoteError> {
    let response = remote.fetch(Method::POST, "/api/reload", "", RELOAD_TIME_MAX).await?;
    let answer: Value = serde_json::from_slice(response.body()).unwrap_or_default();
    let is_done = response.status().is_success();
    if !is_done && !answer["problems"].is_array() {
        return Err(remote.refused(&response, &answer));
    }
    let printed = if remote.json {
        writeln!(std::io::stdout().lock(), "{answer:#}")
    } else if is_done {
        let mut output = std::io::stdout().lock();
        reload_lines(&answer).iter().try_for_each(|line| writeln!(output, "{line}"))
    } else {
        let mut output = std::io::stderr().lock();
        let problems = answer["problems"].as_array().into_iter().flatten();
        let lines = problems.map(|problem| problem_line(problem, ""));
        lines.chain([plain(&answer["detail"])]).try_for_each(|line| writeln!(output, "{line}"))
    };
    unless_closed(printed)?;
    Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the lines about a reload that succeeded.
fn reload_lines(answer: &Value) -> Vec<String> {
    let list = |key: &str| answer[key].as_array().map(Vec::as_slice).unwrap_or_default();
    let changes = list("changes").iter().map(|change| {
        let path = plain(&change["path"]);
        match (change["old"].as_str(), change["new"].as_str()) {
            (None, _) => format!("{path}: added, {}", plain(&change["new"])),
            (_, None) => format!("{path}: removed"),
            // Only secrets are shown alike, and files that were replaced under their names.
            (Some(old), Some(new)) if old == new => format!("{path}: changed"),
            (Some(_), Some(_)) => format!("{path}: {} -> {}", plain(&change["old"]), plain(&change["new"])),
        }
    });
    let restarts = list("restart_needed").iter().map(|key| format!("{}: needs a restart", plain(key)));
    let warnings = list("warnings").iter().map(|warning| problem_line(warning, "warning: "));
    let head = match answer["changed_at_unix_seconds"].as_u64() {
        _ if answer["changed"] == true => None,
        None => Some("nothing has changed since the start".to_owned()),
        Some(at) => {
            let ago = unix_now().as_secs().saturating_sub(at);
            Some(format!("nothing has changed since {ago} s ago, when the file was taken up:"))
        }
    };
    head.into_iter().chain(changes).chain(restarts).chain(warnings).collect()
}

/// Formats a problem of the configuration as `weir check` does, without its line: the file is elsewhere.
fn problem_line(problem: &Value, kind: &str) -> String {
    let part = |key: &str| plain(&problem[key]);
    let place = match problem["line"].as_u64() {
        Some(0) | None => String::new(),
        Some(_) => format!("{}:{}:", part("line"), part("column")),
    };
    let path = if part("path").is_empty() { String::new() } else { format!("{}: ", part("path")) };
    format!("{}:{place} {kind}{path}{}", part("file"), part("message"))
}

/// `weir health`: prints the answer of `/readyz`.
///
/// # Errors
/// If there is no answer, or it cannot be printed.
pub async fn health(remote: Remote) -> Result<ExitCode, RemoteError> {
    let response = remote.fetch(Method::GET, "/readyz", "", ANSWER_TIME_MAX).await?;
    let is_ready = response.status().is_success();
    let body = String::from_utf8_lossy(response.body());
    let mut output = std::io::stdout().lock();
    unless_closed(if remote.json {
        writeln!(output, "{}", body.trim_end())
    } else {
        let verdict = if is_ready { "ready" } else { "not ready" };
        let reasons = reasons(&serde_json::from_str(&body).unwrap_or_default());
        std::iter::once(verdict)
            .chain(reasons.iter().map(String::as_str))
            .try_for_each(|line| writeln!(output, "{line}"))
    })?;
    Ok(if is_ready { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns a line for each reason that the answer of `/readyz` names.
fn reasons(answer: &Value) -> Vec<String> {
    let draining = answer["draining"].as_bool().filter(|draining| *draining).map(|_| "draining".to_owned());
    let limiters = answer["cannot_serve"].as_array().map(Vec::as_slice).unwrap_or_default();
    let limiters = limiters.iter().filter_map(|limiter| {
        Some(format!("limiter {}: {}", limiter["limiter"].as_str()?, limiter["because"].as_str()?))
    });
    draining.into_iter().chain(limiters).collect()
}

/// Returns the token for the admin listener, if one is set.
fn token() -> Option<String> {
    std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.is_empty())
}

fn path_of(limiter: &LimiterArguments, action: &str) -> String {
    let name: String = form_urlencoded::byte_serialize(limiter.name.as_bytes()).collect();
    let mut path = format!("/api/limiters/{name}");
    if !action.is_empty() {
        path.push('/');
        path.push_str(action);
    }
    if !limiter.partition.is_empty() {
        let pairs = limiter.partition.iter().map(|value| ("partition", value));
        path.push('?');
        path.push_str(&form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish());
    }
    path
}

impl Remote {
    /// Returns whether JSON is asked for.
    pub(super) fn wants_json(&self) -> bool {
        self.json
    }

    /// Asks for a document.
    pub(super) async fn get(&self, path: &str) -> Result<Value, RemoteError> {
        self.ask(Method::GET, path, "").await
    }

    async fn ask(&self, method: Method, path: &str, body: &str) -> Result<Value, RemoteError> {
        let response = self.fetch(method, path, body, ANSWER_TIME_MAX).await?;
        let status = response.status();
        let answer: Option<Value> = serde_json::from_slice(response.body()).ok();
        match answer {
            Some(answer) if status.is_success() => Ok(answer),
            answer => Err(self.refused(&response, &answer.unwrap_or_default())),
        }
    }

    /// Returns the error that an answer is.
    fn refused(&self, response: &Response<Bytes>, answer: &Value) -> RemoteError {
        let Some(detail) = answer["detail"].as_str() else {
            return self.unreachable(format!("the answer, {}, is not from weir", response.status()));
        };
        let hint = match token() {
            _ if !response.headers().contains_key(WWW_AUTHENTICATE) => "",
            None => "; set WEIR_ADMIN_TOKEN",
            Some(_) => "; the one in WEIR_ADMIN_TOKEN is another",
        };
        RemoteError::Refused(format!("{detail}{hint}"))
    }

    fn unreachable(&self, reason: String) -> RemoteError {
        RemoteError::Unreachable { admin: self.admin.clone(), reason }
    }

    async fn fetch(
        &self,
        method: Method,
        path: &str,
        body: &str,
        time_max: Duration,
    ) -> Result<Response<Bytes>, RemoteError> {
        let asked = timeout(time_max, self.exchange(method, path, body)).await;
        asked.unwrap_or_else(|_| Err("no answer in time".into())).map_err(|reason| self.unreachable(reason))
    }

    async fn exchange(&self, method: Method, path: &str, body: &str) -> Result<Response<Bytes>, String> {
        let (Some(host), Some(port)) = (self.admin.host_str(), self.admin.port_or_known_default()) else {
            return Err(address::EXPECTED.to_owned());
        };
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let address = host.trim_start_matches('[').trim_end_matches(']');
        let connected = timeout(CONNECT_TIME_MAX, TcpStream::connect((address, port))).await;
        let too_late = |_| format!("no connection within {} s", CONNECT_TIME_MAX.as_secs());
        let stream = connected.map_err(too_late)?.map_err(|error| text(&error))?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| text(&error))?;
        let uri: Uri = path.parse().map_err(|error| format!("{error}: what is asked is too long"))?;
        let mut request = Request::builder().method(method).uri(uri).header(HOST, format!("{host}:{port}"));
        if let Some(token) = token() {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Full::new(Bytes::copy_from_slice(body.as_bytes())));
        let request = request.map_err(|_| format!("{TOKEN_VARIABLE} holds what a header cannot carry"))?;
        let answered = async {
            let response = sender.send_request(request).await.map_err(|error| text(&error))?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
            Ok(Response::from_parts(head, body.map_err(|error| text(&error))?.to_bytes()))
        };
        tokio::pin!(answered);
        tokio::select! {
            answer = &mut answered => answer,
            // The connection has ended; the answer may have arrived before.
            _ = connection => answered.await,
        }
    }

    /// Prints an answer as tables, with an empty line between them.
    fn show(&self, answer: &Value, tables: fn(&Value) -> Vec<Vec<Vec<String>>>) -> std::io::Result<()> {
        let mut output = std::io::stdout().lock();
        if self.json {
            return writeln!(output, "{answer:#}");
        }
        let tables: Vec<String> = tables(answer).iter().map(|table| aligned(table)).collect();
        write!(output, "{}", tables.join("\n"))?;
        store_line(answer).map_or(Ok(()), |line| writeln!(output, "{line}"))
    }
}

/// Returns the line below tables that were made without the store.
fn store_line(answer: &Value) -> Option<&'static str> {
    (answer["store_up"] == false).then_some("the store is away: limits go by on_store_failure")
}

/// Returns the limiters of an answer: all, or the one that it is.
fn limiters_of(answer: &Value) -> &[Value] {
    answer["limiters"].as_array().map_or(std::slice::from_ref(answer), Vec::as_slice)
}

/// Returns the table of limits, and those of how callers share them.
fn limiters_tables(answer: &Value) -> Vec<Vec<Vec<String>>> {
    let mut tables = vec![limiters_table(answer)];
    tables.extend(shares::tables(limiters_of(answer)));
    tables
}

/// Returns a row for each limit. The limiter's own cells are in its first row.
fn limiters_table(answer: &Value) -> Vec<Vec<String>> {
    let head = ["LIMITER", "LIMIT", "AVAILABLE", "WAITING", "GRANTED", "REFUSED", "PAUSED FOR"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let partition = partition(answer);
    if partition.is_some() {
        rows[0].push("PARTITION".to_owned());
    }
    // Of one limiter, or of one of its partitions.
    let has_overrides = answer["overrides"].as_u64().is_some_and(|count| count > 0);
    if has_overrides {
        rows[0].push("OVERRIDE".to_owned());
    }
    for limiter in limiters_of(answer) {
        for (index, limit) in limiter["limits"].as_array().into_iter().flatten().enumerate() {
            let of_limiter = |key: &str| if index == 0 { plain(&limiter[key]) } else { String::new() };
            rows.push(vec![
                of_limiter("name"),
                plain(&limit["limit"]),
                plain(&limit["available"]),
                of_limiter("waiting"),
                of_limiter("granted"),
                of_limiter("refused"),
                if index == 0 { paused_for(limiter) } else { String::new() },
            ]);
            let Some(row) = rows.last_mut() else { continue };
            row.extend(
                partition.as_ref().map(|shown| if index == 0 { shown.clone() } else { String::new() }),
            );
            if has_overrides {
                row.push(of_limiter("override"));
            }
        }
    }
    rows
}

/// Returns the values of the partition that an answer is about, as requests have them; `None` if it is about none.
fn partition(answer: &Value) -> Option<String> {
    let parts = answer["partition"].as_object()?.iter();
    Some(
        parts
            .map(|(part, value)| plain(&format!("{part}={}", plain(value)).into()))
            .collect::<Vec<_>>()
            .join(", "),
    )
}

fn replicas_table(answer: &Value) -> Vec<Vec<String>> {
    let head = ["REPLICA", "HOST", "VERSION", "CONFIGURATION", "SEEN"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for replica in answer["replicas"].as_array().into_iter().flatten() {
        let seen = match (replica["this"].as_bool(), replica["last_seen_ms"].as_u64()) {
            (Some(true), _) => "this one".to_owned(),
            (_, Some(millis)) => format!("{:.1}s ago", Duration::from_millis(millis).as_secs_f64()),
            _ => "-".to_owned(),
        };
        rows.push(vec![
            plain(&replica["id"]),
            plain(&replica["host"]),
            plain(&replica["version"]),
            plain(&replica["configuration"]),
            seen,
        ]);
    }
    rows
}

fn paused_for(limiter: &Value) -> String {
    let Some(until) = limiter["paused_until"].as_u64() else { return "-".to_owned() };
    let left = Duration::from_millis(until).saturating_sub(unix_now());
    let paused = &limiter["paused"];
    let why = match paused["reason"].as_str() {
        Some("by_hand") => "by hand".to_owned(),
        Some(_) => plain(&paused["status"]),
        None => "unknown why".to_owned(),
    };
    let local = if paused["local"] == true { ", this replica alone" } else { "" };
    format!("{:.1}s ({why}{local})", left.as_secs_f64())
}

#[cfg(test)]
mod tests;
