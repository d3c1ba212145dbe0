//! Gives the tasks that hyper starts an owner.

use hyper::rt::Executor;
use tokio_util::task::TaskTracker;

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
