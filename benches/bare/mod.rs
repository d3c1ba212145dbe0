//! A bare proxy of hyper and hyper-util: what a request costs without anything of weir's own.
//!
//! Multi-threaded, with a pool of kept connections and without Nagle's algorithm; HTTP/1.1 and HTTP/2 to clients, HTTP/1.1 to the
//! origin. It removes hop-by-hop headers, and neither logs, limits nor times anything.

use std::net::SocketAddr;
use std::time::Duration;

use http::header::{CONNECTION, HOST, TE, TRANSFER_ENCODING, UPGRADE};
use http::uri::{Authority, Scheme};
use http::{HeaderName, Request, Response, StatusCode, Uri, Version};
use http_body_util::Either;
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};

use crate::load::Result;

/// The connections that the pool keeps, and for how long.
const IDLE_MAX: usize = 256;
const IDLE_TIME: Duration = Duration::from_secs(55);
const HOP_BY_HOP: [HeaderName; 6] = [
    CONNECTION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

type Body = Either<Incoming, Empty<Bytes>>;

/// A proxy for one origin.
#[derive(Clone)]
struct Proxy {
    client: Client<HttpConnector, Incoming>,
    origin: Authority,
}

/// Serves at `address` until the process is killed.
pub(crate) fn run(address: SocketAddr, origin: SocketAddr) -> Result<()> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let mut builder = Client::builder(TokioExecutor::new());
    builder.pool_max_idle_per_host(IDLE_MAX).pool_idle_timeout(IDLE_TIME);
    let proxy = Proxy { client: builder.build(connector), origin: origin.to_string().parse()? };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(address).await?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::spawn(serve(stream, proxy.clone()));
        }
    })
}

async fn serve(stream: TcpStream, proxy: Proxy) {
    let service = service_fn(move |request| proxy.clone().forward(request));
    // A client that breaks off is no fault of the proxy.
    let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
}

impl Proxy {
    async fn forward(self, mut request: Request<Incoming>) -> Result<Response<Body>> {
        let mut uri = std::mem::take(request.uri_mut()).into_parts();
        uri.scheme = Some(Scheme::HTTP);
        uri.authority = Some(self.origin);
        *request.uri_mut() = Uri::from_parts(uri)?;
        *request.version_mut() = Version::HTTP_11;
        HOP_BY_HOP.iter().for_each(|name| drop(request.headers_mut().remove(name)));
        request.headers_mut().remove(HOST);
        match self.client.request(request).await {
            Ok(mut response) => {
                HOP_BY_HOP.iter().for_each(|name| drop(response.headers_mut().remove(name)));
                *response.version_mut() = Version::HTTP_11;
                Ok(response.map(Either::Left))
            }
            Err(_) => {
                let mut response = Response::new(Either::Right(Empty::new()));
                *response.status_mut() = StatusCode::BAD_GATEWAY;
                Ok(response)
            }
        }
    }
}
