//! The scanner of JSON documents, one byte after the other, without a copy of any.
//!
//! It keeps its place in those mappings and lists that lead to a number that is wanted, at most as many as a path has steps. Of all others it
//! counts the brackets.

use super::find;
use crate::config::model::JsonPath;

/// The most paths: the bits of [`Ways`].
const PATHS_MAX: usize = 16;
/// The most steps of a path.
const STEPS_MAX: usize = 16;
/// The longest number that is read.
const DIGITS_MAX: usize = 24;

/// The paths that lead through a place, one bit for each.
type Ways = u16;

/// The place in a sequence of documents, and the largest number at each of the paths.
pub(super) struct Scanner {
    paths: Vec<Path>,
    /// The largest number that is believed.
    max: u64,
    largest: [Option<u64>; PATHS_MAX],
    state: State,
    /// The mappings and lists around the place, from the outermost on.
    around: [Around; STEPS_MAX],
    depth: usize,
    /// The paths that lead to the next value.
    ahead: Ways,
    number: [u8; DIGITS_MAX],
    digits: usize,
}

struct Path {
    steps: Vec<Step>,
}

/// A step of a path: the name of a member, which may be the index of an element.
struct Step {
    name: Box<[u8]>,
    index: Option<u32>,
}

/// A mapping or a list.
#[derive(Clone, Copy, Default)]
struct Around {
    ways: Ways,
    /// The index of the next element of a list; `None` in a mapping.
    index: Option<u32>,
}

/// The place of the next byte.
#[derive(Clone, Copy)]
enum State {
    /// A value is to come, or the end of a list.
    Value,
    /// A name is to come, or the end of a mapping.
    Name,
    /// In a name, behind so many bytes; these paths are still possible.
    InName { length: usize, ways: Ways },
    /// Behind a name.
    Colon,
    /// Behind a value.
    Behind,
    /// In a number that is wanted.
    Number,
    /// In a word or a number that is not wanted.
    Word,
    /// In a text, perhaps behind a backslash; `opens` brackets around it are of values that are not wanted.
    Text { is_escaped: bool, opens: u32 },
    /// In a mapping or a list that is not wanted, with so many open brackets.
    Skipped { opens: u32 },
}

impl Scanner {
    /// Creates a scanner for up to [`PATHS_MAX`] paths, which believes numbers up to `max`.
    pub(super) fn new(paths: &[JsonPath], max: u64) -> Scanner {
        let path =
            |path: &JsonPath| Path { steps: path.steps().iter().map(|step| Step::new(step)).collect() };
        let paths: Vec<Path> = paths.iter().take(PATHS_MAX).map(path).collect();
        let mut scanner = Scanner {
            paths,
            max,
            largest: [None; PATHS_MAX],
            state: State::Value,
            around: [Around::default(); STEPS_MAX],
            depth: 0,
            ahead: 0,
            number: [0; DIGITS_MAX],
            digits: 0,
        };
        scanner.restart();
        scanner
    }

    /// Returns the largest number at each path.
    pub(super) fn largest(&self) -> &[Option<u64>] {
        &self.largest[..self.paths.len()]
    }

    /// Begins a new document, wherever the last one has ended.
    pub(super) fn restart(&mut self) {
        (self.state, self.depth) = (State::Value, 0);
        self.ahead = (0..self.paths.len()).fold(0, |ways, path| ways | 1 << path);
    }

    /// Looks at a further piece.
    pub(super) fn scan(&mut self, mut rest: &[u8]) {
        while !rest.is_empty() {
            rest = match self.state {
                State::Text { is_escaped, opens } => self.text(rest, is_escaped, opens),
                State::Skipped { opens } => self.skipped(rest, opens),
                State::InName { length, ways } => self.name(rest, length, ways),
                State::Word => self.word(rest),
                State::Number => self.number(rest),
                State::Value | State::Name | State::Colon | State::Behind => self.between(rest),
            };
        }
    }

