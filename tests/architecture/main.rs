//! Rules for the sources: the order of the rooms, forbidden references and words, sizes, and the headers of Lua scripts.
//!
//! Reads `src/` as syntax and follows every path to the module that defines its target.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod documents;
mod floors;
mod graph;
mod references;
mod rules;
mod samples;
mod scripts;
mod sizes;
mod tree;

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::PathBuf;

use references::Mentions;
use sizes::Exceptions;
use tree::{Target, Tree};

/// A fault of the sources.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Finding {
    /// The name of the fault, without line numbers, which change too often.
    pub(crate) key: String,
    /// The places.
    pub(crate) detail: Vec<String>,
}

impl Finding {
    fn new(key: String, detail: String) -> Finding {
        Finding { key, detail: vec![detail] }
    }
}

/// The structs that may be large or have several `bool`s.
const EXCEPTIONS: Exceptions<'static> = Exceptions {
    tables: &[],
    wide_structs: &[
        ("Call in src/limiter/model/call.rs", "plain data: what a store is asked"),
        ("Deal in src/redis/arguments.rs", "plain data: the argument of a script"),
        ("Families in src/telemetry/metrics.rs", "plain data: a field for each family of metrics"),
        ("Reserve in src/redis/arguments.rs", "plain data: the argument of a script"),
        ("Route in src/config/model.rs", "plain data: a route as it is used"),
        ("Route in src/config/schema/route.rs", "plain data: a route as it is written"),
        ("Server in src/config/model.rs", "plain data: the keys of `server` as they are used"),
        ("Server in src/config/schema/mod.rs", "plain data: the keys of `server` as they are written"),
        ("Limiter in src/config/schema/limiter.rs", "plain data: the keys of a limiter as they are written"),
        ("HeartbeatRow in src/redis/arguments.rs", "plain data: the argument of a script"),
    ],
    independent_bools: &[
        ("Options in src/cli/check.rs", "options of a command"),
        ("Route in src/config/model.rs", "keys of a route"),
    ],
    branching: &[
        ("BookedCore::take in src/limiter/queue/worker/core/mod.rs", "one arm for each event"),
        ("LineCore::take in src/limiter/queue/worker/line/mod.rs", "one arm for each event"),
    ],
};

/// Returns the project's directory; `WEIR_ARCHITECTURE_ROOT` names another one.
pub(crate) fn root() -> PathBuf {
    env::var_os("WEIR_ARCHITECTURE_ROOT").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from)
}

/// Writes the end of a path: `crate::limiter::Permit`, `http::StatusCode`.
pub(crate) fn spelled(tree: &Tree, target: &Target) -> String {
    match target {
        Target::Inside(module, path) => {
            let module = Some(tree.modules[*module].name.as_str()).filter(|name| !name.is_empty());
            let parts = ["crate"].into_iter().chain(module).chain(path.iter().map(String::as_str));
            parts.collect::<Vec<_>>().join("::")
        }
        Target::Outside(path) => path.join("::"),
    }
}

#[test]
fn the_sources_keep_to_the_architecture() {
    let sources = tree::read_sources(&root());
    assert!(sources.len() > 5, "the sources were found");
    let tree = Tree::new(&sources);
    let mentions = Mentions::of(&tree);
    println!("{} modules, {} references", tree.modules.len(), mentions.references.len());
    let mut findings = graph::findings(&tree, &mentions, floors::FLOORS);
    findings.extend(rules::RULES.iter().flat_map(|rule| rule.findings(&tree, &mentions)));
    findings.extend(sizes::findings(&sources, &EXCEPTIONS));
    findings.sort();

    let wrong: Vec<String> = findings
        .iter()
        .map(|finding| format!("{}\n    {}", finding.key, finding.detail.join("\n    ")))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_path_inside_the_crate_is_understood() {
    let tree = Tree::new(&tree::read_sources(&root()));
    let mentions = Mentions::of(&tree);
    let lost = mentions.references.iter().filter_map(|reference| match &reference.to {
        Target::Inside(module, path) => {
            let first = path.first()?;
            let file = &tree.modules[reference.from].file;
            let is_lost = !tree.modules[*module].names.contains_key(first);
            is_lost.then(|| format!("{file}:{}: {}", reference.line, spelled(&tree, &reference.to)))
        }
        Target::Outside(_) => None,
    });
    let lost: BTreeSet<String> = lost.collect();
    assert!(lost.is_empty(), "{lost:#?}");
}

#[test]
fn unsafe_code_is_forbidden() {
    let library = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    assert!(library.contains("#![forbid(unsafe_code)]"));
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    assert!(manifest.contains("unsafe_code = \"forbid\""));
}
