//! Sockets and tasks, below everything that speaks HTTP: streams, timers, certificates.
//!
//! Knows nothing of requests.

pub(crate) mod alarm;
pub(crate) mod certificates;
pub(crate) mod spawner;
pub(crate) mod stream;
