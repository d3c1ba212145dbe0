//! How quickly a limiter grants, and when it granted what a window still holds: from a running count, in cells of the window.
//!
//! Pure: has no clock.

use std::collections::VecDeque;

/// The cells of a window. A twelfth of it is twelve of them.
const CELLS: u64 = 144;
/// The parts in which replicas tell each other of a window: the one that runs, and the twelve before it.
pub(super) const PARTS: usize = 13;
/// Cells in a part.
const CELLS_OF_PART: u64 = CELLS / 12;

/// The permits granted within the last window.
#[derive(Debug)]
pub(super) struct Pace {
    cell_us: u64,
    /// The number of a cell, counted from the Unix epoch, and the permits granted in it; ascending, none is zero.
    cells: VecDeque<(u64, u64)>,
    /// About when the first permit of an unbroken use was granted: none was within a window before it.
    first_us: Option<u64>,
    /// The running count, and when it was read.
    last: Option<(u64, u64)>,
}

/// The permits that a replica granted in the last twelfth of a window.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(super) struct RecentGrants {
    pub(super) permits: u64,
    /// How long ago the cells began in which they were granted.
    pub(super) over_us: u64,
    /// How long ago the use began; `None` without use.
    pub(super) first_ago_us: Option<u64>,
}

impl Pace {
    pub(super) fn new(per_us: u64) -> Pace {
        Pace { cell_us: (per_us / CELLS).max(1), cells: VecDeque::new(), first_us: None, last: None }
    }

    /// Takes in the running count at an instant.
    pub(super) fn sample(&mut self, now_us: u64, total: u64) {
        let (read_us, before) = self.last.replace((now_us, total)).unwrap_or((now_us, total));
        let cell = now_us / self.cell_us;
        while self.cells.front().is_some_and(|(oldest, _)| oldest + CELLS + CELLS_OF_PART < cell) {
            self.cells.pop_front();
        }
        if self.cells.is_empty() {
            self.first_us = None;
        }
        let granted = total.saturating_sub(before);
        if granted == 0 {
            return;
        }
        self.first_us.get_or_insert(read_us.midpoint(now_us));
        match self.cells.back_mut().filter(|(last, _)| *last >= cell) {
            Some((_, permits)) => *permits += granted,
            None => self.cells.push_back((cell, granted)),
        }
    }

    /// Returns what was granted in the last twelfth of the window.
    pub(super) fn lately(&self, now_us: u64) -> RecentGrants {
        let from = (now_us / self.cell_us + 1).saturating_sub(CELLS_OF_PART);
        let cells = self.cells.iter().filter(|(cell, _)| *cell >= from);
        RecentGrants {
            permits: cells.map(|(_, permits)| permits).sum(),
            over_us: now_us - from * self.cell_us,
            first_ago_us: self.first_us.map(|first_us| now_us.saturating_sub(first_us)),
        }
    }

    /// Returns the length of a part.
    pub(super) fn part_us(&self) -> u64 {
        self.cell_us * CELLS_OF_PART
    }

    /// Returns what was granted in each part of the window, the one that runs first.
    pub(super) fn parts(&self, now_us: u64) -> [u64; PARTS] {
        let part = now_us / self.cell_us / CELLS_OF_PART;
        let mut parts = [0; PARTS];
        for (cell, permits) in &self.cells {
            let age = part.saturating_sub(cell / CELLS_OF_PART);
            if let Some(sum) = usize::try_from(age).ok().and_then(|age| parts.get_mut(age)) {
                *sum += permits;
            }
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;
    const HOUR: u64 = 3600 * SECOND;

    #[test]
    fn the_pace_of_an_even_use_is_exact_from_its_first_minute_on() {
        let mut pace = Pace::new(HOUR);
        let begin = 400 * HOUR + 77 * SECOND;
        for second in 0..1800 {
            // Two a second from the tenth second on.
            pace.sample(begin + second * SECOND, 2 * second.saturating_sub(10));
            let RecentGrants { permits, over_us, first_ago_us } = pace.lately(begin + second * SECOND);
            if second > 70 {
                let over = over_us.min(first_ago_us.unwrap());
                #[allow(clippy::cast_precision_loss)]
                let rate = permits as f64 / over as f64 * 1e6;
                assert!((rate - 2.0).abs() < 0.04, "{second}: {rate}");
            }
        }
        let parts = pace.parts(begin + 1799 * SECOND);
        assert_eq!(parts.iter().sum::<u64>(), 2 * 1789);
        assert_eq!(parts[1], 600);
    }

    #[test]
    fn samples_that_left_the_window_are_forgotten() {
        let mut pace = Pace::new(HOUR);
        pace.sample(0, 7);
        assert_eq!(pace.lately(0), RecentGrants { permits: 0, over_us: 0, first_ago_us: None });
        pace.sample(SECOND, 9);
        assert_eq!(pace.parts(HOUR)[12], 2);
        pace.sample(2 * HOUR, 9);
        assert_eq!((pace.cells.len(), pace.first_us), (0, None));
        pace.sample(2 * HOUR + SECOND, 10);
        assert_eq!(pace.lately(2 * HOUR + SECOND).first_ago_us, Some(SECOND / 2));
    }
}
