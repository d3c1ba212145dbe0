//! HTTP/2 by RFC 9113 and RFC 7541, frame by frame, in the clear and inside TLS: a correct client is served, an error
//! ends the stream or the connection as the RFC requires, and no part of a malformed request reaches an upstream.
//!
//! The cases follow the sections of the RFCs, as h2spec's do, and are judged as strictly: a connection error is a
//! GOAWAY with the code of the RFC or an orderly end of the connection, a stream error may also be a RST_STREAM.
//! Stricter than h2spec: the connection must end in either case, and a GOAWAY has the RFC's code or PROTOCOL_ERROR,
//! which fits where no other code does.

use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::support::certificates::{Authority, localhost};
use crate::support::http2::{
    ACK, AUTHORITY, CONTINUATION, DATA, ENABLE_PUSH, END_HEADERS, END_STREAM, Event, GET, GOAWAY, HEADERS,
    HTTP, Http2, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, PADDED, PING, POST, PRIORITY, PUSH_PROMISE, ROOT,
    RST_STREAM, SETTINGS, WINDOW_UPDATE, WITH_PRIORITY, frame, literal, numbered, request, settings,
};
use crate::support::{TlsClient, Upstream, Weir, lane, one_route};

// Error codes (RFC 9113, 7).
const PROTOCOL_ERROR: u32 = 1;
const FLOW_CONTROL_ERROR: u32 = 3;
const STREAM_CLOSED: u32 = 5;
const FRAME_SIZE_ERROR: u32 = 6;
const REFUSED_STREAM: u32 = 7;
const CANCEL: u32 = 8;
const COMPRESSION_ERROR: u32 = 9;

/// The largest payload that a server takes unless its settings say otherwise.
const FRAME_BYTES_MAX: usize = 16_384;
/// The number of requests that a client may have under way on one connection to weir.
const STREAMS_MAX: u32 = 1024;
/// A window size beyond the largest that is allowed.
const WINDOW_MAX: u32 = 0x7fff_ffff;
/// A header name and bytes of a body that mark a malformed request: no upstream may see them.
const MARK: &str = "x-malformed";
const MARKED: &[u8] = b"malformed";

/// A step of a client after the exchange of settings.
enum Step {
    /// Writes bytes.
    Send(Vec<u8>),
    /// Waits until the answer on this stream has ended.
    Ended(u32),
    /// Waits until the client's settings have been acknowledged.
    Acknowledged,
    /// Waits for a piece of the body of exactly this length.
    Piece(usize),
}
use Step::{Acknowledged, Ended, Piece, Send};

/// The required result of a case.
enum Must {
    /// The connection ends with one of these codes, or in good order without a code.
    EndConnection(&'static [u32]),
    /// The stream ends with one of these codes, or the connection does.
    EndStream(&'static [u32]),
    /// The connection ends with a GOAWAY that has this code.
    GoAway(u32),
    Reset(u32),
    /// The connection ends in good order.
    Close,
    /// The request on stream 1 is answered with 200.
    Answer,
    /// A PING with these bytes is answered.
    Pong([u8; 8]),
    /// A PING with these bytes is answered, or the connection ends.
    PongOrClose([u8; 8]),
    /// The steps themselves are the test.
    Nothing,
}
use Must::{Answer, Close, EndConnection, EndStream, GoAway, Nothing, Pong, PongOrClose, Reset};

struct Case {
    section: &'static str,
    what: &'static str,
    steps: Vec<Step>,
    must: Must,
}

fn case(section: &'static str, what: &'static str, steps: Vec<Step>, must: Must) -> Case {
    Case { section, what, steps, must }
}

/// Returns a case in which everything is written at once.
fn send(section: &'static str, what: &'static str, frames: &[Vec<u8>], must: Must) -> Case {
    case(section, what, vec![Send(frames.concat())], must)
}

/// Returns the HEADERS of a request without a body.
fn head(stream: u32, block: &[u8]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, block)
}

/// Returns the HEADERS of a request with a body.
fn open(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &request(POST))
}

fn get(stream: u32) -> Vec<u8> {
    head(stream, &request(GET))
}

fn data(stream: u32, bytes: &[u8]) -> Vec<u8> {
    frame(DATA, END_STREAM, stream, bytes)
}

fn reset(stream: u32) -> Vec<u8> {
    numbered(RST_STREAM, stream, CANCEL)
}

fn ping(bytes: [u8; 8]) -> Vec<u8> {
    frame(PING, 0, 0, &bytes)
}

/// The payload of a PING.
const WORD: [u8; 8] = *b"conform!";

/// Returns a priority: the stream that it depends on, and its weight less one (RFC 7540, 6.3).
fn priority(dependency: u32, weight: u8) -> Vec<u8> {
    [&dependency.to_be_bytes()[..], &[weight]].concat()
}

/// Returns the headers of a request that one of `block` makes malformed, with the mark that the upstream would record.
fn marked(block: &[Vec<u8>]) -> Vec<u8> {
    [block.concat(), literal(MARK, "1")].concat()
}

