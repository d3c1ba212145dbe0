//! The bounded buffer between the code that logs and standard error, and the thread that empties it.
//!
//! Nothing that logs ever waits for the log's reader: lines that do not fit are dropped and counted. Lines are written in batches, so
//! a line costs a copy and no system call. Knows no format.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use prometheus::IntCounter;

/// The most bytes that wait for their turn while a batch, no larger, is being written: those of a quarter of a second at the rate of a
/// busy replica of eight cores.
const BYTES_MAX: usize = 4 * 1024 * 1024;
/// The part of the buffer that only warnings and errors may use.
const RESERVED_FOR_WARNINGS: usize = BYTES_MAX / 8;
/// The part of the buffer that access lines may not use.
const RESERVED_FOR_EVENTS: usize = BYTES_MAX / 4;
/// The time for which a batch collects, unless it is large before.
const BATCH_TIME: Duration = Duration::from_millis(5);
/// The size of a batch that does not wait for more.
const BATCH_BYTES: usize = 64 * 1024;
/// The memory that is kept from one batch to the next.
const KEPT_BYTES: usize = 2 * BATCH_BYTES;

/// A kind of line, the first to be dropped first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineKind {
    /// A line of the access log.
    Access,
    /// An event below the level of warnings.
    Event,
    /// A warning or an error.
    Warning,
}

impl LineKind {
    fn bytes_max(self) -> usize {
        match self {
            LineKind::Access => BYTES_MAX - RESERVED_FOR_EVENTS,
            LineKind::Event => BYTES_MAX - RESERVED_FOR_WARNINGS,
            LineKind::Warning => BYTES_MAX,
        }
    }
}

/// The lines that wait to be written.
#[derive(Default)]
pub(super) struct LogBuffer {
    state: Mutex<State>,
    /// Wakes the thread that writes.
    filled: Condvar,
    /// Wakes those who wait until all is written.
    written: Condvar,
}

#[derive(Default)]
struct State {
    lines: Vec<u8>,
    /// True while a batch is being written.
    writing: bool,
    pace: Pace,
    /// The dropped lines that no log line has named yet.
    dropped: u64,
    /// The metric of dropped lines, once there are metrics.
    counter: Option<IntCounter>,
}

/// The pace of the thread that writes.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// Lines collect to batches.
    #[default]
    Collects,
    /// The next batch is to be written at once.
    Hurries,
    /// Everything is to be written at once, and then the thread ends.
    Ends,
}

impl State {
    fn drop_lines(&mut self, count: u64) {
        self.dropped += count;
        if let Some(counter) = &self.counter {
            counter.inc_by(count);
        }
    }
}

impl LogBuffer {
    /// Creates the buffer, and starts the thread that writes its lines.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn start(output: impl Write + Send + 'static) -> io::Result<LogThread> {
        let buffer = Arc::new(LogBuffer::default());
        let own = Arc::clone(&buffer);
        let thread = thread::Builder::new().name("log".into()).spawn(move || own.write_to(output))?;
        Ok(LogThread { buffer, _thread: thread })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line, or drops it if there is no room.
    pub(super) fn add(&self, kind: LineKind, line: &[u8]) {
        let mut state = self.lock();
        let before = state.lines.len();
        if before + line.len() > kind.bytes_max() {
            state.drop_lines(1);
            return;
        }
        state.lines.extend_from_slice(line);
        let begins_batch = before == 0 && !state.writing;
        let fills_batch = before < BATCH_BYTES && state.lines.len() >= BATCH_BYTES;
        drop(state);
        if begins_batch || fills_batch {
            self.filled.notify_one();
        }
    }

    /// Counts dropped lines by this metric, too, those included that were dropped before.
    pub(super) fn count_by(&self, counter: IntCounter) {
        let mut state = self.lock();
        counter.inc_by(state.dropped);
        state.counter = Some(counter);
    }

