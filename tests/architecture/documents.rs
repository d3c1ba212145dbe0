//! The files that docs/architecture.md names.

use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

/// Collects every file and folder below a folder.
fn collect(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, into);
        }
        into.push(path);
    }
}

#[test]
fn every_file_named_in_the_architecture_document_exists() {
    let root = crate::root();
    let mut paths = Vec::new();
    for folder in ["src", "lua", "tests", "config"] {
        paths.push(root.join(folder));
        collect(&root.join(folder), &mut paths);
    }
    let document = fs::read_to_string(root.join("docs/architecture.md")).unwrap();
    let named = Regex::new(r"`([a-z0-9_/]+(?:\.rs|\.lua|\.html|\.yaml|/))`").unwrap();
    let named: Vec<&str> =
        named.captures_iter(&document).filter_map(|found| found.get(1)).map(|found| found.as_str()).collect();
    assert!(named.len() > 100, "{} files", named.len());
    let missing: Vec<&&str> = named
        .iter()
        .filter(|name| !paths.iter().any(|path| path.ends_with(name.trim_end_matches('/'))))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}
