//! Bearer tokens: reading them from a header, and comparing them.
//!
//! Knows nothing of the rights that a token gives.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::{HeaderMap, HeaderName, HeaderValue};
use sha2::{Digest as _, Sha256};

/// The most words of a line that are looked at.
const WORDS_MAX: usize = 64;

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

/// Returns the digests of all else that may be a token in a line: `Bearer<TAB>TOKEN`, `Token token="TOKEN"`, the user or the password of
/// `Basic`. Empty for `Bearer TOKEN`, which [`digest_of`] reads.
pub(crate) fn other_digests_in(line: &HeaderValue) -> Vec<TokenDigest> {
    const SEPARATORS: [char; 6] = [' ', '\t', ',', ';', '"', '\''];
    let text = String::from_utf8_lossy(line.as_bytes());
    let is_usual =
        |(scheme, token): (&str, &str)| scheme.eq_ignore_ascii_case("bearer") && !token.contains(SEPARATORS);
    if text.split_once(' ').is_some_and(is_usual) {
        return Vec::new();
    }
    let words = || text.split(SEPARATORS).filter(|word| !word.is_empty());
    let wholes = [Some(&*text), text.split_once([' ', '\t']).map(|(_, rest)| rest.trim())];
    let values = words().filter_map(|word| word.split_once(['=', ':'])).map(|(_, value)| value);
    let decoded = words().filter_map(|word| STANDARD_NO_PAD.decode(word.trim_end_matches('=')).ok());
    let decoded: Vec<_> = decoded.filter_map(|bytes| String::from_utf8(bytes).ok()).collect();
    let pairs = decoded.iter().filter_map(|pair| pair.split_once(':'));
    let pairs = pairs.flat_map(|(user, password)| [user, password]);
    let all = wholes.into_iter().flatten().chain(words()).chain(values).chain(pairs);
    all.take(WORDS_MAX).map(TokenDigest::of).collect()
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

    #[test]
    fn a_token_is_found_in_every_form() {
        let token = TokenDigest::of("t0ken");
        for line in [
            "Bearer\tt0ken",
            "Bearer  \tt0ken",
            "t0ken",
            "Token t0ken",
            "Token token=\"t0ken\"",
            "Bearer other, Bearer t0ken",
            "Basic dDBrZW46",
            "Basic dXNlcjp0MGtlbg==",
        ] {
            assert!(other_digests_in(&line.parse().unwrap()).contains(&token), "{line}");
        }
        assert!(other_digests_in(&"Bearer other".parse().unwrap()).is_empty());
    }
}
