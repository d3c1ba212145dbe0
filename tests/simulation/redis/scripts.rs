//! The texts of weir's scripts, put together as weir does it.

macro_rules! lua {
    ($($file:literal),*) => {
        &[$(include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/lua/", $file, ".lua"))),*]
    };
}

const KEYS: &[&str] = lua!("prelude", "store", "epoch");

const STATE: &[&str] = lua!(
    "algorithm",
    "rule",
    "timeline",
    "algorithm/sliding_window",
    "algorithm/bucket",
    "algorithm/fixed_window",
    "algorithm/warm_up",
    "external_usage",
    "pause",
    "state"
);

const SEARCH: &[&str] = lua!("search", "recovery", "reschedule", "open");

/// A script.
pub(crate) struct Script {
    /// The name of its file.
    pub(crate) name: &'static str,
    /// Its text.
    pub(crate) source: String,
    /// The SHA-1 of the text.
    pub(crate) sha: String,
}

/// Returns the SHA-1 of a script's text, by which it is called.
pub(crate) fn sha_of(source: &str) -> String {
    ::redis::Script::new(source).get_hash().to_owned()
}

/// Returns all scripts.
pub(crate) fn all() -> [Script; 8] {
    let script = |name, parts: &[&[&str]]| {
        let source = parts.concat().join("\n");
        Script { name, sha: sha_of(&source), source }
    };
    [
        script("reserve", &[KEYS, STATE, SEARCH, lua!("queue_order", "scripts/reserve")]),
        script("inspect", &[KEYS, STATE, lua!("scripts/inspect")]),
        script("heartbeat", &[KEYS, lua!("scripts/heartbeat")]),
        script("write_back", &[KEYS, STATE, SEARCH, lua!("scripts/write_back")]),
        script("register_replica", &[KEYS, lua!("scripts/register_replica")]),
        script("reset", &[KEYS, lua!("scripts/reset")]),
        script("report_upstream", &[KEYS, STATE, SEARCH, lua!("upstream_report", "scripts/report_upstream")]),
        script("pause", &[KEYS, lua!("scripts/pause")]),
    ]
}
