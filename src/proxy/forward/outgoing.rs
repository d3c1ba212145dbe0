//! The request on its way upstream: its head, its body, its permit and its connection, over all attempts.
//!
//! Sends nothing.

use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::uri::PathAndQuery;
use http::{Request, Uri};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;

use super::plan::Plan;
use crate::limiter::Permit;
use crate::proxy::listen::client::Client;
use crate::proxy::messages::headers::{self, Origin};
use crate::proxy::messages::request_body::RequestBody;
use crate::proxy::messages::upload::Upload;
use crate::proxy::route::table::Route;
use crate::proxy::upstream::lease::Ready;

/// A request on its way.
pub(crate) struct Outgoing {
    /// The head, with the target for the upstream.
    pub(crate) head: Request<()>,
    head_state: HeadState,
    /// The client's body, until it is sent.
    pub(crate) body: Option<Incoming>,
    /// The permit, until it is spent.
    pub(crate) permit: Option<Permit>,
    /// A connection held ready, if the request had to wait.
    pub(crate) ready: Ready,
    /// The client's connection, if it wants to switch to another protocol.
    pub(crate) upgrade: Option<OnUpgrade>,
    /// A view of the body while it is sent.
    pub(crate) upload: Option<Arc<Upload>>,
    /// True if head and body are copied for another attempt.
    pub(crate) keeps_copy: bool,
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
    pub(crate) fn new(plan: &Plan, target: PathAndQuery, mut request: Request<Incoming>) -> Outgoing {
        let upgrade = plan.upgrade.as_ref().map(|_| hyper::upgrade::on(&mut request));
        let (mut parts, body) = request.into_parts();
        parts.uri = Uri::from(target);
        parts.extensions.clear();
        if plan.token_in_authorization {
            parts.headers.remove(AUTHORIZATION);
        }
        Outgoing {
            head: Request::from_parts(parts, ()),
            head_state: HeadState::Received,
            body: Some(body),
            permit: None,
            ready: Ready::default(),
            upgrade,
            upload: None,
            keeps_copy: false,
        }
    }

    /// Returns whether head and body can be sent in another attempt.
    pub(crate) fn can_be_repeated(&self) -> bool {
        self.has_head() && self.upload.as_ref().is_none_or(|upload| upload.is_whole())
    }

    /// Returns whether the head, without a body, can be sent once more.
    pub(crate) fn can_repeat_head(&self) -> bool {
        self.has_head() && self.upload.is_none()
    }

    fn has_head(&self) -> bool {
        self.head_state != HeadState::Gone
    }

    /// Returns the request as it goes upstream. The head is kept if there may be another attempt, or if the connection may be stale
    /// (`may_be_stale`) and sending the request twice does no harm.
    pub(crate) fn request(
        &mut self,
        plan: &Plan,
        client: &Client,
        may_be_stale: bool,
    ) -> Request<RequestBody> {
        let mut head = std::mem::take(&mut self.head);
        if self.head_state == HeadState::Received {
            rewrite(&mut head, plan, client);
        }
        let body = self.take_body(plan);
        let is_harmless = matches!(body, RequestBody::Kept(None))
            && head.method().is_idempotent()
            && self.upgrade.is_none();
        self.head_state = HeadState::Gone;
        if self.keeps_copy || (may_be_stale && is_harmless) {
            self.head = head.clone();
            self.head_state = HeadState::Rewritten;
        }
        head.map(|()| body)
    }

    /// Returns the client's body the first time, and then the copy of it.
    fn take_body(&mut self, plan: &Plan) -> RequestBody {
        let Some(incoming) = self.body.take() else {
            let copy = self.upload.as_ref().and_then(|upload| upload.whole());
            return RequestBody::Kept(copy.filter(|copy| !copy.is_empty()));
        };
        let idle_timeout = plan.route.upstream.settings().timeouts.idle;
        let retry = plan.route.rule.retry.as_ref().filter(|_| self.keeps_copy);
        let kept_max = retry.map(|retry| retry.body_bytes_max);
        let (body, upload) = RequestBody::new(incoming, idle_timeout, kept_max, &plan.route.no_trailers);
        self.upload = upload;
        body
    }
}

fn rewrite(head: &mut Request<()>, plan: &Plan, client: &Client) {
    let origin = Origin {
        peer: client.peer,
        secure: client.secure,
        authority: plan.authority.as_ref(),
        upgrade: plan.upgrade.as_ref(),
        version: head.version(),
        flags: plan.flags,
    };
    let Route { rule, upstream, .. } = &*plan.route;
    headers::to_upstream(head.headers_mut(), rule, upstream.host(), &origin);
}
