//! The connections of one upstream between requests: idle HTTP/1.1 connections, and HTTP/2 connections that requests share.
//!
//! Opens none: [`super::upstream`] does. The connection that became idle last is taken first, so that a small load keeps few of them
//! warm and the others age. There are never more connections than there were requests at once. An old connection carries no new
//! request, however busy it is, because its name may lead elsewhere by then.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use super::connection::{Connection, Http1, Multiplexed};

/// The most idle connections of an upstream: enough for a burst after a lull, and few beside the file descriptors of a proxy.
const IDLE_MAX: usize = 256;

/// The connections of one upstream that are idle or can be shared.
#[derive(Default)]
#[expect(clippy::vec_box, reason = "a connection keeps its box for as long as it lives")]
pub(crate) struct Pool {
    /// The idle HTTP/1.1 connections, oldest first.
    idle: Mutex<Vec<Box<Http1>>>,
    shared: Mutex<Vec<Multiplexed>>,
}

impl Pool {
    /// Takes an idle HTTP/1.1 connection that still seems to be open.
    pub(crate) fn take_http1(&self) -> Option<Connection> {
        let now = Instant::now();
        loop {
            let mut connection = lock(&self.idle).pop()?;
            if !connection.is_old(now) && connection.is_open(now) {
                return Some(connection.reuse());
            }
            connection.end();
        }
    }

    /// Takes a stream of a shared HTTP/2 connection.
    pub(crate) fn take_http2(&self) -> Option<Connection> {
        let mut shared = lock(&self.shared);
        shared.retain(Multiplexed::is_shared);
        shared.iter().find_map(|connection| connection.stream(true)).map(Connection::Http2)
    }

    /// Takes back a connection whose response has ended. An HTTP/2 connection has stayed in the pool.
    pub(crate) fn put(&self, connection: Connection) {
        let Connection::Http1(connection) = connection else { return };
        let Some(connection) = connection.into_idle() else { return };
        let mut idle = lock(&self.idle);
        idle.push(connection);
        let surplus = (idle.len() > IDLE_MAX).then(|| idle.remove(0));
        drop(idle);
        surplus.into_iter().for_each(|connection| connection.end());
    }

    /// Lets other requests take streams of an HTTP/2 connection.
    pub(crate) fn share(&self, connection: &Connection) {
        if let Connection::Http2(http2) = connection {
            lock(&self.shared).push(http2.connection().clone());
        }
    }

    /// Closes connections that have been idle for too long, and drops those that the upstream closed.
    pub(crate) fn sweep(&self) {
        let now = Instant::now();
        let is_done = |connection: &mut Box<Http1>| connection.is_old(now) || !connection.is_open(now);
        let done: Vec<_> = lock(&self.idle).extract_if(.., is_done).collect();
        done.into_iter().for_each(|connection| connection.end());
        lock(&self.shared).retain(Multiplexed::is_shared);
    }

    /// Closes every connection that is not in use.
    pub(crate) fn clear(&self) {
        let idle = std::mem::take(&mut *lock(&self.idle));
        idle.into_iter().for_each(|connection| connection.end());
        lock(&self.shared).clear();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
