//! The proxy: the route of a request among many, and the rewriting of its head and of its response's.

use std::fmt::Write as _;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

use criterion::{BatchSize, BenchmarkId, Criterion};
use http::{Request, Response};
use weir::clock::Clock;
use weir::config;
use weir::limiter::Limiters;
use weir::limiter::store::memory::MemoryStore;
use weir::proxy::bench::Routes;
use weir::proxy::{Proxy, Reach};
use weir::telemetry::{Metrics, Spans};
use weir::usage::Usage;

use crate::Result;

const COUNTS: [usize; 3] = [10, 1000, 10_000];

/// Measures routing: every other route is found by its path, the others by their host.
pub(crate) fn routing(criterion: &mut Criterion) -> Result<()> {
    let mut group = criterion.benchmark_group("routing");
    for count in COUNTS {
        let mut rules = String::new();
        for number in 0..count {
            let matches = if number % 2 == 0 {
                format!("path: /api/r{number}")
            } else {
                format!("host: h{number}.example.com")
            };
            writeln!(
                rules,
                "  - {{name: r{number}, match: {{{matches}}}, upstream: \"http://127.0.0.1:1\"}}"
            )?;
        }
        let routes = routes(&rules)?;
        let middle = count / 2 / 2 * 2;
        let requests = [
            ("path in the middle", "any.example.com".to_owned(), format!("/api/r{middle}/v1/items")),
            ("host in the middle", format!("h{}.example.com", middle + 1), "/v1/items".to_owned()),
            ("miss", "any.example.com".to_owned(), "/v1/items".to_owned()),
        ];
        for (name, host, path) in requests {
            let request = Request::get(path).header("host", host).body(())?;
            if routes.find(&request).is_some() == (name == "miss") {
                return Err(format!("{name} of {count}: not as it should be").into());
            }
            group.bench_function(BenchmarkId::new(name, count), |bencher| {
                bencher.iter(|| routes.find(black_box(&request)).is_some());
            });
        }
    }
    group.finish();
    Ok(())
}

/// Measures the rewriting of a typical request's head on a route that adds a credential, and of its response's.
pub(crate) fn headers(criterion: &mut Criterion) -> Result<()> {
    let routes = routes(
        "  - name: github\n    match: {path: /github}\n    upstream: https://api.github.com\n    \
             strip_prefix: /github\n    set_headers: {authorization: Bearer secret}\n    remove_headers: [cookie]\n",
    )?;
    let request = Request::get("/github/repos/rust-lang/rust/issues?state=open&page=2")
        .header("host", "weir.internal:8080")
        .header("user-agent", "python-requests/2.32.3")
        .header("accept", "application/vnd.github+json")
        .header("accept-encoding", "gzip, deflate, br")
        .header("authorization", "Bearer of-the-caller")
        .header("connection", "keep-alive")
        .header("x-github-api-version", "2022-11-28")
        .header("x-request-id", "018f6d3c-8a3e-7c43-9d5b-7a7f2f6f8f11")
        .header("cookie", "session=0123456789abcdef")
        .header("weir-timeout", "2s")
        .body(())?;
    let response = Response::builder()
        .header("server", "github.com")
        .header("date", "Mon, 01 Jun 2026 12:00:00 GMT")
        .header("content-type", "application/json; charset=utf-8")
        .header("content-length", "31415")
        .header("cache-control", "private, max-age=60, s-maxage=60")
        .header("etag", "W/\"4f53cda18c2baa0c0354bb5f9a3ecbe5\"")
        .header("link", "<https://api.github.com/repositories/724712/issues?page=3>; rel=\"next\"")
        .header("x-ratelimit-limit", "5000")
        .header("x-ratelimit-remaining", "4987")
        .header("x-ratelimit-reset", "1780315200")
        .header("connection", "keep-alive")
        .body(())?;
    let found = routes.find(&request).ok_or("no route")?;
    let mut group = criterion.benchmark_group("headers");
    let mut outgoing = request.clone();
    if !found.to_upstream(&mut outgoing) || outgoing.uri().path() != "/repos/rust-lang/rust/issues" {
        return Err("the request does not go upstream as it should".into());
    }
    group.bench_function("request to upstream", |bencher| {
        let one = |request: &mut Request<()>| found.to_upstream(request);
        bencher.iter_batched_ref(|| request.clone(), one, BatchSize::SmallInput);
    });
    group.bench_function("response to client", |bencher| {
        let one = |response: &mut Response<()>| found.to_client(response.headers_mut());
        bencher.iter_batched_ref(|| response.clone(), one, BatchSize::SmallInput);
    });
    group.finish();
    Ok(())
}

/// Returns a proxy's routes, without limiters.
fn routes(rules: &str) -> Result<Routes> {
    let config = config::parse(Path::new("bench.yaml"), &format!("routes:\n{rules}"))?.config;
    let (clock, metrics) = (Clock::start(), Metrics::new());
    let limiters = Limiters::new(Arc::new(MemoryStore::new(clock)), clock, 1, metrics.clone());
    let proxy = Proxy::new(
        metrics,
        Usage::default(),
        Spans::default(),
        &config,
        &limiters.prepare(&[]),
        Reach::default(),
    )?;
    Ok(Routes::of(&proxy))
}