/// Returns the headers of a valid request and the further ones.
fn with(method: u8, more: &[Vec<u8>]) -> Vec<u8> {
    [request(method), more.concat()].concat()
}

/// Returns headers of this many bytes.
fn long_headers(bytes: usize) -> Vec<u8> {
    (0..bytes / 4000).flat_map(|index| literal(&format!("x-long-{index}"), &"y".repeat(4000))).collect()
}

fn starting() -> Vec<Case> {
    vec![
        send("4.1", "a frame of an unknown type", &[frame(0x16, 0, 0, &[0; 8]), ping(WORD)], Pong(WORD)),
        send("4.1", "flags that mean nothing", &[frame(PING, 0x16, 0, &WORD)], Pong(WORD)),
        send("4.1", "the reserved bit", &[frame(PING, 0, 0x8000_0000, &WORD)], Pong(WORD)),
        send("4.2", "DATA as large as may be", &[open(1), data(1, &[b'x'; FRAME_BYTES_MAX])], Answer),
        send(
            "4.2",
            "DATA that is too large",
            &[open(1), data(1, &MARKED.repeat(FRAME_BYTES_MAX / MARKED.len() + 1))],
            EndStream(&[FRAME_SIZE_ERROR]),
        ),
        send(
            "4.2",
            "HEADERS that are too large",
            &[head(1, &marked(&[request(GET), long_headers(20_000)]))],
            EndConnection(&[FRAME_SIZE_ERROR]),
        ),
        send(
            "4.3",
            "a header block that cannot be decoded",
            &[head(1, &[marked(&[request(GET)]), vec![0x40, 0x7f]].concat())],
            EndConnection(&[COMPRESSION_ERROR]),
        ),
        send(
            "4.3",
            "PRIORITY amid a header block",
            &[
                frame(HEADERS, END_STREAM, 1, &marked(&[request(GET)])),
                frame(PRIORITY, 0, 1, &priority(0, 255)),
                frame(CONTINUATION, END_HEADERS, 1, &literal(MARK, "2")),
            ],
            EndConnection(&[PROTOCOL_ERROR]),
        ),
        send(
            "4.3",
            "HEADERS of another stream amid a header block",
            &[frame(HEADERS, END_STREAM, 1, &marked(&[request(GET)])), head(3, &marked(&[request(GET)]))],
            EndConnection(&[PROTOCOL_ERROR]),
        ),
        send(
            "5.5",
            "a frame of an extension amid a header block",
            &[frame(HEADERS, END_STREAM, 1, &marked(&[request(GET)])), frame(0xff, 0, 1, &[0; 8])],
            EndConnection(&[PROTOCOL_ERROR]),
        ),
        send("5.4.1", "after an error the connection is closed", &[frame(PING, 0, 0, &[0; 6])], Close),
    ]
}

/// Returns the cases of frames that do not fit the state of their stream (RFC 9113, 5.1).
fn stream_states() -> Vec<Case> {
    let continuation = || frame(CONTINUATION, END_HEADERS, 1, &literal(MARK, "1"));
    let marked_head = || head(1, &marked(&[request(GET)]));
    let (on_idle, on_closed): (&[u32], &[u32]) = (&[PROTOCOL_ERROR], &[STREAM_CLOSED]);
    let either: &[u32] = &[STREAM_CLOSED, PROTOCOL_ERROR];
    let ended = |frame| vec![Send(get(1)), Ended(1), Send(frame)];
    vec![
        send("5.1", "idle: DATA", &[data(1, MARKED)], EndConnection(&[PROTOCOL_ERROR, STREAM_CLOSED])),
        send("5.1", "idle: RST_STREAM", &[reset(1)], EndConnection(on_idle)),
        send("5.1", "idle: WINDOW_UPDATE", &[numbered(WINDOW_UPDATE, 1, 100)], EndConnection(on_idle)),
        send("5.1", "idle: CONTINUATION", &[continuation()], EndConnection(on_idle)),
        send("5.1", "idle: PRIORITY", &[frame(PRIORITY, 0, 1, &priority(0, 255)), ping(WORD)], Pong(WORD)),
        send("5.1", "half-closed: DATA", &[get(1), data(1, MARKED)], EndStream(on_closed)),
        send("5.1", "half-closed: HEADERS", &[get(1), marked_head()], EndStream(on_closed)),
        send("5.1", "half-closed: CONTINUATION", &[get(1), continuation()], EndStream(either)),
        send("5.1", "half-closed: RST_STREAM", &[get(1), reset(1), ping(WORD)], PongOrClose(WORD)),
        send(
            "5.1",
            "half-closed: WINDOW_UPDATE and PRIORITY",
            &[
                settings(&[(INITIAL_WINDOW_SIZE, 0)]),
                get(1),
                frame(PRIORITY, 0, 1, &priority(0, 255)),
                numbered(WINDOW_UPDATE, 1, 100),
            ],
            Answer,
        ),
        send("5.1", "reset: DATA", &[open(1), reset(1), data(1, MARKED)], EndStream(on_closed)),
        send("5.1", "reset: HEADERS", &[open(1), reset(1), marked_head()], EndStream(on_closed)),
        send("5.1", "reset: CONTINUATION", &[open(1), reset(1), continuation()], EndStream(either)),
        case("5.1", "ended: DATA", ended(data(1, MARKED)), EndConnection(on_closed)),
        case("5.1", "ended: HEADERS", ended(marked_head()), EndConnection(on_closed)),
        case("5.1", "ended: CONTINUATION", ended(continuation()), EndConnection(either)),
        case(
            "5.1",
            "ended: PRIORITY, WINDOW_UPDATE and RST_STREAM, which may have been on their way",
            ended(
                [
                    frame(PRIORITY, 0, 1, &priority(0, 255)),
                    numbered(WINDOW_UPDATE, 1, 100),
                    reset(1),
                    ping(WORD),
                ]
                .concat(),
            ),
            Pong(WORD),
        ),
        case(
            "5.1",
            "ended after a body: DATA",
            vec![Send([open(1), data(1, b"good")].concat()), Ended(1), Send(data(1, MARKED))],
            EndConnection(on_closed),
        ),
        send(
            "5.1.1",
            "a stream with an even number",
            &[head(2, &marked(&[request(GET)]))],
            EndConnection(on_idle),
        ),
        send(
            "5.1.1",
            "a stream with a smaller number than the last",
            &[get(5), head(3, &marked(&[request(GET)]))],
            EndConnection(on_idle),
        ),
        send(
            "5.1.2",
            "one stream too many",
            &std::iter::once(settings(&[(INITIAL_WINDOW_SIZE, 0)]))
                .chain((0..=STREAMS_MAX).map(|index| get(2 * index + 1)))
                .collect::<Vec<_>>(),
            EndStream(&[PROTOCOL_ERROR, REFUSED_STREAM]),
        ),
    ]
}

