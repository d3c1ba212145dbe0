//! Opens TCP connections to a name: looks the name up and races its addresses (RFC 8305). Sends nothing.
//!
//! Every new connection looks its name up, so a changed answer is followed as soon as the system's resolver has it. Connections
//! opened at the same moment share a lookup. If a lookup fails, the last good answer is used for a while, so that a short failure
//! of the resolver does not take every upstream along.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, Shared};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, sleep, timeout};

use crate::proxy::error::ConnectError;
use crate::proxy::net::descriptors::{self, User};

/// The time without an answer after which the next address is tried as well, as RFC 8305 recommends.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// The most addresses tried of one name.
const ADDRESSES_MAX: usize = 16;
/// The longest time for which the last good answer replaces a failed lookup: longer than the restart of a resolver, and too short
/// for an address to have a new owner.
const STALE_MAX: Duration = Duration::from_secs(300);
/// The time for which a lookup under way is shared. After that all its callers may have given up. So a hanging resolver gets one
/// question at a time, and a new one this often.
const SHARED_MAX: Duration = Duration::from_secs(1);

/// A resolver of names.
pub trait Resolve: Send + Sync {
    /// Returns the addresses of a name, in the order in which to try them.
    fn resolve(&self, host: Arc<str>, port: u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>>;
}

/// The system's resolver: `/etc/hosts`, DNS, and the other sources that it is configured with.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve(&self, host: Arc<str>, port: u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> {
        Box::pin(async move { Ok(lookup_host((&*host, port)).await?.collect()) })
    }
}

/// A dialer for one name and port.
pub(crate) struct Dialer {
    host: Arc<str>,
    port: u16,
    resolver: Arc<dyn Resolve>,
    under_way: Mutex<Option<(Instant, Lookup)>>,
    last_good: Mutex<Option<GoodAnswer>>,
}

/// A lookup that several connections share. Its addresses are in the order of the attempts.
type Lookup = Shared<BoxFuture<'static, Result<Vec<SocketAddr>, Arc<io::Error>>>>;

/// The last good answer of the resolver.
struct GoodAnswer {
    addresses: Vec<SocketAddr>,
    at: Instant,
    /// True if its use in place of a failed lookup has been logged.
    is_logged: bool,
}

impl Dialer {
    /// Creates the dialer and looks nothing up.
    pub(crate) fn new(host: &Arc<str>, port: u16, resolver: Arc<dyn Resolve>) -> Dialer {
        Dialer {
            host: Arc::clone(host),
            port,
            resolver,
            under_way: Mutex::default(),
            last_good: Mutex::default(),
        }
    }

    /// Opens a connection to the first address that answers; the caller limits the time to `time`.
    pub(crate) async fn dial(&self, time: Duration) -> Result<TcpStream, ConnectError> {
        let addresses = self.addresses(time / 2).await?;
        // A short time is divided, so that every address is tried.
        let turns = u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
        race(addresses, ATTEMPT_DELAY.min(time / 2 / turns), connect).await
    }

    /// Returns the addresses of the name. A lookup longer than `patience` has failed if an earlier answer can replace it.
    async fn addresses(&self, patience: Duration) -> Result<Vec<SocketAddr>, ConnectError> {
        let lookup = self.lookup();
        let found = match timeout(patience, lookup.clone()).await {
            Ok(found) => found,
            Err(_) => match self.last_answer("no answer in time") {
                Some(addresses) => return Ok(addresses),
                None => lookup.await,
            },
        };
        let reason = match found {
            Ok(addresses) if !addresses.is_empty() => {
                let good = GoodAnswer { addresses: addresses.clone(), at: Instant::now(), is_logged: false };
                *lock(&self.last_good) = Some(good);
                return Ok(addresses);
            }
            Ok(_) => "no address".to_owned(),
            Err(error) => error.to_string(),
        };
        let host = Arc::clone(&self.host);
        self.last_answer(&reason).ok_or(ConnectError::Lookup { host, reason })
    }

    /// Returns the lookup under way, or begins one.
    fn lookup(&self) -> Lookup {
        let mut under_way = lock(&self.under_way);
        if let Some((since, lookup)) = &*under_way
            && lookup.peek().is_none()
            && since.elapsed() < SHARED_MAX
        {
            return lookup.clone();
        }
        let found = self.resolver.resolve(Arc::clone(&self.host), self.port);
        let lookup = found.map(|found| found.map(in_turn).map_err(Arc::new)).boxed().shared();
        *under_way = Some((Instant::now(), lookup.clone()));
        lookup
    }

