//! The names of the keys: `PREFIX:{GROUP}:v2:...`, and those of the layout before.
//!
//! The braces are literal. On a Redis Cluster they make all keys of a group live in one slot, which one
//! script call needs. `v2` is the layout of the stored values. While replicas of the earlier layout `v1` share the store, each state is
//! kept in both layouts, so that there is one quota (`lua/earlier_layout.lua`). The replicas are listed in one place for all layouts.
//! Names of limiters hold neither `:` nor `+`, and partitions are hexadecimal, so no two keys can be confused.

use crate::limiter::Partition;
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::limit::LimiterName;
use crate::usage::Period;

/// Returns the part of a limiter's keys that decides on its slot of a Cluster. On one server a limiter keeps its state when its
/// group changes.
fn group_of(limiter_ref: &LimiterRef, is_cluster: bool) -> &str {
    if is_cluster { &limiter_ref.group } else { limiter_ref.name.as_str() }
}

/// Returns the key of the state of a limiter, or of one of its partitions.
pub(super) fn limiter(prefix: &str, limiter_ref: &LimiterRef, is_cluster: bool) -> String {
    format!("{prefix}:{{{}}}:v2:limiter:{}", group_of(limiter_ref, is_cluster), state(limiter_ref))
}

/// Returns the limiter and partition of the key of a state.
pub(super) fn limiter_of(key: &str) -> Option<(LimiterName, Option<Partition>)> {
    member(key.rsplit_once(":v2:limiter:")?.1)
}

/// Returns the key of the order of the queue that takes all of `limiter_refs` at once.
pub(super) fn queue(prefix: &str, limiter_refs: &[LimiterRef], is_cluster: bool) -> String {
    together(prefix, limiter_refs, is_cluster, "queue")
}

/// Returns the key of the line of the queue that takes all of `limiter_refs` at once.
pub(super) fn line(prefix: &str, limiter_refs: &[LimiterRef], is_cluster: bool) -> String {
    together(prefix, limiter_refs, is_cluster, "line")
}

/// Returns a key of limiters that are taken together.
fn together(prefix: &str, limiter_refs: &[LimiterRef], is_cluster: bool, name: &str) -> String {
    let group = limiter_refs.first().map_or("", |limiter_ref| group_of(limiter_ref, is_cluster));
    let states: Vec<String> = limiter_refs.iter().map(state).collect();
    format!("{prefix}:{{{group}}}:v2:{name}:{}", states.join("+"))
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
    let (_, states) = key.rsplit_once(":v2:queue:")?;
    states.split('+').map(member).collect()
}

/// Reads the end of the key of a state: the inverse of [`state`].
fn member(state: &str) -> Option<(LimiterName, Option<Partition>)> {
    let Some((name, partition)) = state.split_once(':') else {
        return Some((LimiterName::parse(state)?, None));
    };
    Some((LimiterName::parse(name)?, Some(Partition::parse(partition)?)))
}

/// Returns a key of a part of the store: one for all limiters of a server, or one for each group on a Cluster.
fn of_part(prefix: &str, group: Option<&str>, name: &str) -> String {
    match group {
        Some(group) => format!("{prefix}:{{{group}}}:{name}"),
        None => format!("{prefix}:{name}"),
    }
}

/// Returns the key of the epoch: one for each part of the store.
pub(super) fn epoch(prefix: &str, group: Option<&str>) -> String {
    of_part(prefix, group, "v2:epoch")
}

/// Returns the key of the set that notes until when each state lives: one for each key of an epoch.
pub(super) fn live(prefix: &str, group: Option<&str>) -> String {
    of_part(prefix, group, "v2:live")
}

/// Returns the key of the set that notes when bookings of a state were last moved: one for each key of an epoch.
pub(super) fn moved(prefix: &str, group: Option<&str>) -> String {
    of_part(prefix, group, "v2:moved")
}

/// Returns the key of the replicas that share the store, of every layout. Its form has never changed, and its name is that of the first.
pub(super) fn replicas(prefix: &str) -> String {
    format!("{prefix}:v1:replicas")
}

/// Returns the key of the state of a limiter, or of one of its partitions, in the layout before.
pub(super) fn earlier_limiter(prefix: &str, limiter_ref: &LimiterRef) -> String {
    format!("{prefix}:{{{}}}:v1:limiter:{}", limiter_ref.group, state(limiter_ref))
}

/// Returns the key of the epoch in the layout before: one for each part of the store.
pub(super) fn earlier_epoch(prefix: &str, group: Option<&str>) -> String {
    of_part(prefix, group, "v1:epoch")
}

/// Returns the key of the instant from which on the fleet's counts are whole.
pub(super) fn usage_since(prefix: &str) -> String {
    format!("{prefix}:{{usage}}:v2:usage:since")
}

/// Returns the key of the fleet's counts of an hour or a day.
pub(super) fn usage(prefix: &str, Period { per, from }: Period) -> String {
    format!("{prefix}:{{usage}}:v2:usage:{}:{from}", per.as_str())
}

/// Returns the key of the figures that replicas tell each other.
pub(super) fn figures(prefix: &str) -> String {
    format!("{prefix}:{{usage}}:v2:figures")
}

/// Returns the channel on which scripts publish announcements.
pub(super) fn announcements(prefix: &str) -> String {
    format!("{prefix}:v2:announcements")
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
        assert_eq!(limiter("weir", &all, true), "weir:{g}:v2:limiter:all");
        assert_eq!(limiter("weir", &one, true), format!("weir:{{g}}:v2:limiter:one:{tenant}"));
        for is_cluster in [false, true] {
            assert_eq!(limiter_of(&limiter("weir", &one, is_cluster)), Some((name("one"), Some(tenant))));
            assert_eq!(limiter_of(&limiter("weir", &all, is_cluster)), Some((name("all"), None)));
        }
        assert_eq!(limiter_of("weir:{g}:v2:queue:all"), None);
        // Without a Cluster the group changes nothing.
        assert_eq!(limiter("weir", &one, false), format!("weir:{{one}}:v2:limiter:one:{tenant}"));
        // In the layout before it is the group on any server.
        assert_eq!(earlier_limiter("weir", &one), format!("weir:{{g}}:v1:limiter:one:{tenant}"));
        let queues = [true, false].map(|is_cluster| queue("weir", &[all.clone(), one.clone()], is_cluster));
        assert_eq!(queues, ["g", "all"].map(|tag| format!("weir:{{{tag}}}:v2:queue:all+one:{tenant}")));
    }
}
