//! Faults as they begin and end.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Event, World, is_meant, is_of_clients, run_id};
use crate::client::Command;
use crate::fault::Kind;
use crate::host::Host;
use crate::redis::Mode;

const MILLI: u64 = 1_000;
const SECOND: u64 = 1_000_000;
/// How often it is seen whether an eviction was noticed, and how long nobody may notice it.
const NOTICED: u64 = 10 * MILLI;
const UNNOTICED_MAX: u64 = 30 * SECOND;
/// The list of all states.
const LIVE: &[u8] = b"weir:v2:live";
/// The list of the states whose bookings were moved.
const MOVED: &[u8] = b"weir:v2:moved";

/// The faults that go on.
#[derive(Default)]
pub(super) struct Begun {
    /// All of them, with the places that they hit.
    kinds: BTreeMap<usize, Kind>,
    /// The evictions, with the key that is gone, and how long they go on at most.
    evicted: BTreeMap<usize, (Vec<u8>, u64)>,
}

impl World {
    pub(super) fn begin_fault(&mut self, fault: usize) -> Result<(), String> {
        let kind = self.aimed(self.plan.faults[fault].kind.clone());
        self.begun.kinds.insert(fault, kind.clone());
        self.history.add(self.now, || format!("FAULT {fault} {kind:?}"));
        let until = self.now + kind.lasts();
        if !is_of_clients(&kind) {
            self.judge.fault_begins(self.now, fault, &kind);
        }
        self.schedule(until, Event::End(fault));
        match kind {
            Kind::Flush => self.hosts[self.primary].server.flush(),
            Kind::RestartEmpty { .. } | Kind::RestartOlder { .. } => self.kill_server(),
            Kind::Failover { lag, split, .. } => self.fail_over(lag, split),
            Kind::Evict => self.evict(fault),
            Kind::Freeze { .. } => self.hosts[self.primary].frozen_until = until,
            Kind::Full { .. } => self.set_mode(Mode::Full),
            Kind::ReadOnly { .. } => self.set_mode(Mode::ReadOnly),
            Kind::Busy { .. } => self.set_mode(Mode::Busy),
            Kind::NoAuth { .. } => self.set_mode(Mode::NoAuth),
            Kind::PauseWrites { .. } => self.hosts[self.primary].writes_paused_until = until,
            Kind::ClockStep { by } => {
                self.hosts[self.primary].step_clock(self.now, by);
                self.judge.clock_stepped(self.now);
            }
            Kind::ClockStands { .. } => {
                self.hosts[self.primary].stop_clock(self.now, until);
                self.judge.clock_stepped(self.now);
            }
            Kind::Slow { replica, extra, .. } => self.network.slow.push((fault, replica, extra)),
            Kind::Swallow { replica } => self.swallow(replica),
            Kind::Break { replica, .. } => self.network.breaks.push((fault, replica)),
            Kind::CutOff { replica, .. } => {
                let cut_until = &mut self.places[replica].cut_until;
                *cut_until = (*cut_until).max(until);
            }
            Kind::Kill { replica, .. } => self.remove(replica),
            Kind::Drain { replica } => self.replace(replica, self.now, self.now + 500 * MILLI),
            Kind::End { replica, down } => self.replace(replica, self.now + down, self.now),
            Kind::Deploy { pause } => self.deploy(pause),
            Kind::Stop { replica, .. } => self.stop(replica, until),
            Kind::Sleep { replica, .. } => {
                let own = &mut self.places[replica];
                own.asleep_since =
                    own.asleep_since.filter(|_| own.stopped_until > self.now).or(Some(self.now));
                self.stop(replica, until);
            }
            Kind::BusyCpu { replica, most, odds, .. } => self.busy.push((fault, replica, most, odds)),
            Kind::Reload { configuration, lag } => self.reload(configuration, lag),
            Kind::Pause { limiter, lasts } => {
                self.operate(limiter, Command::Pause(Duration::from_micros(lasts)));
            }
            Kind::Resume { limiter } => self.operate(limiter, Command::Pause(Duration::ZERO)),
            Kind::Reset { limiter } => self.operate(limiter, Command::Reset),
            Kind::UpstreamPause { lasts, wait } => self.demand.refuses = Some((self.now + lasts, wait)),
            Kind::Leave => self.demand.leave_until = self.now + SECOND,
            Kind::Idle { .. } => self.demand.idle += 1,
            Kind::Burst { .. } => self.demand.bursts += 1,
        }
        Ok(())
    }

