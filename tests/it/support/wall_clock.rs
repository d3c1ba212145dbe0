//! Another wall clock for one process: a small C library, loaded before libc by `LD_PRELOAD`, that shifts
//! `CLOCK_REALTIME` by an environment variable. The monotonic clock stays as it is.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tempfile::NamedTempFile;

const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long fixed_ms;
static volatile long *stepped_ms = &fixed_ms;

__attribute__((constructor)) static void read_ahead(void) {
    const char *text = getenv("WALL_CLOCK_AHEAD_MS"), *file = getenv("WALL_CLOCK_FILE");
    fixed_ms = text ? atol(text) : 0;
    int opened = file ? open(file, O_RDONLY) : -1;
    if (opened < 0) return;
    void *mapped = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, opened, 0);
    if (mapped != MAP_FAILED) stepped_ms = mapped;
    close(opened);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int result = (int)syscall(SYS_clock_gettime, clock, at);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        long ahead_ms = *stepped_ms;
        long nanos = at->tv_nsec + ahead_ms % 1000 * 1000000L;
        at->tv_sec += ahead_ms / 1000 + nanos / 1000000000L;
        at->tv_nsec = nanos % 1000000000L;
        if (at->tv_nsec < 0) {
            at->tv_nsec += 1000000000L;
            at->tv_sec -= 1;
        }
    }
    return result;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    (void)zone;
    struct timespec now;
    int result = clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return result;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"#;

/// Returns the environment of a process whose wall clock is ahead by this much. Needs the C compiler that Rust links
/// with.
pub(crate) fn ahead(ahead: Duration) -> [(&'static str, String); 2] {
    [
        ("LD_PRELOAD", library().to_string_lossy().into_owned()),
        ("WALL_CLOCK_AHEAD_MS", ahead.as_millis().to_string()),
    ]
}

/// A wall clock that the test moves while its process runs. Clones share one setting.
#[derive(Clone, Debug)]
pub(crate) struct SteppedClock(Arc<NamedTempFile>);

impl SteppedClock {
    pub(crate) fn new() -> SteppedClock {
        let clock = SteppedClock(Arc::new(NamedTempFile::new().expect("a temporary file")));
        clock.set_ahead_ms(0);
        clock
    }

    /// Sets the clock ahead by this much from now on; a negative number puts it behind.
    pub(crate) fn set_ahead_ms(&self, ahead_ms: i64) {
        self.0.as_file().write_all_at(&ahead_ms.to_ne_bytes(), 0).expect("write the clock");
    }

    /// Returns the environment of a process with this clock.
    pub(crate) fn environment(&self) -> [(&'static str, String); 2] {
        [
            ("LD_PRELOAD", library().to_string_lossy().into_owned()),
            ("WALL_CLOCK_FILE", self.0.path().to_string_lossy().into_owned()),
        ]
    }
}

/// Returns the library, compiled once in each run of the tests, in cargo's directory for tests.
fn library() -> &'static PathBuf {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let (source, draft) = (directory.join("wall_clock.c"), directory.join("wall_clock.so.draft"));
        let library = directory.join("wall_clock.so");
        fs::write(&source, SOURCE).expect("write the source");
        let status = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([&draft, &source])
            .status()
            .expect("start the C compiler");
        assert!(status.success(), "cc: {status}");
        fs::rename(draft, &library).expect("put the library in place");
        library
    })
}
