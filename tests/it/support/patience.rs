//! Waiting for a condition, with a deadline. No test sleeps and hopes.

use std::time::{Duration, Instant};

/// A deadline that is long enough for an immediate event on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// The interval at which a condition is checked.
const INTERVAL: Duration = Duration::from_millis(5);

/// Waits until the condition holds. Panics with `what` when [`PATIENCE`] is over.
pub(crate) async fn eventually(what: &str, condition: impl AsyncFnMut() -> bool) {
    eventually_within(what, PATIENCE, condition).await;
}

/// Waits until the condition holds. Panics with `what` when the deadline passes.
pub(crate) async fn eventually_within(
    what: &str,
    deadline: Duration,
    mut condition: impl AsyncFnMut() -> bool,
) {
    poll_for_within(what, deadline, async || condition().await.then_some(())).await;
}

/// Waits until the probe returns a value. Panics with `what` when [`PATIENCE`] is over.
pub(crate) async fn poll_for<T>(what: &str, probe: impl AsyncFnMut() -> Option<T>) -> T {
    poll_for_within(what, PATIENCE, probe).await
}

/// Waits until the probe returns a value. Panics with `what` when the deadline passes.
pub(crate) async fn poll_for_within<T>(
    what: &str,
    deadline: Duration,
    mut probe: impl AsyncFnMut() -> Option<T>,
) -> T {
    let end = Instant::now() + deadline;
    loop {
        if let Some(value) = probe().await {
            return value;
        }
        assert!(Instant::now() < end, "still waiting after {deadline:?} for: {what}");
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Waits until an instant.
pub(crate) async fn wait_until(instant: Instant) {
    tokio::time::sleep_until(instant.into()).await;
}
