//! `wrk`, which loads a server over HTTP/1.1.

use std::process::{Command, Stdio};

use crate::load::Result;

/// A load of a server.
pub(crate) struct Load {
    pub(crate) threads: usize,
    pub(crate) connections: usize,
    pub(crate) seconds: u64,
}

/// The answers to a load.
pub(crate) struct Answers {
    pub(crate) requests: f64,
    pub(crate) requests_per_second: f64,
    /// The answers with a status above 399, which are among the requests.
    pub(crate) unsuccessful: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

/// Runs `wrk` to its end. An error on a connection is an error of the run.
pub(crate) fn run(mut command: Command, load: &Load, url: &str) -> Result<Answers> {
    let output = command
        .args(["--threads", &load.threads.to_string()])
        .args(["--connections", &load.connections.to_string()])
        .args(["--duration", &load.seconds.to_string()])
        .args(["--latency", url])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("wrk, which this needs: {error}"))?;
    let text = String::from_utf8(output.stdout)?;
    if !output.status.success() || text.contains("Socket errors") {
        return Err(format!("not every request was answered:\n{text}").into());
    }
    parse(&text).ok_or_else(|| format!("wrk said:\n{text}").into())
}

fn parse(text: &str) -> Option<Answers> {
    let after = |words: &str| following(text, words);
    let latencies = text.split("Latency Distribution").nth(1)?;
    let unsuccessful = match after("Non-2xx or 3xx responses:") {
        Some(count) => count.parse().ok()?,
        None => 0.0,
    };
    Some(Answers {
        requests: text.split(" requests in").next()?.split_whitespace().last()?.parse().ok()?,
        requests_per_second: after("Requests/sec:")?.parse().ok()?,
        unsuccessful,
        p50_ms: millis(following(latencies, "50%")?)?,
        p99_ms: millis(following(latencies, "99%")?)?,
    })
}

/// Returns the word after `words`.
fn following<'a>(text: &'a str, words: &str) -> Option<&'a str> {
    text.split(words).nth(1)?.split_whitespace().next()
}

/// Parses a time with its unit, as in `612.00us`; returns milliseconds.
fn millis(text: &str) -> Option<f64> {
    let digits = text.trim_end_matches(char::is_alphabetic);
    let factor = match &text[digits.len()..] {
        "us" => 1e-3,
        "ms" => 1.0,
        "s" => 1e3,
        "m" => 60e3,
        _ => return None,
    };
    Some(digits.parse::<f64>().ok()? * factor)
}
