//! An unusable store: `weir check --store` and the log give the cause and the remedy in one line.

use crate::support::weir::{run, write_whole};
use crate::support::{
    Cluster, RedisOptions, RedisServer, Sentinel, Upstream, Weir, closed_port, lane, one_limiter,
};

/// The documented rights of a user, but those for data.
const RIGHTS: [&str; 11] = [
    "~weir:*",
    "resetchannels",
    "&weir:*",
    "+evalsha",
    "+eval",
    "+script|load",
    "+ping",
    "+info",
    "+publish",
    "+subscribe",
    "+time",
];
const DATA: [&str; 10] = [
    "+get",
    "+mget",
    "+set",
    "+del",
    "+pexpire",
    "+zadd",
    "+zrem",
    "+zscore",
    "+zrangebyscore",
    "+zremrangebyscore",
];
const LACKS_A_RIGHT: &str = "the user lacks a right: docs/redis.md lists those that weir needs";

/// Runs `weir check --store` against a store; returns success, and the output without the summary of the file.
async fn check(store: &str) -> (bool, String) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("weir.yaml");
    let upstream = "http://127.0.0.1:1";
    let config = format!(
        "store: {store}\nlimiters: {{api: {{limits: [5/1s]}}}}\n\
         routes: [{{name: api, match: {{}}, upstream: \"{upstream}\", limiter: api}}]\n"
    );
    write_whole(&file, &config);
    let finished = run(&["check", "--store", file.to_str().expect("a path that is text")]).await;
    let said = finished.output();
    let said = said.lines().filter(|line| !line.contains("is valid")).collect::<Vec<_>>().join("\n");
    (finished.code == Some(0), said)
}

fn url(server: &RedisServer, user: &str) -> String {
    format!("{{redis: {{url: \"redis://{user}127.0.0.1:{}\"}}}}", server.port())
}

#[tokio::test]
async fn each_fault_of_a_store_is_explained_in_one_line() {
    let _lane = lane::shared().await;
    let plain = RedisServer::start().await;
    let options = RedisOptions { password: Some("right"), ..RedisOptions::default() };
    let locked = RedisServer::start_with(options).await;
    let user = async |name: &str, rights: &[&str]| {
        plain.command(&[&["ACL", "SETUSER", name, "on", ">x"], rights].concat()).await;
        url(&plain, &format!("{name}:x@"))
    };
    let (able, lame) = (user("able", &[&RIGHTS[..], &DATA].concat()).await, user("lame", &RIGHTS).await);
    let selects = user("selects", &[&RIGHTS[..], &DATA, &["+select"]].concat()).await;
    let elsewhere = user("elsewhere", &["~other:*", "&*", "+@all"]).await;

    let (works, in_memory) = ("the store works: ", "the store is this process's memory, and always works");
    let cases = [
        (url(&plain, ""), works),
        (able.replace("\"}}", "/3\"}}"), LACKS_A_RIGHT),
        (selects.replace("\"}}", "/3\"}}"), works),
        (able, works),
        (url(&locked, ":right@"), works),
        (url(&locked, ":wrong@"), "check user and password in `store.redis`"),
        (url(&locked, ""), "check user and password in `store.redis`"),
        (lame, LACKS_A_RIGHT),
        (elsewhere, "permissions to access"),
        (format!("{{redis: {{url: \"redis://127.0.0.1:{}\"}}}}", closed_port()), "Connection refused"),
        (
            format!("{{redis: {{cluster: [\"redis://127.0.0.1:{}\"]}}}}", plain.port()),
            "this server is no Cluster: give `store.redis.url`",
        ),
        ("memory".to_owned(), in_memory),
    ];
    for (store, expected) in &cases {
        let (is_success, said) = check(store).await;
        assert!(said.contains(expected) && said.lines().count() == 1, "{store}: {said}");
        assert_eq!(is_success, [works, in_memory].contains(expected), "{store}: {said}");
        assert!(!said.contains("right@") && !said.contains("wrong"), "{said}");
    }

    // A server that may evict keys.
    plain.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
    plain.command(&["CONFIG", "SET", "maxmemory", "1gb"]).await;
    let (is_success, said) = check(&url(&plain, "")).await;
    assert!(is_success && said.starts_with(works), "{said}");
    assert!(said.contains("\nbut when it is full it forgets keys") && said.contains("allkeys-lru"), "{said}");

    // A replica, which takes no writes.
    plain.command(&["REPLICAOF", "127.0.0.1", &locked.port().to_string()]).await;
    let (is_success, said) = check(&url(&plain, "")).await;
    assert!(!is_success && said.contains("this server is a replica: name its primary"), "{said}");
}