    /// Waits until all lines are written, but no longer than this.
    pub(super) fn flush(&self, time_max: Duration) {
        let end = Instant::now() + time_max;
        let mut state = self.lock();
        if state.pace == Pace::Collects {
            state.pace = Pace::Hurries;
        }
        self.filled.notify_one();
        while !state.lines.is_empty() || state.writing {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.written.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns whether lines were dropped and nothing has been written since.
    pub(super) fn is_stalled(&self) -> bool {
        self.lock().dropped > 0
    }

    fn write_to(&self, mut output: impl Write) {
        let mut batch = Vec::new();
        let mut torn = false;
        while self.take(&mut batch) {
            let mends = torn;
            if mends {
                batch.insert(0, b'\n');
            }
            // A broken pipe or a full disk loses these lines; later ones may be written again.
            let written = write_all(&mut output, &batch);
            let (done, left) = batch.split_at_checked(written).unwrap_or((&batch, &[]));
            torn = done.last().map_or(torn, |last| *last != b'\n');
            // The end of a torn line is no line itself.
            let mending_lost = usize::from(mends && written == 0);
            let lost = left.iter().filter(|byte| **byte == b'\n').count() - mending_lost;
            let dropped = self.finish(&mut batch, lost);
            if dropped > 0 {
                tracing::warn!(lines = dropped, "log lines were dropped, because nothing took them in time");
            }
        }
    }

    /// Waits for a batch. Returns false at the end.
    fn take(&self, batch: &mut Vec<u8>) -> bool {
        let mut state = self.lock();
        while state.lines.is_empty() {
            if state.pace == Pace::Ends {
                return false;
            }
            state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let end = Instant::now() + BATCH_TIME;
        while state.lines.len() < BATCH_BYTES && state.pace == Pace::Collects {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.filled.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        std::mem::swap(&mut state.lines, batch);
        state.writing = true;
        true
    }

    /// Ends a batch of which some lines were lost. Returns the number of lines that were dropped, when lines are written again.
    fn finish(&self, batch: &mut Vec<u8>, lost: usize) -> u64 {
        let mut state = self.lock();
        state.writing = false;
        state.drop_lines(lost as u64);
        batch.clear();
        batch.shrink_to(KEPT_BYTES);
        if state.lines.is_empty() {
            if state.pace == Pace::Hurries {
                state.pace = Pace::Collects;
            }
            state.lines.shrink_to(KEPT_BYTES);
        }
        self.written.notify_all();
        if lost == 0 { std::mem::take(&mut state.dropped) } else { 0 }
    }
}

/// Writes these bytes, and returns how many were taken before an error.
fn write_all(output: &mut impl Write, bytes: &[u8]) -> usize {
    let mut written = 0;
    while let Some(left) = bytes.get(written..).filter(|left| !left.is_empty()) {
        match output.write(left) {
            Ok(0) => break,
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Another process that shares the pipe has switched it to that mode.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(BATCH_TIME),
            Err(_) => break,
        }
    }
    written
}

/// The buffer with its thread, which ends when this is dropped and everything is written.
pub(super) struct LogThread {
    /// The buffer.
    pub(super) buffer: Arc<LogBuffer>,
    _thread: thread::JoinHandle<()>,
}

impl Drop for LogThread {
    fn drop(&mut self) {
        self.buffer.lock().pace = Pace::Ends;
        self.buffer.filled.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);
    const LINE: &[u8; 1024] = &[b'\n'; 1024];

    /// An output that hands each write to the test, and waits until it is taken.
    struct Reader(SyncSender<Vec<u8>>);

    impl Write for Reader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let sent = self.0.send(bytes.to_vec());
            sent.map(|()| bytes.len()).map_err(|_| io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn start() -> (LogThread, Receiver<Vec<u8>>) {
        let (sender, receiver) = sync_channel(0);
        (LogBuffer::start(Reader(sender)).unwrap(), receiver)
    }

    fn counted(buffer: &LogBuffer) -> IntCounter {
        let counter = IntCounter::new("dropped", "dropped lines").unwrap();
        buffer.count_by(counter.clone());
        counter
    }

    #[test]
    fn lines_are_written_in_order_and_together() {
        let (log, reader) = start();
        for line in ["first\n", "second\n", "third\n"] {
            log.buffer.add(LineKind::Event, line.as_bytes());
        }
        let mut read = Vec::new();
        while read.len() < 19 {
            read.extend(reader.recv_timeout(PATIENCE).unwrap());
        }
        assert_eq!(read, b"first\nsecond\nthird\n");
        log.buffer.flush(PATIENCE);
    }

    #[test]
    fn without_a_reader_lines_are_dropped_access_lines_first_and_warnings_last() {
        let (log, reader) = start();
        let dropped = counted(&log.buffer);
        log.buffer.add(LineKind::Warning, LINE);
        // From now on no batch is taken any more.
        while !log.buffer.lock().writing {
            thread::yield_now();
        }
        for kind in [LineKind::Access, LineKind::Event, LineKind::Warning] {
            let before = dropped.get();
            for _ in 0..2 * BYTES_MAX / LINE.len() {
                log.buffer.add(kind, LINE);
            }
            assert!(dropped.get() > before, "{kind:?}");
            assert!(log.buffer.lock().lines.len() > kind.bytes_max() - LINE.len());
        }
        let began = Instant::now();
        log.buffer.flush(Duration::from_millis(50));
        assert!(began.elapsed() < PATIENCE, "a flush is bounded");
        drop(reader);
    }

    #[test]
    fn a_flush_waits_for_everything() {
        let (log, reader) = start();
        let buffer = Arc::clone(&log.buffer);
        let reading = thread::spawn(move || reader.iter().map(|batch| batch.len()).sum::<usize>());
        for _ in 0..1000 {
            buffer.add(LineKind::Access, LINE);
        }
        buffer.flush(PATIENCE);
        assert!(buffer.lock().lines.is_empty());
        drop(log);
        assert_eq!(reading.join().unwrap(), 1000 * LINE.len());
    }

    /// An output that is full after some bytes, until it is emptied.
    #[derive(Clone, Default)]
    struct Disk(Arc<Mutex<(Vec<u8>, usize)>>);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut disk = self.0.lock().unwrap();
            let count = bytes.len().min(disk.1);
            if count == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            disk.0.extend_from_slice(&bytes[..count]);
            disk.1 -= count;
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_loses_only_what_did_not_fit_and_later_lines_are_whole() {
        let disk = Disk::default();
        disk.0.lock().unwrap().1 = 8;
        let log = LogBuffer::start(disk.clone()).unwrap();
        let dropped = counted(&log.buffer);
        log.buffer.add(LineKind::Event, b"first\nsecond\nthird\n");
        log.buffer.flush(PATIENCE);
        assert_eq!(dropped.get(), 2);
        for (line, lost) in [(b"third\n", 3), (b"still\n", 4)] {
            log.buffer.add(LineKind::Event, line);
            log.buffer.flush(PATIENCE);
            assert_eq!(dropped.get(), lost, "what ends the torn line is no line");
        }
        assert!(log.buffer.is_stalled());
        disk.0.lock().unwrap().1 = 1000;
        log.buffer.add(LineKind::Event, b"fourth\n");
        log.buffer.flush(PATIENCE);
        assert!(!log.buffer.is_stalled());
        assert_eq!(disk.0.lock().unwrap().0, b"first\nse\nfourth\n");
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        let (log, reader) = start();
        let dropped = counted(&log.buffer);
        drop(reader);
        log.buffer.add(LineKind::Event, b"lost\nlost, too\n");
        log.buffer.flush(PATIENCE);
        assert_eq!(dropped.get(), 2);
    }
}
