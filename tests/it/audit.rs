//! The audit line: each action by hand is in the log, with no secret.

use serde_json::{Value, json};

use crate::support::{Request, Upstream, Weir, client, lane, one_limiter, poll_for};

#[tokio::test]
async fn each_action_by_hand_leaves_a_line_with_who_what_and_outcome() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let limiter = one_limiter("memory", "{limits: [3/1m]}", &upstream);
    let listen = "listen: 127.0.0.1:0\nadmin: {listen: 127.0.0.1:0, token: t0ken, read_token: r3ad}\nlog: {format: json}";
    let weir = Weir::start_whole(&format!("{listen}\n{limiter}")).await;
    assert_eq!(weir.tell("/api/limiters/api/reset").await.status, 401);
    let act_as = async |token: &str, target: &str, body: &str| {
        let request =
            Request::post(target, body.as_bytes()).header("authorization", &format!("Bearer {token}"));
        client::send(&weir.admin(target), request).await.expect("an answer").status
    };
    let act = async |target: &str, body: &str| act_as("t0ken", target, body).await;
    assert_eq!(act_as("r3ad", "/api/limiters/api/reset", "").await, 403);
    let limiters = Request::get("/api/limiters").header("authorization", "Bearer r3ad");
    assert_eq!(client::send(&weir.admin("/api/limiters"), limiters).await.expect("an answer").status, 200);
    assert_eq!(act("/api/limiters/api/pause", "{}").await, 400);
    assert_eq!(act("/api/limiters/api/pause", "{\"for\": \"1s\"}").await, 200);
    assert_eq!(act("/api/limiters/%20/resume?partition=s3cret", "").await, 404);
    assert_eq!(act("/api/reload", "").await, 200);
    let lines = poll_for("a line for each", async || {
        let lines = weir.log_of("weir::admin::audit");
        (lines.len() == 6).then_some(lines)
    })
    .await;
    let told = |line: &Value| {
        ["act", "limiter", "by", "outcome", "status", "address"].map(|name| line[name].clone())
    };
    let expected = [
        json!(["reset", "api", "none", "denied", 401, "127.0.0.1"]),
        json!(["reset", "api", "admin.read_token", "denied", 403, "127.0.0.1"]),
        json!(["pause", "api", "admin.token", "failed", 400, "127.0.0.1"]),
        json!(["pause", "api", "admin.token", "done", 200, "127.0.0.1"]),
        json!(["resume", null, "admin.token", "failed", 404, "127.0.0.1"]),
        json!(["reload", null, "admin.token", "done", 200, "127.0.0.1"]),
    ];
    for (line, expected) in lines.iter().zip(expected) {
        assert_eq!(json!(told(line)), expected, "{line}");
    }
    assert!(lines[4]["partition"].as_str().is_some_and(|hash| hash.len() == 32), "{}", lines[4]);
    assert!(!weir.log().contains("s3cret") && !weir.log().contains("t0ken") && !weir.log().contains("r3ad"));
}
