//! Reads the quota that an upstream reports in the headers of its response. Pure, and knows nothing of limiters.
//!
//! There is one standard, `Retry-After` (RFC 9110, 10.2.3), one draft that has changed its fields three times
//! (draft-ietf-httpapi-ratelimit-headers), and a family of names with `ratelimit` or `rate-limit` in them. [`names`] has the table of
//! names, [`values`] and [`structured`] the forms of values, and [`reader`] puts a response's windows together. `tests/vendors.rs` has a
//! case for each vendor.

pub(crate) mod names;
mod reader;
mod structured;
mod values;
mod window;

#[cfg(test)]
mod tests;

pub(crate) use self::reader::{Quota, WINDOWS_MAX};
pub(crate) use self::values::SPAN_MAX;
pub(crate) use self::window::QuotaWindow;
