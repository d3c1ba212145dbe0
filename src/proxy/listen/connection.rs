//! One client's connection: which HTTP it speaks, how long it may be silent, and how it ends.
//!
//! hyper reads the requests; [`crate::proxy::forward::forwarder`] answers them.

use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::model::{Server, SubjectName};
use crate::proxy::Proxy;
use crate::proxy::forward::forwarder;
use crate::proxy::listen::http2_guard::{FirstLine, Frames};
use crate::proxy::listen::listener::Slot;
use crate::proxy::listen::tls::{Acceptor, Secured, Wire};
use crate::proxy::messages::body::Body;
use crate::proxy::net::driver::{Alarm, Driver};
use crate::proxy::net::spawner::Spawner;
use crate::proxy::net::stream::{Probe, Stream};

/// What an HTTP/2 client says first.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The smallest read buffer that hyper takes; smaller heads are held to by their size alone.
const HTTP1_BUFFER_MIN: usize = 8 * 1024;
/// Requests that a client may have under way on one HTTP/2 connection, waiting ones included.
const HTTP2_STREAMS_MAX: u32 = 1024;
/// Bytes of a body that an HTTP/2 client may send before anybody reads them, per stream and in all: while a
/// request waits, they lie here.
const HTTP2_STREAM_WINDOW: u32 = 64 * 1024;
const HTTP2_CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
/// Streams that a client opened and reset, not yet forgotten: beyond this it is an attack (CVE-2023-44487).
const HTTP2_PENDING_RESETS_MAX: usize = 20;
/// Streams reset because of the client's own mistakes, after which the connection ends.
const HTTP2_ERROR_RESETS_MAX: usize = 1024;
/// A client that has requests under way is asked for a sign of life this often.
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(30);
const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a connection that has been idle for too long may take to close.
const GOODBYE: Duration = Duration::from_secs(1);

/// What all connections are told when weir ends, in this order.
#[derive(Clone, Default)]
pub(crate) struct Signals {
    /// Finish what is under way or waiting, then close.
    pub(crate) drain: CancellationToken,
    /// Answer what waits.
    pub(crate) refuse: CancellationToken,
    /// Close now.
    pub(crate) cut: CancellationToken,
}

/// The client behind a connection, as its requests see it.
pub(crate) struct Client {
    /// Its address.
    pub(crate) peer: IpAddr,
    /// Whether TLS is spoken.
    pub(crate) secure: bool,
    /// What its certificate says it is called; nothing without one.
    pub(crate) names: Vec<SubjectName>,
    /// Whether it has gone.
    pub(crate) probe: Probe,
    /// What it is doing.
    pub(crate) activity: Activity,
    /// Whether weir ends.
    pub(crate) signals: Signals,
    /// Tasks that end with the connections.
    pub(crate) tasks: TaskTracker,
    _slot: Slot,
}

impl Client {
    /// The client at the other end of `stream`.
    pub(crate) fn new(
        peer: IpAddr,
        stream: &Stream,
        signals: Signals,
        tasks: TaskTracker,
        slot: Slot,
    ) -> Client {
        let (probe, activity) = (stream.probe(), Activity::new());
        let (secure, names) = (false, Vec::new());
        Client { peer, secure, names, probe, activity, signals, tasks, _slot: slot }
    }
}

/// Serves a connection until it ends.
pub(crate) async fn serve(stream: Stream, mut client: Client, proxy: Proxy) {
    let table = proxy.table();
    let (server, tls) = (Arc::clone(table.server()), table.tls().cloned());
    // Not kept while the connection lives: another may be in force soon.
    drop(table);
    client.secure = tls.is_some();
    let opened = tokio::select! {
        biased;
        opened = timeout(server.header_timeout, open(stream, tls)) => opened,
        () = client.signals.drain.cancelled() => return,
    };
    let Ok(Some(Opened { wire, protocol, first, names })) = opened else { return };
    client.names = names;
    let client = Arc::new(client);
    let watch = match protocol {
        Protocol::Http1 => Watch::Http1(Arc::clone(&client), FirstLine::new()),
        Protocol::Http2 => Watch::Http2(Box::new(Frames::new(HTTP2_STREAMS_MAX))),
    };
    let io = TokioIo::new(ClientIo { wire, first, taken: 0, watch });
    let answered = Arc::clone(&client);
    let service = service_fn(move |request: Request<Incoming>| {
        // On the heap, for most connections are idle most of the time.
        Box::pin(forwarder::handle(proxy.clone(), Arc::clone(&answered), request))
    });
    match protocol {
        Protocol::Http1 => {
            let connection = pin!(http1(&server).serve_connection(io, service).with_upgrades());
            drive(connection, &client, &server).await;
        }
        Protocol::Http2 => {
            client.activity.idle();
            let connection = http2(&server, client.tasks.clone()).serve_connection(io, service);
            // Boxed, for it is far larger than the other and would make every connection's task as large.
            let mut connection = Box::pin(connection);
            drive(connection.as_mut(), &client, &server).await;
        }
    }
}

