//! Bearer tokens: reading them from a header, and comparing them.
//!
//! Knows nothing of the rights that a token gives.

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue};
use sha2::{Digest as _, Sha256};

/// The digest of a token, for comparisons. The time of a comparison reveals nothing of the token, and a leaked digest is
/// no token.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TokenDigest([u8; 32]);

impl TokenDigest {
    /// Computes the digest of a token.
    pub(crate) fn of(token: &str) -> TokenDigest {
        TokenDigest(Sha256::digest(token).into())
    }
}

/// Hides the digest: a weak token could be guessed from it.
impl fmt::Debug for TokenDigest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("***")
    }
}

/// Returns the digest of the token in `NAME: Bearer TOKEN`. `None` unless the header occurs exactly once, in this form.
pub(crate) fn digest(headers: &HeaderMap, name: &HeaderName) -> Option<TokenDigest> {
    let mut lines = headers.get_all(name).iter();
    let line = lines.next()?;
    if lines.next().is_none() { digest_of(line) } else { None }
}

/// Returns the digest of the token in `Bearer TOKEN`.
pub(crate) fn digest_of(line: &HeaderValue) -> Option<TokenDigest> {
    let (scheme, token) = line.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| TokenDigest::of(token.trim()))
}

#[cfg(test)]
mod tests {
    use http::header::AUTHORIZATION;

    use super::*;

    #[test]
    fn a_token_is_read_from_a_single_well_formed_line() {
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
