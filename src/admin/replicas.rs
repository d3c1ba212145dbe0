//! `/api/replicas`: the replicas that share the store, as of its last heartbeat. Never calls the store.

use serde::Serialize;

use super::response::{self, Response};
use crate::limiter::{Limiters, Replica, replica_name};

#[derive(Serialize)]
struct Listing {
    store_up: bool,
    replicas: Vec<ReplicaView>,
}

#[derive(Serialize)]
pub(super) struct ReplicaView {
    id: String,
    /// The host's name; null if it has none.
    host: Option<String>,
    version: String,
    configuration: String,
    last_seen_ms: u128,
    this: bool,
}

/// Answers with all replicas, this one first.
pub(super) fn all(limiters: &Limiters) -> Response {
    response::document(&Listing { store_up: limiters.store_up(), replicas: views(limiters) })
}

/// Returns all replicas, this one first, for the dashboard.
pub(super) fn views(limiters: &Limiters) -> Vec<ReplicaView> {
    let replicas = limiters.replicas();
    replicas.iter().enumerate().map(|(place, replica)| ReplicaView::of(replica, place == 0)).collect()
}

impl ReplicaView {
    fn of(replica: &Replica, this: bool) -> ReplicaView {
        ReplicaView {
            id: replica_name(replica.id),
            host: Some(replica.host.to_string()).filter(|host| !host.is_empty()),
            version: replica.version.to_string(),
            configuration: replica.configuration.to_string(),
            last_seen_ms: replica.seen_ago.as_millis(),
            this,
        }
    }
}
