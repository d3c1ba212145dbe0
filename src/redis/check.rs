//! The check of a store: every operation of weir, once.

use std::sync::Arc;

use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo};
use redis::{RedisError, Value};
use tokio::time::timeout;

use crate::clock::Micros;
use crate::config::model::Confirm;
use crate::limiter::Replica;
use crate::limiter::arithmetic::algorithm::sliding_window::SlidingWindow;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::arithmetic::rule::Rule;
use crate::limiter::model::heartbeat::Heartbeat;
use crate::limiter::model::limit::LimiterName;
use crate::limiter::model::upstream_report::UpstreamReport;
use crate::limiter::model::write_back::{Unknown, WriteBack};
use crate::limiter::store::{Store, StoreError};
use crate::redis::explain::{evicts, explain, may_divide, version};
use crate::redis::pool::connect_timeout;
use crate::redis::servers::{Wire, info_of, infos_of};
use crate::redis::store::RedisStore;
use crate::redis::usage::RedisUsage;

/// A store that works.
pub struct Checked {
    /// The server's name and version.
    pub server: String,
    /// The dangers that remain, with their remedies.
    pub cautions: Vec<String>,
}

impl RedisStore {
    /// Tries the operations of weir, on a state of its own that expires by itself, beside the epoch of the fleet.
    ///
    /// # Errors
    /// The first operation that fails, and its remedy where one is known.
    pub async fn check(&self) -> Result<Checked, StoreError> {
        const GROUP: &str = "weir-check";
        let patience = connect_timeout(self.connection.shared.timeout);
        self.connection.ping().await?;
        let connected = self.connection.shared.connections.get(&"ping").await;
        let mut connection = connected.map_err(|error| self.connection.lost(&error))?;
        let refused = |error: RedisError| StoreError::Refused(explain(&error));
        let replication = infos_of(&mut connection.wire, "replication").await.map_err(refused)?;
        let may_fail_over = self.connection.shared.connections.servers().may_fail_over();
        let (server, memory) = match &mut connection.wire {
            Wire::Cluster(nodes) => {
                // It comes before a call for a slot that moves between two nodes, and before no other call.
                let primaries = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
                let asked = nodes.route_command(redis::cmd("ASKING"), primaries).await;
                asked.and_then(Value::extract_error).map_err(refused)?;
                // Every node has the same version, or will have.
                (String::new(), String::new())
            }
            wire => (
                info_of(wire, "server").await.map_err(refused)?,
                info_of(wire, "memory").await.map_err(refused)?,
            ),
        };
        let part = self.part(GROUP).unwrap_or_else(|| Arc::new(self.clone()));
        let name = LimiterName::parse(GROUP).ok_or(StoreError::Malformed("no group"))?;
        let rule =
            Rule { rate: 1, window: Micros::from_millis(1), cell: Micros::ONE, kind: SlidingWindow.into() };
        let limiter_ref = LimiterRef {
            name,
            partition: None,
            group: GROUP.into(),
            rules: [rule].into(),
            valid_until: None,
        };
        let me = Replica { version: "check".into(), ..Replica::new(1) };
        let (limiter_refs, call) = (Arc::from([limiter_ref.clone()]), Arc::default());
        let write = WriteBack {
            replica: me.id,
            unknown: Unknown::Lost,
            number: 1,
            epoch: 0,
            sent: Micros::ZERO,
            entries: Vec::new(),
        };
        part.heartbeat(&Heartbeat::default()).await?;
        part.reserve(&limiter_refs, &call).await.map_err(|failure| failure.error)?;
        part.inspect(&limiter_ref).await?;
        part.hand_over(&limiter_refs).await?;
        part.write_back(&limiter_ref, &write).await?;
        let report = UpstreamReport { replica: me.id, ..UpstreamReport::default() };
        part.report_upstream(&limiter_ref, &report).await.map_err(|failure| failure.error)?;
        self.register_replica(&me, true).await?;
        RedisUsage::try_out(self).await?;
        // No replica understands this message. Scripts ignore a failed PUBLISH, so the right to publish is tried here.
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(self.connection.shared.announcements.channel()).arg("");
        publish.exec_async(&mut connection.wire).await.map_err(refused)?;
        let subscribe = self.connection.shared.announcements.try_out();
        let subscribed = timeout(patience, subscribe).await.map_err(|_| StoreError::Timeout(patience))?;
        subscribed.map_err(refused)?;
        let server = version(&server).unwrap_or_else(|| "Redis".to_owned());
        let is_confirmed = self.connection.shared.confirm == Confirm::Replica;
        let divides = replication.iter().find_map(|info| may_divide(info, may_fail_over));
        let cautions = evicts(&memory).into_iter().chain(divides.filter(|_| !is_confirmed));
        Ok(Checked { server, cautions: cautions.collect() })
    }
}
