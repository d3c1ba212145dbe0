//! The packed arguments and answers of weir's scripts, as `src/redis/arguments.rs` writes and `answers.rs` reads them.

/// The arguments of a script: MessagePack values one after the other.
#[derive(Default)]
pub(super) struct Packed(pub(super) Vec<u8>);

impl Packed {
    fn marked(&mut self, mark: u8, number: u64, size: usize) {
        self.0.push(mark);
        self.0.extend_from_slice(&number.to_be_bytes()[8 - size..]);
    }

    pub(super) fn int(mut self, number: u64) -> Packed {
        match number {
            0..=0x7f => self.0.push(number.to_be_bytes()[7]),
            0x80..=0xff => self.marked(0xcc, number, 1),
            0x100..=0xffff => self.marked(0xcd, number, 2),
            0x1_0000..=0xffff_ffff => self.marked(0xce, number, 4),
            _ => self.marked(0xcf, number, 8),
        }
        self
    }

    pub(super) fn signed(mut self, number: i64) -> Packed {
        let bits = number.cast_unsigned();
        match number {
            0.. => return self.int(bits),
            -32..0 => self.0.push(bits.to_be_bytes()[7]),
            -0x80..-32 => self.marked(0xd0, bits, 1),
            -0x8000..-0x80 => self.marked(0xd1, bits, 2),
            -0x8000_0000..-0x8000 => self.marked(0xd2, bits, 4),
            _ => self.marked(0xd3, bits, 8),
        }
        self
    }

    pub(super) fn flag(mut self, is_true: bool) -> Packed {
        self.0.push(if is_true { 0xc3 } else { 0xc2 });
        self
    }

    pub(super) fn text(mut self, text: &str) -> Packed {
        let length = text.len() as u64;
        match length {
            0..32 => self.0.push(0xa0 | length.to_be_bytes()[7]),
            32..=0xff => self.marked(0xd9, length, 1),
            _ => self.marked(0xda, length, 2),
        }
        self.0.extend_from_slice(text.as_bytes());
        self
    }

    /// Begins a list of so many values, which follow.
    pub(super) fn list(mut self, length: usize) -> Packed {
        let length = length as u64;
        match length {
            0..16 => self.0.push(0x90 | length.to_be_bytes()[7]),
            _ => self.marked(0xdc, length, 2),
        }
        self
    }

    pub(super) fn ints(self, numbers: &[u64]) -> Packed {
        numbers.iter().fold(self.list(numbers.len()), |packed, number| packed.int(*number))
    }
}

/// A value of an answer.
#[derive(Debug)]
pub(super) enum Node {
    Int(u64),
    List(Vec<Node>),
    /// Anything that the generator of calls does not look at.
    Other,
}

impl Node {
    /// Reads a value and moves on behind it.
    pub(super) fn read(bytes: &mut &[u8]) -> Option<Node> {
        let (mark, rest) = bytes.split_first()?;
        *bytes = rest;
        let mut number = |size| {
            let (taken, rest) = bytes.split_at_checked(size)?;
            *bytes = rest;
            Some(taken.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
        };
        let (length, is_list) = match mark {
            0..=0x7f => return Some(Node::Int(u64::from(*mark))),
            0xcc..=0xcf => return number(1 << (mark - 0xcc)).map(Node::Int),
            0xca => (4, false),
            0xcb => (8, false),
            0x90..=0x9f => (u64::from(mark & 0xf), true),
            0xdc => (number(2)?, true),
            0xa0..=0xbf => (u64::from(mark & 0x1f), false),
            0xd9..=0xdb => (number(1 << (mark - 0xd9))?, false),
            _ => (0, false),
        };
        if is_list {
            return (0..length).map(|_| Node::read(bytes)).collect::<Option<_>>().map(Node::List);
        }
        *bytes = bytes.get(usize::try_from(length).ok()?..)?;
        Some(Node::Other)
    }

    pub(super) fn list(&self) -> &[Node] {
        if let Node::List(nodes) = self { nodes } else { &[] }
    }

    /// Returns a number of a list; zero where there is none.
    pub(super) fn int_at(&self, index: usize) -> u64 {
        if let Some(Node::Int(number)) = self.list().get(index) { *number } else { 0 }
    }

    /// Returns a value of a list.
    pub(super) fn at(&self, index: usize) -> &Node {
        self.list().get(index).unwrap_or(&Node::Other)
    }
}
