//! Mistakes put into the scripts on purpose, to show that the simulation finds them.

use std::sync::OnceLock;

use crate::redis::scripts::Script;

/// A mistake: a text of a script, and what stands in its place.
struct Mutation {
    name: &'static str,
    from: &'static str,
    to: &'static str,
}

const MUTATIONS: [Mutation; 6] = [
    // A window is no longer than the limit says: nothing is left for permits that are used a little late.
    Mutation {
        name: "guard_ignored",
        from: "rate, window = tonumber(rate), tonumber(window)",
        to: "rate, window = tonumber(rate), floor(tonumber(window) / 1.01)",
    },
    Mutation {
        name: "given_back_twice",
        from: "local moved = Reschedule.give_back_at(",
        to: "Reschedule.give_back_at(Reschedule.cursor(states[index], slot, callers[2 * index]), permits) local moved = Reschedule.give_back_at(",
    },
    Mutation {
        name: "refusal_books",
        from: "passed = max(passed, cost)\n",
        to: "charge(searches, cost) passed = max(passed, cost)\n",
    },
    Mutation {
        name: "last_slot_of_another_cost",
        from: "charge(searches, count * cost)\n",
        to: "charge(searches, count == left and (count - 1) * cost + 1 or count * cost)\n",
    },
    Mutation {
        name: "deadline_off_by_one_second",
        from: "(at - now > wait_max and",
        to: "(at - now > wait_max + 1000000 and",
    },
    // The cost of a response beyond its estimate is forgotten. The mix tokens finds it.
    Mutation {
        name: "excess_ignored",
        from: "if cost > 0 then Search.charge_excess(state, now, cost) end",
        to: "",
    },
];

static CHOSEN: OnceLock<&Mutation> = OnceLock::new();

/// Chooses the mistake that every script has from now on.
///
/// # Errors
/// The names that there are, if none is this one.
pub fn choose(name: &str) -> Result<(), String> {
    let Some(mutation) = MUTATIONS.iter().find(|mutation| mutation.name == name) else {
        let names: Vec<_> = MUTATIONS.iter().map(|mutation| mutation.name).collect();
        return Err(format!("there is no mutation {name}; there are {}", names.join(", ")));
    };
    CHOSEN.get_or_init(|| mutation);
    Ok(())
}

/// Returns a script with the chosen mistake.
pub fn mutated(source: &str) -> String {
    match CHOSEN.get() {
        Some(mutation) => source.replace(mutation.from, mutation.to),
        None => source.to_owned(),
    }
}

/// Checks that each mistake changes one of these scripts.
///
/// # Errors
/// The first mistake that changes none.
pub fn all_apply(scripts: &[Script]) -> Result<(), String> {
    for mutation in &MUTATIONS {
        if !scripts.iter().any(|script| script.source.contains(mutation.from)) {
            return Err(format!("the mutation {} changes no script: adapt its text", mutation.name));
        }
    }
    Ok(())
}
