//! Gives the tasks that hyper starts an owner.

use std::time::Duration;

use hyper::rt::Executor;
use tokio_util::task::TaskTracker;

use super::stall;

/// An executor for hyper that spawns on a tracker, so that shutdown can wait for the tasks.
#[derive(Clone)]
pub(crate) struct Spawner(pub(crate) TaskTracker);

impl<F> Executor<F> for Spawner
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        self.0.spawn(future);
    }
}

/// An executor for the streams of a client, each of which ends when the client takes nothing of it for too long.
#[derive(Clone)]
pub(crate) struct StreamSpawner {
    /// The owner of the tasks.
    pub(crate) tasks: TaskTracker,
    /// The longest time.
    pub(crate) write_timeout: Duration,
}

impl<F> Executor<F> for StreamSpawner
where
    F: Future + Send + 'static,
{
    fn execute(&self, future: F) {
        self.tasks.spawn(stall::bounded(future, self.write_timeout));
    }
}
