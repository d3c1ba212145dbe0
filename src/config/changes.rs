//! The differences between two configurations as they are used, key by key.
//!
//! Limiters and routes are compared by name. Secrets are compared by their digests and shown masked.

use serde::Serialize;
use serde_json::{Map, Value};

use super::masked::{shown, without_digest};
use super::problem::key_path;
use super::yaml::in_yaml;

/// The most changes that are told. Nobody reads a longer list.
const CHANGES_MAX: usize = 500;

/// A change of one key, or of a whole limiter or route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The path, such as `limiters.github.limits`; routes are named: `routes.github.upstream.url`.
    pub path: String,
    /// The value before, on one line of YAML; `None` if it was absent.
    pub old: Option<String>,
    /// The value now; `None` if it is absent.
    pub new: Option<String>,
}

/// Returns what differs, in the order of the keys.
pub(super) fn changes(old: &Value, new: &Value) -> Vec<Change> {
    let mut found = Vec::new();
    compare("", Some(&by_name(old)), Some(&by_name(new)), &mut found);
    let (before, after) = (names(old), names(new));
    let common = |names: &[String], others: &[String]| -> Vec<String> {
        names.iter().filter(|name| others.contains(name)).cloned().collect()
    };
    let orders = (common(&before, &after), common(&after, &before));
    if orders.0 != orders.1 {
        let [old, new] = [orders.0, orders.1].map(|names| Some(format!("[{}]", names.join(", "))));
        found.push(Change { path: "routes (their order)".to_owned(), old, new });
    }
    found.truncate(CHANGES_MAX);
    found
}

/// Turns the list of routes into a mapping by name.
fn by_name(config: &Value) -> Value {
    let mut config = config.clone();
    if let Some(routes) = config["routes"].as_array() {
        let named =
            routes.iter().map(|route| (route["name"].as_str().unwrap_or_default().to_owned(), route.clone()));
        config["routes"] = named.collect::<Map<_, _>>().into();
    }
    config
}

fn names(config: &Value) -> Vec<String> {
    let routes = config["routes"].as_array().into_iter().flatten();
    routes.filter_map(|route| route["name"].as_str()).map(str::to_owned).collect()
}

fn compare(path: &str, old: Option<&Value>, new: Option<&Value>, found: &mut Vec<Change>) {
    if old == new || found.len() > CHANGES_MAX {
        return;
    }
    if let (Some(Value::Object(before)), Some(Value::Object(after))) = (old, new) {
        for (key, value) in before {
            compare(&key_path(path, without_digest(key)), Some(value), after.get(key), found);
        }
        for (key, value) in after.iter().filter(|(key, _)| !before.contains_key(*key)) {
            compare(&key_path(path, without_digest(key)), None, Some(value), found);
        }
        return;
    }
    let line = |value: &Value| in_yaml(&shown(value));
    found.push(Change { path: path.to_owned(), old: old.map(line), new: new.map(line) });
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::load::parse;
    use super::*;

    const BEFORE: &str = "
limiters:
  api: {limits: [5/1s]}
  gone: {limits: [1/1s]}
routes:
  - {name: a, match: {path: /a}, upstream: 'http://a', limiter: api, set_headers: {x-key: one}}
  - {name: b, match: {}, upstream: 'http://b', limiter: api}
";

    fn changed(after: &str) -> Vec<String> {
        let [before, after] = [BEFORE, after].map(|text| parse(Path::new("f"), text).unwrap());
        let shown = |change: Change| {
            let side = |side: Option<String>| side.unwrap_or_else(|| "-".to_owned());
            format!("{}: {} -> {}", change.path, side(change.old), side(change.new))
        };
        after.changes_since(&before).into_iter().map(shown).collect()
    }

    #[test]
    fn nothing_has_changed_in_another_spelling() {
        assert_eq!(changed(BEFORE), [""; 0]);
        let other = BEFORE.replace("[5/1s]", "[{rate: 5, per: 1s}], pause: {max: 1d, guess: {first: 1s}}");
        assert_eq!(changed(&other.replace("http://b'", "http://b', cost: 1")), [""; 0]);
    }

    #[test]
    fn each_changed_key_has_its_old_and_its_new_value() {
        let after = BEFORE
            .replace("5/1s", "7/1s")
            .replace("http://b", "http://c")
            .replace("x-key: one", "x-key: two");
        assert_eq!(
            changed(&after),
            [
                "limiters.api.limits: [{rate: 5, per: 1s, algorithm: sliding_window, precision: 256}] -> \
                 [{rate: 7, per: 1s, algorithm: sliding_window, precision: 256}]",
                "routes.a.set_headers.x-key: \"***\" -> \"***\"",
                "routes.b.upstream.url: http://b -> http://c",
            ]
        );
    }

    #[test]
    fn whole_limiters_and_the_order_of_routes_are_told() {
        let after = "
limiters:
  api: {limits: [5/1s]}
routes:
  - {name: b, match: {}, upstream: 'http://b', limiter: api}
  - {name: a, match: {path: /a}, upstream: 'http://a', limiter: api, set_headers: {x-key: one}}
";
        let told = changed(after);
        assert!(told[0].starts_with("limiters.gone: {limits: ") && told[0].ends_with(" -> -"), "{told:?}");
        assert_eq!(told[1], "routes (their order): [a, b] -> [b, a]");
    }
}
