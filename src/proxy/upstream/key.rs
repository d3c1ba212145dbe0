//! The identity of an upstream over reloads, and the way it is reached.
//!
//! Reads no file: the contents are handed in.

use std::sync::Arc;
use std::time::Duration;

use super::dial::{Resolve, SystemResolver};
use crate::config::model::Upstream as Settings;

/// The age at which a connection to an upstream carries no new request.
///
/// An open connection stays at the address that its name had. So this is the delay with which a change in DNS is followed under
/// load, at the price of a handshake now and then.
const CONNECTION_AGE_MAX: Duration = Duration::from_secs(600);

/// The way to reach upstreams, beyond the configuration.
#[derive(Clone)]
pub struct Reach {
    /// The resolver of upstreams' names.
    pub resolver: Arc<dyn Resolve>,
    /// The age at which a connection carries no new request.
    pub connection_age_max: Duration,
}

impl Default for Reach {
    fn default() -> Reach {
        Reach { resolver: Arc::new(SystemResolver), connection_age_max: CONNECTION_AGE_MAX }
    }
}

/// The identity of an upstream: its settings, those of the server that concern it, and the contents of the files that they name, so that a reload follows rotated
/// files. Not `Debug`, because it holds a private key.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// The settings as configured.
    pub(crate) settings: Settings,
    /// The longest time for which the upstream takes none of the bytes that wait for it.
    pub(crate) write_timeout: Duration,
    /// The contents of `ca`.
    pub(crate) ca: Option<Vec<u8>>,
    /// The contents of `cert` and of `key`.
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
}
