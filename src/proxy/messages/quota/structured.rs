//! The structured fields (RFC 9651) among these headers: lists of policies, and the IETF's drafts.
//!
//! Every function takes a whole value and returns `None` if any part of it is invalid.

use std::time::Duration;

use sfv::{BareItem, Dictionary, Item, List, ListEntry, Parameters, Parser};

use super::values::{Decimal, seconds};
use super::window::QuotaWindow;

/// A limit, with the length of its window if that is reported.
#[derive(Clone, Copy)]
pub(crate) struct Policy {
    /// The permits of the window.
    pub(crate) limit: u64,
    /// The length of the window.
    pub(crate) length: Option<Duration>,
}

/// Reads a limit: a number, alone or at the head of a list of policies (`100, 100;w=60, 1000;w=3600`: up to -06 of the draft), or one
/// with a window (`100;w=21600`). Returns the head and the rest.
pub(crate) fn limit(text: &str) -> Option<(Policy, Vec<Policy>)> {
    if let Some(number) = Decimal::of(text) {
        return Some((Policy { limit: number.whole, length: None }, Vec::new()));
    }
    let mut policies = items(text)?.iter().map(Policy::of_number).collect::<Option<Vec<_>>>()?;
    let rest = policies.split_off(1);
    // Without windows it is no list of policies but, for example, a number with commas.
    let is_list = rest.iter().all(|policy| policy.length.is_some());
    Some((policies.pop()?, rest)).filter(|_| is_list)
}

/// Reads `RateLimit` from -08 of the draft on: names with the permits left and the seconds until the reset (`"burst";r=50;t=30`).
/// The outer option is `None` if the value is no list.
pub(crate) fn named_state(text: &str) -> Option<Option<Vec<(String, QuotaWindow)>>> {
    let read = |item: &Item| Some((label(&item.bare_item)?, QuotaWindow::of_item(item)?));
    Some(items(text)?.iter().map(read).collect())
}

/// Reads `RateLimit` of -07 of the draft: a dictionary of the window that is nearest to its end.
pub(crate) fn single_state(text: &str) -> Option<QuotaWindow> {
    QuotaWindow::of_dictionary(&Parser::new(text).parse::<Dictionary>().ok()?)
}

/// Reads `RateLimit-Policy`: policies with names (`"burst";q=100;w=60`: from -08 of the draft on) or without (`100;w=60`: -03 to -07).
pub(crate) fn policies(text: &str) -> Option<Vec<(Option<String>, Policy)>> {
    let read = |item: &Item| match label(&item.bare_item) {
        Some(label) => Some((Some(label), Policy::of_name(item)?)),
        None => Some((None, Policy::of_number(item)?)),
    };
    items(text)?.iter().map(read).collect()
}

/// Reads the permits left: a number (Reddit: `594.0`), or one with parameters (Docker Hub: `76;w=21600`).
pub(crate) fn count(text: &str) -> Option<u64> {
    let number = Decimal::of(text).map(|number| number.whole);
    number.or_else(|| match &*items(text)? {
        [item] => integer(&item.bare_item),
        _ => None,
    })
}

impl QuotaWindow {
    /// Reads an item such as `"burst";r=50;t=30`.
    fn of_item(item: &Item) -> Option<QuotaWindow> {
        let remaining = Some(parameter(&item.params, "r")??);
        let resets_in = parameter(&item.params, "t")?.map(seconds);
        Some(QuotaWindow { remaining, resets_in, ..QuotaWindow::default() })
    }

    /// Reads a dictionary such as `limit=100, remaining=50, reset=50`.
    fn of_dictionary(dictionary: &Dictionary) -> Option<QuotaWindow> {
        let member = |name: &str| match dictionary.get(name) {
            None => Some(None),
            Some(ListEntry::Item(item)) => integer(&item.bare_item).map(Some),
            Some(ListEntry::InnerList(_)) => None,
        };
        let (limit, remaining) = (member("limit")?, Some(member("remaining")??));
        Some(QuotaWindow { limit, remaining, resets_in: member("reset")?.map(seconds), length: None })
    }
}

impl From<Policy> for QuotaWindow {
    fn from(policy: Policy) -> QuotaWindow {
        QuotaWindow { limit: Some(policy.limit), length: policy.length, ..QuotaWindow::default() }
    }
}

impl Policy {
    /// Reads an item such as `"burst";q=100;w=60`.
    fn of_name(item: &Item) -> Option<Policy> {
        Some(Policy { limit: parameter(&item.params, "q")??, length: Policy::length_of(&item.params)? })
    }

    /// Reads an item such as `100;w=60`.
    fn of_number(item: &Item) -> Option<Policy> {
        Some(Policy { limit: integer(&item.bare_item)?, length: Policy::length_of(&item.params)? })
    }

    /// Reads the length of the window. The outer option is `None` if it is invalid, the inner one if it is absent.
    fn length_of(parameters: &Parameters) -> Option<Option<Duration>> {
        // `window` is the name in the draft before the IETF adopted it, and WHOOP's.
        let window = parameter(parameters, "w")?.or(parameter(parameters, "window")?);
        Some(window.map(seconds))
    }
}

/// Reads a structured list that is not empty and holds items alone (RFC 9651, 3.1).
fn items(text: &str) -> Option<Vec<Item>> {
    let items = Parser::new(text).parse::<List>().ok()?.into_iter().map(|entry| match entry {
        ListEntry::Item(item) => Some(item),
        ListEntry::InnerList(_) => None,
    });
    items.collect::<Option<Vec<_>>>().filter(|items| !items.is_empty())
}

/// Reads the name of a policy: a string, or a token as in some versions of the draft.
fn label(item: &BareItem) -> Option<String> {
    let string = item.as_string().map(|string| string.as_str().to_owned());
    string.or_else(|| item.as_token().map(|token| token.as_str().to_owned()))
}

fn integer(item: &BareItem) -> Option<u64> {
    u64::try_from(i64::from(item.as_integer()?)).ok()
}

/// Reads a number among parameters. The outer option is `None` if it is invalid, the inner one if it is absent.
fn parameter(parameters: &Parameters, name: &str) -> Option<Option<u64>> {
    parameters.get(name).map_or(Some(None), |value| integer(value).map(Some))
}
