//! The partitions of a limiter that used most and waited longest in the last minutes, as JSON.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::usage::{PartitionReading, TopPartitions};

/// The partitions of each kind where all limiters are listed.
pub(super) const LISTED: usize = 5;

/// Returns the first `count` partitions of each kind as JSON. `value` returns the value of one by its hash, where it may be shown.
pub(super) fn view(top: &TopPartitions, value: impl Fn(&str) -> Option<Arc<str>>, count: usize) -> Value {
    let one = |partition: &PartitionReading| {
        let left = partition.left.as_ref();
        json!({
            "partition": partition.partition,
            // Null where it may not be shown, and where this replica has not met it.
            "value": value(&partition.partition),
            // Never too little; by how much it may be too much.
            "granted": partition.granted,
            "granted_error": partition.over,
            "longest_wait_ms": partition.longest_wait_us / 1000,
            // The tightest limit when the store last told a replica; null before.
            "limit": left.map(|left| &left.limit),
            "rate": left.map(|left| left.rate),
            "available": left.map(|left| left.available),
            "told_ms_ago": left.map(|left| left.age_us / 1000),
        })
    };
    let list =
        |partitions: &[PartitionReading]| -> Vec<Value> { partitions.iter().take(count).map(one).collect() };
    json!({
        // The time that the figures are of: the last minutes, or since the start.
        "seconds": top.over_us / 1_000_000,
        "used": list(&top.used),
        "waited": list(&top.waited),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::PartitionLeft;

    #[test]
    fn a_partition_is_shown_by_its_hash_or_its_value() {
        let reading = |partition: &str, left| PartitionReading {
            partition: partition.into(),
            granted: 7,
            over: 1,
            longest_wait_us: 1_234_567,
            left,
        };
        let left = PartitionLeft { limit: "9/1s".into(), rate: 9, available: 2, age_us: 450_000 };
        let used = vec![reading("0a", Some(left)), reading("0b", None)];
        let top = TopPartitions { over_us: 61_000_000, used, waited: Vec::new() };
        let view = view(&top, |hash| (hash == "0a").then(|| "acme".into()), 1);
        let expected = json!({"seconds": 61, "waited": [], "used": [{
            "partition": "0a", "value": "acme", "granted": 7, "granted_error": 1, "longest_wait_ms": 1234,
            "limit": "9/1s", "rate": 9, "available": 2, "told_ms_ago": 450,
        }]});
        assert_eq!(view, expected);
    }
}
