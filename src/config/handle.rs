//! The configuration that is running, and how the last reload went.
//!
//! Readers never wait. Who reloads is not decided here: one caller at a time publishes.

use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::{ArcSwap, ArcSwapOption};
use serde_json::Value;

use super::load::{LoadError, Loaded};
use super::model::Config;
use super::problem::Problem;

/// The running configuration.
#[derive(Debug)]
pub struct Handle {
    /// What the process began with: what needs a restart is still as it says.
    started: Arc<Config>,
    running: ArcSwap<Loaded>,
    last: ArcSwapOption<Reload>,
}

/// A reload that was tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reload {
    /// When.
    pub at: SystemTime,
    /// How it ended.
    pub outcome: Outcome,
}

/// How a reload ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The new configuration is running, but for these keys, which wait for a restart.
    Applied {
        /// The keys, such as `listen`; usually none.
        restart_needed: Vec<&'static str>,
    },
    /// The file is not valid, and nothing has changed.
    Refused {
        /// What is wrong with it.
        problems: Vec<Problem>,
    },
}

impl Handle {
    /// Begins with the configuration of the start.
    pub fn new(loaded: Loaded) -> Handle {
        let started = loaded.config.clone();
        Handle { started, running: ArcSwap::from_pointee(loaded), last: ArcSwapOption::empty() }
    }

    /// The running configuration.
    pub fn config(&self) -> Arc<Config> {
        self.running.load().config.clone()
    }

    /// The running configuration as it was written, as JSON, secrets masked.
    pub fn masked(&self) -> Arc<Value> {
        self.running.load().masked.clone()
    }

    /// The last reload; `None` before the first.
    pub fn last_reload(&self) -> Option<Arc<Reload>> {
        self.last.load_full()
    }

    /// Makes a new configuration the running one. Gives the keys whose change needs a restart.
    pub fn publish(&self, loaded: Loaded) -> Vec<&'static str> {
        let restart_needed = self.started.restart_needed(&loaded.config);
        self.running.store(Arc::new(loaded));
        self.ended(Outcome::Applied { restart_needed: restart_needed.clone() });
        restart_needed
    }

    /// Notes that a file was refused; what is running stays.
    pub fn refuse(&self, error: LoadError) {
        self.ended(Outcome::Refused { problems: error.problems });
    }

    fn ended(&self, outcome: Outcome) {
        self.last.store(Some(Arc::new(Reload { at: SystemTime::now(), outcome })));
    }
}
