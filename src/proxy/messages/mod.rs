//! Reads and writes the parts of HTTP messages: heads, bodies, and the quota that an upstream reports.
//!
//! Knows nothing of connections, routes and limiters. Status codes occur in [`response`] alone.

pub(crate) mod body_facts;
pub(crate) mod body_numbers;
pub(crate) mod client_body;
pub(crate) mod coding;
pub(crate) mod end_to_end;
pub(crate) mod estimate;
pub(crate) mod form;
pub(crate) mod header_flags;
pub(crate) mod headers;
pub(crate) mod idle_timer;
pub(crate) mod json;
pub(crate) mod json_values;
pub(crate) mod limit_headers;
pub(crate) mod patience;
pub(crate) mod quota;
pub(crate) mod request_body;
pub(crate) mod request_head;
pub(crate) mod response;
pub(crate) mod settle;
pub(crate) mod stream_usage;
pub(crate) mod text_sizes;
pub(crate) mod upload;
pub(crate) mod versions;
