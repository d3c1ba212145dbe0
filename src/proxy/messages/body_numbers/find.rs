//! Finds the next byte of a few kinds, eight bytes at a time.

const LOW: u64 = u64::from_ne_bytes([0x01; 8]);
const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);
/// The bit in which an opening bracket differs from an opening brace, and a closing one from a closing one.
const CASE: u8 = 0x20;

/// Returns the place of the next quotation mark or backslash.
pub(super) fn quote(bytes: &[u8]) -> Option<usize> {
    find(bytes, |word| equal(word, b'"') | equal(word, b'\\'), |byte| matches!(byte, b'"' | b'\\'))
}

/// Returns the place of the next quotation mark, brace or bracket.
pub(super) fn bracket(bytes: &[u8]) -> Option<usize> {
    let marks = |word| {
        let braces = word | u64::from_ne_bytes([CASE; 8]);
        equal(word, b'"') | equal(braces, b'{') | equal(braces, b'}')
    };
    find(bytes, marks, |byte| matches!(byte, b'"' | b'{' | b'}' | b'[' | b']'))
}

/// Returns the place of the next end of a line.
pub(in crate::proxy::messages) fn line_end(bytes: &[u8]) -> Option<usize> {
    find(bytes, |word| equal(word, b'\n') | equal(word, b'\r'), |byte| matches!(byte, b'\n' | b'\r'))
}

/// Marks the bytes of a word that equal one, in their highest bits. The first mark is right; one behind it may be wrong.
fn equal(word: u64, byte: u8) -> u64 {
    let differs = word ^ u64::from_ne_bytes([byte; 8]);
    differs.wrapping_sub(LOW) & !differs & HIGH
}

/// Returns the place of the first byte that `is_it`; `marks` marks those of a word as [`equal`] does.
fn find(bytes: &[u8], marks: impl Fn(u64) -> u64, is_it: impl Fn(u8) -> bool) -> Option<usize> {
    let (words, rest) = bytes.as_chunks::<8>();
    for (number, word) in words.iter().enumerate() {
        let marks = marks(u64::from_le_bytes(*word));
        if marks != 0 {
            return Some(number * 8 + marks.trailing_zeros() as usize / 8);
        }
    }
    rest.iter().position(|byte| is_it(*byte)).map(|place| words.len() * 8 + place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_is_found_at_each_place() {
        type Find = fn(&[u8]) -> Option<usize>;
        for (find, found) in [(quote as Find, &b"\"\\"[..]), (bracket, b"\"{}[]"), (line_end, b"\r\n")] {
            for length in 0..20 {
                for byte in 0..=u8::MAX {
                    let mut bytes = vec![b'a'; length];
                    assert_eq!(find(&bytes), None);
                    for place in 0..length {
                        bytes[place] = byte;
                        assert_eq!(
                            find(&bytes),
                            found.contains(&byte).then_some(place),
                            "{byte} of {length}"
                        );
                        bytes[place] = b'a';
                    }
                }
            }
            // A mark behind the first one may be wrong.
            let bytes: Vec<u8> = (0..=u8::MAX).chain((0..=u8::MAX).rev()).collect();
            for from in 0..bytes.len() {
                let expected = bytes[from..].iter().position(|byte| found.contains(byte));
                assert_eq!(find(&bytes[from..]), expected, "from {from}");
            }
        }
    }
}
