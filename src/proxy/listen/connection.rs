//! Serves one client's connection: reads requests, limits silence, and ends it at shutdown.
//!
//! hyper parses the requests, and a [`Service`] answers them.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use futures_util::TryFutureExt;
use http::header::CONNECTION;
use http::{HeaderValue, Request, Response};
use hyper::body::{Body, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::time::{Instant, timeout_at};

use super::client::Client;
use super::client_io::{ClientIo, Watch};
use super::early_bytes::ClientWire;
use super::first_line::FirstLine;
use super::http2_guard::Frames;
use super::protocol::{self, Opened, Protocol};
use super::service::{Service, Settings};
use super::switch::{HandOver, Switchable};
use crate::config::model::Server;
use crate::proxy::error::http2_cause;
use crate::proxy::messages::client_body::ClientBody;
use crate::proxy::net::activity::Silence;
use crate::proxy::net::driver::{Alarm, Driver};
use crate::proxy::net::read_ahead::ReadAhead;
use crate::proxy::net::stream::Stream;
use crate::proxy::net::streams::{Begun, Multiplexed};
use crate::proxy::net::windows::{OwnFrames, Windows};
use crate::telemetry::ConnectionError;

/// The smallest read buffer that hyper accepts. A smaller limit holds by the size of the head alone.
const HTTP1_BUFFER_MIN: usize = 8 * 1024;
/// The most requests of a client on one HTTP/2 connection, waiting ones included.
const HTTP2_STREAMS_MAX: u32 = 1024;
/// The most unread bytes of bodies: of a stream whose body is being read, and of a connection. The first is what a distant client can
/// send in a round trip.
const HTTP2_STREAM_WINDOW: u32 = 256 * 1024;
const HTTP2_CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
/// The part of `server.body_memory` that arrives of a waiting request's body, and its bounds. With h2's buffers it takes some 25 KiB. All
/// streams of a connection fit into its window, so those that wait never stop the others.
const HTTP2_WAITING_PART: u64 = 16 * 1024;
const HTTP2_WAITING_WINDOW_MIN: u32 = 4 * 1024;
const HTTP2_WAITING_WINDOW_MAX: u32 = HTTP2_CONNECTION_WINDOW / HTTP2_STREAMS_MAX;
/// The bytes of a response's body, per stream, beyond which hyper asks for no further piece until the client has taken some.
const HTTP2_SEND_BUFFER: usize = 8 * 1024;
/// The most streams that a client opened and reset before weir saw them. More are an attack (CVE-2023-44487).
const HTTP2_PENDING_RESETS_MAX: usize = 20;
/// The most streams that weir resets because of the client's errors before the connection ends.
const HTTP2_ERROR_RESETS_MAX: usize = 1024;
/// The interval of PINGs to a client with requests under way, and the time to answer one.
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(30);
const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Serves a connection until it ends.
pub(crate) async fn serve<S: Service>(stream: Stream, mut client: Client, service: S) {
    let Settings { server, tls, body_memory } = service.settings();
    client.secure = tls.is_some();
    let deadline = Instant::now() + server.header_timeout;
    let opened = tokio::select! {
        biased;
        opened = timeout_at(deadline, protocol::open(stream, tls, deadline, &client)) => opened,
        // Until then the first request may come.
        () = client.signals.refuse.cancelled() => return,
    };
    let Ok(Some(Opened { wire, protocol, first, names })) = opened else { return };
    client.names = names;
    client.speaks();
    let (wire, hand_over) = (ClientWire::new(wire), HandOver::default());
    if protocol == Protocol::Http1 {
        client.early = wire.reader(body_memory);
        client.switch = hand_over.switch();
    }
    let client = Arc::new(client);
    let windows = (protocol == Protocol::Http2).then(|| Arc::new(Windows::new(narrow_window(&server))));
    let watch = match &windows {
        None => Watch::Http1(Arc::clone(&client), FirstLine::new()),
        Some(windows) => {
            let frames = Box::new(Frames::new(HTTP2_STREAMS_MAX, Arc::clone(windows)));
            Watch::Http2(frames, ReadAhead::default(), OwnFrames::new(Arc::clone(windows)))
        }
    };
    let io = TokioIo::new(ClientIo::new(wire, first, watch, server.max_connections));
    let (answered, counted) = (Arc::clone(&client), windows.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        let request = request.map(|body| {
            let window = counted.as_ref().and_then(|windows| windows.request(!body.is_end_stream()));
            ClientBody::new(body, window)
        });
        let answer = service.clone().answer(Arc::clone(&answered), request);
        let client = Arc::clone(&answered);
        answer.map_ok(move |mut response| {
            if protocol == Protocol::Http1 && (client.is_draining() || client.unread.is_set()) {
                say_close(&mut response);
            }
            response
        })
    });
    match windows {
        None => {
            let connection = Switchable::new(http1(&server).serve_connection(io, service), hand_over);
            drive(Box::pin(connection), Switchable::finish, protocol, &client, &server).await;
        }
        Some(windows) => {
            client.activity.opened();
            let begun = Begun::new(server.write_timeout);
            let connection = Box::pin(http2(&server, begun.clone()).serve_connection(io, service));
            let finish = |connection: Pin<&mut Multiplexed<_>>| {
                connection.get_mut().change(http2::Connection::graceful_shutdown);
            };
            let connection = Box::pin(Multiplexed::new(connection, begun, windows));
            drive(connection, finish, protocol, &client, &server).await;
        }
    }
}

