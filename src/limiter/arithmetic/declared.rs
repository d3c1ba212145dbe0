//! The sets of limits that replicas have declared: during a reload they run different configurations.
//!
//! Every set declared within the last lease is in force, so the strictest rules hold until the last replica has followed. A set
//! that only the caller has declared goes at once. Pure. The twin is in `lua/open.lua`.

use std::sync::Arc;

use crate::clock::Micros;
use crate::limiter::arithmetic::rule::Rule;

/// The most sets of limits in force at once; a further one takes the place of the one declared longest ago.
pub const DECLARED_MAX: usize = 4;

/// The sets of limits in force.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Declarations(Vec<Declared>);

#[derive(Clone, PartialEq, Eq, Debug)]
struct Declared {
    rules: Arc<[Rule]>,
    at: Micros,
    /// The replica that has declared the set; `None` if several have.
    by: Option<u64>,
}

impl Declarations {
    /// Declares a replica's rules.
    pub fn declare(&mut self, now: Micros, rules: &Arc<[Rule]>, lease: Micros, replica: u64) {
        if let [only] = &mut self.0[..] {
            if only.rules == *rules {
                only.by = only.by.filter(|by| *by == replica);
                return;
            }
            // A set that stood alone was in force until now, whenever it was declared.
            only.at = now;
        }
        let is_replaced = |other: &Declared| other.by == Some(replica) || other.at + lease <= now;
        self.0.retain(|declared| declared.rules == *rules || !is_replaced(declared));
        // An instant ahead is of another clock.
        self.0.iter_mut().for_each(|declared| declared.at = declared.at.min(now));
        match self.0.iter_mut().find(|declared| declared.rules == *rules) {
            Some(declared) => {
                declared.at = now;
                declared.by = declared.by.filter(|by| *by == replica);
            }
            None => self.0.push(Declared { rules: rules.clone(), at: now, by: Some(replica) }),
        }
        if self.0.len() > DECLARED_MAX {
            let oldest = self.0.iter().enumerate().min_by_key(|(_, declared)| declared.at);
            if let Some((oldest, _)) = oldest {
                self.0.remove(oldest);
            }
        }
    }

    /// Returns whether replicas declare different limits.
    pub fn is_disputed(&self) -> bool {
        self.0.len() > 1
    }

    /// Returns all rules of all sets.
    pub fn union(&self) -> Vec<Rule> {
        self.0.iter().flat_map(|declared| declared.rules.iter().cloned()).collect()
    }
}
