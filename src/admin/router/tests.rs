use std::path::Path;
use std::sync::Arc;

use http::Request;
use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http_body_util::{BodyExt, Empty};
use serde_json::Value;
use tokio::sync::{mpsc, watch};

use super::super::{Dashboard, Explain, Explained, FleetUsage, ReloadRequest, Reloader};
use super::*;
use crate::clock::Clock;
use crate::config::{self, Handle, Loaded, Outcome, Problem};
use crate::limiter::Limiters;
use crate::limiter::store::memory::MemoryStore;
use crate::telemetry::Metrics;
use crate::usage::{Fleet, MemoryUsage, Recorder, Usage};

/// The handles that the endpoints share, and the ends of them that the app holds.
pub(in crate::admin) struct Admin {
    pub(in crate::admin) state: AdminState,
    draining: watch::Sender<bool>,
    pub(in crate::admin) reloads: mpsc::Receiver<ReloadRequest>,
}

fn loaded(token: Option<&str>) -> Loaded {
    let token = token.map(|token| format!(", token: {token}")).unwrap_or_default();
    let text = format!(
        "listen: 127.0.0.1:0\n\
         admin: {{listen: 127.0.0.1:0{token}}}\n\
         limiters: {{api: {{limits: [5/1s]}}}}\n\
         routes: [{{name: a, match: {{}}, upstream: 'http://a'}}]\n"
    );
    config::parse(Path::new("weir.yaml"), &text).unwrap()
}

pub(in crate::admin) fn admin(token: Option<&str>) -> Admin {
    let metrics = Metrics::new();
    let loaded = loaded(token);
    let clock = Clock::of_runtime();
    let limiters = Limiters::new(Arc::new(MemoryStore::new(clock)), clock, 1, metrics.clone());
    limiters.apply(&loaded.config.limiters);
    let (reloader, reloads) = Reloader::channel();
    let (draining, is_draining) = watch::channel(false);
    let config = Arc::new(Handle::new(loaded));
    let explain: Explain = Arc::new(|_, _, _| Explained { document: Value::Null, limiters: Vec::new() });
    let state = AdminState {
        explain,
        breakers: Arc::new(Vec::new),
        metrics,
        limiters,
        config,
        reloader,
        draining: is_draining,
        dashboard: Dashboard::default(),
        last_scrape: Arc::default(),
        usage: FleetUsage {
            recorder: Arc::new(Recorder::new(
                Usage::default(),
                Arc::new(MemoryUsage::default()),
                Arc::default(),
            )),
            fleet: Arc::new(Fleet::new(
                |_| Vec::new(),
                &[],
                Arc::new(MemoryUsage::default()),
                Arc::default(),
            )),
        },
        workers: tokio::runtime::Handle::current(),
    };
    Admin { state, draining, reloads }
}

fn request(method: &str, path: &str) -> Parts {
    let request = Request::builder().method(method).uri(path).header(HOST, "localhost:9090");
    request.body(()).unwrap().into_parts().0
}

/// Answers a request without a body from this machine.
async fn local(state: &AdminState, request: &Parts) -> Response {
    respond(state, true, request, Empty::<Bytes>::new()).await
}

/// Answers a request without a body from another machine.
async fn remote(state: &AdminState, request: &Parts) -> Response {
    respond(state, false, request, Empty::<Bytes>::new()).await
}

async fn json(response: Response) -> Value {
    serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap()
}

#[tokio::test]
async fn every_endpoint_answers_on_loopback() {
    let admin = admin(None);
    for path in ["/", "/healthz", "/readyz", "/metrics", "/api/limiters", "/api/limiters/api", "/api/config"]
    {
        for method in ["GET", "HEAD"] {
            let response = local(&admin.state, &request(method, path)).await;
            assert_eq!(response.status(), StatusCode::OK, "{method} {path}");
        }
    }
    let state = json(local(&admin.state, &request("GET", "/api/limiters")).await).await;
    assert_eq!(state["limiters"][0]["name"], "api");
    assert_eq!(state["limiters"][0]["limits"][0]["available"], 5);
}

