//! Tasks that hyper starts, owned.

use hyper::rt::Executor;
use tokio_util::task::TaskTracker;

/// Starts hyper's tasks on a tracker, which can be waited for.
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