/// Returns the cases of DATA, HEADERS, PRIORITY and RST_STREAM (RFC 9113, 6.1 to 6.4).
fn stream_frames() -> Vec<Case> {
    let (protocol, size): (&[u32], &[u32]) = (&[PROTOCOL_ERROR], &[FRAME_SIZE_ERROR]);
    let depends = |payload: Vec<u8>| frame(HEADERS, END_HEADERS | END_STREAM | WITH_PRIORITY, 1, &payload);
    let padded = |kind, length: u8, content: &[u8]| {
        frame(kind, PADDED | END_HEADERS | END_STREAM, 1, &[&[length][..], content].concat())
    };
    let block = marked(&[request(GET)]);
    vec![
        send("6.1", "DATA", &[open(1), data(1, b"good")], Answer),
        send(
            "6.1",
            "DATA in several frames, some of them empty",
            &[
                open(1),
                frame(DATA, 0, 1, b"go"),
                frame(DATA, 0, 1, b""),
                frame(DATA, 0, 1, b"od"),
                data(1, b""),
            ],
            Answer,
        ),
        send("6.1", "padded DATA", &[open(1), frame(DATA, PADDED | END_STREAM, 1, b"\x02good\0\0")], Answer),
        send("6.1", "DATA of no stream", &[data(0, MARKED)], EndConnection(protocol)),
        send(
            "6.1",
            "DATA with more padding than there are bytes",
            &[open(1), padded(DATA, 10, MARKED)],
            EndConnection(protocol),
        ),
        send(
            "6.1",
            "DATA without the length of its padding",
            &[open(1), frame(DATA, PADDED, 1, &[])],
            EndConnection(&[PROTOCOL_ERROR, FRAME_SIZE_ERROR]),
        ),
        send("6.2", "padded HEADERS", &[padded(HEADERS, 2, &[request(GET), vec![0, 0]].concat())], Answer),
        send("6.2", "HEADERS with a priority", &[depends([priority(0, 9), request(GET)].concat())], Answer),
        send("6.2", "HEADERS of no stream", &[head(0, &block)], EndConnection(protocol)),
        send(
            "6.2",
            "HEADERS with more padding than there are bytes",
            &[padded(HEADERS, 200, &block)],
            EndConnection(protocol),
        ),
        send(
            "5.3.1",
            "HEADERS that depend on themselves",
            &[depends([priority(1, 9), block.clone()].concat())],
            EndStream(protocol),
        ),
        send(
            "5.3.1",
            "PRIORITY that depends on itself",
            &[open(1), frame(PRIORITY, 0, 1, &priority(1, 9))],
            EndStream(protocol),
        ),
        send(
            "6.3",
            "PRIORITY with an exclusive dependency",
            &[get(1), frame(PRIORITY, 0, 3, &priority(0x8000_0001, 0))],
            Answer,
        ),
        send(
            "6.3",
            "PRIORITY of no stream",
            &[frame(PRIORITY, 0, 0, &priority(0, 9))],
            EndConnection(protocol),
        ),
        send(
            "6.3",
            "PRIORITY that is too short",
            &[open(1), frame(PRIORITY, 0, 1, &[0x80, 0, 0, 1])],
            EndStream(size),
        ),
        send("6.4", "RST_STREAM of no stream", &[reset(0)], EndConnection(protocol)),
        send(
            "6.4",
            "RST_STREAM that is too short",
            &[open(1), frame(RST_STREAM, 0, 1, &[0; 3])],
            EndConnection(size),
        ),
        send(
            "6.4",
            "RST_STREAM that is too long",
            &[open(1), frame(RST_STREAM, 0, 1, &[0; 5])],
            EndConnection(size),
        ),
        send("6.4", "RST_STREAM, and the next request", &[open(3), reset(3), ping(WORD)], Pong(WORD)),
        send(
            "7",
            "RST_STREAM with an unknown code",
            &[open(1), numbered(RST_STREAM, 1, 0xff), ping(WORD)],
            PongOrClose(WORD),
        ),
        send(
            "7",
            "GOAWAY with an unknown code",
            &[frame(GOAWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 0xff]), ping(WORD)],
            PongOrClose(WORD),
        ),
    ]
}

