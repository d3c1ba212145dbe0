//! Queues of a replica that grants by itself while the store is away, on paused time.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use crate::limiter::model::{Algorithm, Limiter, Permits};
use crate::limiter::tests::limiter_set;
use crate::limiter::tests::limiter_set::{fleet, granted, limiter, pass};

const SECOND: Duration = Duration::from_secs(1);

fn per(seconds: u32, limiter: Limiter) -> Limiter {
    let mut limiter = limiter;
    limiter.limits[0].per = seconds * SECOND;
    limiter
}

#[tokio::test(start_paused = true)]
async fn requests_that_wait_for_a_short_limit_leave_what_is_left_of_a_long_one_beside_it() {
    let limiters = [limiter("second", 10, 6), per(86_400, limiter("day", 1000, 6))];
    let fleet = fleet(&limiters, Duration::ZERO, SECOND);
    let set = limiter_set(&fleet.limiters, &["second", "day"]);
    let crowd = join_all((0..30).map(|_| pass(&set, &[])));
    let goes_away = async {
        sleep(SECOND / 2).await;
        // They wait for the second, and their bookings lie ahead in both.
        fleet.set_away(true);
    };
    let (passed, ()) = tokio::join!(crowd, goes_away);
    let refused: Vec<_> = passed.into_iter().filter_map(Result::err).collect();
    assert!(refused.is_empty(), "{} of 30 were refused: {}", refused.len(), refused[0]);
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_met_an_outage_idle_is_open_in_the_next_one() {
    let long = || [per(3600, limiter("long", 100, 0))];
    let fleet = fleet(&long(), Duration::ZERO, SECOND);
    fleet.set_epoch(1);
    let other = fleet.another(&long());
    let sets = [&fleet, &other].map(|one| limiter_set(&one.limiters, &["long"]));
    for set in &sets {
        granted(set, &[]).await.commit();
    }
    // Nobody has heard of it lately: others may have been granted everything.
    sleep(10 * SECOND).await;
    fleet.set_away(true);
    sleep(SECOND).await;
    assert!(pass(&sets[0], &[]).await.is_err());
    fleet.set_away(false);
    sleep(2 * SECOND).await;
    for _ in 0..3 {
        for set in &sets {
            granted(set, &[]).await.commit();
        }
        sleep(SECOND / 10).await;
    }
    fleet.set_away(true);
    assert!(pass(&sets[0], &[]).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn each_of_several_reloads_in_an_outage_is_followed() {
    let slow = limiter("api", 20, 5);
    let mut fast = slow.clone();
    fast.limits[0].rate = Permits::new(1000).unwrap();
    fast.limits[0].algorithm = Algorithm::TokenBucket { burst: Permits::new(50).unwrap() };
    let fleet = fleet(std::slice::from_ref(&slow), Duration::ZERO, SECOND);
    let set = limiter_set(&fleet.limiters, &["api"]);
    granted(&set, &[]).await.commit();
    fleet.set_away(true);
    sleep(SECOND).await;
    let began = Instant::now();
    let caller = |place: u32| {
        let set = &set;
        async move {
            sleep(SECOND / 250 * place).await;
            pass(set, &[]).await.ok().map(|at| at - began)
        }
    };
    let reloads = async {
        sleep(SECOND / 2).await;
        // Some wait at each, so that there are bookings ahead.
        fleet.apply(&[limiter("api", 25, 5)]);
        sleep(SECOND / 4).await;
        fleet.apply(&[fast]);
        sleep(SECOND / 4).await;
        fleet.apply(&[slow]);
    };
    let (sent, ()) = tokio::join!(join_all((0..1000).map(caller)), reloads);
    let back = SECOND;
    let sent: Vec<_> = sent.into_iter().flatten().filter(|at| *at > back + SECOND / 10).collect();
    let within = |from: Duration| sent.iter().filter(|at| (from..from + SECOND).contains(*at)).count();
    let fullest = sent.iter().map(|at| within(*at)).max();
    assert!(fullest <= Some(20), "{fullest:?}");
    assert!(sent.len() >= 40, "{} in 3 s", sent.len());
}
