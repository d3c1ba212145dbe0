//! Sockets, and how futures that read and write them are polled.

pub(crate) mod driver;
pub(crate) mod spawner;
pub(crate) mod stream;
