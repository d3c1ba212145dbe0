//! The reasons why a Redis store cannot be set up.

use std::io;

/// Why a Redis store cannot be set up from its configuration. No server has been asked yet.
#[derive(Debug, thiserror::Error)]
pub enum RedisSetupError {
    /// The address is invalid.
    #[error("store.redis: {0}")]
    Address(String),
    /// A PEM file cannot be read.
    #[error("store.redis.tls: cannot read {path}: {error}")]
    File {
        /// The path of the file.
        path: String,
        /// The cause.
        error: io::Error,
    },
    /// TLS cannot be set up with what the files hold.
    #[error("store.redis.tls: {0}")]
    Tls(String),
}