fn http1(server: &Server) -> http1::Builder {
    let header_bytes_max = server.max_header_bytes as usize;
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        // Watched by `drive`, which tells an idle connection from a head that does not come to its end.
        .header_read_timeout(None)
        .max_header_size(header_bytes_max)
        .max_buf_size(header_bytes_max.max(HTTP1_BUFFER_MIN));
    builder
}

fn http2(server: &Server, tasks: TaskTracker) -> http2::Builder<Spawner> {
    let mut builder = http2::Builder::new(Spawner(tasks));
    builder
        .timer(TokioTimer::new())
        .max_header_list_size(server.max_header_bytes)
        .max_concurrent_streams(HTTP2_STREAMS_MAX)
        .initial_stream_window_size(HTTP2_STREAM_WINDOW)
        .initial_connection_window_size(HTTP2_CONNECTION_WINDOW)
        .max_pending_accept_reset_streams(HTTP2_PENDING_RESETS_MAX)
        .max_local_error_reset_streams(HTTP2_ERROR_RESETS_MAX)
        .keep_alive_interval(HTTP2_PING_INTERVAL)
        .keep_alive_timeout(HTTP2_PING_TIMEOUT);
    builder
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http2,
}

/// A connection of which is known what is spoken on it.
struct Opened {
    wire: Wire,
    protocol: Protocol,
    first: First,
    names: Vec<SubjectName>,
}

/// Shakes hands where TLS is spoken, and finds out which HTTP is; `None` if the client hangs up or cannot be understood.
async fn open(stream: Stream, tls: Option<Acceptor>) -> Option<Opened> {
    let secured = match tls {
        None => Secured { wire: Wire::Plain(stream), is_http2: false, names: Vec::new() },
        // Boxed, for a handshake is large and soon over.
        Some(tls) => match Box::pin(tls.accept(stream)).await {
            Ok(secured) => secured,
            Err(error) => {
                tracing::debug!(%error, "a client's TLS handshake failed");
                return None;
            }
        },
    };
    let Secured { mut wire, is_http2, names } = secured;
    let (protocol, first) = sniff(&mut wire).await?;
    // Who has agreed on HTTP/2 speaks it; who has not may, and then says so first.
    if is_http2 && protocol != Protocol::Http2 {
        let _ = wire.shutdown().await;
        return None;
    }
    Some(Opened { wire, protocol, first, names })
}

/// The first bytes of a connection.
type First = ([u8; PREFACE.len()], u8);

/// Reads until it is clear which HTTP the client speaks; `None` if it hangs up before.
async fn sniff(stream: &mut (impl AsyncRead + Unpin)) -> Option<(Protocol, First)> {
    let mut bytes = [0; PREFACE.len()];
    let mut length = 0;
    while bytes.get(..length) == PREFACE.get(..length) && length < bytes.len() {
        match stream.read(bytes.get_mut(length..)?).await {
            Ok(read) if read > 0 => length += read,
            _ => return None,
        }
    }
    let protocol = if bytes == *PREFACE { Protocol::Http2 } else { Protocol::Http1 };
    Some((protocol, (bytes, u8::try_from(length).ok()?)))
}

/// A connection that can be asked to come to its end.
trait Ending: Future {
    /// No further request; what is under way goes on.
    fn finish(self: Pin<&mut Self>);
}

