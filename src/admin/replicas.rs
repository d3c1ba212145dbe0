//! `/api/replicas`: the replicas that share the store, as of its last heartbeat. Never calls the store.

use serde_json::{Value, json};

use super::response::{self, Response};
use crate::clock::millis;
use crate::limiter::{Limiters, Replica, replica_name};

/// Answers with all replicas, this one first.
pub(super) fn all(limiters: &Limiters) -> Response {
    response::document(&json!({ "store_up": limiters.store_up(), "replicas": views(limiters) }))
}

/// Returns all replicas as JSON, this one first.
pub(super) fn views(limiters: &Limiters) -> Vec<Value> {
    limiters.replicas().iter().enumerate().map(|(place, replica)| view(replica, place == 0)).collect()
}

fn view(replica: &Replica, is_this: bool) -> Value {
    json!({
        "id": replica_name(replica.id),
        // Null if it has no name.
        "host": Some(&*replica.host).filter(|host| !host.is_empty()),
        "version": &*replica.version,
        "configuration": &*replica.configuration,
        "last_seen_ms": millis(replica.seen_ago),
        "this": is_this,
    })
}
