//! Notices changed content of a configuration file, and of the files that it names.
//!
//! Events of the file system say when to read ([`super::directories`]). Only changed content counts, so touching a file is no change.
//! Changes without events (network mounts, an exhausted inotify, systems other than Linux) are found by polling. Knows no meaning of
//! the configuration.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::time::{Instant, timeout};

use super::directories::Directories;
use super::interpolate;
use super::load::base_of;
use super::problem::Report;
use super::validate::OVERRIDES_BYTES_MAX;
use super::yaml::{self, Node};

/// The time without an event after which a change counts as complete: an editor writes in several steps.
const QUIET: Duration = Duration::from_millis(100);
/// The longest wait for a change to be complete.
const SETTLE_MAX: Duration = Duration::from_secs(1);
/// The polling interval beside file system events, which may miss changes.
const POLL_WATCHED: Duration = Duration::from_secs(30);
/// The polling interval without file system events.
const POLL_UNWATCHED: Duration = Duration::from_secs(2);

/// Follows one configuration file and the files that it names.
pub struct Watch {
    path: PathBuf,
    /// The directories of the files; `None` if they cannot be watched. Changes are then found by polling.
    directories: Option<Directories>,
    /// The names of the files that were read, without their directories.
    names: HashSet<OsString>,
    content: [u8; 32],
    /// True if an event was received, and the files have not been read since.
    pending: bool,
}

impl Watch {
    /// Begins to watch. Call it before the file is loaded, so that no change is missed.
    pub fn new(path: &Path) -> Watch {
        let directories = Directories::new()
            .inspect_err(|error| {
                tracing::warn!(%error, "cannot watch files; polling every {POLL_UNWATCHED:?} instead");
            })
            .ok();
        let names = HashSet::new();
        let mut watch = Watch { path: path.to_owned(), directories, names, content: [0; 32], pending: false };
        // The second reading sees changes made before the directories were watched.
        watch.follow(&Snapshot::take(path).files);
        watch.content = Snapshot::take(path).content;
        watch
    }

    /// Waits until the content has changed since the last call. Cancelling it loses no change.
    pub async fn changed(&mut self) {
        loop {
            if !self.pending {
                self.woken().await;
                self.pending = true;
            }
            self.settled().await;
            let path = self.path.clone();
            let snapshot = tokio::task::spawn_blocking(move || Snapshot::take(&path)).await;
            self.pending = false;
            let Ok(snapshot) = snapshot else { continue };
            self.follow(&snapshot.files);
            if snapshot.content != self.content {
                self.content = snapshot.content;
                return;
            }
        }
    }

    /// Waits for an event, or for the next poll.
    async fn woken(&mut self) {
        let poll = if self.directories.is_some() { POLL_WATCHED } else { POLL_UNWATCHED };
        let _ = timeout(poll, self.events_come()).await;
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
        if let Some(directories) = &mut self.directories {
            directories.watch(&files.iter().flat_map(|file| directories_of(file)).collect());
        }
    }
}

