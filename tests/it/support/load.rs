//! Many clients at once: a burst with a known order, and clients that come again and again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::measure::Service;
use super::{Connection, Pending, Request, Upstream, Weir};

/// The distance of a burst's requests: far more than any limit here lets through, and slow enough for a machine with
/// one core. A faster burst would judge the machine: a late permit is lost, and requests are not read in the order in
/// which they were written.
const APART: Duration = Duration::from_millis(1);

/// Writes `count` requests, in turn to each replica, on connections opened before; `/0`, `/1`, ... in order. Returns
/// each with the instant at which it was written.
pub(crate) async fn burst(fleet: &[Weir], count: usize) -> Vec<(Instant, Pending)> {
    let mut next = tokio::time::interval(APART);
    next.set_missed_tick_behavior(MissedTickBehavior::Delay);
    write(fleet, count, async || _ = next.tick().await).await
}

/// Like [`burst`], as fast as the requests can be written.
pub(crate) async fn at_once(fleet: &[Weir], count: usize) -> Vec<(Instant, Pending)> {
    write(fleet, count, async || {}).await
}

async fn write(fleet: &[Weir], count: usize, mut next: impl AsyncFnMut()) -> Vec<(Instant, Pending)> {
    let mut connections = Vec::with_capacity(count);
    for index in 0..count {
        connections.push(fleet[index % fleet.len()].connect().await);
    }
    let mut burst = Vec::with_capacity(count);
    for (index, mut connection) in connections.into_iter().enumerate() {
        next().await;
        let sent = connection.send(&Request::get(&format!("/{index}"))).await.expect("weir reads");
        burst.push((sent, Pending::on(connection)));
    }
    burst
}

/// Returns, for each request, the instants at which its client sent it and the upstream saw it.
pub(crate) fn services(upstream: &Upstream, sent: &[Instant]) -> Vec<Service> {
    let seen = upstream.seen();
    seen.iter()
        .map(|seen| {
            let index: usize = seen.target.trim_start_matches('/').parse().expect("a number");
            Service { arrived: sent[index], served: seen.at }
        })
        .collect()
}

/// Clients that ask again as soon as they are answered, each on a connection of its own. Dropping it closes them all.
pub(crate) struct Load {
    _clients: Vec<AbortOnDropHandle<()>>,
    statuses: Arc<Mutex<BTreeMap<u16, usize>>>,
}

impl Load {
    /// Starts clients of one replica. For limiters with a queue: a client that is refused at once asks again at once.
    pub(crate) fn start(weir: &Weir, clients: usize, request: &Request) -> Load {
        Load::paced(weir, clients, request, Duration::ZERO)
    }

    /// Like [`Load::start`], where each client waits for so long behind an answer.
    pub(crate) fn paced(weir: &Weir, clients: usize, request: &Request, between: Duration) -> Load {
        let statuses = Arc::<Mutex<BTreeMap<u16, usize>>>::default();
        let one = |_| {
            let (host, request, statuses) = (weir.host(), request.clone(), Arc::clone(&statuses));
            AbortOnDropHandle::new(tokio::spawn(async move {
                let mut connection = Connection::open(&host).await.expect("weir accepts");
                loop {
                    let answer = connection.ask(&request).await;
                    *statuses
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .entry(answer.status)
                        .or_default() += 1;
                    if !between.is_zero() {
                        sleep(between).await;
                    }
                }
            }))
        };
        Load { _clients: (0..clients).map(one).collect(), statuses }
    }

    /// Returns the number of answers of each status so far.
    pub(crate) fn statuses(&self) -> BTreeMap<u16, usize> {
        self.statuses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Starts clients that ask, leave before they are answered, each time after a different time up to `longest`, and come
/// again. Dropping it ends them.
pub(crate) fn leavers(weir: &Weir, clients: usize, longest: Duration) -> Vec<AbortOnDropHandle<()>> {
    let one = |client: usize| {
        let url = weir.url("/leaves");
        AbortOnDropHandle::new(tokio::spawn(async move {
            for round in 0_usize.. {
                let pending = Pending::get(&url);
                // Spread evenly and the same in every run.
                let permille = (client * 617 + round * 389) % 1000;
                sleep(longest * u32::try_from(permille).expect("below 1000") / 1000).await;
                drop(pending);
            }
        }))
    };
    (0..clients).map(one).collect()
}
