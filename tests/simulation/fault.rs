//! Faults: every kind of event that can befall a fleet, and its odds. Knows no world: `world/faults.rs` carries them out.

use fastrand::Rng;

const MILLI: u64 = 1_000;
const SECOND: u64 = 1_000_000;

/// Something that happens at an instant, and may last.
#[derive(Clone, PartialEq, Debug)]
pub struct Fault {
    /// When it begins, in microseconds of true time.
    pub at: u64,
    pub kind: Kind,
}

/// A kind of fault. Times are in microseconds. `replica` is a place in the fleet.
#[derive(Clone, PartialEq, Debug)]
pub enum Kind {
    // -- the store's memory
    /// FLUSHALL.
    Flush,
    /// The server is killed, and comes back with nothing after `down`.
    RestartEmpty {
        down: u64,
    },
    /// The server is killed, and comes back with its data of `age` ago.
    RestartOlder {
        down: u64,
        age: u64,
    },
    /// Another server, whose data are `lag` old, becomes the primary. The old one still answers those of `split` replicas that are
    /// connected to it, for `split_for`.
    Failover {
        lag: u64,
        split: usize,
        split_for: u64,
    },
    /// A key of a state is gone, or the list of moves.
    Evict,
    // -- the store's process
    /// Nothing is carried out.
    Freeze {
        lasts: u64,
    },
    /// Every command that writes is an error.
    Full {
        lasts: u64,
    },
    ReadOnly {
        lasts: u64,
    },
    Busy {
        lasts: u64,
    },
    NoAuth {
        lasts: u64,
    },
    /// Commands that may write wait.
    PauseWrites {
        lasts: u64,
    },
    /// Its clock is stepped.
    ClockStep {
        by: i64,
    },
    /// Its clock stands still, then shows the true time again.
    ClockStands {
        lasts: u64,
    },
    // -- the network
    /// Bytes of a replica, or of all, take `extra` longer.
    Slow {
        replica: Option<usize>,
        extra: u64,
        lasts: u64,
    },
    /// The answers on open connections of a replica, or of all, never arrive.
    Swallow {
        replica: Option<usize>,
    },
    /// Connections break after a command was carried out and before it is answered: the command comes twice.
    Break {
        replica: Option<usize>,
        lasts: u64,
    },
    /// No byte passes between a replica and the store; afterwards all arrive.
    CutOff {
        replica: usize,
        lasts: u64,
    },
    // -- replicas
    /// SIGKILL, and a new one after `down`.
    Kill {
        replica: usize,
        down: u64,
    },
    /// SIGTERM, and a new one at once.
    Drain {
        replica: usize,
    },
    /// SIGTERM, and a new one after `down`.
    End {
        replica: usize,
        down: u64,
    },
    /// All replicas one after the other: the new one starts, then the old one ends.
    Deploy {
        pause: u64,
    },
    /// SIGSTOP, and SIGCONT.
    Stop {
        replica: usize,
        lasts: u64,
    },
    /// The machine of a replica sleeps: its monotonic clock stands still.
    Sleep {
        replica: usize,
        lasts: u64,
    },
    /// The processor of a replica, or of all, is busy: one in `odds` of its steps is followed by a stall of up to `most`, and the tasks
    /// of one in `odds` of its requests run as late.
    BusyCpu {
        replica: Option<usize>,
        most: u64,
        odds: u64,
        lasts: u64,
    },
    // -- operators
    /// A changed configuration, by its place in the plan.
    Reload {
        configuration: usize,
        lag: u64,
    },
    /// A pause by hand.
    Pause {
        limiter: usize,
        lasts: u64,
    },
    Resume {
        limiter: usize,
    },
    Reset {
        limiter: usize,
    },
    // -- upstream and clients
    /// The upstream refuses everything for a time and says until when.
    UpstreamPause {
        lasts: u64,
        wait: u64,
    },
    /// Clients that come within a second go away unless they are answered soon.
    Leave,
    /// Nobody calls.
    Idle {
        lasts: u64,
    },
    /// Many more call.
    Burst {
        lasts: u64,
    },
}

/// How many kinds are drawn at random: the first ones of [`NAMES`].
pub const DRAWN: usize = 31;

/// The names of all kinds, in the order in which they are drawn.
pub const NAMES: [&str; 32] = [
    "flush",
    "restart_empty",
    "restart_older",
    "failover",
    "evict",
    "freeze",
    "full",
    "read_only",
    "busy",
    "no_auth",
    "pause_writes",
    "clock_step",
    "clock_stands",
    "slow",
    "swallow",
    "break",
    "cut_off",
    "kill",
    "drain",
    "deploy",
    "stop",
    "sleep",
    "reload",
    "pause",
    "resume",
    "reset",
    "upstream_pause",
    "leave",
    "idle",
    "burst",
    "busy_cpu",
    "end",
];

