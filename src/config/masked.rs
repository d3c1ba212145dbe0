//! The configuration as written, as JSON, with every secret masked, for the admin API.
//!
//! Values from the environment or a file are masked whole, since any may be a secret; so are tokens, passwords and the
//! values of `set_headers`, `match.headers` and `match.json`. In URLs, the password is masked, or the user if there is no password. The values of a
//! part of requests that is a credential are masked where `overrides`, a `map` or a `share` names them. In the lines of a file that is not valid the
//! same is hidden, and what may be a password in a URL that is none.

use serde_json::{Map, Value as Json};
use sha2::{Digest, Sha256};

use super::interpolate::{Segment, WhenUnset, segments};
use super::key_part::is_secret_name;
use super::problem::{Mark, Secrets, index_path, key_path};
use super::yaml::{Entry, Kind, Node, Origin, Scalar, Value};

const MASK: &str = "***";
/// Stands before the digest of a masked value.
const DIGEST: char = '\u{1}';
/// The longest scheme before a token, such as `Bearer `.
const SCHEME_LENGTH_MAX: usize = 8;
/// The digits of a digest.
const DIGEST_LENGTH: usize = 12;

/// The place of a mapping, as far as it tells which of its values are secrets.
#[derive(Clone, Copy)]
enum Parent<'a> {
    /// The whole configuration.
    Root,
    /// The keys are names that users choose, of limiters or clients.
    Names,
    /// Below this key.
    Key(&'a str),
    /// Among the classes of a share whose callers are named by a credential.
    CredentialClasses,
    /// Anywhere else.
    Other,
}

/// Converts a tree to JSON without its secrets. Each masked text ends with a digest of the secret, so that changed secrets differ;
/// [`shown`] removes it.
pub(crate) fn masked(tree: &Node) -> Json {
    show(tree, Parent::Root, false)
}

/// Removes the digests of masked texts.
pub(crate) fn shown(value: &Json) -> Json {
    match value {
        Json::String(text) => without_digest(text).into(),
        Json::Array(items) => items.iter().map(shown).collect(),
        Json::Object(entries) => {
            let mut all = Map::new();
            for (key, value) in entries {
                all.insert(shown_key(key, &all), shown(value));
            }
            all.into()
        }
        other => other.clone(),
    }
}

/// Returns a key without its digest, and with a number if another one is then the same.
fn shown_key(key: &str, others: &Map<String, Json>) -> String {
    let shown = without_digest(key);
    if others.contains_key(shown) { format!("{shown} {}", others.len() + 1) } else { shown.to_owned() }
}

/// Returns a masked text without its digest.
pub(crate) fn without_digest(text: &str) -> &str {
    text.split(DIGEST).next().unwrap_or_default()
}

/// Returns whether a value is masked as a whole.
pub(crate) fn is_masked(value: &Json) -> bool {
    value.as_str().is_some_and(|text| without_digest(text) == MASK)
}

/// Returns a masked text with the digest of what it stands for.
fn with_digest(mask: &str, secret: &str) -> String {
    let digest = format!("{:x}", Sha256::digest(secret));
    format!("{mask}{DIGEST}{digest:.DIGEST_LENGTH$}")
}

/// Returns a key that is a secret as it is masked, with its digest.
pub(crate) fn masked_key(secret: &str) -> String {
    with_digest(MASK, secret)
}

/// Shows a node below `parent`.
fn show(node: &Node, parent: Parent<'_>, secret: bool) -> Json {
    match &node.value {
        Value::Scalar(scalar) => show_scalar(scalar, secret),
        Value::List(items) => items.iter().map(|item| show(item, parent, secret)).collect(),
        Value::Mapping(entries) => entries
            .iter()
            .map(|entry| {
                let secret = secret || is_secret(parent, &entry.key);
                let shown = match secret_names(node, entry) {
                    Some(names) => show_names(names, secret),
                    None => show(&entry.value, parent_of(parent, node, entry), secret),
                };
                (entry.key.clone(), shown)
            })
            .collect::<Map<String, Json>>()
            .into(),
    }
}

