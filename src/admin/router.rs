//! Finds the endpoint of a path. Applies the access rule once, before any endpoint is called.

use bytes::Bytes;
use http::header::{ALLOW, HOST, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode};
use http_body::Body;
use serde_json::json;

use super::access::{self, AccessRight, Denied};
use super::limiters::{Action, BoxError, LimiterPath};
use super::response::{self, Response};
use super::state::AdminState;
use super::{audit, config, events, explain, health, limiters, metrics, reload, replicas, usage};

/// An endpoint, with the parts of its path.
#[derive(Clone, Copy)]
enum Endpoint<'path> {
    Page,
    Events,
    Alive,
    Ready,
    Metrics,
    Limiters,
    Limiter(&'path str),
    Act(Action, &'path str),
    Replicas,
    Breakers,
    Config,
    Explain,
    Reload,
    Usage,
}

impl Endpoint<'_> {
    /// Returns the endpoint of a path.
    fn find(path: &str) -> Option<Endpoint<'_>> {
        Some(match path {
            "/" => Endpoint::Page,
            "/healthz" => Endpoint::Alive,
            "/readyz" => Endpoint::Ready,
            "/metrics" => Endpoint::Metrics,
            "/api/events" => Endpoint::Events,
            "/api/limiters" => Endpoint::Limiters,
            "/api/replicas" => Endpoint::Replicas,
            "/api/breakers" => Endpoint::Breakers,
            "/api/config" => Endpoint::Config,
            "/api/explain" => Endpoint::Explain,
            "/api/reload" => Endpoint::Reload,
            "/api/usage" => Endpoint::Usage,
            _ => {
                let name = path.strip_prefix("/api/limiters/")?;
                match name.split_once('/') {
                    None => Endpoint::Limiter(name),
                    Some((name, action)) => Endpoint::Act(Action::named(action)?, name),
                }
            }
        })
    }

    /// Returns whether the endpoint is answered at once, whatever the workers are doing: it waits for nothing.
    fn is_vital(&self) -> bool {
        matches!(self, Endpoint::Alive | Endpoint::Ready | Endpoint::Metrics)
    }

    /// Returns whether the endpoint needs no token. The page contains no data, and where a token is set the page asks
    /// for it.
    fn is_public(&self, has_token: bool) -> bool {
        match self {
            Endpoint::Alive | Endpoint::Ready | Endpoint::Metrics => true,
            Endpoint::Page => has_token,
            _ => false,
        }
    }

    /// Returns the allowed methods, as in `Allow`.
    fn allow(&self) -> &'static str {
        match self {
            Endpoint::Reload | Endpoint::Act(..) => "POST",
            _ => "GET, HEAD",
        }
    }

    /// Returns the name of the action by hand, and its limiter; `None` for an endpoint that shows something.
    fn act(&self) -> Option<(&'static str, Option<&str>)> {
        match self {
            Endpoint::Act(action, name) => Some((action.as_str(), Some(name))),
            Endpoint::Reload => Some(("reload", None)),
            _ => None,
        }
    }

    fn allows(&self, method: &Method) -> bool {
        self.allow().split(", ").any(|allowed| allowed == method.as_str())
    }
}

/// Returns whether a path is health or metrics.
pub(super) fn is_vital(path: &str) -> bool {
    Endpoint::find(path).is_some_and(|endpoint| endpoint.is_vital())
}

/// Returns whether a path is that of an action by hand.
pub(super) fn acts(path: &str) -> bool {
    Endpoint::find(path).is_some_and(|endpoint| endpoint.act().is_some())
}

/// Answers one request. `loopback` is whether the listener's address is a loopback address.
pub(super) async fn respond(
    state: &AdminState,
    loopback: bool,
    request: &Parts,
    body: impl Body<Data = Bytes, Error: Into<BoxError>>,
) -> Response {
    if request.headers.get_all(HOST).iter().nth(1).is_some() {
        // One of them would be checked, and another one may have led here.
        return response::problem(StatusCode::BAD_REQUEST, "more than one host");
    }
    let Some(endpoint) = Endpoint::find(request.uri.path()) else {
        return response::problem(
            StatusCode::NOT_FOUND,
            "not found; `/` is the dashboard, which links to the endpoints",
        );
    };
    if !endpoint.allows(&request.method) {
        let detail = format!("allowed methods: {}", endpoint.allow());
        let mut refusal = response::problem(StatusCode::METHOD_NOT_ALLOWED, &detail);
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static(endpoint.allow()));
        return refusal;
    }
    let (right, answer) = answer(state, loopback, request, endpoint, body).await;
    if let Some((act, limiter)) = endpoint.act() {
        audit::log(&state.config.config(), request, right, (act, limiter), answer.status());
    }
    answer
}

/// Answers a request for an endpoint. Returns the caller's right, too, if one was asked for and is there.
async fn answer(
    state: &AdminState,
    loopback: bool,
    request: &Parts,
    endpoint: Endpoint<'_>,
    body: impl Body<Data = Bytes, Error: Into<BoxError>>,
) -> (Option<AccessRight>, Response) {
    let config = state.config.config();
    let mut right = None;
    if !endpoint.is_public(access::is_set(config.admin.token.as_ref())) {
        match access::check(loopback, &config.admin, endpoint.act().is_some(), &request.headers) {
            Ok(granted) => right = Some(granted),
            Err(denied) => {
                let right = (denied == Denied::ReadToken).then_some(AccessRight::ReadToken);
                return (right, refuse(denied));
            }
        }
    }
    let path = |name| LimiterPath { config: &config, name, query: request.uri.query() };
    let answer = match endpoint {
        Endpoint::Page => events::page(),
        Endpoint::Events => events::events(state),
        Endpoint::Alive => health::alive(),
        Endpoint::Ready => health::ready(state, request.uri.query()),
        Endpoint::Metrics => metrics::answer(state).await,
        Endpoint::Limiters => limiters::all(&state.limiters, &state.usage.fleet).await,
        Endpoint::Limiter(name) => limiters::one(&state.limiters, &state.usage.fleet, path(name)).await,
        Endpoint::Act(action, name) => limiters::act(&state.limiters, action, path(name), body).await,
        Endpoint::Replicas => replicas::all(&state.limiters),
        Endpoint::Breakers => response::document(&json!({ "breakers": (state.breakers)() })),
        Endpoint::Config => config::show(&state.config, request.uri.query()),
        Endpoint::Explain => explain::explain(&state.explain, &state.limiters, request.uri.query()).await,
        Endpoint::Reload => reload::reload(&state.reloader).await,
        Endpoint::Usage => usage::show(&state.usage.recorder, request.uri.query()).await,
    };
    (right, answer)
}

fn refuse(denied: Denied) -> Response {
    match denied {
        Denied::Token => {
            let mut refusal = response::problem(StatusCode::UNAUTHORIZED, &denied.to_string());
            let challenge = HeaderValue::from_static("Bearer realm=\"weir admin\"");
            refusal.headers_mut().insert(WWW_AUTHENTICATE, challenge);
            refusal
        }
        Denied::ReadToken | Denied::NoTokenSet | Denied::Host | Denied::Origin => {
            response::problem(StatusCode::FORBIDDEN, &denied.to_string())
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
