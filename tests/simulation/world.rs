//! The world: one scheduler, in microseconds of true time, that carries bytes, carries out commands, steps replicas and lets
//! faults happen. Everything is drawn from the seed, so a run is the same each time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use fastrand::Rng;
use weir::config::Config;
use weir::config::model::Store;

use crate::client::{Note, UpstreamAnswers};
use crate::fault::Kind;
use crate::history::History;
use crate::host::{Host, WALL};
use crate::judge::Judge;
use crate::network::{Dialer, Wire};
use crate::oracle::{Finding, Summary, What};
use crate::plan::Plan;
use crate::redis::Commands;
use crate::replica::{Replica, Start};
use crate::watchdog::Watchdog;

mod demand;
mod faults;
mod links;
mod stalls;

const MILLI: u64 = 1_000;

/// The most instructions of Lua that one script call may take: some two milliseconds of a server.
const INSTRUCTIONS_MAX: u64 = 200_000;

/// How often a server's data are remembered, for a failover or a restart from an older copy.
const REMEMBER_EVERY: u64 = 100 * MILLI;

/// An event of the schedule.
#[derive(Debug)]
enum Event {
    /// Bytes arrive at the server.
    ToHost {
        connection: usize,
        bytes: Vec<u8>,
    },
    /// The server carries out the next command in its buffers.
    Carry {
        host: usize,
    },
    /// Bytes arrive at the replica.
    ToReplica {
        connection: usize,
        bytes: Vec<u8>,
    },
    /// The replica learns that a connection is closed, or was refused.
    Close {
        connection: usize,
    },
    /// A connection is accepted, if the server is there.
    Accept {
        connection: usize,
    },
    /// A client calls a route.
    Arrive {
        route: usize,
    },
    /// A fault of the plan begins, or ends.
    Begin(usize),
    End(usize),
    /// A place in the fleet gets a new replica.
    Start {
        place: usize,
    },
    /// A replica gets SIGTERM.
    Terminate {
        place: usize,
    },
    /// The drain time of a replica is over.
    Drained {
        place: usize,
        life: u64,
    },
    /// A replica takes on a configuration.
    Configure {
        place: usize,
        configuration: usize,
    },
    Remember,
    /// A replica's timers may ring.
    Tick {
        place: usize,
        life: u64,
    },
}

/// A connection of a replica to a server.
struct Connection {
    place: usize,
    life: u64,
    host: usize,
    /// The server's process that it was made to.
    host_life: u64,
    wire: Wire,
    commands: Commands,
    channels: Vec<Vec<u8>>,
    /// When the last bytes in each direction arrive: they keep their order.
    to_host_at: u64,
    to_replica_at: u64,
    /// True if answers never arrive any more.
    is_swallowed: bool,
    is_closed: bool,
}

/// The phase of a replica's life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Starting,
    Serving,
    /// It finishes its requests.
    Draining,
    /// It gives back what it holds.
    Closing,
}

/// A place in the fleet, with the replica that runs there.
struct Place {
    replica: Option<(Replica, Dialer)>,
    phase: Phase,
    /// Grows with each replica.
    life: u64,
    /// Until when the process is stopped.
    stopped_until: u64,
    /// Until when it does not get the processor.
    stalled_until: u64,
    /// Since when the machine sleeps; `None` if the replica was started since.
    asleep_since: Option<u64>,
    /// Until when no byte passes to or from the store.
    cut_until: u64,
    /// The server that new connections reach.
    names: usize,
    configuration: usize,
    /// How many requests are not over.
    open: u64,
    /// The connections that the replica has not closed.
    connections: Vec<usize>,
}

impl Place {
    /// Returns a place in which no replica runs yet.
    fn vacant(names: usize, configuration: usize, cut_until: u64) -> Place {
        let (replica, phase, connections) = (None, Phase::Starting, Vec::new());
        Place {
            replica,
            phase,
            life: 0,
            stopped_until: 0,
            stalled_until: 0,
            asleep_since: None,
            cut_until,
            names,
            configuration,
            open: 0,
            connections,
        }
    }
}

