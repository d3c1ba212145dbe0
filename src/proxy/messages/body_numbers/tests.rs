//! Shapes of answers as vendors document them, each in every way in which it may be cut; and any documents, against a tree.

use std::path::Path;
use std::sync::Arc;

use http::HeaderValue;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::config;
use crate::config::model::Usage;

const MAX: u64 = 1_000_000_000;

/// Returns the numbers in a body that comes in these pieces.
fn numbers<'a>(kind: &str, paths: &[JsonPath], pieces: impl IntoIterator<Item = &'a [u8]>) -> BodyNumbers {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_str(kind).unwrap());
    let mut numbers = BodyNumbers::of(&headers, paths, MAX).expect("it is scanned");
    pieces.into_iter().for_each(|piece| numbers.see(piece));
    numbers
}

/// Returns the largest of them.
fn largest<'a>(kind: &str, paths: &[&str], pieces: impl IntoIterator<Item = &'a [u8]>) -> Option<u64> {
    let paths: Vec<_> = paths.iter().map(|path| JsonPath::parse(path).unwrap()).collect();
    numbers(kind, &paths, pieces).largest()
}

/// Checks a body as a whole, cut in two at every byte, and in pieces of one byte.
fn check(kind: &str, paths: &[&str], body: &str, expected: Option<u64>) {
    let body = body.as_bytes();
    assert_eq!(largest(kind, paths, [body]), expected, "{}", String::from_utf8_lossy(body));
    assert_eq!(largest(kind, paths, body.chunks(1)), expected, "in single bytes");
    for cut in 0..body.len().min(4000) {
        let (first, second) = body.split_at(cut);
        assert_eq!(largest(kind, paths, [first, second]), expected, "cut at {cut}");
    }
}

const JSON: &str = "application/json; charset=utf-8";
const EVENTS: &str = "text/event-stream";
const TOTAL: &[&str] = &["usage.total_tokens", "response.usage.total_tokens"];

/// An answer of OpenAI's chat completions, with what looks like another usage in the text of its message.
const CHAT: &str = r#"{
  "id": "chatcmpl-1", "object": "chat.completion", "created": 1741569952, "model": "gpt-5",
  "choices": [{"index": 0, "message": {"role": "assistant", "content": "The \"usage\": {\"total_tokens\": 99999} of 東京 \\", "refusal": null,
    "annotations": [{"usage": {"total_tokens": 88888}}]}, "logprobs": null, "finish_reason": "stop"}],
  "usage": {"prompt_tokens": 19, "completion_tokens": 10, "total_tokens": 29, "prompt_tokens_details": {"cached_tokens": 0, "total_tokens": 77777}},
  "service_tier": "default"
}"#;

/// The end of a stream of OpenAI's chat completions with `include_usage`.
const CHAT_EVENTS: &str = "data: {\"id\":\"1\",\"choices\":[{\"delta\":{\"content\":\"é \\\"usage\\\": {\"}}],\"usage\":null}\n\n\
    data: {\"id\":\"1\",\"choices\":[],\"usage\":{\"prompt_tokens\":19,\"completion_tokens\":123,\"total_tokens\":142}}\n\ndata: [DONE]\n\n";

/// The events of OpenAI's responses.
const RESPONSE_EVENTS: &str = ": comment\nevent: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"r\",\"usage\":null}}\n\n\
    event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"usage\"}\n\n\
    event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"r\",\"output\":[{\"usage\":{\"total_tokens\":5000}}],\
    \"usage\":{\"input_tokens\":37,\"output_tokens\":11,\"total_tokens\":48}}}\n\n";

/// The events of Anthropic's messages: usage in the first, and cumulative in the last.
const MESSAGE_EVENTS: &str = "event: message_start\ndata: {\"type\": \"message_start\", \"message\": {\"id\": \"m\", \"usage\": {\"input_tokens\": 25, \"output_tokens\": 1}}}\n\n\
    event: ping\ndata: {\"type\": \"ping\"}\n\n\
    event: content_block_delta\ndata: {\"type\": \"content_block_delta\", \"index\": 0, \"delta\": {\"type\": \"text_delta\", \"text\": \"!\"}}\n\n\
    event: message_delta\ndata: {\"type\": \"message_delta\", \"delta\": {\"stop_reason\": \"end_turn\"}, \"usage\": {\"output_tokens\": 15}}\n\n";

/// The same of a message that breaks off: its first event names an output that is not counted yet.
const BROKEN_MESSAGE_EVENTS: &str = "event: message_start\ndata: {\"type\": \"message_start\", \"message\": {\"id\": \"m\", \"usage\": {\"input_tokens\": 25, \"output_tokens\": 1}}}\n\n\
    event: error\ndata: {\"type\": \"error\", \"error\": {\"type\": \"overloaded_error\", \"message\": \"Overloaded\"}}\n\n";

