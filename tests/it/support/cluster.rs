//! A Redis Cluster of three primaries, each with a replica: real processes on free ports.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use super::{RedisServer, closed_port, eventually, eventually_within, poll_for_within};

const PRIMARIES: usize = 3;
const SLOTS: usize = 16_384;
/// The distance between a node's port for clients and its port for other nodes.
const BUS_OFFSET: u16 = 10_000;
/// The first of the ports that the system gives away.
const EPHEMERAL_FIRST: u16 = 32_768;
/// The number of keys that are moved at once.
const BATCH: &str = "10";
const NODE: [&str; 10] = [
    "--cluster-enabled",
    "yes",
    "--cluster-config-file",
    "nodes.conf",
    "--cluster-node-timeout",
    "1000",
    "--cluster-require-full-coverage",
    "no",
    // A primary otherwise waits five seconds for further replicas before it sends its data to the first one.
    "--repl-diskless-sync-delay",
    "0",
];
/// A failed vote is repeated after four times the node timeout.
const FAILOVER_DEADLINE: Duration = Duration::from_secs(30);

/// A running cluster. Killed on drop.
pub(crate) struct Cluster {
    /// The running nodes: first the primaries, as they were at the start.
    nodes: Vec<RedisServer>,
    /// A stopped node, which does not count as running.
    frozen: Option<RedisServer>,
    /// The ports in weir's configuration, whether their nodes run or not.
    seeds: Vec<u16>,
}

/// A node as another node sees it.
struct Known {
    port: u16,
    flags: Vec<String>,
    connected: bool,
    /// The first and the last slot of each range.
    slots: Vec<(u16, u16)>,
}

impl Cluster {
    /// Waits until every node finds everything in order, and every replica follows.
    pub(crate) async fn start() -> Cluster {
        let mut nodes = Vec::with_capacity(2 * PRIMARIES);
        for _ in 0..2 * PRIMARIES {
            nodes.push(RedisServer::start_part(port_with_bus, &NODE).await);
        }
        let seeds = nodes[..PRIMARIES].iter().map(RedisServer::port).collect();
        let cluster = Cluster { nodes, frozen: None, seeds };
        cluster.introduce().await;
        cluster.assign().await;
        eventually_within("a cluster in order", FAILOVER_DEADLINE, async || cluster.is_whole().await).await;
        cluster
    }

