//! The configuration in force, and the outcome of the last reload.
//!
//! Readers never wait. One caller at a time publishes: `app` runs one reload after the other.

use std::sync::Arc;
use std::time::SystemTime;

use super::changes::Change;
use super::load::{LoadError, Loaded};
use super::model::Config;
use super::problem::Problem;
use arc_swap::{ArcSwap, ArcSwapOption};

/// The configuration in force.
#[derive(Debug)]
pub struct Handle {
    /// The configuration of the start. Keys whose change needs a restart still have its values.
    started: Loaded,
    running: ArcSwap<Loaded>,
    last: ArcSwapOption<Reload>,
    changed: ArcSwapOption<Changed>,
}

/// The differences that a reload has put in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// The instant at which the reload ended.
    pub at: SystemTime,
    /// The differences; some.
    pub changes: Vec<Change>,
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
        /// True if this reload has changed something. The file is watched, so an earlier one may have been quicker.
        has_changed: bool,
        /// The last differences that came into force; `None` if there were none since the start.
        changed: Option<Arc<Changed>>,
        /// Valid parts that are hardly meant.
        warnings: Arc<[Problem]>,
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
        let started = loaded.clone();
        let (running, last) = (ArcSwap::from_pointee(loaded), ArcSwapOption::empty());
        Handle { started, running, last, changed: ArcSwapOption::empty() }
    }

    /// Returns the configuration in force.
    pub fn config(&self) -> Arc<Config> {
        self.running.load().config.clone()
    }

    /// Returns the configuration in force with its file.
    pub fn loaded(&self) -> Arc<Loaded> {
        self.running.load_full()
    }

    /// Returns the last reload; `None` before the first.
    pub fn last_reload(&self) -> Option<Arc<Reload>> {
        self.last.load_full()
    }

    /// Records that a new configuration is in force, which differs in these keys from the one before. Returns the changed keys that need
    /// a restart.
    pub fn publish(&self, loaded: Loaded, changes: Vec<Change>) -> Vec<&'static str> {
        let restart_needed = self.started.config.restart_needed(&loaded.config);
        let warnings = loaded.warnings.clone();
        self.running.store(Arc::new(loaded));
        let has_changed = !changes.is_empty();
        if has_changed {
            self.changed.store(Some(Arc::new(Changed { at: SystemTime::now(), changes })));
        }
        let (changed, restart_needed_now) = (self.changed.load_full(), restart_needed.clone());
        let outcome = Outcome::Applied { restart_needed: restart_needed_now, has_changed, changed, warnings };
        self.ended(outcome);
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
