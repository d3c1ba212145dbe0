//! A primary, its replica and three sentinels: real processes on free ports.

use std::collections::HashMap;
use std::time::Duration;

use super::{RedisServer, closed_port, eventually, eventually_within, poll_for_within};

/// The sentinels' name of the primary.
const MASTER: &str = "weir";
const SENTINELS: usize = 3;
/// A split vote is repeated only after twice the failover timeout of five seconds.
const FAILOVER_DEADLINE: Duration = Duration::from_secs(40);
/// A primary otherwise waits five seconds for further replicas before it sends its data to the first one.
const SERVER: [&str; 2] = ["--repl-diskless-sync-delay", "0"];
const PACE: [&str; 10] = [
    "SENTINEL",
    "DEBUG",
    // A new primary is first asked after one period. The default is a second, after which it counts as down: now and
    // then it was replaced at once. With a much shorter one, all sentinels miss a primary at the same instant, and the
    // vote is split.
    "PING-PERIOD",
    "500",
    // Sentinels soon make a replica of a primary that comes back: by default after eight to eighteen seconds.
    "INFO-PERIOD",
    "1000",
    "PUBLISH-PERIOD",
    "500",
    // Sentinels do nothing for this long after the machine stood still for two seconds: by default half a minute.
    "TILT-PERIOD",
    "1000",
];

/// Two servers or three under three sentinels. Killed on drop.
pub(crate) struct Sentinel {
    /// The running servers, in no order.
    servers: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
    /// The port of the server that was killed last and does not run again.
    killed: Option<u16>,
    frozen: Option<u16>,
}

impl Sentinel {
    /// Starts the servers and sentinels, and waits until all know each other and the replica follows.
    pub(crate) async fn start() -> Sentinel {
        let primary = RedisServer::start_part(closed_port, &SERVER).await;
        let replica = RedisServer::start_part(closed_port, &SERVER).await;
        let port = primary.port().to_string();
        replica.command(&["REPLICAOF", "127.0.0.1", &port]).await;
        // Sentinels ask for replicas when they start, and then rarely.
        eventually("the replica's link", async || replica.is_linked().await).await;

        let mut sentinels = Vec::with_capacity(SENTINELS);
        for _ in 0..SENTINELS {
            let sentinel = RedisServer::start_part(closed_port, &["--sentinel"]).await;
            // Available since Redis 7. With an older one everything takes longer.
            sentinel.try_command::<redis::Value>(&PACE).await.ok();
            sentinel.command(&["SENTINEL", "MONITOR", MASTER, "127.0.0.1", &port, "2"]).await;
            sentinel.command(&["SENTINEL", "SET", MASTER, "down-after-milliseconds", "1000"]).await;
            sentinel.command(&["SENTINEL", "SET", MASTER, "failover-timeout", "5000"]).await;
            sentinels.push(sentinel);
        }
        let topology = Sentinel { servers: vec![primary, replica], sentinels, killed: None, frozen: None };
        topology.wait_until_whole().await;
        topology
    }

    /// Starts one more replica, and waits until all sentinels know it.
    pub(crate) async fn add_replica(&mut self) {
        let primary = self.primary_port().await;
        let replica = RedisServer::start_part(closed_port, &SERVER).await;
        replica.command(&["REPLICAOF", "127.0.0.1", &primary.to_string()]).await;
        self.servers.push(replica);
        let replicas = self.servers.len() - 1;
        eventually_within("all sentinels know each replica", FAILOVER_DEADLINE, async || {
            for sentinel in &self.sentinels {
                let known: Vec<redis::Value> = sentinel.query(&["SENTINEL", "REPLICAS", MASTER]).await;
                if known.len() != replicas {
                    return false;
                }
            }
            self.replicas_of(primary).await == replicas
        })
        .await;
    }

    /// Returns how many replicas the server on a port has.
    pub(crate) async fn replicas_of(&self, port: u16) -> usize {
        let said: String = self.server(port).query(&["INFO", "replication"]).await;
        let count = said.lines().find_map(|line| line.strip_prefix("connected_slaves:"));
        count.and_then(|count| count.trim().parse().ok()).expect("a count of replicas")
    }

    /// Returns weir's `store`, in flow style. The timeout is long, for a machine that is busy with other tests.
    pub(crate) fn store(&self) -> String {
        let nodes: Vec<_> = self
            .sentinels
            .iter()
            .map(|sentinel| format!("\"redis://127.0.0.1:{}/\"", sentinel.port()))
            .collect();
        let nodes = nodes.join(", ");
        format!("{{redis: {{sentinel: {{nodes: [{nodes}], master: {MASTER}}}, timeout: 1s}}}}")
    }

    /// Returns the port of the primary, as a sentinel names it.
    pub(crate) async fn primary_port(&self) -> u16 {
        named_by(&self.sentinels[0]).await
    }

