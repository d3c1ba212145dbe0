//! Many clients at once: a burst whose order is known, and clients that come again and again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::time::MissedTickBehavior;
use tokio_util::task::AbortOnDropHandle;

use super::measure::Service;
use super::{Connection, Pending, Request, Upstream, Weir};

/// A burst has one request for each of these: far more than any limit here lets through, and slow enough that a machine
/// with one core keeps up. Faster, what is judged is the machine: a permit that comes late is lost, and who was written first
/// is not read first.
const APART: Duration = Duration::from_millis(1);

/// Writes `count` requests, in turn to each replica, on connections opened before; `/0`, `/1`, ... in order. Each comes
/// with the instant at which it was written.
pub(crate) async fn burst(fleet: &[Weir], count: usize) -> Vec<(Instant, Pending)> {
    let mut next = tokio::time::interval(APART);
    next.set_missed_tick_behavior(MissedTickBehavior::Delay);
    write(fleet, count, async || _ = next.tick().await).await
}

/// The same as fast as they can be written.
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

/// When each request was sent by its client and when the upstream saw it.
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
    /// Starts so many clients of one replica. For limiters with a queue: who is refused at once asks again at once.
    pub(crate) fn start(weir: &Weir, clients: usize, request: &Request) -> Load {
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
                }
            }))
        };
        Load { _clients: (0..clients).map(one).collect(), statuses }
    }

    /// How many answers of each status came until now.
    pub(crate) fn statuses(&self) -> BTreeMap<u16, usize> {
        self.statuses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Clients that ask, leave before they are answered, each time after a while of their own up to `longest`, and come
/// again. Dropping it ends them.
pub(crate) fn leavers(weir: &Weir, clients: usize, longest: Duration) -> Vec<AbortOnDropHandle<()>> {
    let one = |client: usize| {
        let url = weir.url("/leaves");
        AbortOnDropHandle::new(tokio::spawn(async move {
            for round in 0_usize.. {
                let pending = Pending::get(&url);
                // Spread evenly and the same in every run.
                let permille = (client * 617 + round * 389) % 1000;
                tokio::time::sleep(longest * u32::try_from(permille).expect("below 1000") / 1000).await;
                drop(pending);
            }
        }))
    };
    (0..clients).map(one).collect()
}
