//! Tells how far the opening of a connection has come, so that a timeout can name the stage.

use std::sync::{Mutex, PoisonError};

use crate::proxy::error::Stage;

/// The progress of opening one connection.
pub(crate) struct Progress(Mutex<Stage>);

impl Progress {
    /// Creates the progress at its first stage.
    pub(crate) fn new() -> Progress {
        Progress(Mutex::new(Stage::Turn))
    }

    /// Notes that a stage has begun.
    pub(crate) fn begin(&self, stage: Stage) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = stage;
    }

    /// Returns the last stage that has begun.
    pub(crate) fn stage(&self) -> Stage {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
