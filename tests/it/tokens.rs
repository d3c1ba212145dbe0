//! Requests of language models: estimated when they come, settled by what their responses say.

use std::time::{Duration, Instant};

use crate::support::upstream::Seen;
use crate::support::{Pending, RedisServer, Reply, Request, Upstream, Weir, client, eventually, lane};

/// Returns a configuration of 1000 requests and 10 000 tokens an hour, counted as `cost` says.
fn config(store: &str, cost: &str, url: &str) -> String {
    limited(store, ["1000/1h]", "10000/1h]"], cost, url)
}

/// Returns the same with other limits, and what follows each.
fn limited(store: &str, [requests, tokens]: [&str; 2], cost: &str, url: &str) -> String {
    format!(
        "store: {store}\nlimiters:\n  requests: {{group: ai, limits: [{requests}}}\n  tokens: {{group: ai, limits: [{tokens}}}\nroutes:\n  \
         - name: all\n    match: {{}}\n    upstream: {url}\n    limiters: [requests, {{name: tokens, cost: {cost}}}]\n"
    )
}

fn asking(max_tokens: u32) -> Request {
    asking_at("/v1/chat/completions", max_tokens)
}

fn asking_at(path: &str, max_tokens: u32) -> Request {
    let body =
        format!("{{\"messages\": [{{\"content\": \"{}\"}}], \"max_tokens\": {max_tokens}}}", "x".repeat(293));
    Request::post(path, body.as_bytes()).header("content-type", "application/json")
}

fn telling(status: u16, usage: &str) -> Reply {
    Reply::status(status).header("content-type", "application/json").body(format!("{{\"usage\": {usage}}}"))
}

