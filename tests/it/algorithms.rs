//! Each algorithm keeps its own promise, judged by the instants that the upstream recorded; a limiter may mix
//! algorithms.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::support::measure::{fullest_bucket, fullest_window, occupancy};
use crate::support::{RedisServer, Request, SECOND, Upstream, Weir, client, lane, one_limiter};

/// The time that a busy machine may add to the end of a backlog.
const SLACK: Duration = Duration::from_millis(300);

/// The guard of every limiter here, given in its configuration so that the judgement can allow for it.
const GUARD: Duration = Duration::from_millis(5);

/// Returns a limiter with a long queue and [`GUARD`]; `limits` is in flow style.
fn queued(limits: &str) -> String {
    format!("{{limits: [{limits}], guard: 5ms, queue: {{timeout: 1m, max_waiting: 1000}}}}")
}

/// Sends `count` requests at once through one weir with Redis and returns the instants at which the upstream saw them,
/// sorted.
async fn drain(limits: &str, count: usize, upstream: &Upstream) -> Vec<Instant> {
    drain_after(async || {}, limits, count, upstream).await
}

/// Like [`drain`], but waits for `wait` once every request has been started.
async fn drain_after(
    wait: impl AsyncFnOnce(),
    limits: &str,
    count: usize,
    upstream: &Upstream,
) -> Vec<Instant> {
    let redis = RedisServer::start().await;
    let weir = Weir::start(&one_limiter(&redis.store(), &queued(limits), upstream)).await;
    wait().await;
    client::assert_all_ok(&client::answers(weir.begin(count, "/")).await);
    let mut instants = upstream.instants();
    instants.sort_unstable();
    assert_eq!(instants.len(), count);
    instants
}

/// Returns the time from the first instant to the last.
fn taken(instants: &[Instant]) -> Duration {
    instants[instants.len() - 1].duration_since(instants[0])
}

/// Returns the gaps between the instants that all but a tenth lie between.
///
/// A process that the machine holds up sends late what was due meanwhile: one gap is wide then, and the next ones are
/// narrow, whatever weir does.
fn usual_gaps(instants: &[Instant]) -> (Duration, Duration) {
    let mut gaps: Vec<Duration> = instants.windows(2).map(|pair| pair[1].duration_since(pair[0])).collect();
    gaps.sort_unstable();
    let tenth = gaps.len() / 10;
    (gaps[tenth], gaps[gaps.len() - 1 - tenth])
}

/// Returns the error of a recorded instant: the upstream's lag makes it late, and so does the use of a slot late within
/// its guard. No machine excuses more than `most`, which a wrong algorithm exceeds.
fn blur(upstream: &Upstream, most: Duration) -> Duration {
    GUARD + upstream.lag().min(most)
}

#[tokio::test]
async fn a_bucket_of_a_high_rate_grants_its_burst_at_once_and_no_more() {
    let _lane = lane::shared().await;
    for (limit, burst, rate) in [
        ("{rate: 100000, per: 1d, algorithm: leaky_bucket}", 1, 100_000),
        ("{rate: 1000000, per: 1d, algorithm: token_bucket, burst: 10}", 10, 1_000_000),
    ] {
        let redis = RedisServer::start().await;
        for store in ["memory".to_owned(), redis.store()] {
            let upstream = Upstream::start();
            let limiter = format!("{{limits: [{limit}]}}");
            let weir = Weir::start(&one_limiter(&store, &limiter, &upstream)).await;
            let begun = Instant::now();
            let granted = client::answers(weir.begin(300, "/")).await;
            let granted = granted.iter().filter(|answer| answer.status == 200).count();
            // The permits that come meanwhile.
            let more = usize::try_from(begun.elapsed().as_millis()).unwrap() * rate / 86_400_000 + 1;
            assert!((burst..=burst + more).contains(&granted), "{granted} of {limit} in {store}");
        }
    }
}

#[tokio::test]
async fn a_token_bucket_grants_its_burst_at_once_and_then_its_rate() {
    lane::calm(async || {
        let upstream = Upstream::start();
        let limits = "{rate: 40, per: 1s, algorithm: token_bucket, burst: 60}";
        let instants = drain(limits, 60 + 80, &upstream).await;

        let level = fullest_bucket(&instants, 40.0, SECOND);
        let burst = taken(&instants[..60]);
        println!("bucket at most {level:.2}, burst in {burst:?}, drained in {:?}", taken(&instants));
        // Any interval holds at most the burst and the permits that flow in during the interval, made longer by the
        // blur.
        let allowed = 60.0 + 40.0 * blur(&upstream, SECOND / 4).as_secs_f64();
        assert!(level <= allowed, "{level} permits in the bucket, {allowed} allowed");
        upstream.assert_within(100, SECOND);
        assert!(burst < SLACK, "the burst goes at once: {burst:?}");
        let least = SECOND * 80 / 40;
        assert!(taken(&instants) < least.mul_f64(1.02) + SLACK, "drained in {:?}", taken(&instants));
        // The permits come one by one, not in bursts of a window.
        let fullest = fullest_window(&instants[60..], SECOND / 2);
        assert!(fullest <= 20 + 12, "{fullest} in half a second, after the burst");
    })
    .await;
}

