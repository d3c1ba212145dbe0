//! `store`: the place of limiter state.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::forms::Text;
use crate::config::model::Confirm;

/// The store of limiter state.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Store {
    /// This process's memory, enough for one replica and for short windows: it ends with the process.
    Memory,
    /// Redis 6.2 or newer, or Valkey, shared by all replicas.
    Redis(
        /// The address of Redis, and its use.
        #[schemars(extend("examples" = [{"url": "redis://redis:6379/0", "fleet_size": 3}]))]
        Box<Redis>,
    ),
}

/// One Redis server, or a topology of several.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Redis {
    /// `redis://USER:PASSWORD@HOST:PORT/DATABASE`, or `rediss://` for TLS. Required unless `cluster` or `sentinel` is
    /// given. User and password are percent-encoded.
    #[schemars(extend("examples" = ["redis://redis:6379/0", "rediss://weir:${REDIS_PASSWORD}@redis.internal:6380/0"]))]
    pub(crate) url: Option<String>,
    /// Some nodes of a Redis Cluster, as URLs. They name the others.
    #[schemars(extend("examples" = [["redis://10.0.0.1:6379", "redis://10.0.0.2:6379"]]))]
    pub(crate) cluster: Option<Vec<String>>,
    /// Sentinels that know the server.
    #[schemars(extend("examples" = [
        {"nodes": ["redis://10.0.0.1:26379", "redis://10.0.0.2:26379"], "master": "weir"},
    ]))]
    pub(crate) sentinel: Option<Sentinel>,
    /// TLS files, for `rediss://`.
    #[schemars(extend("examples" = [{"ca": "tls/redis-ca.pem"}]))]
    pub(crate) tls: Option<RedisTls>,
    /// The longest time of a call, 1ms to 1m. Default `100ms`.
    #[schemars(extend("examples" = ["50ms"]))]
    pub(crate) timeout: Option<Text<Duration>>,
    /// The most connections, 1 to 1024. Default `8`.
    #[schemars(range(min = 1, max = 1024), extend("examples" = [16]))]
    pub(crate) pool_size: Option<i64>,
    /// The first part of every key: letters, digits and `_.:-`, at most 64. Default `weir`.
    #[schemars(extend("examples" = ["weir:production"]))]
    pub(crate) key_prefix: Option<String>,
    /// The number of replicas to assume until the store has answered for the first time, 1 to 10000. Default `1`.
    #[schemars(range(min = 1, max = 10_000), extend("examples" = [3]))]
    pub(crate) fleet_size: Option<i64>,
    /// The servers that must have a booking before it is used. Default `primary`.
    #[schemars(extend("examples" = ["replica"]))]
    pub(crate) confirm: Option<Confirm>,
}

/// Sentinels that know the server.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sentinel {
    /// The sentinels, as URLs, each with its own user and password. With `rediss://` the server uses TLS, too. Required.
    #[schemars(extend("examples" = [["redis://10.0.0.1:26379", "redis://10.0.0.2:26379"]]))]
    pub(crate) nodes: Vec<String>,
    /// The name under which the sentinels know the server. Required.
    #[schemars(extend("examples" = ["weir"]))]
    pub(crate) master: String,
    /// The user for the server.
    #[schemars(extend("examples" = ["weir"]))]
    pub(crate) username: Option<String>,
    /// The password for the server.
    #[schemars(extend("examples" = ["${REDIS_PASSWORD}"]))]
    pub(crate) password: Option<String>,
    /// The number of the database on the server. Default `0`.
    #[schemars(range(min = 0, max = 65_535), extend("examples" = [1]))]
    pub(crate) database: Option<i64>,
}

/// TLS for connections to Redis: PEM files.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RedisTls {
    /// The authorities trusted in place of the public roots, a PEM file.
    #[schemars(extend("examples" = ["tls/redis-ca.pem"]))]
    pub(crate) ca: Option<String>,
    /// weir's own certificate chain, a PEM file; needs `key`.
    #[schemars(extend("examples" = ["tls/redis.crt"]))]
    pub(crate) cert: Option<String>,
    /// The private key of `cert`, a PEM file.
    #[schemars(extend("examples" = ["tls/redis.key"]))]
    pub(crate) key: Option<String>,
}
