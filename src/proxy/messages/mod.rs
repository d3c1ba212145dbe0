//! Heads and bodies of requests and responses.

pub(crate) mod body;
pub(crate) mod headers;
pub(crate) mod quota;
pub(crate) mod response;