    /// Returns the last good answer, if it is not too old, and logs the failure that it replaces.
    fn last_answer(&self, reason: &str) -> Option<Vec<SocketAddr>> {
        let mut last_good = lock(&self.last_good);
        let good = last_good.as_mut().filter(|good| good.at.elapsed() <= STALE_MAX)?;
        if !std::mem::replace(&mut good.is_logged, true) {
            tracing::warn!(host = %self.host, reason, "cannot look up a name; using its last addresses for up to {STALE_MAX:?}");
        }
        Some(good.addresses.clone())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Alternates the two address families, beginning with that of the first address, which the system prefers. If that family is
/// broken, the second attempt uses the other.
fn in_turn(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (preferred, other): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| address.is_ipv6() == first);
    let mut turns: Vec<_> = preferred.into_iter().enumerate().chain(other.into_iter().enumerate()).collect();
    // The sort is stable, so in each turn the preferred family comes first.
    turns.sort_by_key(|(turn, _)| *turn);
    turns.into_iter().map(|(_, address)| address).take(ADDRESSES_MAX).collect()
}

/// Connects to an address, unless too few descriptors are left.
async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    if descriptors::is_reserved(&stream, User::Upstream) {
        return Err(io::Error::other("no file descriptor is left for a connection"));
    }
    Ok(stream)
}

