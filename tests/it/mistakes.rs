//! The answers of commands to a mistaken address, token, limiter or path.

use crate::support::weir::{run, run_in};
use crate::support::{Upstream, Weir, lane, one_limiter};

#[tokio::test]
async fn a_mistaken_address_token_or_name_is_told() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let config = one_limiter("memory", "{limits: [3/1m]}", &upstream);
    let weir = Weir::start(&config).await;
    let host = weir.admin("").trim_start_matches("http://").trim_end_matches('/').to_owned();
    for address in [&host, "localhost", "https://localhost:1", "http://localhost:1/api"] {
        let refused = run(&["limiters", "--admin", address]).await;
        refused.assert_code(2);
        assert!(refused.stderr.contains("expected http://HOST:PORT"), "{}", refused.stderr);
    }
    let unknown = run(&["limiters", "apy", "--admin", &weir.admin("")]).await;
    unknown.assert_code(1);
    assert!(unknown.stderr.contains("unknown limiter \"apy\"; did you mean \"api\"?"), "{}", unknown.stderr);
    let word = run(&["explain", "GET", "users", "--admin", &weir.admin("")]).await;
    word.assert_code(1);
    assert!(word.stderr.contains("a path begins with `/`"), "{}", word.stderr);
    drop(weir);
    let listen = "listen: 127.0.0.1:0\nadmin: {listen: 127.0.0.1:0, token: right}\n";
    let weir = Weir::start_whole(&format!("{listen}{config}")).await;
    for (token, hint) in
        [("", "; set WEIR_ADMIN_TOKEN"), ("wrong", "; the one in WEIR_ADMIN_TOKEN is another")]
    {
        let refused = run_in(&["limiters", "--admin", &weir.admin("")], &[("WEIR_ADMIN_TOKEN", token)]).await;
        refused.assert_code(1);
        assert!(refused.stderr.trim_end().ends_with(hint), "{}", refused.stderr);
    }
}
