//! A JSON value as one line of YAML.

use serde_json::Value;

use super::tree::{Kind, Origin, Scalar};

/// Writes a value on one line of YAML, with the quotes that it needs inside `{ }` and `[ ]`.
pub(crate) fn in_yaml(value: &Value) -> String {
    match value {
        Value::String(text) if is_plain(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(in_yaml).collect::<Vec<_>>().join(", ")),
        Value::Object(entries) => {
            let entries = entries.iter().map(|(key, value)| format!("{key}: {}", in_yaml(value)));
            ["{", &entries.collect::<Vec<_>>().join(", "), "}"].concat()
        }
        other => other.to_string(),
    }
}

/// Returns whether a text surely needs no quotes, in any place.
fn is_plain(text: &str) -> bool {
    let is_word = |character: char| character.is_ascii_alphanumeric() || "_./:@+-".contains(character);
    let scalar = Scalar { text: text.to_owned(), origin: Origin::Plain };
    text.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '/')
        && !text.ends_with(':')
        && text.chars().all(is_word)
        && scalar.resolve() == Kind::Text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted_where_they_must_be() {
        let value = serde_json::json!({
            "plain": ["10.0.0.0/8", "header:x-corp-id", "900/1m", "redis://10.0.0.1:6379/0", 5, true, "off"],
            "quoted": ["::1", "5", "true", "null", "*.example.com", "${VAR}", "a b", "a:", "", "0x1F"],
        });
        let plain = "plain: [10.0.0.0/8, header:x-corp-id, 900/1m, redis://10.0.0.1:6379/0, 5, true, off]";
        let quoted =
            r#"quoted: ["::1", "5", "true", "null", "*.example.com", "${VAR}", "a b", "a:", "", "0x1F"]"#;
        assert_eq!(in_yaml(&value), format!("{{{plain}, {quoted}}}"));
    }
}