/// The events of an interaction of Gemini: the usage comes with the last one.
const INTERACTION_EVENTS: &str = "event: interaction.created\ndata: {\"interaction\":{\"id\":\"v1_a\",\"status\":\"in_progress\"},\"event_type\":\"interaction.created\"}\n\n\
    event: step.delta\ndata: {\"index\":0,\"delta\":{\"text\":\"usage\",\"type\":\"text\"},\"event_type\":\"step.delta\"}\n\n\
    event: interaction.completed\ndata: {\"interaction\":{\"id\":\"v1_a\",\"status\":\"completed\",\"usage\":{\"total_tokens\":19,\"total_input_tokens\":8,\
    \"total_output_tokens\":11}},\"event_type\":\"interaction.completed\"}\n\ndata: [DONE]\n\n";

#[test]
fn each_vendor_is_understood_however_its_answer_is_cut() {
    check(JSON, TOTAL, CHAT, Some(29));
    let output = ["usage.output_tokens", "message.usage.output_tokens"];
    for end in ["\n", "\r\n", "\r"] {
        let with = |events: &str| events.replace('\n', end);
        check(EVENTS, TOTAL, &with(CHAT_EVENTS), Some(142));
        check(EVENTS, TOTAL, &with(RESPONSE_EVENTS), Some(48));
        check(EVENTS, &output, &with(MESSAGE_EVENTS), Some(15));
        check(EVENTS, &["message.usage.input_tokens"], &with(MESSAGE_EVENTS), Some(25));
    }
    let gemini = r#"[{"candidates": [{"content": {"parts": [{"text": "a"}]}}], "usageMetadata": {"totalTokenCount": 9}},
        {"usageMetadata": {"promptTokenCount": 7, "totalTokenCount": 33}}]"#;
    check(JSON, &["1.usageMetadata.totalTokenCount", "0.usageMetadata.totalTokenCount"], gemini, Some(33));
    check("application/vnd.api+json", &["meta.cost"], r#"{"data": [], "meta": {"cost": 4}}"#, Some(4));
    check(
        "application/x-ndjson",
        TOTAL,
        "{\"usage\": {\"total_tokens\": 4}}\n{\"usage\": {\"total_tokens\": 6}}\n{\"x\": 1}",
        Some(6),
    );
}

/// Returns how a preset reads responses.
fn preset(name: &str) -> Arc<Usage> {
    let text = format!(
        "limiters: {{a: {{limits: [1000/1s]}}}}\nroutes: [{{name: a, match: {{}}, upstream: 'http://a', limiters: [{{name: a, cost: {{tokens: {name}}}}}]}}]"
    );
    let config = config::parse(Path::new("a.yaml"), &text).unwrap().config;
    config.routes[0].settles().next().and_then(|settle| settle.usage.clone()).unwrap()
}

