//! Notices changed content of a configuration file, and of the files that it names.
//!
//! Events of the file system say when to read ([`super::directories`]). Only changed content counts, so touching a file is no change.
//! Changes without events (network mounts, an exhausted inotify, systems other than Linux) are found by polling. Knows no meaning of
//! the configuration.

use std::collections::HashSet;
use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep, timeout};

use super::directories::Directories;
use super::interpolate::{self, Sources};
use super::load::base_of;
use super::named_files::named_files;
use super::problem::Report;
use super::validate::OVERRIDES_BYTES_MAX;
use super::yaml;

/// The time without an event after which a change counts as complete: an editor writes in several steps.
const QUIET: Duration = Duration::from_millis(100);
/// The longest wait for a change to be complete.
const SETTLE_MAX: Duration = Duration::from_secs(1);
/// The time after which content that no event told of counts as complete if it is the same: somebody may be writing it.
const QUIET_POLLED: Duration = Duration::from_secs(1);
/// The polling interval beside file system events, which may miss changes.
const POLL_WATCHED: Duration = Duration::from_secs(30);
/// The polling interval without file system events.
const POLL_UNWATCHED: Duration = Duration::from_secs(2);
/// How often content is read that is never the same twice: other changes would not be noticed for as long.
const READINGS_MAX: u32 = 20;
/// The most links that are followed from a path to its file, as many as Linux follows.
const LINKS_MAX: usize = 40;

/// Follows one configuration file and the files that it names.
pub struct Watch {
    path: PathBuf,
    /// The directories of the files; `None` if they cannot be watched. Changes are then found by polling.
    directories: Option<Directories>,
    /// The names of the files that were read, without their directories.
    names: HashSet<OsString>,
    content: [u8; 32],
    /// The reason the watch woke, if the files have not been read since.
    pending: Option<Woken>,
    /// The reading under way. It goes on when a wait is cancelled, and nobody can end it: a mount may hang.
    reading: Option<JoinHandle<Snapshot>>,
    /// Files that cannot be watched, not yet logged: logging begins after the first reading.
    troubles: Vec<Trouble>,
    /// The directories that cannot be watched.
    unwatched: HashSet<PathBuf>,
}

/// The reason a watch woke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    Event,
    Poll,
}

/// Something that cannot be watched: a directory, or nothing at all can.
#[derive(Debug)]
struct Trouble {
    directory: Option<PathBuf>,
    error: io::Error,
}

impl Watch {
    /// Begins to watch. Call it before the file is loaded, so that no change is missed.
    pub fn new(path: &Path) -> Watch {
        let (directories, troubles) = match Directories::new() {
            Ok(directories) => (Some(directories), Vec::new()),
            Err(error) => (None, vec![Trouble { directory: None, error }]),
        };
        let mut watch = Watch {
            path: path.to_owned(),
            directories,
            names: HashSet::new(),
            content: [0; 32],
            pending: None,
            reading: None,
            troubles,
            unwatched: HashSet::new(),
        };
        // The second reading sees changes made before the directories were watched.
        watch.follow(&Snapshot::take(path).files);
        watch.content = Snapshot::take(path).content;
        watch
    }

    /// Waits until the content has changed since the last call. Cancelling it loses no change.
    pub async fn changed(&mut self) {
        self.tell_troubles();
        loop {
            let woken = match self.pending {
                Some(woken) => woken,
                None => self.woken().await,
            };
            self.pending = Some(woken);
            // It may have begun before the last event.
            if self.reading.is_some() {
                self.snapshot().await;
            }
            self.settled().await;
            let snapshot = self.complete(woken).await;
            self.pending = None;
            let Some(snapshot) = snapshot else { continue };
            self.follow(&snapshot.files);
            self.tell_troubles();
            if snapshot.content != self.content {
                self.content = snapshot.content;
                return;
            }
        }
    }

    /// Waits for an event, or for the next poll.
    async fn woken(&mut self) -> Woken {
        let poll = if self.directories.is_some() { POLL_WATCHED } else { POLL_UNWATCHED };
        match timeout(poll, self.events_come()).await {
            Ok(()) => Woken::Event,
            Err(_) => Woken::Poll,
        }
    }

    /// Reads the files. Content that has changed is read until it is the same twice: a file that has been created is written afterwards,
    /// and a poll may come in the middle. The beginning of a configuration may be a valid one.
    async fn complete(&mut self, woken: Woken) -> Option<Snapshot> {
        let quiet = if woken == Woken::Event { QUIET } else { QUIET_POLLED };
        let (mut before, mut readings) = (self.content, 0);
        loop {
            let snapshot = self.snapshot().await?;
            readings += 1;
            let is_complete = snapshot.content == before || snapshot.content == self.content;
            if is_complete || readings == READINGS_MAX {
                return Some(snapshot);
            }
            before = snapshot.content;
            sleep(quiet).await;
        }
    }

