//! The names of the keys: `PREFIX:{GROUP}:v1:...`.
//!
//! The braces are literal. On a Redis Cluster they make all keys of a group live in one slot, which one
//! script call needs. `v1` is the layout of the stored values, so that two versions of weir run side by side.
//! Names of limiters hold neither `:` nor `+`, and partitions are hexadecimal, so no two keys can be confused.

use crate::limiter::Partition;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::limit::LimiterName;

/// Returns the key of the state of a limiter, or of one of its partitions.
pub(super) fn limiter(prefix: &str, limiter_ref: &LimiterRef) -> String {
    format!("{prefix}:{{{}}}:v1:limiter:{}", limiter_ref.group, state(limiter_ref))
}

/// Returns the limiter and partition of the key of a state.
pub(super) fn limiter_of(key: &str) -> Option<(LimiterName, Option<Partition>)> {
    member(key.rsplit_once(":v1:limiter:")?.1)
}

/// Returns the key of the order of the queue that takes all of `limiter_refs` at once.
pub(super) fn queue(prefix: &str, limiter_refs: &[LimiterRef]) -> String {
    let group = limiter_refs.first().map_or("", |limiter_ref| &limiter_ref.group);
    let states: Vec<String> = limiter_refs.iter().map(state).collect();
    format!("{prefix}:{{{group}}}:v1:queue:{}", states.join("+"))
}

/// Returns the end of the key of a state: `NAME`, or `NAME:PARTITION`.
fn state(limiter_ref: &LimiterRef) -> String {
    match &limiter_ref.partition {
        Some(partition) => format!("{}:{partition}", limiter_ref.name),
        None => limiter_ref.name.to_string(),
    }
}

/// Returns the limiters and partitions of a queue from its key.
pub(super) fn queue_members(key: &str) -> Option<Vec<(LimiterName, Option<Partition>)>> {
    let (_, states) = key.rsplit_once(":v1:queue:")?;
    states.split('+').map(member).collect()
}

/// Reads the end of the key of a state: the inverse of [`state`].
fn member(state: &str) -> Option<(LimiterName, Option<Partition>)> {
    let Some((name, partition)) = state.split_once(':') else {
        return Some((LimiterName::parse(state)?, None));
    };
    Some((LimiterName::parse(name)?, Some(Partition::parse(partition)?)))
}

/// Returns the key of the epoch: one for all limiters of a server, or one for each group on a Cluster.
pub(super) fn epoch(prefix: &str, group: Option<&str>) -> String {
    match group {
        Some(group) => format!("{prefix}:{{{group}}}:v1:epoch"),
        None => format!("{prefix}:v1:epoch"),
    }
}

/// Returns the key of the replicas that share the store.
pub(super) fn replicas(prefix: &str) -> String {
    format!("{prefix}:v1:replicas")
}

/// Returns the channel on which scripts publish announcements.
pub(super) fn announcements(prefix: &str) -> String {
    format!("{prefix}:v1:announcements")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_has_keys_of_its_own() {
        let name = |name: &str| LimiterName::parse(name).unwrap();
        let limiter_ref = |text: &str, partition| LimiterRef {
            name: name(text),
            partition,
            group: "g".into(),
            rules: [].into(),
            valid_until: None,
        };
        let tenant = Partition::of([Some(&b"tenant"[..])]);
        let (all, one) = (limiter_ref("all", None), limiter_ref("one", Some(tenant)));
        assert_eq!(limiter("weir", &all), "weir:{g}:v1:limiter:all");
        assert_eq!(limiter("weir", &one), format!("weir:{{g}}:v1:limiter:one:{tenant}"));
        assert_eq!(limiter_of(&limiter("weir", &one)), Some((name("one"), Some(tenant))));
        assert_eq!(limiter_of(&limiter("weir", &all)), Some((name("all"), None)));
        assert_eq!(limiter_of("weir:{g}:v1:queue:all"), None);
        assert_eq!(queue("weir", &[all, one]), format!("weir:{{g}}:v1:queue:all+one:{tenant}"));
    }
}
