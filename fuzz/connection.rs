//! Whole connections: bytes in pieces to the real listener of a weir in this process, over HTTP/1.1 or HTTP/2.
//!
//! An input is a first byte for the protocol (even: HTTP/1.1; odd: HTTP/2, whose preface and settings are sent before it), then pieces,
//! each with its length before it. Checks that nothing panics, that what comes back is of the protocol, and that weir still answers others.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use weir::app::App;

/// The time without an answer after which a client leaves, and the one in which a healthy request must have its answer.
const SILENCE: Duration = Duration::from_millis(2);
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
/// The number of connections between two healthy requests.
const CHECKED_EACH: u64 = 256;
/// The most bytes of an answer that are read.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// HTTP/2's preface and an empty SETTINGS frame.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

static WEIR: LazyLock<SocketAddr> = LazyLock::new(|| {
    let upstream = upstream();
    let config = format!(
        "listen: 127.0.0.1:0\nadmin: {{listen: '127.0.0.1:0'}}\nlog: {{level: error, access: false}}\n\
         limiters:\n  api: {{limits: [1000000/1s], key: ['header:x-key'], queue: {{timeout: 1s, max_waiting: 10}}}}\n\
         routes:\n  - {{name: a, match: {{path: /a}}, upstream: 'http://{upstream}', limiter: api}}\n  \
         - {{name: b, match: {{}}, upstream: 'http://{upstream}', limiters: off, errors: problem}}\n"
    );
    let (ready, address) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let loaded = weir::config::parse(Path::new("weir.yaml"), &config).expect("a valid configuration");
            let app = App::start(loaded, None).await.expect("weir starts");
            ready.send(app.proxy_address()).expect("the target waits");
            std::future::pending::<()>().await;
        });
    });
    address.recv().expect("weir starts")
});

/// Starts an upstream that answers each connection's first bytes and closes it.
fn upstream() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut buffer = [0; 4096];
            // One that breaks off is the business of weir.
            let _ = stream.read(&mut buffer);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok");
        }
    });
    address
}

/// Sends an input over a connection of its own, and checks what comes back.
///
/// # Panics
/// If a check fails.
pub(crate) fn connection(input: &[u8]) {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let Some((protocol, mut rest)) = input.split_first() else { return };
    let is_http2 = protocol % 2 == 1;
    let mut stream = connect(SILENCE);
    let mut sent = !is_http2 || stream.write_all(PREFACE).is_ok();
    while let Some((length, after)) = rest.split_first().filter(|_| sent) {
        let (piece, left) = after.split_at(usize::from(*length).min(after.len()));
        // weir may have closed the connection.
        sent = stream.write_all(piece).is_ok();
        rest = left;
        thread::yield_now();
    }
    let answer = read(&mut stream);
    if is_http2 {
        check_frames(&answer);
    } else {
        assert!(
            b"HTTP/1.".starts_with(answer.get(..7).unwrap_or(&answer)),
            "{:?}",
            String::from_utf8_lossy(&answer)
        );
    }
    drop(stream);
    if COUNT.fetch_add(1, Ordering::Relaxed).is_multiple_of(CHECKED_EACH) {
        check_health();
    }
}

/// Checks that the answer is a row of frames, the first of which is SETTINGS; the last one may be cut.
fn check_frames(mut answer: &[u8]) {
    let mut is_first = true;
    while let Some(head) = answer.first_chunk::<9>() {
        let [high, middle, low, kind, ..] = *head;
        let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        assert!(length <= 16 * 1024, "a frame of {length} bytes");
        assert!(!is_first || kind == 4, "the first frame is of type {kind}");
        is_first = false;
        answer = answer.get(9 + length..).unwrap_or_default();
    }
}

/// Checks that another client gets its answer.
fn check_health() {
    let mut stream = connect(ANSWER_TIME_MAX);
    stream
        .write_all(b"GET /a HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        .expect("weir takes a request");
    let answer = read(&mut stream);
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{:?}", String::from_utf8_lossy(&answer));
}

fn connect(timeout: Duration) -> TcpStream {
    let stream = TcpStream::connect_timeout(&WEIR, ANSWER_TIME_MAX).expect("weir accepts");
    stream.set_nodelay(true).expect("an option of the socket");
    stream.set_read_timeout(Some(timeout)).expect("an option of the socket");
    stream
}

/// Reads until the other side has closed the connection or is silent.
fn read(stream: &mut TcpStream) -> Vec<u8> {
    let (mut answer, mut buffer) = (Vec::new(), [0; 4096]);
    while answer.len() < ANSWER_BYTES_MAX {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => answer.extend_from_slice(&buffer[..length]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    answer
}
