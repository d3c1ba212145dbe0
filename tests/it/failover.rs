//! A part of Redis is replaced under load, behind sentinels and in a Cluster; and a replica of weir is killed.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rustix::process::Signal;

use crate::support::load::Load;
use crate::support::measure::occupancy;
use crate::support::{
    Cluster, PATIENCE, RedisServer, Request, Sentinel, Upstream, Weir, client, configuration, eventually,
    eventually_within, lane, one_limiter,
};

const WINDOW: Duration = Duration::from_secs(2);
const LIMIT: usize = 40;
/// The time from the election of a new primary until it grants permits.
const RECOVERY: Duration = Duration::from_secs(5);
/// A key of the limiter `api`: the Cluster places the limiter's state by its hash tag.
const KEY: &str = "weir:{api}:v2:epoch";

/// Three replicas under load.
struct Fleet {
    upstream: Upstream,
    replicas: Vec<Weir>,
    loads: Vec<Load>,
}

impl Fleet {
    async fn start(store: &str, policy: &str) -> Fleet {
        let (upstream, store) = (Upstream::start(), store.replace("timeout: 1s", "timeout: 200ms"));
        let limiter = format!(
            "{{limits: [{LIMIT}/{}s], on_store_failure: {policy}, queue: {{timeout: 30s, max_waiting: 1000}}}}",
            WINDOW.as_secs()
        );
        let replicas = Weir::fleet(3, &one_limiter(&store, &limiter, &upstream)).await;
        for weir in &replicas {
            eventually("each knows of all", async || {
                weir.ask("/api/replicas").await.json()["replicas"].as_array().map_or(0, Vec::len) == 3
            })
            .await;
        }
        let loads = replicas.iter().map(|weir| Load::start(weir, 20, &Request::get("/"))).collect();
        let fleet = Fleet { upstream, replicas, loads };
        fleet.after(LIMIT + LIMIT / 2).await;
        fleet
    }

    /// Waits until `more` further requests have reached the upstream.
    async fn after(&self, more: usize) {
        self.upstream.wait_for(self.upstream.count() + more, PATIENCE).await;
    }

    /// Waits until all replicas use the store again. A limiter that rejects sends nothing upstream before.
    async fn recovers(&self, found: Instant) {
        let before = self.upstream.count();
        eventually_within("the new primary grants", RECOVERY.saturating_sub(found.elapsed()), async || {
            self.upstream.count() > before + LIMIT / 2
        })
        .await;
        for weir in &self.replicas {
            let left = RECOVERY.saturating_sub(found.elapsed());
            eventually_within("each is back", left, async || {
                weir.metrics().await.sum("weir_store_up", &[]) == 1.0
            })
            .await;
        }
        println!("back after {:?}", found.elapsed());
    }

    async fn judge(self) {
        self.after(2 * LIMIT).await;
        println!(
            "fullest window {}, {:.1} % used, {:?}",
            self.upstream.fullest_window(WINDOW),
            occupancy(&self.upstream.instants(), LIMIT, WINDOW) * 100.0,
            self.loads.iter().map(Load::statuses).collect::<Vec<_>>()
        );
        self.upstream.assert_within(LIMIT, WINDOW);
        for status in self.loads.iter().flat_map(|load| load.statuses().into_keys()) {
            assert!(matches!(status, 200 | 503), "{status}");
        }
    }
}

#[tokio::test]
async fn sentinels_replace_a_killed_primary() {
    lane::calm(async || {
        let mut sentinel = Sentinel::start().await;
        let fleet = Fleet::start(&sentinel.store(), "local").await;
        let killed = sentinel.kill_primary().await;
        sentinel.wait_for_primary_other_than(killed).await;
        fleet.recovers(Instant::now()).await;
        fleet.judge().await;
    })
    .await;
}

