//! One client behind a connection, as its requests and its timeouts see it.
//!
//! Reads nothing from the connection.

use std::net::IpAddr;
use std::sync::Arc;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::early_bytes::EarlyReader;
use super::linger::Linger;
use super::slots::Slot;
use super::switch::Switch;
use crate::config::model::SubjectName;
use crate::proxy::net::activity::Activity;
use crate::proxy::net::stream::{Probe, Stream};
use crate::proxy::net::unread::Unread;
use crate::telemetry::{ConnectionError, ConnectionErrors};

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
    pub(crate) activity: Arc<Activity>,
    /// Set when a request's body was left unread.
    pub(crate) unread: Unread,
    /// Reads what arrives while a request waits.
    pub(crate) early: EarlyReader,
    /// The way of a request to the connection, when that switches to another protocol.
    pub(crate) switch: Switch,
    /// The shutdown of weir.
    pub(crate) signals: Signals,
    /// The owner of tasks that end with the connections.
    pub(crate) tasks: TaskTracker,
    /// Counts errors of clients that end their connections.
    pub(crate) errors: ConnectionErrors,
    slot: Slot,
}

impl Client {
    /// Creates the client at the other end of `stream`.
    pub(crate) fn new(
        peer: IpAddr,
        stream: &Stream,
        signals: Signals,
        tasks: TaskTracker,
        errors: ConnectionErrors,
        slot: Slot,
    ) -> Client {
        let (probe, activity, unread) = (stream.probe(), Arc::default(), Unread::default());
        let (secure, names) = (false, Vec::new());
        let (early, switch) = (EarlyReader::default(), Switch::default());
        Client { peer, secure, names, probe, activity, unread, early, switch, signals, tasks, errors, slot }
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

    /// Counts a client whose connection ends because of its silence, if that cuts the head of a request.
    pub(crate) fn note_cut_off(&self) {
        if self.activity.is_heading() {
            let client_ip = self.peer.to_canonical();
            tracing::debug!(%client_ip, "the head of a client's request took too long");
            self.errors.ended(ConnectionError::HeadTooSlow);
        }
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
