//! Runs all stages on a file: text, tree, `${...}`, shape, meaning.

use std::env::VarError;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::changes::{Change, changes};
use super::decode::decode;
use super::effective::{effective, with_files};
use super::file;
use super::interpolate::{Sources, interpolate};
use super::masked::{masked, secrets, secrets_of_text, shown};
use super::model::Config;
use super::named_files::{NamedFile, Owner, named_files};
use super::problem::{Problem, Report};
use super::validate::{At, Content, validate};
use super::yaml;

/// The largest configuration file. Thousands of routes fit into it.
pub(crate) const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// The beginning of keys at the top of a file that weir does not read.
pub(crate) const EXTENSION: &str = "x-";

/// A valid configuration file.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The configuration as weir uses it.
    pub config: Arc<Config>,
    /// The configuration as written, as JSON with its secrets masked, each with a digest.
    masked: Arc<Value>,
    /// The certificates and private keys that it names.
    named: Arc<[Named]>,
    /// Valid parts that are hardly meant, in the order of the file.
    pub warnings: Arc<[Problem]>,
}

/// A certificate or private key that a configuration names.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Named {
    /// The path of the key that names it.
    path: String,
    /// Its name, as it may be shown.
    name: String,
    /// The digest of its content.
    content: [u8; 32],
}

impl Loaded {
    /// Returns the configuration as written, as JSON with its secrets masked.
    pub fn masked(&self) -> Value {
        shown(&self.masked)
    }

    /// Returns the configuration as it is used, with every default, as JSON with its secrets masked.
    pub fn effective(&self) -> Value {
        shown(&self.marked())
    }

    /// Returns what differs from an earlier configuration, secrets masked.
    pub fn changes_since(&self, earlier: &Loaded) -> Vec<Change> {
        let mut found = Vec::new();
        if self.masked != earlier.masked || self.config.limiters != earlier.config.limiters {
            let before = with_files(earlier.marked(), &earlier.config, &self.config);
            let after = with_files(self.marked(), &self.config, &earlier.config);
            found = changes(&before, &after);
        }
        // A file that has been replaced under its name.
        for named in self.named.iter() {
            let is_known = |other: &&Named| (&other.path, &other.name) == (&named.path, &named.name);
            if earlier.named.iter().find(is_known).is_some_and(|before| before.content != named.content) {
                let [old, new] = [0, 1].map(|_| Some(named.name.clone()));
                found.push(Change { path: named.path.clone(), old, new });
            }
        }
        found
    }

    /// Returns another configuration in the place of the file's, for the demo.
    #[must_use]
    pub fn with_config(self, config: Config) -> Loaded {
        Loaded { config: Arc::new(config), ..self }
    }

    fn marked(&self) -> Value {
        effective(&self.config, Value::clone(&self.masked))
    }
}

/// The problems of a file that cannot be used, in the order of the file. Never empty.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct LoadError {
    /// The problems, each with its place.
    pub problems: Vec<Problem>,
}

impl LoadError {
    /// Returns a problem of a whole valid file, found when it was put into force.
    pub fn whole(path: &Path, message: impl Into<String>) -> LoadError {
        let mut report = Report::new(path);
        report.add_whole(message);
        LoadError { problems: report.into_problems() }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(formatter, "{separator}{problem}")?;
        }
        Ok(())
    }
}

/// Reads and checks a configuration file. `${...}` is replaced from this process's environment.
///
/// # Errors
/// Every problem at once, each with its place.
pub fn load(path: &Path) -> Result<Loaded, LoadError> {
    load_with(path, &|name| std::env::var(name))
}

/// Reads and checks a configuration file, with `variable` as the environment.
///
/// # Errors
/// Every problem at once, each with its place.
pub fn load_with(
    path: &Path,
    variable: &dyn Fn(&str) -> Result<String, VarError>,
) -> Result<Loaded, LoadError> {
    load_bytes(path, File::open(path), Sources::new(variable, base_of(path)))
}

