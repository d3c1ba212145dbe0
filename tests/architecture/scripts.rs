//! The contract at the head of each Lua script.

use std::fs;

use regex::Regex;

/// Returns the first group of each match, in order.
fn groups(text: &str, pattern: &str) -> Vec<String> {
    let pattern = Regex::new(pattern).unwrap();
    pattern.captures_iter(text).map(|found| found[1].to_owned()).collect()
}

#[test]
fn the_header_of_a_script_lists_exactly_its_arguments() {
    let mut scripts = 0;
    for entry in fs::read_dir(crate::root().join("lua/scripts")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let (header, body) = text.split_at(text.find("\n\n").unwrap());
        assert!(header.starts_with(&format!("-- {name}: ")), "{name} does not describe itself");
        for part in ["KEYS[1", "ARGV[1]", "Returns", "Atomic"] {
            assert!(header.contains(&format!("\n-- {part}")), "{name} does not name its {part}");
        }
        let described = groups(header, r"(?m)^--   (\w+) ");
        let names = groups(body, r"(?s)local ([\w,\s]+) =\s+cmsgpack\.unpack\(ARGV\[1\]\)").pop();
        let names = names.unwrap_or_else(|| panic!("{name} does not unpack its argument"));
        let taken: Vec<&str> = names.split(',').map(str::trim).collect();
        assert_eq!(described, taken, "the argument in the header of {name}, and in its body");
        assert_eq!(body.matches("ARGV").count(), 1, "{name} takes one argument, once");
        scripts += 1;
    }
    assert!(scripts >= 8, "{scripts} scripts");
}
