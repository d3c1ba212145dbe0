//! The replicas that can tell a store that has lost its memory what was granted before.

use std::collections::BTreeMap;

/// How long a replica and the store must have heard each other until the replica knows what others were granted.
const HEARD: u64 = 200_000;

/// How long after its return a store has been told everything again.
const TOLD: u64 = 1_000_000;

/// A replica's knowledge of earlier grants.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Knowledge {
    /// Nothing: it has not heard the store.
    None,
    /// It has heard the store since an instant.
    Since(u64),
    /// All that was granted before the store went away or lost its memory.
    All,
}

/// The replicas that live, and the store that they share.
#[derive(Default)]
pub(crate) struct Witnesses {
    replicas: BTreeMap<usize, Knowledge>,
    is_away: bool,
    /// When the store lost its memory, or has come back since.
    lost: Option<u64>,
    forgotten: Option<u64>,
}

impl Witnesses {
    /// A replica starts.
    pub(crate) fn started(&mut self, at: u64, replica: usize) {
        let knows = if self.is_away { Knowledge::None } else { Knowledge::Since(at) };
        self.replicas.insert(replica, knows);
    }

    /// A replica has ended.
    pub(crate) fn gone(&mut self, at: u64, replica: usize) {
        self.replicas.remove(&replica);
        self.look(at);
    }

    /// The store cannot be heard any more.
    pub(crate) fn away(&mut self, at: u64) {
        if !std::mem::replace(&mut self.is_away, true) {
            self.remember(at);
        }
    }

    /// The store can be heard again.
    pub(crate) fn back(&mut self, at: u64) {
        self.is_away = false;
        self.lost = self.lost.map(|_| at);
        for knows in self.replicas.values_mut().filter(|knows| **knows == Knowledge::None) {
            *knows = Knowledge::Since(at);
        }
        self.look(at);
    }

    /// The store loses its memory, or a part of it.
    pub(crate) fn lost(&mut self, at: u64) {
        if !self.is_away {
            self.remember(at);
        }
        self.lost = Some(at);
        self.look(at);
    }

    /// Returns whether what was granted was forgotten since an instant, because nobody lived who knew it.
    pub(crate) fn forgot_since(&self, at: u64) -> bool {
        self.forgotten.is_some_and(|forgotten| forgotten >= at)
    }

    /// Takes in that those who have heard the store for long enough know what was granted until now.
    fn remember(&mut self, at: u64) {
        for knows in self.replicas.values_mut() {
            if matches!(knows, Knowledge::Since(since) if *since + HEARD <= at) {
                *knows = Knowledge::All;
            }
        }
    }

    fn look(&mut self, at: u64) {
        self.lost = self.lost.filter(|lost| self.is_away || at <= lost + TOLD);
        if self.lost.is_some() && !self.replicas.values().any(|knows| *knows == Knowledge::All) {
            (self.lost, self.forgotten) = (None, Some(at));
        }
    }
}
