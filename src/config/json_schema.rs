//! The JSON Schema (2020-12) of the configuration, for editors. It agrees with `check` on shape and types.
//!
//! Derived from [`schema`](super::schema). This module adds what YAML and `${...}` allow beyond the Rust types.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::load::EXTENSION;
use super::schema;

/// The definition of a value that contains `${...}`. `$${` is a literal.
const REFERENCE: &str = "Reference";

/// Keywords that constrain a scalar. All others describe it.
const CONSTRAINTS: [&str; 6] = ["type", "enum", "const", "pattern", "minimum", "maximum"];

/// Returns the schema as a document.
pub fn json_schema() -> Value {
    let settings = SchemaSettings::draft2020_12();
    let mut schema = settings.into_generator().into_root_schema_for::<schema::File>().to_value();
    adapt(&mut schema);
    schema["title"] = json!("weir configuration");
    schema["patternProperties"] =
        json!({format!("^{EXTENSION}"): {"description": "Not read: a place for anchors."}});
    schema["$defs"][REFERENCE] = json!({
        "description": "A value from the environment or a file: `${VAR}`, `${VAR:-default}`, `${VAR:?why}`, `${file:/path}`.",
        "type": "string",
        "pattern": r"(^|[^$])\$\{",
    });
    schema
}

/// Adapts a derived schema, and all schemas below it, to the YAML that weir reads.
fn adapt(value: &mut Value) {
    let Value::Object(object) = value else { return };
    without_null(object);
    join_lines(object);
    // A reference fits several alternatives, and `oneOf` would refuse it.
    if let Some(alternatives) = object.shift_remove("oneOf") {
        object.insert("anyOf".to_owned(), alternatives);
    }
    object.shift_remove("format");
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

/// Adapts alternatives: they get one reference together, instead of one each.
fn adapt_alternatives(alternatives: &mut Vec<Value>) {
    let mut scalars = false;
    let (mut off, mut boolean) = (false, false);
    for alternative in alternatives.iter_mut() {
        match alternative {
            Value::Object(object) if is_scalar(object) => {
                object.shift_remove("format");
                scalars = true;
                off |= allows_off(object);
                boolean |= object.get("type") == Some(&json!("boolean"));
            }
            other => adapt(other),
        }
    }
    if off {
        alternatives.push(json!({"const": false}));
    }
    if boolean {
        alternatives.push(json!({"const": "off"}));
    }
    if scalars {
        alternatives.push(reference());
    }
}

/// Removes `null` from the types of optional keys: `check` refuses an empty value.
fn without_null(object: &mut Map<String, Value>) {
    object.shift_remove("default");
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
            object.shift_remove("anyOf");
            for (keyword, value) in only {
                object.entry(keyword).or_insert(value);
            }
        }
    }
}

