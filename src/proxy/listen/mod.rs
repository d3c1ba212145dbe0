//! Accepts the connections of clients and reads requests from them.
//!
//! Knows TLS, the versions of HTTP and their abuse. Knows nothing of routes, limiters and upstreams: a [`service::Service`] answers.

pub(crate) mod backlog;
pub(crate) mod client;
pub(crate) mod client_io;
pub(crate) mod connection;
pub(crate) mod early_bytes;
pub(crate) mod first_line;
pub(crate) mod http2_guard;
pub(crate) mod linger;
pub(crate) mod listener;
pub(crate) mod protocol;
pub(crate) mod service;
pub(crate) mod slots;
pub(crate) mod switch;
pub(crate) mod tls;
