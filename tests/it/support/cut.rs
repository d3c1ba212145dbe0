//! A line that can be cut: a TCP proxy in front of a local port, which delays, holds back and breaks the server's
//! bytes.
//!
//! Knows nothing of the protocol. It runs on the test's runtime.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;

/// The most bytes of one read.
const CHUNK_BYTES: usize = 64 * 1024;
/// The most chunks held back on one connection; then the server waits.
const CHUNKS_HELD_MAX: usize = 1024;

/// A running line. Dropping it closes every connection.
pub(crate) struct Cut {
    port: u16,
    rules: Arc<watch::Sender<Rules>>,
    _task: AbortOnDropHandle<()>,
}

/// The faults of all connections.
#[derive(Clone, Copy, Debug, Default)]
struct Rules {
    delay: Duration,
    swallow: bool,
    refuse: bool,
    /// The number of bytes to deliver before the next cut; the first connection to deliver bytes takes it.
    cut_after: Option<usize>,
    /// The number of resets of all connections; a connection ends when it differs from the number at its start.
    drops: u64,
    /// The number of times that all connections were muted; one is mute when it differs from the number at its start.
    mutes: u64,
}

/// Bytes of the server, with the instant at which they are due at the client.
type Held = (Instant, Vec<u8>);

impl Cut {
    /// Listens on a free port, and connects each client to `port`.
    pub(crate) async fn before(port: u16) -> Cut {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let own_port = listener.local_addr().expect("an address").port();
        let rules = Arc::new(watch::Sender::new(Rules::default()));
        let task = tokio::spawn(accept(listener, port, Arc::clone(&rules)));
        Cut { port: own_port, rules, _task: AbortOnDropHandle::new(task) }
    }

    /// Returns the listening port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Delays the server's bytes by `delay` from now on.
    pub(crate) fn delay(&self, delay: Duration) {
        self.rules.send_modify(|rules| rules.delay = delay);
    }

    /// Resets all connections that have carried data.
    pub(crate) fn drop_connections(&self) {
        self.rules.send_modify(|rules| rules.drops += 1);
    }

    /// Loses whatever the server says on the present connections from now on. Requests still reach it.
    pub(crate) fn mute_connections(&self) {
        self.rules.send_modify(|rules| rules.mutes += 1);
    }

    /// Closes new connections at once while `refuse` is set.
    pub(crate) fn refuse(&self, refuse: bool) {
        self.rules.send_modify(|rules| rules.refuse = refuse);
    }

    /// Cuts one reply: the next connection on which the server sends passes `bytes` bytes and is reset. A shorter reply
    /// passes whole, and the connection is reset in the one after it.
    pub(crate) fn cut_reply_after(&self, bytes: usize) {
        self.rules.send_modify(|rules| rules.cut_after = Some(bytes));
    }

    /// Holds the server's bytes back while `swallow` is set. Requests still reach the server; its replies are delivered
    /// when this ends, on the connections that are still open.
    pub(crate) fn swallow_replies(&self, swallow: bool) {
        self.rules.send_modify(|rules| rules.swallow = swallow);
    }
}

async fn accept(listener: TcpListener, port: u16, rules: Arc<watch::Sender<Rules>>) {
    // The connections end with this task.
    let mut connections = JoinSet::new();
    loop {
        // An error here belongs to one connection, which was reset before it was accepted.
        let Ok((client, _)) = listener.accept().await else { continue };
        while connections.try_join_next().is_some() {}
        let watched = rules.subscribe();
        let now = *watched.borrow();
        if !now.refuse {
            connections.spawn(serve(
                client,
                port,
                Line { rules: Arc::clone(&rules), watched, drops: now.drops, mutes: now.mutes },
            ));
        }
    }
}

/// The faults that one connection follows.
struct Line {
    rules: Arc<watch::Sender<Rules>>,
    watched: watch::Receiver<Rules>,
    /// The numbers at the start of the connection.
    drops: u64,
    mutes: u64,
}

async fn serve(mut client: TcpStream, port: u16, line: Line) {
    // Where the server does not listen, the client is closed.
    let Ok(mut server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await else { return };
    client.set_nodelay(true).ok();
    server.set_nodelay(true).ok();
    let mut dropped = line.watched.clone();
    let passed = tokio::select! {
        // The rules come first: nothing more is passed on after the test has set a fault.
        biased;
        _ = dropped.wait_for(|rules| rules.drops != line.drops) => Err(reset()),
        passed = pass(&mut client, &mut server, &line) => passed,
    };
    if passed.is_err() {
        // Both sides are reset instead of closed.
        client.set_zero_linger().ok();
        server.set_zero_linger().ok();
    }
}

/// Passes bytes until both sides have closed, or one breaks.
async fn pass(client: &mut TcpStream, server: &mut TcpStream, line: &Line) -> io::Result<()> {
    let (mut from_client, to_client) = client.split();
    let (from_server, mut to_server) = server.split();
    let (hold, held) = mpsc::channel(CHUNKS_HELD_MAX);
    let requests = async {
        tokio::io::copy(&mut from_client, &mut to_server).await?;
        to_server.shutdown().await
    };
    tokio::try_join!(requests, receive(from_server, hold, line), deliver(held, to_client, line))?;
    Ok(())
}

/// Reads the server's bytes at once, so that a delay does not slow them down.
async fn receive(mut server: ReadHalf<'_>, hold: mpsc::Sender<Held>, line: &Line) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let length = server.read(&mut buffer).await?;
        if length == 0 {
            return Ok(());
        }
        let due = Instant::now() + line.watched.borrow().delay;
        hold.send((due, buffer[..length].to_vec())).await.map_err(|_| reset())?;
    }
}

async fn deliver(mut held: mpsc::Receiver<Held>, mut client: WriteHalf<'_>, line: &Line) -> io::Result<()> {
    let mut watched = line.watched.clone();
    let mut cut_after = None;
    while let Some((due, bytes)) = held.recv().await {
        sleep_until(due).await;
        watched.wait_for(|rules| !rules.swallow).await.map_err(|_| reset())?;
        if watched.borrow().mutes != line.mutes {
            continue;
        }
        cut_after = cut_after.or_else(|| line.take_cut());
        let Some(left) = cut_after.as_mut() else {
            client.write_all(&bytes).await?;
            continue;
        };
        let passed = bytes.len().min(*left);
        client.write_all(&bytes[..passed]).await?;
        *left -= passed;
        if *left == 0 {
            return Err(reset());
        }
    }
    client.shutdown().await
}

impl Line {
    /// Takes the requested cut, if no other connection has taken it.
    fn take_cut(&self) -> Option<usize> {
        let mut taken = None;
        // No task waits for this change.
        self.rules.send_if_modified(|rules| {
            taken = rules.cut_after.take();
            false
        });
        taken
    }
}

fn reset() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}
