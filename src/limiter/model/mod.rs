//! Values that cannot be wrong: limits, partitions, refusals. Knows no state and no instant.

pub mod limit;
pub mod partition;
pub mod refusal;