#[tokio::test]
async fn faults_of_sentinels_and_clusters_are_explained() {
    let _lane = lane::shared().await;
    let (sentinel, cluster) = (Sentinel::start().await, Cluster::start().await);
    let warned = |said: &str| said.contains("\nbut after a failover two servers may take writes");
    for store in [sentinel.store(), cluster.store()] {
        let (is_success, said) = check(&store).await;
        let names_its_version =
            ["Redis", "Valkey"].iter().any(|name| said.starts_with(&format!("the store works: {name} ")));
        assert!(is_success && names_its_version, "{store}: {said}");
        assert!(warned(&said) && said.contains("`store.redis.confirm` to replica"), "{store}: {said}");
    }
    let confirmed = sentinel.store().replace("timeout: 1s", "timeout: 1s, confirm: replica");
    let (is_success, said) = check(&confirmed).await;
    assert!(is_success && !warned(&said), "{said}");
    sentinel.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
    let (is_success, said) = check(&sentinel.store()).await;
    assert!(is_success && !warned(&said), "{said}");
    sentinel.freeze_replica(true).await;
    let (is_success, said) = check(&confirmed).await;
    sentinel.freeze_replica(false).await;
    assert!(!is_success && said.contains("no replica of the store has confirmed"), "{said}");
    let (is_success, said) = check(&sentinel.store().replace("master: weir", "master: other")).await;
    assert!(!is_success && said.contains("knows this master: check `store.redis.sentinel`"), "{said}");
    let node = format!("{{redis: {{url: \"redis://127.0.0.1:{}\"}}}}", cluster.owner_port("any").await);
    let (is_success, said) = check(&node).await;
    assert!(!is_success && said.contains("a node of a Redis Cluster: give `store.redis.cluster`"), "{said}");
}

/// A slot that moves is asked for behind ASKING, which no call needs before.
#[tokio::test]
async fn a_user_of_a_cluster_needs_the_right_to_ask_for_moving_slots() {
    let _lane = lane::shared().await;
    let cluster = Cluster::start().await;
    let rights = [&RIGHTS[..], &DATA, &["+cluster|slots"]].concat();
    for (name, more) in [("lame", None), ("able", Some("+asking"))] {
        let rights = rights.iter().copied().chain(more);
        let user: Vec<&str> = ["ACL", "SETUSER", name, "on", ">x"].into_iter().chain(rights).collect();
        cluster.command_everywhere(&user).await;
        let (is_success, said) =
            check(&cluster.store().replace("redis://", &format!("redis://{name}:x@"))).await;
        assert_eq!(is_success, more.is_some(), "{name}: {said}");
        assert_eq!(said.contains(LACKS_A_RIGHT), more.is_none(), "{name}: {said}");
    }
}

#[tokio::test]
async fn the_log_explains_a_fault_as_the_check_does() {
    let _lane = lane::shared().await;
    let (plain, upstream) = (RedisServer::start().await, Upstream::start());
    let options = RedisOptions { password: Some("right"), ..RedisOptions::default() };
    let locked = RedisServer::start_with(options).await;
    let cases = [
        (url(&locked, ":wrong@"), "check user and password in `store.redis`"),
        (
            format!("{{redis: {{cluster: [\"redis://127.0.0.1:{}\"]}}}}", plain.port()),
            "this server is no Cluster: give `store.redis.url`",
        ),
    ];
    for (store, expected) in cases {
        let weir = Weir::start(&one_limiter(&store, "{limits: [5/1s]}", &upstream)).await;
        weir.wait_for_log(&["cannot reach the store at start", expected]).await;
        assert!(!weir.log().contains("wrong"), "{}", weir.log());
    }
}
