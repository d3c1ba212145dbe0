//! Replaces references in values: `${VAR}`, `${VAR:-default}`, `${VAR:?why}`, `${file:/path}`.
//!
//! Works on the parsed tree, so no replacement can change the structure of the file, and never on keys. Replacements
//! are not searched again. `$${` is a literal `${`. Messages contain no value of a variable or file.

use std::collections::{HashMap, HashSet};
use std::env::VarError;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::problem::{Report, index_path, key_path, quoted};
use super::yaml::{Node, Origin, Scalar, Value};

/// The most bytes of a `${file:...}`, enough for a secret or an address.
const FILE_MAX: u64 = 64 * 1024;
/// The most bytes of a value after replacement.
const VALUE_MAX: usize = 256 * 1024;

/// The most characters of a `${VAR:?why}` that a message repeats.
const REASON_MAX: usize = 200;

/// The sources of replacements.
#[derive(Clone, Copy)]
pub(crate) struct Sources<'a> {
    /// Reads a variable of the environment.
    pub(crate) variable: &'a dyn Fn(&str) -> Result<String, VarError>,
    /// Reads a file as text, or says what is wrong with it.
    pub(crate) file: &'a dyn Fn(&Path) -> Result<String, String>,
    /// The directory at which relative paths begin.
    pub(crate) base: &'a Path,
}

impl<'a> Sources<'a> {
    /// Returns sources with these variables and all files.
    pub(crate) fn new(variable: &'a dyn Fn(&str) -> Result<String, VarError>, base: &'a Path) -> Sources<'a> {
        Sources { variable, file: &read, base }
    }
}

/// The files that have been read. Each is read once, because a pipe cannot be read again.
type Files = HashMap<PathBuf, Result<String, String>>;

/// A piece of a scalar.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Segment<'a> {
    Literal(&'a str),
    Variable { name: &'a str, absent: WhenUnset<'a> },
    File(&'a str),
}

/// The treatment of a variable that is not set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhenUnset<'a> {
    /// `${VAR}`: a problem. An empty value is a value.
    Problem,
    /// `${VAR:-default}`: this value is taken, also in place of an empty one.
    Default(&'a str),
    /// `${VAR:?why}`: a problem that says why, also for an empty value.
    Why(&'a str),
}

/// Replaces every reference in the tree. Returns the ids of nodes with an unusable reference, each reported.
pub(crate) fn interpolate(root: &mut Node, sources: Sources<'_>, report: &mut Report) -> HashSet<u32> {
    let (mut failed, mut files) = (HashSet::new(), Files::new());
    walk(root, "", &mut |node, path| {
        let Value::Scalar(scalar) = &mut node.value else { return };
        if !scalar.text.contains("${") {
            return;
        }
        match resolve(scalar, sources, &mut files) {
            Ok(replaced) => *scalar = replaced,
            // The copies of an alias share an id and are reported once.
            Err(message) if failed.insert(node.id) => report.add(node.mark, path, message),
            Err(_) => {}
        }
    });
    failed
}

/// Returns the files named by `${file:...}` in a tree that is not interpolated yet.
pub(crate) fn files(root: &Node, base: &Path) -> Vec<PathBuf> {
    let segments = root.text().and_then(|text| segments(text).ok()).unwrap_or_default();
    let own = segments.into_iter().filter_map(|segment| match segment {
        Segment::File(path) => Some(base.join(path)),
        Segment::Literal(_) | Segment::Variable { .. } => None,
    });
    own.chain(root.children().flat_map(|child| files(child, base))).collect()
}

/// Splits a text into segments, or returns the fault of a reference.
pub(crate) fn segments(text: &str) -> Result<Vec<Segment<'_>>, String> {
    let mut segments = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        if rest[..at].ends_with('$') {
            segments.push(Segment::Literal(&rest[..at - 1]));
            segments.push(Segment::Literal("${"));
            rest = &rest[at + 2..];
            continue;
        }
        segments.push(Segment::Literal(&rest[..at]));
        let Some((reference, after)) = rest[at + 2..].split_once('}') else {
            return Err("`${` without its `}`; write `$${` for a literal `${`".to_owned());
        };
        segments.push(reference_of(reference)?);
        rest = after;
    }
    segments.push(Segment::Literal(rest));
    segments.retain(|segment| *segment != Segment::Literal(""));
    Ok(segments)
}

fn reference_of(reference: &str) -> Result<Segment<'_>, String> {
    if let Some(path) = reference.strip_prefix("file:") {
        return match path {
            "" => Err("`${file:...}` names no file".to_owned()),
            path => Ok(Segment::File(path)),
        };
    }
    let length = reference.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count();
    let (name, rest) = reference.split_at(length);
    let absent = match (rest.strip_prefix(":-"), rest.strip_prefix(":?")) {
        (Some(default), _) => Some(WhenUnset::Default(default)),
        (_, Some(why)) => Some(WhenUnset::Why(why)),
        (None, None) => rest.is_empty().then_some(WhenUnset::Problem),
    };
    match (name.bytes().next(), absent) {
        (Some(first), Some(absent)) if !first.is_ascii_digit() => Ok(Segment::Variable { name, absent }),
        _ => {
            Err("`${...}` needs the name of a variable, `${NAME:-default}`, `${NAME:?why it is needed}` or \
                  `${file:/path}`"
                .to_owned())
        }
    }
}

