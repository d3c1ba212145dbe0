//! `cmsgpack` as Redis has it: Lua values as MessagePack and back.

use mlua::{Error, Lua, LuaString, MultiValue, Result, Table, Value};

/// The deepest nesting of tables; deeper ones become nothing.
const NESTING_MAX: usize = 16;

/// Returns `cmsgpack.pack` and `cmsgpack.unpack`.
pub(super) fn library(lua: &Lua) -> Result<Table> {
    let library = lua.create_table()?;
    library
        .raw_set("pack", lua.create_function(|lua, values: MultiValue| lua.create_string(pack(&values)?))?)?;
    library.raw_set("unpack", lua.create_function(|lua, text: LuaString| unpack(lua, &text.as_bytes()))?)?;
    Ok(library)
}

fn pack(values: &MultiValue) -> Result<Vec<u8>> {
    if values.is_empty() {
        return Err(Error::runtime("bad argument #0 to 'pack' (MessagePack pack needs input.)"));
    }
    let mut out = Vec::with_capacity(512);
    for value in values {
        put(&mut out, value, 0)?;
    }
    Ok(out)
}

fn put(out: &mut Vec<u8>, value: &Value, level: usize) -> Result<()> {
    match value {
        Value::Integer(number) => put_integer(out, *number),
        Value::Number(number) => put_number(out, *number),
        Value::String(text) => put_text(out, &text.as_bytes()),
        Value::Boolean(is_true) => out.push(if *is_true { 0xc3 } else { 0xc2 }),
        Value::Table(table) if level < NESTING_MAX => put_table(out, table, level)?,
        _ => out.push(0xc0),
    }
    Ok(())
}

fn put_integer(out: &mut Vec<u8>, number: i64) {
    let bytes = number.to_be_bytes();
    let (mark, size) = match number {
        -32..=127 => return out.push(bytes[7]),
        0x80..=0xff => (0xcc, 1),
        0x100..=0xffff => (0xcd, 2),
        0x1_0000..=0xffff_ffff => (0xce, 4),
        0x1_0000_0000.. => (0xcf, 8),
        -0x80..=-33 => (0xd0, 1),
        -0x8000..=-0x81 => (0xd1, 2),
        -0x8000_0000..=-0x8001 => (0xd2, 4),
        _ => (0xd3, 8),
    };
    out.push(mark);
    out.extend_from_slice(&bytes[8 - size..]);
}

#[allow(clippy::cast_possible_truncation, reason = "compared with what it was")]
fn put_number(out: &mut Vec<u8>, number: f64) {
    /// The first number that is too large.
    const INTEGER_END: f64 = 9_223_372_036_854_775_808.0;
    #[allow(clippy::cast_precision_loss, reason = "compared with what it was")]
    if (-INTEGER_END..INTEGER_END).contains(&number) && number as i64 as f64 == number {
        put_integer(out, number as i64);
    } else if f64::from(number as f32) == number {
        out.push(0xca);
        out.extend_from_slice(&(number as f32).to_be_bytes());
    } else {
        out.push(0xcb);
        out.extend_from_slice(&number.to_be_bytes());
    }
}

/// Writes a mark and a length in as few bytes as it needs: `fix` with the length in it up to `fix_max`, or a mark and 1, 2 or 4 bytes.
fn put_length(
    out: &mut Vec<u8>,
    length: usize,
    (fix, fix_max): (u8, usize),
    [one, two, four]: [Option<u8>; 3],
) {
    let bytes = (length as u64).to_be_bytes();
    let (mark, size) = match (length, one, two, four) {
        (length, ..) if length <= fix_max => return out.push(fix | bytes[7]),
        (0..=0xff, Some(mark), ..) => (mark, 1),
        (0..=0xffff, _, Some(mark), _) => (mark, 2),
        (.., mark) => (mark.unwrap_or_default(), 4),
    };
    out.push(mark);
    out.extend_from_slice(&bytes[8 - size..]);
}

fn put_array(out: &mut Vec<u8>, length: usize) {
    put_length(out, length, (0x90, 15), [None, Some(0xdc), Some(0xdd)]);
}

fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    put_length(out, text.len(), (0xa0, 31), [Some(0xd9), Some(0xda), Some(0xdb)]);
    out.extend_from_slice(text);
}

/// Writes a table: in one go where its keys come as 1, 2, 3 ..., as nearly always.
fn put_table(out: &mut Vec<u8>, table: &Table, level: usize) -> Result<()> {
    let (start, length) = (out.len(), table.raw_len());
    put_array(out, length);
    let (mut expected, mut is_in_order) = (1, true);
    table.for_each(|key: Value, value: Value| {
        is_in_order = is_in_order && matches!(key, Value::Integer(index) if index == expected);
        expected += 1;
        if is_in_order { put(out, &value, level + 1) } else { Ok(()) }
    })?;
    if is_in_order && usize::try_from(expected - 1) == Ok(length) {
        return Ok(());
    }
    out.truncate(start);
    put_unordered(out, table, level)
}