/// The old primary lives on as a replica: it answers, but takes no writes.
#[tokio::test]
async fn sentinels_move_the_primary() {
    lane::calm(async || {
        let sentinel = Sentinel::start().await;
        let before = sentinel.primary_port().await;
        let fleet = Fleet::start(&sentinel.store(), "reject").await;
        sentinel.failover().await;
        sentinel.wait_for_primary_other_than(before).await;
        fleet.recovers(Instant::now()).await;
        fleet.judge().await;
    })
    .await;
}

/// Both servers take writes: nothing but the sentinels tells that the old one is no primary any more. Its bookings are not used beside
/// those of the new one where a replica has to confirm them.
#[tokio::test]
async fn sentinels_leave_the_old_primary_writable() {
    lane::calm(async || {
        for confirm in ["primary", "replica"] {
            let sentinel = Sentinel::start().await;
            let before = sentinel.primary_port().await;
            sentinel.keep_primary_writable().await;
            let store = sentinel.store().replace("timeout: 1s", &format!("timeout: 1s, confirm: {confirm}"));
            let fleet = Fleet::start(&store, "reject").await;
            sentinel.failover().await;
            let after = sentinel.wait_for_primary_other_than(before).await;
            let found = Instant::now();
            if confirm == "replica" {
                // The new primary has no replica yet: the old one does not become it.
                sentinel.follow(before, after).await;
            }
            assert!(confirm == "replica" || sentinel.takes_writes(before).await);
            fleet.recovers(found).await;
            fleet.judge().await;
        }
    })
    .await;
}

/// A booking that no replica of Redis has is not used: the store counts as away until one has.
#[tokio::test]
async fn a_booking_that_no_replica_confirms_is_not_used() {
    let _lane = lane::shared().await;
    let (sentinel, upstream) = (Sentinel::start().await, Upstream::start());
    // Long enough for a replica that waits for a processor.
    let store = sentinel.store().replace("timeout: 1s", "timeout: 1s, confirm: replica");
    let weir =
        Weir::start(&one_limiter(&store, "{limits: [5/60s], on_store_failure: reject}", &upstream)).await;
    let first = weir.get("/").await;
    assert_eq!(first.status, 200, "{}", first.text());
    sentinel.freeze_replica(true).await;
    eventually("nothing is granted", async || {
        let refused = weir.get("/").await;
        (refused.status, refused.weir_error()) == (503, Some("store_unavailable"))
    })
    .await;
    let passed = upstream.count();
    let refused = weir.get("/").await;
    assert_eq!(refused.status, 503, "{}", refused.text());
    sentinel.freeze_replica(false).await;
    eventually("it goes on", async || weir.get("/").await.status == 200).await;
    // Unused permits were given back.
    let mut answers = Vec::new();
    for _ in passed..6 {
        let answer = weir.get("/").await;
        answers.push((answer.status, answer.text()));
    }
    assert_eq!(upstream.count(), 5, "{answers:?}");
    assert_eq!(answers.last().map(|(status, _)| *status), Some(429), "{answers:?}");
}

/// A booking that breaks off with its connection is made once more. It was not carried out before, and a replica has it.
#[tokio::test]
async fn a_booking_over_a_connection_that_was_closed_is_confirmed() {
    let _lane = lane::shared().await;
    let (sentinel, upstream) = (Sentinel::start().await, Upstream::start());
    let store = sentinel.store().replace("timeout: 1s", "timeout: 1s, confirm: replica");
    let limiter = "{limits: [100/60s], key: [path:1], on_store_failure: reject}";
    let weir = Weir::start(&one_limiter(&store, limiter, &upstream)).await;
    let burst = async |of: u64| {
        let tenants = (0..16).map(|tenant| format!("/{of}-{tenant}"));
        let answers = join_all(tenants.map(|path| {
            let weir = &weir;
            async move { weir.get(&path).await.status }
        }))
        .await;
        assert!(answers.iter().all(|status| *status == 200), "{answers:?}");
    };
    burst(1).await;
    for round in 2..6 {
        sentinel.command(&["CLIENT", "KILL", "TYPE", "normal"]).await;
        burst(round).await;
    }
    assert_eq!(weir.metrics().await.sum("weir_store_calls_total", &[("result", "error")]), 0.0);
}

