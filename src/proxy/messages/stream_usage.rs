//! Asks a streamed answer of a language model for its usage, where the caller has not, and hides from the caller what the answer then has
//! beyond the one that it asked for.
//!
//! OpenAI's chat completions tell the usage of a stream with `stream_options: {include_usage: true}` alone: by a last event without choices
//! (<https://platform.openai.com/docs/api-reference/chat/create>, as others quoted it in November 2026). Decides nothing about costs.

use std::sync::LazyLock;

use bytes::Bytes;
use http::{HeaderName, Response};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::body_facts::Body;
use super::body_numbers::{Kind, line_end};
use super::coding;
use super::end_to_end::EndToEnd;
use super::json_values::Found;
use crate::config::model::JsonPath;

/// The member that asks for the usage, as it is put in front of the others.
pub(crate) const MEMBER: &[u8] = br#""stream_options":{"include_usage":true},"#;

/// The longest event that is held until its end has come; the one with the usage has some hundred bytes.
const HELD_MAX: usize = 8 * 1024;

/// Headers with a digest or a signature of the body, which must not be changed then.
const DIGESTS: [HeaderName; 5] = [
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("repr-digest"),
    HeaderName::from_static("digest"),
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("x-amz-content-sha256"),
];

/// The members of a request that decide: whether it is for a stream, and what it says of the usage.
static PLACES: LazyLock<[JsonPath; 2]> =
    LazyLock::new(|| ["stream", "stream_options"].map(JsonPath::of_member));

/// Returns the places in bodies that [`lacks_usage`] looks at.
pub(crate) fn places() -> &'static [JsonPath] {
    &*PLACES
}

/// The end of the paths of chat completions and of completions. Other APIs refuse a request with the member that asks.
const PATH_END: &str = "/completions";

/// Returns whether a request asks for a stream, of a kind that can tell its usage, and says nothing of that.
pub(crate) fn lacks_usage(path: &str, body: Body<'_>) -> bool {
    let [stream, stream_options] = PLACES.each_ref().map(|place| body.found(place));
    path.ends_with(PATH_END)
        && matches!(stream, Found::Value(value) if **value == *"true")
        && *stream_options == Found::Nothing
}

/// Returns whether the body of a request can be changed: it is in no content coding, and the headers do not vouch for its bytes.
pub(crate) fn can_change(headers: &EndToEnd<'_>) -> bool {
    coding::of_request(headers).is_empty() && !DIGESTS.iter().any(|name| headers.has(name))
}

/// Returns whether a response is a stream whose events can be hidden.
pub(crate) fn is_stream<B>(response: &Response<B>) -> bool {
    response.status().is_success() && Kind::of(response.headers()) == Some(Kind::Events)
}

/// A stream of server-sent events without the one that tells the usage alone. Holds one event, and a longer one than that tells no usage.
#[derive(Default)]
pub(crate) struct WithoutUsage {
    /// The begin of an event whose end has not come.
    held: Vec<u8>,
    place: Place,
    /// True in an event that is too long to be held.
    is_long: bool,
}

/// The place in a line.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Place {
    /// At its begin.
    #[default]
    Begin,
    /// At the begin of one, behind a carriage return, to which a line feed belongs.
    BehindReturn,
    /// The same behind an event that was hidden.
    BehindHidden,
    Inside,
}

impl WithoutUsage {
    /// Takes a further piece of the stream, and returns what of it can go on.
    pub(crate) fn see(&mut self, piece: &[u8]) -> Bytes {
        let mut out = Vec::with_capacity(self.held.len() + piece.len());
        let mut begin = 0;
        // The begin of a line.
        let mut line = 0;
        while let Some(length) = line_end(&piece[line..]) {
            if length > 0 {
                self.place = Place::Inside;
            }
            let at = line + length;
            let byte = piece[at];
            let behind = if byte == b'\r' { Place::BehindReturn } else { Place::Begin };
            self.place = match (self.place, byte) {
                (Place::BehindHidden, b'\n') => {
                    begin = at + 1;
                    Place::Begin
                }
                (Place::BehindReturn, b'\n') => {
                    // Behind an event it must not wait for the next one.
                    if at == begin && self.held.is_empty() {
                        out.push(b'\n');
                        begin = at + 1;
                    }
                    Place::Begin
                }
                (Place::Inside, _) => behind,
                // An empty line ends the event.
                (Place::Begin | Place::BehindReturn | Place::BehindHidden, _) => {
                    let is_hidden = self.end(&piece[begin..=at], &mut out);
                    begin = at + 1;
                    if is_hidden && byte == b'\r' { Place::BehindHidden } else { behind }
                }
            };
            line = at + 1;
        }
        if line < piece.len() {
            self.place = Place::Inside;
        }
        self.held.extend_from_slice(&piece[begin..]);
        if self.is_long || self.held.len() > HELD_MAX {
            self.is_long = true;
            out.append(&mut self.held);
        }
        out.into()
    }

    /// Returns what is left at the end of the stream.
    pub(crate) fn rest(&mut self) -> Option<Bytes> {
        let rest = std::mem::take(&mut self.held);
        (!rest.is_empty() && !tells_usage_alone(&rest)).then(|| rest.into())
    }

    /// Returns whether something is left.
    pub(crate) fn has_rest(&self) -> bool {
        !self.held.is_empty()
    }

    /// Takes the rest of an event. Returns whether it is hidden.
    fn end(&mut self, last: &[u8], out: &mut Vec<u8>) -> bool {
        self.held.extend_from_slice(last);
        let is_long = std::mem::take(&mut self.is_long);
        let is_hidden = !is_long && tells_usage_alone(&self.held);
        if is_hidden {
            self.held.clear();
        }
        out.append(&mut self.held);
        is_hidden
    }
}

