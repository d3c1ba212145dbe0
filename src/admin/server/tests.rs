use std::io::Write;
use std::net::SocketAddr;
use std::sync::Mutex;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;

use super::super::router::tests::{Admin, admin};
use super::*;
use crate::config::Outcome;

/// Far more than an answer takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Collects what the logging library writes.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Serves on a thread of its own; the workers are the test's runtime.
fn served(state: AdminState, shutdown: CancellationToken) -> (SocketAddr, JoinHandle<io::Result<()>>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    (address, tokio::task::spawn_blocking(move || serve(listener, state, shutdown)))
}

async fn connected(address: SocketAddr, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("{request} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).await.unwrap();
    stream
}

#[tokio::test]
async fn an_action_is_carried_out_and_logged_though_its_client_hangs_up() {
    let written = Written::default();
    let sink = written.clone();
    let log = tracing_subscriber::fmt().with_writer(move || sink.clone()).finish();
    let _logging = tracing::subscriber::set_default(log);
    // Beside a single subscriber, a line that a test on another thread comes to first counts as wanted by nobody.
    let _another = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    let (Admin { state, mut reloads, .. }, shutdown) = (admin(None), CancellationToken::new());
    let (address, serving) = served(state, shutdown.clone());
    let client = connected(address, "POST /api/reload").await;
    let reload = tokio::time::timeout(PATIENCE, reloads.recv()).await.unwrap().unwrap();
    drop(client);
    // One thread serves all connections, so the end of the first one has been seen by then.
    let mut other = connected(address, "GET /healthz").await;
    assert!(other.read(&mut [0; 64]).await.unwrap() > 0);
    shutdown.cancel();
    assert!(reload.send(Outcome::Refused { problems: Vec::new() }).is_ok(), "the outcome is awaited");
    tokio::time::timeout(PATIENCE, serving).await.unwrap().unwrap().unwrap();
    let is_logged = async {
        let log = || String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        while !log().contains("an action by hand") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, is_logged).await.expect("the action is logged");
}
