//! `overrides` of a limiter: the limits of some values of its key, in place or in a file of their own.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sha2::Digest;

use super::check::Check;
use super::clients::warn_of_strangers;
use super::limit::{limits, misfit};
use super::place::{At, Given, key};
use super::share::is_less_than_a_permit;
use crate::config::decode::decode_as;
use crate::config::file;
use crate::config::masked::secret_keys;
use crate::config::model::KeyPart;
use crate::config::problem::{Report, quoted};
use crate::config::schema::forms::Named;
use crate::config::schema::{self, Limits};
use crate::config::units::{Share, show_share};
use crate::config::yaml;
use crate::limiter::Partition;
use crate::limiter::model::Bound;
use crate::limiter::model::limit::Limit;

/// The largest file of overrides. [`VALUES_MAX`] values with long names fit into it.
pub(crate) const FILE_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// The most values of a key with limits of their own. Each takes about a kilobyte.
const VALUES_MAX: usize = 50_000;

/// The limits of one value of a key, with the partition of its requests.
pub(super) type Override = (Partition, Arc<str>, Vec<Limit>);

/// The limiter that overrides must fit, as far as it is valid itself.
pub(super) struct Rules<'a> {
    pub(super) key: Option<&'a [KeyPart]>,
    pub(super) guard: Option<Duration>,
    /// The parts of each window that its classes may use; none without a share.
    pub(super) bounds: &'a [Bound],
    /// The names of `clients`, if there are any.
    pub(super) clients: Option<&'a HashSet<&'a str>>,
}

impl Rules<'_> {
    /// Returns the only part of the limiter's key.
    fn part(&self) -> Option<&KeyPart> {
        self.key.and_then(<[KeyPart]>::first)
    }

    /// Returns why an override cannot have a limit, if it cannot.
    fn fault(&self, limit: &Limit) -> Option<String> {
        if let Some(fault) = self.guard.and_then(|guard| misfit(limit, guard)) {
            return Some(format!("{fault}; set a shorter `guard` for the limiter"));
        }
        let bound = self.bounds.iter().find(|bound| is_less_than_a_permit(limit, bound.ppm))?;
        let (part, label) = (show_share(Share { ppm: bound.ppm }), quoted(&limit.label));
        Some(format!("the {} of `share` leaves {part} of {label}, which is less than one permit", bound.name))
    }
}

/// Checks the overrides of a limiter. Without them there are none; `None` is a problem.
pub(super) fn overrides(
    check: &mut Check<'_>,
    limiter: &Given<'_, schema::Limiter>,
    rules: &Rules<'_>,
) -> Option<Vec<Override>> {
    let Some(given) = key!(limiter.overrides).get() else { return Some(Vec::new()) };
    match rules.key {
        // A faulty one, which has been reported.
        None | Some([_]) => {}
        Some([]) if key!(limiter.key).at.is_given() => {}
        Some([]) => {
            return check.refuse_key(&given.at, "only with `key`, by whose value the limits differ");
        }
        Some(_) => {
            let message = "only with a `key` of one part: the values of several are no name of a caller";
            return check.refuse_key(&given.at, message);
        }
    }
    match &given.value.file {
        None => named(check, &Given::new(&given.value.named, given.at.clone()), rules),
        Some(_) if given.at.names().len() > 1 => {
            let message = "is the path of a file with all overrides, so it stands alone; for a value of the key \
                           write a list of limits";
            check.refuse(&given.at.key("file"), message)
        }
        Some(path) => from_file(check, &Given::new(path, given.at.key("file")), rules),
    }
}

/// Reads the overrides in a file. Problems have their places there.
fn from_file(check: &mut Check<'_>, given: &Given<'_, String>, rules: &Rules<'_>) -> Option<Vec<Override>> {
    let path = check.base.join(given.value);
    let fault = match file::read(File::open(&path), FILE_BYTES_MAX) {
        Ok(Some(bytes)) => return parsed(check, &path, &bytes, rules),
        Ok(None) => format!("is larger than {FILE_BYTES_MAX} bytes"),
        Err(error) => format!("cannot be read: {error}"),
    };
    // A path that came out of a reference may be a secret in the wrong place.
    let shown = if given.at.is_interpolated() { String::new() } else { format!(" {}", path.display()) };
    check.refuse(&given.at, format!("the file{shown} {fault}"))
}