/// Returns the cases of SETTINGS, PUSH_PROMISE, PING and GOAWAY (RFC 9113, 6.5 to 6.8).
fn connection_frames() -> Vec<Case> {
    let (protocol, size): (&[u32], &[u32]) = (&[PROTOCOL_ERROR], &[FRAME_SIZE_ERROR]);
    let promise = [&3_u32.to_be_bytes()[..], &marked(&[request(GET)])].concat();
    let set = |name, value| [settings(&[(name, value)])];
    vec![
        case("6.5.3", "SETTINGS", vec![Send(settings(&[(ENABLE_PUSH, 0)])), Acknowledged], Nothing),
        send(
            "6.5",
            "an acknowledgement with a payload",
            &[frame(SETTINGS, ACK, 0, &[0; 6])],
            EndConnection(size),
        ),
        send(
            "6.5",
            "SETTINGS of a stream",
            &[frame(SETTINGS, 0, 1, &[0, 3, 0, 0, 0, 1])],
            EndConnection(protocol),
        ),
        send("6.5", "SETTINGS that are no settings", &[frame(SETTINGS, 0, 0, &[0; 3])], EndConnection(size)),
        send("6.5.2", "ENABLE_PUSH of 2", &set(ENABLE_PUSH, 2), EndConnection(protocol)),
        send(
            "6.5.2",
            "a window that is too large",
            &set(INITIAL_WINDOW_SIZE, WINDOW_MAX + 1),
            EndConnection(&[FLOW_CONTROL_ERROR]),
        ),
        send("6.5.2", "frames that are too small", &set(MAX_FRAME_SIZE, 16_383), EndConnection(protocol)),
        send("6.5.2", "frames that are too large", &set(MAX_FRAME_SIZE, 1 << 24), EndConnection(protocol)),
        send("6.5.2", "an unknown setting", &[settings(&[(0xff, 1)]), ping(WORD)], Pong(WORD)),
        case(
            "6.5.3",
            "the last of two values counts",
            vec![
                Send(settings(&[(INITIAL_WINDOW_SIZE, 100), (INITIAL_WINDOW_SIZE, 1)])),
                Acknowledged,
                Send(get(1)),
                Piece(1),
            ],
            Nothing,
        ),
        send(
            "8.4",
            "PUSH_PROMISE of a client",
            &[open(1), frame(PUSH_PROMISE, END_HEADERS, 1, &promise)],
            EndConnection(protocol),
        ),
        send("6.7", "PING", &[ping(WORD)], Pong(WORD)),
        send("6.7", "an answer to no PING", &[frame(PING, ACK, 0, b"unasked!"), ping(WORD)], Pong(WORD)),
        send("6.7", "PING of a stream", &[frame(PING, 0, 1, &WORD)], EndConnection(protocol)),
        send("6.7", "PING that is too short", &[frame(PING, 0, 0, &[0; 6])], EndConnection(size)),
        send("6.7", "PING that is too long", &[frame(PING, 0, 0, &[0; 9])], EndConnection(size)),
        send("6.8", "GOAWAY", &[frame(GOAWAY, 0, 0, &[0; 8]), ping(WORD)], PongOrClose(WORD)),
        send("6.8", "GOAWAY of a stream", &[frame(GOAWAY, 0, 1, &[0; 8])], EndConnection(protocol)),
        send("6.8", "GOAWAY that is too short", &[frame(GOAWAY, 0, 0, &[0; 7])], EndConnection(size)),
    ]
}

