//! The partitions that used most and waited longest, of the whole fleet: over HTTP, and by `weir limiters NAME --top`.

use serde_json::Value;

use crate::support::weir::run;
use crate::support::{RedisServer, Request, Upstream, Weir, configuration, eventually, lane};

/// Sends requests of a tenant and returns how many were sent on.
async fn send(weir: &Weir, path: &str, tenant: &str, count: usize) -> usize {
    let mut connection = weir.connect().await;
    let mut sent = 0;
    for _ in 0..count {
        let request = Request::get(path).header("x-tenant", tenant);
        sent += usize::from(connection.ask(&request).await.status == 200);
    }
    sent
}

async fn top(weir: &Weir, limiter: &str) -> Value {
    weir.ask(&format!("/api/limiters/{limiter}")).await.json()["top"].clone()
}

#[tokio::test]
async fn the_fleet_shows_the_tenants_that_use_most_by_value_or_by_hash() {
    let _lane = lane::shared().await;
    let (redis, upstream) = (RedisServer::start().await, Upstream::start());
    let limiters = [
        ("shown", "{limits: [50/1h], key: [header:x-tenant], show_values: true}"),
        ("hidden", "{limits: [50/1h], key: [header:x-tenant]}"),
        ("plain", "{limits: [50/1h]}"),
    ];
    let routes = [
        ("path: /shown", "limiter: shown"),
        ("path: /hidden", "limiter: hidden"),
        ("path: /", "limiter: plain"),
    ];
    let fleet = Weir::fleet(2, &configuration(&redis.store(), &limiters, &routes, &upstream)).await;
    // Each of many small tenants uses less than the two large ones, which use both replicas.
    for index in 0..40 {
        assert_eq!(send(&fleet[index % 2], "/shown", &format!("small-{index}"), 1).await, 1);
    }
    for path in ["/shown", "/hidden"] {
        for (replica, tenant, count) in [(0, "acme", 12), (1, "acme", 30), (0, "globex", 7), (1, "globex", 6)]
        {
            assert_eq!(send(&fleet[replica], path, tenant, count).await, count);
        }
    }
    // One more than the limit has left is refused, and does not count.
    assert_eq!(send(&fleet[0], "/shown", "acme", 9).await, 8);
    let used = |top: &Value| -> Vec<(String, u64)> {
        let rows = top["used"].as_array().cloned().unwrap_or_default();
        let row = |row: &Value| {
            let name = row["value"].as_str().or(row["partition"].as_str()).expect("a name").to_owned();
            (name, row["granted"].as_u64().expect("a number"))
        };
        rows.iter().map(row).collect()
    };
    for weir in &fleet {
        eventually("the fleet is added up", async || {
            used(&top(weir, "shown").await)[..]
                .starts_with(&[("acme".to_owned(), 50), ("globex".to_owned(), 13)])
        })
        .await;
        let shown = top(weir, "shown").await;
        assert_eq!(used(&shown).len(), 20, "{shown}");
        let acme = &shown["used"][0];
        assert_eq!(
            (&acme["limit"], &acme["rate"], &acme["granted_error"]),
            (&"50/1h".into(), &50.into(), &0.into())
        );
        assert_eq!(acme["available"], 0, "{acme}");
        assert!(acme["told_ms_ago"].as_u64().is_some() && shown["seconds"].as_u64().is_some(), "{shown}");

        let hidden = used(&top(weir, "hidden").await);
        assert_eq!(hidden.iter().map(|(_, granted)| *granted).collect::<Vec<_>>(), [42, 13]);
        let is_hash = |name: &str| name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        assert!(hidden.iter().all(|(name, _)| is_hash(name)), "{hidden:?}");
        assert_eq!(top(weir, "plain").await, Value::Null);
    }
    // The listing, which is that of the page, has a few.
    let listed = fleet[0].ask("/api/limiters").await.json();
    assert_eq!(used(&listed["limiters"][0]["top"]).len(), 5);
    // No value is in the store, only in the memory of those that met it.
    let search = "local found = 0
        for _, key in ipairs(redis.call('KEYS', '*')) do
            local is_text = redis.call('TYPE', key).ok == 'string'
            local value = redis.call(is_text and 'GET' or 'DUMP', key)
            if string.find(key .. value, 'acme', 1, true) then found = found + 1 end
        end
        return found";
    assert_eq!(redis.command(&["EVAL", search, "0"]).await, redis::Value::Int(0));

    let admin = fleet[1].admin("");
    let printed = run(&["limiters", "shown", "--top", "--admin", &admin]).await;
    let table = printed.stdout.split("\n\n").next().expect("a table").to_owned();
    assert!(printed.code == Some(0) && table.starts_with("USED MOST"), "{table}");
    assert!(table.lines().nth(1).is_some_and(|line| line.starts_with("acme ")), "{table}");
    let printed = run(&["limiters", "plain", "--top", "--admin", &admin]).await;
    assert!(printed.code != Some(0) && printed.stderr.contains("no key"), "{}", printed.stderr);
}

#[tokio::test]
async fn the_partitions_that_wait_longest_are_shown_while_they_wait() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let limiter = "{limits: [1/1h], key: [header:x-tenant], show_values: true, queue: {timeout: 1d}}";
    let weir =
        Weir::start(&configuration("memory", &[("api", limiter)], &[("path: /", "limiter: api")], &upstream))
            .await;
    for tenant in ["slow", "quick"] {
        assert_eq!(send(&weir, "/", tenant, 1).await, 1);
    }
    let mut waiting = weir.connect().await;
    waiting.send(&Request::get("/").header("x-tenant", "slow")).await.expect("weir reads");
    weir.wait_for_waiting(1).await;
    eventually("the one that waits is shown", async || {
        let top = top(&weir, "api").await;
        let waited = top["waited"].as_array().cloned().unwrap_or_default();
        waited.len() == 1
            && waited[0]["value"] == "slow"
            && waited[0]["longest_wait_ms"].as_u64() > Some(1000)
    })
    .await;
}
