//! The JSON Schema (2020-12) of the configuration, for editors: the same verdict as `check` on shape and types.
//!
//! Derived from [`schema`](super::schema); what YAML and `${...}` allow beyond the Rust types is added here.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::schema;

/// The definition that stands for a value with `${...}` in it. A `$` before it makes it a literal.
const REFERENCE: &str = "Reference";

/// Keywords that say what a scalar must be, in contrast to those that describe it.
const CONSTRAINTS: [&str; 6] = ["type", "enum", "const", "pattern", "minimum", "maximum"];

/// The schema as a document.
pub fn json_schema() -> Value {
    let settings = SchemaSettings::draft2020_12();
    let mut schema = settings.into_generator().into_root_schema_for::<schema::File>().to_value();
    adapt(&mut schema);
    schema["title"] = json!("weir configuration");
    schema["$defs"][REFERENCE] = json!({
        "description": "A value from the environment or a file: `${VAR}`, `${VAR:-default}`, `${file:/path}`.",
        "type": "string",
        "pattern": r"(^|[^$])\$\{",
    });
    schema
}

fn adapt(value: &mut Value) {
    let Value::Object(object) = value else { return };
    without_null(object);
    // One alternative is enough, and a reference fits several.
    if let Some(alternatives) = object.remove("oneOf") {
        object.insert("anyOf".to_owned(), alternatives);
    }
    object.remove("format");
    if is_scalar(object) {
        widen_scalar(object);
    } else if let Some(Value::Array(alternatives)) = object.get_mut("anyOf") {
        adapt_alternatives(alternatives);
    }
    for keyword in ["properties", "$defs"] {
        if let Some(Value::Object(schemas)) = object.get_mut(keyword) {
            schemas.values_mut().for_each(adapt);
        }
    }
    for keyword in ["items", "additionalProperties"] {
        if let Some(schema) = object.get_mut(keyword) {
            adapt(schema);
        }
    }
}

/// Alternatives share one reference among them.
fn adapt_alternatives(alternatives: &mut Vec<Value>) {
    let mut scalars = false;
    let mut off = false;
    for alternative in alternatives.iter_mut() {
        match alternative {
            Value::Object(object) if is_scalar(object) => {
                object.remove("format");
                scalars = true;
                off |= allows_off(object);
            }
            other => adapt(other),
        }
    }
    if off {
        alternatives.push(json!({"const": false}));
    }
    if scalars {
        alternatives.push(reference());
    }
}

/// An absent key is absent: an empty value is a mistake, and `check` says so.
fn without_null(object: &mut Map<String, Value>) {
    object.remove("default");
    if let Some(Value::Array(types)) = object.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            object.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(alternatives)) = object.get_mut("anyOf") {
        alternatives.retain(|alternative| alternative.get("type") != Some(&json!("null")));
        if let [Value::Object(only)] = alternatives.as_slice() {
            let only = only.clone();
            object.remove("anyOf");
            for (keyword, value) in only {
                object.entry(keyword).or_insert(value);
            }
        }
    }
}

fn is_scalar(object: &Map<String, Value>) -> bool {
    let constrained = object.contains_key("const") || object.contains_key("enum");
    constrained
        || matches!(object.get("type").and_then(Value::as_str), Some("string" | "integer" | "boolean"))
}

fn allows_off(object: &Map<String, Value>) -> bool {
    let listed = |value: &Value| value.as_array().is_some_and(|values| values.contains(&json!("off")));
    object.get("const") == Some(&json!("off")) || object.get("enum").is_some_and(listed)
}

/// Lets a scalar also be a reference, `false` where it may be `off`, and `off` where it may be `false`.
fn widen_scalar(object: &mut Map<String, Value>) {
    let boolean = object.get("type") == Some(&json!("boolean"));
    let off = allows_off(object);
    let mut strict = Map::new();
    for keyword in CONSTRAINTS {
        if let Some(value) = object.remove(keyword) {
            strict.insert(keyword.to_owned(), value);
        }
    }
    if strict.get("type") == Some(&json!("string")) && strict.len() == 1 {
        object.append(&mut strict);
        return;
    }
    let mut alternatives = vec![Value::Object(strict)];
    if boolean {
        alternatives.push(json!({"const": "off"}));
    }
    if off {
        alternatives.push(json!({"const": false}));
    }
    alternatives.push(reference());
    object.insert("anyOf".to_owned(), Value::Array(alternatives));
}

fn reference() -> Value {
    json!({"$ref": format!("#/$defs/{REFERENCE}")})
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every property of every object, with its path.
    fn properties(schema: &Value) -> Vec<(String, &Value)> {
        let root = [("File".to_owned(), schema)];
        let definitions =
            schema["$defs"].as_object().unwrap().iter().map(|(name, value)| (name.clone(), value));
        root.into_iter()
            .chain(definitions)
            .flat_map(|(owner, object)| {
                let keys = object["properties"].as_object().cloned().unwrap_or_default();
                keys.keys()
                    .map(|key| (format!("{owner}.{key}"), &object["properties"][key]))
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    #[test]
    fn every_key_is_described() {
        let schema = json_schema();
        let properties = properties(&schema);
        assert!(properties.len() > 60, "{}", properties.len());
        for (path, property) in properties {
            assert!(property["description"].is_string(), "{path} has no description");
        }
    }

    #[test]
    fn the_schema_is_a_valid_2020_12_schema() {
        let schema = json_schema();
        assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
        jsonschema::meta::validate(&schema).unwrap();
        assert!(!schema.to_string().contains("\"null\""));
    }
}
