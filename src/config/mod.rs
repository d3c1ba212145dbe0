//! YAML to a [`Config`], every problem with its place. Knows nothing of the proxy, the stores or the admin API.

pub mod model;

pub use model::Config;
