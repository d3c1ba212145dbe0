//! The invariants of a worker's core, after every event.

use std::collections::BTreeMap;

use super::super::BookedCore;
use crate::limiter::model::Permits;

/// Returns how many slots of each cost are asked for in place of others: with the next calls, and with those under way.
fn asked_for(core: &BookedCore) -> BTreeMap<Permits, usize> {
    let mut asked_for: BTreeMap<Permits, usize> = BTreeMap::new();
    let mut add = |cost: Permits, count: usize| *asked_for.entry(cost).or_default() += count;
    core.owed.replace.iter().for_each(|(cost, count)| add(*cost, *count));
    core.owed.reschedule.slots.iter().for_each(|(_, cost)| add(*cost, 1));
    if let Some(sent) = &core.calls.under_way {
        sent.replace.iter().for_each(|(cost, count)| add(*cost, *count));
        sent.reschedule.iter().for_each(|(_, cost)| add(*cost, 1));
    }
    if let Some(call) = &core.calls.local {
        call.replace.iter().for_each(|(cost, count)| add(*cost, *count));
    }
    asked_for
}

/// Checks that each request has a slot, held or asked for, and that what is asked for is the sum of what calls ask for.
pub(super) fn hold(core: &BookedCore) {
    if core.stay.is_closing() {
        assert!(core.owed.replace.is_empty() && core.waiting() == 0, "{core:?}");
        return;
    }
    let asked_for = asked_for(core);
    let costs = core.cost_queues.keys().chain(asked_for.keys());
    for cost in costs {
        let queue = core.cost_queues.get(cost).cloned().unwrap_or_default();
        let held = queue.clone().take_slots(|_| true).len();
        assert_eq!(queue.wanted, asked_for.get(cost).copied().unwrap_or_default(), "cost {cost}: {core:?}");
        assert!(held <= queue.waiting() && queue.waiting() <= held + queue.wanted, "cost {cost}: {core:?}");
    }
}
