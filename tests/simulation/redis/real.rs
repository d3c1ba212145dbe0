//! A real Redis server on a free port, in a directory of its own, without persistence.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::redis::Reply;

/// The names under which it is installed.
const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];

/// How long it may take to start.
const START_MAX: Duration = Duration::from_secs(20);

/// A running server. It is killed when it is dropped.
pub(super) struct RealServer {
    child: Child,
    port: u16,
    _directory: TempDir,
}

impl RealServer {
    /// Starts a server, and waits until it answers.
    pub(super) fn start() -> Result<RealServer, String> {
        let text = |error: std::io::Error| error.to_string();
        let directory = tempfile::tempdir().map_err(text)?;
        let port =
            TcpListener::bind(("127.0.0.1", 0)).and_then(|free| free.local_addr()).map_err(text)?.port();
        let start = |program| {
            Command::new(program)
                .args([
                    "--port",
                    &port.to_string(),
                    "--bind",
                    "127.0.0.1",
                    "--save",
                    "",
                    "--appendonly",
                    "no",
                ])
                .arg("--dir")
                .arg(directory.path())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
        };
        let child = PROGRAMS.into_iter().find_map(|program| start(program).ok());
        let child = child.ok_or("no redis-server on the PATH: scripts/test installs it")?;
        let server = RealServer { child, port, _directory: directory };
        let began = Instant::now();
        while server.connect().and_then(|mut client| client.ask(&[b"PING"])).is_err() {
            if began.elapsed() > START_MAX {
                return Err(format!("redis-server did not start on port {port}"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// Connects to the server.
    pub(super) fn connect(&self) -> std::io::Result<Client> {
        let stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_nodelay(true)?;
        Ok(Client { stream: BufReader::new(stream) })
    }
}

impl Drop for RealServer {
    fn drop(&mut self) {
        // It has nothing to save, and may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection to a real server.
pub(super) struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    /// Sends a command. Returns the bytes of its reply.
    pub(super) fn ask(&mut self, words: &[&[u8]]) -> std::io::Result<Vec<u8>> {
        let mut command = Vec::new();
        Reply::Array(words.iter().map(Reply::bulk).collect()).encode(&mut command);
        self.stream.get_mut().write_all(&command)?;
        self.reply()
    }

    /// Sends bytes. Returns what comes: as many bytes, or all until the server closes the connection.
    pub(super) fn exchange(mut self, bytes: &[u8], count: usize, closes: bool) -> std::io::Result<Vec<u8>> {
        let stream = self.stream.get_mut();
        stream.set_read_timeout(Some(START_MAX))?;
        stream.write_all(bytes)?;
        let mut answer = Vec::new();
        if !closes {
            // Too few of them are a difference.
            let _ = self.stream.take(count as u64).read_to_end(&mut answer);
        } else if self.stream.read_to_end(&mut answer).is_err() {
            answer.extend_from_slice(b" and stays open");
        }
        Ok(answer)
    }

    /// Returns the bytes of the next reply.
    pub(super) fn reply(&mut self) -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut left = 1_usize;
        while left > 0 {
            left -= 1;
            let start = bytes.len();
            if self.stream.read_until(b'\n', &mut bytes)? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            let line = String::from_utf8_lossy(&bytes[start..]).into_owned();
            let length =
                line.get(1..).and_then(|length| length.trim_end().parse::<usize>().ok()).unwrap_or(0);
            match line.as_bytes().first() {
                Some(b'*') => left += length,
                Some(b'$') if !line.starts_with("$-") => {
                    let start = bytes.len();
                    bytes.resize(start + length + 2, 0);
                    self.stream.read_exact(&mut bytes[start..])?;
                }
                _ => {}
            }
        }
        Ok(bytes)
    }
}