    pub(super) fn end_fault(&mut self, fault: usize) {
        if self.is_unnoticed(fault) {
            return self.schedule(self.now + NOTICED, Event::End(fault));
        }
        let Some(kind) = self.begun.kinds.remove(&fault) else { return };
        self.history.add(self.now, || format!("END of fault {fault} {}", kind.name()));
        match kind {
            Kind::RestartEmpty { .. } => self.start_server(None),
            Kind::RestartOlder { down, age } => self.start_server(Some(self.now.saturating_sub(down + age))),
            Kind::Failover { .. } => {
                for place in 0..self.places.len() {
                    self.places[place].names = self.primary;
                }
                for host in 0..self.hosts.len() {
                    if host != self.primary && !self.hosts[host].is_down {
                        self.hosts[host].end();
                        self.hang_up(host);
                    }
                }
            }
            Kind::Full { .. } | Kind::ReadOnly { .. } | Kind::Busy { .. } | Kind::NoAuth { .. } => {
                self.set_mode(Mode::Normal);
            }
            Kind::PauseWrites { .. } => {
                let host = &mut self.hosts[self.primary];
                let mut held = std::mem::take(&mut host.held);
                held.append(&mut host.queue);
                host.queue = held;
                self.schedule_carry(self.primary);
            }
            Kind::ClockStands { .. } => self.judge.clock_stepped(self.now),
            Kind::Slow { .. } => self.network.slow.retain(|(one, ..)| *one != fault),
            Kind::Break { .. } => self.network.breaks.retain(|(one, _)| *one != fault),
            Kind::Kill { replica, .. } => self.schedule(self.now, Event::Start { place: replica }),
            Kind::Stop { replica, .. } | Kind::Sleep { replica, .. } => self.go_on(replica),
            Kind::BusyCpu { .. } => self.busy.retain(|(one, ..)| *one != fault),
            Kind::Idle { .. } => self.demand.idle -= 1,
            Kind::Burst { .. } => self.demand.bursts -= 1,
            _ => {}
        }
        if !is_of_clients(&kind) {
            self.judge.fault_ends(self.now, fault, &kind);
        }
    }

    /// Returns whether nobody has missed yet what an eviction has taken away: then it goes on. One whose key is not there again soon is
    /// over, because its limiter is not in use.
    fn is_unnoticed(&mut self, fault: usize) -> bool {
        let Some((key, until)) = self.begun.evicted.get(&fault) else { return false };
        let host = &self.hosts[self.primary];
        let goes_on = self.now < *until && host.server.get(key, host.shown(self.now)).is_none();
        if !goes_on {
            self.begun.evicted.remove(&fault);
        }
        goes_on
    }

    /// Turns the number of a replica among those that run into its place in the fleet.
    fn aimed(&self, mut kind: Kind) -> Kind {
        let running: Vec<usize> =
            (0..self.places.len()).filter(|place| self.places[*place].replica.is_some()).collect();
        let all = self.places.len();
        let aim = |replica: &mut usize| {
            *replica = running.get(*replica % running.len().max(1)).copied().unwrap_or(*replica % all);
        };
        match &mut kind {
            Kind::Slow { replica: Some(replica), .. }
            | Kind::Swallow { replica: Some(replica) }
            | Kind::Break { replica: Some(replica), .. }
            | Kind::BusyCpu { replica: Some(replica), .. }
            | Kind::CutOff { replica, .. }
            | Kind::Kill { replica, .. }
            | Kind::Drain { replica }
            | Kind::End { replica, .. }
            | Kind::Stop { replica, .. }
            | Kind::Sleep { replica, .. } => aim(replica),
            _ => {}
        }
        kind
    }

    fn set_mode(&mut self, mode: Mode) {
        self.hosts[self.primary].server.mode = mode;
    }

    fn kill_server(&mut self) {
        let primary = self.primary;
        self.hosts[primary].end();
        self.hang_up(primary);
    }

    /// Starts the server again, with its data at an instant, or with nothing.
    fn start_server(&mut self, data_at: Option<u64>) {
        let run = run_id(&mut self.network_draws);
        let host = &mut self.hosts[self.primary];
        if host.is_down {
            let data = data_at.and_then(|at| host.remembered(at).cloned());
            host.start(run, data.as_ref());
        }
    }

