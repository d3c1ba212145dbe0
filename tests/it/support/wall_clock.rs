//! Another wall clock for one process: a small C library, put before libc by `LD_PRELOAD`, that moves what
//! `CLOCK_REALTIME` shows by an environment variable. The monotonic clock stays as it is.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long ahead_ms;

__attribute__((constructor)) static void read_ahead(void) {
    const char *text = getenv("WALL_CLOCK_AHEAD_MS");
    ahead_ms = text ? atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int result = (int)syscall(SYS_clock_gettime, clock, at);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        long nanos = at->tv_nsec + ahead_ms % 1000 * 1000000L;
        at->tv_sec += ahead_ms / 1000 + nanos / 1000000000L;
        at->tv_nsec = nanos % 1000000000L;
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

/// The environment of a process whose wall clock is ahead by so much. Needs the C compiler that Rust links with.
pub(crate) fn ahead(ahead: Duration) -> [(&'static str, String); 2] {
    [
        ("LD_PRELOAD", library().to_string_lossy().into_owned()),
        ("WALL_CLOCK_AHEAD_MS", ahead.as_millis().to_string()),
    ]
}

/// Compiled once in each run of the tests, beside what else cargo keeps for them.
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
