//! Decoding as careless servers do it: `%uXXXX`, and UTF-8 in which a character takes more bytes than it needs.
//!
//! RFC 3986 knows neither, and RFC 3629 forbids the second. Knows nothing of paths.

use std::borrow::Cow;

use percent_encoding::percent_decode;

/// Decodes a text once, with every reading that makes an ASCII character.
pub(super) fn loosely_decoded(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return Cow::Borrowed(text);
    }
    let bytes: Vec<u8> = percent_decode(&without_units(text.as_bytes())).collect();
    Cow::Owned(String::from_utf8_lossy(&shortened(&bytes)).into_owned())
}

/// Replaces each `%uXXXX` by its character.
fn without_units(text: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, behind)) = rest.split_first() {
        let (character, behind) = match unit(rest) {
            Some((character, behind)) => (character, behind),
            None => {
                decoded.push(first);
                rest = behind;
                continue;
            }
        };
        decoded.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        rest = behind;
    }
    decoded
}

/// Returns the character of a `%uXXXX` at the beginning, and what follows.
fn unit(text: &[u8]) -> Option<(char, &[u8])> {
    let (digits, rest) =
        text.strip_prefix(b"%u").or_else(|| text.strip_prefix(b"%U"))?.split_at_checked(4)?;
    let digits = std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?;
    let character = char::from_u32(u32::from_str_radix(digits, 16).ok()?)?;
    Some((character, rest))
}

/// Replaces each ASCII character that is written in two to four bytes by one byte.
fn shortened(bytes: &[u8]) -> Vec<u8> {
    let mut short = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&first, behind)) = rest.split_first() {
        let (byte, length) = match *rest {
            [lead @ 0xc0..=0xc1, last @ 0x80..=0xbf, ..] => ((lead & 1) << 6 | last & 0x3f, 2),
            [0xe0, lead @ 0x80..=0x81, last @ 0x80..=0xbf, ..] => ((lead & 1) << 6 | last & 0x3f, 3),
            [0xf0, 0x80, lead @ 0x80..=0x81, last @ 0x80..=0xbf, ..] => ((lead & 1) << 6 | last & 0x3f, 4),
            _ => (first, 1),
        };
        short.push(byte);
        rest = if length == 1 { behind } else { rest.get(length..).unwrap_or_default() };
    }
    short
}

#[cfg(test)]
mod tests {
    use super::loosely_decoded;

    #[test]
    fn every_spelling_of_an_ascii_character_is_read() {
        for (text, expected) in [
            ("plain", "plain"),
            ("%2e", "."),
            ("%c0%ae", "."),
            ("%C1%9C", "\\"),
            ("%e0%80%af", "/"),
            ("%f0%80%81%a5", "e"),
            ("%u002E%U002f", "./"),
            ("%u00e9", "\u{e9}"),
            ("%c3%a9", "\u{e9}"),
            ("%u+02e%u00", "%u+02e%u00"),
            ("%ud800", "%ud800"),
            ("%c0", "\u{fffd}"),
        ] {
            assert_eq!(loosely_decoded(text), expected, "{text}");
        }
    }
}
