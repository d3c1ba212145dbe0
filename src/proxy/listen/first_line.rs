//! Recognizes clients of other protocols than HTTP by their first line. Answers nothing.

/// The first line of an HTTP/1 connection. A client whose line has the form `METHOD TARGET PROTOCOL` with another protocol would not
/// understand a response in HTTP.
pub(crate) struct FirstLine {
    words: usize,
    /// The beginning of the last word, and its length.
    beginning: [u8; HTTP.len()],
    length: usize,
    state: State,
}

/// The position in the line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Between,
    InWord,
    /// The line has ended.
    Over,
}

const HTTP: &[u8; 5] = b"HTTP/";

impl FirstLine {
    /// Creates the state before the first byte.
    pub(crate) fn new() -> FirstLine {
        FirstLine { words: 0, beginning: [0; HTTP.len()], length: 0, state: State::Between }
    }

    /// Takes bytes; returns whether they complete a line that names another protocol.
    pub(crate) fn names_another_protocol(&mut self, bytes: &[u8]) -> bool {
        let unread = if self.state == State::Over { &[] } else { bytes };
        for byte in unread {
            match byte {
                // Empty lines may come first (RFC 9112, 2.2).
                b'\n' if self.words > 0 => {
                    self.state = State::Over;
                    return self.words >= 3 && !(self.length >= HTTP.len() && self.beginning == *HTTP);
                }
                b'\r' | b'\n' | b' ' => self.state = State::Between,
                _ => self.take(*byte),
            }
        }
        false
    }

    fn take(&mut self, byte: u8) {
        if self.state == State::Between {
            self.state = State::InWord;
            self.words += 1;
            self.length = 0;
        }
        if let Some(own) = self.beginning.get_mut(self.length) {
            *own = byte;
        }
        self.length += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_line_of_another_protocol_is_found() {
        for (line, is_another) in [
            ("INVALID CONNECTION PREFACE\r\n\r\n", true),
            ("OPTIONS * RTSP/1.0\r\n", true),
            ("\r\n\r\nINVITE sip:a SIP/2.0\n", true),
            ("GET / XTTP/1.1\r\n", true),
            ("GET / HTTP\r\n", true),
            ("GET / HTTP/1.1\r\n", false),
            ("\r\nGET / HTTP/1.1\nA b C\n", false),
            ("GET / HTTP/1.1 \r\n", false),
            ("GET /a b HTTP/1.1\r\n", false),
            ("GET / HTTP/9\r\nOne two three\r\n", false),
            ("GET /\r\nOne two three\r\n", false),
            ("gibberish\r\n", false),
            ("no end to this line", false),
        ] {
            for size in [1, 3, 100] {
                let mut first = FirstLine::new();
                let found = line.as_bytes().chunks(size).any(|piece| first.names_another_protocol(piece));
                assert_eq!(found, is_another, "{line:?} in pieces of {size}");
            }
        }
    }
}
