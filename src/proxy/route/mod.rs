//! Chooses the route, the partitions and the caller of a request.

pub(crate) mod caller;
pub(crate) mod partition;
pub(crate) mod path;
pub(crate) mod router;
