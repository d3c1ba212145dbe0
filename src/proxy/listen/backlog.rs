//! Empties the backlog of a listening socket that is about to be closed.
//!
//! Closing a listening socket resets the connections that the kernel has accepted for it, and those whose handshake is under way.
//! Their clients already send requests. Knows nothing of what is served.

use std::io;

use tokio::net::{TcpListener, TcpStream};

/// The most connections that are taken without waiting: more than any backlog holds.
const TAKEN_MAX: usize = 65_536;

/// Begins no further handshake, as if the SYNs of new clients were lost on their way. Handshakes under way are completed. A new client
/// repeats its SYN after a second, and meets a closed port or the next process.
///
/// # Errors
/// If the system has no filters of sockets.
#[cfg(target_os = "linux")]
pub(super) fn begin_no_handshake(listener: &TcpListener) -> io::Result<()> {
    use socket2::{SockFilter, SockRef};

    // A program of the kernel's packet filter (linux/filter.h). It sees a packet from the TCP header on.
    const LOAD_BYTE: u16 = 0x30;
    const JUMP_IF_ANY_BIT: u16 = 0x45;
    const RETURN: u16 = 0x06;
    /// The offset of the flags in a TCP header, and the flag of a packet that begins a handshake.
    const FLAGS: u32 = 13;
    const SYN: u32 = 0x02;
    SockRef::from(listener).attach_filter(&[
        SockFilter::new(LOAD_BYTE, 0, 0, FLAGS),
        SockFilter::new(JUMP_IF_ANY_BIT, 0, 1, SYN),
        SockFilter::new(RETURN, 0, 0, 0),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
    ])
}

/// Reports that this system has no such filter: a client that connects right before the close is reset.
#[cfg(not(target_os = "linux"))]
pub(super) fn begin_no_handshake(_: &TcpListener) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Takes the connections that the kernel has accepted, and closes the socket. Asks the kernel itself: the runtime's view of a socket
/// is as old as its last look at the poller.
///
/// # Errors
/// Those of the socket.
pub(super) fn take_rest(listener: TcpListener) -> io::Result<Vec<TcpStream>> {
    let listener = listener.into_std()?;
    let mut taken = Vec::new();
    while taken.len() < TAKEN_MAX {
        match listener.accept() {
            Ok((tcp, _)) => {
                tcp.set_nonblocking(true)?;
                taken.push(TcpStream::from_std(tcp)?);
            }
            Err(error) if is_about_one_connection(&error) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => {
                tracing::warn!(%error, "cannot accept the last connections");
                break;
            }
        }
    }
    Ok(taken)
}

/// Returns whether the client gave up between its SYN and the accept.
pub(super) fn is_about_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn everything_that_the_kernel_has_accepted_is_taken() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut clients = Vec::new();
        for _ in 0..100 {
            clients.push(std::net::TcpStream::connect(address).unwrap());
        }
        // The runtime has not looked at the socket since.
        assert_eq!(take_rest(listener).unwrap().len(), 100);
        assert!(TcpStream::connect(address).await.is_err());
    }

    #[tokio::test]
    #[cfg(target_os = "linux")]
    async fn no_handshake_begins_behind_the_filter() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let _before = TcpStream::connect(address).await.unwrap();
        begin_no_handshake(&listener).unwrap();
        let after = TcpStream::connect(address);
        assert!(timeout(Duration::from_millis(200), after).await.is_err(), "the SYN was answered");
        assert_eq!(take_rest(listener).unwrap().len(), 1);
    }
}
