//! The address of an admin listener, as an option or a variable gives it.

use url::Url;

/// The address where nothing else is given.
pub(super) const DEFAULT: &str = "http://127.0.0.1:9090";
/// The form of an address.
pub(super) const EXPECTED: &str = "expected http://HOST:PORT";

/// Parses an address. An empty one, such as that of a variable which a script leaves empty, is the default.
///
/// # Errors
/// The fault, and the correct form. What would not be used is refused: TLS, a path, a password.
pub(super) fn parse(text: &str) -> Result<Url, String> {
    let text = if text.is_empty() { DEFAULT } else { text };
    let url = Url::parse(text).ok().filter(Url::has_host).ok_or(EXPECTED)?;
    let is_bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
    let is_anonymous = url.username().is_empty() && url.password().is_none();
    match url.scheme() {
        "https" => Err(format!("the admin listener has no TLS; {EXPECTED}")),
        "http" if !is_anonymous => Err(format!("{EXPECTED}; the token goes into WEIR_ADMIN_TOKEN")),
        "http" if !is_bare => Err(format!("{EXPECTED}, without a path")),
        "http" => Ok(url),
        _ => Err(EXPECTED.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port() {
        for (text, expected) in [
            ("http://10.0.0.7:9090", "http://10.0.0.7:9090/"),
            ("http://[::1]:9090/", "http://[::1]:9090/"),
            ("http://weir", "http://weir/"),
            ("", "http://127.0.0.1:9090/"),
        ] {
            assert_eq!(parse(text).as_ref().map(Url::as_str), Ok(expected), "{text}");
        }
        for (text, fault) in [
            ("127.0.0.1:9090", EXPECTED),
            ("localhost", EXPECTED),
            ("localhost:9090", EXPECTED),
            ("unix:/run/weir", EXPECTED),
            ("https://weir:9090", "the admin listener has no TLS; expected http://HOST:PORT"),
            ("http://weir:9090/api", "expected http://HOST:PORT, without a path"),
            ("http://weir:9090/?a", "expected http://HOST:PORT, without a path"),
            ("http://a:b@weir:9090", "expected http://HOST:PORT; the token goes into WEIR_ADMIN_TOKEN"),
        ] {
            assert_eq!(parse(text), Err(fault.to_owned()), "{text}");
        }
    }
}
