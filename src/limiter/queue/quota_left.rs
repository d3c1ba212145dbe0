//! The permits left of the limits of a queue, as the store last said, for the callers of its requests. Asks no store.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::clock::{Micros, Moment};
use crate::limiter::arithmetic::algorithm::kind::refill;
use crate::limiter::model::{Limit, Limiter, LimiterName};
use crate::limiter::queue::active_limiter::LimiterInstance;
use crate::limiter::queue::upstream_report::{Window, limit_of};
use crate::usage::{Refill, UpstreamCount};

/// For this part of a limit's window an answer of the store is compared with the upstream's count.
const LATELY_PART: u64 = 10;

/// The permits left of the tightest of the limits that a request has satisfied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QuotaLeft {
    /// The limiter, with the limits that hold for the request.
    pub limiter: Arc<Limiter>,
    /// The limit, by its place in the limiter.
    pub limit: usize,
    /// The permits that could be used at once.
    pub left: u64,
    /// The time until the limit is whole again, if nothing more is used. Of a sliding window the longest that it may take.
    pub whole_in: Micros,
}

/// The permits left of each limit of a queue's limiters, with the moment of the call that told them; `None` before the first answer.
#[derive(Default)]
pub(in crate::limiter) struct LastLeft(Mutex<Option<(Moment, Vec<Vec<u64>>)>>);

impl LastLeft {
    /// Takes in what the store has said.
    pub(in crate::limiter) fn set(&self, at: Moment, available: &[Vec<u64>]) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (moment, left) = last.get_or_insert_default();
        *moment = at;
        left.resize_with(available.len(), Vec::new);
        left.iter_mut().zip(available).for_each(|(left, available)| left.clone_from(available));
    }

    /// Compares what is left with what a response of the upstream tells of its windows, and notes the difference for each limit. What the
    /// store said too long ago is not compared.
    pub(in crate::limiter) fn compare(&self, instances: &[LimiterInstance], windows: &[Window]) {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((at, all)) = last.as_ref() else { return };
        for (instance, left) in instances.iter().zip(all) {
            let (limiter, now) = (instance.limiter(), instance.active.session.moment());
            for window in windows {
                let Some(place) = limit_of(&limiter, window) else { continue };
                let (Some(limit), Some(left)) = (limiter.limits.get(place), left.get(place)) else {
                    continue;
                };
                if now - *at > Micros(Micros::from(limit.per).0 / LATELY_PART) {
                    continue;
                }
                let signed = |permits: u64| i64::try_from(permits).unwrap_or(i64::MAX);
                let apart = signed(*left).saturating_sub(signed(window.remaining));
                let count = UpstreamCount {
                    limit: Arc::clone(&limit.label),
                    remaining: window.remaining,
                    apart,
                    age_us: 0,
                };
                instance.active.upstream_counts.note(now, count);
            }
        }
    }

    /// Returns what is left of the limit of which the least part is, or of several the fewest permits, of the limiters for which `is_meant`
    /// holds; `None` if nothing is known, or all limits space their permits.
    pub(in crate::limiter) fn tightest(
        &self,
        instances: &[LimiterInstance],
        is_meant: impl Fn(&LimiterName) -> bool,
    ) -> Option<QuotaLeft> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, all) = last.as_ref()?;
        let mut tightest: Option<(f64, QuotaLeft)> = None;
        for (instance, left) in instances.iter().zip(all) {
            let (limiter, session) = (instance.limiter(), &instance.active.session);
            // A reload may have changed the limits since.
            if limiter.limits.len() != left.len() || !is_meant(&limiter.name) {
                continue;
            }
            for (place, (limit, left)) in limiter.limits.iter().zip(left).enumerate() {
                let Some(whole_in) = whole_in(limit, *left, session.now(), session.moment() - *at) else {
                    continue;
                };
                let part = *left as f64 / limit.cost_max().get() as f64;
                if tightest.as_ref().is_none_or(|(least, of)| (part, *left) < (*least, of.left)) {
                    let (limiter, left) = (Arc::clone(&limiter), *left);
                    tightest = Some((part, QuotaLeft { limiter, limit: place, left, whole_in }));
                }
            }
        }
        tightest.map(|(_, left)| left)
    }
}

/// Returns when a limit is whole again that had permits left some time ago; `None` if it spaces them, so that none are ever left.
fn whole_in(limit: &Limit, left: u64, now: Micros, ago: Micros) -> Option<Micros> {
    let (per, missing) = (Micros::from(limit.per), limit.cost_max().get().saturating_sub(left));
    let whole_in = match refill(limit, now)? {
        _ if missing == 0 => Micros::default(),
        Refill::At(seconds) => Micros::from(Duration::try_from_secs_f64(seconds).unwrap_or_default()),
        Refill::Rolling => per,
        Refill::Steady => {
            let whole_in = u128::from(missing) * u128::from(per.0) / u128::from(limit.rate.get());
            Micros(u64::try_from(whole_in).unwrap_or(u64::MAX)) - ago
        }
    };
    Some(whole_in)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::limiter::model::{Algorithm, CalendarWindows, Period, Permits};

    #[test]
    fn a_limit_is_whole_when_nothing_of_it_matters_any_more() {
        let limit = |algorithm| Limit {
            rate: Permits::new(60).unwrap(),
            per: Duration::from_secs(60),
            algorithm,
            label: "60/1m".into(),
        };
        let sliding = limit(Algorithm::SlidingWindow { precision: NonZeroU32::new(256).unwrap() });
        let bucket = limit(Algorithm::TokenBucket { burst: Permits::new(100).unwrap() });
        let windows = CalendarWindows::new(Period::Span(Duration::from_secs(60)), "UTC").unwrap();
        let fixed = limit(Algorithm::FixedWindow { windows });
        // Ten seconds into a minute.
        let (now, second) = (Micros::from_millis(1_767_225_610_000), Micros::from_millis(1000));
        for (limit, left, ago, expected) in [
            (&sliding, 60, 0, Some(0)),
            (&sliding, 59, 30, Some(60)),
            (&bucket, 100, 0, Some(0)),
            (&bucket, 60, 0, Some(40)),
            (&bucket, 60, 15, Some(25)),
            (&bucket, 60, 99, Some(0)),
            (&fixed, 60, 0, Some(0)),
            (&fixed, 1, 0, Some(50)),
            (&limit(Algorithm::LeakyBucket), 1, 0, None),
        ] {
            let whole_in = whole_in(limit, left, now, Micros(ago * second.0));
            assert_eq!(whole_in.map(|whole_in| whole_in.0 / second.0), expected, "{limit:?} {left} {ago}");
        }
    }
}