    /// Waits until all sentinels name a primary on another port than `port`, and the primary takes writes. Returns
    /// its port.
    pub(crate) async fn wait_for_primary_other_than(&self, port: u16) -> u16 {
        poll_for_within("another primary", FAILOVER_DEADLINE, async || {
            let named = self.primary_port().await;
            if named == port {
                return None;
            }
            for sentinel in &self.sentinels[1..] {
                if named_by(sentinel).await != named {
                    return None;
                }
            }
            self.server(named).is_primary().await.then_some(named)
        })
        .await
    }

    /// Waits until both servers run, and all sentinels see one as the primary and the other as its caught-up replica.
    pub(crate) async fn wait_until_whole(&self) {
        eventually_within(
            "two servers and three sentinels that know each other",
            FAILOVER_DEADLINE,
            async || {
                let primary = self.primary_port().await;
                for sentinel in &self.sentinels {
                    if !sees_all(sentinel, primary).await {
                        return false;
                    }
                }
                let Some(replica) = self.servers.iter().find(|server| server.port() != primary) else {
                    return false;
                };
                self.server(primary).is_primary().await && replica.is_linked().await
            },
        )
        .await;
    }

    /// Runs a command on the primary that a sentinel names.
    pub(crate) async fn command(&self, command: &[&str]) -> redis::Value {
        self.server(self.primary_port().await).query(command).await
    }

    /// Kills the current primary. Returns its port.
    pub(crate) async fn kill_primary(&mut self) -> u16 {
        let port = self.primary_port().await;
        let index = self.servers.iter().position(|server| server.port() == port).expect("the primary runs");
        drop(self.servers.swap_remove(index));
        self.killed = Some(port);
        port
    }

    /// Starts the killed server again on its port, without data. It takes itself for a primary until the sentinels make
    /// a replica of it: [`Sentinel::wait_until_whole`].
    pub(crate) async fn restart_killed(&mut self) {
        let port = self.killed.take().expect("a server was killed");
        self.servers.push(RedisServer::start_part(|| port, &SERVER).await);
    }

    /// Makes the sentinels promote the replica, though nothing is wrong. Returns when they have begun.
    pub(crate) async fn failover(&self) {
        // Refused while another failover is under way, or no replica is fit.
        eventually_within("a failover", FAILOVER_DEADLINE, async || {
            self.sentinels[0].try_command::<()>(&["SENTINEL", "FAILOVER", MASTER]).await.is_ok()
        })
        .await;
    }

    /// Lets nobody make a replica of the current primary: it takes writes also when another server has become the primary.
    pub(crate) async fn keep_primary_writable(&self) {
        let primary = self.server(self.primary_port().await);
        primary.command(&["ACL", "SETUSER", "default", "-replicaof", "-slaveof"]).await;
    }

    /// Writes to the server on a port.
    pub(crate) async fn takes_writes(&self, port: u16) -> bool {
        self.server(port).try_command::<()>(&["SET", "a test", "1", "PX", "1"]).await.is_ok()
    }

    /// Makes a replica of the server on a port, by hand.
    pub(crate) async fn follow(&self, port: u16, primary: u16) {
        let server = self.server(port);
        server.command(&["ACL", "SETUSER", "default", "+replicaof", "+slaveof"]).await;
        server.command(&["REPLICAOF", "127.0.0.1", &primary.to_string()]).await;
    }

    /// Stops the process of the replica, or continues it.
    pub(crate) async fn freeze_replica(&self, frozen: bool) {
        let primary = self.primary_port().await;
        let replica = self.servers.iter().find(|server| server.port() != primary).expect("a replica runs");
        replica.freeze(frozen);
    }

    /// Stops the process of the primary, or continues the stopped one, whatever its role is by then.
    pub(crate) async fn freeze_primary(&mut self, frozen: bool) {
        let port = if frozen {
            let port = self.primary_port().await;
            self.frozen = Some(port);
            port
        } else {
            self.frozen.take().expect("a server was frozen")
        };
        self.server(port).freeze(frozen);
    }

    fn server(&self, port: u16) -> &RedisServer {
        let server = self.servers.iter().find(|server| server.port() == port);
        server.unwrap_or_else(|| panic!("no server runs on port {port}"))
    }
}

/// Returns the port of the primary, as `sentinel` names it.
async fn named_by(sentinel: &RedisServer) -> u16 {
    let (_, port): (String, u16) = sentinel.query(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER]).await;
    port
}

/// Returns whether `sentinel` sees the primary at this port, with one replica that follows it, and knows both other
/// sentinels.
async fn sees_all(sentinel: &RedisServer, primary: u16) -> bool {
    let master: HashMap<String, String> = sentinel.query(&["SENTINEL", "MASTER", MASTER]).await;
    let others = (SENTINELS - 1).to_string();
    let replicas: Vec<HashMap<String, String>> = sentinel.query(&["SENTINEL", "REPLICAS", MASTER]).await;
    let [replica] = &replicas[..] else { return false };
    // Other flags mean a server that is down, or a failover under way.
    master["port"] == primary.to_string()
        && master["flags"] == "master"
        && master["num-other-sentinels"] == others
        && replica["flags"] == "slave"
        && replica["master-port"] == primary.to_string()
        && replica["master-link-status"] == "ok"
}
