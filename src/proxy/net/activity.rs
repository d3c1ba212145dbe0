//! The phase of a client's connection, which decides how long the client may be silent.
//!
//! Waits for nothing: the connection asks it for its next deadline.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::config::model::Server;

/// The time for which a connection without a request stays open at shutdown. A request that is on its way meanwhile is answered, and
/// the client learns with the answer that the connection ends.
const LAST_REQUEST_TIME: Duration = Duration::from_secs(1);

/// The time in which a connection without a request must close, once it has been silent for too long.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(1);

/// The phase of a client's connection, for its timeouts.
pub(crate) struct Activity {
    phase: Mutex<Phase>,
    /// True while the end of a response waits until the client takes some of it.
    is_writing: AtomicBool,
}

enum Phase {
    /// An HTTP/2 connection without a request so far.
    New { since: Instant },
    /// No request is under way.
    Idle { since: Instant },
    /// The client sends the head of a request.
    Head { since: Instant },
    /// Requests are under way, and were at the last check.
    Busy { requests: u32, checked_at: Instant },
}

/// The next deadline of a connection.
#[derive(Clone, Copy)]
pub(crate) enum Silence {
    /// The connection has then been silent for too long.
    EndsAt(Instant),
    /// Requests are under way or being answered, and the phase must be checked again then.
    CheckAt(Instant),
}

impl Silence {
    /// Returns the instant of the deadline.
    pub(crate) fn deadline(self) -> Instant {
        match self {
            Silence::EndsAt(deadline) | Silence::CheckAt(deadline) => deadline,
        }
    }
}

impl Default for Activity {
    /// Returns the phase in which the first head is expected, which a client that has just connected has still to send.
    fn default() -> Activity {
        let phase = Mutex::new(Phase::Head { since: Instant::now() });
        Activity { phase, is_writing: AtomicBool::new(false) }
    }
}

impl Activity {
    fn lock(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that HTTP/2 begins.
    pub(crate) fn opened(&self) {
        *self.lock() = Phase::New { since: Instant::now() };
    }

    /// Returns whether an HTTP/2 connection has had no request so far.
    pub(crate) fn is_new(&self) -> bool {
        matches!(*self.lock(), Phase::New { .. })
    }

    /// Returns whether no request is under way, and none is arriving.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(*self.lock(), Phase::Idle { .. })
    }

    /// Returns whether the first head is expected, or one is arriving.
    pub(crate) fn is_heading(&self) -> bool {
        matches!(*self.lock(), Phase::Head { .. })
    }

    /// Notes that bytes have arrived.
    pub(crate) fn received(&self) {
        let mut phase = self.lock();
        if matches!(*phase, Phase::Idle { .. }) {
            *phase = Phase::Head { since: Instant::now() };
        }
    }

    /// Notes whether bytes wait for the client, which is not idle before it has taken them.
    pub(crate) fn writes(&self, is_writing: bool) {
        if self.is_writing.load(Ordering::Relaxed) != is_writing {
            self.is_writing.store(is_writing, Ordering::Relaxed);
            if let Phase::Idle { since } = &mut *self.lock() {
                *since = Instant::now();
            }
        }
    }

    /// Notes that a request has begun.
    pub(crate) fn began(&self, now: Instant) {
        let mut phase = self.lock();
        let before = if let Phase::Busy { requests, .. } = *phase { requests } else { 0 };
        *phase = Phase::Busy { requests: before + 1, checked_at: now };
    }

    /// Notes that a request is over.
    pub(crate) fn ended(&self, now: Instant) {
        let mut phase = self.lock();
        *phase = match *phase {
            Phase::Busy { requests, checked_at } if requests > 1 => {
                Phase::Busy { requests: requests - 1, checked_at }
            }
            _ => Phase::Idle { since: now },
        };
    }

    /// Notes that something beside a response is under way, until the drop of what is returned: what the client sends meanwhile is no head
    /// of a request.
    pub(crate) fn busy(self: &Arc<Activity>) -> Busy {
        self.began(Instant::now());
        Busy(Arc::clone(self))
    }

    /// Returns the deadline of the current phase. `draining_since` is the beginning of the shutdown.
    pub(crate) fn silence(&self, server: &Server, draining_since: Option<Instant>) -> Silence {
        match *self.lock() {
            // The kernel bounds the time for which a client may take nothing.
            Phase::Idle { since } if self.is_writing.load(Ordering::Relaxed) => {
                Silence::CheckAt(since + server.idle_timeout)
            }
            Phase::New { since } | Phase::Idle { since } => {
                let end = since + server.idle_timeout;
                let last = draining_since.map(|draining| since.max(draining) + LAST_REQUEST_TIME);
                Silence::EndsAt(last.map_or(end, |last| last.min(end)))
            }
            Phase::Head { since } => Silence::EndsAt(since + server.header_timeout),
            Phase::Busy { checked_at, .. } => Silence::CheckAt(checked_at + server.idle_timeout),
        }
    }

    /// Returns the deadline of a connection that closes since `closing_since`: it answers the requests that were on their way.
    pub(crate) fn close_deadline(&self, closing_since: Instant) -> Silence {
        match *self.lock() {
            Phase::New { since } | Phase::Idle { since } | Phase::Head { since } => {
                Silence::EndsAt(since.max(closing_since) + CLOSE_TIME_MAX)
            }
            Phase::Busy { checked_at, .. } => Silence::CheckAt(checked_at + CLOSE_TIME_MAX),
        }
    }

    /// Moves the check to be made while requests are under way, or being answered, to `now`.
    pub(crate) fn checked(&self, now: Instant) {
        match &mut *self.lock() {
            Phase::Busy { checked_at: checked, .. } | Phase::Idle { since: checked } => *checked = now,
            Phase::New { .. } | Phase::Head { .. } => {}
        }
    }
}

/// A part of a request that may outlast its response.
pub(crate) struct Busy(Arc<Activity>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.ended(Instant::now());
    }
}