/// Replaces the references in a scalar.
fn resolve(scalar: &Scalar, sources: Sources<'_>, files: &mut Files) -> Result<Scalar, String> {
    let mut resolved = Scalar { text: String::new(), origin: scalar.origin };
    for segment in segments(&scalar.text)? {
        match segment {
            Segment::Literal(literal) => resolved.text.push_str(literal),
            Segment::Variable { name, absent } => {
                resolved.origin = Origin::Interpolated;
                resolved.text.push_str(&variable(name, absent, sources)?);
            }
            Segment::File(path) => {
                resolved.origin = Origin::Interpolated;
                let path = sources.base.join(path);
                let text = files.entry(path).or_insert_with_key(|path| (sources.file)(path));
                resolved.text.push_str(text.as_ref().map_err(Clone::clone)?);
            }
        }
        if resolved.text.len() > VALUE_MAX {
            return Err(format!("the value is longer than {VALUE_MAX} bytes"));
        }
    }
    Ok(resolved)
}

/// Returns the value of a variable, by the rules of shells.
fn variable(name: &str, absent: WhenUnset<'_>, sources: Sources<'_>) -> Result<String, String> {
    match ((sources.variable)(name), absent) {
        (Ok(value), WhenUnset::Problem) => Ok(value),
        (Ok(value), _) if !value.is_empty() => Ok(value),
        (Ok(_) | Err(VarError::NotPresent), WhenUnset::Default(default)) => Ok(default.to_owned()),
        (Ok(_), WhenUnset::Why(why)) => {
            Err(format!("the variable {} is empty: {}", quoted(name), reason(why)))
        }
        (Err(VarError::NotPresent), WhenUnset::Why(why)) => {
            Err(format!("the environment has no variable {}: {}", quoted(name), reason(why)))
        }
        (Err(VarError::NotPresent), WhenUnset::Problem) => Err(format!(
            "the environment has no variable {}; set it, or give a default with `${{NAME:-default}}`",
            quoted(name)
        )),
        (Err(VarError::NotUnicode(_)), _) => Err(format!("the variable {} is not UTF-8", quoted(name))),
    }
}

/// Returns the file's own words for the need of a variable, on one line.
fn reason(why: &str) -> String {
    let why: String =
        why.trim().chars().take(REASON_MAX).filter(|character| !character.is_control()).collect();
    if why.is_empty() { "it is needed".to_owned() } else { why }
}

/// Reads a file as text, without its last newline.
///
/// # Errors
/// The fault of the file. A pipe that has been read before has nothing left, and must not pass for an empty value.
pub(crate) fn read(path: &Path) -> Result<String, String> {
    let shown = quoted(&path.to_string_lossy());
    let mut text = String::new();
    let mut read = || -> io::Result<bool> {
        let mut file = File::open(path)?;
        let is_pipe = file.metadata()?.file_type().is_fifo();
        file.by_ref().take(FILE_MAX + 1).read_to_string(&mut text)?;
        Ok(is_pipe)
    };
    let is_pipe = read().map_err(|error| format!("cannot read the file {shown}: {error}"))?;
    if is_pipe && text.is_empty() {
        return Err(format!(
            "the pipe {shown} is empty: nothing was written to it, or it has been read before, as by the start; a reload needs a file"
        ));
    }
    if text.len() as u64 > FILE_MAX {
        return Err(format!("the file {shown} is larger than {FILE_MAX} bytes"));
    }
    let end =
        text.strip_suffix('\n').map_or(text.len(), |less| less.strip_suffix('\r').unwrap_or(less).len());
    text.truncate(end);
    Ok(text)
}