/// Returns the directory of a path, and the directory of the file that its symlinks lead to.
fn directories_of(file: &Path) -> Vec<PathBuf> {
    let parent = |path: &Path| match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let real = file.canonicalize().ok();
    std::iter::once(parent(file)).chain(real.as_deref().map(parent)).collect()
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
            && let Some(tree) = yaml::parse(text, &mut Report::new(path))
        {
            files.extend(interpolate::files(&tree, base_of(path)));
            files.extend(named_files(&tree).map(|name| base_of(path).join(name)));
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

/// Reads a file, up to the size of the largest; `None` if it does not exist or cannot be read.
fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(OVERRIDES_BYTES_MAX + 1).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Returns the certificates, keys and overrides that a configuration names.
fn named_files(tree: &Node) -> impl Iterator<Item = &str> {
    let server = tree.get("server").and_then(|server| server.get("tls"));
    let redis = tree.get("store").and_then(|store| store.get("redis")?.get("tls"));
    let routes = tree.get("routes").map(Node::items).unwrap_or_default();
    let upstreams = routes.iter().filter_map(|route| route.get("upstream"));
    let limiters = tree.get("limiters").map(Node::entries).unwrap_or_default();
    let overrides = limiters.iter().filter_map(|limiter| limiter.value.get("overrides")?.get("file")?.text());
    let certificates = server.into_iter().chain(redis).chain(upstreams).flat_map(|owner| {
        ["ca", "cert", "key", "client_ca"].into_iter().filter_map(|key| owner.get(key)?.text())
    });
    certificates.chain(overrides)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::future::Future;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    async fn noticed(watch: &mut Watch) {
        timeout(PATIENCE, watch.changed()).await.expect("the change was not noticed");
    }

    /// Checks that no change is noticed for some time, and then runs `then`.
    async fn unnoticed<F: Future<Output = ()>>(watch: &mut Watch, time: Duration, then: F) {
        assert!(timeout(time, watch.changed()).await.is_err(), "noticed a change without changed content");
        then.await;
    }

    fn directory() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("weir.yaml");
        fs::write(&path, "a: 1\n").unwrap();
        (directory, path)
    }

    #[tokio::test]
    async fn a_write_is_noticed() {
        let (_directory, path) = directory();
        let mut watch = Watch::new(&path);
        fs::write(&path, "a: 2\n").unwrap();
        noticed(&mut watch).await;
        fs::write(&path, "a: 3\n").unwrap();
        noticed(&mut watch).await;
    }

    #[tokio::test]
    #[cfg(target_os = "linux")]
    async fn only_what_can_be_a_new_configuration_wakes_weir() {
        use std::io::Write;

        let (directory, path) = directory();
        let mut watch = Watch::new(&path);
        let woken = async |watch: &mut Watch| timeout(QUIET / 2, watch.events_come()).await.is_ok();
        // A log that stays open, as weir's own does.
        let mut log = File::create(directory.path().join("weir.log")).unwrap();
        assert!(
            woken(&mut watch).await,
            "a new name may be that of a link on the way to a file that was read"
        );
        for _ in 0..100 {
            log.write_all(b"a line\n").unwrap();
        }
        log.sync_all().unwrap();
        read(&path).unwrap();
        assert!(!woken(&mut watch).await);
        drop(log);
        assert!(!woken(&mut watch).await, "no other file that is closed");
        let mut file = File::create(&path).unwrap();
        file.write_all(b"a: 2\n").unwrap();
        assert!(!woken(&mut watch).await, "the file is not complete yet");
        drop(file);
        assert!(woken(&mut watch).await);
    }

    #[tokio::test]
    async fn a_directory_that_was_replaced_is_followed() {
        let (directory, _) = directory();
        let inner = directory.path().join("inner");
        let path = inner.join("weir.yaml");
        fs::create_dir(&inner).unwrap();
        fs::write(&path, "a: 1\n").unwrap();
        fs::write(directory.path().join("weir.yaml"), format!("a: ${{file:{}}}\n", path.display())).unwrap();
        let mut watch = Watch::new(&directory.path().join("weir.yaml"));
        for content in ["a: 2\n", "a: 3\n"] {
            fs::rename(&inner, directory.path().join(content.trim())).unwrap();
            fs::create_dir(&inner).unwrap();
            fs::write(&path, content).unwrap();
            noticed(&mut watch).await;
        }
        fs::write(&path, "a: 4\n").unwrap();
        noticed(&mut watch).await;
    }

    #[tokio::test]
    async fn a_rename_over_the_file_is_noticed() {
        let (directory, path) = directory();
        let mut watch = Watch::new(&path);
        for content in ["a: 2\n", "a: 3\n"] {
            let new = directory.path().join("new");
            fs::write(&new, content).unwrap();
            fs::rename(&new, &path).unwrap();
            noticed(&mut watch).await;
        }
    }

    #[tokio::test]
    async fn equal_content_is_no_change() {
        let (_directory, path) = directory();
        let mut watch = Watch::new(&path);
        fs::write(&path, "a: 1\n").unwrap();
        unnoticed(&mut watch, 5 * QUIET, async {}).await;
        fs::write(&path, "a: 2\n").unwrap();
        noticed(&mut watch).await;
    }

    #[tokio::test]
    async fn files_named_in_the_configuration_are_followed() {
        let (directory, path) = directory();
        let secrets = directory.path().join("secrets");
        fs::create_dir(&secrets).unwrap();
        fs::write(&path, "a: ${file:secrets/token}\n").unwrap();
        let mut watch = Watch::new(&path);
        fs::write(secrets.join("token"), "one").unwrap();
        noticed(&mut watch).await;
        fs::write(secrets.join("token"), "two").unwrap();
        noticed(&mut watch).await;
    }

    #[tokio::test]
    #[cfg(unix)]
    async fn the_symlink_swap_of_a_config_map_is_noticed() {
        use std::os::unix::fs::symlink;

        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("..1")).unwrap();
        fs::write(at("..1").join("weir.yaml"), "a: 1\n").unwrap();
        symlink("..1", at("..data")).unwrap();
        symlink("..data/weir.yaml", at("weir.yaml")).unwrap();
        let mut watch = Watch::new(&at("weir.yaml"));
        for generation in 2..4 {
            let new = format!("..{generation}");
            fs::create_dir(at(&new)).unwrap();
            fs::write(at(&new).join("weir.yaml"), format!("a: {generation}\n")).unwrap();
            symlink(&new, at("..data_tmp")).unwrap();
            fs::rename(at("..data_tmp"), at("..data")).unwrap();
            fs::remove_dir_all(at(&format!("..{}", generation - 1))).unwrap();
            noticed(&mut watch).await;
        }
    }

    #[tokio::test]
    async fn cancelling_loses_no_change() {
        let (_directory, path) = directory();
        let mut watch = Watch::new(&path);
        fs::write(&path, "a: 2\n").unwrap();
        let deadline = Instant::now() + PATIENCE;
        // Far less than the time to settle: each try is cancelled in the middle.
        while timeout(QUIET / 20, watch.changed()).await.is_err() {
            if watch.pending {
                break;
            }
            assert!(Instant::now() < deadline);
        }
        noticed(&mut watch).await;
    }

    #[tokio::test]
    async fn without_a_watcher_changes_are_found_by_polling() {
        let (_directory, path) = directory();
        let mut watch = Watch::new(&path);
        watch.directories = None;
        fs::write(&path, "a: 2\n").unwrap();
        noticed(&mut watch).await;
    }
}
