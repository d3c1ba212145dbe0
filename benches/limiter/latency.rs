//! The time of one permit without other callers, beside a bare round trip to the same server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weir::clock::Micros;
use weir::limiter::model::call::{Call, Run};
use weir::limiter::store::Store;
use weir::telemetry::Metrics;

use crate::callers::LONG;
use crate::fleet::{Fleet, Window, store, take};
use crate::load::Result;
use crate::server::Server;

/// The number of calls before the first measured one.
const WARM_UP: usize = 200;

/// The two windows: the state of the first has an instant for each of its cells, that of the second next to none. A
/// guard of a millisecond is too short for prefetched permits, so each permit makes its round trip.
pub(crate) const WINDOWS: [(&str, Window); 2] = [
    ("a second", Window { guard: MILLISECOND, ..LONG }),
    ("a millisecond", Window { per: MILLISECOND, guard: MILLISECOND, ..LONG }),
];
const MILLISECOND: Duration = Duration::from_millis(1);

/// The latencies of one part of a round, in microseconds.
pub(crate) struct Latency {
    /// A `PING` by a connection of the same kind as the store's.
    pub(crate) bare: Percentiles,
    /// The store's call for one permit, without a worker.
    pub(crate) call: Percentiles,
    /// One permit, from the request until it is spent.
    pub(crate) permit: Percentiles,
}

/// Percentiles of many measurements.
pub(crate) struct Percentiles {
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
}

impl Percentiles {
    fn of(mut values: Vec<f64>) -> Result<Percentiles> {
        values.sort_by(f64::total_cmp);
        let at = |percent: usize| values.get(values.len() * percent / 100).copied();
        let ((p50, p90), p99) = at(50).zip(at(90)).zip(at(99)).ok_or("nothing was measured")?;
        Ok(Percentiles { p50, p90, p99 })
    }
}

/// Measures the three in turn, one at a time, so that other work of the machine affects all alike.
pub(crate) async fn measure(server: &mut Server, window: Window, time: Duration) -> Result<Latency> {
    server.flush().await?;
    let fleet = Fleet::start(server, window, 1).await?;
    // Of the same limiter, so that both calls find the same state.
    let (store, limiter_refs) = (store(server, &Metrics::new())?, Arc::from([window.limiter_ref()?]));
    let runs = vec![Run { cost: 1, wait_max: Micros::ZERO, count: 1 }];
    let call = Arc::new(Call { replica: 1, runs, queue_slots_left: 1, ..Call::default() });
    let [mut bare, mut called, mut permits] = [Vec::new(), Vec::new(), Vec::new()];
    let (mut done, mut end) = (0, None);
    while end.is_none_or(|end| Instant::now() < end) {
        let first = Instant::now();
        redis::cmd("PING").exec_async(&mut server.connection).await?;
        let second = Instant::now();
        store.reserve(&limiter_refs, &call).await.map_err(|failure| failure.error)?;
        let third = Instant::now();
        take(&fleet.limiter_sets[0]).await?;
        let fourth = Instant::now();
        done += 1;
        if done == WARM_UP {
            end = Some(Instant::now() + time);
        }
        if done > WARM_UP {
            bare.push(micros(second - first));
            called.push(micros(third - second));
            permits.push(micros(fourth - third));
        }
    }
    fleet.close().await;
    Ok(Latency {
        bare: Percentiles::of(bare)?,
        call: Percentiles::of(called)?,
        permit: Percentiles::of(permits)?,
    })
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}
