//! The configuration in force, and the outcome of the last reload.
//!
//! Readers never wait. One caller at a time publishes: `app` runs one reload after the other.

use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::{ArcSwap, ArcSwapOption};
use serde_json::Value;

use super::load::{LoadError, Loaded};
use super::model::Config;
use super::problem::Problem;

/// The configuration in force.
#[derive(Debug)]
pub struct Handle {
    /// The configuration of the start. Keys whose change needs a restart still have its values.
    started: Arc<Config>,
    running: ArcSwap<Loaded>,
    last: ArcSwapOption<Reload>,
}

/// A reload that succeeded or failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reload {
    /// The instant at which the reload ended.
    pub at: SystemTime,
    /// The outcome of the reload.
    pub outcome: Outcome,
}

/// The outcome of a reload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The new configuration is in force, but for these keys, which wait for a restart.
    Applied {
        /// The keys, such as `listen`; usually none.
        restart_needed: Vec<&'static str>,
    },
    /// The configuration cannot be used, and nothing has changed.
    Refused {
        /// Every problem that was found.
        problems: Vec<Problem>,
    },
}

impl Handle {
    /// Creates a handle with the configuration of the start.
    pub fn new(loaded: Loaded) -> Handle {
        let started = loaded.config.clone();
        Handle { started, running: ArcSwap::from_pointee(loaded), last: ArcSwapOption::empty() }
    }

    /// Returns the configuration in force.
    pub fn config(&self) -> Arc<Config> {
        self.running.load().config.clone()
    }

    /// Returns the configuration in force as it was written, as JSON, secrets masked.
    pub fn masked(&self) -> Arc<Value> {
        self.running.load().masked.clone()
    }

    /// Returns the last reload; `None` before the first.
    pub fn last_reload(&self) -> Option<Arc<Reload>> {
        self.last.load_full()
    }

    /// Records that a new configuration is in force. Returns the changed keys that need a restart.
    pub fn publish(&self, loaded: Loaded) -> Vec<&'static str> {
        let restart_needed = self.started.restart_needed(&loaded.config);
        self.running.store(Arc::new(loaded));
        self.ended(Outcome::Applied { restart_needed: restart_needed.clone() });
        restart_needed
    }

    /// Records that a configuration was refused. The one in force stays.
    pub fn refuse(&self, error: LoadError) {
        self.ended(Outcome::Refused { problems: error.problems });
    }

    fn ended(&self, outcome: Outcome) {
        self.last.store(Some(Arc::new(Reload { at: SystemTime::now(), outcome })));
    }
}
