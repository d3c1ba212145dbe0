//! The judge: an HTTP server (HTTP/1.1, and HTTP/2 without TLS) that records the instant at which each request's head
//! was read.
//!
//! It has a thread and a runtime of its own, so that the test's work does not delay the record. The remaining delay of
//! the machine is measured all the time ([`Upstream::lag`]) and is the only slack that [`Upstream::assert_within`]
//! gives.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Method, Response, Version};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::measure::fullest_window;
use super::{eventually_within, raise_open_files};

/// The backlog of the listener: a thousand connections may be opened in the same millisecond.
const BACKLOG: u32 = 4096;
/// So much of an answer that nobody reads is kept by the kernel. By its own measure it keeps 4 MiB for each connection: a thousand that stall use up
/// what it has for all sockets of the machine, and those of other tests stand still.
const SEND_BUFFER_BYTES: u32 = 64 * 1024;
/// The interval at which the recorder checks whether it is late.
const HEARTBEAT: Duration = Duration::from_millis(1);

/// A recorded request.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// The instant at which the request's head had been read.
    pub(crate) at: Instant,
    pub(crate) method: Method,
    /// The path and query, byte for byte.
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    pub(crate) version: Version,
    pub(crate) body: Bytes,
}

/// An answer, and its time.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: Bytes,
    gate: Option<watch::Receiver<bool>>,
}

impl Reply {
    pub(crate) fn status(status: u16) -> Reply {
        let body = Bytes::from_static(b"upstream");
        Reply { status, headers: Vec::new(), body, gate: None }
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Reply {
        self.headers.push((name.into(), value.into()));
        self
    }

    pub(crate) fn body(mut self, body: impl Into<Bytes>) -> Reply {
        self.body = body.into();
        self
    }
}

/// A gate that holds back the answers of one path until it is opened or dropped.
pub(crate) struct Gate(watch::Sender<bool>);

impl Gate {
    pub(crate) fn open(&self) {
        self.0.send_replace(true);
    }
}

/// A function from the number of a request, counted from 1, to its answer.
type Script = Box<dyn Fn(usize) -> Option<Reply> + Send + Sync>;

#[derive(Default)]
struct Shared {
    seen: Mutex<Vec<Seen>>,
    script: Mutex<Option<Script>>,
    replies: Mutex<HashMap<String, Reply>>,
    lag_us: AtomicU64,
    connections: AtomicU64,
}

/// A running upstream. Dropping it closes every connection.
pub(crate) struct Upstream {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: CancellationToken,
    thread: Option<thread::JoinHandle<()>>,
}

impl Upstream {
    /// Starts on a free port; every path answers 200 until told otherwise.
    pub(crate) fn start() -> Upstream {
        Upstream::start_at(0)
    }

