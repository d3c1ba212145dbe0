//! Ends a stream of HTTP/2 whose client takes nothing.
//!
//! The kernel sees a client that takes no byte of a connection ([`super::stream`]). But a client of HTTP/2 can read the connection and
//! still take nothing of a stream. hyper then keeps the piece that it has and does not ask the stream's body for a further one, so the
//! body cannot notice, and its task does. Knows nothing of requests.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, ready};
use std::time::Duration;

use tokio::time::Instant;

use super::driver::Alarm;

tokio::task_local! {
    /// The number of times that the task's body was asked for a piece or handed one over, in turn: odd while the piece handed over may
    /// still wait, because the next has not been asked for.
    static TURNS: Arc<AtomicU64>;
}

/// Notes that the current task's body hands over a piece. Behind the last one the task ends when the client has room for it.
pub(crate) fn hands_over() {
    let _ = TURNS.try_with(|turns| turns.fetch_or(1, Ordering::Relaxed));
}

/// Notes that the current task's body is asked for a piece.
pub(crate) fn asks() {
    let _ = TURNS.try_with(|turns| {
        // Only the task itself counts.
        let count = turns.load(Ordering::Relaxed);
        turns.store(count + count % 2, Ordering::Relaxed);
    });
}

/// Runs the task of a stream until its end, or until a piece of its body has waited for `limit`.
pub(crate) async fn bounded(task: impl Future, limit: Duration) {
    let turns = Arc::new(AtomicU64::new(0));
    let mut task = pin!(TURNS.scope(Arc::clone(&turns), task));
    let (mut seen, mut since, mut alarm) = (0, Instant::now(), Alarm::default());
    poll_fn(|context| {
        if task.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        let now_seen = turns.load(Ordering::Relaxed);
        if now_seen.is_multiple_of(2) {
            return Poll::Pending;
        }
        if now_seen != seen {
            (seen, since) = (now_seen, Instant::now());
        }
        ready!(alarm.poll(context, since + limit));
        tracing::debug!("a client takes nothing of a stream");
        Poll::Ready(())
    })
    .await;
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_task_ends_when_its_piece_has_waited_for_too_long() {
        let begin = Instant::now();
        let task = async {
            // Waiting for the first piece takes as long as it takes.
            asks();
            sleep(2 * LIMIT).await;
            for _ in 0..3 {
                hands_over();
                sleep(LIMIT / 2).await;
                asks();
            }
            hands_over();
            std::future::pending::<()>().await;
        };
        bounded(task, LIMIT).await;
        assert_eq!(begin.elapsed(), 2 * LIMIT + 3 * LIMIT / 2 + LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_waits_for_nobody_ends_by_itself() {
        let begin = Instant::now();
        let task = async {
            hands_over();
            asks();
            sleep(10 * LIMIT).await;
        };
        bounded(task, LIMIT).await;
        assert_eq!(begin.elapsed(), 10 * LIMIT);
    }
}
