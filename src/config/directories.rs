//! Watches directories for what can be a new configuration: a name that is created or renamed into them, a file that is closed after
//! writing.
//!
//! Directories are watched, not files: a rename, or the symlink swap of a Kubernetes ConfigMap, puts another file under the same name.
//! Nothing else that happens there, such as one more line of a log, wakes weir or costs it anything. Reads no file.

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) use inotify::Directories;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) use unsupported::Directories;

#[cfg(any(target_os = "linux", target_os = "android"))]
mod inotify {
    use std::collections::{HashMap, HashSet};
    use std::ffi::OsStr;
    use std::io;
    use std::mem::MaybeUninit;
    use std::os::unix::ffi::OsStrExt;
    use std::path::PathBuf;

    use rustix::fs::inotify::{self, CreateFlags, Event, ReadFlags, Reader, WatchFlags};
    use rustix::io::Errno;
    use tokio::net::unix::pipe::Receiver;

    /// The bytes of events that are read at once: at least one, with the longest name.
    const EVENTS_BYTES: usize = 4096;

    /// Directories that are watched.
    pub(in crate::config) struct Directories {
        /// The events. They are read as those of a pipe are, for which tokio has a type.
        inotify: Receiver,
        watches: HashMap<PathBuf, i32>,
    }

    impl Directories {
        /// Begins with no directory.
        ///
        /// # Errors
        /// If the system has no more watches to give.
        pub(in crate::config) fn new() -> io::Result<Directories> {
            let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
            Ok(Directories { inotify: Receiver::from_owned_fd_unchecked(inotify)?, watches: HashMap::new() })
        }

        /// Watches these directories and no others. A directory that was replaced since the last call is watched anew. Returns those that
        /// cannot be watched.
        pub(in crate::config) fn watch(&mut self, wanted: &HashSet<PathBuf>) -> Vec<(PathBuf, io::Error)> {
            let events = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::CLOSE_WRITE;
            let (mut watches, mut failed) = (HashMap::new(), Vec::new());
            for directory in wanted {
                match inotify::add_watch(&self.inotify, directory, events | WatchFlags::ONLYDIR) {
                    Ok(watch) => {
                        watches.insert(directory.clone(), watch);
                    }
                    Err(error) => failed.push((directory.clone(), error.into())),
                }
            }
            // A directory has one watch, whatever the number of its paths.
            let kept: HashSet<i32> = watches.values().copied().collect();
            for gone in self.watches.values().filter(|watch| !kept.contains(watch)) {
                // It fails if the directory is gone, and then it is not watched either.
                let _ = inotify::remove_watch(&self.inotify, *gone);
            }
            self.watches = watches;
            failed
        }

        /// Waits for events that may mean changed content of a file with a name that `is_read`, and takes all that have come.
        /// Cancelling it loses none.
        pub(in crate::config) async fn events_come(
            &self,
            is_read: impl Fn(&OsStr) -> bool,
        ) -> io::Result<()> {
            loop {
                self.inotify.readable().await?;
                match self.inotify.try_io(|| take(&self.inotify, &is_read)) {
                    Ok(()) => return Ok(()),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }

    /// Takes all events. Fails with `WouldBlock` if none may mean changed content.
    fn take(inotify: &Receiver, is_read: &impl Fn(&OsStr) -> bool) -> io::Result<()> {
        let mut bytes = [MaybeUninit::uninit(); EVENTS_BYTES];
        let mut events = Reader::new(inotify, &mut bytes);
        let mut matters = false;
        loop {
            match events.next() {
                Ok(event) => matters |= may_change_content(&event, is_read),
                Err(Errno::AGAIN) if matters => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Returns whether an event may mean changed content. A new name may be that of a link on the way to a file that was read. A file
    /// that was written matters if it was read.
    fn may_change_content(event: &Event<'_>, is_read: &impl Fn(&OsStr) -> bool) -> bool {
        let new = ReadFlags::CREATE | ReadFlags::MOVED_TO | ReadFlags::QUEUE_OVERFLOW;
        let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
        event.events().intersects(new)
            || (event.events().contains(ReadFlags::CLOSE_WRITE) && name.is_some_and(is_read))
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod unsupported {
    use std::collections::HashSet;
    use std::convert::Infallible;
    use std::ffi::OsStr;
    use std::io;
    use std::path::PathBuf;

    /// No directory: this system tells no process that a file was closed after writing.
    pub(in crate::config) struct Directories(Infallible);

    impl Directories {
        pub(in crate::config) fn new() -> io::Result<Directories> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(in crate::config) fn watch(&mut self, _: &HashSet<PathBuf>) -> Vec<(PathBuf, io::Error)> {
            match self.0 {}
        }

        pub(in crate::config) async fn events_come(&self, _: impl Fn(&OsStr) -> bool) -> io::Result<()> {
            match self.0 {}
        }
    }
}
