//! Connections: how bytes travel, and how a server carries out what arrives.

use super::{Connection, Event, World, is_meant};
use crate::host::Queued;
use crate::network::Wire;
use crate::redis::{Commands, Input, Published, Reply};

const MILLI: u64 = 1_000;

/// The condition of the network.
#[derive(Default)]
pub(super) struct Conditions {
    /// Which replica's bytes take how much longer, by the fault.
    pub(super) slow: Vec<(usize, Option<usize>, u64)>,
    /// Whose connections break before an answer, by the fault.
    pub(super) breaks: Vec<(usize, Option<usize>)>,
    /// How many script calls were carried out.
    pub(super) calls: u64,
}

impl World {
    /// Draws how long bytes between a place and the store travel.
    fn travel(&mut self, place: usize) -> u64 {
        let usual = self.plan.latency;
        let mut time = usual / 2 + self.network_draws.u64(..=usual);
        if self.network_draws.u8(..) == 0 {
            time += self.network_draws.u64(..5 * MILLI);
        }
        let slow = self.network.slow.iter().filter(|(_, replica, _)| is_meant(*replica, place));
        time + slow.map(|(_, _, extra)| *extra).sum::<u64>()
    }

    /// Returns when bytes that are written now arrive: after those before them, and not while the place is cut off.
    fn arrival(&mut self, place: usize, after: u64) -> u64 {
        let mut at = self.now + self.travel(place);
        let cut_until = self.places[place].cut_until;
        if self.now < cut_until || at < cut_until {
            // They are sent again when the line is there again, after a while.
            at = cut_until.max(self.now) + self.network_draws.u64(MILLI..200 * MILLI);
        }
        at.max(after)
    }

    /// Begins a connection to the server that the place knows as the primary.
    pub(super) fn dial(&mut self, place: usize, life: u64, wire: Wire) {
        let host = self.places[place].names;
        let connection = self.connections.len();
        let at = self.arrival(place, 0);
        self.connections.push(Connection {
            place,
            life,
            host,
            host_life: u64::MAX,
            wire,
            commands: Commands::default(),
            channels: Vec::new(),
            to_host_at: at,
            to_replica_at: 0,
            is_swallowed: false,
            is_closed: false,
        });
        self.places[place].connections.push(connection);
        self.schedule(at, Event::Accept { connection });
    }

    pub(super) fn accept(&mut self, connection: usize) {
        let own = &self.connections[connection];
        let (place, host) = (own.place, own.host);
        if self.hosts[host].is_down {
            let at = self.arrival(place, 0);
            return self.schedule(at, Event::Close { connection });
        }
        self.connections[connection].host_life = self.hosts[host].life;
        // The handshake ends at the replica.
        let at = self.arrival(place, 0);
        self.schedule(at, Event::ToReplica { connection, bytes: Vec::new() });
    }

    /// Sends what a replica has written.
    pub(super) fn send_written(&mut self, place: usize) {
        let mut connections = std::mem::take(&mut self.places[place].connections);
        connections.retain(|connection| self.send(place, *connection));
        // None is begun meanwhile.
        self.places[place].connections = connections;
    }

    /// Sends what a replica has written on a connection. Returns whether it is still open.
    fn send(&mut self, place: usize, connection: usize) -> bool {
        let own = &self.connections[connection];
        let (bytes, is_dropped, after) = (own.wire.take_written(), own.wire.is_dropped(), own.to_host_at);
        if !bytes.is_empty() {
            let at = self.arrival(place, after);
            self.connections[connection].to_host_at = at;
            self.schedule(at, Event::ToHost { connection, bytes });
        }
        let own = &mut self.connections[connection];
        own.is_closed |= is_dropped;
        !own.is_closed
    }

    pub(super) fn arrive_at_host(&mut self, connection: usize, bytes: &[u8]) {
        let own = &mut self.connections[connection];
        let host = own.host;
        if own.host_life != self.hosts[host].life || self.hosts[host].is_down {
            return;
        }
        own.commands.push(bytes);
        for input in own.commands.by_ref() {
            self.hosts[host].queue.push_back(Queued { connection, input });
        }
        self.schedule_carry(host);
    }

    pub(super) fn schedule_carry(&mut self, host: usize) {
        let own = &mut self.hosts[host];
        if own.is_scheduled || own.queue.is_empty() {
            return;
        }
        own.is_scheduled = true;
        let at = own.busy_until.max(own.frozen_until);
        self.schedule(at, Event::Carry { host });
    }