#[tokio::test]
async fn reported_usage_replaces_the_estimate() {
    let _lane = lane::shared().await;
    let (upstream, redis) = (Upstream::start(), RedisServer::start().await);
    let cost = "{estimate: {input: {of: messages}, output: {first_of: max_tokens}}, \
        settle: {input: usage.prompt_tokens, output: usage.completion_tokens, refund: true}}";
    let weir = Weir::start(&config(&redis.store(), cost, &upstream.url())).await;
    let mut left = 10_000;
    for (number, (reply, used)) in [
        (telling(200, r#"{"prompt_tokens": 50, "completion_tokens": 20}"#), 70),
        // More than estimated: 100 for 300 bytes, and 1000.
        (telling(200, r#"{"prompt_tokens": 900, "completion_tokens": 1000}"#), 1900),
        // An answer without output.
        (telling(200, r#"{"prompt_tokens": 40}"#), 40),
        (telling(400, "null"), 0),
        (telling(503, "null"), 0),
        (telling(529, "null"), 0),
        (telling(200, "null"), 1100),
        (telling(500, "null"), 1100),
    ]
    .into_iter()
    .enumerate()
    {
        upstream.reply("/v1/chat/completions", reply);
        client::send(&weir.url("/v1/chat/completions"), asking(1000)).await.unwrap();
        left -= used;
        let requests = 999 - number as u64;
        eventually(&format!("{left} and {requests} are left"), async || {
            weir.available("tokens").await == [left] && weir.available("requests").await == [requests]
        })
        .await;
    }
}

/// The answer to such a request repeats the usage of a request before, such as that of a batch.
#[tokio::test]
async fn a_request_without_a_body_is_not_charged_for_the_usage_that_its_answer_tells() {
    const BATCH: &str = "/v1/batches/batch_1";
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    upstream.reply(BATCH, telling(200, r#"{"input_tokens": 5000, "output_tokens": 4000}"#));
    let weir = Weir::start(&config("memory", "{tokens: openai}", &upstream.url())).await;
    client::send(&weir.url(BATCH), Request::get(BATCH)).await.unwrap();
    // It is settled behind the request before.
    upstream
        .reply("/v1/chat/completions", telling(200, r#"{"prompt_tokens": 50, "completion_tokens": 2000}"#));
    client::send(&weir.url("/v1/chat/completions"), asking(1000)).await.unwrap();
    eventually("7999 are left", async || weir.available("tokens").await == [7_999]).await;
}

/// A cost that is no estimate may be told by the answer to any request.
#[tokio::test]
async fn a_request_without_a_body_is_settled_where_nothing_was_estimated() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    upstream.reply("/", telling(200, r#"{"spent": 2}"#));
    let cost = "{default: 10, settle: {input: usage.spent, refund: true}}";
    let weir = Weir::start(&config("memory", cost, &upstream.url())).await;
    client::send(&weir.url("/"), Request::get("/")).await.unwrap();
    eventually("9998 are left", async || weir.available("tokens").await == [9_998]).await;
}

#[tokio::test]
async fn a_preset_counts_as_its_provider_does() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let usage = r#"{"prompt_tokens": 50, "completion_tokens": 20, "input_tokens": 60, "output_tokens": 30}"#;
    upstream.reply("/v1/chat/completions", telling(200, usage));
    for (preset, used) in [
        ("openai", 1000),
        ("azure", 1100),
        ("anthropic-input", 60),
        ("anthropic-output", 30),
        ("gemini", 100),
    ] {
        let cost = format!("{{tokens: {preset}}}");
        let weir = Weir::start(&config("memory", &cost, &upstream.url())).await;
        client::send(&weir.url("/v1/chat/completions"), asking(1000)).await.unwrap();
        eventually(&format!("{preset} takes {used}"), async || {
            weir.available("tokens").await == [10_000 - used]
        })
        .await;
    }
}

#[tokio::test]
async fn a_stream_that_an_error_ends_keeps_the_estimate_of_its_output() {
    const START: &str = "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":60,\"output_tokens\":1}}}\n\n";
    const ERROR: &str = "data: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n";
    const DELTA: &str = "data: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":30}}\n\n";
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let weir = Weir::start(&config("memory", "{tokens: anthropic-output}", &upstream.url())).await;
    let mut left = 10_000;
    for (last, used) in [(ERROR, 1000), (DELTA, 30)] {
        let events =
            Reply::status(200).header("content-type", "text/event-stream").body([START, last].concat());
        upstream.reply("/v1/messages", events);
        client::send(&weir.url("/v1/messages"), asking_at("/v1/messages", 1000)).await.unwrap();
        left -= used;
        eventually(&format!("{left} are left"), async || weir.available("tokens").await == [left]).await;
    }
}

#[tokio::test]
async fn an_output_is_learnt_from_earlier_responses() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let cost = "{estimate: {input: {of: messages}, output: {first_of: max_tokens}, learn: p95}, \
        settle: {input: usage.prompt_tokens, output: usage.completion_tokens, refund: true}}";
    let weir = Weir::start(&config("memory", cost, &upstream.url())).await;
    let mut left = 10_000;
    for (requests, reply, used) in [
        (99, telling(200, r#"{"prompt_tokens": 10, "completion_tokens": 20}"#), 30),
        // It stays at its estimate: 100 for 300 bytes, and all that it may say.
        (1, telling(200, "null"), 1100),
        (1, telling(200, r#"{"prompt_tokens": 10, "completion_tokens": 20}"#), 30),
        // A hundred are known.
        (1, telling(200, "null"), 120),
    ] {
        upstream.reply("/v1/chat/completions", reply);
        for _ in 0..requests {
            client::send(&weir.url("/v1/chat/completions"), asking(1000)).await.unwrap();
        }
        left -= requests * used;
        eventually(&format!("{left} are left"), async || weir.available("tokens").await == [left]).await;
    }
    // Other limiters at the same places know nothing.
    let swapped = format!("limiters: [{{name: tokens, cost: {cost}}}, requests]");
    let config = config("memory", cost, &upstream.url());
    weir.reload(&config.replace(&format!("limiters: [requests, {{name: tokens, cost: {cost}}}]"), &swapped))
        .await;
    client::send(&weir.url("/v1/chat/completions"), asking(1000)).await.unwrap();
    left -= 1100;
    eventually(&format!("{left} are left"), async || weir.available("tokens").await == [left]).await;
    let ratios = weir.metrics().await;
    let counted = ratios.sum("weir_limiter_estimate_ratio_count", &[("limiter", "tokens")]);
    assert_eq!((counted, ratios.samples_of("weir_limiter_estimate_ratio_count").len()), (100.0, 1));
}

#[tokio::test]
async fn requests_are_refused_by_what_others_turned_out_to_cost() {
    let _lane = lane::shared().await;
    let (upstream, redis) = (Upstream::start(), RedisServer::start().await);
    let cost = "{estimate: {input: {of: messages}}, settle: {input: usage.prompt_tokens, refund: true}}";
    let limits = "1000/2s], queue: {timeout: 3s, max_waiting: 100}";
    let weir = Weir::start(&limited(&redis.store(), [limits, limits], cost, &upstream.url())).await;
    upstream.reply("/v1/chat/completions", telling(200, r#"{"prompt_tokens": 10}"#));
    let send = || Pending::send(&weir.url("/v1/chat/completions"), asking(0));
    for _ in 0..50 {
        client::answers(vec![send()]).await;
    }
    // They take 6000 at first, of which ten at once and twenty within the wait would fit, and use a tenth of it.
    client::assert_all_ok(&client::answers((0..60).map(|_| send()).collect()).await);
}

#[tokio::test]
async fn replicas_keep_together_what_a_provider_counts() {
    const TOKENS: u64 = 20_000;
    const WINDOW: Duration = Duration::from_secs(2);
    lane::calm(async || {
        let (upstream, redis) = (Upstream::start(), RedisServer::start().await);
        let outputs = [100, 200, 400, 800];
        for output in outputs {
            let usage = format!(r#"{{"prompt_tokens": 60, "completion_tokens": {output}}}"#);
            upstream.reply(&format!("/{output}"), telling(200, &usage));
        }
        let cost = "{estimate: {input: {of: messages}, output: {first_of: max_tokens}}, \
            settle: {input: usage.prompt_tokens, output: usage.completion_tokens, refund: true}}";
        let queue = "queue: {timeout: 60s, max_waiting: 1000}";
        let limits = ["100".into(), TOKENS.to_string()].map(|limit| format!("{limit}/2s], {queue}"));
        let limits = [&*limits[0], &limits[1]];
        let fleet = Weir::fleet(3, &limited(&redis.store(), limits, cost, &upstream.url())).await;
        let send = |place: usize| {
            let output = outputs[place % outputs.len()];
            Pending::send(&fleet[place % 3].url(""), asking_at(&format!("/{output}"), 1000))
        };
        client::assert_all_ok(&client::answers((0..160).map(send).collect()).await);
        let seen = upstream.seen();
        let used = |seen: &Seen| 60 + seen.target.trim_start_matches('/').parse::<u64>().unwrap_or_default();
        let within = |from: Instant, span: Duration| -> u64 {
            seen.iter().filter(|one| (from..from + span).contains(&one.at)).map(used).sum()
        };
        for one in &seen {
            let sent = within(one.at, WINDOW);
            assert!(sent <= TOKENS, "{sent} tokens within {WINDOW:?}");
        }
        // Until demand ends: what was given back went to those that waited.
        let began = seen[0].at;
        let sent = within(began, 2 * WINDOW);
        assert!(sent >= 2 * TOKENS * 7 / 10, "{sent} of {} tokens used", 2 * TOKENS);
    })
    .await;
}

#[tokio::test]
async fn a_stream_is_asked_for_its_usage_and_hides_it_from_a_caller_that_did_not_ask() {
    const PATH: &str = "/v1/chat/completions";
    const BEGIN: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"π\"}}],\"usage\":null}\n\n";
    const USAGE: &str =
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":50,\"completion_tokens\":20}}\n\n";
    const END: &str = "data: [DONE]\n\n";
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let whole = [BEGIN, USAGE, END].concat();
    upstream.reply(PATH, Reply::status(200).header("content-type", "text/event-stream").body(whole.clone()));
    let cost = "{tokens: openai, settle: {refund: true}}";
    let weir = Weir::start(&config("memory", cost, &upstream.url())).await;
    let hidden = [BEGIN, END].concat();
    let signed = ("content-digest", "sha-256=:AA==:");
    let mut left = 10_000;
    for (body, header, expected) in [
        (r#"{"stream": true, "messages": [], "max_tokens": 300}"#, None, &hidden),
        (
            r#"{"stream": true, "messages": [], "max_tokens": 300, "stream_options": {"include_usage": true}}"#,
            None,
            &whole,
        ),
        (r#"{"stream": true, "messages": [], "max_tokens": 300}"#, Some(signed), &whole),
        (r#"{"messages": [], "max_tokens": 300}"#, None, &whole),
    ] {
        let request = Request::post(PATH, body.as_bytes()).header("content-type", "application/json");
        let request = header.iter().fold(request, |request, (name, value)| request.header(name, value));
        let answer = client::send(&weir.url(PATH), request).await.unwrap();
        assert_eq!(&answer.text(), expected, "{body}");
        let seen = upstream.seen().pop().expect("a request");
        let told: serde_json::Value = serde_json::from_slice(&seen.body).expect("it is JSON still");
        assert_eq!(seen.headers["content-length"], seen.body.len().to_string());
        if expected == &hidden {
            assert_eq!(told["stream_options"], serde_json::json!({"include_usage": true}));
            assert_eq!(told["max_tokens"], 300);
        } else {
            assert_eq!(seen.body, body.as_bytes());
        }
        // It is settled in any case: the larger one of both.
        left -= 50;
        eventually(&format!("{left} are left"), async || weir.available("tokens").await == [left]).await;
    }
    assert_eq!(upstream.count(), 4);
}