/// Writes a table whose keys come in any order: an array if they are 1 to their number, else a map.
fn put_unordered(out: &mut Vec<u8>, table: &Table, level: usize) -> Result<()> {
    let (mut count, mut max, mut are_indexes) = (0_i64, 0, true);
    table.for_each(|key: Value, _: Value| {
        match key {
            Value::Integer(index) if index > 0 => max = max.max(index),
            _ => are_indexes = false,
        }
        count += 1;
        Ok(())
    })?;
    let length = usize::try_from(count).unwrap_or_default();
    if are_indexes && max == count {
        put_array(out, length);
        return (1..=count).try_for_each(|index| put(out, &table.raw_get(index)?, level + 1));
    }
    put_length(out, length, (0x80, 15), [None, Some(0xde), Some(0xdf)]);
    table.for_each(|key: Value, value: Value| {
        put(out, &key, level + 1)?;
        put(out, &value, level + 1)
    })
}

/// Returns all values of a text, one after the other.
fn unpack(lua: &Lua, text: &[u8]) -> Result<MultiValue> {
    let mut cursor = Cursor { lua, rest: text };
    let mut values = Vec::with_capacity(16);
    while !cursor.rest.is_empty() {
        values.push(cursor.value()?);
    }
    Ok(MultiValue::from_vec(values))
}

/// The bytes that are left to be read.
struct Cursor<'a> {
    lua: &'a Lua,
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) =
            self.rest.split_at_checked(count).ok_or_else(|| Error::runtime("Missing bytes in input."))?;
        self.rest = rest;
        Ok(taken)
    }

    /// Reads so many bytes as a number without a sign, eight at most.
    fn unsigned(&mut self, size: usize) -> Result<u64> {
        Ok(self.take(size)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn length(&mut self, size: usize) -> Result<usize> {
        Ok(usize::try_from(self.unsigned(size)?).unwrap_or(usize::MAX))
    }

    /// Reads so many bytes as a number with a sign.
    fn signed(&mut self, size: usize) -> Result<Value> {
        let unused = 64 - 8 * u32::try_from(size).unwrap_or_default();
        Ok(Value::Integer((self.unsigned(size)?.cast_signed() << unused) >> unused))
    }

    #[allow(clippy::cast_possible_truncation, reason = "the mark is a byte, and four bytes are a float")]
    fn value(&mut self) -> Result<Value> {
        let mark = self.unsigned(1)? as u8;
        match mark {
            0..=0x7f => Ok(Value::Integer(i64::from(mark))),
            0x80..=0x8f => self.map(usize::from(mark & 0xf)),
            0x90..=0x9f => self.array(usize::from(mark & 0xf)),
            0xa0..=0xbf => self.text(usize::from(mark & 0x1f)),
            0xc0 => Ok(Value::Nil),
            0xc2 | 0xc3 => Ok(Value::Boolean(mark == 0xc3)),
            0xca => Ok(Value::Number(f64::from(f32::from_bits(self.unsigned(4)? as u32)))),
            0xcb => Ok(Value::Number(f64::from_bits(self.unsigned(8)?))),
            0xcc..=0xcf => Ok(Value::Integer(self.unsigned(1 << (mark - 0xcc))?.cast_signed())),
            0xd0..=0xd3 => self.signed(1 << (mark - 0xd0)),
            0xd9..=0xdb => self.length(1 << (mark - 0xd9)).and_then(|length| self.text(length)),
            0xdc | 0xdd => self.length(2 << (mark - 0xdc)).and_then(|length| self.array(length)),
            0xde | 0xdf => self.length(2 << (mark - 0xde)).and_then(|length| self.map(length)),
            0xe0..=0xff => Ok(Value::Integer(i64::from(mark.cast_signed()))),
            _ => Err(Error::runtime("Bad data format in input.")),
        }
    }

    fn text(&mut self, length: usize) -> Result<Value> {
        let text = self.take(length)?;
        self.lua.create_string(text).map(Value::String)
    }

    fn array(&mut self, length: usize) -> Result<Value> {
        let (lua, mut failed) = (self.lua, None);
        let table = lua.create_sequence_from(Elements { cursor: self, left: length, failed: &mut failed })?;
        failed.map_or(Ok(Value::Table(table)), Err)
    }

    fn map(&mut self, length: usize) -> Result<Value> {
        let table = self.lua.create_table()?;
        for _ in 0..length {
            let (key, value) = (self.value()?, self.value()?);
            table.raw_set(key, value)?;
        }
        Ok(Value::Table(table))
    }
}

/// The elements of an array, read as they are asked for; ends early where reading fails.
struct Elements<'c, 'a> {
    cursor: &'c mut Cursor<'a>,
    left: usize,
    failed: &'c mut Option<Error>,
}

impl Iterator for Elements<'_, '_> {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        self.left = self.left.checked_sub(1)?;
        self.cursor.value().map_err(|error| *self.failed = Some(error)).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left.min(self.cursor.rest.len()), Some(self.left))
    }
}
