//! YAML to a [`Config`], every problem with its place. Knows nothing of the proxy, the stores or the admin API.

pub mod handle;
pub mod model;

pub use handle::{Handle, Outcome, Reload};
pub use model::Config;

/// stand-in
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[allow(missing_docs)]
pub struct Problem {
    pub file: std::sync::Arc<str>,
    pub line: u32,
    pub column: u32,
    pub path: String,
    pub message: String,
}
/// stand-in
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct Loaded {
    pub config: std::sync::Arc<Config>,
    pub masked: std::sync::Arc<serde_json::Value>,
}
/// stand-in
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("load")]
pub struct LoadError {
    /// stand-in
    pub problems: Vec<Problem>,
}
/// stand-in
pub fn parse(_name: &std::path::Path, _text: &str) -> Result<Loaded, LoadError> {
    Err(LoadError { problems: vec![] })
}
