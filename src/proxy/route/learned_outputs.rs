//! The outputs of a route's latest responses, by limiter and partition: most are far below the largest that a request allows.
//! Knows nothing of requests.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::limiter::Partition;

/// The responses of a partition that are remembered.
const REMEMBERED: usize = 200;

/// Nothing is learnt from fewer.
const KNOWN_MIN: usize = 100;

/// The partitions of a route that are known at once: the one that answered longest ago makes room for a further one.
const PARTITIONS_MAX: usize = 1000;

/// The limiter, by its place in the route, and its partition.
type Key = (usize, Option<Partition>);

/// The outputs of the last responses.
#[derive(Default)]
pub(crate) struct LearnedOutputs(Mutex<Known>);

#[derive(Default)]
struct Known {
    partitions: HashMap<Key, Outputs>,
    /// The responses so far.
    responses: u64,
}

#[derive(Default)]
struct Outputs {
    /// The number of the last response, of those of all partitions.
    last: u64,
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
        let (mut known, key) = (self.lock(), (place, partition));
        let Known { partitions, responses } = &mut *known;
        if partitions.len() >= PARTITIONS_MAX && !partitions.contains_key(&key) {
            let oldest = partitions.iter().min_by_key(|(_, outputs)| outputs.last).map(|(key, _)| *key);
            oldest.map(|oldest| partitions.remove(&oldest));
        }
        *responses += 1;
        let outputs = partitions.entry(key).or_default();
        outputs.last = *responses;
        outputs.add(output);
    }

    /// Returns the output that 19 of 20 responses did not exceed; `None` until a hundred are known.
    pub(crate) fn percentile_95(&self, place: usize, partition: Option<Partition>) -> Option<u64> {
        self.lock().partitions.get(&(place, partition))?.percentile_95
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
    fn the_partition_that_answered_longest_ago_makes_room() {
        let outputs = LearnedOutputs::default();
        let partition = |number: usize| Some(Partition::of([Some(&number.to_be_bytes()[..])]));
        for number in 0..PARTITIONS_MAX {
            (0..100).for_each(|_| outputs.add(0, partition(number), 5));
        }
        outputs.add(0, partition(0), 5);
        outputs.add(0, partition(PARTITIONS_MAX), 5);
        assert_eq!(outputs.lock().partitions.len(), PARTITIONS_MAX);
        let learnt = [0, 1, 2].map(|number| outputs.percentile_95(0, partition(number)));
        assert_eq!(learnt, [Some(5), None, Some(5)]);
    }
}
