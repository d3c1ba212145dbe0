//! Waiting for a condition, with a deadline. No test sleeps and hopes.

use std::time::{Duration, Instant};

/// A deadline that is long enough for an immediate event on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The interval at which a condition is checked.
const INTERVAL: Duration = Duration::from_millis(5);

/// Waits until the condition holds.
///
/// Panics with `what` when the deadline passes.
pub(crate) async fn eventually(what: &str, deadline: Duration, mut condition: impl AsyncFnMut() -> bool) {
    poll_for(what, deadline, async || condition().await.then_some(())).await;
}

/// Waits until the probe returns a value.
///
/// Panics with `what` when the deadline passes.
pub(crate) async fn poll_for<T>(
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
