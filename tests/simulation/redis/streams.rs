//! Comparison of what both servers answer to bytes as they arrive: whole commands, and bytes that are none, after which a server
//! closes the connection.

use super::parity::{Stop, same};
use super::real::RealServer;
use super::{Commands, Input, Reply, Server};

/// Streams of bytes, each on a connection of its own. A `PING` at the end shows whether the connection is still open.
const STREAMS: &[&str] = &[
    "",
    "*1\r\n$4\r\nPING\r\n",
    "*2\r\n$4\r\nPING\r\n$1\r\nx\r\n*1\r\n$4\r\nPING\r\n",
    "*1\r\n$4\r\nPING\r\n*x\r\n*1\r\n$4\r\nPING\r\n",
    "*0\r\n",
    "*-1\r\n",
    "*+1\r\n$4\r\nPING\r\n",
    "*01\r\n$4\r\nPING\r\n",
    "*\r\n",
    "*2147483648\r\n",
    "*99999999999999999999\r\n",
    "*1\r\n:4\r\n",
    "*1\r\n\r\n",
    "*1\r\n$-1\r\n",
    "*1\r\n$x\r\n",
    "*1\r\n$536870913\r\n",
    "*1\r\n$3\r\nPING\r\n",
    "*1\r\n$4\r\nPINGxx",
    "*2\r\n$4\r\nPING\r\n*1\r\n",
    "PING\r\n",
    "PING\n",
    "\r\n",
    "  PING   x  \r\n",
    "nonsense of somebody\r\n",
    "$4\r\nPING\r\n",
];

/// Compares what both servers answer. Returns the number of streams.
pub(super) fn compare(server: &RealServer) -> Result<usize, Stop> {
    for stream in STREAMS {
        let bytes = [stream.as_bytes(), b"*1\r\n$4\r\nPING\r\n"].concat();
        let (own, closes) = answer(&bytes);
        let real = server.connect()?.exchange(&bytes, own.len(), closes)?;
        same(&format!("the stream {stream:?}, closed: {closes}"), &own, &real)?;
    }
    Ok(STREAMS.len())
}

/// Returns what a simulated server answers to a stream, in two pieces, and whether it closes the connection.
fn answer(bytes: &[u8]) -> (Vec<u8>, bool) {
    let (mut server, mut commands) = (Server::new("0".to_owned()), Commands::default());
    let mut answer = Vec::new();
    let mut closes = false;
    let (first, second) = bytes.split_at(bytes.len() / 2);
    for piece in [first, second] {
        commands.push(piece);
        for input in commands.by_ref() {
            let reply = match input {
                Input::Command(command) => server.execute(&command, 0).0,
                Input::Broken(why) => {
                    closes = true;
                    Reply::Error(why)
                }
            };
            reply.encode(&mut answer);
        }
    }
    (answer, closes)
}