/// Reads and checks a configuration from a source without a path, such as standard input. `name` stands for it in problems; relative
/// paths begin at the working directory.
///
/// # Errors
/// Every problem at once, each with its place.
pub fn load_from(name: &str, source: impl Read) -> Result<Loaded, LoadError> {
    let sources = Sources::new(&|name| std::env::var(name), Path::new(""));
    load_bytes(Path::new(name), Ok(source), sources)
}

fn load_bytes(path: &Path, source: io::Result<impl Read>, sources: Sources<'_>) -> Result<Loaded, LoadError> {
    let mut report = Report::new(path);
    let loaded = read(source, &mut report).and_then(|bytes| evaluate(&bytes, sources, &mut report));
    finish(loaded, report)
}

/// Checks a text as the content of a file. `${...}` is replaced from this process's environment.
///
/// # Errors
/// Every problem at once, each with its place.
pub fn parse(path: &Path, text: &str) -> Result<Loaded, LoadError> {
    parse_with(path, text, &|name| std::env::var(name))
}

/// Checks a text as the content of a file, with `variable` as the environment.
///
/// # Errors
/// Every problem at once, each with its place.
pub fn parse_with(
    path: &Path,
    text: &str,
    variable: &dyn Fn(&str) -> Result<String, VarError>,
) -> Result<Loaded, LoadError> {
    load_bytes(path, Ok(text.as_bytes()), Sources::new(variable, base_of(path)))
}

fn finish(loaded: Option<Loaded>, report: Report) -> Result<Loaded, LoadError> {
    match loaded {
        Some(loaded) if report.is_empty() => Ok(loaded),
        _ => Err(LoadError { problems: report.into_problems() }),
    }
}

/// Returns the directory at which relative paths of a file begin.
pub(crate) fn base_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

fn read(source: io::Result<impl Read>, report: &mut Report) -> Option<Vec<u8>> {
    match file::read(source, FILE_BYTES_MAX) {
        Ok(None) => report.add_whole(format!("the file is larger than {FILE_BYTES_MAX} bytes")),
        Ok(bytes) => return bytes,
        Err(error) => report.add_whole(format!("cannot read the file: {error}")),
    }
    None
}

fn evaluate(bytes: &[u8], sources: Sources<'_>, report: &mut Report) -> Option<Loaded> {
    let text = file::text(bytes, report)?;
    let tree = yaml::parse(text, report);
    if tree.is_none() {
        report.hide(secrets_of_text(text));
        if report.is_empty() {
            report.add_whole("the file is empty; it needs at least `routes`");
        }
    }
    let mut tree = tree?;
    remove_extensions(&mut tree);
    report.hide(secrets(&tree));
    let mut struck = interpolate(&mut tree, sources, report);
    let file = decode(&tree, &mut struck, report)?;
    let root = At::root(&tree, &struck);
    let mut content = Content::of_file(bytes);
    let config = validate(&file, root, sources.base, &mut content, report)?;
    let warnings = report.take_warnings().into();
    let named = named(&tree, &config, |name| content.of_pem(&sources.base.join(name))).into();
    Some(Loaded { config: Arc::new(config), masked: Arc::new(masked(&tree)), named, warnings })
}

/// Returns the certificates and private keys that a valid configuration names.
fn named(tree: &yaml::Node, config: &Config, content: impl Fn(&str) -> Option<[u8; 32]>) -> Vec<Named> {
    let certificates = named_files(tree).filter(|file| file.owner != Owner::Overrides);
    let with_content = |file: NamedFile<'_>| {
        let content = content(file.name)?;
        let path = file.path(|place| config.routes.get(place).map(|route| route.name.to_string()));
        let name = if file.is_hidden { "***" } else { file.name }.to_owned();
        Some(Named { path, name, content })
    };
    certificates.filter_map(with_content).collect()
}

/// Removes the keys at the top that begin with `x-`. They hold anchors, which have been copied to where they are used.
fn remove_extensions(tree: &mut yaml::Node) {
    if let yaml::Value::Mapping(entries) = &mut tree.value {
        entries.retain(|entry| !entry.key.starts_with(EXTENSION));
    }
}
