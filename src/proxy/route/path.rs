//! The forms in which some server might read a path.
//!
//! A path chooses a route and with it a limiter. If an upstream reads `/a/%2e%2e/b` as `/b`, a request for that must not pass
//! as one for `/a`. So the router looks up the path as sent and every decoded, merged and dot-resolved form of it, with and
//! without the parameters of its segments (`/a;x`, RFC 3986, 3.3), which some servers drop. Knows nothing of routes.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use super::loose::loosely_decoded;

/// The most rounds of percent-decoding. No honest path needs more.
const DECODE_ROUNDS_MAX: usize = 4;
/// The most forms of a path. No honest path has as many.
const FORMS_MAX: usize = 96;

/// The forms of a path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Forms<'a> {
    /// The path as sent, which has no other form.
    One(&'a str),
    /// Several forms; the first is the path as sent.
    Many(Vec<Cow<'a, str>>),
}

/// The reason why a path is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadPath {
    /// The path holds a NUL after some round of decoding.
    Nul,
    /// The path still changes after all rounds of decoding, or has too many forms.
    Encoding,
}

/// Returns all forms of a path.
pub(crate) fn forms(path: &str) -> Result<Forms<'_>, BadPath> {
    if is_plain(path.as_bytes()) {
        return Ok(Forms::One(path));
    }
    let mut forms: Vec<Cow<'_, str>> = vec![Cow::Borrowed(path)];
    let mut layer = vec![path.to_owned()];
    for round in 0.. {
        let mut next = Vec::new();
        for decoded in &layer {
            if decoded.contains('\0') {
                return Err(BadPath::Nul);
            }
            add_readings(&mut forms, decoded);
            if decoded.contains('\\') {
                add_readings(&mut forms, &decoded.replace('\\', "/"));
            }
            let readings = [percent_decode_str(decoded).decode_utf8_lossy(), loosely_decoded(decoded)];
            next.extend(readings.into_iter().filter(|next| *next != **decoded).map(Cow::into_owned));
        }
        next.sort_unstable();
        next.dedup();
        if next.is_empty() {
            break;
        }
        if round == DECODE_ROUNDS_MAX || forms.len() > FORMS_MAX {
            return Err(BadPath::Encoding);
        }
        layer = next;
    }
    Ok(Forms::Many(forms))
}

/// Returns the form in which nothing is left to decode, merge or resolve. Every spelling of a path has the same, so that no
/// spelling is a partition of its own.
pub(crate) fn canonical(path: &str) -> Cow<'_, str> {
    if is_plain(path.as_bytes()) {
        return Cow::Borrowed(path);
    }
    let mut decoded = path.to_owned();
    for _ in 0..=DECODE_ROUNDS_MAX {
        let next = percent_decode_str(&decoded).decode_utf8_lossy().into_owned();
        if next == decoded {
            break;
        }
        decoded = next;
    }
    let bare = without_ends(&without_parameters(&decoded.replace('\\', "/")));
    Cow::Owned(resolve(&merge(&bare)).0)
}

/// Some server may read another segment at this position.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ambiguous;

/// Returns a segment of a path in its decoded form, unless it is empty: `/a/` has one segment. Behind an encoded slash nothing
/// belongs to it.
///
/// # Errors
/// If the forms of the path differ in it.
pub(crate) fn segment(path: &str, index: usize) -> Result<Option<Cow<'_, str>>, Ambiguous> {
    if is_plain(path.as_bytes()) {
        return Ok(nth(path, index).map(Cow::Borrowed));
    }
    let Ok(Forms::Many(forms)) = forms(path) else { return Err(Ambiguous) };
    let mut found = forms.iter().map(|form| {
        let decoded = canonical(nth(form, index)?);
        nth(&decoded, 0).map(str::to_owned)
    });
    let first = found.next().flatten();
    if found.all(|other| other == first) { Ok(first.map(Cow::Owned)) } else { Err(Ambiguous) }
}

/// Returns a part of a path in its decoded form, as `find` finds it.
///
/// # Errors
/// If the forms of the path differ in it.
pub(crate) fn captured(
    path: &str,
    find: impl Fn(&str) -> Option<&str>,
) -> Result<Option<Cow<'_, str>>, Ambiguous> {
    let forms = match forms(path) {
        Ok(Forms::One(form)) => return Ok(find(form).map(|part| Cow::Borrowed(bare(part)))),
        Ok(Forms::Many(forms)) => forms,
        Err(_) => return Err(Ambiguous),
    };
    let mut found = forms.iter().map(|form| find(form).map(|part| bare(&canonical(part)).to_owned()));
    let first = found.next().flatten();
    if found.all(|other| other == first) { Ok(first.map(Cow::Owned)) } else { Err(Ambiguous) }
}

/// Returns a part of a path without leading slashes, which the canonical form of any part has.
fn bare(part: &str) -> &str {
    part.trim_start_matches('/')
}