    /// Waits until every node knows every other.
    async fn introduce(&self) {
        for (epoch, node) in (1..).zip(&self.nodes) {
            // Equal epochs are resolved later, one collision after the other.
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &format!("{epoch}")]).await;
        }
        for node in &self.nodes[1..] {
            self.nodes[0].command(&["CLUSTER", "MEET", "127.0.0.1", &node.port().to_string()]).await;
        }
        eventually("nodes that know each other", async || {
            for node in &self.nodes {
                let known = known_to(node).await;
                // Another flag means that the greeting is still under way.
                let greeted = known.iter().filter(|known| known.connected && known.has("master"));
                if greeted.count() != self.nodes.len() {
                    return false;
                }
            }
            true
        })
        .await;
    }

    /// Gives each primary its share of the slots, and a replica.
    async fn assign(&self) {
        let (primaries, replicas) = self.nodes.split_at(PRIMARIES);
        for (index, (primary, replica)) in primaries.iter().zip(replicas).enumerate() {
            let share = SLOTS * index / PRIMARIES..SLOTS * (index + 1) / PRIMARIES;
            let slots: Vec<String> = share.map(|slot| slot.to_string()).collect();
            let mut command = vec!["CLUSTER", "ADDSLOTS"];
            command.extend(slots.iter().map(String::as_str));
            primary.command(&command).await;
            replica.command(&["CLUSTER", "REPLICATE", &id_of(primary).await]).await;
        }
    }

    async fn is_whole(&self) -> bool {
        let known_as = |known: &[Known], flag: &str| {
            known.iter().filter(|known| known.connected && known.has(flag) && !known.is_down()).count()
        };
        for (index, node) in self.nodes.iter().enumerate() {
            let known = known_to(node).await;
            let in_place = if index < PRIMARIES { node.is_primary().await } else { node.is_linked().await };
            if !in_place
                || !is_in_order(node).await
                || known_as(&known, "master") != PRIMARIES
                || known_as(&known, "slave") != PRIMARIES
            {
                return false;
            }
        }
        true
    }

    /// Returns weir's `store`, in flow style, with the first primaries. The timeout is long, for a machine that is busy
    /// with other tests.
    pub(crate) fn store(&self) -> String {
        let nodes: Vec<_> = self.seeds.iter().map(|port| format!("\"redis://127.0.0.1:{port}\"")).collect();
        format!("{{redis: {{cluster: [{}], timeout: 1s}}}}", nodes.join(", "))
    }

    /// Returns the port of the primary that serves the key's slot, as the first running node sees it: right after a
    /// kill this may be the killed primary.
    pub(crate) async fn owner_port(&self, key: &str) -> u16 {
        let slot = self.slot_of(key).await;
        owner_known_to(&self.nodes[0], slot).await.expect("every slot has an owner").port
    }

    /// Runs a command on one node; panics on a redirection.
    pub(crate) async fn command_at(&self, port: u16, command: &[&str]) -> redis::Value {
        self.node(port).command(command).await
    }

    /// Runs a command on each node.
    pub(crate) async fn command_everywhere(&self, command: &[&str]) {
        for node in &self.nodes {
            node.command(command).await;
        }
    }

    /// Removes all keys.
    pub(crate) async fn flush_all(&self) {
        for node in &self.nodes {
            if node.is_primary().await {
                node.command(&["FLUSHALL"]).await;
            }
        }
    }

    /// Kills the primary that serves the key's slot. Returns its port.
    pub(crate) async fn kill_primary_of(&mut self, key: &str) -> u16 {
        self.take_primary_of(key).await.port()
    }

    /// Sets the time for which a node may be silent before its replica replaces it.
    pub(crate) async fn be_patient(&self, with_nodes: Duration) {
        let millis = with_nodes.as_millis().to_string();
        for node in &self.nodes {
            node.command(&["CONFIG", "SET", "cluster-node-timeout", &millis]).await;
        }
    }

    /// Stops the process of the primary that serves the key's slot.
    pub(crate) async fn freeze_primary_of(&mut self, key: &str) {
        let primary = self.take_primary_of(key).await;
        primary.freeze(true);
        self.frozen = Some(primary);
    }

    /// Continues the stopped process, and waits until it follows its successor.
    pub(crate) async fn thaw(&mut self) {
        let node = self.frozen.take().expect("a node was frozen");
        node.freeze(false);
        eventually_within("it follows", FAILOVER_DEADLINE, async || node.is_linked().await).await;
        self.nodes.push(node);
    }

    async fn take_primary_of(&mut self, key: &str) -> RedisServer {
        let port = self.owner_port(key).await;
        let index = self.nodes.iter().position(|node| node.port() == port).expect("the primary runs");
        self.nodes.remove(index)
    }

    /// Waits until all running nodes find everything in order, and agree on a running primary for the key's slot.
    /// Returns its port.
    pub(crate) async fn wait_for_primary_of(&self, key: &str) -> u16 {
        let slot = self.slot_of(key).await;
        poll_for_within("a primary that serves the slot", FAILOVER_DEADLINE, async || {
            let port = self.agreed_owner(slot).await?;
            let owner = self.nodes.iter().find(|node| node.port() == port)?;
            owner.is_primary().await.then_some(port)
        })
        .await
    }

    /// Moves the key's slot with its keys to another primary, while both serve it. Returns that primary's port when all
    /// nodes know of it.
    pub(crate) async fn migrate_slot_of(&self, key: &str) -> u16 {
        let slot = self.slot_of(key).await;
        let source = self.node(self.wait_for_primary_of(key).await);
        let target = self.primary_but(source).await;
        let (from, to, port) = (id_of(source).await, id_of(target).await, target.port().to_string());
        let slot_name = slot.to_string();
        // In this order: the source redirects nobody to a target that would redirect back.
        target.command(&["CLUSTER", "SETSLOT", &slot_name, "IMPORTING", &from]).await;
        source.command(&["CLUSTER", "SETSLOT", &slot_name, "MIGRATING", &to]).await;
        loop {
            // The source creates no new keys in a slot that is moving away.
            let keys: Vec<String> = source.query(&["CLUSTER", "GETKEYSINSLOT", &slot_name, BATCH]).await;
            if keys.is_empty() {
                break;
            }
            let mut command = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            command.extend(keys.iter().map(String::as_str));
            source.command(&command).await;
        }
        // The target first: once the source no longer answers for the slot, another node must.
        let others = self.nodes.iter().filter(|node| node.port() != target.port());
        for node in std::iter::once(target).chain(others) {
            // Replicas follow their primaries.
            if node.is_primary().await {
                node.command(&["CLUSTER", "SETSLOT", &slot_name, "NODE", &to]).await;
            }
        }
        let what = "the slot's new owner, known to all";
        eventually(what, async || self.agreed_owner(slot).await == Some(target.port())).await;
        target.port()
    }

    async fn slot_of(&self, key: &str) -> u16 {
        self.nodes[0].query(&["CLUSTER", "KEYSLOT", key]).await
    }

    /// Returns the owner of the slot; `None` while the running nodes differ or find something out of order.
    async fn agreed_owner(&self, slot: u16) -> Option<u16> {
        let mut agreed = None;
        for node in &self.nodes {
            let owner = owner_known_to(node, slot).await.filter(|owner| !owner.is_down())?;
            if !is_in_order(node).await || *agreed.get_or_insert(owner.port) != owner.port {
                return None;
            }
        }
        agreed
    }

    async fn primary_but(&self, other: &RedisServer) -> &RedisServer {
        for node in &self.nodes {
            if node.port() != other.port() && node.is_primary().await {
                return node;
            }
        }
        panic!("no other primary runs");
    }

    fn node(&self, port: u16) -> &RedisServer {
        let node = self.nodes.iter().find(|node| node.port() == port);
        node.unwrap_or_else(|| panic!("no node runs on port {port}"))
    }
}