/// One run.
pub struct World {
    plan: Plan,
    configs: Vec<Arc<Config>>,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    bodies: BTreeMap<(u64, u64), Event>,
    sequence: u64,
    hosts: Vec<Host>,
    primary: usize,
    connections: Vec<Connection>,
    places: Vec<Place>,
    /// Random numbers for the network, for demand and for replicas: taking out a fault changes no other draw of demand.
    network_draws: Rng,
    demand_draws: Rng,
    replica_draws: Rng,
    network: links::Conditions,
    busy: stalls::Busy,
    demand: demand::Demand,
    answers: UpstreamAnswers,
    /// The faults that have begun, with the places that they hit.
    begun: faults::Begun,
    judge: Judge,
    history: History,
    sent: Vec<(u64, u64)>,
}

/// The outcome of a run.
pub struct Outcome {
    pub findings: Vec<Finding>,
    pub hash: u64,
    pub history: Vec<String>,
    pub summary: Summary,
    pub calls: u64,
    /// The instructions of Lua of the longest script call.
    pub longest_script: u64,
    /// When each request was written to the upstream, and its number.
    pub sent: Vec<(u64, u64)>,
}

impl World {
    /// Carries out a plan. `keeps_history` costs memory; the hash is the same with and without.
    pub fn run(plan: &Plan, keeps_history: bool) -> Result<Outcome, String> {
        let _watchdog = Watchdog::watch(plan.seed);
        let mut world = World::new(plan, keeps_history)?;
        while world.step()? {}
        Ok(world.finish())
    }

    fn new(plan: &Plan, keeps_history: bool) -> Result<World, String> {
        let configs = plan.configs()?;
        let mut seeds = Rng::with_seed(plan.seed ^ 0x5eed);
        let mut draws = || Rng::with_seed(seeds.u64(..));
        let (network_draws, demand_draws, mut replica_draws) = (draws(), draws(), draws());
        let host = Host::new(0, run_id(&mut replica_draws));
        let mut world = World {
            configs,
            now: 0,
            events: BinaryHeap::new(),
            bodies: BTreeMap::new(),
            sequence: 0,
            hosts: vec![host],
            primary: 0,
            connections: Vec::new(),
            places: Vec::new(),
            network_draws,
            demand_draws,
            replica_draws,
            network: links::Conditions::default(),
            busy: stalls::Busy::default(),
            demand: demand::Demand::default(),
            answers: UpstreamAnswers::default(),
            begun: faults::Begun::default(),
            judge: Judge::new(plan),
            history: History::new(keeps_history),
            sent: Vec::new(),
            plan: plan.clone(),
        };
        world.begin();
        Ok(world)
    }

    fn begin(&mut self) {
        for place in 0..self.plan.replicas {
            self.places.push(Place::vacant(0, 0, 0));
            let at = self.replica_draws.u64(0..200 * MILLI);
            self.schedule(at, Event::Start { place });
        }
        for route in 0..self.plan.routes.len() {
            self.schedule(self.plan.demand.0, Event::Arrive { route });
        }
        for fault in 0..self.plan.faults.len() {
            self.schedule(self.plan.faults[fault].at, Event::Begin(fault));
        }
        self.schedule(0, Event::Remember);
        self.judge.configured(0, None, 0, false);
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        let key = (at.max(self.now), self.sequence);
        self.events.push(Reverse(key));
        self.bodies.insert(key, event);
    }

    /// Lets the next thing happen. Returns false at the end.
    fn step(&mut self) -> Result<bool, String> {
        let Some(Reverse(key)) = self.events.pop() else { return Ok(false) };
        let Some(event) = self.bodies.remove(&key) else { return Ok(true) };
        if key.0 > self.plan.end {
            return Ok(false);
        }
        self.now = key.0;
        match event {
            Event::ToHost { connection, bytes } => self.arrive_at_host(connection, &bytes),
            Event::Carry { host } => self.carry(host),
            Event::ToReplica { connection, bytes } => self.arrive_at_replica(connection, &bytes),
            Event::Close { connection } => self.close(connection),
            Event::Accept { connection } => self.accept(connection),
            Event::Arrive { route } => self.arrive(route),
            Event::Begin(fault) => self.begin_fault(fault)?,
            Event::End(fault) => self.end_fault(fault),
            Event::Start { place } => self.start(place)?,
            Event::Terminate { place } => self.terminate(place),
            Event::Drained { place, life } => self.drained(place, life),
            Event::Configure { place, configuration } => self.configure(place, configuration)?,
            Event::Remember => {
                self.hosts[self.primary].remember(self.now);
                self.schedule(self.now + REMEMBER_EVERY, Event::Remember);
            }
            Event::Tick { place, life } => self.tick(place, life),
        }
        Ok(true)
    }