/// Tells an HTTP/1 client that its connection ends with this response.
fn say_close<B>(response: &mut Response<B>) {
    // The header of an upgrade names the other protocol.
    if !response.status().is_informational() {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
}

/// Returns how much of a waiting request's body arrives over HTTP/2.
fn narrow_window(server: &Server) -> u32 {
    let part = u32::try_from(server.body_memory / HTTP2_WAITING_PART).unwrap_or(u32::MAX);
    part.clamp(HTTP2_WAITING_WINDOW_MIN, HTTP2_WAITING_WINDOW_MAX)
}

fn http1(server: &Server) -> http1::Builder {
    let header_bytes_max = server.max_header_bytes as usize;
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        // `drive` limits that time, because it tells an idle connection from a head without an end.
        .header_read_timeout(None)
        .max_header_size(header_bytes_max)
        .max_buf_size(header_bytes_max.max(HTTP1_BUFFER_MIN));
    builder
}

fn http2(server: &Server, begun: Begun) -> http2::Builder<Begun> {
    let mut builder = http2::Builder::new(begun);
    builder
        .timer(TokioTimer::new())
        .max_header_list_size(server.max_header_bytes)
        .max_concurrent_streams(HTTP2_STREAMS_MAX)
        .initial_stream_window_size(HTTP2_STREAM_WINDOW)
        .initial_connection_window_size(HTTP2_CONNECTION_WINDOW)
        .max_send_buf_size(HTTP2_SEND_BUFFER)
        .max_pending_accept_reset_streams(HTTP2_PENDING_RESETS_MAX)
        .max_local_error_reset_streams(HTTP2_ERROR_RESETS_MAX)
        .keep_alive_interval(HTTP2_PING_INTERVAL)
        .keep_alive_timeout(HTTP2_PING_TIMEOUT);
    builder
}

/// Polls a connection to its end, and ends it after a silence or at shutdown. After `finish` it accepts no further request; requests
/// under way, and those that a client of HTTP/2 sends before it knows, go on.
///
/// At shutdown an HTTP/2 client learns at once that it may send no further request. A client of HTTP/1 learns it with its last
/// response: closing an idle connection would break a request that is on its way.
async fn drive<C: Future<Output = hyper::Result<()>>>(
    connection: Pin<Box<C>>,
    finish: impl Fn(Pin<&mut C>),
    protocol: Protocol,
    client: &Client,
    server: &Server,
) {
    let mut connection = Driver::new(connection);
    let mut alarm = Alarm::default();
    let mut drain = Driver::new(Box::pin(client.signals.drain.clone().cancelled_owned()));
    let mut cut = Driver::new(Box::pin(client.signals.cut.clone().cancelled_owned()));
    let (mut draining_since, mut closing_since) = (None, None);
    let mut finishing = protocol == Protocol::Http1;
    poll_fn(|context| {
        if draining_since.is_none() && drain.poll(context).is_ready() {
            draining_since = Some(Instant::now());
        }
        if draining_since.is_some() && !finishing && !client.activity.is_new() {
            finishing = true;
            connection.change(&finish);
        }
        loop {
            if let Poll::Ready(ended) = connection.advance(context) {
                if let Err(error) = ended {
                    let client_ip = client.peer.to_canonical();
                    tracing::debug!(%client_ip, %error, "a client's connection ended with an error");
                    if let Some(error) = error_of_client(&error) {
                        client.errors.ended(error);
                    }
                }
                return Poll::Ready(());
            }
            if cut.poll(context).is_ready() {
                return Poll::Ready(());
            }
            let silence = match closing_since {
                None => client.activity.silence(server, draining_since),
                Some(since) => client.activity.close_deadline(since),
            };
            ready!(alarm.poll(context, silence.deadline()));
            match silence {
                Silence::CheckAt(_) => client.activity.checked(Instant::now()),
                Silence::EndsAt(_) if closing_since.is_some() => return Poll::Ready(()),
                Silence::EndsAt(_) if client.has_sent() => {}
                Silence::EndsAt(_) => {
                    client.note_cut_off();
                    closing_since = Some(Instant::now());
                    connection.change(&finish);
                }
            }
        }
    })
    .await;
}

/// Returns the error of the client that ended a connection; `None` if the client has left, or the connection broke.
fn error_of_client(error: &hyper::Error) -> Option<ConnectionError> {
    if error.is_parse() {
        let is_too_large = error.is_parse_too_large();
        return Some(if is_too_large {
            ConnectionError::HeadTooLarge
        } else {
            ConnectionError::MalformedHead
        });
    }
    // Found by h2, and not told by the client, which may say why it leaves.
    http2_cause(error).filter(|cause| cause.is_library()).map(|_| ConnectionError::Http2Protocol)
}
