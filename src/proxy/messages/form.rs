//! The forms in which clients understand weir's own responses, and which of them a request wants.
//!
//! A vendor's SDK takes a body that it does not know for an error without a reason, or even for a result. Knows no status codes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde::Serialize;
use serde_json::json;

use super::header_flags::HeaderFlags;
use super::request_head::{accepts, accepts_suffix, is_grpc};
use crate::clock::Micros;
use crate::config::model::Errors;

const X_AMZ_RETRY_AFTER: HeaderName = HeaderName::from_static("x-amz-retry-after");
const X_AMZ_TARGET: HeaderName = HeaderName::from_static("x-amz-target");
const X_AMZN_ERRORTYPE: HeaderName = HeaderName::from_static("x-amzn-errortype");
const SMITHY_PROTOCOL: HeaderName = HeaderName::from_static("smithy-protocol");
const NOTION_VERSION: HeaderName = HeaderName::from_static("notion-version");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_STATUS_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const GRPC_RETRY_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// The media type of a problem document (RFC 9457).
const PROBLEM_JSON: &str = "application/problem+json";
/// The media type that Elasticsearch's clients accept.
const ELASTICSEARCH_JSON: &str = "application/vnd.elasticsearch+json";
/// The name of Smithy's RPC v2 with CBOR (<https://smithy.io/2.0/additional-specs/protocols/smithy-rpc-v2.html>).
const RPC_V2_CBOR: &str = "rpc-v2-cbor";
const APPLICATION_CBOR: &str = "application/cbor";
/// Twilio's code of a spent limit. Its codes of other statuses say more than weir knows.
const TWILIO_TOO_MANY_REQUESTS: u16 = 20429;
/// The type of Google's error detail with a delay.
const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";
/// The type of Google's error detail with a reason.
const ERROR_INFO: &str = "type.googleapis.com/google.rpc.ErrorInfo";
/// The longest delay in `grpc-retry-pushback-ms`: clients read a larger number as "do not try again".
const PUSHBACK_MS_MAX: u64 = i32::MAX as u64;
/// gRPC's code of a spent limit.
const RESOURCE_EXHAUSTED: u8 = 8;
/// The usual size of a body, to allocate once.
const BODY_BYTES: usize = 1024;
/// The characters that gRPC percent-encodes in a message, beside everything but ASCII.
const GRPC_ENCODED: &AsciiSet = &CONTROLS.add(b'%');

/// The form in which the client of a request understands a refusal, as far as its head tells.
#[derive(Clone, Copy)]
pub(crate) struct Reader {
    /// True for HEAD, whose answer has no body.
    head_only: bool,
    wish: Wish,
    aws: Aws,
}

/// The form that a request itself asks for.
#[derive(Clone, Copy)]
enum Wish {
    /// None: the route decides.
    None,
    /// gRPC, whose clients understand nothing else.
    Grpc,
    /// `Accept` names problem documents.
    Problem,
    /// The request is signed for AWS.
    Aws,
    /// `Accept` names Elasticsearch's media type.
    Elasticsearch,
    /// `Notion-Version`.
    Notion,
    /// `X-Twilio-Client`.
    Twilio,
}

/// A protocol of AWS, by the shape of its errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Aws {
    Json,
    /// Smithy's RPC v2.
    Cbor,
    /// Query, and XML over REST but for S3.
    Query,
    Ec2,
    S3,
}

impl Reader {
    /// Reads the head of a request.
    pub(crate) fn of<B>(request: &Request<B>, flags: HeaderFlags) -> Reader {
        let headers = request.headers();
        let names_suffix = flags.has(HeaderFlags::ACCEPT) && accepts_suffix(headers);
        let wish = if is_grpc(headers, flags) {
            Wish::Grpc
        } else if names_suffix && accepts(headers, PROBLEM_JSON) {
            Wish::Problem
        } else if flags.has(HeaderFlags::AWS) {
            Wish::Aws
        } else if flags.has(HeaderFlags::VENDOR) {
            if headers.contains_key(NOTION_VERSION) { Wish::Notion } else { Wish::Twilio }
        } else if names_suffix && accepts(headers, ELASTICSEARCH_JSON) {
            Wish::Elasticsearch
        } else {
            Wish::None
        };
        Reader { head_only: request.method() == Method::HEAD, wish, aws: Aws::of(headers, flags) }
    }