/// Returns a segment as it is written, unless it is empty.
fn nth(path: &str, index: usize) -> Option<&str> {
    path.strip_prefix('/').unwrap_or(path).split('/').nth(index).filter(|segment| !segment.is_empty())
}

/// Returns whether some form of the path leads above the root.
pub(crate) fn climbs(path: &str) -> bool {
    match forms(path) {
        Ok(Forms::One(_)) => false,
        Ok(Forms::Many(forms)) => forms.iter().any(|form| resolve(form).1),
        Err(_) => true,
    }
}

/// Returns whether a path has nothing to decode, no parameter, no empty segment, and no segment that begins or ends with a dot.
fn is_plain(path: &[u8]) -> bool {
    let special = path.iter().any(|byte| matches!(byte, b'%' | b'\\' | b';' | b' ')) || path.ends_with(b".");
    !special && !path.windows(2).any(|pair| pair == b"//" || pair == b"/." || pair == b"./")
}

fn add_readings<'a>(forms: &mut Vec<Cow<'a, str>>, path: &str) {
    let bare = without_parameters(path);
    for path in [path, &bare, &without_ends(path), &without_ends(&bare)] {
        let merged = merge(path);
        for reading in [resolve(path).0, resolve(&merged).0, merged, path.to_owned()] {
            if !forms.iter().any(|form| **form == reading) {
                forms.push(Cow::Owned(reading));
            }
        }
    }
}

/// Cuts each segment at its first semicolon.
fn without_parameters(path: &str) -> String {
    let segments = path.split('/').map(|segment| segment.split(';').next().unwrap_or_default());
    segments.collect::<Vec<_>>().join("/")
}

/// Cuts the dots and spaces at the end of each segment, but leaves `.` and `..`.
fn without_ends(path: &str) -> String {
    let cut = |segment: &'_ str| {
        let (bare, dots) = (segment.trim_end_matches(['.', ' ']), segment.trim_end_matches(' '));
        if bare.is_empty() { dots.len() } else { bare.len() }
    };
    let segments = path.split('/').map(|segment| segment.get(..cut(segment)).unwrap_or_default());
    segments.collect::<Vec<_>>().join("/")
}

/// Turns runs of slashes into one.
fn merge(path: &str) -> String {
    let mut merged = String::with_capacity(path.len());
    for character in path.chars() {
        if character != '/' || !merged.ends_with('/') {
            merged.push(character);
        }
    }
    merged
}

/// Resolves `.` and `..` segments, also with parameters (`..;x`). Returns the path, and whether they lead above the root.
fn resolve(path: &str) -> (String, bool) {
    let mut kept: Vec<&str> = Vec::new();
    let mut climbed = false;
    let segments = path.strip_prefix('/').unwrap_or(path);
    let last = segments.split('/').count() - 1;
    for (index, segment) in segments.split('/').enumerate() {
        match segment.split(';').next().unwrap_or_default() {
            "." => {}
            ".." => climbed |= kept.pop().is_none(),
            _ => {
                kept.push(segment);
                continue;
            }
        }
        if index == last {
            kept.push("");
        }
    }
    (format!("/{}", kept.join("/")), climbed)
}

/// Returns a path as a client that follows it asks for it: without `.` and `..` segments, also encoded ones (RFC 3986, 5.2.4).
pub(crate) fn as_resolved(path: &str) -> Cow<'_, str> {
    let plain = |segment: &str| match segment.to_ascii_lowercase().replace("%2e", ".").as_str() {
        "." => Some("."),
        ".." => Some(".."),
        _ => None,
    };
    let may_hold_some = path.contains("/.") || path.contains("/%2");
    if !may_hold_some || !path.split('/').any(|segment| plain(segment).is_some()) {
        return Cow::Borrowed(path);
    }
    let segments: Vec<_> = path.split('/').map(|segment| plain(segment).unwrap_or(segment)).collect();
    Cow::Owned(resolve(&segments.join("/")).0)
}

