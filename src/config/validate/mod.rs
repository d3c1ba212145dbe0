//! Schema to [`Config`]: the meaning of every value, and every problem of meaning at once.
//!
//! - `place`: a part of the schema together with its place in the file.
//! - `check`: the report, and the judgements that many keys share. `pem`: those about certificates and keys.
//! - `json`: places in JSON documents; `pattern`: regular expressions.
//! - `warnings`: what is valid and hardly meant; `reach`: which matches an earlier one leaves to another.
//! - One file for each section: `server`, `clients`, `store`, `limiter` with `limit`, `key`, `overrides`, `pause` and `share`, and `route` with `matches`,
//!   `headers`, `body`, `cost`, `retry` and `upstream`.
//!
//! A section returns `None` once it has reported a problem, so nothing half-valid leaves this module. Knows the schema
//! and the tree, and no text of YAML.

mod body;
mod breaker;
mod check;
mod clients;
mod cost;
mod headers;
mod json;
mod key;
mod limit;
mod limiter;
mod matches;
mod overrides;
mod pattern;
mod pause;
mod pem;
mod place;
mod reach;
mod retry;
mod route;
mod server;
mod share;
mod sharing;
mod store;
mod upstream;
mod warnings;

use std::path::Path;
use std::sync::Arc;

use sha2::Digest;

use super::model::{Config, RedisServers, Store};
use super::problem::Report;
use super::schema;
use check::Check;
pub(crate) use check::Content;
pub(crate) use overrides::FILE_BYTES_MAX as OVERRIDES_BYTES_MAX;
pub(crate) use place::At;
use place::{Given, key};

/// Turns a file as written into a configuration as used, or reports every problem. `root` is the place of the same
/// file, `content` begins with it. Relative paths begin at `base`.
pub(crate) fn validate(
    file: &schema::File,
    root: At<'_>,
    base: &Path,
    content: &mut Content,
    report: &mut Report,
) -> Option<Config> {
    let mut check = Check { report, base, content };
    let file = Given::new(file, root);
    let listen = server::listen(&mut check, &key!(file.listen));
    let server = server::server(&mut check, &key!(file.server));
    let admin = server::admin(&mut check, &key!(file.admin), listen);
    let log = server::log(&mut check, &key!(file.log));
    let has_client_ca = key!(file.server).at.key("tls").key("client_ca").is_given();
    let clients = clients::clients(&mut check, &key!(file.clients), has_client_ca);
    let store = store::store(&mut check, &key!(file.store));
    let client_names = key!(file.clients).at.names();
    let callers = key!(file.clients).at.is_given().then(|| client_names.iter().copied().collect());
    let limiters = limiter::limiters(&mut check, &key!(file.limiters), callers.as_ref());
    let names = route::Names {
        limiters: &limiters,
        limiter_names: key!(file.limiters).at.names(),
        client_names,
        has_groups_apart: matches!(&store, Some(Store::Redis(redis)) if matches!(redis.servers, RedisServers::Cluster(_))),
        body_memory: server.as_ref().map(|server| server.body_memory),
        errors: server.as_ref().map(|server| server.errors).unwrap_or_default(),
    };
    let routes = route::routes(&mut check, &key!(file.routes), &names);
    sharing::check_routes(&mut check, &file, &limiters, &routes);
    sharing::check_policies(&mut check, &file, &limiters, &routes);
    if !check.report.is_empty() {
        return None;
    }
    warnings::warn(&mut check, &file, &limiters, &routes);
    sharing::warn_of_sets(&mut check, &file, &routes);
    let (listen, server, admin, log, store) = (listen?, server?, admin?, log?, store?);
    let keyed = limiters.iter().filter(|(_, reading)| !reading.key.is_empty());
    let keys = keyed.map(|(limiter, reading)| (limiter.name.clone(), Arc::clone(&reading.key))).collect();
    let limiters = sharing::with_orders(limiters, &routes);
    // The first 16 hex digits.
    let hash = format!("{:.16}", format!("{:x}", content.whole.clone().finalize())).into();
    Some(Config { listen, server, admin, log, clients, store, limiters, keys, routes, hash })
}