    /// Returns the form of a response; `errors` is what the configuration asks for.
    fn form(self, errors: Errors) -> Form {
        match (self.wish, errors) {
            (Wish::Grpc, _) => Form::Grpc,
            (Wish::Problem, _) | (_, Errors::Problem) => Form::Problem,
            (Wish::Aws, Errors::Json) | (_, Errors::Aws) => Form::Aws(self.aws),
            (Wish::Elasticsearch, Errors::Json) | (_, Errors::Elasticsearch) => Form::Elasticsearch,
            (Wish::Notion, Errors::Json) | (_, Errors::Notion) => Form::Notion,
            (Wish::Twilio, Errors::Json) | (_, Errors::Twilio) => Form::Twilio,
            (Wish::None, Errors::Json) => Form::Json,
            (_, Errors::Anthropic) => Form::Anthropic,
            (_, Errors::Google) => Form::Google,
        }
    }
}

impl Aws {
    /// Returns the protocol of a request, as far as its head tells.
    fn of(headers: &HeaderMap, flags: HeaderFlags) -> Aws {
        let value = |has, name| if has { headers.get(name) } else { None };
        let kind = value(flags.has(HeaderFlags::CONTENT_TYPE), CONTENT_TYPE);
        let kind = kind.map(HeaderValue::as_bytes).unwrap_or_default();
        let is_signed = flags.has(HeaderFlags::AWS);
        let may_be_cbor = is_signed || kind.starts_with(APPLICATION_CBOR.as_bytes());
        if may_be_cbor && headers.get(SMITHY_PROTOCOL).is_some_and(|name| name == RPC_V2_CBOR) {
            return Aws::Cbor;
        }
        if kind.starts_with(b"application/x-amz-json") || (is_signed && headers.contains_key(X_AMZ_TARGET)) {
            return Aws::Json;
        }
        let service = value(is_signed, AUTHORIZATION).and_then(service);
        match service {
            Some("ec2") => Aws::Ec2,
            _ if kind.starts_with(b"application/x-www-form-urlencoded") => Aws::Query,
            Some("cloudfront" | "route53") => Aws::Query,
            // The names by which services that speak S3's XML are signed.
            Some("s3" | "s3express" | "s3-object-lambda" | "s3-outposts") => Aws::S3,
            Some(_) => Aws::Json,
            None if kind.starts_with(b"application/json") => Aws::Json,
            // Signed in the query, or not at all.
            None => Aws::S3,
        }
    }
}

/// Returns the service in the scope of a signature: `Credential=KEY/DATE/REGION/SERVICE/aws4_request`.
fn service(authorization: &HeaderValue) -> Option<&str> {
    let (_, credential) = authorization.to_str().ok()?.split_once("Credential=")?;
    credential.split([',', ' ']).next()?.strip_suffix("/aws4_request")?.rsplit('/').next()
}

#[derive(Clone, Copy)]
enum Form {
    Json,
    Problem,
    Aws(Aws),
    Anthropic,
    Google,
    Elasticsearch,
    Notion,
    Twilio,
    Grpc,
}

/// The names that vendors have for one kind of error.
pub(crate) struct Names {
    /// Anthropic's, OpenAI's and Stripe's `type`.
    pub(crate) kind: &'static str,
    /// The name of gRPC's code, as Google's APIs over HTTP have it.
    pub(crate) google: &'static str,
    /// gRPC's code. Its clients try again after 8 (RESOURCE_EXHAUSTED) and 14 (UNAVAILABLE).
    pub(crate) grpc: u8,
    /// AWS's exception. In XML it has no `Exception` at its end.
    pub(crate) aws: &'static str,
    /// Notion's `code`. Its SDKs drop the message of a code that they do not know.
    pub(crate) notion: &'static str,
}

/// A refusal in words, before it takes a form.
pub(crate) struct Words<'a> {
    /// The status code.
    pub(crate) status: u16,
    /// The vendors' names of the error.
    pub(crate) names: Names,
    /// The value of `weir-error`.
    pub(crate) code: &'static str,
    /// The type of the problem.
    pub(crate) problem_type: &'static str,
    /// The title of the problem's type.
    pub(crate) title: &'a str,
    /// The reason.
    pub(crate) detail: &'a str,
    /// One sentence that says who refused, why, and when to come back.
    pub(crate) message: &'a str,
    /// The limiter that refused for want of a permit.
    pub(crate) limiter: Option<&'a str>,
    /// The policy that was violated.
    pub(crate) violated: Option<&'a str>,
    /// The time until a retry is worthwhile.
    pub(crate) retry_after: Option<Micros>,
}