/// Returns the rest of a path behind a prefix that ends at a segment border.
pub(crate) fn strip<'a>(path: &'a str, prefix: &str) -> Option<&'a str> {
    let rest = path.strip_prefix(prefix)?;
    (rest.is_empty() || rest.starts_with('/') || prefix.ends_with('/') || prefix.is_empty()).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::{Ambiguous, BadPath, Forms, as_resolved, canonical, climbs, forms, segment, strip};

    #[test]
    fn a_prefix_is_stripped_at_a_segment_border() {
        assert_eq!(strip("/a/b", "/a"), Some("/b"));
        assert_eq!(strip("/ab", "/a"), None);
    }

    #[test]
    fn a_path_is_resolved_as_its_reader_does() {
        for (path, resolved) in [
            ("/a/./b/../c", "/a/c"),
            ("/a/%2E%2e/c", "/c"),
            ("/a/.%2e", "/"),
            ("/../a", "/a"),
            ("/a//b/...", "/a//b/..."),
            ("/a/%2e%2e%2fb/.x", "/a/%2e%2e%2fb/.x"),
        ] {
            assert_eq!(as_resolved(path), resolved);
        }
    }

    fn all(path: &str) -> Vec<String> {
        match forms(path).unwrap() {
            Forms::One(form) => vec![form.to_owned()],
            Forms::Many(forms) => forms.into_iter().map(String::from).collect(),
        }
    }

    #[test]
    fn a_plain_path_has_one_form() {
        assert_eq!(forms("/repos/a.b/c~d,v=1"), Ok(Forms::One("/repos/a.b/c~d,v=1")));
        assert_eq!(forms("/"), Ok(Forms::One("/")));
    }

    #[test]
    fn the_first_form_is_the_path_as_sent() {
        for (sent, read) in [
            ("/a/%2e%2e/b", "/b"),
            ("/a/%252e%252e/b", "/b"),
            ("/a/..%2fb", "/b"),
            ("//b", "/b"),
            ("/a//../b", "/b"),
            ("/a//../b", "/a/b"),
            ("/a/./b", "/a/b"),
            ("/a/..", "/"),
            ("/a/.", "/a/"),
            ("/a/..;x/b", "/b"),
            ("/a;x/b;y;z", "/a/b"),
            ("/a%3bx/b", "/a/b"),
            ("/a;x/b", "/a;x/b"),
            ("/a\\..\\b", "/b"),
            ("/%61", "/a"),
            ("/a/%c0%ae%c0%ae/b", "/b"),
            ("/a/%e0%80%ae%f0%80%80%ae/b", "/b"),
            ("/a%c0%afb", "/a/b"),
            ("/a/%25c0%25ae./b", "/b"),
            ("/a/%u002e%u002E/b", "/b"),
            ("/%u0061", "/a"),
            ("/%25u0061", "/a"),
            ("/a./b", "/a/b"),
            ("/a%20/b", "/a/b"),
            ("/a.%20.", "/a"),
            ("/a;x./b", "/a/b"),
            ("/x/..%20/a", "/a"),
        ] {
            let forms = all(sent);
            assert_eq!(forms[0], sent);
            assert!(forms.iter().any(|form| form == read), "{sent}: {forms:?} lacks {read}");
        }
    }

    #[test]
    fn nul_and_too_many_layers_of_encoding_are_refused() {
        assert_eq!(forms("/a%00b"), Err(BadPath::Nul));
        assert_eq!(forms("/a%2500b"), Err(BadPath::Nul));
        assert_eq!(forms("/%2525252525252561"), Err(BadPath::Encoding));
        assert!(forms("/a%zz").is_ok());
    }

    #[test]
    fn all_spellings_have_the_same_canonical_form() {
        for sent in [
            "/a/b",
            "//a/b",
            "/a//b",
            "/a/./b",
            "/x/../a/b",
            "/%61/b",
            "/a%2Fb",
            "/%2561/b",
            "/a\\b",
            "/a;x/b",
            "/a./b",
            "/a%20/b. ",
        ] {
            assert_eq!(canonical(sent), "/a/b", "{sent}");
        }
    }

    #[test]
    fn a_segment_is_the_same_in_every_form_or_ambiguous() {
        for (path, index, expected) in [
            ("/v1/acme/x", 1, Ok(Some("acme"))),
            ("/v1/acme", 0, Ok(Some("v1"))),
            ("/v1", 1, Ok(None)),
            ("/v1/", 1, Ok(None)),
            ("/", 0, Ok(None)),
            ("/v1/%61cme", 1, Ok(Some("acme"))),
            ("/v1/%2561cme", 1, Ok(Some("acme"))),
            ("/v1/acme;x=1", 1, Ok(Some("acme"))),
            ("/v1/acme%3bx", 1, Ok(Some("acme"))),
            ("/v1/acme%2fx", 1, Ok(Some("acme"))),
            ("/v1/acme.", 1, Ok(Some("acme"))),
            ("/v1/acme%20/x", 1, Ok(Some("acme"))),
            ("/v1/acm%c1%a5", 1, Err(Ambiguous)),
            ("/v1/acm%u0065", 1, Err(Ambiguous)),
            ("/v1/acme/x//y/../z", 1, Ok(Some("acme"))),
            ("/v1/b%2facme/c", 2, Err(Ambiguous)),
            ("/v1//acme", 1, Err(Ambiguous)),
            ("/v1/b/../acme", 1, Err(Ambiguous)),
            ("/v1/b/%2e%2e/acme", 1, Err(Ambiguous)),
            ("/v1\\acme", 1, Err(Ambiguous)),
        ] {
            let expected = expected.map(|text| text.map(std::borrow::Cow::Borrowed));
            assert_eq!(segment(path, index), expected, "{path}");
        }
    }

    #[test]
    fn climbing_above_the_root_is_found_in_every_form() {
        assert!(climbs("/../x"));
        assert!(climbs("/a/%2e%2e/%2e%2e/x"));
        assert!(climbs("/a//../../../x"));
        assert!(!climbs("/a/../x"));
        assert!(!climbs("/a/..x"));
    }
}
