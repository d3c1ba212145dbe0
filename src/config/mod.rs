//! YAML to a [`Config`], with the place of every problem.
//!
//! A file passes these stages, each in its own module:
//!
//! - `yaml`: text to a tree with lines and columns.
//! - `interpolate`: `${...}` in values.
//! - `decode`: tree to `schema`, the configuration as a user writes it; problems of shape.
//! - `validate`: `schema` to [`model`], the configuration as weir uses it; problems of meaning.
//!
//! Beside the stages:
//!
//! - `load`: runs them all. `file`: files as text. `problem`: a problem with its place; `excerpt`: its line. `units`: durations, sizes and limits
//!   as text; `faults`: the faulty part of one.
//! - `effective`: a file with all defaults. `changes`: what differs between two.
//! - `handle`: the running configuration. `watch`: notices changes of a file, by
//!   `directories`. `named_files`: those that a file names. `masked`: a file without its secrets.
//! - `key_part`, `json_path`: what keys and conditions read of a request.
//! - `json_schema` and `reference`: the schema for editors, and for people.
//!
//! Uses types of the limiter's `model`, of `telemetry` and `bearer`. Knows nothing of the proxy, the stores or the
//! admin API.

mod changes;
mod clients;
mod costs;
mod decode;
mod directories;
mod effective;
mod errors;
mod excerpt;
mod faults;
mod file;
mod handle;
mod interpolate;
mod json_path;
mod json_schema;
mod key_part;
mod limit_headers;
mod load;
mod masked;
pub mod model;
mod named_files;
mod patience;
mod pause_rules;
mod presets;
mod problem;
mod reference;
mod schema;
pub(crate) mod units;
mod validate;
mod value_map;
mod watch;
mod yaml;

pub use changes::Change;
pub use handle::{Changed, Handle, Outcome, Reload};
pub use json_schema::json_schema;
pub use load::{LoadError, Loaded, load, load_from, load_with, parse, parse_with};
pub use model::Config;
pub use problem::Problem;
pub(crate) use problem::unknown;
pub use reference::reference;
pub use watch::Watch;
