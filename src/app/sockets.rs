//! The sockets that weir listens on. Knows nothing of what is served there.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

/// The most connections that the kernel holds until they are accepted: enough for a burst of a whole fleet.
const BACKLOG: u32 = 4096;

/// Listens on an address, which several sockets in turn may have. Returns the address with the port that was given.
///
/// # Errors
/// Those of the system: the address is in use, or not one of this machine.
pub(super) fn listen(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    let listener = socket.listen(BACKLOG)?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}
