//! Draws the faults of a run, and when each begins.

use fastrand::Rng;

use super::{Configuration, MILLI, Mix, SECOND};
use crate::fault::{DRAWN, Fault, Kind};

/// How soon faults follow one another.
pub(super) enum Pace {
    /// A fault comes after half of this time up to twice of it, or right after the one before.
    Dense { gap: u64 },
    /// After one or a few faults comes so much quiet that all that is promised for calm time is judged.
    Quiet { stretch: u64 },
}

impl Pace {
    pub(super) fn draw(mix: Mix, is_quiet: bool, longest: u64, rng: &mut Rng) -> Pace {
        if is_quiet {
            // Ten seconds that begin two windows after a fault, and what a limiter keeps free.
            return Pace::Quiet { stretch: (12 * SECOND + longest * 2 + longest / 10).min(60 * SECOND) };
        }
        let gap = match mix {
            Mix::Standard => 2 * SECOND,
            Mix::Dense | Mix::Changes => [SECOND, 3 * SECOND][rng.usize(..2)],
            _ => [SECOND, 3 * SECOND, 8 * SECOND, 20 * SECOND][rng.usize(..4)],
        };
        Pace::Dense { gap }
    }

    /// Returns the time that demand must last for the pace to show something.
    pub(super) fn worth(&self) -> u64 {
        match self {
            Pace::Dense { .. } => 0,
            Pace::Quiet { stretch } => 2 * stretch + 10 * SECOND,
        }
    }

    /// Returns when the next fault begins.
    fn next(&self, last: Option<&Fault>, begin: u64, rng: &mut Rng) -> u64 {
        match (self, last) {
            // As often right after the one before as after a while.
            (_, Some(last)) if rng.bool() => last.at + rng.u64(MILLI..1500 * MILLI),
            (Pace::Dense { gap }, last) => last.map_or(begin, |last| last.at) + rng.u64(gap / 2..2 * gap),
            (Pace::Quiet { .. }, None) => begin + rng.u64(MILLI..4 * SECOND),
            (Pace::Quiet { stretch }, Some(last)) => {
                last.at + last.kind.lasts() + stretch + rng.u64(..3 * SECOND)
            }
        }
    }
}

/// Draws losses of the store's memory, each right after it became harder to hear the store.
pub(super) fn draw_losses(replicas: usize, (begin, end): (u64, u64), rng: &mut Rng) -> Vec<Fault> {
    let mut faults: Vec<Fault> = Vec::new();
    let mut at = begin + rng.u64(2 * SECOND..6 * SECOND);
    while at < end {
        let (replica, lasts) = (rng.usize(..replicas), rng.u64(SECOND..4 * SECOND));
        let (kind, within) = match rng.u8(..4) {
            0 => (Kind::CutOff { replica, lasts }, 500 * MILLI),
            1 => (Kind::Break { replica: Some(replica), lasts }, 500 * MILLI),
            2 => (Kind::Break { replica: None, lasts: lasts * 2 }, 500 * MILLI),
            _ => {
                (Kind::Slow { replica: Some(replica), extra: rng.u64(50 * MILLI..300 * MILLI), lasts }, lasts)
            }
        };
        let kind_of_loss =
            if rng.bool() { Kind::Flush } else { Kind::RestartEmpty { down: rng.u64(..5 * MILLI) } };
        faults.push(Fault { at, kind });
        faults.push(Fault { at: at + rng.u64(MILLI..within), kind: kind_of_loss });
        at += lasts + rng.u64(2 * SECOND..6 * SECOND);
    }
    faults
}

/// The window of every limit in a run in which all replicas are away.
pub(super) const AWAY_WINDOW: u64 = 300 * SECOND;

