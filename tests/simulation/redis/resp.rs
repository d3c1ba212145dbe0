//! The protocol of Redis: commands as they arrive, replies as they leave.

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

/// The commands in a stream of bytes that arrives in pieces.
#[derive(Default)]
pub(crate) struct Commands {
    bytes: Vec<u8>,
    /// How many of the bytes belong to commands that were taken.
    taken: usize,
    /// True once bytes came that are no command.
    is_broken: bool,
}

/// The reason why no command can be read.
enum Gap {
    /// More bytes are needed.
    Incomplete,
    /// The bytes are no command.
    Broken,
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
        let mut at = self.taken;
        let mut arguments = Vec::new();
        for _ in 0..self.length(b'*', &mut at)? {
            let size = self.length(b'$', &mut at)?;
            let rest = self.bytes.get(at..).unwrap_or_default();
            arguments.push(rest.get(..size).ok_or(Gap::Incomplete)?.to_vec());
            match rest.get(size..size + 2) {
                Some(b"\r\n") => at += size + 2,
                Some(_) => return Err(Gap::Broken),
                None => return Err(Gap::Incomplete),
            }
        }
        Ok((arguments, at))
    }

    /// Reads a line that holds a kind and a length.
    fn length(&self, kind: u8, at: &mut usize) -> Result<usize, Gap> {
        /// The longest bulk of Redis, and more than any length has digits.
        const LENGTH_MAX: usize = 512 << 20;
        const DIGITS_MAX: usize = 16;
        let rest = self.bytes.get(*at..).unwrap_or_default();
        let Some(end) = rest.iter().take(DIGITS_MAX).position(|byte| *byte == b'\r') else {
            return Err(if rest.len() < DIGITS_MAX { Gap::Incomplete } else { Gap::Broken });
        };
        let digits = rest.get(1..end).and_then(|digits| std::str::from_utf8(digits).ok());
        let length = digits.and_then(|digits| digits.parse().ok()).filter(|length| *length <= LENGTH_MAX);
        match (rest.get(end + 1), length) {
            (None, _) => Err(Gap::Incomplete),
            (Some(b'\n'), Some(length)) if rest.first() == Some(&kind) => {
                *at += end + 2;
                Ok(length)
            }
            _ => Err(Gap::Broken),
        }
    }
}

impl Iterator for Commands {
    type Item = Vec<Vec<u8>>;

    /// Returns the next whole command, if it has arrived.
    fn next(&mut self) -> Option<Vec<Vec<u8>>> {
        while !self.is_broken {
            match self.command() {
                Ok((arguments, at)) => {
                    self.taken = at;
                    if !arguments.is_empty() {
                        return Some(arguments);
                    }
                }
                Err(Gap::Incomplete) => break,
                Err(Gap::Broken) => self.is_broken = true,
            }
        }
        None
    }
}
