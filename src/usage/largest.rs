//! The keys with the largest numbers among very many, in bounded memory.
//!
//! Sums are kept by the space-saving sketch (Metwally, Agrawal, El Abbadi: "Efficient Computation of Frequent and Top-k Elements in Data
//! Streams", 2005). Pure: has no clock.

use std::collections::HashMap;
use std::hash::Hash;

/// The keys that are kept: a key with more than so many parts of the whole sum is always among them.
const KEPT_MAX: usize = 128;

/// A key that is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct KeptKey<K> {
    pub(super) key: K,
    /// Its number; of a sum never too small.
    pub(super) number: u64,
    /// By how much a sum may be too large, because the key was not always kept.
    pub(super) over: u64,
}

/// The keys with the largest numbers: either sums ([`Largest::add`]) or maxima ([`Largest::raise`]).
#[derive(Clone, Debug)]
pub(super) struct Largest<K> {
    kept: Vec<KeptKey<K>>,
    places: HashMap<K, usize>,
}

impl<K> Default for Largest<K> {
    fn default() -> Largest<K> {
        Largest { kept: Vec::new(), places: HashMap::new() }
    }
}

impl<K: Copy + Eq + Hash> Largest<K> {
    /// Adds to the sum of a key. One that is not kept takes the place of the smallest, whose sum it may have had.
    pub(super) fn add(&mut self, key: K, more: u64) {
        match self.places.get(&key) {
            Some(place) => self.kept[*place].number += more,
            None => self.enter(key, |least| Some((least + more, least))),
        }
    }

    /// Raises the number of a key to this one. A key that is not kept takes the place of the smallest if that has less.
    pub(super) fn raise(&mut self, key: K, number: u64) {
        match self.places.get(&key) {
            Some(place) => self.kept[*place].number = number.max(self.kept[*place].number),
            None => self.enter(key, |least| (number > least).then_some((number, 0))),
        }
    }

    /// Iterates over what is kept, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &KeptKey<K>> {
        self.kept.iter()
    }

    /// Returns whether a key is kept.
    pub(super) fn contains(&self, key: &K) -> bool {
        self.places.contains_key(key)
    }

    /// Keeps a new key, if `numbers` returns its number and how much of it may be too much; it gets the smallest number, which must go, or
    /// zero.
    fn enter(&mut self, key: K, numbers: impl FnOnce(u64) -> Option<(u64, u64)>) {
        let smallest = || self.kept.iter().enumerate().min_by_key(|(_, kept)| kept.number);
        let out = (self.kept.len() >= KEPT_MAX).then(smallest).flatten();
        let out = out.map(|(place, kept)| (place, *kept));
        let Some((number, over)) = numbers(out.map_or(0, |(_, kept)| kept.number)) else { return };
        let entered = KeptKey { key, number, over };
        let place = match out {
            Some((place, KeptKey { key: gone, .. })) => {
                self.places.remove(&gone);
                self.kept[place] = entered;
                place
            }
            None => {
                self.kept.push(entered);
                self.kept.len() - 1
            }
        };
        self.places.insert(key, place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(largest: &Largest<u32>, key: u32) -> Option<(u64, u64)> {
        largest.iter().find(|kept| kept.key == key).map(|kept| (kept.number, kept.over))
    }

    #[test]
    fn few_keys_are_counted_exactly() {
        let mut sums = Largest::default();
        (0..1000).for_each(|index| sums.add(index % 100, 2));
        assert_eq!((of(&sums, 7), of(&sums, 100)), (Some((20, 0)), None));
        assert!(sums.contains(&99) && !sums.contains(&100));
    }

    #[test]
    fn heavy_keys_are_found_among_very_many_and_never_counted_too_low() {
        let mut sums = Largest::default();
        // Twenty keys have 2 % each; the rest is spread over ten thousand.
        for index in 0..100_000_u32 {
            sums.add(if index % 5 < 2 { index / 5 % 20 } else { 1000 + index % 10_000 }, 1);
        }
        for key in 0..20 {
            let (number, over) = of(&sums, key).unwrap();
            assert!(number >= 2000 && number - over <= 2000, "{key}: {number}, {over}");
        }
        assert_eq!((sums.kept.len(), sums.places.len()), (KEPT_MAX, KEPT_MAX));
        // A number that a key takes over from another is counted once.
        assert_eq!(sums.iter().map(|kept| kept.number).sum::<u64>(), 100_000);
    }

    #[test]
    fn the_largest_of_very_many_numbers_are_kept() {
        let mut waits = Largest::default();
        (0..10_000_u32).for_each(|key| waits.raise(key, u64::from(key * 7919 % 10_007)));
        waits.raise(3, 50_000);
        waits.raise(3, 4);
        assert_eq!(of(&waits, 3), Some((50_000, 0)));
        let least = waits.iter().map(|kept| kept.number).min().unwrap();
        assert!(least > 10_007 - 2 * KEPT_MAX as u64, "{least}");
    }
}
