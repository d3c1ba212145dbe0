//! The outputs of a route's latest responses, by limiter and partition: most are far below the largest that a request allows.
//! Knows nothing of requests.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use crate::limiter::Partition;

/// The responses of a partition that are remembered.
const REMEMBERED: usize = 200;

/// Nothing is learnt from fewer.
const KNOWN_MIN: usize = 100;

/// The partitions of a route that are learnt of: requests of further ones are estimated by what they say.
const PARTITIONS_MAX: usize = 1000;

/// The limiter, by its place in the route, and its partition.
type Key = (usize, Option<Partition>);

/// The outputs of the last responses.
#[derive(Default)]
pub(crate) struct LearnedOutputs(Mutex<HashMap<Key, Outputs>>);

#[derive(Default)]
struct Outputs {
    /// The latest last.
    latest: VecDeque<u64>,
    percentile_95: Option<u64>,
}

impl Outputs {
    fn add(&mut self, output: u64) {
        if self.latest.len() == REMEMBERED {
            self.latest.pop_front();
        }
        self.latest.push_back(output);
        if self.latest.len() >= KNOWN_MIN {
            let mut sorted: Vec<u64> = self.latest.iter().copied().collect();
            let rank = (sorted.len() * 95).div_ceil(100) - 1;
            self.percentile_95 = Some(*sorted.select_nth_unstable(rank).1);
        }
    }
}

impl LearnedOutputs {
    /// Notes the output of a response.
    pub(crate) fn add(&self, place: usize, partition: Option<Partition>, output: u64) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() < PARTITIONS_MAX || known.contains_key(&(place, partition)) {
            known.entry((place, partition)).or_default().add(output);
        }
    }

    /// Returns the output that 19 of 20 responses did not exceed; `None` until a hundred are known.
    pub(crate) fn percentile_95(&self, place: usize, partition: Option<Partition>) -> Option<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&(place, partition))?.percentile_95
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_is_learnt_from_a_hundred_responses_of_a_partition() {
        let (outputs, partition) = (LearnedOutputs::default(), Some(Partition::of([Some(&b"gpt"[..])])));
        (1..100).for_each(|output| outputs.add(1, partition, output));
        assert_eq!(outputs.percentile_95(1, partition), None);
        outputs.add(1, partition, 100);
        assert_eq!(outputs.percentile_95(1, partition), Some(95));
        assert_eq!((outputs.percentile_95(0, partition), outputs.percentile_95(1, None)), (None, None));
        (0..200).for_each(|_| outputs.add(1, partition, 7));
        assert_eq!(outputs.percentile_95(1, partition), Some(7));
    }

    #[test]
    fn the_partitions_are_bounded() {
        let outputs = LearnedOutputs::default();
        for number in 0..=PARTITIONS_MAX {
            let partition = Some(Partition::of([Some(&number.to_be_bytes()[..])]));
            (0..100).for_each(|_| outputs.add(0, partition, 5));
            assert_eq!(outputs.percentile_95(0, partition), (number < PARTITIONS_MAX).then_some(5));
        }
    }
}
