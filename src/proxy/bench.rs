//! What the benches see of this room: the pure work on a request, without a socket.
//!
//! A bench is a crate of its own, so it needs something public. A feature would hide the benches from
//! `cargo clippy --all-targets`, and a public router and public headers would promise all that they are made of. This is
//! left out of the documentation and promises nothing.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use http::{HeaderMap, Request, Uri};

use super::Proxy;
use super::error::ProxyError;
use super::messages::headers::{self, Origin, Seen};
use super::route::router::{Route, Table, Target};

/// The routes of a proxy.
pub struct Routes(Arc<Table>);

/// The route of a request.
pub struct Found<'a>(&'a Route);

impl Routes {
    /// As they are now.
    pub fn of(proxy: &Proxy) -> Routes {
        Routes(proxy.table())
    }

    /// The route of a request, looked for as the forwarder does.
    pub fn find<B>(&self, request: &Request<B>) -> Option<Found<'_>> {
        let authority = headers::authority(request).ok()?;
        let host = &*headers::host(authority.as_ref());
        let (uri, method, headers) = (request.uri(), request.method(), request.headers());
        let found = self.0.route(Target { host, path: uri.path(), method, headers });
        found.ok().map(|route| Found(route))
    }
}

impl Found<'_> {
    /// Makes a client's head that which goes upstream. Returns false if it may not go there.
    pub fn to_upstream<B>(&self, request: &mut Request<B>) -> bool {
        self.try_to_upstream(request).is_ok()
    }

    fn try_to_upstream<B>(&self, request: &mut Request<B>) -> Result<(), ProxyError> {
        let Route { rule, upstream, .. } = self.0;
        let seen = Seen::of(request.headers());
        headers::check(request, seen)?;
        let (authority, upgrade) = (headers::authority(request)?, headers::upgrade(request, seen));
        let target = headers::target(request.uri(), rule)?;
        let origin = Origin {
            peer: IpAddr::V4(Ipv4Addr::LOCALHOST),
            secure: false,
            authority: authority.as_ref(),
            upgrade: upgrade.as_ref(),
            version: request.version(),
            seen,
        };
        headers::to_upstream(request.headers_mut(), rule, upstream.host(), &origin);
        *request.uri_mut() = Uri::from(target);
        Ok(())
    }

    /// Makes an upstream's head that which goes to the client.
    pub fn to_client(&self, headers: &mut HeaderMap) {
        headers::to_client(headers, &self.0.rule, None);
    }
}