#[test]
fn each_preset_reads_its_providers_answers_however_they_are_cut() {
    let anthropic = r#"{"content": [{"type": "text", "text": "\"usage\": {\"input_tokens\": 9000}"}], "usage":
        {"input_tokens": 2095, "cache_creation_input_tokens": 100, "cache_read_input_tokens": 7000, "output_tokens": 503}}"#;
    let gemini = r#"[{"candidates": [], "usageMetadata": {"promptTokenCount": 7, "totalTokenCount": 9}}, {"candidates": []}]"#;
    let converse = r#"{"output": {"message": {"content": [{"text": "東京"}]}}, "usage":
        {"inputTokens": 30, "outputTokens": 628, "cacheReadInputTokens": 5, "cacheWriteInputTokens": 8, "totalTokens": 658}}"#;
    let embeddings =
        r#"{"data": [{"embedding": [0.5, -0.25]}], "usage": {"prompt_tokens": 8, "total_tokens": 8}}"#;
    for (name, kind, body, expected) in [
        ("openai", JSON, CHAT, Some(19)),
        ("openai", EVENTS, CHAT_EVENTS, Some(123)),
        ("openai", EVENTS, RESPONSE_EVENTS, Some(37)),
        ("openai", JSON, embeddings, Some(8)),
        ("azure", JSON, CHAT, Some(29)),
        ("azure", EVENTS, CHAT_EVENTS, Some(142)),
        ("mistral", JSON, CHAT, Some(29)),
        ("mistral", JSON, embeddings, Some(8)),
        ("anthropic-input", JSON, anthropic, Some(2195)),
        ("anthropic-input", EVENTS, MESSAGE_EVENTS, Some(25)),
        ("anthropic-output", JSON, anthropic, Some(503)),
        ("anthropic-output", EVENTS, MESSAGE_EVENTS, Some(15)),
        ("anthropic-input", EVENTS, BROKEN_MESSAGE_EVENTS, Some(25)),
        ("anthropic-output", EVENTS, BROKEN_MESSAGE_EVENTS, None),
        ("gemini", JSON, gemini, Some(7)),
        ("gemini", EVENTS, "data: {\"usageMetadata\": {\"promptTokenCount\": 7}}\n\n", Some(7)),
        ("gemini", JSON, r#"{"usage": {"total_input_tokens": 8, "total_output_tokens": 9}}"#, Some(8)),
        ("gemini", JSON, r#"{"usage": {"totalInputTokens": 8, "totalOutputTokens": 9}}"#, Some(8)),
        ("gemini", EVENTS, INTERACTION_EVENTS, Some(8)),
        ("gemini", JSON, r#"{"usage": {"prompt_tokens": 8, "completion_tokens": 9}}"#, Some(8)),
        ("bedrock", JSON, converse, Some(666)),
        ("bedrock", JSON, anthropic, Some(2698)),
        ("openai", JSON, r#"{"usage": null}"#, None),
        ("openai", JSON, r#"{"usage": {"prompt_tokens": 1000000000000000000}}"#, None),
        ("anthropic-input", JSON, r#"{"type": "error", "error": {"type": "overloaded_error"}}"#, None),
    ] {
        let usage = preset(name);
        let (paths, cost) = (usage.paths(), |numbers: BodyNumbers| usage.cost(numbers.each()));
        for end in ["\n", "\r\n"] {
            let body = if kind == EVENTS { body.replace('\n', end) } else { body.to_owned() };
            let body = body.as_bytes();
            assert_eq!(
                cost(numbers(kind, &paths, [body])),
                expected,
                "{name}: {}",
                String::from_utf8_lossy(body)
            );
            assert_eq!(cost(numbers(kind, &paths, body.chunks(1))), expected, "{name} in single bytes");
            for cut in 0..body.len() {
                let (first, second) = body.split_at(cut);
                assert_eq!(cost(numbers(kind, &paths, [first, second])), expected, "{name} cut at {cut}");
            }
        }
    }
}

#[test]
fn a_stream_tells_that_it_is_whole() {
    let event = "data: {\"a\": \"[DONE]\"}\n\n";
    for (body, is_done) in [
        ("data: [DONE]", true),
        ("data:[DONE]\n\n", true),
        ("event: end\r\ndata:  [DONE]\r\n\r\n: behind it\n\ndata: {}\n\n", true),
        ("data: [DONE", false),
        ("data: [DON[DONE]\n\n", false),
        ("data: {}\ndata: [DONE]\n\n", false),
        ("other: [DONE]\n\n[DONE]\n\n", false),
    ] {
        let body = [event, body].concat();
        let path = [JsonPath::parse("a").unwrap()];
        assert_eq!(numbers(EVENTS, &path, [body.as_bytes()]).is_done(), is_done, "{body:?}");
        assert_eq!(numbers(EVENTS, &path, body.as_bytes().chunks(1)).is_done(), is_done, "{body:?}");
        assert!(!numbers(JSON, &path, [body.as_bytes()]).is_done());
    }
}

#[test]
fn only_a_whole_number_at_its_path_is_found() {
    for (body, expected) in [
        (r#"{"usage": null}"#, None),
        (r#"{"usage": {"total_tokens": null}}"#, None),
        (r#"{"usage": {"total_tokens": "12"}}"#, None),
        (r#"{"usage": {"total_tokens": -12}}"#, None),
        (r#"{"usage": {"total_tokens": 12.5}}"#, None),
        (r#"{"usage": {"total_tokens": 1000000000000000000}}"#, None),
        (r#"{"usage": {"total_tokens": 99999999999999999999999999999999999999}}"#, None),
        (r#"{"usage": {"total_tokens": [12]}}"#, None),
        (r#"{"usage": {"total_tokens": {"total_tokens": 12}}}"#, None),
        (r#"{"usage": [{"total_tokens": 12}]}"#, None),
        (r#"{"usage": {"total_token": 12, "total_tokens_": 13, "Total_tokens": 14, "": 15}}"#, None),
        (r#"{"usage": {"x": {"total_tokens": 12}}, "total_tokens": 13}"#, None),
        (r#"{"usage": {"total_tokens": 12"#, None),
        (r#"{"usage": {"total_tokens": 12 "#, Some(12)),
        (r#"{"usage": {"total_tokens": 0}}"#, Some(0)),
        (r#"{"usage": {"total_tokens": 7, "total_tokens": 5}, "usage": {"total_tokens": 6}}"#, Some(7)),
        (r#"{"usage":{"a":[1,{"b":"}"}],"total_tokens":12},"x":3}"#, Some(12)),
        ("{\"usage\"\t:\r\n{\t\"total_tokens\"\n:\n12\n}}", Some(12)),
        (r#"{"a\\": "\\\"", "usage": {"total_tokens": 12}}"#, Some(12)),
        ("<html>502 Bad Gateway</html>", None),
        ("", None),
    ] {
        check(JSON, TOTAL, body, expected);
    }
}

#[test]
fn a_large_event_and_a_deep_document_take_no_memory() {
    assert!(size_of::<BodyNumbers>() < 1024, "{} bytes", size_of::<BodyNumbers>());
    let text = "\\\"usage\\\": {\\\"total_tokens\\\": 5} ".repeat(32_000);
    assert!(text.len() > 1024 * 1024);
    let event = format!("data: {{\"delta\": \"{text}\", \"usage\": {{\"total_tokens\": 12}}}}\n\n");
    for size in [1, 7, 16 * 1024, event.len()] {
        assert_eq!(largest(EVENTS, TOTAL, event.as_bytes().chunks(size)), Some(12), "{size}");
    }
    let deep = |open: &str, close: &str| [open.repeat(100_000), "1".into(), close.repeat(100_000)].concat();
    let document = format!(
        r#"{{"a": {}, "b": {}, "usage": {{"total_tokens": 12}}}}"#,
        deep("[", "]"),
        deep("{\"usage\":", "}")
    );
    assert_eq!(largest(JSON, TOTAL, [document.as_bytes()]), Some(12));
}

#[test]
fn only_json_and_events_in_the_clear_are_scanned() {
    let scanned = |lines: &[(&'static str, &'static str)]| {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.insert(*name, HeaderValue::from_static(value));
        }
        BodyNumbers::of(&headers, &[JsonPath::parse("a").unwrap()], MAX).is_some()
    };
    assert!(scanned(&[("content-type", "Application/JSON")]));
    assert!(scanned(&[
        ("content-type", "text/event-stream;charset=utf-8"),
        ("content-encoding", "identity")
    ]));
    assert!(!scanned(&[("content-type", "application/json"), ("content-encoding", "gzip")]));
    assert!(!scanned(&[("content-type", "text/html")]));
    assert!(!scanned(&[]));
}

/// Documents whose members have few names, so that paths meet them.
fn documents() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0..2000_u64).prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|number| json!(number)),
        "[a-c\"\\\\{}\\[\\]:,\u{1}é]{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 64, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-c0-2]{1,2}", inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn expected(document: &Value, path: &str) -> Option<u64> {
    let mut place = document;
    for step in path.split('.') {
        place = match place {
            // An index has one form.
            Value::Array(elements) => {
                elements.get(step.parse::<usize>().ok().filter(|index| index.to_string() == step)?)?
            }
            _ => place.get(step)?,
        };
    }
    place.as_u64().filter(|number| *number <= MAX)
}

/// Cuts a text into pieces of these lengths, the last as long as the rest.
fn cut<'a>(mut text: &'a [u8], lengths: &[usize]) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    for length in lengths {
        let (piece, rest) = text.split_at((*length).min(text.len()));
        pieces.push(piece);
        text = rest;
    }
    pieces.push(text);
    pieces
}

proptest! {
    #[test]
    fn the_largest_number_is_that_of_the_trees(
        documents in prop::collection::vec(documents(), 1..4),
        paths in prop::collection::vec("[a-c0-2]{1,2}(\\.[a-c0-2]{1,2}){0,3}", 1..5),
        lengths in prop::collection::vec(0..12_usize, 0..60),
        is_pretty in any::<bool>(),
    ) {
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        let expected = documents.iter().flat_map(|document| paths.iter().filter_map(|path| expected(document, path))).max();
        let text = |document: &Value| if is_pretty { format!("{document:#}") } else { document.to_string() };
        let sequence = documents.iter().map(|document| text(document) + "\n").collect::<String>();
        prop_assert_eq!(largest(JSON, &paths, cut(sequence.as_bytes(), &lengths)), expected);
        let events = documents.iter().map(|document| {
            let lines: String = text(document).lines().map(|line| format!("data: {line}\r\n")).collect();
            format!("event: x\r\n{lines}\r\n")
        });
        prop_assert_eq!(largest(EVENTS, &paths, cut(events.collect::<String>().as_bytes(), &lengths)), expected);
    }

    #[test]
    fn any_bytes_are_scanned(
        bytes in prop::collection::vec(prop_oneof![
            prop::sample::select(b"{}[]\",:\\ a01\r\n".to_vec()),
            any::<u8>(),
        ], 0..120),
        lengths in prop::collection::vec(0..5_usize, 0..60),
    ) {
        for kind in [JSON, EVENTS] {
            let whole = largest(kind, &["a", "a.0", "0.a.1"], [&bytes[..]]);
            prop_assert_eq!(largest(kind, &["a", "a.0", "0.a.1"], cut(&bytes, &lengths)), whole);
        }
    }
}
