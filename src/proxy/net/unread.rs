//! The mark of a connection on which a client may still be sending what nobody reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A mark that the body of a request was left before its end, so that the connection ends with the response.
///
/// A clone is the same mark.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unread(Arc<AtomicBool>);

impl Unread {
    /// Marks the connection.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns whether the connection is marked.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
