//! Sockets and tasks, below everything that speaks HTTP: streams, timers, certificates.
//!
//! Knows nothing of requests.

pub(crate) mod activity;
pub(crate) mod body_memory;
pub(crate) mod certificates;
pub(crate) mod descriptors;
pub(crate) mod driver;
pub(crate) mod read_ahead;
pub(crate) mod spawner;
pub(crate) mod stall;
pub(crate) mod stream;
pub(crate) mod streams;
pub(crate) mod unread;
pub(crate) mod windows;
