//! YAML to a [`Config`], every problem with its place. Knows nothing of the proxy, the stores or the admin API.

pub mod handle;
pub mod model;

pub use handle::Handle;
pub use model::Config;