/// Returns the mapping whose keys are values of a credential, if that is what this entry of a mapping is.
fn secret_names<'a>(mapping: &Node, entry: &'a Entry) -> Option<&'a [Entry]> {
    let is_of_credential = match entry.key.as_str() {
        "overrides" => mapping.get("key").is_some_and(|key| key.items().iter().any(is_credential)),
        "weights" => shares_by_credential(mapping),
        "map" => is_credential(mapping),
        _ => false,
    };
    match &entry.value.value {
        Value::Mapping(names) if is_of_credential => Some(names),
        _ => None,
    }
}

/// Returns whether the callers of a share are named by a credential: by the first part of `by`.
fn shares_by_credential(share: &Node) -> bool {
    share.get("by").is_some_and(|by| is_credential(by.items().first().unwrap_or(by)))
}

/// Returns whether a part of requests is a credential, such as `header:authorization`.
fn is_credential(part: &Node) -> bool {
    let name = match part.text() {
        Some(text) => text.split_once(':').map(|(_, name)| name),
        None => part.get("json").and_then(Node::text),
    };
    name.is_some_and(is_secret_name)
}

/// Returns the parent of what lies below an entry of a mapping, which is below `parent` itself.
fn parent_of<'a>(parent: Parent<'_>, mapping: &Node, entry: &'a Entry) -> Parent<'a> {
    match (parent, entry.key.as_str(), &entry.value.value) {
        // A limiter or a client with the name of a key is no such key.
        (Parent::Names, ..) => Parent::Other,
        (Parent::Root, "limiters" | "clients", Value::Mapping(_)) => Parent::Names,
        (_, "classes", _) if shares_by_credential(mapping) => Parent::CredentialClasses,
        (_, key, _) => Parent::Key(key),
    }
}

/// Shows a mapping without the values that its keys are. The path of a file of overrides is no such value.
fn show_names(names: &[Entry], secret: bool) -> Json {
    let shown = names.iter().map(|entry| {
        let is_path = entry.key == "file" && entry.value.text().is_some();
        let key = if is_path { entry.key.clone() } else { masked_key(&entry.key) };
        (key, show(&entry.value, Parent::Other, secret))
    });
    shown.collect::<Map<String, Json>>().into()
}

/// Returns whether all values below a key of a parent are secrets.
fn is_secret(parent: Parent<'_>, key: &str) -> bool {
    match (parent, key) {
        (Parent::Key("match"), "headers" | "json") | (Parent::CredentialClasses, "of") => true,
        // The cost of a request.
        (Parent::Names, _) | (Parent::Key("cost"), "tokens") => false,
        _ => matches!(key, "token" | "read_token" | "tokens" | "password" | "set_headers"),
    }
}

/// Returns the secrets in a tree that is not interpolated yet.
pub(crate) fn secrets(tree: &Node) -> Secrets {
    let mut found = Secrets::default();
    find_secrets(tree, (Parent::Root, String::new()), false, &mut found);
    found
}

/// Returns the places of what may be secrets in a text that is no tree. Without a tree nothing tells which values are, so it is all of
/// them: what follows the first key of a line or the mark of a list's item, and the rest of a value that began on an earlier line.
pub(crate) fn secrets_of_text(text: &str) -> Secrets {
    let marks = text.lines().zip(1..).filter_map(|(line, number)| {
        let line = line.trim_start_matches('\u{feff}').trim_end();
        let shown = line[..first_value(line)?].chars().count();
        Some(Mark { line: number, column: u32::try_from(shown).ok()?.saturating_add(1) })
    });
    Secrets { marks: marks.collect(), mappings: Vec::new() }
}

/// Returns where the first value of a line begins; `None` if there is none, as in `routes:` or `]`.
fn first_value(line: &str) -> Option<usize> {
    let indent = line.len() - line.trim_start().len();
    let item =
        line[indent..].strip_prefix('-').filter(|rest| rest.is_empty() || rest.starts_with([' ', '\t']));
    let after = match item {
        Some(_) => indent + 1,
        None => {
            let mut colons = line.match_indices(':').map(|(at, colon)| at + colon.len());
            colons
                .find(|end| line[*end..].is_empty() || line[*end..].starts_with([' ', '\t']))
                .unwrap_or(indent)
        }
    };
    let rest = &line[after..];
    let is_value = |character: char| !character.is_whitespace() && !"[]{},".contains(character);
    rest.contains(is_value).then(|| after + (rest.len() - rest.trim_start().len()))
}