    fn finish(mut self) -> Outcome {
        self.now = self.plan.end;
        self.judge.ended(self.now);
        let (mut findings, summary) = self.judge.finish();
        let longest_script = self.hosts.iter().map(Host::longest_script).max().unwrap_or_default();
        if longest_script > INSTRUCTIONS_MAX {
            let (what, limiter, detail) = (What::Heavy, "store".to_owned(), "a script call".to_owned());
            let (sent, limit) = (longest_script, INSTRUCTIONS_MAX);
            findings.push(Finding { at: self.now, what, limiter, sent, limit, detail });
        }
        debug_assert_eq!(summary.senseless, 0, "what the oracle is told makes sense");
        for finding in &findings {
            self.history.add(finding.at, || format!("FINDING {finding:?}"));
        }
        let (hash, history) = self.history.finish();
        Outcome {
            findings,
            hash,
            history,
            summary,
            calls: self.network.calls,
            longest_script,
            sent: self.sent,
        }
    }

    // -- replicas

    fn start(&mut self, place: usize) -> Result<(), String> {
        if self.places[place].replica.is_some() {
            return Ok(());
        }
        let configuration = self.places[place].configuration;
        let config = &self.configs[configuration];
        let Store::Redis(store) = &config.store else { return Err("no Redis".to_owned()) };
        let most = self.plan.drift_ppm;
        let drift_ppm = self.replica_draws.i64(-most..=most);
        // Wall clocks of machines that are kept in time differ by some milliseconds.
        let wall = (WALL + self.now).saturating_add_signed(self.replica_draws.i64(-20_000..20_000));
        let seed = self.replica_draws.u64(..);
        let routes = self.plan.routes_of(configuration);
        let (limiters, now) = (&config.limiters, self.now);
        let start = Start { now, wall, drift_ppm, seed, store, limiters, routes: &routes };
        let replica = Replica::start(&start)?;
        self.history.add(now, || format!("replica {place} starts"));
        let dialer = replica.dialer.clone();
        let own = &mut self.places[place];
        own.life += 1;
        (own.replica, own.phase, own.open) = (Some((replica, dialer)), Phase::Starting, 0);
        (own.stopped_until, own.stalled_until, own.asleep_since) = (0, 0, None);
        own.names = self.primary;
        self.judge.configured(now, Some(place), configuration, true);
        self.step_replica(place);
        self.schedule_tick(place);
        Ok(())
    }

    fn schedule_tick(&mut self, place: usize) {
        let own = &self.places[place];
        let Some((replica, _)) = &own.replica else { return };
        // A machine rings its timers a little late.
        let late = if self.network_draws.u8(..4) == 0 { self.network_draws.u64(..300) } else { 0 };
        let at = (replica.next_tick() + late).max(own.stopped_until).max(own.stalled_until);
        let life = own.life;
        self.schedule(at, Event::Tick { place, life });
    }

    fn tick(&mut self, place: usize, life: u64) {
        if self.places[place].life != life {
            return;
        }
        self.step_replica(place);
        self.schedule_tick(place);
    }

    /// Lets a replica do everything that it has to do now, and takes in what it has done.
    fn step_replica(&mut self, place: usize) {
        let now = self.now;
        let own = &mut self.places[place];
        let Some((replica, dialer)) = &mut own.replica else { return };
        if now < own.stopped_until.max(own.stalled_until) {
            return;
        }
        let (notes, begun, life) = (replica.step(now), dialer.take_begun(), own.life);
        for wire in begun {
            self.dial(place, life, wire);
        }
        self.send_written(place);
        // With the end of the replica all is said of its requests.
        let (ends, notes): (Vec<Note>, Vec<Note>) =
            notes.into_iter().partition(|note| matches!(note, Note::Closed));
        for note in notes.into_iter().chain(ends) {
            self.noted(place, note);
        }
        self.stall(place);
    }

