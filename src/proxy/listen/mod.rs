//! Accepts the connections of clients and reads HTTP from them.

pub(crate) mod connection;
pub(crate) mod http2_guard;
pub(crate) mod listener;
pub(crate) mod tls;