impl<S> Ending for http1::UpgradeableConnection<TokioIo<ClientIo>, S>
where
    Self: Future,
    S: hyper::service::HttpService<Incoming, ResBody = Body>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    fn finish(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl<S> Ending for http2::Connection<TokioIo<ClientIo>, S, Spawner>
where
    Self: Future,
    S: hyper::service::HttpService<Incoming, ResBody = Body>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    Spawner: hyper::rt::bounds::Http2ServerConnExec<S::Future, Body>,
{
    fn finish(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// Polls a connection to its end, which its own silence or the end of weir may bring about.
async fn drive(mut connection: Pin<&mut impl Ending>, client: &Client, server: &Server) {
    let mut alarm = Alarm::default();
    let mut drain = Driver::new(Box::pin(client.signals.drain.clone().cancelled_owned()));
    let mut cut = Driver::new(Box::pin(client.signals.cut.clone().cancelled_owned()));
    let mut draining = false;
    let too_silent = poll_fn(|context| {
        if connection.as_mut().poll(context).is_ready() || cut.poll(context).is_ready() {
            return Poll::Ready(false);
        }
        if !draining && drain.poll(context).is_ready() {
            draining = true;
            connection.as_mut().finish();
            context.waker().wake_by_ref();
        }
        loop {
            let silence = client.activity.silence(server);
            ready!(alarm.poll(context, silence.deadline));
            if silence.is_too_long {
                return Poll::Ready(true);
            }
            client.activity.look_again(Instant::now());
        }
    });
    if too_silent.await {
        connection.as_mut().finish();
        let _ = timeout(GOODBYE, connection.as_mut()).await;
    }
}

/// What a client is doing, as far as its connection's timeouts are concerned.
pub(crate) struct Activity(Mutex<Phase>);

enum Phase {
    /// Nothing.
    Idle { since: Instant },
    /// It sends the head of a request.
    Head { since: Instant },
    /// It has requests under way, and had when it was last looked at.
    Busy { requests: u32, seen: Instant },
}

/// Until when a connection is left alone, and whether it has been silent for too long then.
struct Silence {
    deadline: Instant,
    is_too_long: bool,
}

impl Activity {
    /// A client that has just connected has its first head still to send.
    fn new() -> Activity {
        Activity(Mutex::new(Phase::Head { since: Instant::now() }))
    }

    fn lock(&self) -> MutexGuard<'_, Phase> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has nothing to say for now.
    fn idle(&self) {
        *self.lock() = Phase::Idle { since: Instant::now() };
    }

    /// Bytes have come.
    fn received(&self) {
        let mut phase = self.lock();
        if matches!(*phase, Phase::Idle { .. }) {
            *phase = Phase::Head { since: Instant::now() };
        }
    }

    /// A request has begun.
    pub(crate) fn began(&self, now: Instant) {
        let mut phase = self.lock();
        let before = if let Phase::Busy { requests, .. } = *phase { requests } else { 0 };
        *phase = Phase::Busy { requests: before + 1, seen: now };
    }

    /// A request is over.
    pub(crate) fn ended(&self, now: Instant) {
        let mut phase = self.lock();
        *phase = match *phase {
            Phase::Busy { requests, seen } if requests > 1 => Phase::Busy { requests: requests - 1, seen },
            _ => Phase::Idle { since: now },
        };
    }

    /// When the connection will have been silent for too long; while requests are under way, when to look again.
    fn silence(&self, server: &Server) -> Silence {
        let (since, limit, is_too_long) = match *self.lock() {
            Phase::Idle { since } => (since, server.idle_timeout, true),
            Phase::Head { since } => (since, server.header_timeout, true),
            Phase::Busy { seen, .. } => (seen, server.idle_timeout, false),
        };
        Silence { deadline: since + limit, is_too_long }
    }

    /// Requests were under way at `now`, if they still are.
    fn look_again(&self, now: Instant) {
        if let Phase::Busy { seen, .. } = &mut *self.lock() {
            *seen = now;
        }
    }
}

/// A client's stream: gives back the first bytes, and looks at all that come.
struct ClientIo {
    wire: Wire,
    first: First,
    taken: u8,
    watch: Watch,
}

/// What is looked for in the bytes of a client.
enum Watch {
    /// The beginning of a request's head; on HTTP/2, bytes need not be a request's.
    Http1(Arc<Client>, FirstLine),
    /// Frames that h2 would let pass.
    Http2(Box<Frames>),
}

impl ClientIo {
    /// Gives back what has been read to find out the protocol, if there is something left of it.
    fn give_first(&mut self, buffer: &mut ReadBuf<'_>) -> bool {
        let (bytes, length) = &self.first;
        let left = bytes.get(usize::from(self.taken)..usize::from(*length)).unwrap_or_default();
        let count = left.len().min(buffer.remaining());
        buffer.put_slice(left.get(..count).unwrap_or_default());
        self.taken += u8::try_from(count).unwrap_or(*length);
        count > 0
    }
}

impl AsyncRead for ClientIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        // What has come since belongs to the same read: a buffer that is given a few bytes grows for the rest.
        let first = this.give_first(buffer);
        let wire = Pin::new(&mut this.wire);
        let read = match &mut this.watch {
            Watch::Http1(..) => wire.poll_read(context, buffer),
            // The first bytes were the preface, and no frame.
            Watch::Http2(frames) => frames.poll_read(wire, context, buffer),
        };
        match read {
            Poll::Pending if !first => return Poll::Pending,
            Poll::Pending => {}
            Poll::Ready(result) => result?,
        }
        if let Watch::Http1(client, line) = &mut this.watch {
            let received = buffer.filled().get(before..).unwrap_or_default();
            if !received.is_empty() {
                client.activity.received();
            }
            if line.names_another_protocol(received) {
                tracing::debug!("a client speaks another protocol than HTTP");
                // As if it had left: it would not understand an answer.
                buffer.set_filled(before);
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.wire).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.wire).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.wire.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.wire).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.wire).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::{forwarder, serve};

    fn future_size<A, B, C, Made>(_: impl Fn(A, B, C) -> Made) -> usize {
        size_of::<Made>()
    }

    #[test]
    fn a_waiting_request_and_its_connection_are_small() {
        let answer = future_size(forwarder::handle);
        let connection = future_size(serve);
        assert!(answer <= 3072, "a request's future takes {answer} bytes");
        assert!(connection <= 1536, "a connection's future takes {connection} bytes");
    }
}