/// Returns the cases of WINDOW_UPDATE and of flow-control windows (RFC 9113, 6.9).
fn windows() -> Vec<Case> {
    let protocol: &[u32] = &[PROTOCOL_ERROR];
    let update = |stream, by| numbered(WINDOW_UPDATE, stream, by);
    let window = |bytes| Send(settings(&[(INITIAL_WINDOW_SIZE, bytes)]));
    vec![
        send("6.9", "WINDOW_UPDATE of the connection by nothing", &[update(0, 0)], EndConnection(protocol)),
        send("6.9", "WINDOW_UPDATE of a stream by nothing", &[open(1), update(1, 0)], EndStream(protocol)),
        send(
            "6.9",
            "WINDOW_UPDATE that is too short",
            &[frame(WINDOW_UPDATE, 0, 0, &[0; 3])],
            EndConnection(&[FRAME_SIZE_ERROR]),
        ),
        send(
            "6.9.1",
            "a window of the connection that overflows",
            &[update(0, WINDOW_MAX), update(0, WINDOW_MAX)],
            GoAway(FLOW_CONTROL_ERROR),
        ),
        send(
            "6.9.1",
            "a window of a stream that overflows",
            &[open(1), update(1, WINDOW_MAX), update(1, WINDOW_MAX)],
            Reset(FLOW_CONTROL_ERROR),
        ),
        case(
            "6.9.1",
            "no more is sent than the window holds",
            vec![
                window(1),
                Acknowledged,
                Send(get(1)),
                Piece(1),
                Send(update(1, 3)),
                Piece(3),
                Send(update(1, 100)),
                Piece(4),
            ],
            Nothing,
        ),
        case(
            "6.9.2",
            "a window that grows lets more through",
            vec![
                window(0),
                Acknowledged,
                Send([get(1), ping(WORD)].concat()),
                window(1),
                Acknowledged,
                Piece(1),
            ],
            Nothing,
        ),
        case(
            "6.9.2",
            "a window below zero has to be made up for",
            vec![
                window(3),
                Acknowledged,
                Send(get(1)),
                Piece(3),
                window(2),
                Acknowledged,
                Send(update(1, 2)),
                Piece(1),
            ],
            Nothing,
        ),
    ]
}

/// Returns the cases of CONTINUATION (RFC 9113, 6.10).
fn continuations() -> Vec<Case> {
    let protocol: &[u32] = &[PROTOCOL_ERROR];
    let begin = |flags| frame(HEADERS, flags, 1, &marked(&[request(GET)]));
    let go_on = |flags, stream| frame(CONTINUATION, flags, stream, &literal(MARK, "2"));
    vec![
        send(
            "6.10",
            "a header block in several frames",
            &[
                frame(HEADERS, END_STREAM, 1, &request(GET)),
                frame(CONTINUATION, 0, 1, &long_headers(8000)),
                frame(CONTINUATION, END_HEADERS, 1, &literal("x-last", "1")),
            ],
            Answer,
        ),
        send(
            "6.10",
            "DATA amid a header block",
            &[begin(0), go_on(0, 1), data(1, MARKED)],
            EndConnection(protocol),
        ),
        send(
            "6.10",
            "CONTINUATION of no stream",
            &[begin(END_STREAM), go_on(END_HEADERS, 0)],
            EndConnection(protocol),
        ),
        send(
            "6.10",
            "CONTINUATION of another stream",
            &[begin(END_STREAM), go_on(END_HEADERS, 3)],
            EndConnection(protocol),
        ),
        send(
            "6.10",
            "CONTINUATION after the end of a header block",
            &[open(1), go_on(END_HEADERS, 1)],
            EndConnection(protocol),
        ),
        send(
            "6.10",
            "CONTINUATION after the end of a header block in several frames",
            &[
                frame(HEADERS, 0, 1, &request(POST)),
                frame(CONTINUATION, END_HEADERS, 1, &literal("x-last", "1")),
                go_on(END_HEADERS, 1),
            ],
            EndConnection(protocol),
        ),
        send(
            "6.10",
            "CONTINUATION after DATA",
            &[open(1), frame(DATA, 0, 1, MARKED), go_on(END_HEADERS, 1)],
            EndConnection(protocol),
        ),
    ]
}

/// Returns the cases of requests with malformed headers (RFC 9113, 8.2 and 8.3).
fn malformed_headers() -> Vec<Case> {
    let pseudo = |bytes: &[u8]| bytes.to_vec();
    let (get, authority) = (|| request(GET), || AUTHORITY.to_vec());
    [
        ("8.2.1", "a name in upper case", marked(&[get(), literal("X-Upper", "1")])),
        ("8.2.1", "a name with a space", marked(&[get(), literal("x space", "1")])),
        ("8.2.1", "a value with a line break", marked(&[get(), literal("x-break", "1\r\nx-second: 2")])),
        ("8.3", "an unknown pseudo-header", marked(&[get(), literal(":unknown", "1")])),
        ("8.3", "a pseudo-header of responses", marked(&[get(), literal(":status", "200")])),
        ("8.3", "a pseudo-header after another header", [literal(MARK, "1"), get()].concat()),
        ("8.2.2", "connection", marked(&[get(), literal("connection", "keep-alive")])),
        ("8.2.2", "proxy-connection", marked(&[get(), literal("proxy-connection", "keep-alive")])),
        ("8.2.2", "keep-alive", marked(&[get(), literal("keep-alive", "5")])),
        ("8.2.2", "transfer-encoding", marked(&[get(), literal("transfer-encoding", "chunked")])),
        ("8.2.2", "upgrade", marked(&[get(), literal("upgrade", "websocket")])),
        (
            "8.2.2",
            "te for something else than trailers",
            marked(&[get(), literal("te", "trailers, deflate")]),
        ),
        ("8.3.1", "an empty path", marked(&[pseudo(&[GET, HTTP]), literal(":path", ""), authority()])),
        ("8.3.1", "no method", marked(&[pseudo(&[HTTP, ROOT]), authority()])),
        ("8.3.1", "no scheme", marked(&[pseudo(&[GET, ROOT]), authority()])),
        ("8.3.1", "no path", marked(&[pseudo(&[GET, HTTP]), authority()])),
        ("8.3.1", "two methods", marked(&[pseudo(&[GET, GET, HTTP, ROOT]), authority()])),
        ("8.3.1", "two schemes", marked(&[pseudo(&[GET, HTTP, HTTP, ROOT]), authority()])),
        ("8.3.1", "two paths", marked(&[pseudo(&[GET, HTTP, ROOT, ROOT]), authority()])),
    ]
    .into_iter()
    .map(|(section, what, block)| send(section, what, &[head(1, &block)], EndStream(&[PROTOCOL_ERROR])))
    .collect()
}

