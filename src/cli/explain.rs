//! `weir explain`: what would become of a request, by a configuration or by a running weir.
//!
//! The explanation is the proxy's own. Nothing is sent upstream, and no permit is taken.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::Value;
use url::form_urlencoded;

use super::check::unless_closed;
use super::remote::{Remote, RemoteError};
use super::table::{aligned, plain};
use crate::admin;
use crate::clock::Clock;
use crate::config::{self, Config, LoadError};
use crate::limiter::Limiters;
use crate::limiter::store::memory::MemoryStore;
use crate::proxy::{Proxy, ProxyBuildError, Reach};
use crate::telemetry::{Metrics, Spans};
use crate::usage::Usage;

/// The longest request that a running weir is asked about, in bytes of the URL: its admin listener reads heads of 16 KiB.
const ASKED_BYTES_MAX: usize = 15 * 1024;

/// The request to explain, and by which weir.
#[derive(Debug, Args)]
pub struct ExplainArguments {
    /// The method
    method: String,
    /// The URL as the application sends it to weir, or its path
    url: String,
    /// A header of the request; may be repeated
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// The body of the request, also for a `key`, a `match` or a `cost` by `json:`
    #[arg(short, long)]
    data: Option<String>,
    /// The address that the request comes from
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    from: IpAddr,
    /// The configuration to explain it by; without it a running weir is asked
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The running weir
    #[command(flatten)]
    remote: Remote,
}