/// The connections of the old primary stay open, so nothing tells weir that it is gone.
#[tokio::test]
async fn sentinels_replace_a_frozen_primary() {
    lane::calm(async || {
        let mut sentinel = Sentinel::start().await;
        let before = sentinel.primary_port().await;
        let fleet = Fleet::start(&sentinel.store(), "reject").await;
        sentinel.freeze_primary(true).await;
        sentinel.wait_for_primary_other_than(before).await;
        fleet.recovers(Instant::now()).await;
        // The old primary comes back, and with it the commands that were on their way to it.
        sentinel.freeze_primary(false).await;
        fleet.judge().await;
    })
    .await;
}

/// The calls that wait for the frozen primary hold every connection that may wait for a replica.
#[tokio::test]
async fn confirmed_calls_go_to_the_new_primary_while_others_wait_for_the_frozen_one() {
    lane::calm(async || {
        let mut sentinel = Sentinel::start().await;
        sentinel.add_replica().await;
        let before = sentinel.primary_port().await;
        let store = sentinel.store().replace("timeout: 1s", "timeout: 1s, confirm: replica, pool_size: 1");
        let fleet = Fleet::start(&store, "reject").await;
        sentinel.freeze_primary(true).await;
        let after = sentinel.wait_for_primary_other_than(before).await;
        eventually("a replica of the new primary", async || sentinel.replicas_of(after).await > 0).await;
        fleet.recovers(Instant::now()).await;
        sentinel.freeze_primary(false).await;
        fleet.judge().await;
    })
    .await;
}

#[tokio::test]
async fn a_cluster_replaces_a_killed_primary() {
    lane::calm(async || {
        let mut cluster = Cluster::start().await;
        let fleet = Fleet::start(&cluster.store(), "local").await;
        cluster.kill_primary_of(KEY).await;
        cluster.wait_for_primary_of(KEY).await;
        fleet.recovers(Instant::now()).await;
        fleet.judge().await;
    })
    .await;
}

/// The frozen primary's connections stay open, and the other nodes of the Cluster answer all the time. They are slow to
/// replace it, so new connections are sent to it meanwhile.
#[tokio::test]
async fn a_cluster_replaces_a_frozen_primary() {
    lane::calm(async || {
        let mut cluster = Cluster::start().await;
        cluster.be_patient(Duration::from_secs(5)).await;
        let fleet = Fleet::start(&cluster.store(), "reject").await;
        cluster.freeze_primary_of(KEY).await;
        cluster.wait_for_primary_of(KEY).await;
        fleet.recovers(Instant::now()).await;
        // The frozen primary comes back, and with it the commands that were on their way to it.
        cluster.thaw().await;
        fleet.judge().await;
    })
    .await;
}

