//! Keeps tests whose judgement depends on timing away from each other.
//!
//! The test runner starts as many tests at once as there are cores. A test that judges instants takes the lane for
//! itself; every other test shares it. Each test takes a lane in its first line.

use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Fair: a test that waits for the lane alone is not overtaken by those that share it.
static LANE: RwLock<()> = RwLock::const_new(());

/// For tests that judge what happened, not when.
pub(crate) async fn shared() -> RwLockReadGuard<'static, ()> {
    LANE.read().await
}

/// For tests that judge instants, or load the machine.
pub(crate) async fn alone() -> RwLockWriteGuard<'static, ()> {
    LANE.write().await
}
