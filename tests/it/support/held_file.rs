//! A file whose readings the test answers one by one, so that weir can be held in the middle of a reload.
//!
//! Each reading gets a named pipe of its own: the next one lies at the path before the last one ends.

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe::{OpenOptions, Sender};

use super::poll_for;

/// A file that has no content until the test gives it one.
pub(crate) struct HeldFile {
    directory: TempDir,
    path: PathBuf,
}

impl HeldFile {
    pub(crate) fn new() -> HeldFile {
        let directory = TempDir::with_prefix("weir-test-held").expect("a temporary directory");
        let path = directory.path().join("held.pem");
        let held = HeldFile { directory, path };
        held.renew();
        held
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until weir reads the file, and holds that reading until it is answered.
    pub(crate) async fn reading(&self) -> Reading {
        let pipe = poll_for("a reading of the held file", async || {
            // Fails while nobody has opened the other end.
            OpenOptions::new().open_sender(&self.path).ok()
        })
        .await;
        self.renew();
        Reading(pipe)
    }

    fn renew(&self) {
        let next = self.directory.path().join("next");
        let made = std::process::Command::new("mkfifo").arg(&next).status().expect("run mkfifo");
        assert!(made.success(), "mkfifo ended with {made}");
        std::fs::rename(next, &self.path).expect("put the pipe in place");
    }
}

/// One reading that has begun.
pub(crate) struct Reading(Sender);

impl Reading {
    /// Ends the reading: the file has this content.
    pub(crate) async fn answer(mut self, content: &str) {
        self.0.write_all(content.as_bytes()).await.expect("weir reads");
    }
}
