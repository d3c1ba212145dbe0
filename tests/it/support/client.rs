//! A light HTTP/1.1 client, written for these tests: independent of the tested HTTP code, and a few hundred bytes for a
//! waiting request. Dropping it closes the socket.

use std::io::{Error, ErrorKind, Result};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_util::task::AbortOnDropHandle;

use super::raise_open_files;

/// The longest time for an answer in any test.
const ANSWER_DEADLINE: Duration = Duration::from_secs(90);

/// A request to be sent: method, target, headers and body.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    /// Returns a GET of a path, written as given.
    pub(crate) fn get(target: &str) -> Request {
        Request { method: "GET".into(), target: target.into(), headers: Vec::new(), body: Vec::new() }
    }

    /// Returns a POST with a body.
    pub(crate) fn post(target: &str, body: &[u8]) -> Request {
        Request { method: "POST".into(), body: body.to_vec(), ..Request::get(target) }
    }

    pub(crate) fn method(mut self, method: &str) -> Request {
        self.method = method.into();
        self
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Request {
        self.headers.push((name.into(), value.into()));
        self
    }

    fn encode(&self, host: &str) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\nhost: {host}\r\n", self.method, self.target);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !self.body.is_empty() || self.method == "POST" {
            head.push_str(&format!("content-length: {}\r\n", self.body.len()));
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

/// A response, with its instants.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The headers in order; names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// The instant at which the request had been written.
    pub(crate) sent: Instant,
    /// The instant at which the whole answer had been read.
    pub(crate) done: Instant,
}

impl Answer {
    /// Returns the first header with this name (lower case).
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the body as JSON; panics on other bodies.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("not JSON ({error}): {}", self.text()))
    }

    /// Returns `retry_after_ms` of a refusal; panics on other answers.
    pub(crate) fn retry_after(&self) -> Duration {
        assert_eq!(self.status, 429, "{}", self.text());
        let told = self.json()["retry_after_ms"].as_u64();
        Duration::from_millis(told.expect("retry_after_ms is a whole number"))
    }

    /// Returns `weir-error`, which weir's own answers have.
    pub(crate) fn weir_error(&self) -> Option<&str> {
        self.header("weir-error")
    }
}

/// A socket in the clear or inside TLS.
enum Wire {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A connection. Dropping it closes the socket.
pub(crate) struct Connection {
    stream: Wire,
    host: String,
    /// Bytes that have been read, but not parsed.
    buffer: Vec<u8>,
    sent: Instant,
}

impl Connection {
    /// Connects to `host:port`.
    pub(crate) async fn open(host: &str) -> Result<Connection> {
        raise_open_files();
        let stream = TcpStream::connect(host).await?;
        stream.set_nodelay(true)?;
        Ok(Connection::of(Wire::Plain(stream), host))
    }

    /// Continues with a connection after its TLS handshake.
    pub(crate) fn over(stream: TlsStream<TcpStream>, host: &str) -> Connection {
        Connection::of(Wire::Tls(Box::new(stream)), host)
    }

    fn of(stream: Wire, host: &str) -> Connection {
        Connection { stream, host: host.into(), buffer: Vec::new(), sent: Instant::now() }
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match &mut self.stream {
            Wire::Plain(stream) => stream.write_all(bytes).await,
            Wire::Tls(stream) => {
                stream.write_all(bytes).await?;
                stream.flush().await
            }
        }
    }

    /// Writes the request; returns the instant at which it was written.
    pub(crate) async fn send(&mut self, request: &Request) -> Result<Instant> {
        self.write(&request.encode(&self.host)).await?;
        self.sent = Instant::now();
        Ok(self.sent)
    }

    /// Writes bytes unchanged.
    pub(crate) async fn send_raw(&mut self, bytes: &[u8]) -> Result<()> {
        self.write(bytes).await?;
        self.sent = Instant::now();
        Ok(())
    }

    /// Writes the request and reads its answer; panics when there is none.
    pub(crate) async fn ask(&mut self, request: &Request) -> Answer {
        let answered = match self.send(request).await {
            Ok(_) => self.answer().await,
            Err(error) => Err(error),
        };
        answered.unwrap_or_else(|error| panic!("no answer: {error}"))
    }

    /// Sends the request `count` times, one after the other; returns the statuses in order.
    pub(crate) async fn statuses(&mut self, request: &Request, count: usize) -> Vec<u16> {
        let mut statuses = Vec::with_capacity(count);
        for _ in 0..count {
            statuses.push(self.ask(request).await.status);
        }
        statuses
    }

    /// Reads one answer; interim (1xx) answers are passed over.
    pub(crate) async fn answer(&mut self) -> Result<Answer> {
        tokio::time::timeout(ANSWER_DEADLINE, self.read_answer())
            .await
            .map_err(|_| Error::new(ErrorKind::TimedOut, "no answer"))?
    }

    async fn read_answer(&mut self) -> Result<Answer> {
        loop {
            let (status, headers) = self.read_head().await?;
            if (100..200).contains(&status) {
                continue;
            }
            let body = self.read_body(status, &headers).await?;
            return Ok(Answer { status, headers, body, sent: self.sent, done: Instant::now() });
        }
    }

