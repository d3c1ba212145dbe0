//! How the callers of a limiter share its quota: classes of which the first goes first, and weights within a class.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::limiter::model::line::FLOW_MIN;
use crate::limiter::model::queue_limits::QueueLimits;

/// The caller of a request, by hashes of the values that name it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Flow {
    /// The flow: a hash over all values that name it, from [`FLOW_MIN`] on, below 2^53.
    pub id: u64,
    /// A hash of the first value, by which the class and the weight are found.
    pub member: u64,
}

impl Default for Flow {
    /// Returns the one flow of all requests where nobody shares.
    fn default() -> Flow {
        Flow { id: FLOW_MIN, member: 0 }
    }
}

impl Flow {
    /// Returns the flow that these values name, in order. A value that a request does not have is one of its own.
    pub fn of(values: &[Option<&[u8]>]) -> Flow {
        Flow { id: hash(values).max(FLOW_MIN), member: hash(&values[..values.len().min(1)]) }
    }

    /// Returns the hash of a first value, as [`Flow::member`] has it.
    pub fn member_of(value: &str) -> u64 {
        hash(&[Some(value.as_bytes())])
    }
}

/// Returns the first 52 bits of SHA-256 over the values.
fn hash(values: &[Option<&[u8]>]) -> u64 {
    let mut hash = Sha256::new();
    for value in values {
        // The length in front keeps ("a", "bc") and ("ab", "c") apart.
        hash.update([u8::from(value.is_some())]);
        let value = value.unwrap_or_default();
        hash.update((value.len() as u64).to_be_bytes());
        hash.update(value);
    }
    let mut bits = [0; 8];
    bits.copy_from_slice(&hash.finalize()[..8]);
    u64::from_be_bytes(bits) >> 12
}

/// A class of callers. Those of the first class go first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Class {
    /// The name.
    pub name: Arc<str>,
    /// The part of each window that the other classes together leave it, in millionths; zero for none.
    pub floor_ppm: u32,
    /// The most that it gets of each window, in millionths; `None` for all of it.
    pub ceiling_ppm: Option<u32>,
    /// Its queue.
    pub queue: QueueLimits,
}

/// The class and the weight of a caller that the configuration names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// The place of its class.
    pub class: usize,
    /// Its weight among the flows of the class.
    pub weight: u64,
}

/// How the callers of a limiter share its quota.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QuotaShare {
    /// The classes: one at least. Who is in no other is in the last one.
    pub classes: Arc<[Class]>,
    /// The callers that have a class or a weight of their own, by [`Flow::member`].
    pub members: Arc<HashMap<u64, Member>>,
    /// The values that the configuration names, and `none` for a missing one, by [`Flow::member`]: for people alone.
    pub names: Arc<HashMap<u64, Arc<str>>>,
    /// How far ahead of the present slots are dealt.
    pub ahead: Duration,
}

/// A bound of some classes together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bound {
    /// Its name, which no other one of the share has.
    pub name: String,
    /// The part of each window that they may get, in millionths.
    pub ppm: u32,
    /// The places of the classes.
    pub classes: Vec<usize>,
}

impl QuotaShare {
    /// Returns the class and the weight of a caller.
    pub fn member(&self, flow: Flow) -> Member {
        let other = Member { class: self.classes.len().saturating_sub(1), weight: 1 };
        self.members.get(&flow.member).copied().unwrap_or(other)
    }

    /// Returns the class of a caller.
    pub fn class(&self, flow: Flow) -> &Class {
        &self.classes[self.member(flow).class.min(self.classes.len() - 1)]
    }

    /// Returns what bounds classes, if anything does. A floor bounds all others.
    pub fn bounds(&self) -> Vec<Bound> {
        let classes = || self.classes.iter().enumerate();
        let ceilings = classes().filter_map(|(place, class)| {
            Some(Bound {
                name: format!("ceiling {}", class.name),
                ppm: class.ceiling_ppm?,
                classes: vec![place],
            })
        });
        let floors = classes().filter(|(_, class)| class.floor_ppm > 0).map(|(place, class)| {
            let others = (0..self.classes.len()).filter(|other| *other != place).collect();
            Bound { name: format!("floor {}", class.name), ppm: 1_000_000 - class.floor_ppm, classes: others }
        });
        ceilings.chain(floors).filter(|bound| !bound.classes.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(name: &str, floor_ppm: u32, ceiling_ppm: Option<u32>) -> Class {
        let queue = QueueLimits { timeout: Duration::from_secs(1), max_waiting: 10 };
        Class { name: name.into(), floor_ppm, ceiling_ppm, queue }
    }

    #[test]
    fn the_first_value_decides_the_class_and_all_of_them_the_flow() {
        let members = [(Flow::member_of("web"), Member { class: 0, weight: 3 })];
        let share = QuotaShare {
            classes: [class("first", 0, None), class("rest", 0, None)].into(),
            members: Arc::new(members.into()),
            names: Arc::default(),
            ahead: Duration::from_millis(250),
        };
        let of = |values: &[&str]| Flow::of(&values.iter().map(|it| Some(it.as_bytes())).collect::<Vec<_>>());
        assert_ne!(of(&["web", "a"]), of(&["web", "b"]));
        assert_eq!(share.member(of(&["web", "a"])), Member { class: 0, weight: 3 });
        assert_eq!(share.member(of(&["other", "web"])), Member { class: 1, weight: 1 });
        assert_ne!(Flow::of(&[None]), Flow::of(&[Some(b"")]));
        assert!(of(&["web"]).id < 1 << 53);
    }

    #[test]
    fn a_floor_bounds_all_others() {
        let share = QuotaShare {
            classes: [class("a", 200_000, None), class("b", 0, Some(700_000)), class("c", 0, None)].into(),
            members: Arc::default(),
            names: Arc::default(),
            ahead: Duration::from_millis(250),
        };
        let bound = |name: &str, ppm, classes| Bound { name: name.to_owned(), ppm, classes };
        assert_eq!(
            share.bounds(),
            [bound("ceiling b", 700_000, vec![1]), bound("floor a", 800_000, vec![1, 2])]
        );
    }
}
