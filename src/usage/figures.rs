//! Figures that replicas tell each other, for people: how much they grant, refuse and keep waiting.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::forecast::Refill;
use super::pace::PARTS;
use super::partitions::TopPartitions;

/// The replicas that share the limits of a limiter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// All replicas.
    Fleet,
    /// Nobody: each replica has them for itself.
    Replica,
}

/// How much is read of a limiter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Depth {
    /// The counts, which are sampled every second.
    Counts,
    /// Also the partitions that matter, which takes long and is told every few seconds.
    Partitions,
}

/// A limiter of this replica as it is now.
#[derive(Clone, PartialEq, Debug)]
pub struct Reading {
    /// The name.
    pub name: Arc<str>,
    /// Permits used since the replica started.
    pub granted: u64,
    /// Permits refused since the replica started.
    pub refused: u64,
    /// Requests that wait.
    pub waiting: u64,
    /// The replicas that share it.
    pub sharing: Sharing,
    /// True while it is paused.
    pub is_paused: bool,
    /// Requests since the replica started by how long they waited: one count for each bound, and one beyond.
    pub waits: Vec<u64>,
    /// Its limits.
    pub limits: Vec<LimitReading>,
    /// The upstream's own count of its limits; none where responses do not tell.
    pub upstream_counts: Vec<UpstreamCount>,
    /// Its partitions that matter; `None` without a key, and where the counts alone are read.
    pub partitions: Option<Arc<TopPartitions>>,
}

/// The upstream's own count of a limit beside weir's, by the headers of a response.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UpstreamCount {
    /// The label of the limit.
    pub limit: Arc<str>,
    /// The permits left, as the upstream told.
    pub remaining: u64,
    /// By how many permits the upstream counted more than weir, in one partition; below zero if it counted fewer.
    pub apart: i64,
    /// How long ago the response came, in microseconds.
    pub age_us: u64,
}

/// A limit of a limiter without partitions.
#[derive(Clone, PartialEq, Debug)]
pub struct LimitReading {
    /// The label.
    pub label: Arc<str>,
    /// Permits in a window.
    pub rate: u64,
    /// The length of the window in microseconds.
    pub per_us: u64,
    /// How permits come back.
    pub refill: Refill,
    /// Permits left as of the store's last answer, and its age in microseconds; `None` before the first.
    pub available: Option<(u64, u64)>,
}

/// The figures of one replica.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Figures {
    pub(super) limiters: Vec<LimiterFigures>,
}

/// The figures of one limiter.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct LimiterFigures {
    pub(super) name: Arc<str>,
    pub(super) granted_per_second: f64,
    pub(super) refused_per_second: f64,
    pub(super) waiting: u64,
    /// Requests of the last minute by how long they waited; empty without any.
    pub(super) waits: Vec<u64>,
    pub(super) limits: Vec<LimitFigures>,
    /// The upstream's own count of limits.
    #[serde(default)]
    pub(super) upstream_counts: Vec<UpstreamCount>,
    /// The partitions that matter; `None` without a key, and of an earlier version of weir.
    #[serde(default)]
    pub(super) partitions: Option<TopPartitions>,
}

/// The figures of one long limit.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct LimitFigures {
    pub(super) label: Arc<str>,
    /// Permits granted in the last twelfth of the window, since when its cells count, and how long ago the use began, in microseconds.
    pub(super) lately: (u64, u64, Option<u64>),
    /// Permits granted in each part of the window; empty without any.
    pub(super) parts: Vec<u64>,
    /// How long the first part has run.
    pub(super) into_part_us: u64,
    pub(super) available: Option<(u64, u64)>,
}

impl LimitFigures {
    pub(super) fn part(&self, age: usize) -> u64 {
        self.parts.get(age).copied().unwrap_or(0)
    }

    pub(super) fn new(
        label: Arc<str>,
        lately: (u64, u64, Option<u64>),
        parts: [u64; PARTS],
        into_part_us: u64,
        available: Option<(u64, u64)>,
    ) -> LimitFigures {
        let parts = if parts.iter().all(|permits| *permits == 0) { Vec::new() } else { parts.to_vec() };
        LimitFigures { label, lately, parts, into_part_us, available }
    }
}