    async fn read_head(&mut self) -> Result<(u16, Vec<(String, String)>)> {
        let end = loop {
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                break end;
            }
            self.fill().await?;
        };
        let head: Vec<u8> = self.buffer.drain(..end + 4).collect();
        parse_head(&head[..end]).ok_or_else(|| {
            Error::new(ErrorKind::InvalidData, format!("not HTTP: {}", String::from_utf8_lossy(&head)))
        })
    }

    async fn read_body(&mut self, status: u16, headers: &[(String, String)]) -> Result<Vec<u8>> {
        let value = |name| headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str());
        if status == 204 || status == 304 {
            return Ok(Vec::new());
        }
        if value("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) {
            return self.read_chunks().await;
        }
        if let Some(length) = value("content-length") {
            let length = length.parse().map_err(|_| Error::new(ErrorKind::InvalidData, "content-length"))?;
            return self.take(length).await;
        }
        while self.fill().await.is_ok() {}
        Ok(std::mem::take(&mut self.buffer))
    }

    async fn read_chunks(&mut self) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = self.take_line().await?;
            let size = line.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(size, 16)
                .map_err(|_| Error::new(ErrorKind::InvalidData, format!("chunk size {line:?}")))?;
            if size == 0 {
                while !self.take_line().await?.is_empty() {}
                return Ok(body);
            }
            body.extend(self.take(size).await?);
            self.take_line().await?;
        }
    }

    async fn take_line(&mut self) -> Result<String> {
        let end = loop {
            if let Some(end) = find(&self.buffer, b"\r\n") {
                break end;
            }
            self.fill().await?;
        };
        let line = self.take(end + 2).await?;
        Ok(String::from_utf8_lossy(&line[..end]).into_owned())
    }

    async fn take(&mut self, count: usize) -> Result<Vec<u8>> {
        while self.buffer.len() < count {
            self.fill().await?;
        }
        Ok(self.buffer.drain(..count).collect())
    }

    /// Reads at least one byte more. Waits without a buffer, so that a thousand waiting connections are small.
    async fn fill(&mut self) -> Result<()> {
        let read = match &mut self.stream {
            Wire::Plain(stream) => {
                stream.readable().await?;
                stream.read_buf(&mut self.buffer).await?
            }
            Wire::Tls(stream) => stream.read_buf(&mut self.buffer).await?,
        };
        if read == 0 {
            return Err(Error::new(ErrorKind::UnexpectedEof, "closed by the server"));
        }
        Ok(())
    }
}

/// Sends one request on a connection of its own. `url` is `http://host:port/target`.
pub(crate) async fn send(url: &str, request: Request) -> Result<Answer> {
    let (host, _) = split(url);
    let mut connection = Connection::open(host).await?;
    connection.send(&request).await?;
    connection.answer().await
}

/// Gets `http://host:port/target`.
pub(crate) async fn get(url: &str) -> Result<Answer> {
    send(url, Request::get(split(url).1)).await
}

/// A request under way. Dropping it closes its connection.
pub(crate) struct Pending(AbortOnDropHandle<Result<Answer>>);

impl Pending {
    /// Begins a GET of `http://host:port/target`.
    pub(crate) fn get(url: &str) -> Pending {
        Pending::send(url, Request::get(split(url).1))
    }

    /// Begins to send a request to the host of `url`.
    pub(crate) fn send(url: &str, request: Request) -> Pending {
        let url = url.to_owned();
        Pending(AbortOnDropHandle::new(tokio::spawn(async move { send(&url, request).await })))
    }

    /// Continues with a connection on which a request has been written.
    pub(crate) fn on(mut connection: Connection) -> Pending {
        Pending(AbortOnDropHandle::new(tokio::spawn(async move { connection.answer().await })))
    }

    /// Waits for the answer; returns an error if there is none.
    pub(crate) async fn outcome(self) -> Result<Answer> {
        self.0.await.unwrap_or_else(|error| Err(Error::other(error)))
    }

    /// Waits for the answer; panics if there is none.
    pub(crate) async fn answer(self) -> Answer {
        self.outcome().await.unwrap_or_else(|error| panic!("no answer: {error}"))
    }
}

/// Waits for all answers; returns them in order.
pub(crate) async fn answers(pending: Vec<Pending>) -> Vec<Answer> {
    let mut answers = Vec::with_capacity(pending.len());
    for one in pending {
        answers.push(one.answer().await);
    }
    answers
}

/// Panics unless all requests went upstream and came back.
#[track_caller]
pub(crate) fn assert_all_ok(answers: &[Answer]) {
    for answer in answers {
        assert_eq!(answer.status, 200, "{:?} {}", answer.headers, answer.text());
    }
}

/// Splits `http://host:port/target` into host with port, and target.
fn split(url: &str) -> (&str, &str) {
    let rest = url.strip_prefix("http://").expect("the test client speaks plain HTTP");
    rest.find('/').map_or((rest, "/"), |slash| rest.split_at(slash))
}

fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    bytes.windows(pattern.len()).position(|window| window == pattern)
}

fn parse_head(head: &[u8]) -> Option<(u16, Vec<(String, String)>)> {
    let head = std::str::from_utf8(head).ok()?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    let headers = lines
        .map(|line| line.split_once(':').map(|(name, value)| (name.to_lowercase(), value.trim().to_owned())))
        .collect::<Option<Vec<_>>>()?;
    Some((status, headers))
}
