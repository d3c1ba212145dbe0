//! The harness: real `redis-server` (alone, under sentinels, as a cluster) and weir processes, an upstream that
//! records, and a client that can hold thousands of connections.
//!
//! Knows nothing of weir's internals: everything goes through sockets, files, signals and `/proc`. Everything that is
//! started here ends when its value is dropped, also when the test panics.

pub(crate) mod certificates;
pub(crate) mod client;
pub(crate) mod cluster;
pub(crate) mod cut;
pub(crate) mod held_file;
pub(crate) mod http2;
pub(crate) mod lane;
pub(crate) mod load;
pub(crate) mod measure;
pub(crate) mod metrics;
pub(crate) mod outbound_proxy;
pub(crate) mod page;
pub(crate) mod patience;
pub(crate) mod raw;
pub(crate) mod redis_server;
pub(crate) mod sentinel;
pub(crate) mod tls;
pub(crate) mod tls_upstream;
pub(crate) mod uploads;
pub(crate) mod upstream;
pub(crate) mod wall_clock;
pub(crate) mod weir;

pub(crate) use client::{Answer, Connection, Pending, Request};
pub(crate) use cluster::Cluster;
pub(crate) use cut::Cut;
pub(crate) use held_file::HeldFile;
pub(crate) use load::Load;
pub(crate) use patience::{
    PATIENCE, SECOND, eventually, eventually_within, poll_for, poll_for_within, wait_until,
};
pub(crate) use redis_server::{RedisOptions, RedisServer};
pub(crate) use sentinel::Sentinel;
pub(crate) use tls::TlsClient;
pub(crate) use upstream::{Reply, Upstream};
pub(crate) use weir::Weir;

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Returns a port of the loopback interface on which nothing listens. It lies below the ports that the system gives
/// away.
pub(crate) fn closed_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let tried = NEXT.fetch_add(1, Ordering::Relaxed).wrapping_add(std::process::id().wrapping_mul(37));
        let port = u16::try_from(10_000 + tried % 20_000).expect("below 30 000");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

/// Replaces a file in one step, so that no reader sees half of it.
pub(crate) fn replace_file(path: &Path, content: &str) {
    let draft = path.with_extension("draft");
    fs::write(&draft, content).expect("write the file");
    fs::rename(draft, path).expect("put the file in place");
}

/// Raises the soft limit of open files to the hard one, once; children inherit it.
pub(crate) fn raise_open_files() {
    static RAISED: Once = Once::new();
    RAISED.call_once(|| {
        let limit = getrlimit(Resource::Nofile);
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        setrlimit(Resource::Nofile, raised).expect("the soft limit may go up to the hard one");
    });
}

/// Returns the most files that a process may open; `u64::MAX` where there is no limit.
pub(crate) fn open_files_max() -> u64 {
    raise_open_files();
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Returns a configuration of one limiter, `api`, and one route that takes it for every path.
///
/// `store` and `limiter` are YAML in flow style: `memory`, `{limits: [20/1s]}`.
pub(crate) fn one_limiter(store: &str, limiter: &str, upstream: &Upstream) -> String {
    let url = upstream.url();
    format!(
        "store: {store}\n\
         limiters:\n  api: {limiter}\n\
         routes:\n  - name: all\n    match: {{path: /}}\n    upstream: {url}\n    limiter: api\n"
    )
}

/// Returns the configuration of one route without a limiter.
pub(crate) fn one_route(url: &str) -> String {
    format!("routes:\n  - {{name: all, match: {{path: /}}, upstream: \"{url}\"}}\n")
}

/// Starts a weir whose limiter gives one permit an hour, and takes that one: up to `max_waiting` requests wait for the
/// next; with 0, requests are refused.
pub(crate) async fn spent(upstream: &Upstream, max_waiting: u32) -> Weir {
    let queue = if max_waiting > 0 {
        format!(", queue: {{timeout: 2h, max_waiting: {max_waiting}}}")
    } else {
        String::new()
    };
    let limiter = format!("{{limits: [1/1h]{queue}}}");
    let weir = Weir::start(&one_limiter("memory", &limiter, upstream)).await;
    assert_eq!(weir.get("/").await.status, 200);
    weir
}

/// Returns a configuration of several limiters and routes. A limiter is its name and YAML in flow style; a route is the
/// inside of its `match` and further keys, both in flow style: `("path: /a", "limiter: api, cost: 2")`.
pub(crate) fn configuration(
    store: &str,
    limiters: &[(&str, &str)],
    routes: &[(&str, &str)],
    upstream: &Upstream,
) -> String {
    let url = upstream.url();
    let mut text = format!("store: {store}\nlimiters:\n");
    for (name, limiter) in limiters {
        text.push_str(&format!("  {name}: {limiter}\n"));
    }
    text.push_str("routes:\n");
    for (index, (matches, rest)) in routes.iter().enumerate() {
        text.push_str(&format!(
            "  - {{name: route-{index}, match: {{{matches}}}, upstream: \"{url}\", {rest}}}\n"
        ));
    }
    text
}