#[tokio::test]
async fn unknown_paths_limiters_and_methods_are_refused() {
    let admin = admin(None);
    for path in ["/nothing", "/api", "/api/limiters/", "/api/limiters/other", "/api/limiters/api/stop"] {
        let response = local(&admin.state, &request("GET", path)).await;
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{path}");
        assert_eq!(json(response).await["status"], 404);
    }
    for (method, path, allow) in [
        ("GET", "/api/reload", "POST"),
        ("POST", "/metrics", "GET, HEAD"),
        ("GET", "/api/limiters/api/pause", "POST"),
    ] {
        let response = local(&admin.state, &request(method, path)).await;
        assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
        assert_eq!(response.headers()[ALLOW], allow);
    }
    let partition = request("GET", "/api/limiters/api?partition=x");
    assert_eq!(local(&admin.state, &partition).await.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn beyond_loopback_only_health_and_metrics_are_open() {
    for (token, closed) in [(None, StatusCode::FORBIDDEN), (Some("t"), StatusCode::UNAUTHORIZED)] {
        let admin = admin(token);
        for path in ["/healthz", "/readyz", "/metrics"] {
            let response = remote(&admin.state, &request("GET", path)).await;
            assert_eq!(response.status(), StatusCode::OK, "{path}");
        }
        for (method, path) in [("GET", "/api/events"), ("GET", "/api/config"), ("POST", "/api/reload")] {
            let response = remote(&admin.state, &request(method, path)).await;
            assert_eq!(response.status(), closed, "{path}");
        }
        // The page asks for the token and contains no data.
        let page = remote(&admin.state, &request("GET", "/")).await;
        assert_eq!(page.status(), if token.is_some() { StatusCode::OK } else { closed });
    }
    let mut with_token = request("GET", "/api/config");
    with_token.headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer t"));
    let response = remote(&admin(Some("t")).state, &with_token).await;
    assert_eq!(response.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_web_page_cannot_ask_for_a_reload() {
    let mut admin = admin(None);
    let mut from_a_page = request("POST", "/api/reload");
    from_a_page.headers.insert(ORIGIN, HeaderValue::from_static("https://page.example"));
    let response = local(&admin.state, &from_a_page).await;
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    assert!(admin.reloads.try_recv().is_err());
}

fn problem(line: u32, message: &str) -> Problem {
    let (path, message) = (String::new(), message.to_owned());
    Problem { file: "weir.yaml".into(), line, column: 1, path, message, excerpt: None }
}

#[tokio::test]
async fn a_reload_answers_with_every_problem() {
    let Admin { state, mut reloads, .. } = admin(None);
    let reload = request("POST", "/api/reload");
    let app = async {
        let applied = Outcome::Applied {
            restart_needed: vec!["listen"],
            has_changed: false,
            changed: None,
            warnings: Arc::default(),
        };
        let refused = Outcome::Refused { problems: vec![problem(3, "one"), problem(7, "two")] };
        for outcome in [applied, refused] {
            reloads.recv().await.unwrap().send(outcome).unwrap();
        }
        // The app ends, and carries out no further reload.
        drop(reloads);
    };
    let client = async {
        let good = local(&state, &reload).await;
        assert_eq!(good.status(), StatusCode::OK);
        assert_eq!(json(good).await["restart_needed"], serde_json::json!(["listen"]));
        let bad = local(&state, &reload).await;
        assert_eq!(bad.status(), StatusCode::UNPROCESSABLE_ENTITY);
        let problems = json(bad).await["problems"].clone();
        assert_eq!((&problems[0]["line"], &problems[1]["message"]), (&3.into(), &"two".into()));
    };
    tokio::join!(app, client);
    assert_eq!(local(&state, &reload).await.status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn draining_ends_readiness_but_not_health() {
    let admin = admin(None);
    admin.draining.send(true).unwrap();
    let ready = local(&admin.state, &request("GET", "/readyz")).await;
    assert_eq!(ready.status(), StatusCode::SERVICE_UNAVAILABLE);
    let alive = local(&admin.state, &request("GET", "/healthz")).await;
    assert_eq!(alive.status(), StatusCode::OK);
}