    fn fail_over(&mut self, lag: u64, split: usize) {
        let (now, old) = (self.now, self.primary);
        let run = run_id(&mut self.network_draws);
        let mut host = Host::new(now, run.clone());
        let data = self.hosts[old].remembered(now.saturating_sub(lag)).cloned();
        host.start(run, data.as_ref());
        self.hosts.push(host);
        self.primary = self.hosts.len() - 1;
        self.judge.clock_stepped(now);
        // The first replicas still reach the old server, and take it for the primary; for the others it is gone.
        for place in split.min(self.places.len())..self.places.len() {
            self.places[place].names = self.primary;
        }
        for connection in 0..self.connections.len() {
            let own = &self.connections[connection];
            if own.host == old && own.place >= split && !own.is_closed {
                let at = self.now + self.network_draws.u64(MILLI..50 * MILLI);
                self.schedule(at, Event::Close { connection });
            }
        }
    }

    /// Takes a key of a state away, or the list of moves, in half of the cases together with the list of all states. Nobody notices before the
    /// next call that needs it; of the list of moves that is the next heartbeat.
    fn evict(&mut self, fault: usize) {
        let shown = self.hosts[self.primary].shown(self.now);
        let mut keys = self.hosts[self.primary].server.keys(shown);
        keys.retain(|key| key.windows(9).any(|part| part == b":limiter:") || *key == MOVED);
        if !keys.is_empty() {
            let key = keys.swap_remove(self.network_draws.usize(..keys.len()));
            self.hosts[self.primary].server.remove(&key);
            if self.network_draws.bool() {
                self.hosts[self.primary].server.remove(LIVE);
            }
            if key != MOVED {
                self.begun.evicted.insert(fault, (key, self.now + UNNOTICED_MAX));
            }
        }
    }

    fn swallow(&mut self, replica: Option<usize>) {
        for connection in &mut self.connections {
            if is_meant(replica, connection.place) {
                connection.is_swallowed = true;
            }
        }
    }

    /// Drains a replica, and starts another one in a place of its own.
    fn replace(&mut self, place: usize, starts: u64, ends: u64) {
        let successor = self.places.len();
        let own = &self.places[place];
        let (names, configuration, cut_until) = (own.names, own.configuration, own.cut_until);
        if own.replica.is_none() {
            return;
        }
        self.places.push(super::Place::vacant(names, configuration, cut_until));
        self.schedule(starts, Event::Start { place: successor });
        self.schedule(ends, Event::Terminate { place });
    }

    fn deploy(&mut self, pause: u64) {
        let running: Vec<usize> =
            (0..self.places.len()).filter(|place| self.places[*place].replica.is_some()).collect();
        for (turn, place) in (0_u64..).zip(running) {
            let at = self.now + turn * (pause + SECOND);
            let successor = self.places.len();
            let own = &self.places[place];
            let vacant = super::Place::vacant(own.names, own.configuration, 0);
            self.places.push(vacant);
            self.schedule(at, Event::Start { place: successor });
            self.schedule(at + 500 * MILLI, Event::Terminate { place });
        }
    }

    fn stop(&mut self, place: usize, until: u64) {
        let own = &mut self.places[place];
        own.stopped_until = own.stopped_until.max(until);
        self.judge.stopped(self.now, place);
    }

    /// Lets a stopped replica go on. One whose machine has slept has not seen that time pass.
    fn go_on(&mut self, place: usize) {
        let own = &mut self.places[place];
        if own.stopped_until > self.now {
            return;
        }
        if let (Some((replica, _)), Some(since)) = (&mut own.replica, own.asleep_since.take()) {
            replica.sleep(self.now, self.now - since);
        }
        self.judge.continued(self.now, place);
        self.step_replica(place);
    }

    fn reload(&mut self, configuration: usize, lag: u64) {
        for place in 0..self.places.len() {
            let at = self.now + self.network_draws.u64(..=lag);
            self.schedule(at, Event::Configure { place, configuration });
        }
    }

    fn operate(&mut self, limiter: usize, command: Command) {
        let Some(limiter) = self.plan.configurations[0].limiters.get(limiter) else { return };
        let Some((replica, _)) = self.places.iter().find_map(|place| place.replica.as_ref()) else { return };
        replica.operate(&limiter.name, command);
    }
}