/// A body with the headers that belong to its form.
pub(crate) struct Written {
    /// The headers.
    pub(crate) headers: HeaderMap,
    /// The body; empty where the form has none.
    pub(crate) body: Vec<u8>,
    /// The length of the body, also of one that HEAD leaves out; `None` where the form has none.
    pub(crate) length: Option<usize>,
    /// False for gRPC, which tells its status in a header.
    pub(crate) has_status: bool,
}

/// A problem document (RFC 9457).
#[derive(Serialize)]
struct Problem<'a> {
    r#type: &'a str,
    title: &'a str,
    status: u16,
    detail: &'a str,
    code: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    limiter: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(rename = "violated-policies", skip_serializing_if = "Vec::is_empty")]
    violated_policies: Vec<&'a str>,
}

/// A problem document with the members that SDKs read.
#[derive(Serialize)]
struct ForSdks<'a> {
    #[serde(flatten)]
    problem: Problem<'a>,
    message: &'a str,
    error: ErrorMember<'a>,
}

#[derive(Serialize)]
struct ErrorMember<'a> {
    message: &'a str,
    r#type: &'a str,
    code: &'a str,
}

impl Words<'_> {
    /// Writes a response for a reader.
    pub(crate) fn write(&self, reader: Reader, errors: Errors) -> Written {
        let mut headers = HeaderMap::new();
        let (media_type, body) = match reader.form(errors) {
            Form::Grpc => return self.grpc(),
            Form::Json => ("application/json", document(&self.for_sdks())),
            Form::Problem => (PROBLEM_JSON, document(&self.problem())),
            Form::Aws(protocol) => self.aws(protocol, &mut headers),
            Form::Anthropic => {
                let error = json!({"type": self.names.kind, "message": self.message});
                ("application/json", document(&json!({"type": "error", "error": error})))
            }
            Form::Google => ("application/json", document(&self.google())),
            Form::Elasticsearch => ("application/json", document(&self.elasticsearch())),
            Form::Notion => {
                let (status, code, message) = (self.status, self.names.notion, self.message);
                let error = json!({"object": "error", "status": status, "code": code, "message": message});
                ("application/json", document(&error))
            }
            Form::Twilio => {
                let code = if self.names.grpc == RESOURCE_EXHAUSTED {
                    TWILIO_TOO_MANY_REQUESTS
                } else {
                    self.status
                };
                let error = json!({"code": code, "message": self.message, "status": self.status});
                ("application/json", document(&error))
            }
        };
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
        let length = Some(body.len());
        let body = if reader.head_only { Vec::new() } else { body };
        Written { headers, body, length, has_status: true }
    }

    fn problem(&self) -> Problem<'_> {
        Problem {
            r#type: self.problem_type,
            title: self.title,
            status: self.status,
            detail: self.detail,
            code: self.code,
            limiter: self.limiter,
            retry_after_ms: self.retry_after.map(Micros::millis_up),
            violated_policies: self.violated.into_iter().collect(),
        }
    }

    fn for_sdks(&self) -> ForSdks<'_> {
        let error = ErrorMember { message: self.message, r#type: self.names.kind, code: self.code };
        // Some SDKs show the members of RFC 9457 alone.
        let problem = Problem { detail: self.message, ..self.problem() };
        ForSdks { problem, message: self.message, error }
    }

    /// Makes AWS's error, and adds its headers.
    fn aws(&self, protocol: Aws, headers: &mut HeaderMap) -> (&'static str, Vec<u8>) {
        if let Some(delay) = self.retry_after {
            headers.insert(X_AMZ_RETRY_AFTER, HeaderValue::from(delay.millis_up()));
        }
        if protocol == Aws::Cbor {
            headers.insert(SMITHY_PROTOCOL, HeaderValue::from_static(RPC_V2_CBOR));
            return (APPLICATION_CBOR, cbor(&[("__type", self.names.aws), ("message", self.message)]));
        }
        if protocol == Aws::Json {
            headers.insert(X_AMZN_ERRORTYPE, HeaderValue::from_static(self.names.aws));
            let error = json!({"__type": self.names.aws, "message": self.message});
            return ("application/json", document(&error));
        }
        let code = self.names.aws.strip_suffix("Exception").unwrap_or(self.names.aws);
        let message = xml_text(self.message);
        let error = format!("<Code>{code}</Code><Message>{message}</Message>");
        let document = match protocol {
            Aws::Ec2 => format!("<Response><Errors><Error>{error}</Error></Errors></Response>"),
            Aws::Query => format!("<ErrorResponse><Error>{error}</Error></ErrorResponse>"),
            Aws::S3 | Aws::Json | Aws::Cbor => format!("<Error>{error}</Error>"),
        };
        let document = format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{document}\n");
        ("application/xml", document.into_bytes())
    }

    fn google(&self) -> serde_json::Value {
        let limiter = self.limiter.map(|limiter| json!({"limiter": limiter}));
        let mut details = vec![json!({
            "@type": ERROR_INFO, "reason": self.code, "domain": "weir", "metadata": limiter.unwrap_or_else(|| json!({})),
        })];
        if let Some(delay) = self.retry_after.map(Micros::millis_up) {
            let delay = format!("{}.{:03}s", delay / 1000, delay % 1000);
            details.push(json!({"@type": RETRY_INFO, "retryDelay": delay}));
        }
        json!({"error": {
            "code": self.status, "message": self.message, "status": self.names.google, "details": details,
        }})
    }

    fn elasticsearch(&self) -> serde_json::Value {
        let cause = json!({"type": self.code, "reason": self.message});
        json!({
            "error": {"root_cause": [cause], "type": self.code, "reason": self.message},
            "status": self.status,
        })
    }

    /// Makes gRPC's trailers-only response.
    fn grpc(&self) -> Written {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(GRPC_STATUS, HeaderValue::from(u16::from(self.names.grpc)));
        let message = utf8_percent_encode(self.message, GRPC_ENCODED).to_string();
        if let Ok(message) = HeaderValue::try_from(message) {
            headers.insert(GRPC_MESSAGE, message);
        }
        if let Some(delay) = self.retry_after {
            let pushback = delay.millis_up().min(PUSHBACK_MS_MAX);
            headers.insert(GRPC_RETRY_PUSHBACK, HeaderValue::from(pushback));
            let details = STANDARD_NO_PAD.encode(self.grpc_details(delay));
            if let Ok(details) = HeaderValue::try_from(details) {
                headers.insert(GRPC_STATUS_DETAILS, details);
            }
        }
        Written { headers, body: Vec::new(), length: None, has_status: false }
    }

    /// Returns a `google.rpc.Status` with `google.rpc.RetryInfo`, in Protocol Buffers.
    fn grpc_details(&self, delay: Micros) -> Vec<u8> {
        let nanos = delay.0 % 1_000_000 * 1000;
        let duration = [number(1, delay.0 / 1_000_000), number(2, nanos)].concat();
        let any = [bytes(1, RETRY_INFO.as_bytes()), bytes(2, &bytes(1, &duration))].concat();
        [number(1, self.names.grpc.into()), bytes(2, self.message.as_bytes()), bytes(3, &any)].concat()
    }
}

