//! The request on its way upstream: its head, its body, its permit and its connection, over all attempts.
//!
//! Sends nothing.

use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Request, Uri};

use super::feedback::Feedback;
use super::plan::Plan;
use crate::limiter::Permit;
use crate::proxy::listen::client::{Client, Sender};
use crate::proxy::messages::client_body::ClientBody;
use crate::proxy::messages::headers::{self, Origin};
use crate::proxy::messages::request_body::RequestBody;
use crate::proxy::messages::stream_usage::WithoutUsage;
use crate::proxy::messages::upload::Upload;
use crate::proxy::route::table::Route;
use crate::proxy::upstream::lease::Ready;

/// The largest body that is copied because the connection may fail without an answer.
const STALE_BODY_BYTES_MAX: usize = 64 * 1024;

/// A request on its way.
pub(crate) struct Outgoing {
    /// The head, with the target for the upstream.
    pub(crate) head: Request<()>,
    head_state: HeadState,
    /// The client's body, until it is sent.
    pub(crate) body: Option<ClientBody>,
    /// The permit, until it is spent.
    pub(crate) permit: Option<Permit>,
    /// A connection held ready, if the request had to wait.
    pub(crate) ready: Ready,
    /// A view of the body while it is sent.
    pub(crate) upload: Option<Arc<Upload>>,
    /// True if head and body are copied for another attempt.
    pub(crate) keeps_copy: bool,
    /// How often it may be sent once more after it was sent or no connection was to be had. One that its route does not retry may be sent
    /// once more where its connection turns out to be closed.
    pub(crate) repetitions_left: u32,
    /// The view of a stream for the client, where weir asks for its usage, and not the client.
    pub(crate) without_usage: Option<Box<WithoutUsage>>,
    /// The work that the last response leaves.
    pub(crate) feedback: Feedback,
}

/// The requests whose head and body are copied for another attempt.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeps {
    /// Any that can be sent again: the upstream may say that it has not processed it.
    Any,
    /// Those that may be sent twice without harm: the connection may fail without an answer.
    Harmless,
    /// None.
    Nothing,
}

/// The state of the head.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HeadState {
    /// The head is as the client sent it, but for the target.
    Received,
    /// The head is as it goes upstream, kept to be sent once more.
    Rewritten,
    /// The head was sent and not kept.
    Gone,
}

impl Outgoing {
    /// Takes the client's request, with its target at the upstream.
    pub(crate) fn new(plan: &Plan, target: PathAndQuery, request: Request<ClientBody>) -> Outgoing {
        let (parts, body) = request.into_parts();
        Outgoing {
            head: received(plan, target, parts),
            head_state: HeadState::Received,
            body: Some(body),
            permit: None,
            ready: Ready::default(),
            upload: None,
            keeps_copy: false,
            repetitions_left: 1,
            without_usage: None,
            feedback: Feedback::default(),
        }
    }

    /// Returns whether head and body can be sent in another attempt.
    pub(crate) fn can_be_repeated(&self) -> bool {
        self.head_state != HeadState::Gone && self.upload.as_ref().is_none_or(|upload| upload.is_whole())
    }

    /// Takes one of the repetitions that are left. Returns whether there was one.
    pub(crate) fn take_repetition(&mut self) -> bool {
        let left = self.repetitions_left.checked_sub(1);
        self.repetitions_left = left.unwrap_or_default();
        left.is_some()
    }

    /// Returns whether the request may arrive twice without harm.
    pub(crate) fn is_harmless(&self) -> bool {
        self.keeps_copy || self.head.method().is_idempotent()
    }

    /// Returns the request as it goes upstream. The head is kept if there may be another attempt, or as `keeps` says.
    pub(crate) fn request(&mut self, plan: &Plan, client: &Client, keeps: Keeps) -> Request<RequestBody> {
        let mut head = std::mem::take(&mut self.head);
        if self.head_state == HeadState::Received {
            rewrite(&mut head, plan, client.sender());
        }
        let is_kept = match keeps {
            Keeps::Any => true,
            Keeps::Harmless => head.method().is_idempotent(),
            Keeps::Nothing => false,
        };
        let keeps_head = self.keeps_copy || (is_kept && plan.upgrade.is_none());
        let body = self.take_body(plan, client, keeps_head);
        self.head_state = HeadState::Gone;
        if keeps_head {
            self.head = head.clone();
            self.head_state = HeadState::Rewritten;
        }
        head.map(|()| body)
    }

    /// Returns the client's body the first time, and then the copy of it.
    fn take_body(&mut self, plan: &Plan, client: &Client, keeps_copy: bool) -> RequestBody {
        let Some(incoming) = self.body.take() else {
            let copy = self.upload.as_ref().and_then(|upload| upload.whole());
            return RequestBody::Kept(copy.filter(|copy| !copy.is_empty()));
        };
        let idle_timeout = plan.route.upstream.settings().timeouts.idle;
        let retry = plan.route.rule.retry.as_ref().filter(|_| self.keeps_copy);
        let kept_max = retry.map_or(STALE_BODY_BYTES_MAX, |retry| retry.body_bytes_max);
        let length = http_body::Body::size_hint(&incoming).lower();
        let kept_max = Some(kept_max).filter(|max| keeps_copy && length <= *max as u64);
        let no_trailers = &plan.route.no_trailers;
        let marks = (&client.unread, &client.activity);
        let (body, upload) = RequestBody::new(incoming, idle_timeout, kept_max, marks, no_trailers);
        self.upload = upload;
        body
    }
}

/// Returns the head of a client's request with its target at the upstream, before the route changes its headers.
pub(crate) fn received(plan: &Plan, target: PathAndQuery, mut parts: Parts) -> Request<()> {
    parts.uri = Uri::from(target);
    parts.extensions.clear();
    if plan.token_in_authorization {
        parts.headers.remove(AUTHORIZATION);
    }
    Request::from_parts(parts, ())
}

/// Turns the headers of a client's request into those for the upstream.
pub(crate) fn rewrite(head: &mut Request<()>, plan: &Plan, sender: Sender<'_>) {
    let origin = Origin {
        peer: sender.peer,
        secure: sender.secure,
        authority: plan.authority.as_ref(),
        reached_at: plan.origin.as_deref(),
        upgrade: plan.upgrade.as_ref(),
        version: head.version(),
        flags: plan.flags,
    };
    let Route { rule, upstream, .. } = &*plan.route;
    headers::to_upstream(head.headers_mut(), rule, upstream.host(), &origin);
}
