//! The contract at the head of each Lua script.

use std::collections::BTreeSet;
use std::fs;

use regex::Regex;

/// Returns the numbers that the pattern's group finds in a text.
fn numbers(text: &str, pattern: &str) -> BTreeSet<u32> {
    let pattern = Regex::new(pattern).unwrap();
    pattern.captures_iter(text).map(|found| found[1].parse().unwrap()).collect()
}

#[test]
fn the_header_of_a_script_lists_exactly_its_arguments() {
    const SHARED: [&str; 2] = ["calendar.lua", "epoch.lua"];
    let mut scripts = 0;
    for entry in fs::read_dir(crate::root().join("lua")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if SHARED.contains(&name) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let body = text.find("\n\n").map(|end| text.split_at(end).1).unwrap();
        let header: String =
            text.lines().take_while(|line| line.starts_with("--")).flat_map(|line| [line, "\n"]).collect();
        assert!(header.starts_with(&format!("-- {name}: ")), "{name} does not describe itself");
        for part in ["KEYS[1", "Returns", "Atomic"] {
            assert!(header.contains(&format!("\n-- {part}")), "{name} does not name its {part}");
        }
        let said = numbers(&header, r"(?m)^-- ARGV\[(\d+)\]");
        let rest = numbers(&header, r"(?m)^-- ARGV\[(\d+)\.\.\]");
        let taken = numbers(body, r"ARGV\[(\d+)\]");
        assert_eq!(said, taken, "the arguments in the header of {name}, and in its body");
        let count = u32::try_from(said.len()).unwrap();
        assert_eq!(said, (1..=count).collect(), "{name} counts its arguments");
        assert_eq!(
            rest.first().is_some(),
            body.contains("#ARGV") || body.contains("ARGV[argument"),
            "the rest of {name}"
        );
        assert!(rest.iter().all(|first| *first == count + 1), "{name} says where the rest begins");
        scripts += 1;
    }
    assert!(scripts >= 8, "{scripts} scripts");
}
