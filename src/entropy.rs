//! Random numbers, handed in, so that a simulation can repeat a run.

use std::fmt;
use std::hash::{BuildHasher, DefaultHasher, Hasher, RandomState};
use std::sync::Arc;

/// A source of random numbers. Cheap to clone.
#[derive(Clone)]
pub struct Entropy {
    draw: Arc<dyn Fn() -> u64 + Send + Sync>,
}

impl Entropy {
    /// Returns the source of the operating system.
    pub fn system() -> Entropy {
        // The standard library seeds each of these at random.
        Entropy::new(|| RandomState::new().hash_one(0_u8))
    }

    /// Returns a source that draws its numbers by a function.
    pub fn new(draw: impl Fn() -> u64 + Send + Sync + 'static) -> Entropy {
        Entropy { draw: Arc::new(draw) }
    }

    /// Draws a number.
    pub fn draw(&self) -> u64 {
        (self.draw)()
    }

    /// Draws a way to hash the keys of a map, so that nobody outside can choose keys that collide.
    pub fn hasher(&self) -> SeededHash {
        SeededHash { seed: self.draw() }
    }
}

impl fmt::Debug for Entropy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Entropy")
    }
}

/// A way to hash the keys of a map: by the standard library's hash, behind a seed.
#[derive(Clone, Copy, Debug)]
pub struct SeededHash {
    seed: u64,
}

impl BuildHasher for SeededHash {
    type Hasher = DefaultHasher;

    fn build_hasher(&self) -> DefaultHasher {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.seed);
        hasher
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_draws_other_numbers_each_time_and_a_seed_hashes_the_same() {
        let entropy = Entropy::system();
        assert_ne!(entropy.draw(), entropy.draw());
        let hash = Entropy::new(|| 7).hasher();
        assert_eq!(hash.hash_one("a"), Entropy::new(|| 7).hasher().hash_one("a"));
        assert_ne!(hash.hash_one("a"), Entropy::new(|| 8).hasher().hash_one("a"));
    }
}
