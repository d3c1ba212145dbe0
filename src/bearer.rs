//! Bearer tokens: how they are read from a header, and how they are compared.
//!
//! Knows nothing of who may do what with them.

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue};
use sha2::{Digest as _, Sha256};

/// What a token is compared by. How long a comparison takes says nothing about how much of a token was right, and
/// whoever reads a digest has no token.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TokenDigest([u8; 32]);

impl TokenDigest {
    /// Of a token.
    pub(crate) fn of(token: &str) -> TokenDigest {
        TokenDigest(Sha256::digest(token).into())
    }
}

/// A weak token could be guessed from its digest.
impl fmt::Debug for TokenDigest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("***")
    }
}

/// The digest of the token in `NAME: Bearer TOKEN`, if the header is there once and has this form.
pub(crate) fn digest(headers: &HeaderMap, name: &HeaderName) -> Option<TokenDigest> {
    let mut lines = headers.get_all(name).iter();
    let line = lines.next()?;
    if lines.next().is_none() { digest_of(line) } else { None }
}

/// The digest of the token in `Bearer TOKEN`.
pub(crate) fn digest_of(line: &HeaderValue) -> Option<TokenDigest> {
    let (scheme, token) = line.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| TokenDigest::of(token.trim()))
}

#[cfg(test)]
mod tests {
    use http::header::AUTHORIZATION;

    use super::*;

    #[test]
    fn a_token_is_read_from_one_line_of_its_form() {
        let of = |lines: &[&str]| {
            let lines = lines.iter().map(|line| (AUTHORIZATION, line.parse().unwrap()));
            let mut headers = HeaderMap::new();
            lines.for_each(|(name, value)| {
                headers.append(name, value);
            });
            digest(&headers, &AUTHORIZATION)
        };
        let expected = Some(TokenDigest::of("t0ken"));
        assert_eq!(of(&["Bearer t0ken"]), expected);
        assert_eq!(of(&["bearer  t0ken "]), expected);
        for other in [&["t0ken"][..], &["Basic t0ken"], &["Bearer"], &[], &["Bearer t0ken", "Bearer t0ken"]] {
            assert_eq!(of(other), None, "{other:?}");
        }
        assert_ne!(of(&["Bearer t0ken0"]), expected);
        assert_eq!(format!("{expected:?}"), "Some(***)");
    }
}
