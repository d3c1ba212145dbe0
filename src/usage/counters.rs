//! The counters that requests add to: resolved once for each client, route and limiter, then only atomic additions.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::counts::{By, Counts, Key};

/// The counts of a client, a route or a limiter since they were last taken.
#[derive(Default, Debug)]
pub struct Counters {
    granted: AtomicU64,
    refused: AtomicU64,
    waited: AtomicU64,
    cancelled: AtomicU64,
}

impl Counters {
    /// Adds counts.
    pub fn add(&self, counts: Counts) {
        let Counts { granted, refused, waited, cancelled } = counts;
        for (counter, more) in [
            (&self.granted, granted),
            (&self.refused, refused),
            (&self.waited, waited),
            (&self.cancelled, cancelled),
        ] {
            if more > 0 {
                counter.fetch_add(more, Ordering::Relaxed);
            }
        }
    }

    fn take(&self) -> Counts {
        let take = |counter: &AtomicU64| counter.swap(0, Ordering::Relaxed);
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
    counters: Arc<Mutex<BTreeMap<Key, Arc<Counters>>>>,
}

impl Usage {
    /// Returns the counters of a client, a route or a limiter. They last for as long as somebody holds them.
    pub fn counters(&self, by: By, name: &Arc<str>) -> Arc<Counters> {
        let mut all = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry((by, Arc::clone(name))).or_default())
    }

    /// Takes what was counted since the last time, and forgets counters that nobody holds any more.
    pub(super) fn take(&self) -> Vec<(Key, Counts)> {
        let mut taken = Vec::new();
        let mut all = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|key, counters| {
            // Looked at first: who lets go of it in between has counted before.
            let is_held = Arc::strong_count(counters) > 1;
            let counts = counters.take();
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
        let counters = usage.counters(By::Client, &name);
        counters.add(one);
        usage.counters(By::Route, &name).add(Counts { refused: 3, ..Counts::default() });
        usage.counters(By::Client, &name).add(one);
        let both = Counts { granted: 4, waited: 2, ..Counts::default() };
        let refused = Counts { refused: 3, ..Counts::default() };
        assert_eq!(usage.take(), [((By::Client, name.clone()), both), ((By::Route, name.clone()), refused)]);
        assert_eq!(usage.take(), []);
        assert_eq!(usage.counters.lock().unwrap().len(), 1);
        counters.add(one);
        drop(counters);
        assert_eq!(usage.take(), [((By::Client, name), one)]);
        assert!(usage.counters.lock().unwrap().is_empty());
    }
}