/// Returns the cases of requests with a malformed or a correct sequence of frames after the headers (RFC 9113, 8.1).
fn messages() -> Vec<Case> {
    let protocol: &[u32] = &[PROTOCOL_ERROR];
    let trailers = |flags, block: &[u8]| frame(HEADERS, END_HEADERS | flags, 1, block);
    let of_length =
        |length: &str| frame(HEADERS, END_HEADERS, 1, &with(POST, &[literal("content-length", length)]));
    vec![
        send("8.1", "GET", &[get(1)], Answer),
        send(
            "8.1",
            "HEAD",
            &[head(1, &[literal(":method", "HEAD"), vec![HTTP, ROOT], AUTHORITY.to_vec()].concat())],
            Answer,
        ),
        send(
            "8.1",
            "OPTIONS",
            &[head(1, &[literal(":method", "OPTIONS"), vec![HTTP, ROOT], AUTHORITY.to_vec()].concat())],
            Answer,
        ),
        send("8.1", "POST of the length that it says", &[of_length("4"), data(1, b"good")], Answer),
        send(
            "8.1",
            "POST with trailers",
            &[
                frame(HEADERS, END_HEADERS, 1, &with(POST, &[literal("trailer", "x-last")])),
                frame(DATA, 0, 1, b"good"),
                trailers(END_STREAM, &literal("x-last", "1")),
            ],
            Answer,
        ),
        send("8.1", "te: trailers", &[head(1, &with(GET, &[literal("te", "trailers")]))], Answer),
        send(
            "8.1",
            "a cookie in pieces",
            &[head(1, &with(GET, &[literal("cookie", "a=1"), literal("cookie", "b=2")]))],
            Answer,
        ),
        send(
            "8.1",
            "further HEADERS that do not end the stream",
            &[open(1), frame(DATA, 0, 1, MARKED), trailers(0, &literal(MARK, "1"))],
            EndStream(protocol),
        ),
        send(
            "8.3",
            "a pseudo-header among the trailers",
            &[
                open(1),
                frame(DATA, 0, 1, MARKED),
                trailers(END_STREAM, &[literal(":method", "GET"), literal(MARK, "1")].concat()),
            ],
            EndStream(protocol),
        ),
        send(
            "8.3",
            "a pseudo-header of the static table among the trailers",
            &[open(1), frame(DATA, 0, 1, MARKED), trailers(END_STREAM, b"\x42\x03200")],
            EndStream(protocol),
        ),
        send("8.1.1", "less than the length says", &[of_length("10"), data(1, MARKED)], EndStream(protocol)),
        send("8.1.1", "more than the length says", &[of_length("8"), data(1, MARKED)], EndStream(protocol)),
        send(
            "8.1.1",
            "more than the length says, in several frames",
            &[of_length("9"), frame(DATA, 0, 1, MARKED), data(1, b"!")],
            EndStream(protocol),
        ),
        case(
            "8.1.1",
            "more bytes than the declared length, long after it",
            vec![
                Send([of_length("9"), frame(DATA, 0, 1, MARKED), settings(&[])].concat()),
                Acknowledged,
                Send(data(1, b"!")),
            ],
            EndStream(protocol),
        ),
        send(
            "8.1.1",
            "the declared length, and its end in a frame of its own",
            &[of_length("4"), frame(DATA, 0, 1, b"good"), frame(DATA, 0, 1, b""), data(1, b"")],
            Answer,
        ),
        send(
            "8.1.1",
            "the declared length, and trailers",
            &[of_length("4"), frame(DATA, 0, 1, b"good"), head(1, &literal("x-trailer", "1"))],
            Answer,
        ),
        send(
            "8.1.1",
            "a length and nothing",
            &[head(1, &with(POST, &[literal("content-length", "1"), literal(MARK, "1")]))],
            EndStream(protocol),
        ),
        send(
            "8.1.1",
            "two lengths",
            &[frame(
                HEADERS,
                END_HEADERS,
                1,
                &with(
                    POST,
                    &[literal("content-length", "4"), literal("content-length", "5"), literal(MARK, "1")],
                ),
            )],
            EndStream(protocol),
        ),
        send(
            "8.1.1",
            "a length that is none",
            &[frame(
                HEADERS,
                END_HEADERS,
                1,
                &with(POST, &[literal("content-length", "-4"), literal(MARK, "1")]),
            )],
            EndStream(protocol),
        ),
    ]
}