/// The reason why there is no explanation.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// The configuration has problems.
    #[error("the configuration is not valid\n{0}")]
    Config(#[from] LoadError),
    /// Something that the configuration names cannot be used.
    #[error(transparent)]
    Build(#[from] ProxyBuildError),
    /// The request cannot be one.
    #[error("{0}")]
    Request(String),
    /// The running weir gave no answer.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// The explanation could not be printed.
    #[error("cannot print the explanation")]
    Output(#[from] std::io::Error),
}

/// Prints the explanation. Success means that the request would be forwarded once it has its permits.
///
/// # Errors
/// If there is no explanation, or it cannot be printed.
pub async fn run(mut arguments: ExplainArguments) -> Result<ExitCode, ExplainError> {
    if let Some(data) = &arguments.data {
        arguments.headers.push(format!("content-length: {}", data.len()));
    }
    let document = match &arguments.config {
        Some(path) => by_file(path, &arguments)?,
        None => arguments.remote.get(&path_of(&arguments)?).await?,
    };
    let mut output = std::io::stdout().lock();
    unless_closed(if arguments.remote.wants_json() {
        writeln!(output, "{document:#}")
    } else {
        write!(output, "{}", aligned(&rows(&document)))
    })?;
    Ok(if document["refused"].is_null() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Explains a request by a configuration, with limiters that nobody has used.
fn by_file(path: &Path, arguments: &ExplainArguments) -> Result<Value, ExplainError> {
    let config: Arc<Config> = config::load(path)?.config;
    let request =
        admin::asked(&arguments.method, &arguments.url, &arguments.headers).map_err(ExplainError::Request)?;
    let (metrics, clock) = (Metrics::new(), Clock::start());
    let limiters = Limiters::new(Arc::new(MemoryStore::new(clock)), clock, 1, metrics.clone());
    let prepared = limiters.prepare(&config.limiters);
    let proxy =
        Proxy::new(metrics, Usage::default(), Spans::default(), &config, &prepared, Reach::default())?;
    Ok(proxy.explain(request, arguments.data.as_deref().map(str::as_bytes), arguments.from).document)
}

/// Returns the path that asks a running weir for the explanation.
fn path_of(arguments: &ExplainArguments) -> Result<String, ExplainError> {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("method", &arguments.method).append_pair("url", &arguments.url);
    query.append_pair("from", &arguments.from.to_string());
    query.extend_pairs(arguments.data.iter().map(|data| ("body", data)));
    query.extend_pairs(arguments.headers.iter().map(|header| ("header", header)));
    let path = format!("/api/explain?{}", query.finish());
    if path.len() > ASKED_BYTES_MAX {
        let message = format!(
            "the request takes {} bytes where it is told to a running weir, which takes no more than {ASKED_BYTES_MAX}: give a \
             shorter body, or the configuration by --config FILE",
            path.len()
        );
        return Err(ExplainError::Request(message));
    }
    Ok(path)
}

/// Returns the rows of an explanation, each with a word for what it is about.
fn rows(document: &Value) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let mut row = |about: &str, text: String| rows.push(vec![about.to_owned(), text]);
    let list = |value: &Value| {
        let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
        items.iter().map(plain).collect::<Vec<_>>().join(", ")
    };
    row("request", format!("{} {}", plain(&document["method"]), plain(&document["path"])));
    row("client", format!("{}{}", plain(&document["client"]["address"]), client_name(&document["client"])));
    row("route", if document["route"].is_null() { "none".to_owned() } else { plain(&document["route"]) });
    if let Some(unknown) = document["unknown"].as_str() {
        row("unknown", format!("{unknown}: give it with --data"));
    }
    let refused = &document["refused"];
    if !refused.is_null() {
        let (status, error) = (plain(&refused["status"]), plain(&refused["error"]));
        row("refused", format!("{status} {error}: {}", plain(&refused["detail"])));
    }
    let upstream = &document["upstream"];
    if !upstream.is_null() {
        row("upstream", plain(&upstream["url"]));
        for (name, value) in upstream["headers"].as_object().into_iter().flatten() {
            let is_set = upstream["set"].as_array().is_some_and(|set| set.contains(&name.as_str().into()));
            row(
                "header",
                format!("{name}: {}{}", plain(value), if is_set { " (set by the route)" } else { "" }),
            );
        }
        if upstream["removed"].as_array().is_some_and(|removed| !removed.is_empty()) {
            row("removed", list(&upstream["removed"]));
        }
        if document["limiters"].as_array().is_some_and(Vec::is_empty) {
            row("limiter", "none: it goes out at once".to_owned());
        }
    }
    if let Some(words) = breaker_words(&document["breaker"]) {
        row("breaker", words);
    }
    for limiter in document["limiters"].as_array().into_iter().flatten() {
        row("limiter", limiter_words(limiter, &list(&limiter["limits"])));
        if let Some(now) = now_words(&limiter["now"]) {
            row("", now);
        }
    }
    if let Some(wait) = document["wait_max_ms"].as_u64().filter(|wait| *wait > 0) {
        row("waits", format!("at most {:?}{}", Duration::from_millis(wait), bounded_by(document)));
    }
    for other in document["others"].as_array().into_iter().flatten() {
        row("not", format!("{}: {}", plain(&other["route"]), plain(&other["because"])));
    }
    rows
}

/// Says what a route's breaker does, if there is one.
fn breaker_words(breaker: &Value) -> Option<String> {
    let failures = plain(&breaker["failures"]);
    Some(match (breaker["state"].as_str()?, breaker["probe_in_ms"].as_u64()) {
        ("closed", _) => format!("closed, {failures} failures to connect in a row so far"),
        (_, Some(0)) => "open: the next request goes as a probe".to_owned(),
        (_, Some(millis)) => {
            format!("open: it is refused with 503; the next probe in {:?}", Duration::from_millis(millis))
        }
        _ => "open: it is refused with 503; a probe is under way".to_owned(),
    })
}

fn client_name(client: &Value) -> String {
    client["name"].as_str().map(|name| format!(", {name}")).unwrap_or_default()
}

fn bounded_by(document: &Value) -> String {
    document["wait_bounded_by"].as_str().map(|why| format!(", the {why}")).unwrap_or_default()
}

fn limiter_words(limiter: &Value, limits: &str) -> String {
    let partition = limiter["partition"].as_object().map(|parts| {
        let parts = parts.iter().map(|(part, value)| format!("{part} {}", plain(value)));
        format!("; partition {}", parts.collect::<Vec<_>>().join(", "))
    });
    let queue = &limiter["queue"];
    let queue = match (queue["unused"].as_str(), queue["timeout_ms"].as_u64()) {
        (Some(why), _) => format!("its queue is not used, because {why}"),
        (None, Some(timeout)) => {
            format!("queue of {} for {:?}", plain(&queue["max_waiting"]), Duration::from_millis(timeout))
        }
        (None, None) => "no queue".to_owned(),
    };
    let overridden = if limiter["override"].is_null() {
        String::new()
    } else {
        format!(" (override {})", plain(&limiter["override"]))
    };
    let (name, cost) = (plain(&limiter["limiter"]), plain(&limiter["cost"]));
    format!("{name}: {limits}{overridden}{}; cost {cost}; {queue}", partition.unwrap_or_default())
}

/// Describes what a limiter has available; `None` without a running weir.
fn now_words(now: &Value) -> Option<String> {
    let limits = now["limits"].as_array()?.iter();
    let left = limits.map(|limit| format!("{} of {}", plain(&limit["available"]), plain(&limit["limit"])));
    let paused = if now["paused"].is_null() { "" } else { ", paused" };
    Some(format!(
        "now {} left, {} waiting{paused}",
        left.collect::<Vec<_>>().join(", "),
        plain(&now["waiting"])
    ))
}
