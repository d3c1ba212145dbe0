//! The history of a run: as text for people, and as one number, by which two runs are compared.

use std::hash::{DefaultHasher, Hash, Hasher};

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
        self.add(at, || {
            let name =
                command.first().map(|name| String::from_utf8_lossy(name).into_owned()).unwrap_or_default();
            let keys = command.get(3..).unwrap_or_default().iter().take_while(|part| part.contains(&b':'));
            let keys: Vec<_> = keys.map(|key| String::from_utf8_lossy(key)).collect();
            let start = &answer[..answer.len().min(60)];
            format!("server {host}: {name} {} -> {:?}", keys.join(" "), String::from_utf8_lossy(start))
        });
    }

    /// Returns the hash and the lines.
    pub fn finish(self) -> (u64, Vec<String>) {
        (self.hasher.finish(), self.lines.unwrap_or_default())
    }
}