impl Known {
    fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|own| own == flag)
    }

    /// Returns whether the node is down in the view of that node alone, or of all.
    fn is_down(&self) -> bool {
        self.has("fail") || self.has("fail?")
    }

    /// Parses a line of CLUSTER NODES: id, address, flags, primary, ping, pong, epoch, link, and the slots.
    fn parse(line: &str) -> Option<Known> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, address, flags, _, _, _, _, link, slots @ ..] = &fields[..] else { return None };
        let (_, port) = address.split_once('@')?.0.rsplit_once(':')?;
        // Moving slots are in brackets.
        let range = |text: &&str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            Some((first.parse().ok()?, last.parse().ok()?))
        };
        Some(Known {
            port: port.parse().ok()?,
            flags: flags.split(',').filter(|flag| *flag != "myself").map(str::to_owned).collect(),
            connected: *link == "connected",
            slots: slots.iter().filter_map(range).collect(),
        })
    }
}

async fn known_to(node: &RedisServer) -> Vec<Known> {
    let text: String = node.query(&["CLUSTER", "NODES"]).await;
    text.lines().filter_map(Known::parse).collect()
}

async fn owner_known_to(node: &RedisServer, slot: u16) -> Option<Known> {
    let serves = |known: &Known| known.slots.iter().any(|(first, last)| (*first..=*last).contains(&slot));
    known_to(node).await.into_iter().find(serves)
}

async fn is_in_order(node: &RedisServer) -> bool {
    node.field(&["CLUSTER", "INFO"], "cluster_state").await.as_deref() == Some("ok")
}

async fn id_of(node: &RedisServer) -> String {
    node.query(&["CLUSTER", "MYID"]).await
}

/// Returns a closed port whose bus port is closed too, and which the system does not give away.
fn port_with_bus() -> u16 {
    loop {
        let port = closed_port();
        let bus = port + BUS_OFFSET;
        if bus < EPHEMERAL_FIRST && TcpListener::bind((Ipv4Addr::LOCALHOST, bus)).is_ok() {
            return port;
        }
    }
}
