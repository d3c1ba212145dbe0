//! Forwards one request.

pub(crate) mod forwarder;
pub(crate) mod record;
pub(crate) mod retry;
pub(crate) mod upgrade;
