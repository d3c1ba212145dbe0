//! The history of a run: as text for people, and as one number, by which two runs are compared.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde::Deserialize;

/// The most lines that are kept: the latest.
const LINES_MAX: usize = 200_000;

/// The history of a run.
pub struct History {
    hasher: DefaultHasher,
    lines: Option<Vec<String>>,
}

impl History {
    /// Begins a history, which keeps its lines or only its hash.
    pub fn new(keeps_lines: bool) -> History {
        History { hasher: DefaultHasher::new(), lines: keeps_lines.then(Vec::new) }
    }

    /// Adds a line, if lines are kept.
    pub fn add(&mut self, at: u64, line: impl FnOnce() -> String) {
        if let Some(lines) = self.lines.as_mut().filter(|lines| lines.len() < LINES_MAX) {
            lines.push(format!("{:>12.6} {}", at as f64 / 1e6, line()));
        }
    }

    /// Adds something to the hash.
    pub fn mark(&mut self, at: u64, what: &impl Hash) {
        (at, what).hash(&mut self.hasher);
    }

    /// Adds a command that a server has carried out, and its answer.
    pub fn carried(&mut self, at: u64, host: usize, connection: usize, command: &[Vec<u8>], answer: &[u8]) {
        (at, host, connection, command, answer).hash(&mut self.hasher);
        self.add(at, || format!("server {host}: {}", described(command, answer)));
    }

    /// Returns the hash and the lines.
    pub fn finish(self) -> (u64, Vec<String>) {
        (self.hasher.finish(), self.lines.unwrap_or_default())
    }
}

/// Returns a command and its answer as people read them: packed values are unpacked.
fn described(command: &[Vec<u8>], answer: &[u8]) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let name = command.first().map(|name| text(name)).unwrap_or_default();
    let count = command.get(2).and_then(|count| text(count).parse::<usize>().ok());
    let (keys, arguments) = match count {
        Some(count) if name.to_ascii_lowercase().starts_with("eval") => {
            let rest = command.get(3..).unwrap_or_default();
            rest.split_at(count.min(rest.len()))
        }
        _ => (command.get(1..).unwrap_or_default(), &[][..]),
    };
    let keys: Vec<_> = keys.iter().map(|key| text(key)).collect();
    let arguments: Vec<_> = arguments.iter().map(|argument| unpacked(argument)).collect();
    let bulk = answer.iter().position(|byte| *byte == b'\n').filter(|_| answer.starts_with(b"$"));
    let answer = match bulk {
        Some(end) => unpacked(answer[end + 1..].strip_suffix(b"\r\n").unwrap_or_default()),
        None => shortened(format!("{:?}", text(answer))),
    };
    format!("{name} {} {} -> {answer}", shortened(keys.join(" ")), arguments.join(" "))
}

/// Returns values that follow each other, unpacked; as text what is not packed.
fn unpacked(bytes: &[u8]) -> String {
    let mut reader = rmp_serde::Deserializer::new(std::io::Cursor::new(bytes));
    let mut values = Vec::new();
    while reader.position() < bytes.len() as u64 {
        match serde_json::Value::deserialize(&mut reader) {
            Ok(value) => values.push(value.to_string()),
            Err(_) => return shortened(format!("{:?}", String::from_utf8_lossy(bytes))),
        }
    }
    shortened(values.join(" "))
}

fn shortened(text: String) -> String {
    /// The most characters of a part of a line.
    const SHOWN_MAX: usize = 1000;
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
