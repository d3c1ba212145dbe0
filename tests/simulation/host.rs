//! A machine with a Redis server: its clock, its one thread, and what it is up to.

use std::collections::VecDeque;

use crate::redis::{Input, Mode, Published, Reply, Server, Snapshot};
use crate::replica::LocalClock;

/// The wall time at the beginning of a simulation, in microseconds since the Unix epoch.
pub const WALL: u64 = 1_800_000_000_000_000;

/// A command of a connection, as it lies in the server's buffers; or bytes that are none.
pub struct Queued {
    pub connection: usize,
    pub input: Input,
}

/// A machine with a server.
pub struct Host {
    pub server: Server,
    clock: LocalClock,
    /// The time that the clock shows while it stands still, and the end of that standstill.
    stands: Option<(u64, u64)>,
    pub queue: VecDeque<Queued>,
    /// Commands that may write, held up by `CLIENT PAUSE WRITE`.
    pub held: VecDeque<Queued>,
    pub writes_paused_until: u64,
    /// Until when the server does nothing at all.
    pub frozen_until: u64,
    /// Until when the server carries out a command.
    pub busy_until: u64,
    /// Grows when the process ends: connections of an earlier one are gone.
    pub life: u64,
    pub is_down: bool,
    /// True once an event is scheduled that carries out the next command.
    pub is_scheduled: bool,
    /// The data as they were at times, newest last: from which it may be restored.
    snapshots: VecDeque<(u64, Snapshot)>,
}

impl Host {
    /// Starts a server with an empty memory. Its clock runs as true time does: weir promises its limits where a replica's clock and the
    /// server's drift apart by no more than 200 millionths, and replicas' clocks drift by that.
    pub fn new(now: u64, run_id: String) -> Host {
        Host {
            server: Server::new(run_id),
            clock: LocalClock::new(now, WALL + now, 0),
            stands: None,
            queue: VecDeque::new(),
            held: VecDeque::new(),
            writes_paused_until: 0,
            frozen_until: 0,
            busy_until: 0,
            life: 0,
            is_down: false,
            is_scheduled: false,
            snapshots: VecDeque::new(),
        }
    }

    /// Returns what the server's clock shows.
    pub fn shown(&self, now: u64) -> u64 {
        match self.stands {
            Some((shown, until)) if now < until => shown,
            _ => self.clock.shown(now),
        }
    }

    /// Moves the clock by a step.
    pub fn step_clock(&mut self, now: u64, by: i64) {
        self.clock.step(now, by);
    }

    /// Stops the clock for a time. Afterwards it shows as if it had run on.
    pub fn stop_clock(&mut self, now: u64, until: u64) {
        self.stands = Some((self.shown(now), until));
    }

    /// Returns the instructions of Lua of the longest script call.
    pub fn longest_script(&self) -> u64 {
        self.server.longest_script()
    }

    /// Carries a command out.
    pub fn execute(&mut self, now: u64, command: &[Vec<u8>]) -> (Reply, Vec<Published>) {
        self.server.execute(command, self.shown(now))
    }

    /// Remembers the data, as a replication or a snapshot on disk does.
    pub fn remember(&mut self, now: u64) {
        // A process that is down writes nothing: its last copies stay those from before.
        if self.is_down {
            return;
        }
        self.snapshots.push_back((now, self.server.snapshot()));
        if self.snapshots.len() > 64 {
            self.snapshots.pop_front();
        }
    }

    /// Returns the latest remembered data that are at least this old.
    pub fn remembered(&self, at: u64) -> Option<&Snapshot> {
        self.snapshots.iter().rev().find(|(taken, _)| *taken <= at).map(|(_, snapshot)| snapshot)
    }

    /// Ends the process: its connections and what lies in its buffers are gone.
    pub fn end(&mut self) {
        self.life += 1;
        self.is_down = true;
        self.queue.clear();
        self.held.clear();
        (self.frozen_until, self.busy_until, self.writes_paused_until) = (0, 0, 0);
        // The next command is not to wait until the end of what is gone with the queue.
        self.is_scheduled = false;
        self.server.mode = Mode::Normal;
    }

    /// Starts the process again, with these data or none.
    pub fn start(&mut self, run_id: String, data: Option<&Snapshot>) {
        self.is_down = false;
        self.server.restart(run_id, data);
    }
}
