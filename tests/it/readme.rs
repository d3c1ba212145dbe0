//! What the README names is there: its configurations are those of the directory and pass the check, its names exist. That its
//! commands run is in `walkthrough`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use regex::Regex;
use tempfile::TempDir;

use crate::support::lane;
use crate::support::weir::run;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// A fenced block.
struct Block {
    /// What stands behind its fence, `sh run`.
    info: String,
    text: String,
}

fn readme() -> String {
    fs::read_to_string(Path::new(ROOT).join("README.md")).expect("read README.md")
}

/// Every fenced block, in order.
fn blocks() -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut is_inside = false;
    for line in readme().lines() {
        match line.strip_prefix("```") {
            Some(info) if !is_inside => {
                is_inside = true;
                blocks.push(Block { info: info.to_owned(), text: String::new() });
            }
            Some(_) => is_inside = false,
            None if is_inside => {
                let block = blocks.last_mut().expect("a block is open");
                block.text.push_str(line);
                block.text.push('\n');
            }
            None => {}
        }
    }
    assert!(!is_inside, "a fence is not closed");
    blocks
}

fn texts<'a>(blocks: &'a [Block], info: &str) -> Vec<&'a str> {
    let found: Vec<&str> =
        blocks.iter().filter(|block| block.info == info).map(|block| block.text.as_str()).collect();
    assert!(!found.is_empty(), "no block {info:?}");
    found
}

#[tokio::test]
async fn its_configurations_pass_the_check_and_are_those_of_the_directory() {
    let _lane = lane::shared().await;
    let directory = TempDir::new().unwrap();
    let examples: Vec<String> = fs::read_dir(Path::new(ROOT).join("config"))
        .unwrap()
        .map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect();
    for text in texts(&blocks(), "yaml") {
        let path = directory.path().join("weir.yaml");
        fs::write(&path, text).unwrap();
        run(&["check", "--config", path.to_str().unwrap()]).await.assert_code(0);
        assert!(examples.iter().any(|example| example.ends_with(text)), "not in config/:\n{text}");
    }
}

#[tokio::test]
async fn its_commands_files_and_links_exist() {
    let _lane = lane::shared().await;
    let readme = readme();
    let shells: String = blocks()
        .iter()
        .filter(|block| block.info.starts_with("sh"))
        .map(|block| block.text.as_str())
        .collect();
    // At the beginning of a line, behind variables; and in a span of code.
    let commands =
        [named(&shells, r"(?m)^(?:[A-Z_]+=\S+ )*weir ([a-z]+)\b"), named(&readme, r"`weir ([a-z]+)\b")];
    for command in commands.iter().flatten() {
        let help = run(&["help", command]).await;
        assert_eq!(help.code, Some(0), "weir {command}: {}", help.output());
    }
    let paths = [
        named(&readme, r"\b((?:config|scripts|docs|deploy|src)/[\w.-]*)"),
        named(&readme, r"\]\(([^)#:]+)\)"),
    ];
    for path in paths.iter().flatten() {
        assert!(Path::new(ROOT).join(path).exists(), "{path} does not exist");
    }
}

/// Every name that the pattern's group finds, once.
fn named(text: &str, pattern: &str) -> BTreeSet<String> {
    let pattern = Regex::new(pattern).unwrap();
    let names: BTreeSet<String> = pattern.captures_iter(text).map(|found| found[1].to_owned()).collect();
    assert!(!names.is_empty(), "nothing matches {pattern}");
    names
}
