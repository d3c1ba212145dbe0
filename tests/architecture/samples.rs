//! The test of this test: small crates, each with one fault.

use crate::floors::Floors;
use crate::references::Mentions;
use crate::rules::{RULES, Rule};
use crate::sizes::{self, Exceptions};
use crate::tree::{Sources, Tree};
use crate::{Finding, graph};

const NO_EXCEPTIONS: Exceptions<'_> =
    Exceptions { tables: &[], wide_structs: &[], independent_bools: &[], branching: &[] };

fn sources(files: &[(&str, &str)]) -> Sources {
    files.iter().map(|(path, text)| (format!("src/{path}"), (*text).to_owned())).collect()
}

/// Returns the keys of the findings in the graph of a small crate.
fn graph_keys(files: &[(&str, &str)]) -> Vec<String> {
    graph_keys_with(files, &[])
}

fn graph_keys_with(files: &[(&str, &str)], floors: Floors<'_>) -> Vec<String> {
    let tree = Tree::new(&sources(files));
    keys(graph::findings(&tree, &Mentions::of(&tree), floors))
}

fn keys(findings: Vec<Finding>) -> Vec<String> {
    findings.into_iter().map(|finding| finding.key).collect()
}

#[test]
fn a_circle_by_super_is_found() {
    let files = [
        ("lib.rs", "mod room;"),
        ("room/mod.rs", "mod a; mod b;"),
        ("room/a.rs", "use super::b::B; pub struct A(B);"),
        ("room/b.rs", "pub struct B; fn a() { let _a: Option<super::a::A> = None; }"),
    ];
    assert_eq!(graph_keys(&files), ["circle: room: a, b"]);
}

#[test]
fn a_circle_by_a_reexport_is_found() {
    let files = [
        ("lib.rs", "mod room;"),
        ("room/mod.rs", "mod a; mod b; mod c; pub use self::b::{B as Renamed, b}; pub use c::*;"),
        (
            "room/a.rs",
            "use crate::room::{self, C}; pub struct A; fn f(b: &room::Renamed, c: C) { room::b() }",
        ),
        ("room/b.rs", "pub struct B; pub fn b() {} use super::a::A;"),
        ("room/c.rs", "pub struct C; use super::a::*; type Alias = A;"),
    ];
    assert_eq!(graph_keys(&files), ["circle: room: a, b, c"]);
}

#[test]
fn a_circle_by_a_full_path_is_found() {
    for use_of_b in [
        "fn f() { crate::room::b::run(1) }",
        "fn f() -> Vec<crate::room::b::B> { vec![] }",
        "fn f() { println!(\"{}\", crate::room::b::run(1)) }",
        "fn f(x: u8) { if let crate::room::b::B = x {} }",
        "#[derive(Default, crate::room::b::Derived)] struct S;",
        "struct S { #[serde(with = \"crate::room::b\")] one: u8, #[serde(default = \"crate::room::b::run\")] two: u8 }",
        "fn f() { use crate::room::b as other; other::run(1) }",
        "mod inner { fn f() { super::super::b::run(1) } }",
        "impl crate::room::b::Trait for u8 {}",
    ] {
        let files = [
            ("lib.rs", "pub mod room { mod a; pub mod b; }"),
            ("room/a.rs", &format!("pub struct A; {use_of_b}")),
            ("room/b.rs", "pub struct B; pub fn run(_: u8) { super::a::A; } pub trait Trait {}"),
        ];
        assert_eq!(graph_keys(&files), ["circle: room: a, b"], "{use_of_b}");
    }
}

#[test]
fn a_circle_with_the_file_of_the_room_is_found() {
    let files = [
        ("lib.rs", "mod room;"),
        ("room/mod.rs", "mod a; pub struct Shared; fn f(of: a::A) {}"),
        ("room/a.rs", "pub struct A(super::Shared);"),
    ];
    assert_eq!(graph_keys(&files), ["circle: room: a, mod.rs"]);
}

#[test]
fn a_circle_among_rooms_is_found_where_no_two_modules_make_one() {
    let files = [
        ("lib.rs", "mod left; mod right;"),
        ("left.rs", "mod a { use crate::right::a::A; } pub mod b { pub struct B; }"),
        ("right.rs", "pub mod a { pub struct A; } mod b { use crate::left::b::B; }"),
    ];
    assert_eq!(graph_keys(&files), ["circle: : left, right"]);
}

#[test]
fn references_one_way_are_fine_and_tests_do_not_count() {
    let files = [
        ("lib.rs", "mod room; pub use room::A;"),
        ("room/mod.rs", "mod a; mod b; pub use a::A; #[cfg(test)] mod tests;"),
        ("room/a.rs", "use super::b::B; pub struct A(B); fn f(b: u8) -> u8 { b }"),
        ("room/b.rs", "pub struct B; #[cfg(test)] mod tests { use crate::room::A; }"),
    ];
    assert_eq!(graph_keys(&files), [""; 0]);
}