/// Returns the keys of a mapping, at this path, as secrets.
pub(crate) fn secret_keys(mapping: &Node, path: String) -> Secrets {
    let marks = mapping.entries().iter().map(|entry| entry.key_mark);
    Secrets { marks: marks.collect(), mappings: vec![path] }
}

/// Returns whether the secret part of a text stands elsewhere, as in `Bearer ${TOKEN}`. A default may be a secret itself.
fn is_by_reference(text: &str) -> bool {
    let is_word = |text: &str| {
        text.len() <= SCHEME_LENGTH_MAX && text.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b' ')
    };
    let is_open = |segment: &Segment<'_>| match segment {
        Segment::Literal(text) => is_word(text),
        Segment::Variable { absent, .. } => !matches!(absent, WhenUnset::Default(_)),
        Segment::File(_) => true,
    };
    text.contains("${") && segments(text).is_ok_and(|segments| segments.iter().all(is_open))
}

/// Finds the secrets in a node below `parent`, at a path.
fn find_secrets(node: &Node, (parent, path): (Parent<'_>, String), secret: bool, found: &mut Secrets) {
    match &node.value {
        Value::Scalar(scalar) if is_by_reference(&scalar.text) => {}
        Value::Scalar(scalar) if secret || may_hold_password(&scalar.text) => found.marks.push(node.mark),
        Value::Scalar(_) => {}
        Value::List(items) => {
            for (index, item) in items.iter().enumerate() {
                find_secrets(item, (parent, index_path(&path, index)), secret, found);
            }
        }
        Value::Mapping(entries) => {
            for entry in entries {
                let path = key_path(&path, &entry.key);
                if secret_names(node, entry).is_some() {
                    let Secrets { marks, mappings } = secret_keys(&entry.value, path.clone());
                    found.marks.extend(marks);
                    found.mappings.extend(mappings);
                }
                let secret = secret || is_secret(parent, &entry.key);
                find_secrets(&entry.value, (parent_of(parent, node, entry), path), secret, found);
            }
        }
    }
}

/// Returns whether a text may be a URL with a user or a password, or is meant to be one. A password that is not percent-encoded ends the
/// authority of a URL early, and a URL without its scheme has none: so any `@` counts that follows a colon.
fn may_hold_password(text: &str) -> bool {
    text.split_once(':').is_some_and(|(_, rest)| rest.contains('@'))
}

fn show_scalar(scalar: &Scalar, secret: bool) -> Json {
    if secret || scalar.origin == Origin::Interpolated {
        return with_digest(MASK, &scalar.text).into();
    }
    match scalar.resolve() {
        Kind::Null => Json::Null,
        Kind::Bool(value) => value.into(),
        Kind::Int(value) => value.into(),
        Kind::Float(value) => value.into(),
        Kind::Text => match without_password(&scalar.text) {
            text if text == scalar.text => text.into(),
            masked => with_digest(&masked, &scalar.text).into(),
        },
    }
}

/// Masks the password in a URL: `redis://user:***@host`. A user without a password is masked too: it may be a token.
fn without_password(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    // As in a URL parser, the last `@` before the path ends the user information.
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let Some((user_info, _)) = authority.rsplit_once('@') else { return text.to_owned() };
    let user = match user_info.split_once(':') {
        Some((user, password)) if !password.is_empty() => [user, ":"].concat(),
        _ => String::new(),
    };
    format!("{scheme}://{user}{MASK}{}", &rest[user_info.len()..])
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::config::load;
    use crate::config::problem::Report;
    use crate::config::yaml;
    use crate::limiter::model::Flow;

    /// Credentials name callers, partitions and families, and a condition asks for one.
    const NAMED: &str = "
limiters:
  api:
    limits: [100/1s]
    queue: {timeout: 5s, max_waiting: 9}
    key: [{json: api_key, map: {sk-live-mapped: gold}}]
    share:
      by: [\"header:x-api-key\", route]
      weights: {sk-live-weight: 3}
      classes:
        - {name: vip, of: [sk-live-vip], floor: 20%}
        - {name: rest}
routes: [{name: one, match: {json: {api_key: sk-live-json}}, upstream: \"http://a\", limiter: api, body: {max: 1KiB}}]
";

    #[test]
    fn secrets_are_masked_and_the_rest_is_shown() {
        let mut report = Report::new(Path::new("f"));
        let text = "admin: {token: abc, read_token: r, password: p}\nclients: {a: {tokens: [x, y]}}\nn: 5\nb: false\nu: redis://u:p@h:1/0\n\
                    routes:\n  - {match: {headers: {x-key: k}, host: h}, set_headers: {authorization: plain}, upstream: 'https://a/b@c'}\n";
        let tree = yaml::parse(text, &mut report).unwrap();
        let expected = json!({
            "admin": {"token": "***", "read_token": "***", "password": "***"}, "clients": {"a": {"tokens": ["***", "***"]}}, "n": 5, "b": false,
            "u": "redis://u:***@h:1/0",
            "routes": [{"match": {"headers": {"x-key": "***"}, "host": "h"}, "set_headers": {"authorization": "***"}, "upstream": "https://a/b@c"}],
        });
        assert_eq!(shown(&masked(&tree)), expected);
        assert!(!masked(&tree).to_string().contains("plain"));
    }

    #[test]
    fn a_limiter_may_have_the_name_of_a_secret_and_a_cost_may_be_tokens() {
        let mut report = Report::new(Path::new("f"));
        let text = "limiters: {tokens: {limits: [5/1s]}, token: {limits: [9/1m], password: p}}\n\
                    routes: [{cost: {tokens: openai}, limiters: [{limiter: tokens, cost: {tokens: openai}, token: abc}]}]\n";
        let tree = yaml::parse(text, &mut report).unwrap();
        let expected = json!({
            "limiters": {"tokens": {"limits": ["5/1s"]}, "token": {"limits": ["9/1m"], "password": "***"}},
            "routes": [{
                "cost": {"tokens": "openai"},
                "limiters": [{"limiter": "tokens", "cost": {"tokens": "openai"}, "token": "***"}],
            }],
        });
        assert_eq!(shown(&masked(&tree)), expected);
        assert_eq!(secrets(&tree).marks.len(), 2, "those of the secrets");
    }

    #[test]
    fn a_client_may_have_the_name_of_a_key_and_its_tokens_are_secrets() {
        let mut report = Report::new(Path::new("f"));
        let text = "clients: {cost: {tokens: [x]}, limiters: {tokens: [y]}, tokens: {tokens: [z]}, clients: {tokens: [w]}}\n\
             limiters: {match: {json: [5/1s]}, clients: {token: {tokens: [v]}}}\n";
        let tree = yaml::parse(text, &mut report).unwrap();
        let hidden = json!({"tokens": ["***"]});
        let expected = json!({
            "clients": {"cost": hidden, "limiters": hidden, "tokens": hidden, "clients": hidden},
            "limiters": {"match": {"json": ["5/1s"]}, "clients": {"token": hidden}},
        });
        assert_eq!(shown(&masked(&tree)), expected);
        assert_eq!(secrets(&tree).marks.len(), 5);
    }

    #[test]
    fn credentials_that_name_callers_and_families_are_masked() {
        let loaded = load::parse(Path::new("f"), NAMED).unwrap();
        for shown in [loaded.masked(), loaded.effective()] {
            assert!(!shown.to_string().contains("sk-live"), "{shown}");
            let limiter = &shown["limiters"]["api"];
            assert_eq!(limiter["key"][0], json!({"json": "api_key", "map": {"***": "gold"}}));
            assert_eq!(limiter["share"]["weights"], json!({"***": 3}));
            let class = &limiter["share"]["classes"][0];
            assert_eq!((&class["name"], &class["of"]), (&"vip".into(), &json!(["***"])));
        }
        // Changes of them are noticed all the same.
        let next = load::parse(Path::new("f"), &NAMED.replace("sk-live-weight", "sk-live-other")).unwrap();
        assert!(!next.changes_since(&loaded).is_empty());
        // Others are shown.
        let open = NAMED.replace("api_key", "model").replace("x-api-key", "x-team");
        let shown = load::parse(Path::new("f"), &open).unwrap().masked();
        assert_eq!(shown.to_string().matches("sk-live").count(), 3, "{shown}");
    }

    #[test]
    fn no_problem_shows_the_credential_of_a_caller_or_a_family() {
        let broken = NAMED.replace("gold", "[]").replace(": 3}", ": 0}").replace("20%", "200%");
        let broken = broken.replace("limiter: api,", "limiter: other,");
        let error = load::parse(Path::new("f"), &broken).unwrap_err();
        let told: Vec<String> = error.problems.iter().map(|problem| problem.with_line("")).collect();
        assert!(told.len() >= 4, "{told:?}");
        assert!(!told.concat().contains("sk-live"), "{told:?}");
    }

    #[test]
    fn flows_have_no_name_that_may_be_a_secret() {
        let named = |text: &str, value: &str| {
            let variable = |_: &str| Ok("sk-from-env".to_owned());
            let loaded = load::parse_with(Path::new("f"), text, &variable).unwrap();
            let share = loaded.config.limiters[0].share().cloned().unwrap();
            share.names.contains_key(&Flow::member_of(value))
        };
        assert!(!named(NAMED, "sk-live-weight") && !named(NAMED, "sk-live-vip"));
        let by_team = NAMED.replace("x-api-key", "x-team");
        assert!(named(&by_team, "sk-live-weight") && named(&by_team, "sk-live-vip"));
        assert!(!named(&by_team.replace("sk-live-vip", "\"${VIP}\""), "sk-from-env"));
    }

    #[test]
    fn no_value_is_shown_where_a_text_is_no_tree() {
        for (line, shown) in [
            ("\u{feff}listen: 1", "listen: ***"),
            ("admin: {token: \"abc", "admin: ***"),
            ("  url: redis://user:s3cret@host", "  url: ***"),
            ("    - t0ken", "    - ***"),
            ("\t- token: abc", " - ***"),
            ("  - \"ключ: abc", "  - ***"),
            ("    authorization:\tBearer abc", "    authorization: ***"),
            ("  \"x-api-key\":k", "  ***"),
            ("  redis://user:s3cret@host,", "  ***"),
            ("  the rest of a secret", "  ***"),
            ("routes:", "routes:"),
            ("routes: [", "routes: ["),
            ("  ]}", "  ]}"),
            ("-", "-"),
        ] {
            let mut report = Report::new(Path::new("f"));
            report.read(line);
            report.hide(secrets_of_text(line));
            report.add(Mark { line: 1, column: 1 }, "", "not valid YAML");
            let told = report.into_problems()[0].excerpt.as_ref().unwrap().to_string();
            assert_eq!(told.lines().nth(1), Some(format!("    1 | {shown}").as_str()), "{line}");
        }
    }

    #[test]
    fn a_secret_that_stands_elsewhere_needs_not_be_hidden() {
        for (text, open) in [
            ("Bearer ${TOKEN:?why}", true),
            ("${file:/run/secrets/x}", true),
            ("Bearer abc", false),
            ("Bearer ${TOKEN:-abc}", false),
            ("abc123${TOKEN}", false),
            ("$${TOKEN} is a literal", false),
        ] {
            assert_eq!(is_by_reference(text), open, "{text}");
        }
    }

    #[test]
    fn passwords_in_urls_are_masked() {
        assert_eq!(without_password("redis://:p@h"), "redis://:***@h");
        assert_eq!(without_password("redis://u:p@q@h/1"), "redis://u:***@h/1");
        assert_eq!(without_password("redis://h:1/0"), "redis://h:1/0");
        assert_eq!(without_password("http://token@h:3128"), "http://***@h:3128");
        assert_eq!(without_password("http://token:@h"), "http://***@h");
    }
}