    fn noted(&mut self, place: usize, note: Note) {
        self.history.mark(self.now, &(place, &note));
        self.history.add(self.now, || format!("replica {place}: {note:?}"));
        match note {
            Note::Ready => {
                if self.places[place].phase == Phase::Starting {
                    self.places[place].phase = Phase::Serving;
                }
            }
            Note::Waiting(request) => self.judge.waiting(self.now, request),
            Note::Connecting(request) => self.judge.connecting(self.now, request),
            Note::Connected(request) => self.judge.connected(self.now, request),
            Note::Sent(request) => self.sent(place, request),
            Note::Settled(request) => self.settled(place, request),
            Note::Refused(request, why) => {
                self.over(place);
                let clock = self.hosts[self.primary].shown(self.now);
                self.judge.refused(self.now, request, why, clock);
            }
            Note::Left(request) => {
                self.over(place);
                self.judge.left(self.now, request);
            }
            Note::Operated { limiter, command, .. } => self.judge.operated(self.now, &limiter, command),
            Note::Closed => self.remove(place),
        }
    }

    /// Counts one request less, and lets a draining replica go on to its end after the last.
    fn over(&mut self, place: usize) {
        let own = &mut self.places[place];
        own.open = own.open.saturating_sub(1);
        if own.open == 0 && own.phase == Phase::Draining {
            let life = own.life;
            self.schedule(self.now, Event::Drained { place, life });
        }
    }

    fn terminate(&mut self, place: usize) {
        let own = &mut self.places[place];
        if own.replica.is_none() {
            return;
        }
        own.phase = Phase::Draining;
        let (life, at) = (own.life, if own.open == 0 { self.now } else { self.now + 8_000_000 });
        self.schedule(at, Event::Drained { place, life });
    }

    fn drained(&mut self, place: usize, life: u64) {
        let own = &mut self.places[place];
        let Some((replica, _)) = &own.replica else { return };
        if own.life != life || own.phase != Phase::Draining {
            return;
        }
        own.phase = Phase::Closing;
        replica.close();
        self.step_replica(place);
    }

    /// Takes away a replica, whose requests leave with it, and whose connections close.
    fn remove(&mut self, place: usize) {
        let Some((replica, _)) = self.places[place].replica.take() else { return };
        self.places[place].life += 1;
        self.places[place].open = 0;
        self.history.add(self.now, || format!("replica {place} is gone"));
        self.send_written(place);
        self.places[place].connections.clear();
        for note in replica.end() {
            if let Note::Left(request) = note {
                self.judge.left(self.now, request);
            }
        }
        self.judge.gone(self.now, place);
    }

    fn configure(&mut self, place: usize, configuration: usize) -> Result<(), String> {
        self.places[place].configuration = configuration;
        let routes = self.plan.routes_of(configuration);
        let limiters = self.configs[configuration].limiters.clone();
        if let Some((replica, _)) = &mut self.places[place].replica {
            replica.configure(&limiters, &routes)?;
            self.judge.configured(self.now, Some(place), configuration, false);
            let running = self.places.iter().filter(|place| place.replica.is_some());
            if running.clone().all(|place| place.configuration == configuration) {
                self.judge.configured(self.now, None, configuration, false);
            }
            self.step_replica(place);
        }
        Ok(())
    }
}

fn run_id(rng: &mut Rng) -> String {
    format!("{:016x}{:016x}{:08x}", rng.u64(..), rng.u64(..), rng.u32(..))
}

/// Returns whether a fault of a replica is about a place.
fn is_meant(replica: Option<usize>, place: usize) -> bool {
    replica.is_none_or(|replica| replica == place)
}

/// Returns whether a fault stops demand or changes it only.
fn is_of_clients(kind: &Kind) -> bool {
    matches!(kind, Kind::Leave | Kind::Idle { .. } | Kind::Burst { .. })
}
