//! Takes the content coding off bodies, or off the begin of one, within bounds. Knows gzip and deflate.

use std::borrow::Cow;
use std::io::Read;

use flate2::read::{MultiGzDecoder, ZlibDecoder};
use http::HeaderMap;
use http::header::CONTENT_ENCODING;

/// Returns the name of a body's content coding; empty without one.
pub(crate) fn name(headers: &HeaderMap) -> Box<str> {
    let mut lines = headers.get_all(CONTENT_ENCODING).iter().map(|line| line.to_str().unwrap_or("?"));
    let first = lines.next().unwrap_or_default().trim().to_ascii_lowercase();
    // Several codings, one around the other, are none that is known.
    if lines.next().is_some() { "?".into() } else { first.into() }
}

/// Decodes the begin of a body as far as it is whole, at most `bytes_max`. Nothing is left of one in a coding that is not known.
pub(crate) fn begin(coding: &str, bytes: &[u8], bytes_max: usize) -> Vec<u8> {
    match decoder(coding, bytes) {
        None => Vec::new(),
        Some(decoder) => {
            let mut plain = Vec::new();
            // An error is the end of what has come.
            let _ = decoder.take(bytes_max as u64).read_to_end(&mut plain);
            plain
        }
    }
}

/// Decodes a whole body; `None` if it is larger than `bytes_max`, broken, or in a coding that is not known.
pub(crate) fn whole<'a>(coding: &str, bytes: &'a [u8], bytes_max: usize) -> Option<Cow<'a, [u8]>> {
    if is_none(coding) {
        return (bytes.len() <= bytes_max).then_some(Cow::Borrowed(bytes));
    }
    let mut plain = Vec::new();
    decoder(coding, bytes)?.take(bytes_max as u64 + 1).read_to_end(&mut plain).ok()?;
    (plain.len() <= bytes_max).then_some(Cow::Owned(plain))
}

/// Returns whether a body with this coding is in none.
pub(crate) fn is_none(coding: &str) -> bool {
    matches!(coding, "" | "identity")
}

fn decoder<'a>(coding: &str, bytes: &'a [u8]) -> Option<Box<dyn Read + 'a>> {
    match coding {
        _ if is_none(coding) => Some(Box::new(bytes)),
        "gzip" | "x-gzip" => Some(Box::new(MultiGzDecoder::new(bytes))),
        "deflate" => Some(Box::new(ZlibDecoder::new(bytes))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};
    use http::HeaderValue;

    use super::*;

    const PLAIN: &[u8] = br#"{"error": {"code": "insufficient_quota"}, "more": ""#;
    const BYTES_MAX: usize = 64 * 1024;

    fn gzip(plain: &[u8]) -> Vec<u8> {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
        gzip.write_all(plain).unwrap();
        gzip.finish().unwrap()
    }

    #[test]
    fn the_begin_of_a_coded_body_is_read() {
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
        zlib.write_all(PLAIN).unwrap();
        let (gzip, zlib) = (gzip(PLAIN), zlib.finish().unwrap());
        for (coding, bytes) in [("", PLAIN), ("gzip", &gzip), ("deflate", &zlib)] {
            assert_eq!(begin(coding, bytes, BYTES_MAX), PLAIN);
            assert_eq!(whole(coding, bytes, PLAIN.len()).as_deref(), Some(PLAIN));
            assert_eq!(whole(coding, bytes, PLAIN.len() - 1), None);
        }
        assert_eq!(begin("br", PLAIN, BYTES_MAX), b"");
        assert_eq!(whole("br", PLAIN, BYTES_MAX), None);
        let cut_off = &gzip[..gzip.len() - 12];
        assert!(PLAIN.starts_with(&begin("gzip", cut_off, BYTES_MAX)));
        assert_eq!(whole("gzip", cut_off, BYTES_MAX), None);
    }

    #[test]
    fn a_small_body_that_becomes_a_large_one_is_not_decoded_to_its_end() {
        let bomb = gzip(&vec![b' '; 50_000_000]);
        assert_eq!(begin("gzip", &bomb, BYTES_MAX).len(), BYTES_MAX);
        assert_eq!(whole("gzip", &bomb, BYTES_MAX), None);
    }

    #[test]
    fn one_coding_has_a_name() {
        let mut headers = HeaderMap::new();
        assert_eq!(&*name(&headers), "");
        headers.append(CONTENT_ENCODING, HeaderValue::from_static(" GZIP "));
        assert_eq!(&*name(&headers), "gzip");
        headers.append(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        assert_eq!(begin(&name(&headers), b"", 1), b"");
        assert_eq!(whole(&name(&headers), b"", 1), None);
    }
}