impl Kind {
    /// Draws a fault of the kind in a place of [`NAMES`].
    pub fn draw(
        place: usize,
        replicas: usize,
        configurations: usize,
        limiters: usize,
        rng: &mut Rng,
    ) -> Kind {
        let replica = rng.usize(..replicas);
        let any = if rng.bool() { None } else { Some(replica) };
        let limiter = rng.usize(..limiters);
        match NAMES[place] {
            "flush" => Kind::Flush,
            "restart_empty" => Kind::RestartEmpty { down: down(rng) },
            "restart_older" => Kind::RestartOlder { down: down(rng), age: rng.u64(10 * MILLI..5 * SECOND) },
            "failover" => Kind::Failover {
                lag: rng.u64(0..500 * MILLI),
                split: rng.usize(..=replicas),
                split_for: lasts(rng, 8 * SECOND),
            },
            "evict" => Kind::Evict,
            "freeze" => Kind::Freeze { lasts: lasts(rng, 15 * SECOND) },
            "full" => Kind::Full { lasts: lasts(rng, 5 * SECOND) },
            "read_only" => Kind::ReadOnly { lasts: lasts(rng, 5 * SECOND) },
            "busy" => Kind::Busy { lasts: lasts(rng, 5 * SECOND) },
            "no_auth" => Kind::NoAuth { lasts: lasts(rng, 5 * SECOND) },
            "pause_writes" => Kind::PauseWrites { lasts: lasts(rng, 5 * SECOND) },
            "clock_step" => Kind::ClockStep { by: rng.i64(-5_000_000..5_000_000) },
            "clock_stands" => Kind::ClockStands { lasts: lasts(rng, 2 * SECOND) },
            "slow" => {
                Kind::Slow { replica: any, extra: lasts(rng, 300 * MILLI), lasts: lasts(rng, 5 * SECOND) }
            }
            "swallow" => Kind::Swallow { replica: any },
            "break" => Kind::Break { replica: any, lasts: lasts(rng, 3 * SECOND) },
            "cut_off" => Kind::CutOff { replica, lasts: lasts(rng, 8 * SECOND) },
            "kill" => Kind::Kill { replica, down: lasts(rng, 10 * SECOND) },
            "drain" => Kind::Drain { replica },
            "deploy" => Kind::Deploy { pause: lasts(rng, 2 * SECOND) },
            "stop" => Kind::Stop { replica, lasts: lasts(rng, 5 * SECOND) },
            "sleep" => Kind::Sleep { replica, lasts: lasts(rng, 5 * SECOND) },
            "reload" => {
                Kind::Reload { configuration: rng.usize(..configurations), lag: rng.u64(0..300 * MILLI) }
            }
            "pause" => Kind::Pause { limiter, lasts: lasts(rng, 5 * SECOND) },
            "resume" => Kind::Resume { limiter },
            "reset" => Kind::Reset { limiter },
            "upstream_pause" => {
                Kind::UpstreamPause { lasts: rng.u64(50 * MILLI..SECOND), wait: lasts(rng, 4 * SECOND) }
            }
            "leave" => Kind::Leave,
            "idle" => Kind::Idle { lasts: rng.u64(SECOND..10 * SECOND) },
            "burst" => Kind::Burst { lasts: lasts(rng, 2 * SECOND) },
            "end" => Kind::End { replica, down: lasts(rng, 10 * SECOND) },
            _ => Kind::BusyCpu {
                replica: any,
                most: [3, 10, 30, 100][rng.usize(..4)] * MILLI,
                odds: [2, 8, 32, 128][rng.usize(..4)],
                lasts: lasts(rng, 8 * SECOND),
            },
        }
    }

    /// Returns the place of the kind in [`NAMES`].
    pub fn place(&self) -> usize {
        match self {
            Kind::Flush => 0,
            Kind::RestartEmpty { .. } => 1,
            Kind::RestartOlder { .. } => 2,
            Kind::Failover { .. } => 3,
            Kind::Evict => 4,
            Kind::Freeze { .. } => 5,
            Kind::Full { .. } => 6,
            Kind::ReadOnly { .. } => 7,
            Kind::Busy { .. } => 8,
            Kind::NoAuth { .. } => 9,
            Kind::PauseWrites { .. } => 10,
            Kind::ClockStep { .. } => 11,
            Kind::ClockStands { .. } => 12,
            Kind::Slow { .. } => 13,
            Kind::Swallow { .. } => 14,
            Kind::Break { .. } => 15,
            Kind::CutOff { .. } => 16,
            Kind::Kill { .. } => 17,
            Kind::Drain { .. } => 18,
            Kind::Deploy { .. } => 19,
            Kind::Stop { .. } => 20,
            Kind::Sleep { .. } => 21,
            Kind::Reload { .. } => 22,
            Kind::Pause { .. } => 23,
            Kind::Resume { .. } => 24,
            Kind::Reset { .. } => 25,
            Kind::UpstreamPause { .. } => 26,
            Kind::Leave => 27,
            Kind::Idle { .. } => 28,
            Kind::Burst { .. } => 29,
            Kind::BusyCpu { .. } => 30,
            Kind::End { .. } => 31,
        }
    }

