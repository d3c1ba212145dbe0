//! A bare proxy of hyper alone, and an origin behind it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, oneshot};

use crate::{CORES, Result};

/// The kinds of proxies that are compared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    MultiThreaded,
    PerCore,
}

impl Kind {
    pub(crate) const BOTH: [Kind; 2] = [Kind::MultiThreaded, Kind::PerCore];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::MultiThreaded => "multi",
            Kind::PerCore => "per-core",
        }
    }

    pub(crate) fn parse(name: &str) -> Result<Kind> {
        Kind::BOTH.into_iter().find(|kind| kind.name() == name).ok_or_else(|| "no such kind".into())
    }
}

/// The permit that a request needs before it is forwarded, if any.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Permits {
    None,
    OneTask,
}

impl Permits {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Permits::None => "none",
            Permits::OneTask => "one task",
        }
    }

    pub(crate) fn parse(name: &str) -> Result<Permits> {
        let known = [Permits::None, Permits::OneTask].into_iter().find(|permits| permits.name() == name);
        known.ok_or_else(|| "no such permits".into())
    }
}

type Limiter = mpsc::Sender<oneshot::Sender<()>>;

/// Serves `ok`, for ever.
pub(crate) fn origin(listen: SocketAddr) -> Result<()> {
    multi_threaded()?.block_on(async {
        let listener = listener(listen)?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let service = service_fn(|_request: Request<Incoming>| async {
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"ok"))))
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
            );
        }
    })
}

/// Forwards to the origin, for ever.
pub(crate) fn run(kind: Kind, permits: Permits, listen: SocketAddr, origin: SocketAddr) -> Result<()> {
    let (limiter, worker) = mpsc::channel(1024);
    let limiter = (permits == Permits::OneTask).then_some(limiter);
    match kind {
        Kind::MultiThreaded => multi_threaded()?.block_on(async {
            tokio::spawn(grant(worker));
            forward(listener(listen)?, origin, limiter).await
        }),
        Kind::PerCore => {
            let mut worker = Some(worker);
            let cores: Vec<_> = (0..CORES)
                .map(|_| {
                    let (worker, limiter) = (worker.take(), limiter.clone());
                    thread::spawn(move || {
                        let runtime = Builder::new_current_thread().enable_all().build()?;
                        runtime.block_on(async {
                            worker.map(|worker| tokio::spawn(grant(worker)));
                            forward(listener(listen)?, origin, limiter).await
                        })
                    })
                })
                .collect();
            cores.into_iter().try_for_each(|core| core.join().map_err(|_| "a core is gone")?)
        }
    }
}

fn multi_threaded() -> Result<Runtime> {
    Ok(Builder::new_multi_thread().worker_threads(CORES).enable_all().build()?)
}

fn listener(listen: SocketAddr) -> Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?;
    socket.bind(listen)?;
    Ok(socket.listen(1024)?)
}

/// Grants every request for a permit, in the order of arrival.
async fn grant(mut asking: mpsc::Receiver<oneshot::Sender<()>>) {
    let mut batch = Vec::new();
    while asking.recv_many(&mut batch, 256).await > 0 {
        for request in batch.drain(..) {
            let _ = request.send(());
        }
    }
}

async fn forward(listener: TcpListener, origin: SocketAddr, limiter: Option<Limiter>) -> Result<()> {
    let pool = Arc::new(Pool { origin, idle: Mutex::default() });
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let (pool, limiter) = (Arc::clone(&pool), limiter.clone());
        let service = service_fn(move |request| exchange(Arc::clone(&pool), limiter.clone(), request));
        tokio::spawn(
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
        );
    }
}

async fn exchange(
    pool: Arc<Pool>,
    limiter: Option<Limiter>,
    request: Request<Incoming>,
) -> Result<Response<Incoming>> {
    if let Some(limiter) = limiter {
        let (permit, granted) = oneshot::channel();
        limiter.send(permit).await?;
        granted.await?;
    }
    let mut connection = pool.take().await?;
    let response = connection.send_request(request).await?;
    pool.give_back(connection);
    Ok(response)
}

/// Idle connections to the origin; each runtime has its own.
struct Pool {
    origin: SocketAddr,
    idle: Mutex<Vec<SendRequest<Incoming>>>,
}

impl Pool {
    async fn take(&self) -> Result<SendRequest<Incoming>> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => {
                let stream = TcpStream::connect(self.origin).await?;
                stream.set_nodelay(true)?;
                let (connection, driver) =
                    hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
                tokio::spawn(driver);
                connection
            }
        };
        connection.ready().await?;
        Ok(connection)
    }

    fn give_back(&self, connection: SendRequest<Incoming>) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
    }
}