/// Writes JSON and a line end, for readers in a terminal.
fn document(value: &impl Serialize) -> Vec<u8> {
    let mut document = Vec::with_capacity(BODY_BYTES);
    // Writing strings and numbers to memory does not fail.
    let _ = serde_json::to_writer(&mut document, value);
    document.push(b'\n');
    document
}

/// Writes a map of texts as CBOR (RFC 8949).
fn cbor(members: &[(&str, &str)]) -> Vec<u8> {
    let mut encoder = minicbor::Encoder::new(Vec::with_capacity(BODY_BYTES));
    // Writing to memory does not fail.
    let _ = encoder.map(members.len() as u64);
    for (name, text) in members {
        let _ = encoder.str(name).and_then(|encoder| encoder.str(text));
    }
    encoder.into_writer()
}

fn xml_text(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Encodes a field that is a number.
fn number(field: u8, value: u64) -> Vec<u8> {
    let mut encoded = vec![field << 3];
    push_varint(&mut encoded, value);
    encoded
}

/// Encodes a field that is a text or a message.
fn bytes(field: u8, value: &[u8]) -> Vec<u8> {
    let mut encoded = vec![field << 3 | 2];
    push_varint(&mut encoded, value.len() as u64);
    encoded.extend_from_slice(value);
    encoded
}

fn push_varint(encoded: &mut Vec<u8>, mut value: u64) {
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        if value == 0 {
            return encoded.push(low & 0x7f);
        }
        encoded.push(low | 0x80);
    }
}

#[cfg(test)]
mod tests;