/// Draws a silence of the store in which nobody calls, and the end of all replicas behind it.
pub(super) fn draw_away(replicas: usize, begin: u64, rng: &mut Rng) -> Vec<Fault> {
    let idle = begin + rng.u64(2 * SECOND..6 * SECOND);
    // By then no queue is left.
    let (silent, lasts) = (idle + 70 * SECOND, rng.u64(700 * MILLI..2 * SECOND));
    let ends = silent + lasts + rng.u64(SECOND..5 * SECOND);
    let down = rng.u64(20 * SECOND..90 * SECOND);
    let mut faults = vec![
        Fault { at: idle, kind: Kind::Idle { lasts: ends + down - idle } },
        Fault { at: silent, kind: Kind::Freeze { lasts } },
    ];
    faults.extend((0..replicas).map(|replica| Fault { at: ends, kind: Kind::Kill { replica, down } }));
    faults
}

/// Draws what a limit of an hour outlives. Where the store is restarted, all replicas end in order, and with time to tell what they were granted:
/// else what nobody can vouch for is charged, and the hour is over.
pub(super) fn draw_hours(replicas: usize, (begin, end): (u64, u64), rng: &mut Rng) -> Vec<Fault> {
    let (mut faults, restarts): (Vec<Fault>, bool) = (Vec::new(), rng.bool());
    let mut at = begin + rng.u64(2 * SECOND..6 * SECOND);
    while at < end {
        let down = [rng.u64(..2 * SECOND), rng.u64(2 * SECOND..20 * SECOND)][rng.usize(..2)];
        let all = rng.bool();
        let ending: Vec<usize> = if all { (0..replicas).collect() } else { vec![rng.usize(..replicas)] };
        let apart = [0, rng.u64(..SECOND)][rng.usize(..2)];
        let in_order = restarts || rng.bool();
        let mut silence = |at: u64, rng: &mut Rng| {
            let lasts = rng.u64(100 * MILLI..4 * SECOND);
            faults.push(Fault { at, kind: Kind::Freeze { lasts } });
            at + lasts
        };
        match rng.u8(..4) {
            0 => at = silence(at, rng),
            1 => {
                let again = silence(at, rng) + rng.u64(50 * MILLI..3 * SECOND);
                at = silence(again, rng);
            }
            2 if restarts => {
                faults.push(Fault { at, kind: Kind::RestartOlder { down: down / 10, age: MILLI } });
                at += down / 10;
            }
            _ => {
                for (number, replica) in (0..).zip(ending) {
                    let kind =
                        if in_order { Kind::End { replica, down } } else { Kind::Kill { replica, down } };
                    faults.push(Fault { at: at + number * apart, kind });
                }
                at += down;
            }
        }
        at += rng.u64(12 * SECOND..20 * SECOND);
    }
    faults
}

/// Draws faults of which every second one is a reload.
pub(super) fn draw_changes(
    replicas: usize,
    configurations: &[Configuration],
    demand: (u64, u64),
    pace: &Pace,
    rng: &mut Rng,
) -> Vec<Fault> {
    let mut faults = draw_faults(replicas, configurations, demand, pace, rng);
    for fault in &mut faults {
        if rng.bool() {
            let configuration = rng.usize(..configurations.len());
            fault.kind = Kind::Reload { configuration, lag: rng.u64(0..300 * MILLI) };
        }
    }
    faults
}

pub(super) fn draw_faults(
    replicas: usize,
    configurations: &[Configuration],
    (begin, end): (u64, u64),
    pace: &Pace,
    rng: &mut Rng,
) -> Vec<Fault> {
    let limiters = configurations[0].limiters.len();
    let mut faults: Vec<Fault> = Vec::new();
    // Sometimes replicas have never met the store before the first.
    let is_early = rng.u8(..8) == 0;
    loop {
        let at = if is_early && faults.is_empty() { 0 } else { pace.next(faults.last(), begin, rng) };
        if at >= end {
            return faults;
        }
        let place = rng.usize(..DRAWN);
        let kind = Kind::draw(place, replicas, configurations.len(), limiters, rng);
        debug_assert_eq!(kind.place(), place, "each kind has one place among the names");
        faults.push(Fault { at, kind });
    }
}