    /// Returns the name of the kind.
    pub fn name(&self) -> &'static str {
        NAMES[self.place()]
    }

    /// Returns how long it lasts, in microseconds.
    pub fn lasts(&self) -> u64 {
        match *self {
            Kind::RestartEmpty { down }
            | Kind::RestartOlder { down, .. }
            | Kind::Kill { down, .. }
            | Kind::End { down, .. } => down,
            Kind::Failover { split_for, .. } => split_for,
            Kind::Freeze { lasts }
            | Kind::Full { lasts }
            | Kind::ReadOnly { lasts }
            | Kind::Busy { lasts }
            | Kind::NoAuth { lasts }
            | Kind::PauseWrites { lasts }
            | Kind::ClockStands { lasts }
            | Kind::Slow { lasts, .. }
            | Kind::Break { lasts, .. }
            | Kind::CutOff { lasts, .. }
            | Kind::Stop { lasts, .. }
            | Kind::Sleep { lasts, .. }
            | Kind::BusyCpu { lasts, .. }
            | Kind::Pause { lasts, .. }
            | Kind::Idle { lasts }
            | Kind::Burst { lasts } => lasts,
            Kind::UpstreamPause { lasts, wait } => lasts + wait,
            Kind::Reload { lag, .. } => lag,
            Kind::Deploy { pause } => 5 * (pause + SECOND),
            Kind::Flush
            | Kind::Evict
            | Kind::ClockStep { .. }
            | Kind::Swallow { .. }
            | Kind::Drain { .. }
            | Kind::Resume { .. }
            | Kind::Reset { .. }
            | Kind::Leave => 0,
        }
    }

    /// Returns whether calls to the store may fail.
    pub fn touches_store(&self) -> bool {
        !matches!(
            self,
            Kind::Reload { .. }
                | Kind::Pause { .. }
                | Kind::Resume { .. }
                | Kind::Reset { .. }
                | Kind::UpstreamPause { .. }
                | Kind::Leave
                | Kind::Idle { .. }
                | Kind::Burst { .. }
        )
    }

    /// Returns the replica that is cut off from the store, or hears it late.
    pub fn cuts_off(&self) -> Option<usize> {
        match self {
            Kind::CutOff { replica, .. }
            | Kind::Break { replica: Some(replica), .. }
            | Kind::Slow { replica: Some(replica), .. } => Some(*replica),
            _ => None,
        }
    }

    /// Returns whether replicas cannot hear the store meanwhile, or only some of them.
    pub fn hides_store(&self) -> bool {
        let is_of_replicas = matches!(
            self,
            Kind::Kill { .. }
                | Kind::Drain { .. }
                | Kind::End { .. }
                | Kind::Deploy { .. }
                | Kind::Stop { .. }
                | Kind::Sleep { .. }
                | Kind::BusyCpu { .. }
        );
        let is_of_data =
            matches!(self, Kind::Flush | Kind::Evict | Kind::ClockStep { .. } | Kind::ClockStands { .. });
        self.touches_store() && !is_of_replicas && !is_of_data
    }

    /// Returns whether it may take away what somebody knew of earlier use: the memory of the store, a replica, or contact
    /// between them. A moment of silence does not.
    pub fn loses_knowledge(&self) -> bool {
        // A lease without the heartbeat before: then the store begins a new epoch.
        const SHORT: u64 = 300 * MILLI;
        match self {
            Kind::Freeze { lasts } | Kind::PauseWrites { lasts } | Kind::CutOff { lasts, .. } => {
                *lasts > SHORT
            }
            // Calls are carried out whose answers nobody gets: what they booked is not used.
            Kind::Swallow { .. } | Kind::Break { .. } => true,
            // Where it takes several round trips to connect, a timeout is soon over.
            Kind::Slow { extra, .. } => *extra > 20 * MILLI,
            Kind::BusyCpu { most, .. } => *most > 20 * MILLI,
            Kind::Resume { .. } | Kind::Leave | Kind::Idle { .. } | Kind::Burst { .. } => false,
            Kind::Stop { lasts, .. } => *lasts > SHORT,
            _ => true,
        }
    }
}

/// Draws how long something lasts: as often below a tenth of the usual longest as above, and now and then several times as long, so
/// that limits of longer windows run out meanwhile.
fn lasts(rng: &mut Rng, most: u64) -> u64 {
    match rng.u8(..16) {
        0 => rng.u64(most..5 * most),
        1..=7 => rng.u64(most / 10..most),
        _ => rng.u64(MILLI..most / 10),
    }
}

/// Draws how long a server is down: often hardly at all.
fn down(rng: &mut Rng) -> u64 {
    if rng.u8(..3) == 0 { rng.u64(MILLI..50 * MILLI) } else { lasts(rng, 6 * SECOND) }
}
