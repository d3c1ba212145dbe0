//! YAML to a [`Config`], every problem with its place. Knows nothing of the proxy, the stores or the admin API.

pub mod handle;
pub mod model;

pub use handle::Handle;
pub use model::Config;

/// stand-in
#[derive(Debug, thiserror::Error)]
#[error("load")]
pub struct LoadError;
/// stand-in
pub fn from_text(_name: &str, _text: &str) -> Result<Config, LoadError> {
    Err(LoadError)
}
