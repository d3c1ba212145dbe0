//! The names of headers that report a quota, as a table, with the meaning of each.
//!
//! Knows nothing of values. `tests/vendors.rs` has a case for each vendor, with the place of its documentation.

/// The meaning of a header's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// A wait: a number of milliseconds.
    WaitMilliseconds,
    /// A wait: a number of seconds, or a date.
    Wait,
    /// The permits of a window, perhaps followed by a list of policies.
    Limit,
    /// The permits left in a window.
    Remaining,
    /// The reset of a window: a span, an instant or a date.
    Reset,
    /// The reset of a window: a span.
    ResetAfter,
    /// The permits used and the limit, with a slash between them.
    UsedOfLimit,
    /// The IETF's `RateLimit`.
    State,
    /// The IETF's `RateLimit-Policy`.
    Policies,
}

/// Headers with a fixed name: the name, its family and its meaning.
const FIXED: [(&str, &str, Meaning); 9] = [
    ("retry-after", "retry-after", Meaning::Wait),
    ("retry-after-ms", "retry-after-ms", Meaning::WaitMilliseconds),
    ("x-ms-retry-after-ms", "x-ms-retry-after-ms", Meaning::WaitMilliseconds),
    ("ratelimit", "ratelimit", Meaning::State),
    ("ratelimit-policy", "ratelimit", Meaning::Policies),
    ("beta-ratelimit", "beta-ratelimit", Meaning::State),
    ("beta-ratelimit-policy", "beta-ratelimit", Meaning::Policies),
    ("x-rate-limit", "x-rate-limit", Meaning::Limit),
    ("x-shopify-shop-api-call-limit", "x-shopify-shop-api-call-limit", Meaning::UsedOfLimit),
];

/// The spellings in the name of a family.
const FAMILIES: [&str; 2] = ["ratelimit", "rate-limit"];

/// The words at the beginning or the end of the rest of a name, longer ones first. The other part of the rest is the label of a
/// window: `x-ratelimit-reset-tokens`, `anthropic-ratelimit-tokens-reset`.
const WORDS: [(&str, Meaning); 6] = [
    ("reset-after", Meaning::ResetAfter),
    ("retry-after", Meaning::Wait),
    ("remaining", Meaning::Remaining),
    ("reset", Meaning::Reset),
    ("limit", Meaning::Limit),
    // Trello.
    ("max", Meaning::Limit),
];

/// The name of a header that reports a quota, taken apart.
#[derive(Clone, Copy)]
pub(crate) struct Name<'a> {
    /// The meaning of the value.
    pub(crate) meaning: Meaning,
    /// The name up to and including `ratelimit`. Families are never mixed, because a gateway and the application behind it often
    /// report each its own.
    pub(crate) family: &'a str,
    /// The label of a window within its family; often empty.
    pub(crate) label: &'a str,
}

impl<'a> Name<'a> {
    /// Takes a name in lower case apart; returns `None` if it reports no quota.
    pub(crate) fn of(name: &'a str) -> Option<Name<'a>> {
        if let Some((_, family, meaning)) = FIXED.iter().find(|(fixed, ..)| *fixed == name) {
            return Some(Name { meaning: *meaning, family, label: "" });
        }
        // Nearly all names end here. Comparing four bytes at a time is cheaper than a search.
        if !name.as_bytes().windows(4).any(|bytes| bytes == b"rate") {
            return None;
        }
        Name::of_family(name)
    }

    /// Takes names apart such as `x-ratelimit-remaining`, `x-rate-limit-reset`, `x-ratelimit-limit-tokens` and
    /// `vendor-ratelimit-tokens-limit`.
    fn of_family(name: &'a str) -> Option<Name<'a>> {
        let end = FAMILIES.iter().find_map(|spelling| Some(name.find(spelling)? + spelling.len()))?;
        let (family, rest) = name.split_at_checked(end)?;
        let rest = rest.strip_prefix('-')?;
        WORDS.iter().find_map(|(word, meaning)| {
            let behind = rest.strip_prefix(word);
            let behind =
                behind.and_then(|label| if label.is_empty() { Some(label) } else { label.strip_prefix('-') });
            let before = rest.strip_suffix(word).and_then(|label| label.strip_suffix('-'));
            Some(Name { meaning: *meaning, family, label: behind.or(before)? })
        })
    }
}
