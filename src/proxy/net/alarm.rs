//! A timer for deadlines of which most are never reached.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::time::{Instant, Sleep, sleep_until};

/// A timer for deadlines of which most are never reached.
///
/// The runtime's timer is set when it is first needed, and again only for an earlier deadline or after ringing too soon. A later
/// deadline costs nothing.
#[derive(Default)]
pub(crate) struct Alarm(Option<Pin<Box<Sleep>>>);

impl Alarm {
    /// Returns ready at `deadline`.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>, deadline: Instant) -> Poll<()> {
        let sleep = self.0.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if deadline < sleep.deadline() {
            sleep.as_mut().reset(deadline);
        }
        loop {
            ready!(sleep.as_mut().poll(context));
            if sleep.deadline() >= deadline {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(deadline);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_alarm_rings_at_the_last_deadline_set() {
        let mut alarm = Alarm::default();
        let begin = Instant::now();
        let second = std::time::Duration::from_secs(1);
        for (from, to) in [(10, 20), (25, 30), (50, 35)] {
            let mut deadlines = [from, to].into_iter().map(|seconds| begin + second * seconds);
            let (mut deadline, later) = (deadlines.next().unwrap(), deadlines.next().unwrap());
            poll_fn(|context| {
                let poll = alarm.poll(context, deadline);
                deadline = later;
                if poll.is_pending() { alarm.poll(context, deadline) } else { poll }
            })
            .await;
            assert_eq!(begin.elapsed(), second * to);
        }
    }
}
