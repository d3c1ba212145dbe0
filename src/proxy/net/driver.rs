//! Polls a future from within another task, and only when the future has been woken.
//!
//! hyper splits an upstream connection in two: a sender of requests, and a future that reads and writes. Usually that future gets a
//! task, so that every request crosses to another task and back: two more wake-ups, perhaps on another processor. Here the task of
//! the request drives the future itself. A connection's task also uses it for futures that hardly ever wake, timers above all.
//! Knows nothing of HTTP.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker, ready};

use futures_util::task::AtomicWaker;
use tokio::task::coop::has_budget_remaining;
use tokio::time::{Instant, Sleep, sleep_until};

/// The most polls of the future in one go. The runtime, too, makes every poll beyond a number of operations wait for the task's next
/// turn.
const ROUNDS_MAX: u8 = 16;

/// A future that other tasks poll, one after the other.
pub(crate) struct Driver<F: ?Sized> {
    future: Pin<Box<F>>,
    state: Arc<State>,
    /// The waker of `state`, made once.
    waker: Waker,
}

/// The wake-up of a future, shared with its wakers.
struct State {
    /// The task that drives it, if one does.
    task: AtomicWaker,
    woken: AtomicBool,
    /// True while a task is driving the future. That task reads `woken` before it returns and needs no wake-up.
    ///
    /// Invariant: a wake sets `woken` before it reads `driven`, and a drive clears `driven` before it reads `woken` for
    /// the last time. Both are sequentially consistent, so at least one sees the other, and no wake-up is lost.
    driven: AtomicBool,
}

impl Wake for State {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        if !self.driven.load(Ordering::SeqCst) {
            self.task.wake();
        }
    }
}

impl<F: Future + ?Sized> Driver<F> {
    /// Wraps a future that has not been polled yet.
    pub(crate) fn new(future: Pin<Box<F>>) -> Driver<F> {
        let (task, woken, driven) = (AtomicWaker::new(), AtomicBool::new(true), AtomicBool::new(false));
        let state = Arc::new(State { task, woken, driven });
        Driver { future, waker: Waker::from(Arc::clone(&state)), state }
    }

    /// Polls the future if it has been woken.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<F::Output> {
        self.state.task.register(context.waker());
        if !self.state.woken.swap(false, Ordering::SeqCst) {
            return Poll::Pending;
        }
        self.future.as_mut().poll(&mut Context::from_waker(&self.waker))
    }

    /// Polls `step`, which progresses only with the future, and the future, until neither progresses. Returns the result of
    /// `step`, or `Err` if the future ends first.
    pub(crate) fn drive<S>(
        &mut self,
        context: &mut Context<'_>,
        mut step: impl FnMut(&mut Context<'_>) -> Poll<S>,
    ) -> Poll<Result<S, F::Output>> {
        self.state.task.register(context.waker());
        self.state.driven.store(true, Ordering::SeqCst);
        let mut rounds = 0..ROUNDS_MAX;
        let outcome = loop {
            // It needs no waker, because it is polled again after every poll of the future.
            if let Poll::Ready(done) = step(&mut Context::from_waker(Waker::noop())) {
                break Poll::Ready(Ok(done));
            }
            if rounds.next().is_none()
                || !has_budget_remaining()
                || !self.state.woken.swap(false, Ordering::SeqCst)
            {
                break Poll::Pending;
            }
            if let Poll::Ready(end) = self.future.as_mut().poll(&mut Context::from_waker(&self.waker)) {
                break Poll::Ready(Err(end));
            }
        };
        self.state.driven.store(false, Ordering::SeqCst);
        if outcome.is_pending() && self.state.woken.load(Ordering::SeqCst) {
            context.waker().wake_by_ref();
        }
        outcome
    }

    /// Polls the future until it makes no progress by itself. A future that wakes its own task this way needs no turn of the scheduler.
    pub(crate) fn advance(&mut self, context: &mut Context<'_>) -> Poll<F::Output> {
        match ready!(self.drive(context, |_| Poll::<Infallible>::Pending)) {
            Ok(never) => match never {},
            Err(end) => Poll::Ready(end),
        }
    }

    /// Changes the future, which is polled again.
    pub(crate) fn change(&mut self, change: impl FnOnce(Pin<&mut F>)) {
        change(self.future.as_mut());
        self.waker.wake_by_ref();
    }

    /// Polls the future a last time before no task drives it; `Ready` if it has ended.
    pub(crate) fn rest(&mut self) -> Poll<F::Output> {
        drop(self.state.task.take());
        self.state.woken.store(false, Ordering::SeqCst);
        self.future.as_mut().poll(&mut Context::from_waker(&self.waker))
    }

    /// Returns whether the future has been woken since [`Driver::rest`].
    pub(crate) fn is_woken(&self) -> bool {
        self.state.woken.load(Ordering::SeqCst)
    }

    /// Returns the future, for a task of its own.
    pub(crate) fn into_inner(self) -> Pin<Box<F>> {
        self.future
    }
}

