//! Which path is answered by whom. The access rule is applied here, once, before any endpoint is asked.

use http::header::{ALLOW, CONTENT_SECURITY_POLICY, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode};

use super::access::{self, Denied};
use super::response::{self, Response};
use super::{AdminState, config, health, limiters, metrics};

/// The page at `/`: needs nothing from outside itself.
const PAGE: &str = include_str!("page.html");

enum Endpoint<'path> {
    Page,
    Alive,
    Ready,
    Metrics,
    Limiters,
    Limiter(&'path str),
    Config,
    Reload,
}

impl Endpoint<'_> {
    fn find(path: &str) -> Option<Endpoint<'_>> {
        Some(match path {
            "/" => Endpoint::Page,
            "/healthz" => Endpoint::Alive,
            "/readyz" => Endpoint::Ready,
            "/metrics" => Endpoint::Metrics,
            "/api/limiters" => Endpoint::Limiters,
            "/api/config" => Endpoint::Config,
            "/api/reload" => Endpoint::Reload,
            _ => Endpoint::Limiter(path.strip_prefix("/api/limiters/")?),
        })
    }

    fn is_public(&self) -> bool {
        matches!(self, Endpoint::Alive | Endpoint::Ready | Endpoint::Metrics)
    }

    /// The methods that it answers, as in `Allow`.
    fn allow(&self) -> &'static str {
        match self {
            Endpoint::Reload => "POST",
            _ => "GET, HEAD",
        }
    }

    fn allows(&self, method: &Method) -> bool {
        self.allow().split(", ").any(|allowed| allowed == method.as_str())
    }
}

/// Answers one request. `loopback`: where the listener is.
pub(super) async fn respond(state: &AdminState, loopback: bool, request: &Parts) -> Response {
    let Some(endpoint) = Endpoint::find(request.uri.path()) else {
        return response::problem(StatusCode::NOT_FOUND, "there is nothing here; / lists what there is");
    };
    if !endpoint.allows(&request.method) {
        let detail = format!("this answers {}", endpoint.allow());
        let mut refusal = response::problem(StatusCode::METHOD_NOT_ALLOWED, &detail);
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static(endpoint.allow()));
        return refusal;
    }
    if !endpoint.is_public() {
        let token = &state.config.running().admin.token;
        if let Err(denied) = access::check(loopback, token.as_ref(), &request.headers) {
            return turn_away(denied);
        }
    }
    match endpoint {
        Endpoint::Page => page(),
        Endpoint::Alive => health::alive(),
        Endpoint::Ready => health::ready(*state.draining.borrow(), state.limiters.ready()),
        Endpoint::Metrics => metrics::render(&state.metrics),
        Endpoint::Limiters => limiters::all(&state.limiters).await,
        Endpoint::Limiter(name) => limiters::one(&state.limiters, name, request.uri.query()).await,
        Endpoint::Config => config::show(&state.config),
        Endpoint::Reload => config::reload(&state.reloader).await,
    }
}

fn turn_away(denied: Denied) -> Response {
    match denied {
        Denied::Token => {
            let mut refusal = response::problem(StatusCode::UNAUTHORIZED, &denied.to_string());
            let challenge = HeaderValue::from_static("Bearer realm=\"weir admin\"");
            refusal.headers_mut().insert(WWW_AUTHENTICATE, challenge);
            refusal
        }
        Denied::NoTokenSet | Denied::Host | Denied::Origin => {
            response::problem(StatusCode::FORBIDDEN, &denied.to_string())
        }
    }
}

fn page() -> Response {
    let mut page = response::of(StatusCode::OK, "text/html; charset=utf-8", PAGE);
    let policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'";
    page.headers_mut().insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    page
}
