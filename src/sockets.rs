//! What a process with thousands of connections needs of its system.

use std::io;
use std::net::SocketAddr;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpSocket};

/// Connections that may wait to be accepted. (The kernel has a bound of its own, `net.core.somaxconn`, 4096 by default.)
const BACKLOG: u32 = 4096;

/// Listens with room for everybody who connects at once: where that is short, the kernel drops the greeting, and the client
/// tries again after a second.
///
/// # Errors
/// When the address can't be had.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Each connection is an open file. Many systems set the limit to 1024, and let a process raise it: this raises it to `needed`,
/// or as far as it may, and tells how many are allowed now.
///
/// # Errors
/// When the limit can't be read or set.
pub fn allow_open_files(needed: u64) -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let allowed = needed.min(hard).max(soft);
    if soft < allowed {
        setrlimit(Resource::RLIMIT_NOFILE, allowed, hard)?;
    }
    Ok(allowed)
}