#[tokio::test]
async fn an_empty_bucket_names_the_instant_of_the_next_token() {
    lane::calm(async || {
        let redis = RedisServer::start().await;
        for store in ["memory".to_owned(), redis.store()] {
            let upstream = Upstream::start();
            let limiter = "{limits: [{rate: 2, per: 1s, algorithm: token_bucket, burst: 8}], guard: 5ms}";
            let weir = Weir::start(&one_limiter(&store, limiter, &upstream)).await;
            let (mut client, request) = (weir.connect().await, Request::get("/"));
            assert_eq!(weir.available("api").await, [8], "in {store}");
            assert_eq!(client.statuses(&request, 8).await, [200; 8], "in {store}");
            let refused = client.ask(&request).await;
            assert!(refused.retry_after() <= SECOND / 2 + GUARD, "{:?} in {store}", refused.retry_after());
            tokio::time::sleep_until((refused.done + refused.retry_after()).into()).await;
            assert_eq!(client.statuses(&request, 2).await, [200, 429], "one token and no more in {store}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_leaky_bucket_spaces_requests_evenly() {
    lane::calm(async || {
        let upstream = Upstream::start();
        let instants = drain("{rate: 20, per: 1s, algorithm: leaky_bucket}", 41, &upstream).await;

        let spacing = SECOND / 20;
        let (least, most) = usual_gaps(&instants);
        println!("41 in {:?}, gaps from {least:?} to {most:?}", taken(&instants));
        let blur = blur(&upstream, SECOND / 40);
        assert!(least >= spacing - blur, "a gap of {least:?}, blur {blur:?}");
        assert!(most <= spacing + blur + Duration::from_millis(20), "a gap of {most:?}, blur {blur:?}");
        // The queue drains at the rate: forty gaps take two seconds, besides guard and rounding.
        let whole = spacing * 40;
        assert!(taken(&instants) >= whole - SLACK, "{:?}", taken(&instants));
        assert!(taken(&instants) <= whole.mul_f64(1.02) + SLACK, "{:?}", taken(&instants));
    })
    .await;
}

#[tokio::test]
async fn a_warm_up_spaces_requests_widely_at_first_and_then_evenly() {
    lane::calm(async || {
        let upstream = Upstream::start();
        let limits = "{rate: 40, per: 1s, algorithm: warm_up, warm_up: 1s, cold: 3}";
        let instants = drain(limits, 81, &upstream).await;

        // The instants of a warm-up are compared with its formula elsewhere; here what shows in spite of a busy machine.
        let cold = instants[5].duration_since(instants[0]);
        let warm = instants[20].duration_since(instants[0]);
        let even = instants[80].duration_since(instants[20]);
        println!("81 in {:?}: 5 in {cold:?}, 20 in {warm:?}, then 60 in {even:?}", taken(&instants));
        let spacing = SECOND / 40;
        // A cold permit costs three spacings; twenty take the warm-up, and the other sixty go at the rate.
        assert!(cold >= spacing * 8, "five permits in {cold:?}, cold");
        assert!(warm >= SECOND - SLACK && warm <= SECOND.mul_f64(1.02) + SLACK, "{warm:?} until it is warm");
        let whole = spacing * 60;
        assert!(even >= whole - SLACK && even <= whole.mul_f64(1.02) + SLACK, "{even:?} at the rate");
    })
    .await;
}

/// Returns the time from the last boundary of windows of length `per`, which begin at the epoch, to the instant.
fn phase(instant: Instant, per: Duration) -> Duration {
    Duration::from_nanos((since_epoch(instant).as_nanos() % per.as_nanos()) as u64)
}

/// Converts an instant of the monotonic clock to the wall clock.
fn since_epoch(instant: Instant) -> Duration {
    let (now, wall) = (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970"));
    wall + instant.saturating_duration_since(now) - now.saturating_duration_since(instant)
}

/// Waits until a window of length `per` has been open for a while and stays open for a while.
async fn amid_a_window(per: Duration) {
    let target = per / 4;
    let phase = phase(Instant::now(), per);
    if phase < target || phase > per / 2 {
        let wait = if phase < target { target - phase } else { per - phase + target };
        tokio::time::sleep(wait).await;
    }
}

#[tokio::test]
async fn a_fixed_window_begins_with_the_clock_and_a_backlog_waits_for_it() {
    lane::calm(async || {
        const PER: Duration = Duration::from_secs(2);
        let upstream = Upstream::start();
        let limits = "{rate: 20, per: 2s, algorithm: fixed_window}";
        let instants = drain_after(async || amid_a_window(PER).await, limits, 50, &upstream).await;

        let window = |instant: Instant| since_epoch(instant).as_nanos() / PER.as_nanos();
        let first = window(instants[0]);
        let mut counts = [0_usize; 3];
        for instant in &instants {
            counts[(window(*instant) - first) as usize] += 1;
        }
        let late: Vec<Duration> = instants[20..].iter().map(|instant| phase(*instant, PER)).collect();
        println!(
            "{counts:?} in the windows of the clock, the backlog at most {:?} behind",
            late.iter().max()
        );
        assert_eq!(counts, [20, 20, 10]);
        for late in late {
            assert!(late < SLACK, "{late:?} behind the boundary");
        }
    })
    .await;
}

#[tokio::test]
async fn a_day_ends_at_midnight_of_its_time_zone() {
    let _lane = lane::shared().await;
    const DAY: Duration = Duration::from_secs(86_400);
    let redis = RedisServer::start().await;
    // Midnight in Shanghai, which has no summer time, is eight hours before midnight in UTC.
    for (timezone, ahead) in [("UTC", 0), ("Asia/Shanghai", 8)] {
        for store in ["memory".to_owned(), redis.store()] {
            let upstream = Upstream::start();
            let limit = format!("{{rate: 3, per: 1d, algorithm: fixed_window, timezone: {timezone}}}");
            // This second limiter has a state of its own, so that the use of the first one does not count.
            let config = one_limiter(&store, &format!("{{limits: [{limit}]}}"), &upstream)
                .replace("api", &format!("day-{ahead}"));
            let mut weir = Weir::start(&config).await;
            let until_midnight = || {
                let zone = Duration::from_secs(3600 * ahead);
                DAY - Duration::from_nanos(
                    ((since_epoch(Instant::now()) + zone).as_nanos() % DAY.as_nanos()) as u64,
                )
            };
            if until_midnight() < 10 * SECOND {
                tokio::time::sleep(11 * SECOND).await;
            }
            let mut client = weir.connect().await;
            assert_eq!(client.statuses(&Request::get("/"), 3).await, [200; 3], "{timezone} in {store}");
            let refused = client.ask(&Request::get("/")).await.retry_after();
            let expected = until_midnight();
            assert!(refused.abs_diff(expected) < SECOND, "{refused:?} until midnight, it is {expected:?}");
            // One that is killed may have granted permits that nobody knows of, and the next one is charged with them.
            weir.sigterm();
            weir.wait_exit(10 * SECOND).await;
        }
    }
}

#[tokio::test]
async fn a_limiter_may_mix_algorithms() {
    lane::calm(async || {
        let upstream = Upstream::start();
        let limits = "{rate: 20, per: 1s, algorithm: leaky_bucket}, \
                  {rate: 15, per: 1s}, \
                  {rate: 15, per: 1s, algorithm: token_bucket, burst: 3}";
        let instants = drain(limits, 35, &upstream).await;

        upstream.assert_within(15, SECOND);
        let (least, _) = usual_gaps(&instants);
        let level = fullest_bucket(&instants, 15.0, SECOND);
        println!("35 in {:?}, gaps from {least:?}, bucket at most {level:.2}", taken(&instants));
        let short = blur(&upstream, SECOND / 40);
        assert!(least >= SECOND / 20 - short, "a gap of {least:?}, blur {short:?}");
        let allowed = 3.0 + 15.0 * blur(&upstream, SECOND / 10).as_secs_f64();
        assert!(level <= allowed, "{level} permits in the bucket, {allowed} allowed");
        // Fifteen permits of the sliding window, twice; then five more, evenly spaced.
        let whole = 2 * SECOND + SECOND / 20 * 4;
        assert!(taken(&instants) <= whole.mul_f64(1.02) + SLACK, "{:?}", taken(&instants));
    })
    .await;
}

#[tokio::test]
async fn a_precision_of_ten_makes_the_classic_counter() {
    lane::calm(async || {
        let upstream = Upstream::start();
        let instants = drain("{rate: 100, per: 1s, precision: 10}", 300, &upstream).await;
        upstream.assert_within(100, SECOND);
        // Bookings are rounded up to tenths of the window, so each window may come a tenth later.
        let used = occupancy(&instants, 100, SECOND + SECOND / 10);
        println!("300 at 100/1s in {:?}, {:.1} % of the quota used", taken(&instants), used * 100.0);
        assert!(used >= 0.9, "{:.1} % of the quota used", used * 100.0);
    })
    .await;
}