/// Joins the lines of a description, which break as in the source, and keeps its paragraphs.
fn join_lines(object: &mut Map<String, Value>) {
    if let Some(Value::String(description)) = object.get_mut("description") {
        *description =
            description.split("\n\n").map(|text| text.replace('\n', " ")).collect::<Vec<_>>().join("\n\n");
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

/// Lets a scalar also be a reference, `false` in place of `off`, and `off` in place of `false`.
fn widen_scalar(object: &mut Map<String, Value>) {
    let boolean = object.get("type") == Some(&json!("boolean"));
    let off = allows_off(object);
    let mut strict = Map::new();
    for keyword in CONSTRAINTS {
        if let Some(value) = object.shift_remove(keyword) {
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

/// Returns whether this module added an alternative: a reference, or the other word for `off` or `false`.
pub(super) fn is_common(alternative: &Value) -> bool {
    [reference(), json!({"const": false}), json!({"const": "off"})].contains(alternative)
}

fn reference() -> Value {
    json!({"$ref": format!("#/$defs/{REFERENCE}")})
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::path::Path;
    use std::rc::Rc;

    use super::*;
    use crate::config::problem::Report;
    use crate::config::yaml::{self, Kind, Node, in_yaml};
    use crate::config::{decode::decode, interpolate, load};

    const SHIPPED: [&str; 4] = [
        include_str!("../../config/weir.yaml"),
        include_str!("../../config/quickstart.yaml"),
        include_str!("../../config/github.yaml"),
        include_str!("../../config/youtube.yaml"),
    ];

    /// Keys and forms that the shipped files do not use.
    const FURTHER: &str = "
server:
  tls: {cert: a, key: b, client_ca: c}
  allow: [10.0.0.0/8]
  trusted_proxies: [10.0.0.0/8]
clients:
  billing: {tokens: [abc], certificate: {san: reports.internal}}
store:
  redis:
    cluster: ['redis://a']
    sentinel: {nodes: ['redis://b'], master: m}
    tls: {ca: a, cert: b, key: c}
limiters:
  a:
    limits: [{rate: 1, per: 1mo, algorithm: fixed_window, timezone: UTC, burst: 5}, '${LIMIT:-5/s}']
    queue: false
    key: [host]
    overrides: {b: [1/s, {rate: 1, per: 1s}], file: [1/s]}
    max_partitions: 5
    show_values: true
    group: g
    pause:
      max: 5m
      guess: {first: 1s, max: 2m}
      rules: [{status: 429, named: true, header: {x-a: b}, json: {a.0: b}, for: 1s}]
    mode: shadow
  b: {limits: [1/s], key: [host], overrides: {file: plans.yaml}}
routes:
  - name: a
    match: {}
    upstream: {url: 'http://a', http2: false, ca: x, proxy: 'http://b'}
    cost: {header: weir-cost, default: 1, max: 50}
    clients: [billing]
    preserve_host: off
";

    fn tree(text: &str) -> Node {
        yaml::parse(text, &mut Report::new(Path::new("f"))).unwrap()
    }

    /// Converts a tree as an editor reads it: references are texts.
    fn json_of(node: &Node) -> Value {
        match &node.value {
            yaml::Value::List(items) => items.iter().map(json_of).collect(),
            yaml::Value::Mapping(entries) => entries
                .iter()
                .map(|entry| (entry.key.clone(), json_of(&entry.value)))
                .collect::<Map<_, _>>()
                .into(),
            yaml::Value::Scalar(scalar) => match scalar.resolve() {
                Kind::Null => Value::Null,
                Kind::Bool(value) => value.into(),
                Kind::Int(value) => value.into(),
                Kind::Float(value) => value.into(),
                Kind::Text => scalar.text.clone().into(),
            },
        }
    }

    /// An environment with the credentials that the shipped files need, and nothing else.
    fn credentials(name: &str) -> Result<String, std::env::VarError> {
        match name {
            "GITHUB_TOKEN" | "WEIR_BILLING_TOKEN" => Ok("x".to_owned()),
            _ => Err(std::env::VarError::NotPresent),
        }
    }

    fn problems_of_shape(text: &str) -> Vec<String> {
        let mut report = Report::new(Path::new("f"));
        let mut root = yaml::parse(text, &mut report).unwrap();
        let sources = interpolate::Sources::new(&credentials, Path::new(""));
        assert!(interpolate::interpolate(&mut root, sources, &mut report).is_empty());
        decode(&root, &mut HashSet::new(), &mut report);
        report.into_problems().iter().map(ToString::to_string).collect()
    }

    /// Returns the document with one change each: every value replaced by every other kind of value, every mapping
    /// with an unknown key, every mapping without one of its keys.
    fn mutants(document: &Value) -> Vec<Value> {
        let mut mutants = vec![
            Value::Null,
            json!(true),
            json!(false),
            json!(-1),
            json!(0),
            json!(7),
            json!(1.5),
            json!("off"),
            json!("other"),
            json!("5/10"),
            json!([]),
            json!([5]),
            json!({}),
        ];
        match document {
            Value::Object(object) => {
                let changed = |change: &dyn Fn(&mut Map<String, Value>)| {
                    let mut object = object.clone();
                    change(&mut object);
                    Value::Object(object)
                };
                mutants.push(changed(&|object| drop(object.insert("unheard-of".to_owned(), json!(1)))));
                for (key, value) in object {
                    mutants.push(changed(&|object| drop(object.remove(key))));
                    for mutant in self::mutants(value) {
                        mutants.push(changed(&|object| drop(object.insert(key.clone(), mutant.clone()))));
                    }
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    for mutant in self::mutants(item) {
                        let mut items = items.clone();
                        items[index] = mutant;
                        mutants.push(Value::Array(items));
                    }
                }
            }
            _ => {}
        }
        mutants
    }

    #[test]
    fn the_schema_accepts_every_shipped_file() {
        let validator = jsonschema::validator_for(&json_schema()).unwrap();
        for text in SHIPPED.into_iter().chain([FURTHER]) {
            let document = json_of(&tree(text));
            let errors: Vec<String> = validator
                .iter_errors(&document)
                .map(|error| format!("{}: {error}", error.instance_path()))
                .collect();
            assert_eq!(errors, [""; 0]);
            assert_eq!(problems_of_shape(text), [""; 0]);
        }
    }

    #[test]
    fn the_schema_refuses_what_check_refuses_for_its_shape() {
        let validator = jsonschema::validator_for(&json_schema()).unwrap();
        for base in [FURTHER, SHIPPED[0]] {
            for mutant in mutants(&json_of(&tree(base))) {
                let problems = problems_of_shape(&mutant.to_string());
                assert!(
                    problems.is_empty() || !validator.is_valid(&mutant),
                    "the schema accepts what check refuses: {problems:?}\n{mutant}"
                );
            }
        }
    }

    #[test]
    fn check_refuses_what_the_schema_refuses() {
        let validator = jsonschema::validator_for(&json_schema()).unwrap();
        let base = json_of(&tree(SHIPPED[0]));
        for mutant in mutants(&base) {
            let checked = load::parse_with(Path::new("f"), &mutant.to_string(), &credentials);
            assert!(
                checked.is_err() || validator.is_valid(&mutant),
                "check accepts what the schema refuses: {:?}\n{mutant}",
                validator.iter_errors(&mutant).map(|error| error.to_string()).collect::<Vec<_>>()
            );
        }
    }

    /// Puts a value into a document, beside the required keys.
    type Around<'a> = Rc<dyn Fn(Value) -> Value + 'a>;

    /// A key, and a function that builds a document with it.
    struct Property<'a> {
        path: String,
        schema: &'a Value,
        around: Around<'a>,
    }

    /// Returns every property of every object that can be reached from the root.
    fn properties(root: &Value) -> Vec<Property<'_>> {
        let mut properties = Vec::new();
        find_properties(root, root, "", Rc::new(|document| document), &mut properties);
        properties
    }

    fn find_properties<'a>(
        root: &'a Value,
        schema: &'a Value,
        path: &str,
        around: Around<'a>,
        found: &mut Vec<Property<'a>>,
    ) {
        let definition = schema["$ref"].as_str().and_then(|name| root.pointer(&name[1..]));
        let schema = definition.unwrap_or(schema);
        for (key, property) in schema["properties"].as_object().into_iter().flatten() {
            let around = around.clone();
            let inside: Around<'_> = Rc::new(move |value| {
                let required =
                    schema["required"].as_array().into_iter().flatten().map(|key| key.as_str().unwrap());
                let first = |key: &str| schema["properties"][key]["examples"][0].clone();
                let mut object: Map<String, Value> =
                    required.map(|key| (key.to_owned(), first(key))).collect();
                object.insert(key.clone(), value);
                around(Value::Object(object))
            });
            let path = format!("{path}.{key}");
            found.push(Property { path: path.clone(), schema: property, around: inside.clone() });
            find_properties(root, property, &path, inside, found);
        }
        for alternative in schema["anyOf"].as_array().into_iter().flatten() {
            find_properties(root, alternative, path, around.clone(), found);
        }
        if let Some(items) = schema.get("items") {
            let around = around.clone();
            find_properties(root, items, path, Rc::new(move |item| around(json!([item]))), found);
        }
        if let Some(named) = schema.get("additionalProperties") {
            find_properties(root, named, path, Rc::new(move |value| around(json!({"github": value}))), found);
        }
    }

    /// Returns whether a value fits a property.
    fn fits(root: &Value, property: &Value, value: &Value) -> bool {
        let mut schema = property.clone();
        schema["$defs"] = root["$defs"].clone();
        jsonschema::is_valid(&schema, value)
    }

    #[test]
    fn every_key_is_described() {
        let schema = json_schema();
        let properties = properties(&schema);
        assert!(properties.len() > 90, "{}", properties.len());
        for Property { path, schema, .. } in properties {
            assert!(schema["description"].is_string(), "{path} has no description");
        }
    }

    #[test]
    fn every_key_has_examples_that_are_accepted() {
        let schema = json_schema();
        let whole = jsonschema::validator_for(&schema).unwrap();
        for property in properties(&schema) {
            let path = property.path;
            let examples = property.schema["examples"].as_array().map_or(&[][..], Vec::as_slice);
            assert!(!examples.is_empty(), "{path} has no example");
            for example in examples {
                assert!(fits(&schema, property.schema, example), "{path}: {example}");
                let document = (property.around)(example.clone());
                assert!(whole.is_valid(&document), "{path}: {document}");
                let written = in_yaml(&document);
                assert_eq!(json_of(&tree(&written)), document, "{path}: {written}");
                // References are escaped: their variables do not exist here.
                let literal = written.replace("${", "$${");
                assert_eq!(problems_of_shape(&literal), [""; 0], "{path}: {written}");
            }
        }
    }

    #[test]
    fn every_example_of_a_message_is_accepted() {
        let schema = json_schema();
        let properties = properties(&schema);
        for (key, example) in schema::EXAMPLES {
            let value = json_of(&tree(example));
            let mut of_key = properties.iter().filter(|property| property.path.ends_with(&format!(".{key}")));
            assert!(of_key.any(|property| fits(&schema, property.schema, &value)), "{key}: {example}");
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