#[test]
fn a_reference_to_a_higher_room_is_found() {
    const FLOORS: Floors<'_> = &[("", &[&["low"], &["high"]])];
    let found = |low| {
        let files = [("lib.rs", "mod low; mod high;"), ("low.rs", low), ("high/mod.rs", "pub struct High;")];
        graph_keys_with(&files, FLOORS)
    };
    assert_eq!(found("pub struct Low;"), [""; 0]);
    assert_eq!(found("fn f(of: super::high::High) {}"), ["upward: : low -> high"]);
    assert_eq!(found("pub use crate::high::High;"), ["upward: : low -> high"]);
}

#[test]
fn a_room_without_a_floor_is_found_and_so_is_a_floor_without_a_room() {
    let files = [("lib.rs", "mod low { mod inner {} } mod other {}")];
    assert_eq!(
        graph_keys_with(&files, &[("", &[&["low", "gone"]])]),
        ["no floor: : gone", "no floor: : other"]
    );
}

#[test]
fn a_long_function_is_found() {
    let of_lines =
        |count: usize| format!("impl T {{\n    fn long() {{\n{}    }}\n}}", "        f();\n".repeat(count));
    let found = |count| keys(sizes::findings(&sources(&[("a.rs", &of_lines(count))]), &NO_EXCEPTIONS));
    assert_eq!(found(10), [""; 0]);
    assert_eq!(found(11), ["the median function"]);
    assert_eq!(found(71), ["long function: T::long in src/a.rs", "the median function"]);
}

#[test]
fn a_long_file_is_found() {
    let of_lines = |count: usize| "// one line\n".repeat(count);
    let found = |count| keys(sizes::findings(&sources(&[("a.rs", &of_lines(count))]), &NO_EXCEPTIONS));
    assert_eq!(found(500), [""; 0]);
    assert_eq!(found(501), ["long file: src/a.rs"]);
}

#[test]
fn a_wide_struct_and_one_with_two_bools_are_found() {
    let fields = |count: usize, of: &str| -> String { (0..count).map(|n| format!("f{n}: {of}, ")).collect() };
    let found = |count, of| {
        let text = format!("struct S {{ {} }}", fields(count, of));
        keys(sizes::findings(&sources(&[("a.rs", &text)]), &NO_EXCEPTIONS))
    };
    assert_eq!(found(12, "u8"), [""; 0]);
    assert_eq!(found(13, "u8"), ["wide struct: S in src/a.rs"]);
    assert_eq!(found(1, "bool"), [""; 0]);
    assert_eq!(found(2, "bool"), ["bools: S in src/a.rs"]);
}

#[test]
fn an_exception_that_nothing_needs_is_found() {
    let exceptions = Exceptions { wide_structs: &[("S in src/a.rs", "plain data")], ..NO_EXCEPTIONS };
    let found = keys(sizes::findings(&sources(&[("a.rs", "struct S { f: u8 }")]), &exceptions));
    assert_eq!(found, ["needless exception: S in src/a.rs"]);
}

/// Returns a crate in which the rule applies to `source` alone.
fn crate_for(rule: &Rule, source: &str) -> Tree {
    const OTHERS: [(&str, &str); 4] = [
        ("proxy", "pub struct Proxy; pub struct Router;"),
        ("redis", "pub struct RedisStore;"),
        ("config", "pub mod schema { pub struct File; }"),
        ("limiter", "pub enum Kind { Bucket }"),
    ];
    let looked_at = rule.within.first().copied().unwrap_or("elsewhere");
    let within = |path: &str, text: &str| {
        let (open, close) = (path.replace("::", " { pub mod "), "}".repeat(path.split("::").count()));
        format!("pub mod {open} {{ {text} {close}\n")
    };
    let room = looked_at.split("::").next();
    let rest = OTHERS.into_iter().filter(|(name, _)| Some(*name) != room);
    let modules = rest.chain([(looked_at, source)]).map(|(name, text)| within(name, text));
    Tree::new(&sources(&[("lib.rs", &modules.collect::<String>())]))
}

#[test]
fn each_rule_catches_its_example() {
    for rule in RULES {
        let tree = crate_for(rule, rule.catches);
        assert!(!rule.findings(&tree, &Mentions::of(&tree)).is_empty(), "{}: {}", rule.says, rule.catches);
    }
}

#[test]
fn comments_tests_and_the_crates_own_modules_break_no_rule() {
    let fine = "
        use crate::redis::RedisStore; // not redis::Client
        /// redis::Client, StatusCode::OK
        fn f() -> &'static str { let handle = tokio::spawn(async {}); \"weir\" }
        fn g(keys: &[&str]) { fields!(keys, redis, serde) }
        #[cfg(test)]
        mod tests { fn f() { tokio::spawn(async {}); } }
    ";
    for rule in RULES.iter().filter(|rule| rule.within.is_empty()) {
        let tree = crate_for(rule, fine);
        assert_eq!(rule.findings(&tree, &Mentions::of(&tree)), [], "{}", rule.says);
    }
}
