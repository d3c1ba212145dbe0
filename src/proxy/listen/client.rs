//! One client behind a connection, as its requests and its timeouts see it.
//!
//! Reads nothing from the connection.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::early_bytes::EarlyReader;
use super::linger::Linger;
use super::slots::Slot;
use crate::config::model::{Server, SubjectName};
use crate::proxy::net::stream::{Probe, Stream};
use crate::proxy::net::unread::Unread;

/// The time for which a connection without a request stays open at shutdown. A request that is on its way meanwhile is answered, and
/// the client learns with the answer that the connection ends.
const LAST_REQUEST_TIME: Duration = Duration::from_secs(1);

/// The time in which a connection without a request must close, once it has been silent for too long.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(1);

/// The steps of shutdown, in this order, for all connections.
#[derive(Clone, Default)]
pub(crate) struct Signals {
    /// Finish the requests under way or waiting, and those that are on their way, then close.
    pub(crate) drain: CancellationToken,
    /// Answer the waiting requests.
    pub(crate) refuse: CancellationToken,
    /// Close at once.
    pub(crate) cut: CancellationToken,
}

/// The sender of a request, as far as decisions and headers depend on it.
#[derive(Clone, Copy)]
pub(crate) struct Sender<'a> {
    /// The address of the client's side of the connection.
    pub(crate) peer: IpAddr,
    /// True if the connection is inside TLS.
    pub(crate) secure: bool,
    /// The names in the client's certificate; empty without one.
    pub(crate) names: &'a [SubjectName],
}

/// The client behind a connection, as its requests see it.
pub(crate) struct Client {
    /// The address of the client's side of the connection.
    pub(crate) peer: IpAddr,
    /// True if the connection is inside TLS.
    pub(crate) secure: bool,
    /// The names in the client's certificate; empty without one.
    pub(crate) names: Vec<SubjectName>,
    /// A view of the connection that notices when the client has left.
    pub(crate) probe: Probe,
    /// The client's current phase, for timeouts.
    pub(crate) activity: Activity,
    /// Set when a request's body was left unread.
    pub(crate) unread: Unread,
    /// Reads what arrives while a request waits.
    pub(crate) early: EarlyReader,
    /// The shutdown of weir.
    pub(crate) signals: Signals,
    /// The owner of tasks that end with the connections.
    pub(crate) tasks: TaskTracker,
    slot: Slot,
}

impl Client {
    /// Creates the client at the other end of `stream`.
    pub(crate) fn new(
        peer: IpAddr,
        stream: &Stream,
        signals: Signals,
        tasks: TaskTracker,
        slot: Slot,
    ) -> Client {
        let (probe, activity, unread) = (stream.probe(), Activity::new(), Unread::default());
        let (secure, names, early) = (false, Vec::new(), EarlyReader::default());
        Client { peer, secure, names, probe, activity, unread, early, signals, tasks, slot }
    }

    /// Returns the client as the sender of a request.
    pub(crate) fn sender(&self) -> Sender<'_> {
        Sender { peer: self.peer, secure: self.secure, names: &self.names }
    }

    /// Notes that the protocol is known.
    pub(crate) fn speaks(&mut self) {
        self.slot.speaks();
    }

    /// Returns whether weir shuts down. Cheap enough for every request: the signal itself is behind a lock that all connections share.
    pub(crate) fn is_draining(&self) -> bool {
        self.tasks.is_closed()
    }

    /// Returns how to read on, on a connection with an unread body whose sending side is closed; `None` if nothing is left to read, or
    /// too many connections read on already.
    pub(crate) fn linger(&self, connections_max: u32) -> Option<Linger> {
        let place = self.slot.linger(connections_max).filter(|_| self.unread.is_set())?;
        // Until the end the connection is busy, and not idle.
        self.activity.began(Instant::now());
        Some(Linger::new(place))
    }

    /// Notes the head of a request that has arrived without being read yet, if the client is idle. Returns whether there is one.
    pub(crate) fn has_sent(&self) -> bool {
        let has_sent = self.activity.is_idle() && !self.probe.is_idle();
        if has_sent {
            self.activity.received();
        }
        has_sent
    }
}

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

impl Activity {
    /// Returns the phase in which the first head is expected, which a client that has just connected has still to send.
    fn new() -> Activity {
        let phase = Mutex::new(Phase::Head { since: Instant::now() });
        Activity { phase, is_writing: AtomicBool::new(false) }
    }

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

    fn is_idle(&self) -> bool {
        matches!(*self.lock(), Phase::Idle { .. })
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
