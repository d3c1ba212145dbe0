//! Says in the log, once a minute, that a store is still away, and what becomes of whose requests meanwhile.
//!
//! The beginning and the end of an outage are logged where they are noticed. Changes nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tracing::warn;

use crate::clock::{Clock, Micros, Moment};
use crate::limiter::model::OnStoreFailure;
use crate::limiter::queue::active_limiter::ActiveLimiter;

/// Time between two lines about one outage.
const EVERY: Micros = Micros::from_millis(60_000);
/// Time between two looks at the store.
const LOOK: Duration = Duration::from_secs(1);
/// The most limiters that a line names.
const NAMES_MAX: usize = 20;

/// Looks at the stores of these limiters for ever, and logs each minute of an outage.
pub(super) async fn tell(limiters: impl Fn() -> Vec<Arc<ActiveLimiter>>, clock: Clock) {
    let mut outage = Outage::default();
    loop {
        sleep(LOOK).await;
        let mut away = limiters();
        away.retain(|active| !active.session.store.is_up());
        if let Some(lasting) = outage.look(!away.is_empty(), clock.moment()) {
            let waiting: u32 = away.iter().map(|active| active.counts.waiting()).sum();
            let (lasting, affected) = (lasting.to_duration(), affected(&away));
            warn!(?lasting, %affected, waiting, "the store is still away");
        }
    }
}

/// The outage that goes on.
#[derive(Default)]
struct Outage {
    began: Option<Moment>,
    told: u64,
}

impl Outage {
    /// Takes in whether a store is away. Returns how long it has been, if that is to be told.
    fn look(&mut self, is_away: bool, now: Moment) -> Option<Micros> {
        if !is_away {
            *self = Outage::default();
            return None;
        }
        let lasting = now - *self.began.get_or_insert(now);
        let minutes = lasting.0 / EVERY.0;
        if minutes <= self.told {
            return None;
        }
        self.told = minutes;
        Some(lasting)
    }
}

/// Names the limiters by what becomes of their requests.
fn affected(away: &[Arc<ActiveLimiter>]) -> String {
    let policies = [
        (OnStoreFailure::Local, "limited by this replica's share"),
        (OnStoreFailure::Reject, "refused with 503"),
        (OnStoreFailure::Allow, "not limited"),
    ];
    let groups = policies.iter().filter_map(|(policy, effect)| {
        let of_policy = away.iter().filter(|active| active.limiter().on_store_failure == *policy);
        let names: Vec<&str> = of_policy.map(|active| active.name.as_str()).collect();
        let more = names.len().saturating_sub(NAMES_MAX);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let listed = names.iter().take(NAMES_MAX).copied().collect::<Vec<_>>().join(", ");
        (!names.is_empty()).then(|| format!("{effect}: {listed}{more}"))
    });
    groups.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_told_once_a_minute() {
        let mut outage = Outage::default();
        let mut look = |is_away, seconds: u64| {
            outage.look(is_away, Moment(seconds * 1_000_000)).map(|lasting| lasting.0 / 1_000_000)
        };
        assert_eq!([100, 130, 159].map(|second| look(true, second)), [None; 3]);
        assert_eq!(
            [160, 161, 219, 221, 222].map(|second| look(true, second)),
            [Some(60), None, None, Some(121), None]
        );
        assert_eq!(look(true, 400), Some(300), "a replica that stood still says it once");
        assert_eq!(
            [(false, 401), (true, 402), (true, 461), (true, 462)].map(|(is, at)| look(is, at)),
            [None, None, None, Some(60)]
        );
    }
}