/// A timer for deadlines of which most are never reached.
///
/// The runtime's timer is set when it is first needed, and again only for an earlier deadline or after ringing too soon. A later
/// deadline costs nothing.
#[derive(Default)]
pub(crate) struct Alarm(Option<Driver<Sleep>>);

impl Alarm {
    /// Returns ready at `deadline`.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>, deadline: Instant) -> Poll<()> {
        let sleep = self.0.get_or_insert_with(|| Driver::new(Box::pin(sleep_until(deadline))));
        let mut rings_at = sleep.future.deadline();
        if deadline < rings_at {
            rings_at = sleep.set(deadline);
        }
        loop {
            ready!(sleep.poll(context));
            if rings_at >= deadline {
                sleep.state.woken.store(true, Ordering::SeqCst);
                return Poll::Ready(());
            }
            rings_at = sleep.set(deadline);
        }
    }
}

impl Driver<Sleep> {
    fn set(&mut self, at: Instant) -> Instant {
        self.future.as_mut().reset(at);
        self.state.woken.store(true, Ordering::SeqCst);
        at
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;

    use tokio::sync::{mpsc, oneshot};

    use super::*;

    /// Replies to each number with its successor.
    fn echo() -> (Driver<impl Future<Output = ()>>, mpsc::UnboundedSender<(u32, oneshot::Sender<u32>)>) {
        let (sender, mut receiver) = mpsc::unbounded_channel::<(u32, oneshot::Sender<u32>)>();
        let driver = Driver::new(Box::pin(async move {
            while let Some((number, reply)) = receiver.recv().await {
                tokio::task::yield_now().await;
                let _ = reply.send(number + 1);
            }
        }));
        (driver, sender)
    }

    #[tokio::test]
    async fn a_step_completes_by_driving_the_future() {
        let (mut driver, sender) = echo();
        for number in 0..10 {
            let (reply, replied) = oneshot::channel();
            sender.send((number, reply)).unwrap();
            let mut replied = pin!(replied);
            let step = poll_fn(|context| driver.drive(context, |context| replied.as_mut().poll(context)));
            assert_eq!(step.await.unwrap(), Ok(number + 1));
            assert!(driver.rest().is_pending());
            assert!(!driver.is_woken());
        }
    }

    #[tokio::test]
    async fn the_end_of_the_future_is_returned() {
        let (mut driver, sender) = echo();
        drop(sender);
        let end = poll_fn(|context| driver.drive(context, |_| Poll::<()>::Pending)).await;
        assert_eq!(end, Err(()));
    }

    /// Only the last look at `woken` wakes the task here.
    #[tokio::test]
    async fn a_wake_while_it_is_driven_is_not_lost() {
        let mut driver = Driver::new(Box::pin(async {
            for _ in 0..10 * u32::from(ROUNDS_MAX) {
                let mut is_second = false;
                poll_fn(|context| {
                    context.waker().wake_by_ref();
                    if std::mem::replace(&mut is_second, true) { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
            }
        }));
        let end = poll_fn(|context| driver.drive(context, |_| Poll::<()>::Pending));
        let end = tokio::time::timeout(std::time::Duration::from_secs(10), end).await;
        assert_eq!(end.unwrap(), Err(()));
    }

    #[tokio::test]
    async fn a_wake_up_at_rest_is_remembered_and_wakes_no_task() {
        let (mut driver, sender) = echo();
        assert!(driver.rest().is_pending());
        let (reply, _replied) = oneshot::channel();
        sender.send((1, reply)).unwrap();
        assert!(driver.is_woken());
    }

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

    #[tokio::test]
    async fn a_wake_from_another_thread_is_not_lost() {
        for _ in 0..2000 {
            let (reply, replied) = oneshot::channel();
            let mut driver = Driver::new(Box::pin(replied));
            let answering = std::thread::spawn(move || reply.send(7));
            let done = poll_fn(|context| driver.drive(context, |_| Poll::<()>::Pending));
            let done = tokio::time::timeout(std::time::Duration::from_secs(10), done).await;
            assert_eq!(done.unwrap(), Err(Ok(7)));
            answering.join().unwrap().unwrap();
        }
    }
}
