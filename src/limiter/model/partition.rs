//! One value of a limiter's key: a tenant, a credential, an address.
//!
//! Only a hash of it is kept, so no credential gets into a store, a log or a metric.

use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};

use sha2::{Digest, Sha256};

/// 128 bits of SHA-256 over the parts of a key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition([u8; 16]);

impl Partition {
    /// Returns the partition of these parts, in order. A part that a request does not have is a value of its own.
    pub fn of<'a>(parts: impl IntoIterator<Item = Option<&'a [u8]>>) -> Partition {
        let mut hash = Sha256::new();
        for part in parts {
            // The length in front keeps ("a", "bc") and ("ab", "c") apart.
            hash.update([u8::from(part.is_some())]);
            let part = part.unwrap_or_default();
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let mut bits = [0; 16];
        bits.copy_from_slice(&hash.finalize()[..16]);
        Partition(bits)
    }

    /// Parses a partition as it is shown.
    pub fn parse(text: &str) -> Option<Partition> {
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let bits = u128::from_str_radix(text, 16).ok().filter(|_| digits)?;
        Some(Partition(bits.to_be_bytes()))
    }
}

impl fmt::Display for Partition {
    /// Writes lower case hexadecimal, as in a key of a store.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for Partition {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// Hashes a partition by its own bits, which are a hash already. Only for maps whose keys nobody outside can add: others can look for
/// values whose partitions begin alike.
pub type OwnBits = BuildHasherDefault<OwnBitsHasher>;

/// The hasher of [`OwnBits`].
#[derive(Default)]
pub struct OwnBitsHasher(u64);

impl Hasher for OwnBitsHasher {
    /// Takes the last bytes that are written: those of the partition, behind their number.
    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk() {
            self.0 = u64::from_le_bytes(*first);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher;

    use super::*;

    #[test]
    fn a_partition_is_hashed_by_its_own_bits() {
        let of = |text: &str| OwnBits::default().hash_one(Partition::parse(text).unwrap());
        assert_eq!(of("01000000000000000000000000000000"), 1);
        assert_eq!(of("00000000000000ff0000000000000001"), 0xff << 56);
    }

    #[test]
    fn parts_are_kept_apart() {
        let of = |parts: &[Option<&str>]| Partition::of(parts.iter().map(|part| part.map(str::as_bytes)));
        assert_eq!(of(&[Some("a"), Some("b")]), of(&[Some("a"), Some("b")]));
        assert_ne!(of(&[Some("a"), Some("bc")]), of(&[Some("ab"), Some("c")]));
        assert_ne!(of(&[None]), of(&[Some("")]));
        assert_ne!(of(&[None, Some("a")]), of(&[Some("a"), None]));
        let shown = of(&[Some("a")]).to_string();
        assert_eq!(shown.len(), 32);
        assert_eq!(Partition::parse(&shown), Some(of(&[Some("a")])));
        assert_eq!(Partition::parse("+1"), None);
    }
}
