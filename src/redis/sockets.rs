//! How the sockets to Redis are set up.

use redis::io::tcp::TcpSettings;
use tokio::time::Duration;

/// How long the kernel sends what nobody acknowledges, until it ends a connection.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(20);

/// Returns the settings of every socket. A call waits for no other one's acknowledgement (Nagle's algorithm), and a connection to a host that
/// has vanished ends.
pub(super) fn tcp_settings() -> TcpSettings {
    let settings = TcpSettings::default().set_nodelay(true);
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let settings = settings.set_user_timeout(UNACKNOWLEDGED_MAX);
    settings
}
