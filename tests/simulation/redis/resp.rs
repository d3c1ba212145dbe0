//! The protocol of Redis: commands as they arrive, replies as they leave.

use super::world::integer;

/// A reply of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// A short text such as `OK`.
    Status(String),
    /// An error, whose first word is its code.
    Error(String),
    /// A whole number.
    Int(i64),
    /// Bytes.
    Bulk(Vec<u8>),
    /// Nothing.
    Nil,
    /// Several replies.
    Array(Vec<Reply>),
}

impl Reply {
    /// Returns the status `OK`.
    pub(super) fn ok() -> Reply {
        Reply::Status("OK".into())
    }

    /// Returns an error.
    pub(super) fn error(text: impl Into<String>) -> Reply {
        Reply::Error(text.into())
    }

    /// Returns bytes.
    pub(super) fn bulk(text: impl AsRef<[u8]>) -> Reply {
        Reply::Bulk(text.as_ref().to_vec())
    }

    /// Appends the reply as RESP2.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Reply::Status(text) => line(out, b'+', text.as_bytes()),
            Reply::Error(text) => line(out, b'-', text.as_bytes()),
            Reply::Int(number) => line(out, b':', number.to_string().as_bytes()),
            Reply::Nil => out.extend_from_slice(b"$-1\r\n"),
            Reply::Bulk(bytes) => {
                line(out, b'$', bytes.len().to_string().as_bytes());
                out.extend_from_slice(bytes);
                out.extend_from_slice(b"\r\n");
            }
            Reply::Array(replies) => {
                line(out, b'*', replies.len().to_string().as_bytes());
                replies.iter().for_each(|reply| reply.encode(out));
            }
        }
    }
}

/// Appends a line; line breaks in it become spaces, as Redis does it.
fn line(out: &mut Vec<u8>, kind: u8, text: &[u8]) {
    out.push(kind);
    out.extend(text.iter().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte }));
    out.extend_from_slice(b"\r\n");
}

/// The requests that a server reads from a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// The words of a command.
    Command(Vec<Vec<u8>>),
    /// Bytes that are no command: the server answers with this error, and closes the connection.
    Broken(String),
}

/// The commands in a stream of bytes that arrives in pieces.
#[derive(Default)]
pub(crate) struct Commands {
    bytes: Vec<u8>,
    /// How many of the bytes belong to commands that were taken.
    taken: usize,
    /// True once bytes came that are no command: nothing is read after them.
    is_broken: bool,
}

/// The reason why no command can be read.
enum Gap {
    /// More bytes are needed.
    Incomplete,
    /// The bytes are no command, for a reason.
    Broken(String),
}

impl Gap {
    fn broken(why: &str) -> Gap {
        Gap::Broken(format!("ERR Protocol error: {why}"))
    }
}

impl Commands {
    /// Appends bytes that have arrived.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.taken > 0 {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    fn command(&self) -> Result<(Vec<Vec<u8>>, usize), Gap> {
        const ARGUMENTS_MAX: i64 = i32::MAX as i64;
        /// The longest bulk of Redis.
        const LENGTH_MAX: i64 = 512 << 20;
        let mut at = self.taken;
        let mut arguments = Vec::new();
        match self.bytes.get(at) {
            None => return Err(Gap::Incomplete),
            Some(b'*') => {}
            Some(_) => return self.words(),
        }
        let count = self.line(&mut at, "mbulk")?;
        let count = integer(&count[1..]).filter(|count| *count <= ARGUMENTS_MAX);
        for _ in 0..count.ok_or_else(|| Gap::broken("invalid multibulk length"))? {
            let line = self.line(&mut at, "bulk")?;
            // An empty line begins with its end.
            let kind = line.first().copied().unwrap_or(b'\r');
            if kind != b'$' {
                let kind = char::from(kind);
                return Err(Gap::broken(&format!("expected '$', got '{kind}'")));
            }
            let size = integer(&line[1..]).filter(|size| (0..=LENGTH_MAX).contains(size));
            let size = size.and_then(|size| usize::try_from(size).ok());
            let size = size.ok_or_else(|| Gap::broken("invalid bulk length"))?;
            let rest = self.bytes.get(at..).unwrap_or_default();
            // A server does not look at the two bytes behind.
            if rest.len() < size + 2 {
                return Err(Gap::Incomplete);
            }
            arguments.push(rest[..size].to_vec());
            at += size + 2;
        }
        Ok((arguments, at))
    }

    /// Reads a line that holds a kind and a length.
    fn line(&self, at: &mut usize, kind: &str) -> Result<&[u8], Gap> {
        let rest = self.bytes.get(*at..).unwrap_or_default();
        match rest.iter().position(|byte| *byte == b'\r') {
            None if rest.len() > LINE_MAX => Err(Gap::broken(&format!("too big {kind} count string"))),
            Some(end) if end + 1 < rest.len() => {
                *at += end + 2;
                Ok(&rest[..end])
            }
            _ => Err(Gap::Incomplete),
        }
    }

    /// Reads a line of words, as people type them. Quotes are words like others: weir sends no such line.
    fn words(&self) -> Result<(Vec<Vec<u8>>, usize), Gap> {
        let rest = self.bytes.get(self.taken..).unwrap_or_default();
        match rest.iter().position(|byte| *byte == b'\n') {
            None if rest.len() > LINE_MAX => Err(Gap::broken("too big inline request")),
            None => Err(Gap::Incomplete),
            Some(end) => {
                let words = rest[..end].split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
                Ok((words.map(<[u8]>::to_vec).collect(), self.taken + end + 1))
            }
        }
    }
}

/// The longest line of Redis.
const LINE_MAX: usize = 64 << 10;

impl Iterator for Commands {
    type Item = Input;

    /// Returns the next whole command, if it has arrived.
    fn next(&mut self) -> Option<Input> {
        while !self.is_broken {
            match self.command() {
                Ok((arguments, at)) => {
                    self.taken = at;
                    if !arguments.is_empty() {
                        return Some(Input::Command(arguments));
                    }
                }
                Err(Gap::Incomplete) => break,
                Err(Gap::Broken(why)) => {
                    self.is_broken = true;
                    return Some(Input::Broken(why));
                }
            }
        }
        None
    }
}
