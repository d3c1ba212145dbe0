//! The configuration as written, as JSON, with every secret masked, for the admin API.
//!
//! Values from the environment or a file are masked whole, since any may be a secret; so are tokens, passwords and the
//! values of `set_headers`. In URLs, the password is masked, or the user if there is no password.

use serde_json::{Map, Value as Json};

use super::yaml::{Kind, Node, Origin, Scalar, Value};

const MASK: &str = "***";

/// Converts a tree to JSON without its secrets.
pub(crate) fn masked(tree: &Node) -> Json {
    show(tree, false)
}

fn show(node: &Node, secret: bool) -> Json {
    match &node.value {
        Value::Scalar(scalar) => show_scalar(scalar, secret),
        Value::List(items) => items.iter().map(|item| show(item, secret)).collect(),
        Value::Mapping(entries) => entries
            .iter()
            .map(|entry| {
                let secret = secret
                    || matches!(
                        entry.key.as_str(),
                        "token" | "read_token" | "tokens" | "password" | "set_headers"
                    );
                (entry.key.clone(), show(&entry.value, secret))
            })
            .collect::<Map<String, Json>>()
            .into(),
    }
}

fn show_scalar(scalar: &Scalar, secret: bool) -> Json {
    if secret || scalar.origin == Origin::Interpolated {
        return MASK.into();
    }
    match scalar.resolve() {
        Kind::Null => Json::Null,
        Kind::Bool(value) => value.into(),
        Kind::Int(value) => value.into(),
        Kind::Float(value) => value.into(),
        Kind::Text => without_password(&scalar.text).into(),
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
    use crate::config::problem::Report;
    use crate::config::yaml;

    #[test]
    fn secrets_are_masked_and_the_rest_is_shown() {
        let mut report = Report::new(Path::new("f"));
        let text = "admin: {token: abc, read_token: r, password: p}\nclients: {a: {tokens: [x, y]}}\nn: 5\nb: false\nu: redis://u:p@h:1/0\n\
                    routes:\n  - {set_headers: {authorization: plain}, upstream: 'https://a/b@c'}\n";
        let tree = yaml::parse(text, &mut report).unwrap();
        let expected = json!({
            "admin": {"token": "***", "read_token": "***", "password": "***"}, "clients": {"a": {"tokens": ["***", "***"]}}, "n": 5, "b": false,
            "u": "redis://u:***@h:1/0",
            "routes": [{"set_headers": {"authorization": "***"}, "upstream": "https://a/b@c"}],
        });
        assert_eq!(masked(&tree), expected);
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
