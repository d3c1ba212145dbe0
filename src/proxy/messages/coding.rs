//! Takes the content coding off bodies, or off the begin of one, within bounds. Knows gzip and deflate.

use std::borrow::Cow;
use std::io::Read;

use flate2::read::{MultiGzDecoder, ZlibDecoder};
use http::HeaderMap;
use http::header::CONTENT_ENCODING;

use super::end_to_end::{EndToEnd, elements};

/// Returns the name of the content coding of a request's body, as the upstream sees it; empty without one.
pub(crate) fn of_request(headers: &EndToEnd<'_>) -> Box<str> {
    name(headers.elements(&CONTENT_ENCODING))
}

/// Returns the name of the content coding of a response's body; empty without one.
pub(crate) fn of_response(headers: &HeaderMap) -> Box<str> {
    name(elements(headers, &CONTENT_ENCODING))
}

fn name<'h>(elements: impl Iterator<Item = &'h [u8]>) -> Box<str> {
    let is_coding = |element: &&[u8]| !element.is_empty() && !element.eq_ignore_ascii_case(b"identity");
    let mut codings = elements.filter(is_coding);
    let first = String::from_utf8_lossy(codings.next().unwrap_or_default()).to_ascii_lowercase();
    // Several codings, one around the other, are none that is known.
    if codings.next().is_some() { "?".into() } else { first.into() }
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
    if coding.is_empty() {
        return (bytes.len() <= bytes_max).then_some(Cow::Borrowed(bytes));
    }
    let mut plain = Vec::new();
    decoder(coding, bytes)?.take(bytes_max as u64 + 1).read_to_end(&mut plain).ok()?;
    (plain.len() <= bytes_max).then_some(Cow::Owned(plain))
}

fn decoder<'a>(coding: &str, bytes: &'a [u8]) -> Option<Box<dyn Read + 'a>> {
    match coding {
        "" => Some(Box::new(bytes)),
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
    use crate::proxy::messages::header_flags::HeaderFlags;

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
        assert_eq!(&*of_response(&headers), "");
        headers.append(CONTENT_ENCODING, HeaderValue::from_static(" GZIP "));
        assert_eq!(&*of_response(&headers), "gzip");
        headers.append(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        assert_eq!(begin(&of_response(&headers), b"", 1), b"");
        assert_eq!(whole(&of_response(&headers), b"", 1), None);
    }

    #[test]
    fn elements_without_a_coding_are_passed_over() {
        for (lines, expected) in [
            (&[","][..], ""),
            (&["identity"], ""),
            (&["identity", " , IDENTITY"], ""),
            (&["identity", "gzip ,"], "gzip"),
            (&["gzip, br"], "?"),
            (&["gzip", "gzip"], "?"),
        ] {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(CONTENT_ENCODING, HeaderValue::from_static(line));
            }
            assert_eq!(&*of_response(&headers), expected, "{headers:?}");
        }
    }

    #[test]
    fn a_coding_that_ends_with_the_connection_is_none() {
        let seen = |headers: &HeaderMap| of_request(&EndToEnd::new(headers, HeaderFlags::of(headers), false));
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("br"));
        assert_eq!(&*seen(&headers), "br");
        headers.insert("connection", HeaderValue::from_static("close, Content-Encoding"));
        assert_eq!(&*seen(&headers), "");
    }
}