    /// Steps over a text to its end.
    fn text<'a>(&mut self, bytes: &'a [u8], is_escaped: bool, opens: u32) -> &'a [u8] {
        match end_of_text(if is_escaped { &bytes[1..] } else { bytes }) {
            Ok(rest) if opens == 0 => {
                self.state = State::Behind;
                rest
            }
            Ok(rest) => self.skipped(rest, opens),
            Err(Open { is_escaped }) => {
                self.state = State::Text { is_escaped, opens };
                &[]
            }
        }
    }

    /// Steps over a mapping or a list to its end.
    fn skipped<'a>(&mut self, mut bytes: &'a [u8], mut opens: u32) -> &'a [u8] {
        while let Some(place) = find::bracket(bytes) {
            let byte = bytes[place];
            bytes = &bytes[place + 1..];
            match byte {
                b'"' => match end_of_text(bytes) {
                    Ok(rest) => bytes = rest,
                    Err(Open { is_escaped }) => {
                        self.state = State::Text { is_escaped, opens };
                        return &[];
                    }
                },
                b'{' | b'[' => opens = opens.saturating_add(1),
                _ => {
                    opens -= 1;
                    if opens == 0 {
                        self.ends_value();
                        return bytes;
                    }
                }
            }
        }
        self.state = State::Skipped { opens };
        &[]
    }

    /// Compares a name with the next steps of the paths. One that is written with a backslash is none that is wanted.
    fn name<'a>(&mut self, bytes: &'a [u8], mut length: usize, mut ways: Ways) -> &'a [u8] {
        let level = self.depth - 1;
        if length == 0
            && let Some(end) = find::quote(bytes)
            && bytes[end] == b'"'
        {
            // The whole name is there, as nearly always.
            self.ahead = self.of(ways, level, |step| *step.name == bytes[..end]);
            self.state = State::Colon;
            return &bytes[end + 1..];
        }
        for (place, byte) in bytes.iter().enumerate() {
            if ways == 0 {
                // The rest of it is a text, behind which a colon is a separator as any other.
                self.ahead = 0;
                return self.text(&bytes[place..], false, 0);
            }
            match byte {
                b'"' => {
                    let is_whole = |step: &Step| step.name.len() == length;
                    self.ahead = self.of(ways, level, is_whole);
                    self.state = State::Colon;
                    return &bytes[place + 1..];
                }
                b'\\' => {
                    self.ahead = 0;
                    self.state = State::Text { is_escaped: true, opens: 0 };
                    return &bytes[place + 1..];
                }
                byte => {
                    ways = self.of(ways, level, |step| step.name.get(length) == Some(byte));
                    length += 1;
                }
            }
        }
        self.state = State::InName { length, ways };
        &[]
    }

    /// Steps over a word to what is behind it.
    fn word<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let Some(end) = bytes.iter().position(|byte| is_border(*byte)) else { return &[] };
        self.ends_value();
        &bytes[end..]
    }

    /// Reads a number. Only what is behind it tells that it is whole.
    fn number<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        for (place, byte) in bytes.iter().enumerate() {
            if is_border(*byte) {
                self.found();
                self.ends_value();
                return &bytes[place..];
            }
            match self.number.get_mut(self.digits) {
                Some(digit) => (*digit, self.digits) = (*byte, self.digits + 1),
                None => {
                    self.state = State::Word;
                    return &bytes[place..];
                }
            }
        }
        &[]
    }

    /// Takes a number, if it is one that may be meant: whole and not negative.
    fn found(&mut self) {
        let text = self.number.get(..self.digits).and_then(|digits| std::str::from_utf8(digits).ok());
        let number = text.and_then(|text| text.parse::<u64>().ok()).filter(|number| *number <= self.max);
        let ways = self.of_length(self.depth);
        let wanted = self.largest.iter_mut().enumerate().filter(|(path, _)| ways & 1 << path != 0);
        wanted.for_each(|(_, largest)| *largest = (*largest).max(number));
    }

    /// Steps over what stands between names and values.
    fn between<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let (first, rest) = (bytes[0], &bytes[1..]);
        match (first, self.state) {
            (b' ' | b'\t' | b'\n' | b'\r', _) => {}
            (b'}' | b']', _) => self.closes(),
            (b',', _) => self.separates(),
            (b':', _) => self.state = State::Value,
            (b'"', State::Name) => {
                let ways = self.around.get(self.depth - 1).map_or(0, |around| around.ways);
                self.state = State::InName { length: 0, ways };
            }
            (b'"', _) => self.state = State::Text { is_escaped: false, opens: 0 },
            (b'{' | b'[', _) => self.opens(first == b'['),
            (b'0'..=b'9', State::Value) if self.of_length(self.depth) != 0 => {
                (self.state, self.digits) = (State::Number, 0);
                return bytes;
            }
            _ => {
                self.state = State::Word;
                return bytes.get(1..).unwrap_or_default();
            }
        }
        rest
    }

    /// Enters a mapping or a list if any path leads into it.
    fn opens(&mut self, is_list: bool) {
        let into = self.ahead & !self.of_length(self.depth);
        match self.around.get_mut(self.depth) {
            Some(around) if into != 0 => {
                *around = Around { ways: into, index: is_list.then_some(0) };
                self.depth += 1;
                if is_list {
                    self.next_element();
                } else {
                    self.state = State::Name;
                }
            }
            _ => self.state = State::Skipped { opens: 1 },
        }
    }

    /// Leaves a mapping or a list.
    fn closes(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        self.ends_value();
    }

    /// Goes on behind a value. Behind a whole document comes the next one.
    fn ends_value(&mut self) {
        (self.state, self.ahead) = (State::Behind, 0);
        if self.depth == 0 {
            self.restart();
        }
    }

    /// Goes on to the next member or element.
    fn separates(&mut self) {
        match self.depth.checked_sub(1).and_then(|level| self.around.get(level)) {
            None => self.restart(),
            Some(Around { index: None, .. }) => self.state = State::Name,
            Some(Around { index: Some(_), .. }) => self.next_element(),
        }
    }

    /// Counts an element of the innermost list, which is to come.
    fn next_element(&mut self) {
        self.state = State::Value;
        let level = self.depth - 1;
        let Some(Around { ways, index: Some(next) }) = self.around.get_mut(level) else { return };
        let (ways, index) = (*ways, *next);
        *next = next.saturating_add(1);
        self.ahead = self.of(ways, level, |step| step.index == Some(index));
    }

    /// Returns those of the paths whose step at a level is as wanted.
    fn of(&self, ways: Ways, level: usize, is_wanted: impl Fn(&Step) -> bool) -> Ways {
        let mut rest = ways;
        let mut wanted = 0;
        while rest != 0 {
            let path = rest.trailing_zeros();
            rest &= rest - 1;
            let step = self.paths.get(path as usize).and_then(|path| path.steps.get(level));
            wanted |= Ways::from(step.is_some_and(&is_wanted)) << path;
        }
        wanted
    }

    /// Returns those of the paths ahead that end behind so many steps.
    fn of_length(&self, length: usize) -> Ways {
        let is_whole = |(_, path): &(usize, &Path)| path.steps.len() == length;
        let whole =
            self.paths.iter().enumerate().filter(is_whole).fold(0, |ways, (path, _)| ways | 1 << path);
        self.ahead & whole
    }
}

/// A text without its end, perhaps behind a backslash.
struct Open {
    is_escaped: bool,
}

/// Returns what is behind the end of a text.
fn end_of_text(mut bytes: &[u8]) -> Result<&[u8], Open> {
    while let Some(place) = find::quote(bytes) {
        let (byte, rest) = (bytes[place], &bytes[place + 1..]);
        match rest {
            _ if byte == b'"' => return Ok(rest),
            [_, rest @ ..] => bytes = rest,
            [] => return Err(Open { is_escaped: true }),
        }
    }
    Err(Open { is_escaped: false })
}

impl Step {
    fn new(name: &str) -> Step {
        let is_index =
            name == "0" || (!name.starts_with('0') && name.bytes().all(|byte| byte.is_ascii_digit()));
        Step { name: name.as_bytes().into(), index: name.parse().ok().filter(|_| is_index) }
    }
}

/// Returns whether a byte ends a word or a number.
fn is_border(byte: u8) -> bool {
    matches!(byte, b',' | b'}' | b']' | b':' | b'"' | b'{' | b'[' | b' ' | b'\t' | b'\n' | b'\r')
}
