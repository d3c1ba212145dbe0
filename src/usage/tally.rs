//! The counters that requests add to: resolved once for each client, route and limiter, then only atomic additions.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::counts::{By, Counts, Key};

/// The counts of a client, a route or a limiter since they were last taken.
#[derive(Default, Debug)]
pub struct Cell {
    granted: AtomicU64,
    refused: AtomicU64,
    waited: AtomicU64,
    cancelled: AtomicU64,
}

impl Cell {
    /// Adds counts.
    pub fn add(&self, counts: Counts) {
        let Counts { granted, refused, waited, cancelled } = counts;
        for (cell, more) in [
            (&self.granted, granted),
            (&self.refused, refused),
            (&self.waited, waited),
            (&self.cancelled, cancelled),
        ] {
            if more > 0 {
                cell.fetch_add(more, Ordering::Relaxed);
            }
        }
    }

    fn take(&self) -> Counts {
        let take = |cell: &AtomicU64| cell.swap(0, Ordering::Relaxed);
        Counts {
            granted: take(&self.granted),
            refused: take(&self.refused),
            waited: take(&self.waited),
            cancelled: take(&self.cancelled),
        }
    }
}

/// All counters of this process. Cheap to clone.
#[derive(Clone, Default)]
pub struct Usage {
    cells: Arc<Mutex<BTreeMap<Key, Arc<Cell>>>>,
}

impl Usage {
    /// Returns the counters of a client, a route or a limiter. They last for as long as somebody holds them.
    pub fn cell(&self, by: By, name: &Arc<str>) -> Arc<Cell> {
        let mut cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(cells.entry((by, Arc::clone(name))).or_default())
    }

    /// Takes what was counted since the last time, and forgets counters that nobody holds any more.
    pub(super) fn take(&self) -> Vec<(Key, Counts)> {
        let mut taken = Vec::new();
        let mut cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        cells.retain(|key, cell| {
            // Looked at first: who lets go of it in between has counted before.
            let is_held = Arc::strong_count(cell) > 1;
            let counts = cell.take();
            if !counts.is_zero() {
                taken.push((key.clone(), counts));
            }
            is_held
        });
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_taken_once_and_names_that_are_gone_are_forgotten() {
        let (usage, name): (Usage, Arc<str>) = (Usage::default(), "billing".into());
        let one = Counts { granted: 2, waited: 1, ..Counts::default() };
        let cell = usage.cell(By::Client, &name);
        cell.add(one);
        usage.cell(By::Route, &name).add(Counts { refused: 3, ..Counts::default() });
        usage.cell(By::Client, &name).add(one);
        let both = Counts { granted: 4, waited: 2, ..Counts::default() };
        let refused = Counts { refused: 3, ..Counts::default() };
        assert_eq!(usage.take(), [((By::Client, name.clone()), both), ((By::Route, name.clone()), refused)]);
        assert_eq!(usage.take(), []);
        assert_eq!(usage.cells.lock().unwrap().len(), 1);
        cell.add(one);
        drop(cell);
        assert_eq!(usage.take(), [((By::Client, name), one)]);
        assert!(usage.cells.lock().unwrap().is_empty());
    }
}
