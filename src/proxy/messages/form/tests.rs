//! Each form as the SDKs read it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::{HeaderValue, Method, Request};
use serde_json::{Value, json};

use super::{Names, Reader, Words, Written, service};
use crate::clock::Micros;
use crate::config::model::Errors;
use crate::proxy::messages::header_flags::HeaderFlags;

const SIGNED: &str =
    "AWS4-HMAC-SHA256 Credential=AKID/20260101/eu-west-1/SERVICE/aws4_request, SignedHeaders=host";

fn words(message: &str) -> Words<'_> {
    Words {
        status: 429,
        names: Names {
            kind: "rate_limit_error",
            google: "RESOURCE_EXHAUSTED",
            grpc: 8,
            aws: "ThrottlingException",
            notion: "rate_limited",
        },
        code: "rate_limited",
        problem_type: "about:blank",
        title: "a title",
        detail: "a detail",
        message,
        limiter: Some("api"),
        violated: Some("api:1/1s"),
        retry_after: Some(Micros(1_234_567)),
    }
}

fn reader(headers: &[(&'static str, &str)]) -> Reader {
    let mut request = Request::new(());
    for (name, value) in headers {
        request.headers_mut().insert(*name, HeaderValue::from_str(value).unwrap());
    }
    let flags = HeaderFlags::of(request.headers());
    Reader::of(&request, flags)
}

fn written(errors: Errors, headers: &[(&'static str, &str)]) -> Written {
    words("weir says <no> & why").write(reader(headers), errors)
}

fn json_of(written: &Written) -> Value {
    serde_json::from_slice(&written.body).unwrap()
}

fn signed(service: &str) -> String {
    SIGNED.replace("SERVICE", service)
}

#[test]
fn the_default_has_what_most_sdks_read_beside_the_problem() {
    let written = written(Errors::Json, &[("accept", "application/json")]);
    assert_eq!(written.headers["content-type"], "application/json");
    let document = json!({
        "type": "about:blank", "title": "a title", "status": 429, "detail": "weir says <no> & why", "code": "rate_limited",
        "limiter": "api", "retry_after_ms": 1235, "violated-policies": ["api:1/1s"],
        "message": "weir says <no> & why",
        "error": {"message": "weir says <no> & why", "type": "rate_limit_error", "code": "rate_limited"},
    });
    assert_eq!(json_of(&written), document);
    assert_eq!(written.length, Some(written.body.len()));
}

#[test]
fn a_problem_document_is_sent_where_the_route_or_the_request_asks() {
    let accepts = [("accept", "application/json;q=0.9, Application/Problem+JSON")];
    for (errors, headers) in [
        (Errors::Problem, &[][..]),
        (Errors::Problem, &[("x-amz-date", "now")]),
        (Errors::Json, &accepts),
        (Errors::Anthropic, &accepts),
        (Errors::Aws, &accepts),
    ] {
        let written = written(errors, headers);
        assert_eq!(written.headers["content-type"], "application/problem+json");
        let problem = json_of(&written);
        assert_eq!((&problem["detail"], &problem["message"]), (&json!("a detail"), &Value::Null));
    }
}

#[test]
fn a_form_that_the_request_refuses_is_not_sent() {
    for refused in ["application/problem+json;q=0", "application/problem+json; Q=0.000, text/plain"] {
        assert_eq!(written(Errors::Json, &[("accept", refused)]).headers["content-type"], "application/json");
    }
    for asked in ["application/problem+json;q=0.1", "text/plain;q=0, application/problem+json"] {
        let media_type = &written(Errors::Json, &[("accept", asked)]).headers["content-type"];
        assert_eq!(media_type, "application/problem+json");
    }
}

#[test]
fn anthropic_google_and_elasticsearch_have_their_own() {
    let anthropic =
        json!({"type": "error", "error": {"type": "rate_limit_error", "message": "weir says <no> & why"}});
    assert_eq!(json_of(&written(Errors::Anthropic, &[])), anthropic);
    let google = json_of(&written(Errors::Google, &[]));
    assert_eq!(google["error"]["code"], 429);
    assert_eq!(google["error"]["status"], "RESOURCE_EXHAUSTED");
    assert_eq!(google["error"]["message"], "weir says <no> & why");
    assert_eq!(google["error"]["details"][0]["metadata"], json!({"limiter": "api"}));
    assert_eq!(google["error"]["details"][1]["retryDelay"], "1.235s");
    let elasticsearch = json_of(&written(Errors::Elasticsearch, &[]));
    assert_eq!(elasticsearch["status"], 429);
    assert_eq!(elasticsearch["error"]["root_cause"][0]["reason"], "weir says <no> & why");
}

#[test]
fn clients_of_elasticsearch_and_notion_are_known_by_their_headers() {
    let accept = ("accept", "application/vnd.elasticsearch+json; compatible-with=9,text/plain");
    let version = ("notion-version", "2025-09-03");
    let notion = json!({
        "object": "error", "status": 429, "code": "rate_limited", "message": "weir says <no> & why",
    });
    let elasticsearch = |form: &Written| json_of(form)["error"]["root_cause"][0]["reason"].is_string();
    assert!(elasticsearch(&written(Errors::Json, &[accept])));
    for (errors, headers) in
        [(Errors::Json, &[version][..]), (Errors::Notion, &[]), (Errors::Notion, &[accept])]
    {
        assert_eq!(json_of(&written(errors, headers)), notion);
    }
    // A name that a route reads counts.
    for header in [accept, version] {
        assert_eq!(json_of(&written(Errors::Google, &[header]))["error"]["code"], 429);
    }
}

#[test]
fn twilio_gets_no_problem_document() {
    // Its SDK for Python, which tells its version, makes another exception of one.
    let document = json!({"code": 20429, "message": "weir says <no> & why", "status": 429});
    assert_eq!(json_of(&written(Errors::Twilio, &[])), document);
    assert_eq!(json_of(&written(Errors::Json, &[("x-twilio-client", "python-9.13.0")])), document);
    let mut other = words("why");
    (other.status, other.names.grpc) = (404, 14);
    let document = json!({"code": 404, "message": "why", "status": 404});
    assert_eq!(json_of(&other.write(reader(&[]), Errors::Twilio)), document);
}

#[test]
fn aws_gets_json_or_xml_by_its_protocol() {
    let xml = "<Code>Throttling</Code><Message>weir says &lt;no&gt; &amp; why</Message>";
    let form = "application/x-www-form-urlencoded; charset=utf-8";
    let start = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
    for (service, kind, expected) in [
        ("s3", "text/plain", format!("{start}<Error>{xml}</Error>\n")),
        ("s3express", "application/json", format!("{start}<Error>{xml}</Error>\n")),
        ("s3-outposts", "application/xml", format!("{start}<Error>{xml}</Error>\n")),
        ("sqs", form, format!("{start}<ErrorResponse><Error>{xml}</Error></ErrorResponse>\n")),
        (
            "route53",
            "application/xml",
            format!("{start}<ErrorResponse><Error>{xml}</Error></ErrorResponse>\n"),
        ),
        ("ec2", form, format!("{start}<Response><Errors><Error>{xml}</Error></Errors></Response>\n")),
    ] {
        let authorization = signed(service);
        let headers = [("authorization", &*authorization), ("x-amz-date", "now"), ("content-type", kind)];
        // The signature alone is enough where the route asks for nothing else.
        for errors in [Errors::Aws, Errors::Json] {
            let written = written(errors, &headers);
            assert_eq!(String::from_utf8(written.body).unwrap(), expected, "{service}");
            assert_eq!(written.headers["content-type"], "application/xml");
            assert_eq!(written.headers["x-amz-retry-after"], "1235");
        }
    }
    let (lambda, vectors) = (signed("lambda"), signed("s3vectors"));
    for headers in [
        &[("content-type", "application/x-amz-json-1.0"), ("x-amz-target", "DynamoDB_20120810.GetItem")][..],
        &[("authorization", &lambda), ("x-amz-date", "now")],
        &[("authorization", &vectors), ("x-amz-date", "now"), ("content-type", "application/json")],
        &[("content-type", "application/json")],
    ] {
        let written = written(Errors::Aws, headers);
        let error = json!({"__type": "ThrottlingException", "message": "weir says <no> & why"});
        assert_eq!(json_of(&written), error);
        assert_eq!(written.headers["x-amzn-errortype"], "ThrottlingException");
        assert_eq!(written.headers["x-amz-retry-after"], "1235");
    }
    // A URL that is signed in its query has no header of AWS.
    assert!(written(Errors::Aws, &[]).body.starts_with(b"<?xml"));
    assert!(written(Errors::Json, &[]).body.starts_with(b"{"));
}

/// boto3 speaks it to CloudWatch. It takes the begin of a JSON document for a text of exabytes.
#[test]
fn aws_gets_cbor_where_it_speaks_cbor() {
    let cloudwatch = signed("monitoring");
    let protocol = ("smithy-protocol", "rpc-v2-cbor");
    for (errors, headers) in [
        (Errors::Json, &[protocol, ("authorization", &cloudwatch), ("x-amz-date", "now")][..]),
        (Errors::Aws, &[protocol, ("content-type", "application/cbor")]),
    ] {
        let written = written(errors, headers);
        let mut decoder = minicbor::Decoder::new(&written.body);
        assert_eq!(decoder.map().unwrap(), Some(2));
        let texts = [(); 4].map(|()| decoder.str().unwrap());
        assert_eq!(texts, ["__type", "ThrottlingException", "message", "weir says <no> & why"]);
        assert_eq!((decoder.position(), written.length), (written.body.len(), Some(written.body.len())));
        for (name, value) in [protocol, ("content-type", "application/cbor"), ("x-amz-retry-after", "1235")] {
            assert_eq!(written.headers[name], value);
        }
    }
}

#[test]
fn grpc_tells_its_code_the_delay_and_the_details() {
    for errors in [Errors::Json, Errors::Aws] {
        let written = written(
            errors,
            &[("content-type", "application/grpc+proto"), ("accept", "application/problem+json")],
        );
        assert!(written.body.is_empty() && written.length.is_none() && !written.has_status);
        assert_eq!(written.headers["grpc-status"], "8");
        assert_eq!(written.headers["grpc-message"], "weir says <no> & why");
        assert_eq!(written.headers["grpc-retry-pushback-ms"], "1235");
    }
    // google.rpc.Status { code: 8, message: "no", details: [RetryInfo { retry_delay: 1.234567 s }] }
    let written = words("no").write(reader(&[("content-type", "application/grpc")]), Errors::Json);
    let details = STANDARD_NO_PAD.decode(&written.headers["grpc-status-details-bin"]).unwrap();
    let mut expected = b"\x08\x08\x12\x02no\x1a\x35\x0a\x28type.googleapis.com/google.rpc.RetryInfo".to_vec();
    expected.extend(b"\x12\x09\x0a\x07\x08\x01\x10\xd8\xea\xec\x6f");
    assert_eq!(details, expected);
}

#[test]
fn a_delay_that_no_client_could_read_stays_positive() {
    let forever = Words { retry_after: Some(Micros(u64::MAX)), ..words("no") };
    let written = forever.write(reader(&[("content-type", "application/grpc")]), Errors::Json);
    assert_eq!(written.headers["grpc-retry-pushback-ms"], "2147483647");
}

#[test]
fn head_gets_the_length_alone() {
    let mut request = Request::new(());
    *request.method_mut() = Method::HEAD;
    let reader = Reader::of(&request, HeaderFlags::of(request.headers()));
    for errors in [Errors::Json, Errors::Aws] {
        let written = words("no").write(reader, errors);
        assert!(written.body.is_empty() && written.length.is_some_and(|length| length > 0));
    }
}

#[test]
fn the_service_is_read_from_the_scope_of_a_signature() {
    let of = |text: &'static str| {
        let value = HeaderValue::from_static(text);
        service(&value).map(str::to_owned)
    };
    assert_eq!(of("AWS4-HMAC-SHA256 Credential=A/20260101/us/s3/aws4_request, X=1").as_deref(), Some("s3"));
    assert_eq!(of("AWS4-ECDSA-P256-SHA256 Credential=A/20260101/sqs/aws4_request").as_deref(), Some("sqs"));
    for other in ["Bearer x", "AWS4-HMAC-SHA256 Credential=A", "AWS A:b"] {
        assert_eq!(of(other), None, "{other}");
    }
}