/// The calls that wait for the frozen primary hold none of the connections on which other nodes confirm theirs.
#[tokio::test]
async fn a_frozen_primary_takes_no_confirmed_calls_of_other_groups_along() {
    lane::calm(async || {
        let (mut cluster, upstream) = (Cluster::start().await, Upstream::start());
        // Nobody replaces it.
        cluster.be_patient(Duration::from_secs(600)).await;
        let owner = cluster.owner_port(KEY).await;
        let mut other = None;
        for name in ["b", "c", "d", "e", "f", "g", "h"] {
            if cluster.owner_port(&KEY.replace("api", name)).await != owner {
                other = Some(name);
                break;
            }
        }
        let other = other.expect("a group at another node");
        let store = cluster.store().replace("timeout: 1s", "timeout: 1s, confirm: replica, pool_size: 1");
        let limiter = "{limits: [1000/1s], on_store_failure: reject}";
        let limiters = [("api", limiter), (other, limiter)];
        let at_other = format!("limiter: {other}");
        let routes = [("path: /api", "limiter: api"), ("path: /other", at_other.as_str())];
        let weir = Weir::start(&configuration(&store, &limiters, &routes, &upstream)).await;
        for path in ["/api", "/other"] {
            eventually("it is open", async || weir.get(path).await.status == 200).await;
        }
        cluster.freeze_primary_of(KEY).await;
        let refused = weir.begin(4, "/api");
        for answer in client::answers(refused).await {
            assert_eq!(answer.status, 503, "{}", answer.text());
            assert_eq!(weir.get("/other").await.status, 200);
        }
        eventually("its circuit opens", async || {
            assert_eq!(weir.get("/other").await.status, 200);
            weir.log().contains("the store is away")
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn calls_follow_a_moved_slot_of_a_cluster() {
    lane::calm(async || {
        let cluster = Cluster::start().await;
        let fleet = Fleet::start(&cluster.store(), "reject").await;
        for _ in 0..2 {
            cluster.migrate_slot_of(KEY).await;
            fleet.recovers(Instant::now()).await;
        }
        fleet.judge().await;
    })
    .await;
}

/// Limiters all over a Cluster: each call goes to the node that holds its group.
#[tokio::test]
async fn fifty_limiters_are_spread_over_a_cluster() {
    const LIMITERS: usize = 50;
    let _lane = lane::shared().await;
    let (cluster, upstream) = (Cluster::start().await, Upstream::start());
    let mut config = format!("store: {}\nlimiters:\n", cluster.store());
    for index in 0..LIMITERS {
        config += &format!("  l{index}: {{limits: [3/1h], on_store_failure: reject}}\n");
    }
    config += "routes:\n";
    for index in 0..LIMITERS {
        let upstream = upstream.url();
        config += &format!(
            "  - {{name: r{index}, match: {{path: /r{index}}}, upstream: \"{upstream}\", limiter: l{index}}}\n"
        );
    }
    let fleet = Weir::fleet(2, &config).await;
    let ask = async |round: usize, status: u16| {
        for index in 0..LIMITERS {
            let answer = fleet[(index + round) % 2].get(&format!("/r{index}")).await;
            assert_eq!(answer.status, status, "l{index}, round {round}: {}", answer.text());
        }
    };
    ask(0, 200).await;
    ask(1, 200).await;
    for index in 0..5 {
        cluster.migrate_slot_of(&format!("weir:{{l{index}}}:v2:epoch")).await;
    }
    // Slots that have moved are found at their new node, with the permits used there; the Cluster settles first.
    for index in 0..LIMITERS {
        let target = format!("/r{index}");
        eventually("a third one is granted", async || fleet[0].get(&target).await.status == 200).await;
    }
    ask(3, 429).await;
    assert_eq!(upstream.count(), 3 * LIMITERS);
    for weir in &fleet {
        assert_eq!(weir.metrics().await.sum("weir_store_calls_total", &[("result", "error")]), 0.0);
    }
}

#[tokio::test]
async fn a_killed_replica_wastes_only_the_slots_it_had_booked() {
    lane::calm(async || {
        let redis = RedisServer::start().await;
        let mut fleet = Fleet::start(&redis.store(), "local").await;
        let killed = fleet.replicas.remove(0);
        drop(fleet.loads.remove(0));
        let (start, before) = (Instant::now(), fleet.upstream.count());
        killed.signal(Signal::KILL);
        fleet.after(2 * LIMIT).await;
        // The killed replica had at most one slot for each of its twenty clients; the others use the rest.
        let windows = start.elapsed().as_secs_f64() / WINDOW.as_secs_f64();
        let used = (fleet.upstream.count() - before) as f64;
        println!("{used} used in {windows:.2} windows");
        assert!(used >= (windows - 1.0) * LIMIT as f64 - 20.0, "{used} used in {windows:.2} windows");
        assert!(windows < 4.0, "{windows}");
        fleet.judge().await;
    })
    .await;
}
