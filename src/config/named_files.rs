//! The files that a configuration names: certificates, keys, and overrides. Reads nothing.

use super::problem::{index_path, key_path};
use super::yaml::Node;

/// The keys of certificates and private keys.
const CERTIFICATE_KEYS: [&str; 4] = ["ca", "cert", "key", "client_ca"];

/// A file that a configuration names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NamedFile<'a> {
    /// The place of its owner, as of a route.
    pub(super) owner: Owner,
    /// The key that names it.
    pub(super) key: &'a str,
    /// Its name.
    pub(super) name: &'a str,
    /// True if the name is from the environment or a file, and shown to nobody.
    pub(super) is_hidden: bool,
}

/// The part of a configuration that names a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    Server,
    Store,
    /// The route at this place.
    Route(usize),
    /// A limiter's overrides.
    Overrides,
}

impl<'a> NamedFile<'a> {
    fn of(owner: Owner, key: &'a str, node: &'a Node) -> Option<NamedFile<'a>> {
        Some(NamedFile { owner, key, name: node.text()?, is_hidden: node.is_interpolated() })
    }

    /// Returns the path of the key, with a route by its name where it has one.
    pub(super) fn path(&self, route_name: impl Fn(usize) -> Option<String>) -> String {
        let owner = match self.owner {
            Owner::Server => "server.tls".to_owned(),
            Owner::Store => "store.redis.tls".to_owned(),
            Owner::Route(place) => {
                let route = route_name(place)
                    .map_or_else(|| index_path("routes", place), |name| key_path("routes", &name));
                key_path(&route, "upstream")
            }
            Owner::Overrides => "limiters".to_owned(),
        };
        key_path(&owner, self.key)
    }
}

/// Returns the files that an interpolated tree names.
pub(super) fn named_files(tree: &Node) -> impl Iterator<Item = NamedFile<'_>> {
    let server = tree.get("server").and_then(|server| server.get("tls"));
    let redis = tree.get("store").and_then(|store| store.get("redis")?.get("tls"));
    let routes = tree.get("routes").map(Node::items).unwrap_or_default().iter().enumerate();
    let upstreams = routes.filter_map(|(place, route)| Some((Owner::Route(place), route.get("upstream")?)));
    let owners = server.map(|node| (Owner::Server, node)).into_iter();
    let owners = owners.chain(redis.map(|node| (Owner::Store, node))).chain(upstreams);
    let certificates = owners.flat_map(|(owner, node)| {
        let named = move |key| NamedFile::of(owner, key, node.get(key)?);
        CERTIFICATE_KEYS.into_iter().filter_map(named)
    });
    let limiters = tree.get("limiters").map(Node::entries).unwrap_or_default();
    let overrides = limiters.iter().filter_map(|limiter| {
        NamedFile::of(Owner::Overrides, "file", limiter.value.get("overrides")?.get("file")?)
    });
    certificates.chain(overrides)
}
