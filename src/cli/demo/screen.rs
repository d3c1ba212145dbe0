//! The output of the demo: at most 80 columns, coloured only on a terminal.

use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::provider::{QUOTA, Tally};
use super::traffic::{Counts, RATE};
use crate::limiter::model::limit::Limiter;

/// The addresses of the demo.
pub(super) struct Setting {
    /// The proxy's listener.
    pub(super) proxy: SocketAddr,
    /// The admin listener.
    pub(super) admin: SocketAddr,
    /// The provider's listener.
    pub(super) provider: SocketAddr,
    /// A path of the route.
    pub(super) path: String,
    /// The limiter of the route.
    pub(super) limiter: Option<Arc<Limiter>>,
}

/// One row of the table.
pub(super) struct Row {
    /// The time since the start.
    pub(super) time: Duration,
    /// The counts since the start.
    pub(super) totals: Counts,
    /// Requests forwarded since the last row.
    pub(super) forwarded_now: u64,
    /// The provider's violations since the start.
    pub(super) violations: u64,
}

/// Standard output.
pub(super) struct Screen {
    out: Box<dyn Write + Send>,
    coloured: bool,
}

impl Screen {
    pub(super) fn stdout() -> Screen {
        let out = io::stdout();
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb");
        let coloured = out.is_terminal() && !set("NO_COLOR") && !dumb;
        Screen { out: Box::new(out), coloured }
    }

    /// Prints the addresses, commands to try, and the head of the table.
    pub(super) fn opening(&mut self, setting: &Setting) -> io::Result<()> {
        let Setting { proxy, admin, provider, path, limiter } = setting;
        let title = self.bold("weir demo");
        let limits = limiter.as_deref().map(describe).unwrap_or_default();
        let head =
            self.dim("  time     sent  forwarded  per second  waiting  refused  provider's violations");
        write!(
            self.out,
            "\n  {title}: applications want {RATE} requests/s, the provider allows {QUOTA}/s.\n\
             \n  applications ---> weir {proxy} ---> provider {provider}\n\
             \n  weir runs config/quickstart.yaml, without Redis{limits}.\
             \n  The provider counts what arrives, and answers 429 beyond its quota.\n\
             \n  The dashboard: http://{admin}/\n\
             \n  Try in another terminal:\
             \n    curl -i http://{proxy}{path}\
             \n    curl http://{admin}/api/limiters\
             \n    curl http://{admin}/metrics\n\
             \n  Ctrl-C ends the demo.\n\n{head}\n"
        )?;
        self.out.flush()
    }

    /// Prints a row of the table.
    pub(super) fn row(&mut self, row: &Row) -> io::Result<()> {
        let Row { time, totals: Counts { sent, forwarded, refused, .. }, forwarded_now, violations } = row;
        let violations = self.verdict(*violations, 22);
        let time = format!("{}s", time.as_secs());
        let waiting = row.totals.waiting();
        writeln!(
            self.out,
            "{time:>6} {sent:>8} {forwarded:>10} {forwarded_now:>11} {waiting:>8} {refused:>8} {violations}"
        )?;
        self.out.flush()
    }

    /// Prints the notice that waiting requests still finish.
    pub(super) fn ending(&mut self, waiting: u64) -> io::Result<()> {
        writeln!(self.out, "\n  Traffic has stopped; {waiting} waiting requests still get their turn ...")?;
        self.out.flush()
    }

    /// Prints the summary.
    pub(super) fn summary(&mut self, time: Duration, totals: &Counts, provider: Tally) -> io::Result<()> {
        let Counts { sent, forwarded, refused, failed } = *totals;
        let Tally { requests, violations } = provider;
        let verdict = self.verdict(violations, 0);
        let seconds = time.as_secs_f64();
        let rate = forwarded as f64 / seconds.max(f64::MIN_POSITIVE);
        write!(
            self.out,
            "\n  The applications sent {sent} requests; the last got its turn after {seconds:.1} s:\
             \n    {forwarded:>8} forwarded, {rate:.1} a second; the provider allows {QUOTA}\
             \n    {requests:>8} seen by the provider, {verdict} of them beyond its quota\
             \n    {refused:>8} refused by weir, with a Retry-After\
             \n    {failed:>8} failed\n\n"
        )?;
        self.out.flush()
    }

    /// Formats the violations: green for none, red otherwise.
    fn verdict(&self, violations: u64, width: usize) -> String {
        let colour = if violations == 0 { "32" } else { "31" };
        self.styled(&format!("{violations:>width$}"), colour)
    }

    fn bold(&self, text: &str) -> String {
        self.styled(text, "1")
    }

    fn dim(&self, text: &str) -> String {
        self.styled(text, "2")
    }

    fn styled(&self, text: &str, code: &str) -> String {
        if self.coloured { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Describes a limiter: `: 10/1s, up to 5s in the queue`.
fn describe(limiter: &Limiter) -> String {
    let limits: Vec<&str> = limiter.limits.iter().map(|limit| &*limit.label).collect();
    let queue = match &limiter.queue {
        Some(queue) => format!("up to {:?} in the queue", queue.timeout),
        None => "no queue".to_owned(),
    };
    format!(": {}, {queue}", limits.join(" and "))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A writer that keeps its text.
    #[derive(Clone, Default)]
    struct Paper(Arc<Mutex<Vec<u8>>>);

    impl Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn every_line_fits_and_carries_no_codes_for_a_pipe() {
        let paper = Paper::default();
        let mut screen = Screen { out: Box::new(paper.clone()), coloured: false };
        let address: SocketAddr = "127.0.0.1:65535".parse().unwrap();
        let path = "/api".to_owned();
        screen
            .opening(&Setting { proxy: address, admin: address, provider: address, path, limiter: None })
            .unwrap();
        let totals = Counts { sent: 1_000_000, forwarded: 900_000, refused: 99_000, failed: 0 };
        let time = Duration::from_secs(40_000);
        screen.row(&Row { time, totals, forwarded_now: 10, violations: 0 }).unwrap();
        screen.ending(100).unwrap();
        screen.summary(time, &totals, Tally { requests: 900_000, violations: 0 }).unwrap();
        let text = String::from_utf8(paper.0.lock().unwrap().clone()).unwrap();
        assert!(!text.contains('\x1b'));
        for line in text.lines() {
            assert!(line.len() <= 80, "{} columns: {line}", line.len());
        }
    }
}