/// Tries the addresses in order, the next one when an attempt has failed or none has answered for `delay`. Returns the first
/// connection and drops the other attempts. Fails when all have failed, with the last error.
async fn race<T, F: Future<Output = io::Result<T>>>(
    addresses: Vec<SocketAddr>,
    delay: Duration,
    connect: impl Fn(SocketAddr) -> F,
) -> Result<T, ConnectError> {
    let mut left = addresses.into_iter();
    let mut attempts = FuturesUnordered::new();
    let mut failure = None;
    loop {
        if let Some(address) = left.next() {
            let attempt = connect(address);
            attempts.push(async move { (address, attempt.await) });
        }
        tokio::select! {
            ended = attempts.next() => match ended {
                Some((_, Ok(connected))) => return Ok(connected),
                Some((address, Err(error))) => {
                    tracing::debug!(%address, %error, "an address does not accept");
                    failure = Some(ConnectError::Tcp { address, source: Arc::new(error) });
                }
                None => return Err(failure.unwrap_or(ConnectError::NoAddress)),
            },
            () = sleep(delay), if left.len() > 0 => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn turns(addresses: &[&str]) -> Vec<String> {
        let addresses = addresses.iter().map(|text| address(text)).collect();
        in_turn(addresses).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn families_take_turns() {
        let (a, b, c) = ("[2001:db8::1]:1", "[2001:db8::2]:1", "[2001:db8::3]:1");
        let (x, y) = ("192.0.2.1:1", "192.0.2.2:1");
        assert_eq!(turns(&[a, b, c, x, y]), [a, x, b, y, c]);
        assert_eq!(turns(&[x, a, y, b, c]), [x, a, y, b, c]);
        assert_eq!(turns(&[x, y]), [x, y]);
        assert_eq!(turns(&[a]), [a]);
        assert!(turns(&[]).is_empty());
        let many: Vec<String> = (0..40).map(|number| format!("192.0.2.{number}:1")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).chain([a]).collect();
        let tried = turns(&many);
        assert_eq!((tried.len(), tried[1].as_str()), (ADDRESSES_MAX, a));
    }

    /// Races addresses that connect or fail after the given milliseconds, or never answer.
    async fn raced(script: &[(u64, Option<bool>)]) -> (Result<u16, String>, Duration) {
        let addresses = (0..).take(script.len()).map(|index| SocketAddr::from(([192, 0, 2, 1], index)));
        let began = Instant::now();
        let outcome = race(addresses.collect(), ATTEMPT_DELAY, |address| async move {
            let (after, outcome) = script[usize::from(address.port())];
            sleep(Duration::from_millis(after)).await;
            match outcome {
                Some(true) => Ok(address.port()),
                Some(false) => Err(io::ErrorKind::ConnectionRefused.into()),
                None => std::future::pending().await,
            }
        });
        (outcome.await.map_err(|error| error.to_string()), began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_to_connect_wins() {
        let (yes, no) = (Some(true), Some(false));
        let after = |script: Vec<(u64, Option<bool>)>| async move {
            let (outcome, took) = raced(&script).await;
            (outcome.unwrap(), took.as_millis())
        };
        assert_eq!(after(vec![(10, yes), (0, yes)]).await, (0, 10));
        assert_eq!(after(vec![(0, None), (10, yes)]).await, (1, 260));
        assert_eq!(after(vec![(5, no), (5, no), (5, yes)]).await, (2, 15));
        assert_eq!(after(vec![(0, None), (0, None), (0, None), (0, yes)]).await, (3, 750));
        // The first attempt goes on beside the second and may still win.
        assert_eq!(after(vec![(300, yes), (100, yes)]).await, (0, 300));
        assert_eq!(after(vec![(0, None), (10, no), (10, yes)]).await, (2, 270));
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_failure_is_returned() {
        let (outcome, took) = raced(&[(400, Some(false)), (0, Some(false))]).await;
        assert_eq!(
            (outcome.unwrap_err().as_str(), took.as_millis()),
            ("192.0.2.1:0: connection refused", 400)
        );
        assert_eq!(raced(&[]).await.0.unwrap_err(), "no address");
    }

    /// A resolver with answers in order, each after the given milliseconds; then it fails.
    struct Scripted(Mutex<VecDeque<(u64, Option<SocketAddr>)>>);

    impl Resolve for Scripted {
        fn resolve(&self, _: Arc<str>, _: u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> {
            let (after, address) = self.0.lock().unwrap().pop_front().unwrap_or_default();
            Box::pin(async move {
                sleep(Duration::from_millis(after)).await;
                address.map(|address| vec![address]).ok_or_else(|| io::Error::other("no such name"))
            })
        }
    }

    fn dialer(answers: impl IntoIterator<Item = (u64, Option<SocketAddr>)>) -> Dialer {
        let answers = Mutex::new(answers.into_iter().collect());
        Dialer::new(&"name".into(), 1, Arc::new(Scripted(answers)))
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_good_answer_replaces_a_failed_lookup_for_a_while() {
        let (one, two) = (address("192.0.2.1:1"), address("192.0.2.2:1"));
        let patience = Duration::from_secs(1);
        let dialer = dialer([(0, None), (1500, Some(one)), (0, Some(two)), (0, None), (60_000, None)]);
        assert!(dialer.addresses(patience).await.is_err());
        // No earlier answer can replace the first, so it has unlimited time.
        assert_eq!(dialer.addresses(patience).await.unwrap(), [one]);
        for _ in 0..2 {
            assert_eq!(dialer.addresses(patience).await.unwrap(), [two]);
        }
        let began = Instant::now();
        assert_eq!(dialer.addresses(patience).await.unwrap(), [two]);
        assert_eq!(began.elapsed(), patience);
        sleep(STALE_MAX).await;
        let error = dialer.addresses(patience).await.unwrap_err().to_string();
        assert_eq!(error, "cannot look up name: no such name");
    }

    #[tokio::test(start_paused = true)]
    async fn connections_opened_at_the_same_moment_share_a_lookup() {
        let [one, two, three] = ["192.0.2.1:1", "192.0.2.2:1", "192.0.2.3:1"].map(address);
        let patience = Duration::from_secs(30);
        let dialer = dialer([(50, Some(one)), (60_000, Some(two)), (0, Some(three))]);
        let crowd = futures_util::future::join_all((0..100).map(|_| dialer.addresses(patience))).await;
        assert!(crowd.into_iter().all(|found| found.unwrap() == [one]));
        // Two callers give up on a lookup that hangs; the third begins a new one.
        assert!(timeout(SHARED_MAX / 2, dialer.addresses(patience)).await.is_err());
        assert!(timeout(SHARED_MAX / 2, dialer.addresses(patience)).await.is_err());
        assert_eq!(dialer.addresses(patience).await.unwrap(), [three]);
    }

    /// A listener with a full backlog, so that the kernel drops further connection attempts.
    async fn swallower() -> (TcpListener, Vec<TcpStream>) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(address("127.0.0.1:0")).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let mut held = Vec::new();
        while let Ok(Ok(stream)) = timeout(Duration::from_millis(200), TcpStream::connect(address)).await {
            held.push(stream);
            assert!(held.len() < 64, "the backlog is never full");
        }
        (listener, held)
    }

    #[tokio::test]
    async fn a_silent_address_delays_little_and_a_refusing_one_not_at_all() {
        let (silent, _held) = swallower().await;
        let refusing = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let good = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (silent, good) = (silent.local_addr().unwrap(), good.local_addr().unwrap());
        for (addresses, at_least, at_most) in
            [(vec![silent, good], 250, 1000), (vec![refusing, good], 0, 200), (vec![good, silent], 0, 200)]
        {
            let began = Instant::now();
            let connected = race(addresses, ATTEMPT_DELAY, TcpStream::connect).await.unwrap();
            let took = began.elapsed().as_millis();
            assert_eq!(connected.peer_addr().unwrap(), good);
            assert!((at_least..at_most).contains(&took), "{took} ms");
        }
    }
}
