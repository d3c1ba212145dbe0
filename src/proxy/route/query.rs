//! Reads a parameter of a query in the one way in which all servers read it.
//!
//! Servers differ in what separates parameters, in the names that they take for the same, and in which of several counts. So a
//! query in which some server may find the parameter elsewhere is refused. Knows nothing of limiters.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;
use url::form_urlencoded;

use crate::proxy::error::ProxyError;

/// The most parameters of a query of which one is read. Express and PHP read no more than these.
const PARAMETERS_MAX: usize = 1000;

/// Returns the decoded value of a parameter; `None` without it.
///
/// # Errors
/// If the query can be read in more than one way.
pub(crate) fn parameter<'q>(query: &'q str, name: &str) -> Result<Option<Cow<'q, str>>, ProxyError> {
    let ambiguous = || ProxyError::Ambiguous { kind: "query parameter", name: name.into() };
    let mut found = None;
    for (count, pair) in query.split('&').enumerate() {
        // Some servers separate parameters by semicolons, too, others drop what holds one.
        let is_meant = pair.split(';').any(|part| may_be_read_as(&decoded_name(part), name));
        if count >= PARAMETERS_MAX || (is_meant && (pair.contains(';') || found.is_some())) {
            return Err(ambiguous());
        }
        if is_meant {
            let exact =
                form_urlencoded::parse(pair.as_bytes()).next().filter(|(written, _)| *written == *name);
            let (_, value) = exact.filter(|_| is_well_encoded(pair)).ok_or_else(ambiguous)?;
            found = Some(value);
        }
    }
    Ok(found)
}

/// Returns the name of a parameter, with plus signs decoded, too.
fn decoded_name(pair: &str) -> String {
    let written = pair.split('=').next().unwrap_or_default().replace('+', " ");
    percent_decode_str(&written).decode_utf8_lossy().into_owned()
}

/// Returns whether some server takes the name of a parameter for `name`: nginx ignores case; PHP cuts it at a NUL, drops leading
/// spaces and turns dots and spaces into underscores; PHP and Express make `name[…]` a list.
fn may_be_read_as(written: &str, name: &str) -> bool {
    folded(written, name.contains('[')) == folded(name, name.contains('['))
}

fn folded(name: &str, keeps_brackets: bool) -> String {
    let end = |character: char| character == '\0' || (character == '[' && !keeps_brackets);
    let name = name.trim_start().split(end).next().unwrap_or_default();
    name.replace(['.', ' '], "_").to_lowercase()
}

/// Returns whether each percent sign is followed by two hexadecimal digits. Go drops a parameter in which one is not.
fn is_well_encoded(pair: &str) -> bool {
    pair.split('%')
        .skip(1)
        .all(|rest| rest.as_bytes().get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)))
}

#[cfg(test)]
mod tests {
    use super::{PARAMETERS_MAX, parameter};

    fn read(query: &str, name: &str) -> Result<Option<String>, ()> {
        parameter(query, name).map(|value| value.map(String::from)).map_err(|_| ())
    }

    #[test]
    fn a_parameter_has_one_decoded_value_or_is_ambiguous() {
        for (query, expected) in [
            ("", Ok(None)),
            ("app=1", Ok(None)),
            ("x=1&app%20id=a+b%26c", Ok(Some("a b&c"))),
            ("app+id", Ok(Some(""))),
            ("%61pp+id=", Ok(Some(""))),
            ("app+id=a=b", Ok(Some("a=b"))),
            ("x;y=1&app+id=a", Ok(Some("a"))),
            ("x=%zz&app+id=a", Ok(Some("a"))),
            ("app+id=1&app%20id=1", Err(())),
            ("app+id=1&App+Id=2", Err(())),
            ("APP+ID=2", Err(())),
            ("app_id=1", Err(())),
            ("app.id=1&app+id=2", Err(())),
            ("+app+id=1&app+id=2", Err(())),
            ("app+id[]=1&app+id=2", Err(())),
            ("app+id%5Ba%5D=1", Err(())),
            ("app+id%00x=1", Err(())),
            ("app+id=1;app+id=2", Err(())),
            ("app+id=1;x", Err(())),
            ("x;app+id=1", Err(())),
            ("app+id=%zz", Err(())),
            ("app+id=%4", Err(())),
        ] {
            assert_eq!(read(query, "app id"), expected.map(|value| value.map(str::to_owned)), "{query}");
        }
    }

    #[test]
    fn a_name_with_brackets_is_that_entry_alone() {
        assert_eq!(read("filter[a]=1&filter[tenant]=x", "filter[tenant]"), Ok(Some("x".into())));
        assert_eq!(read("filter[tenant]=1&filter%5Btenant%5D=x", "filter[tenant]"), Err(()));
    }

    #[test]
    fn more_parameters_than_servers_read_are_refused() {
        let query = |count: usize| format!("{}t=1", "a&".repeat(count - 1));
        assert_eq!(read(&query(PARAMETERS_MAX), "t"), Ok(Some("1".into())));
        assert_eq!(read(&query(PARAMETERS_MAX + 1), "t"), Err(()));
    }
}
