//! YAML to a [`Config`], every problem with its place. Knows nothing of the proxy, the stores or the admin API.
//!
//! A file passes these stages, each in its own module:
//!
//! - `yaml`: text to a tree that knows its lines and columns.
//! - `interpolate`: `${...}` in values.
//! - `decode`: tree to `schema`, the configuration as a user writes it; problems of shape.
//! - `validate`: `schema` to [`model`], the configuration as it is used; problems of meaning.
//!
//! Beside them, [`load()`] runs all stages, [`Handle`] holds what is running, [`Watch`] notices changes,
//! [`json_schema()`] describes the schema to editors, and [`reference()`] to people.

mod decode;
mod handle;
mod interpolate;
mod json_schema;
mod load;
mod masked;
pub mod model;
mod problem;
mod reference;
mod schema;
pub(crate) mod units;
mod validate;
mod watch;
mod yaml;

pub use handle::{Handle, Outcome, Reload};
pub use json_schema::json_schema;
pub use load::{LoadError, Loaded, load, load_with, parse};
pub use model::Config;
pub use problem::Problem;
pub use reference::reference;
pub use watch::Watch;
