//! The contenders. Knows nothing of their configuration and load.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;
use std::{fmt, fs};

use crate::load::Result;
use crate::load::process::Process;

/// The longest time for a single answer.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);
/// The number of lines of a complaint that are kept; the rest may be a long trace.
const COMPLAINT_LINES: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Name {
    NginxShipped,
    WeirShipped,
    Nginx,
    Bare,
    WeirRedis,
    Haproxy,
    NginxLua,
    WeirMemory,
    WeirUnlimited,
    NginxStatic,
    WeirRefusing,
    WeirFewRoutes,
    WeirManyRoutes,
}

/// A scenario: contenders of one scenario are compared with each other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scenario {
    Proxies,
    Refusals,
    Routes,
}

impl Name {
    pub(crate) fn scenario(self) -> Scenario {
        match self {
            Name::NginxShipped
            | Name::WeirShipped
            | Name::Nginx
            | Name::Bare
            | Name::WeirRedis
            | Name::Haproxy
            | Name::NginxLua
            | Name::WeirMemory
            | Name::WeirUnlimited => Scenario::Proxies,
            Name::NginxStatic | Name::WeirRefusing => Scenario::Refusals,
            Name::WeirFewRoutes | Name::WeirManyRoutes => Scenario::Routes,
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Name::NginxShipped => "nginx, with its access log",
            Name::WeirShipped => "weir as shipped, limiter in Redis",
            Name::Nginx => "nginx",
            Name::Bare => "a bare proxy of hyper",
            Name::WeirRedis => "weir, limiter in Redis",
            Name::Haproxy => "HAProxy",
            Name::NginxLua => "nginx + Lua + Redis",
            Name::WeirMemory => "weir, limiter in memory",
            Name::WeirUnlimited => "weir, no limiter",
            Name::NginxStatic => "nginx, static 200",
            Name::WeirRefusing => "weir, 429 of a limiter in Redis",
            Name::WeirFewRoutes => "weir, 10 routes",
            Name::WeirManyRoutes => "weir, 10 000 routes",
        })
    }
}

/// A running contender.
pub(crate) struct Contender {
    pub(crate) name: Name,
    pub(crate) process: Process,
    /// The contender's error log, empty while all is well; `None` if it is an access log, too.
    pub(crate) log: Option<PathBuf>,
    /// The contender's own Redis, so that the load on Redis is caused by this contender alone.
    pub(crate) redis: Option<Process>,
    pub(crate) http1: SocketAddr,
    /// The contender's address for HTTP/2 in the clear, if that is measured.
    pub(crate) http2: Option<SocketAddr>,
    pub(crate) path: String,
    /// The expected status of every answer.
    pub(crate) status: u16,
}

impl Contender {
    /// Returns an error unless the contender answers as expected.
    pub(crate) fn check(&self) -> Result<()> {
        let answer = self.ask()?;
        let status = answer.split(' ').nth(1).and_then(|status| status.parse::<u16>().ok());
        if status == Some(self.status) {
            return Ok(());
        }
        Err(format!("{} does not answer {}, but:\n{answer}\n{}", self.name, self.status, self.complaints()?)
            .into())
    }

    /// Returns the first lines of the error log; empty as a rule.
    pub(crate) fn complaints(&self) -> Result<String> {
        let Some(log) = &self.log else { return Ok(String::new()) };
        let said = fs::read_to_string(log)?;
        Ok(said.lines().take(COMPLAINT_LINES).map(|line| format!("    {line}\n")).collect())
    }

    /// Returns the answer to one request, head and body.
    pub(crate) fn ask(&self) -> Result<String> {
        let mut stream = TcpStream::connect(self.http1)?;
        stream.set_read_timeout(Some(ANSWER_DEADLINE))?;
        write!(stream, "GET {} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", self.path, self.http1)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}