    pub(super) fn carry(&mut self, host: usize) {
        let now = self.now;
        let own = &mut self.hosts[host];
        own.is_scheduled = false;
        if now < own.frozen_until || now < own.busy_until {
            return self.schedule_carry(host);
        }
        let Some(queued) = own.queue.pop_front() else { return };
        let Queued { connection, input } = queued;
        let command = match input {
            Input::Command(command) => command,
            Input::Broken(why) => return self.refuse_bytes(host, connection, why),
        };
        let name = command.first().map(|name| name.to_ascii_uppercase()).unwrap_or_default();
        let is_script = name.starts_with(b"EVAL");
        if is_script && now < own.writes_paused_until {
            own.held.push_back(Queued { connection, input: Input::Command(command) });
            return self.schedule_carry(host);
        }
        let (reply, published) = match &name[..] {
            b"SUBSCRIBE" => (self.subscribe(connection, &command), Vec::new()),
            b"UNSUBSCRIBE" => (Reply::Array(Vec::new()), Vec::new()),
            b"PING" if !self.connections[connection].channels.is_empty() => {
                (Reply::Array(vec![Reply::Bulk(b"pong".to_vec()), Reply::Bulk(Vec::new())]), Vec::new())
            }
            _ => self.hosts[host].execute(now, &command),
        };
        let took = if is_script { self.plan.script_time.clone() } else { 1..8 };
        let took = self.network_draws.u64(took);
        if is_script {
            self.network.calls += 1;
        }
        self.hosts[host].busy_until = now + took;
        let done = now + took;
        for published in &published {
            self.publish(host, done, published);
        }
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        self.history.carried(now, host, connection, &command, &bytes);
        self.answer(connection, done, bytes);
        self.schedule_carry(host);
    }

    /// Answers bytes that are no command, and closes their connection.
    fn refuse_bytes(&mut self, host: usize, connection: usize, why: String) {
        let mut bytes = Vec::new();
        Reply::Error(why).encode(&mut bytes);
        self.answer(connection, self.now, bytes);
        let at = self.connections[connection].to_replica_at;
        self.schedule(at, Event::Close { connection });
        self.schedule_carry(host);
    }

    fn subscribe(&mut self, connection: usize, command: &[Vec<u8>]) -> Reply {
        let channels = command.get(1..).unwrap_or_default();
        self.connections[connection].channels.extend(channels.iter().cloned());
        let count = i64::try_from(self.connections[connection].channels.len()).unwrap_or_default();
        let channel = channels.first().cloned().unwrap_or_default();
        Reply::Array(vec![Reply::Bulk(b"subscribe".to_vec()), Reply::Bulk(channel), Reply::Int(count)])
    }

    fn publish(&mut self, host: usize, at: u64, published: &Published) {
        let connections: Vec<usize> =
            self.places.iter().flat_map(|place| place.connections.clone()).collect();
        for connection in connections {
            let own = &self.connections[connection];
            let hears = own.host == host && own.host_life == self.hosts[host].life && !own.is_closed;
            if hears && own.channels.contains(&published.channel) {
                let (channel, message) = (published.channel.clone(), published.message.clone());
                let parts = [b"message".to_vec(), channel, message].map(Reply::Bulk);
                let mut bytes = Vec::new();
                Reply::Array(parts.into()).encode(&mut bytes);
                self.answer(connection, at, bytes);
            }
        }
    }

    /// Sends bytes to the replica, written at `at`.
    fn answer(&mut self, connection: usize, at: u64, bytes: Vec<u8>) {
        let own = &self.connections[connection];
        let (place, after) = (own.place, own.to_replica_at);
        if own.is_swallowed || own.is_closed {
            return;
        }
        let breaks = self.network.breaks.iter().any(|(_, replica)| is_meant(*replica, place));
        let at = self.arrival(place, after) + (at - self.now);
        self.connections[connection].to_replica_at = at;
        if breaks && self.network_draws.bool() {
            self.connections[connection].is_swallowed = true;
            return self.schedule(at, Event::Close { connection });
        }
        self.schedule(at, Event::ToReplica { connection, bytes });
    }

    pub(super) fn arrive_at_replica(&mut self, connection: usize, bytes: &[u8]) {
        let own = &self.connections[connection];
        if own.is_closed || self.places[own.place].life != own.life {
            return;
        }
        if bytes.is_empty() {
            own.wire.accept();
        } else {
            own.wire.deliver(bytes);
        }
        let place = own.place;
        self.step_replica(place);
    }

    pub(super) fn close(&mut self, connection: usize) {
        let own = &mut self.connections[connection];
        own.is_closed = true;
        own.wire.close();
        let (place, life) = (own.place, own.life);
        if self.places[place].life == life {
            self.step_replica(place);
        }
    }

    /// Closes all connections to a server, whose process has ended.
    pub(super) fn hang_up(&mut self, host: usize) {
        for connection in 0..self.connections.len() {
            let own = &self.connections[connection];
            if own.host == host && !own.is_closed && own.host_life != u64::MAX {
                let (place, after) = (own.place, own.to_replica_at);
                let at = self.arrival(place, after);
                self.schedule(at, Event::Close { connection });
            }
        }
    }
}
