//! The pure work on a request, without a socket, for benches.
//!
//! A bench is a crate of its own and needs something public. A feature would hide the benches from `cargo clippy --all-targets`, and
//! a public router and public headers would promise all their parts. This module is left out of the documentation and promises
//! nothing.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use http::{HeaderMap, Request, Uri};

use super::Proxy;
use super::error::ProxyError;
use super::messages::body_facts::BodyFacts;
use super::messages::end_to_end::EndToEnd;
use super::messages::header_flags::HeaderFlags;
use super::messages::headers::{self, Origin};
use super::messages::request_head;
use super::route::rewrite;
use super::route::router::Target;
use super::route::table::{Route, Table};

/// The routes of a proxy.
pub struct Routes(Arc<Table>);

/// The route of a request.
pub struct Found<'a>(&'a Route);

impl Routes {
    /// Returns the routes in force.
    pub fn of(proxy: &Proxy) -> Routes {
        Routes(proxy.table())
    }

    /// Finds the route of a request as the forwarder does.
    pub fn find<B>(&self, request: &Request<B>) -> Option<Found<'_>> {
        let authority = request_head::authority(request).ok()?;
        let host = &*request_head::host(authority.as_ref());
        let (uri, method, flags) = (request.uri(), request.method(), HeaderFlags::of(request.headers()));
        let upgrades = request_head::upgrade(request, flags).is_some();
        let headers = &EndToEnd::new(request.headers(), flags, upgrades);
        let found =
            self.0.route(Target { host, path: uri.path(), method, headers, body: &BodyFacts::nothing() });
        found.ok().map(|route| Found(route))
    }
}

impl Found<'_> {
    /// Turns a client's head into the upstream's. Returns false if it must not be forwarded.
    pub fn to_upstream<B>(&self, request: &mut Request<B>) -> bool {
        self.try_to_upstream(request).is_ok()
    }

    fn try_to_upstream<B>(&self, request: &mut Request<B>) -> Result<(), ProxyError> {
        let Route { rule, upstream, .. } = self.0;
        let flags = HeaderFlags::of(request.headers());
        request_head::check(request, flags)?;
        let (authority, upgrade) = (request_head::authority(request)?, request_head::upgrade(request, flags));
        let target = rewrite::target(request.uri(), rule)?;
        let origin = Origin {
            peer: IpAddr::V4(Ipv4Addr::LOCALHOST),
            secure: false,
            authority: authority.as_ref(),
            reached_at: None,
            upgrade: upgrade.as_ref(),
            version: request.version(),
            flags,
        };
        headers::to_upstream(request.headers_mut(), rule, upstream.host(), &origin);
        *request.uri_mut() = Uri::from(target);
        Ok(())
    }

    /// Turns an upstream's head into the client's.
    pub fn to_client(&self, headers: &mut HeaderMap) {
        let flags = HeaderFlags::of(headers);
        headers::to_client(headers, flags);
    }
}