/// Returns the cases of header blocks (RFC 7541).
fn header_compression() -> Vec<Case> {
    let good = |more: &[u8]| head(1, &[request(GET), more.to_vec()].concat());
    // `x-test` and `h2spec`, Huffman coded (RFC 7541, appendix B).
    let (name, value) = (&b"\x85\xf2\xb2\x4a\x84\xff"[..], &b"\x84\x9c\x48\xac\xa4"[..]);
    let coded = |first: u8| [&[first][..], name, value].concat();
    // A header with any name, and a value that ends with the Huffman code of `a`.
    let ends_so = |value: &[u8]| [b"\0\x01x", value].concat();
    let mut cases = vec![
        send(
            "HPACK 6.2.1",
            "a header that enters the table, and is fetched from it",
            &[head(1, &[request(GET), coded(0x40), vec![0xbe]].concat())],
            Answer,
        ),
        send("HPACK 6.2.2", "a header that enters no table", &[good(&coded(0x00))], Answer),
        send("HPACK 6.2.3", "a header that must never enter one", &[good(&coded(0x10))], Answer),
        send("HPACK 6.2.1", "a name from the table", &[good(&[&[0x7a][..], value].concat())], Answer),
        send("HPACK 6.3", "a table that shrinks", &[head(1, &[vec![0x20], request(GET)].concat())], Answer),
        send(
            "HPACK 4.2",
            "a table that shrinks and grows",
            &[head(1, &[vec![0x20, 0x3f, 0xe1, 0x1f], request(GET)].concat())],
            Answer,
        ),
    ];
    let bad: [(&str, &str, Vec<u8>); 8] = [
        ("HPACK 2.3.3", "an entry that no table has", vec![0xc6]),
        ("HPACK 2.3.3", "a name that no table has", vec![0x7f, 0x07, 1, b'x']),
        ("HPACK 4.2", "a table that changes at the end of a block", vec![0x3f, 0xe1, 0x1f]),
        ("HPACK 5.2", "more padding than seven bits", ends_so(&[0x82, 0x1f, 0xff])),
        ("HPACK 5.2", "padding that is not the end of the code for the end", ends_so(&[0x81, 0x18])),
        ("HPACK 5.2", "the code for the end", ends_so(&[0x85, 0x1f, 0xff, 0xff, 0xff, 0xff])),
        ("HPACK 6.1", "the entry zero", vec![0x80]),
        (
            "HPACK 5.1",
            "a number that does not end",
            vec![0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        ),
    ];
    cases.extend(bad.into_iter().map(|(section, what, rest)| {
        let block = [marked(&[request(GET)]), rest].concat();
        send(section, what, &[head(1, &block)], EndConnection(&[COMPRESSION_ERROR]))
    }));
    let larger = [vec![0x3f, 0xe2, 0x1f], marked(&[request(GET)])].concat();
    cases.push(send(
        "HPACK 6.3",
        "a table larger than allowed",
        &[head(1, &larger)],
        EndConnection(&[COMPRESSION_ERROR]),
    ));
    cases
}

fn cases() -> Vec<Case> {
    [
        starting(),
        stream_states(),
        stream_frames(),
        connection_frames(),
        windows(),
        continuations(),
        malformed_headers(),
        messages(),
        header_compression(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Carries out the steps, and returns an error that describes the deviation.
async fn take(case: &Case, peer: &mut Http2) -> Result<(), String> {
    peer.shake_hands().await;
    for (index, step) in case.steps.iter().enumerate() {
        let event = match step {
            Send(bytes) => {
                peer.send(bytes).await;
                continue;
            }
            Ended(id) => {
                let ends = |event: &Event| {
                    matches!(event, Event::Frame { kind: DATA | HEADERS, flags, stream, .. }
                        if stream == id && flags & END_STREAM != 0)
                };
                peer.until(ends).await
            }
            Acknowledged => {
                peer.until(|event| matches!(event, Event::Frame { kind: SETTINGS, flags: ACK, .. })).await
            }
            Piece(length) => {
                let event = peer.until(|event| matches!(event, Event::Frame { kind: DATA, .. })).await;
                let is_it = matches!(&event, Event::Frame { payload, .. } if payload.len() == *length);
                if is_it { event } else { return Err(format!("step {index}: {event:?}")) }
            }
        };
        if !matches!(event, Event::Frame { .. }) {
            return Err(format!("step {index}: {event:?}"));
        }
    }
    judge(&case.must, peer).await
}

async fn judge(must: &Must, peer: &mut Http2) -> Result<(), String> {
    let is_pong = |word: &[u8; 8], event: &Event| matches!(event, Event::Frame { kind: PING, flags: ACK, payload, .. } if payload == word);
    match must {
        Nothing => Ok(()),
        EndConnection(codes) => ends(codes, false, peer).await,
        EndStream(codes) => ends(codes, true, peer).await,
        GoAway(code) => told(GOAWAY, *code, peer).await,
        Reset(code) => told(RST_STREAM, *code, peer).await,
        Close => match peer.until(|_| false).await {
            Event::Closed => Ok(()),
            other => Err(format!("{other:?}")),
        },
        Answer => match peer
            .until(|event| matches!(event, Event::Frame { stream: 1, kind: HEADERS | RST_STREAM, .. }))
            .await
        {
            // `:status: 200` of the static table comes first.
            Event::Frame { kind: HEADERS, payload, .. } if payload.first() == Some(&0x88) => Ok(()),
            other => Err(format!("{other:?}")),
        },
        Pong(word) => {
            match peer.until(|event| matches!(event, Event::Frame { kind: PING, flags: ACK, .. })).await {
                event if is_pong(word, &event) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        }
        PongOrClose(word) => match peer.until(|event| is_pong(word, event)).await {
            Event::Frame { .. } | Event::Closed => Ok(()),
            other => Err(format!("{other:?}")),
        },
    }
}

async fn told(wanted: u8, code: u32, peer: &mut Http2) -> Result<(), String> {
    let is_it = |event: &Event| matches!(event, Event::Frame { kind, .. } if *kind == wanted);
    let event = peer.until(is_it).await;
    if event.code() == Some(code) { Ok(()) } else { Err(format!("{event:?}")) }
}

/// Reads to the end of the connection, or of the stream where that is enough.
async fn ends(codes: &[u32], stream_is_enough: bool, peer: &mut Http2) -> Result<(), String> {
    let mut seen = Vec::new();
    let mut told = false;
    loop {
        let event = peer.next().await;
        match &event {
            Event::Frame { kind: RST_STREAM, .. }
                if event.code().is_some_and(|code| codes.contains(&code)) =>
            {
                if stream_is_enough {
                    return Ok(());
                }
            }
            Event::Frame { kind: GOAWAY, .. } => match event.code() {
                Some(code) if codes.contains(&code) => told = true,
                Some(PROTOCOL_ERROR) => {}
                _ => return Err(format!("{event:?} after {seen:?}")),
            },
            Event::Closed => return Ok(()),
            // The GOAWAY arrived; the peer left the rest of the client's bytes unread.
            Event::Broken(_) if told => return Ok(()),
            Event::Broken(_) | Event::Nothing => return Err(format!("{event:?} after {seen:?}")),
            Event::Frame { .. } => {}
        }
        seen.push(event);
    }
}

/// Returns an error if the upstream got anything that it should not have, among all requests but the first `before`.
fn let_through(upstream: &Upstream, before: usize) -> Result<(), String> {
    let is_marked = |body: &[u8]| body.windows(MARKED.len()).any(|bytes| bytes == MARKED);
    let seen = upstream.seen();
    let found = seen[before..].iter().find(|seen| seen.headers.contains_key(MARK) || is_marked(&seen.body));
    found.map_or(Ok(()), |seen| Err(format!("it reached the upstream: {seen:?}")))
}

/// Runs every case on a connection of its own.
async fn run(connect: impl AsyncFn(&Weir) -> Http2, server: &str) {
    let upstream = Upstream::start();
    let weir = Weir::start(&(server.to_owned() + &one_route(&upstream.url()))).await;
    let mut failed = Vec::new();
    let cases = cases();
    for case in &cases {
        let before = upstream.count();
        let outcome = take(case, &mut connect(&weir).await).await;
        if let Err(why) = outcome.and(let_through(&upstream, before)) {
            failed.push(format!("{} {}: {why}", case.section, case.what));
        }
    }
    // Requests that reach the upstream late.
    if let Err(why) = let_through(&upstream, 0) {
        failed.push(why);
    }
    assert!(failed.is_empty(), "{} of {} cases:\n{}", failed.len(), cases.len(), failed.join("\n"));
    println!("{} cases", cases.len());
    let mut peer = connect(&weir).await;
    peer.send(b"INVALID CONNECTION PREFACE\r\n\r\n").await;
    assert_eq!(peer.next().await, Event::Closed, "3.4 an invalid preface");
}

#[tokio::test]
async fn http2_conforms_in_the_clear() {
    let _lane = lane::shared().await;
    run(async |weir| Http2::over(TcpStream::connect(weir.host()).await.unwrap()), "").await;
}

#[tokio::test]
async fn http2_conforms_inside_tls() {
    let _lane = lane::shared().await;
    let (directory, authority) = (TempDir::new().unwrap(), Authority::new());
    let signed = authority.sign(localhost());
    let (cert, key) = (directory.path().join("server.pem"), directory.path().join("server.key"));
    std::fs::write(&cert, signed.certificate).unwrap();
    std::fs::write(&key, signed.key).unwrap();
    let client = TlsClient::trusting(&authority.pem()).offering(&["h2"]);
    let server = format!("server: {{tls: {{cert: {cert:?}, key: {key:?}}}}}\n");
    run(async |weir| Http2::over(client.connect(&weir.host()).await.unwrap()), &server).await;
}
