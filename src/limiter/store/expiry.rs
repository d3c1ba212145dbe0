//! States that are kept until their time is over.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, HashMap};
use std::hash::Hash;

use crate::clock::Micros;

/// How many states whose time is over are looked at in a call: more than a call can make.
const SWEEP_MAX: usize = 8;

/// The fewest places for which it is worth while to make a map smaller.
const SHRINK_MIN: usize = 1024;

/// States that are forgotten when they have expired, without a look at all the others.
#[derive(Debug)]
pub(in crate::limiter) struct Expiring<K, S> {
    states: HashMap<K, S>,
    /// When to look at each of them; one that has lived on is looked at again when it expires then.
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
    /// How many there are.
    pub(in crate::limiter) fn len(&self) -> usize {
        self.states.len()
    }

    /// For how many there is a place.
    #[cfg(test)]
    pub(in crate::limiter) fn places(&self) -> usize {
        self.states.capacity().max(self.due.capacity())
    }

    /// A state, as it was put.
    pub(in crate::limiter) fn get(&self, key: &K) -> Option<&S> {
        self.states.get(key)
    }

    /// A state, to be changed where it is.
    pub(in crate::limiter) fn get_mut(&mut self, key: &K) -> Option<&mut S> {
        self.states.get_mut(key)
    }

    /// All of them, in no order.
    pub(in crate::limiter) fn iter(&self) -> impl Iterator<Item = (&K, &S)> {
        self.states.iter()
    }

    /// All of them, to be changed where they are.
    pub(in crate::limiter) fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut S)> {
        self.states.iter_mut()
    }

    /// Takes a state out, to be put back.
    pub(in crate::limiter) fn take(&mut self, key: &K) -> Option<S> {
        self.states.get_mut(key).map(std::mem::take)
    }

    /// Takes a state out for good, or to be put back to expire sooner.
    pub(in crate::limiter) fn remove(&mut self, key: &K) -> Option<S> {
        self.states.remove(key)
    }

    /// Returns whether it was not there before.
    pub(in crate::limiter) fn put(&mut self, key: K, state: S, expires: Micros) -> bool {
        if let Some(place) = self.states.get_mut(&key) {
            *place = state;
            return false;
        }
        self.due.push(Reverse((expires, key.clone())));
        self.states.insert(key, state);
        true
    }

    /// Forgets some of those whose time is over, and returns whose they were.
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
