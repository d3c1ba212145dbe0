//! Room for the headers of a response over HTTP/1.1, as the connections to one upstream have it.
//!
//! hyper keeps the usual room on its stack. Any more is allocated anew for each response, for some 3 300 instructions of the 50 000 that a
//! request takes; so it is there only for upstreams that have needed it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The most headers of a response from an upstream that has sent more than hyper's usual 100.
const LARGE: usize = 256;

/// The room of one connection, which knows what the others have met.
#[derive(Clone, Default)]
pub(crate) struct HeaderRoom {
    is_large: bool,
    needs_large: Arc<AtomicBool>,
}

impl HeaderRoom {
    /// Returns the room for a connection that opens now.
    pub(crate) fn of_next(&self) -> HeaderRoom {
        let needs_large = Arc::clone(&self.needs_large);
        HeaderRoom { is_large: needs_large.load(Ordering::Relaxed), needs_large }
    }

    /// Returns the number of headers if it is not hyper's.
    pub(crate) fn headers_max(&self) -> Option<usize> {
        self.is_large.then_some(LARGE)
    }

    /// Returns whether the next connection may have more room.
    pub(crate) fn may_grow(&self) -> bool {
        !self.is_large
    }

    /// Returns whether the next connection has more room.
    pub(crate) fn is_outgrown(&self) -> bool {
        !self.is_large && self.needs_large.load(Ordering::Relaxed)
    }

    /// Lets connections that open from now on have more room.
    pub(crate) fn grow(&self) {
        self.needs_large.store(true, Ordering::Relaxed);
    }
}
