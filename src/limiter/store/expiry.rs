//! States that are kept until they expire.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, HashMap};
use std::hash::Hash;

use crate::clock::Micros;

/// The most expired states that are removed in a call: more than a call can add.
const SWEEP_MAX: usize = 8;

/// The smallest capacity of a map that is worth shrinking.
const SHRINK_MIN: usize = 1024;

/// States that are forgotten when they have expired, without a scan of all others.
#[derive(Debug)]
pub(in crate::limiter) struct Expiring<K, S> {
    states: HashMap<K, S>,
    /// When to check each state; one whose life was prolonged is checked again at its new end.
    due: BinaryHeap<Reverse<(Micros, K)>>,
}

impl<K, S> Default for Expiring<K, S>
where
    K: Ord,
{
    fn default() -> Expiring<K, S> {
        Expiring { states: HashMap::new(), due: BinaryHeap::new() }
    }
}

impl<K: Clone + Ord + Hash, S: Default> Expiring<K, S> {
    /// Returns the number of states.
    pub(in crate::limiter) fn len(&self) -> usize {
        self.states.len()
    }

    /// Returns the capacity.
    #[cfg(test)]
    pub(in crate::limiter) fn places(&self) -> usize {
        self.states.capacity().max(self.due.capacity())
    }

    /// Returns a state.
    pub(in crate::limiter) fn get(&self, key: &K) -> Option<&S> {
        self.states.get(key)
    }

    /// Returns a state, to be changed in place.
    pub(in crate::limiter) fn get_mut(&mut self, key: &K) -> Option<&mut S> {
        self.states.get_mut(key)
    }

    /// Returns all states, in no order.
    pub(in crate::limiter) fn iter(&self) -> impl Iterator<Item = (&K, &S)> {
        self.states.iter()
    }

    /// Returns all states, to be changed in place.
    pub(in crate::limiter) fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut S)> {
        self.states.iter_mut()
    }

    /// Takes a state out, to be put back.
    pub(in crate::limiter) fn take(&mut self, key: &K) -> Option<S> {
        self.states.get_mut(key).map(std::mem::take)
    }

    /// Puts a state. Returns whether its key is new.
    pub(in crate::limiter) fn put(&mut self, key: K, state: S, expires: Micros) -> bool {
        if let Some(place) = self.states.get_mut(&key) {
            *place = state;
            return false;
        }
        self.due.push(Reverse((expires, key.clone())));
        self.states.insert(key, state);
        true
    }

    /// Forgets some expired states, and returns their keys.
    pub(in crate::limiter) fn sweep(&mut self, now: Micros, expires: impl Fn(&S) -> Micros) -> Vec<K> {
        let mut gone = Vec::new();
        for _ in 0..SWEEP_MAX {
            let Some(mut first) = self.due.peek_mut().filter(|first| first.0.0 <= now) else { break };
            match self.states.get(&first.0.1).map(&expires).filter(|expires| *expires > now) {
                Some(expires) => first.0.0 = expires,
                None => {
                    let Reverse((_, key)) = PeekMut::pop(first);
                    self.states.remove(&key);
                    gone.push(key);
                }
            }
        }
        if self.states.capacity() > SHRINK_MIN && self.states.len() < self.states.capacity() / 8 {
            self.states.shrink_to(self.states.len() * 2);
            self.due.shrink_to(self.states.len() * 2);
        }
        gone
    }
}