fn parsed(check: &mut Check<'_>, path: &Path, bytes: &[u8], rules: &Rules<'_>) -> Option<Vec<Override>> {
    check.content.whole.update((bytes.len() as u64).to_be_bytes());
    check.content.whole.update(bytes);
    let mut report = Report::new(path);
    let overrides = decoded(check, &mut report, bytes, rules);
    check.report.include(report);
    overrides
}

fn decoded(
    check: &mut Check<'_>,
    report: &mut Report,
    bytes: &[u8],
    rules: &Rules<'_>,
) -> Option<Vec<Override>> {
    let tree = yaml::parse(file::text(bytes, report)?, report);
    if tree.is_none() && report.is_empty() {
        report.add_whole("the file is empty; write {} where no value has limits of its own");
    }
    let tree = tree?;
    if rules.part().is_none_or(KeyPart::is_credential) {
        report.hide(secret_keys(&tree, String::new()));
    }
    let mut struck = HashSet::new();
    let examples: fn(&str, char) -> _ = |_, open| schema::example("limits", open);
    let overrides: Named<Limits> = decode_as(&tree, &mut struck, examples, report)?;
    let mut check = Check { report, base: check.base, content: check.content };
    let overrides = named(&mut check, &Given::new(&overrides, At::root(&tree, &struck)), rules);
    overrides.filter(|_| struck.is_empty())
}

fn named(
    check: &mut Check<'_>,
    given: &Given<'_, Named<Limits>>,
    rules: &Rules<'_>,
) -> Option<Vec<Override>> {
    let count = given.at.names().len();
    if count > VALUES_MAX {
        return check.refuse(&given.at, format!("has {count} values; up to {VALUES_MAX} are possible"));
    }
    let mut first_of: HashMap<Partition, &str> = HashMap::with_capacity(count);
    let mut overrides = Vec::with_capacity(count);
    let mut named: Vec<(&str, At<'_>)> = Vec::new();
    let mut is_sound = true;
    for (value, own) in given.entries() {
        let checked = one(check, value, &own, rules);
        is_sound &= checked.is_some();
        let Some(checked) = checked else { continue };
        if let Some(first) = first_of.insert(checked.0, value) {
            check.problem_of_key(&own.at, format!("is the same value of the key as {}", quoted(first)));
            is_sound = false;
        }
        named.push((value, own.at));
        overrides.push(checked);
    }
    let clients = rules.clients.filter(|_| rules.part() == Some(&KeyPart::Client));
    warn_of_strangers(check, clients, named.into_iter());
    is_sound.then_some(overrides)
}

fn one(check: &mut Check<'_>, value: &str, own: &Given<'_, Limits>, rules: &Rules<'_>) -> Option<Override> {
    let read = rules.part().map(|part| (part, read_as(part, value)));
    if let Some((_, Err(fault))) = read {
        check.problem_of_key(&own.at, fault);
    }
    let limits = limits(check, own)?;
    let mut fits = true;
    for (index, limit) in limits.iter().enumerate() {
        if let Some(fault) = rules.fault(limit) {
            check.problem(&own.at.index(index), fault);
            fits = false;
        }
    }
    let (part, read) = read?;
    let partition = Partition::of([Some(read.ok()?.as_bytes())]);
    // A possible credential is shown nowhere.
    let shown = if part.is_credential() { "***" } else { value };
    fits.then(|| (partition, shown.into(), limits))
}

/// Returns a value of a key as it is read in requests, or its fault. That of a `map` is the name of a family already.
fn read_as<'a>(part: &'a KeyPart, value: &'a str) -> Result<Cow<'a, str>, &'static str> {
    if let KeyPart::Mapped(..) = part { Ok(value.into()) } else { part.read_as(value) }
}