    /// Ends the reading under way, or else a new one. `None` if it has panicked.
    async fn snapshot(&mut self) -> Option<Snapshot> {
        let path = self.path.clone();
        let reading = self.reading.get_or_insert_with(|| spawn_blocking(move || Snapshot::take(&path)));
        let snapshot = reading.await.ok();
        self.reading = None;
        snapshot
    }

    /// Logs what cannot be watched.
    fn tell_troubles(&mut self) {
        for Trouble { directory, error } in self.troubles.drain(..) {
            if let Some(directory) = directory {
                let directory = directory.display();
                tracing::warn!(%directory, %error, "cannot watch a directory; reading its files every {POLL_WATCHED:?}");
            } else {
                tracing::warn!(%error, "cannot watch files; polling every {POLL_UNWATCHED:?} instead");
            }
        }
    }

    /// Waits until the change is complete.
    async fn settled(&mut self) {
        if self.directories.is_none() {
            return;
        }
        let end = Instant::now() + SETTLE_MAX;
        while Instant::now() < end && timeout(QUIET, self.events_come()).await.is_ok() {}
    }

    /// Waits for events that may mean changed content, and takes all that have come. Cancelling it loses none.
    async fn events_come(&mut self) {
        if let Some(directories) = &self.directories
            && directories.events_come(|name| self.names.contains(name)).await.is_ok()
        {
            return;
        }
        // Nothing can be watched any more.
        self.directories = None;
        std::future::pending::<()>().await;
    }

    /// Watches the directories of these files, and stops watching others.
    fn follow(&mut self, files: &[PathBuf]) {
        let real = files.iter().filter_map(|file| file.canonicalize().ok());
        let paths = files.iter().cloned().chain(real);
        self.names = paths.filter_map(|path| path.file_name().map(ToOwned::to_owned)).collect();
        let Some(directories) = &mut self.directories else { return };
        let failed = directories.watch(&files.iter().flat_map(|file| directories_of(file)).collect());
        // One that is not there is a matter of the configuration, which tells it.
        let failed = failed.into_iter().filter(|(_, error)| {
            !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        });
        let before = std::mem::take(&mut self.unwatched);
        for (directory, error) in failed {
            if !before.contains(&directory) {
                self.troubles.push(Trouble { directory: Some(directory.clone()), error });
            }
            self.unwatched.insert(directory);
        }
    }
}

/// Returns the directory of a path, and those of each link on the way to the file, and of the file.
fn directories_of(file: &Path) -> Vec<PathBuf> {
    let parent = |path: &Path| match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let mut directories = vec![parent(file)];
    let mut path = file.to_owned();
    for _ in 0..LINKS_MAX {
        let Some(link) = path.ancestors().filter(|ancestor| ancestor.is_symlink()).last() else { break };
        let (Ok(target), Ok(rest)) = (fs::read_link(link), path.strip_prefix(link)) else { break };
        directories.push(parent(link));
        let target = parent(link).join(target);
        path = if rest.as_os_str().is_empty() { target } else { target.join(rest) };
    }
    directories.push(parent(&path));
    directories
}

/// The content of all files at one moment.
struct Snapshot {
    /// A digest over all files.
    content: [u8; 32],
    /// The configuration itself and the files that it names.
    files: Vec<PathBuf>,
}

impl Snapshot {
    fn take(path: &Path) -> Snapshot {
        let mut hasher = Sha256::new();
        let mut files = vec![path.to_owned()];
        let bytes = read(path);
        if let Some(text) = bytes.as_deref().and_then(|bytes| std::str::from_utf8(bytes).ok())
            && let Some(mut tree) = yaml::parse(text, &mut Report::new(path))
        {
            let base = base_of(path);
            files.extend(interpolate::files(&tree, base));
            let sources = Sources { variable: &|name| env::var(name), file: &value, base };
            interpolate::interpolate(&mut tree, sources, &mut Report::new(path));
            files.extend(named_files(&tree).map(|file| base.join(file.name)));
        }
        add(&mut hasher, bytes.as_deref());
        for file in &files[1..] {
            add(&mut hasher, read(file).as_deref());
        }
        Snapshot { content: hasher.finalize().into(), files }
    }
}

/// Adds a file to the digest, with its length, so that content cannot shift between files.
fn add(hasher: &mut Sha256, bytes: Option<&[u8]>) {
    let length = bytes.map_or(u64::MAX, |bytes| bytes.len() as u64);
    hasher.update(length.to_be_bytes());
    hasher.update(bytes.unwrap_or_default());
}

/// Returns whether a watch may read a path. A pipe is left to who loads it: it can be read once, and opening it may wait for a writer.
fn is_readable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file())
}

/// Reads a file of which a value is a part, as who loads it does.
fn value(path: &Path) -> Result<String, String> {
    if is_readable(path) { interpolate::read(path) } else { Err("no file that a watch reads".to_owned()) }
}

/// Reads a file, up to the size of the largest; `None` if it does not exist or cannot be read.
fn read(path: &Path) -> Option<Vec<u8>> {
    if !is_readable(path) {
        return None;
    }
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(OVERRIDES_BYTES_MAX + 1).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests;
