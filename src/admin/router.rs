//! Which path is answered by whom. The access rule is applied here, once, before any endpoint is asked.

use bytes::Bytes;
use http::header::{ALLOW, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode};
use http_body::Body;

use super::access::{self, Denied};
use super::limiters::{Action, BoxError};
use super::response::{self, Response};
use super::state::AdminState;
use super::{config, events, health, limiters, metrics, reload, replicas};

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
            "/api/events" => Endpoint::Events,
            "/api/limiters" => Endpoint::Limiters,
            "/api/replicas" => Endpoint::Replicas,
            "/api/config" => Endpoint::Config,
            "/api/reload" => Endpoint::Reload,
            _ => {
                let name = path.strip_prefix("/api/limiters/")?;
                match name.split_once('/') {
                    None => Endpoint::Limiter(name),
                    Some((name, action)) => Endpoint::Act(Action::named(action)?, name),
                }
            }
        })
    }

    /// Whether it is there for everybody. The page holds nothing, and where there is a token it must be there to ask for it.
    fn is_public(&self, has_token: bool) -> bool {
        match self {
            Endpoint::Alive | Endpoint::Ready | Endpoint::Metrics => true,
            Endpoint::Page => has_token,
            _ => false,
        }
    }

    /// The methods that it answers, as in `Allow`.
    fn allow(&self) -> &'static str {
        match self {
            Endpoint::Reload | Endpoint::Act(..) => "POST",
            _ => "GET, HEAD",
        }
    }

    fn allows(&self, method: &Method) -> bool {
        self.allow().split(", ").any(|allowed| allowed == method.as_str())
    }
}

/// Answers one request. `loopback`: where the listener is.
pub(super) async fn respond(
    state: &AdminState,
    loopback: bool,
    request: &Parts,
    body: impl Body<Data = Bytes, Error: Into<BoxError>>,
) -> Response {
    let Some(endpoint) = Endpoint::find(request.uri.path()) else {
        return response::problem(StatusCode::NOT_FOUND, "there is nothing here; / lists what there is");
    };
    if !endpoint.allows(&request.method) {
        let detail = format!("this answers {}", endpoint.allow());
        let mut refusal = response::problem(StatusCode::METHOD_NOT_ALLOWED, &detail);
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static(endpoint.allow()));
        return refusal;
    }
    let config = state.config.config();
    let token = config.admin.token.as_ref();
    if !endpoint.is_public(access::asks_for(token))
        && let Err(denied) = access::check(loopback, token, &request.headers)
    {
        return turn_away(denied);
    }
    match endpoint {
        Endpoint::Page => events::page(),
        Endpoint::Events => events::events(state),
        Endpoint::Alive => health::alive(),
        Endpoint::Ready => health::ready(*state.draining.borrow(), state.limiters.ready()),
        Endpoint::Metrics => {
            state.limiters.refresh_metrics();
            metrics::render(&state.metrics)
        }
        Endpoint::Limiters => limiters::all(&state.limiters).await,
        Endpoint::Limiter(name) => limiters::one(&state.limiters, name, request.uri.query()).await,
        Endpoint::Act(action, name) => {
            limiters::act(&state.limiters, action, name, request.uri.query(), body).await
        }
        Endpoint::Replicas => replicas::all(&state.limiters),
        Endpoint::Config => config::show(&state.config),
        Endpoint::Reload => reload::reload(&state.reloader).await,
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

#[cfg(test)]
mod tests;
