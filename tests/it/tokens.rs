//! Requests of language models: estimated when they come, settled by what their responses say.

use crate::support::{PATIENCE, RedisServer, Reply, Request, Upstream, Weir, client, eventually, lane};

/// Returns a configuration of 1000 requests and 10 000 tokens an hour, counted as `cost` says.
fn config(store: &str, cost: &str, url: &str) -> String {
    format!(
        "store: {store}\nlimiters:\n  requests: {{limits: [1000/1h], group: ai}}\n  tokens: {{limits: [10000/1h], group: ai}}\nroutes:\n  \
         - name: all\n    match: {{}}\n    upstream: {url}\n    limiters: [requests, {{name: tokens, cost: {cost}}}]\n"
    )
}

fn asking(max_tokens: u32) -> Request {
    let body =
        format!("{{\"messages\": [{{\"content\": \"{}\"}}], \"max_tokens\": {max_tokens}}}", "x".repeat(293));
    Request::post("/v1/chat/completions", body.as_bytes()).header("content-type", "application/json")
}

fn telling(status: u16, usage: &str) -> Reply {
    Reply::status(status).header("content-type", "application/json").body(format!("{{\"usage\": {usage}}}"))
}

#[tokio::test]
async fn what_was_used_counts_where_the_provider_says_so() {
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
        eventually(&format!("{left} and {requests} are left"), PATIENCE, async || {
            weir.available("tokens").await == [left] && weir.available("requests").await == [requests]
        })
        .await;
    }
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
        eventually(&format!("{preset} takes {used}"), PATIENCE, async || {
            // The parts that count of Gemini's body are not there, so all of it is: 340 bytes.
            let left = weir.available("tokens").await[0];
            if preset == "gemini" { left < 10_000 - used && left > 9800 } else { left == 10_000 - used }
        })
        .await;
    }
}
