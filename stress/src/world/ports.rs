//! Ports for what is started, killed and started again at the same place.

use std::net::TcpListener;
use std::ops::Range;

use anyhow::Context as _;

/// Below those that systems hand out by themselves: while a server is down for a moment, a client could otherwise be given the server's own
/// port, and even connect to itself.
const PORTS: Range<u16> = 10_000..30_000;
const TRIES: usize = 100;

/// A port that was free a moment ago.
///
/// # Errors
/// When none of many is.
pub(super) fn free() -> anyhow::Result<u16> {
    std::iter::repeat_with(|| rand::random_range(PORTS))
        .take(TRIES)
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .context("no free port was found")
}