/// Returns whether an event has the usage and no choices.
fn tells_usage_alone(event: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Chunk {
        choices: [IgnoredAny; 0],
        usage: Option<IgnoredAny>,
    }
    let lines = event.split(|byte| matches!(byte, b'\n' | b'\r'));
    let data: Vec<&[u8]> = lines.filter_map(|line| line.strip_prefix(b"data:")).collect();
    serde_json::from_slice::<Chunk>(&data.join(&b"\n"[..]))
        .is_ok_and(|Chunk { choices: [], usage }| usage.is_some())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
    use http::{HeaderMap, HeaderValue};

    use super::super::body_facts::{BodyFacts, BodyPaths};
    use super::super::header_flags::HeaderFlags;
    use super::*;

    #[test]
    fn a_stream_that_says_nothing_of_its_usage_lacks_it() {
        let mut paths = BodyPaths::default();
        places().iter().for_each(|place| paths.add_value(place));
        let paths = Arc::new(paths);
        for (body, lacks) in [
            (r#"{"stream": true, "messages": []}"#, true),
            (" \n{\"prompt\": \"a\", \"model\": \"b\", \"stream\": true}", true),
            (r#"{"stream": false, "messages": []}"#, false),
            (r#"{"messages": []}"#, false),
            (r#"{"stream": true, "messages": [], "stream_options": null}"#, false),
            (r#"{"stream": true, "messages": [], "stream_options": {"include_usage": true}}"#, false),
            (r#"{"stream": true, "stream": true, "messages": []}"#, false),
            (r#"{"stream": true, "messages": [], "Stream_Options": {}}"#, false),
            (r#"{"stream": 1, "messages": []}"#, false),
            (r#"[true, 1, [], 1]"#, false),
            (r#"{"stream": true, "messages": []"#, false),
        ] {
            let facts = BodyFacts::of(body.as_bytes(), "", 1000, &paths);
            for path in ["/openai/v1/chat/completions", "/azure/openai/deployments/a/completions"] {
                assert_eq!(lacks_usage(path, facts.up_to(1000)), lacks, "{body}");
                assert!(!lacks_usage(path, facts.up_to(10)), "{body}");
            }
            // They tell it without being asked, and refuse a member that they do not know.
            for path in ["/v1/responses", "/v1/images/generations", "/v1/completions/1"] {
                assert!(!lacks_usage(path, facts.up_to(1000)), "{path}");
            }
        }
    }

    #[test]
    fn a_body_that_is_coded_or_signed_cannot_be_changed() {
        let of = |name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(value));
            let here = [("connection", "close"), ("connection", name)].map(|(connection, ended)| {
                headers.insert(connection, HeaderValue::from_static(ended));
                can_change(&EndToEnd::new(&headers, HeaderFlags::of(&headers), false))
            });
            assert!(here[1], "{name} does not go upstream");
            here[0]
        };
        assert!(of("content-encoding", "Identity") && of("content-type", "application/json"));
        assert!(!of("content-encoding", "gzip") && !of("content-digest", "sha-256=:AA==:"));
    }

    /// Returns what is left of a stream that comes in pieces.
    fn passed<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> String {
        let mut stream = WithoutUsage::default();
        let mut out: Vec<u8> = Vec::new();
        for piece in pieces {
            out.extend(stream.see(piece));
            assert!(stream.held.len() <= HELD_MAX);
        }
        out.extend(stream.rest().unwrap_or_default());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_event_with_the_usage_alone_is_hidden_wherever_the_stream_is_cut() {
        const USAGE: &str =
            r#"data: {"id":"1","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}"#;
        let kept = [
            r#"data: {"id":"1","choices":[{"delta":{"content":"\"usage\": {} π"}}],"usage":null}"#,
            r#"data: {"choices":[],"prompt_filter_results":[],"usage":null}"#,
            "event: other\ndata: {\"choices\":\ndata: [1],\"usage\":{}}",
            ": a comment",
            "data: [DONE]",
        ];
        for end in ["\n", "\r\n", "\r"] {
            let events = |all: &[&str]| -> String {
                all.iter().map(|event| event.replace('\n', end) + end + end).collect()
            };
            let [one, two, three, four, five] = kept;
            let stream = events(&[one, two, three, four, USAGE, five]);
            let expected = events(&kept);
            for size in 1..stream.len() {
                assert_eq!(passed(stream.as_bytes().chunks(size)), expected, "{end:?}, {size} bytes each");
            }
            // An event that has come whole goes on at once.
            let mut begun = WithoutUsage::default();
            assert_eq!(begun.see(events(&[one]).as_bytes()), events(&[one]));
            // One that is not ended, as some servers leave the last one.
            assert_eq!(passed(std::iter::once(USAGE.as_bytes())), "");
            assert_eq!(passed(std::iter::once(&b"data: 1"[..])), "data: 1");
        }
        let long =
            format!("data: {{\"choices\":[],\"usage\":{{}},\"x\":\"{}\"}}\n\n", "a".repeat(2 * HELD_MAX));
        assert_eq!(passed(long.as_bytes().chunks(1000)), long);
    }

    #[test]
    fn only_plain_streams_are_looked_into() {
        let response = |status: u16, kind: &str, coding: Option<&str>| {
            let builder = Response::builder().status(status).header(CONTENT_TYPE, kind);
            let builder =
                coding.into_iter().fold(builder, |builder, it| builder.header(CONTENT_ENCODING, it));
            is_stream(&builder.body(()).unwrap())
        };
        assert!(response(200, "text/event-stream; charset=utf-8", None));
        assert!(!response(429, "text/event-stream", None));
        assert!(!response(200, "application/json", None));
        assert!(!response(200, "text/event-stream", Some("gzip")));
    }
}
