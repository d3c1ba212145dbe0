//! Runs the streams of an HTTP/2 connection inside the connection's own task.
//!
//! hyper asks for a task for each stream. Every piece of a body would then go from the stream's task to the connection's, and the room
//! for the next one back: two trips through the scheduler, most of them to another processor. Here both are polled in turn, and wake-ups
//! between them stay inside the task. So a connection takes one processor at most. Knows nothing of requests.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hyper::rt::Executor;

use super::driver::Driver;
use super::stall;
use super::windows::Windows;

type Stream = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The streams that have begun since the connection was polled last. Each ends when its client takes nothing of it for too long.
#[derive(Clone)]
pub(crate) struct Begun {
    streams: Arc<Mutex<Vec<Stream>>>,
    write_timeout: Duration,
}

impl Begun {
    /// Creates the list, with the longest time for which a client may take nothing of a stream.
    pub(crate) fn new(write_timeout: Duration) -> Begun {
        Begun { streams: Arc::default(), write_timeout }
    }

    fn take(&self) -> Vec<Stream> {
        std::mem::take(&mut *self.streams.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<F> Executor<F> for Begun
where
    F: Future + Send + 'static,
{
    fn execute(&self, stream: F) {
        let stream = Box::pin(stall::bounded(stream, self.write_timeout));
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
    }
}

/// A connection with its streams. It ends with the connection.
pub(crate) struct Multiplexed<C> {
    connection: Driver<C>,
    begun: Begun,
    running: FuturesUnordered<Stream>,
    windows: Arc<Windows>,
}

impl<C: Future> Multiplexed<C> {
    /// Wraps a connection that puts its streams into `begun`, with the windows of its client's streams.
    pub(crate) fn new(connection: Pin<Box<C>>, begun: Begun, windows: Arc<Windows>) -> Multiplexed<C> {
        Multiplexed { connection: Driver::new(connection), begun, running: FuturesUnordered::new(), windows }
    }

    /// Changes the connection, which is polled again.
    pub(crate) fn change(&mut self, change: impl FnOnce(Pin<&mut C>)) {
        self.connection.change(change);
    }
}

impl<C: Future> Future for Multiplexed<C> {
    type Output = C::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<C::Output> {
        let this = &mut *self;
        if let Poll::Ready(end) = this.connection.poll(context) {
            return Poll::Ready(end);
        }
        this.windows.end_turn();
        this.running.extend(this.begun.take());
        // Their frames for the connection wake it, and is written at once.
        while let Poll::Ready(Some(())) = this.running.poll_next_unpin(context) {}
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::sync::mpsc;
    use tokio::time::timeout;

    use super::*;

    /// The first stream is begun by the connection, passes a number to it, and is passed its successor.
    #[tokio::test]
    async fn a_connection_and_its_streams_wake_each_other() {
        let begun = Begun::new(Duration::from_secs(60));
        let (to_connection, mut from_stream) = mpsc::channel::<u32>(1);
        let (to_stream, mut from_connection) = mpsc::channel::<u32>(1);
        let own = begun.clone();
        let connection = Box::pin(async move {
            own.execute(async move {
                let mut number = 0;
                while number < 1000 {
                    to_connection.send(number).await.unwrap();
                    number = from_connection.recv().await.unwrap();
                }
            });
            while let Some(number) = from_stream.recv().await {
                to_stream.send(number + 1).await.unwrap();
            }
        });
        let mut both = Driver::new(Box::pin(Multiplexed::new(connection, begun, Arc::new(Windows::new(1)))));
        let ended = poll_fn(|context| both.advance(context));
        timeout(Duration::from_secs(5), ended).await.unwrap();
    }

    #[tokio::test]
    async fn a_change_is_seen_by_a_connection_that_waits() {
        struct Waiting(bool);
        impl Future for Waiting {
            type Output = ();
            fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
                if self.0 { Poll::Ready(()) } else { Poll::Pending }
            }
        }
        let connection = Box::pin(Waiting(false));
        let (begun, windows) = (Begun::new(Duration::from_secs(60)), Arc::new(Windows::new(1)));
        let multiplexed = Multiplexed::new(connection, begun, windows);
        let mut both = Driver::new(Box::pin(multiplexed));
        assert!(poll_fn(|context| Poll::Ready(both.advance(context))).await.is_pending());
        both.change(|both| both.get_mut().change(|mut connection| connection.0 = true));
        assert!(poll_fn(|context| Poll::Ready(both.advance(context))).await.is_ready());
    }
}