/// Calls `visit` for each node with its path, from the top down.
fn walk(node: &mut Node, path: &str, visit: &mut dyn FnMut(&mut Node, &str)) {
    visit(node, path);
    match &mut node.value {
        Value::Scalar(_) => {}
        Value::List(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                walk(item, &index_path(path, index), visit);
            }
        }
        Value::Mapping(entries) => {
            for entry in entries {
                walk(&mut entry.value, &key_path(path, &entry.key), visit);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::yaml;

    fn environment(name: &str) -> Result<String, VarError> {
        match name {
            "TOKEN" => Ok("s3cret".to_owned()),
            "EMPTY" => Ok(String::new()),
            "NESTED" => Ok("${TOKEN}".to_owned()),
            _ => Err(VarError::NotPresent),
        }
    }

    fn apply(text: &str, base: &Path) -> (Node, Vec<String>) {
        let mut report = Report::new(Path::new("f"));
        let mut root = yaml::parse(text, &mut report).unwrap();
        interpolate(&mut root, Sources::new(&environment, base), &mut report);
        (root, report.into_problems().iter().map(ToString::to_string).collect())
    }

    fn value_of(scalar: &str) -> String {
        let (root, problems) = apply(&format!("a: \"{scalar}\"\n"), Path::new("/"));
        assert_eq!(problems, [""; 0]);
        root.get("a").unwrap().text().unwrap().to_owned()
    }

    #[test]
    fn references_are_replaced() {
        assert_eq!(value_of("Bearer ${TOKEN}!"), "Bearer s3cret!");
        assert_eq!(value_of("${NONE:-x}${EMPTY:-y}${TOKEN:-z}"), "xys3cret");
        assert_eq!(value_of("${NONE:-}"), "");
        assert_eq!(value_of("${EMPTY}"), "");
        assert_eq!(value_of("$${TOKEN} $TOKEN $$"), "${TOKEN} $TOKEN $$");
        assert_eq!(value_of("$$${TOKEN}"), "$${TOKEN}");
    }

    #[test]
    fn a_needed_variable_is_told_with_the_reason() {
        assert_eq!(value_of("${TOKEN:?none}${TOKEN:?}"), "s3crets3cret");
        assert_eq!(value_of("${NONE:-:?x}"), ":?x");
        let problem = |reference: &str| {
            let (_, problems) = apply(&format!("a: '{reference}'\n"), Path::new("/"));
            problems.join("\n")
        };
        assert_eq!(
            problem("${NONE:?from the settings page - ask ops}"),
            "f:1:4: a: the environment has no variable \"NONE\": from the settings page - ask ops"
        );
        assert_eq!(problem("${NONE:?a :- b}"), "f:1:4: a: the environment has no variable \"NONE\": a :- b");
        assert_eq!(problem("${EMPTY:?why}"), "f:1:4: a: the variable \"EMPTY\" is empty: why");
        assert_eq!(problem("${NONE:?}"), "f:1:4: a: the environment has no variable \"NONE\": it is needed");
        for wrong in ["${NONE:x}", "${:?x}", "${NONE-x}", "${ NONE}"] {
            assert!(problem(wrong).contains("needs the name of a variable"), "{wrong}");
        }
    }

    #[test]
    fn a_replacement_is_not_searched_again() {
        assert_eq!(value_of("${NESTED}"), "${TOKEN}");
    }

    #[test]
    fn a_file_loses_only_its_last_newline() {
        let directory = tempfile::tempdir().unwrap();
        for (content, expected) in [("a\n\n", "a\n"), ("a\r\n", "a"), ("a", "a"), ("", "")] {
            std::fs::write(directory.path().join("secret"), content).unwrap();
            let (root, problems) = apply("a: ${file:secret}\n", directory.path());
            assert_eq!(problems, [""; 0]);
            assert_eq!(root.get("a").unwrap().text(), Some(expected));
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_pipe_is_read_once_and_an_empty_one_is_a_problem() {
        use std::io::Write;
        use std::os::fd::AsRawFd;

        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"s3cret\n").unwrap();
        drop(writer);
        let path = format!("/dev/fd/{}", reader.as_raw_fd());
        let text = format!("a: &a \"${{file:{path}}}\"\nb: *a\nc: \"Bearer ${{file:{path}}}\"\n");
        let (root, problems) = apply(&text, Path::new("/"));
        assert_eq!(problems, [""; 0]);
        let texts = ["a", "b", "c"].map(|key| root.get(key).and_then(Node::text).unwrap_or_default());
        assert_eq!(texts, ["s3cret", "s3cret", "Bearer s3cret"]);
        let (_, problems) = apply(&text, Path::new("/"));
        let expected = format!("a: the pipe {path:?} is empty");
        assert!(problems.len() == 2 && problems[0].contains(&expected), "{problems:?}");
        assert!(apply("a: ${file:/dev/null}\n", Path::new("/")).1.is_empty(), "no pipe");
    }

    #[test]
    fn every_missing_reference_is_reported_with_its_place() {
        let (_, problems) = apply(
            "a: ${NONE}\nb:\n  - ${TOKEN}\n  - ${file:/does/not/exist}\nc: ${\nd: ${9}\ne: ${file:}\n",
            Path::new("/"),
        );
        assert_eq!(problems.len(), 5, "{problems:?}");
        assert!(
            problems[0].starts_with("f:1:4: a: the environment has no variable \"NONE\""),
            "{problems:?}"
        );
        assert!(problems[1].starts_with("f:4:5: b[1]: cannot read the file"), "{problems:?}");
        assert!(problems[2].starts_with("f:5:4: c: `${` without its `}`"), "{problems:?}");
        assert!(problems.iter().all(|problem| !problem.contains("s3cret")));
    }

    #[test]
    fn keys_are_never_touched() {
        let (root, _) = apply("\"${TOKEN}\": 1\n", Path::new("/"));
        assert!(root.entry("${TOKEN}").is_some());
    }

    #[test]
    fn files_named_by_references_are_found() {
        let mut report = Report::new(Path::new("f"));
        let root = yaml::parse("a: [\"${file:x}\", {b: \"y ${file:/z}\"}]\n", &mut report).unwrap();
        assert_eq!(files(&root, Path::new("/base")), [PathBuf::from("/base/x"), PathBuf::from("/z")]);
    }
}