    /// Starts on a port, on which another one may have been before.
    pub(crate) fn start_at(port: u16) -> Upstream {
        raise_open_files();
        let shared = Arc::new(Shared::default());
        let stop = CancellationToken::new();
        let (ready, address) = std::sync::mpsc::sync_channel(1);
        let thread = {
            let (shared, stop) = (Arc::clone(&shared), stop.clone());
            thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let runtime = runtime.expect("start a runtime");
                runtime.block_on(async move {
                    let listener = listen(port);
                    ready.send(listener.local_addr().expect("an address")).expect("the test waits");
                    tokio::select! {
                        () = accept(listener, &shared) => {}
                        () = measure_lag(&shared) => {}
                        () = stop.cancelled() => {}
                    }
                });
                runtime.shutdown_background();
            })
        };
        let address = address.recv().expect("the upstream starts");
        Upstream { address, shared, stop, thread: Some(thread) }
    }

    /// Returns `http://127.0.0.1:PORT`.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns `127.0.0.1:PORT`.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the answer of this path (without query) from now on.
    pub(crate) fn reply(&self, path: &str, reply: Reply) {
        locked(&self.shared.replies).insert(path.into(), reply);
    }

    /// Sets the answers by number, from 1 on, from now on; the path decides where `script` returns `None`.
    pub(crate) fn script(&self, script: impl Fn(usize) -> Option<Reply> + Send + Sync + 'static) {
        *locked(&self.shared.script) = Some(Box::new(script));
    }

    /// Holds the answers of this path (without query) back until the gate opens.
    pub(crate) fn hold(&self, path: &str) -> Gate {
        let (gate, opened) = watch::channel(false);
        self.reply(path, Reply { gate: Some(opened), ..Reply::status(200) });
        Gate(gate)
    }

    /// Returns all requests, in order.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        locked(&self.shared.seen).clone()
    }

    /// Returns the number of requests.
    pub(crate) fn count(&self) -> usize {
        locked(&self.shared.seen).len()
    }

    /// Returns the number of accepted connections.
    pub(crate) fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Returns the instants of all requests, in order.
    pub(crate) fn instants(&self) -> Vec<Instant> {
        locked(&self.shared.seen).iter().map(|seen| seen.at).collect()
    }

    /// Returns the instants of the requests since `start`.
    pub(crate) fn instants_since(&self, start: Instant) -> Vec<Instant> {
        self.instants().into_iter().filter(|at| *at >= start).collect()
    }

    /// Returns the targets (path and query) of all requests, in order.
    pub(crate) fn targets(&self) -> Vec<String> {
        locked(&self.shared.seen).iter().map(|seen| seen.target.clone()).collect()
    }

    /// Waits until this many requests have arrived.
    pub(crate) async fn wait_for(&self, count: usize, deadline: Duration) {
        let what = format!("{count} requests at the upstream");
        eventually_within(&what, deadline, async || self.count() >= count).await;
    }

    /// Returns the most requests in any window of that length.
    pub(crate) fn fullest_window(&self, per: Duration) -> usize {
        fullest_window(&self.instants(), per)
    }

    /// Returns the longest time for which the machine held up the recorder since the start.
    pub(crate) fn lag(&self) -> Duration {
        Duration::from_micros(self.shared.lag_us.load(Ordering::Relaxed))
    }

    /// Panics if any window of length `per` holds more than `rate` requests.
    ///
    /// An instant may be recorded late by up to the lag, so two requests may lie further apart than their record: the judged window is
    /// shorter by the lag, and by a quarter at most.
    pub(crate) fn assert_within(&self, rate: usize, per: Duration) {
        self.assert_within_since(None, rate, per);
    }

    /// Panics like [`Upstream::assert_within`], for the requests since `start`.
    pub(crate) fn assert_within_since(&self, start: Option<Instant>, rate: usize, per: Duration) {
        let instants = start.map_or_else(|| self.instants(), |start| self.instants_since(start));
        let slack = self.lag().min(per / 4);
        let fullest = fullest_window(&instants, per - slack);
        assert!(
            fullest <= rate,
            "{fullest} requests in a window of {per:?} less {slack:?} (lag {:?}), where {rate} are allowed",
            self.lag()
        );
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // A panic of the recorder has been printed already.
            thread.join().ok();
        }
    }
}

fn listen(port: u16) -> TcpListener {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_reuseaddr(true).expect("a socket's option");
    socket.set_send_buffer_size(SEND_BUFFER_BYTES).expect("a socket's option");
    socket.bind(SocketAddr::from(([127, 0, 0, 1], port))).expect("a free port");
    socket.listen(BACKLOG).expect("listen")
}

async fn accept(listener: TcpListener, shared: &Arc<Shared>) {
    loop {
        // An error here belongs to one connection, which was reset before it was accepted.
        let Ok((stream, _)) = listener.accept().await else { continue };
        shared.connections.fetch_add(1, Ordering::Relaxed);
        // The task ends with the runtime.
        drop(tokio::spawn(serve(stream, Arc::clone(shared))));
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    stream.set_nodelay(true).ok();
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        // The head has just been read: hyper calls the service at once.
        let at = Instant::now();
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(answer(at, request, &shared).await) }
    });
    // An error here is the client's: it went away.
    auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await.ok();
}

async fn answer(at: Instant, request: hyper::Request<Incoming>, shared: &Shared) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let reply = locked(&shared.replies).get(head.uri.path()).cloned().unwrap_or_else(|| Reply::status(200));
    let target = head.uri.path_and_query().map_or_else(String::new, ToString::to_string);
    let index = {
        let mut seen = locked(&shared.seen);
        let (method, headers, version) = (head.method, head.headers, head.version);
        seen.push(Seen { at, method, target, headers, version, body: Bytes::new() });
        seen.len() - 1
    };
    let scripted = locked(&shared.script).as_ref().and_then(|script| script(index + 1));
    let reply = scripted.unwrap_or(reply);
    if let Ok(body) = body.collect().await {
        locked(&shared.seen)[index].body = body.to_bytes();
    }
    if let Some(mut gate) = reply.gate {
        // A dropped gate is open.
        gate.wait_for(|open| *open).await.ok();
    }
    let mut response = Response::builder().status(reply.status);
    for (name, value) in reply.headers {
        response = response.header(name, value);
    }
    response.body(Full::new(reply.body)).expect("the test gives valid headers")
}

/// Measures the delay of a timer on the recorder's thread: a request may be recorded as late.
async fn measure_lag(shared: &Shared) {
    loop {
        let due = Instant::now() + HEARTBEAT;
        tokio::time::sleep_until(due.into()).await;
        let late = due.elapsed().as_micros();
        shared.lag_us.fetch_max(u64::try_from(late).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// Locks a mutex. A poisoned lock still holds a whole record: each lock guards one push or one read.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
