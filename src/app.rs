//! stand-in
use crate::config::Config;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
/// e
#[derive(Debug, thiserror::Error)]
#[error("start")]
pub struct StartError;
/// a
pub struct App(SocketAddr);
impl App {
    /// s
    pub async fn start(_config: Config, _path: Option<PathBuf>) -> Result<App, StartError> {
        Err(StartError)
    }
    /// p
    pub fn proxy_address(&self) -> SocketAddr {
        self.0
    }
    /// a
    pub fn admin_address(&self) -> SocketAddr {
        self.0
    }
    /// d
    pub async fn drain(self) {}
}
/// s
pub async fn serve(_path: &Path) -> Result<(), StartError> {
    Err(StartError)
}
