//! Decides when a request may pass. Knows nothing of HTTP, Redis or YAML.
//!
//! - [`limit`]: what a limiter promises, as values that cannot be wrong.

pub mod limit;
