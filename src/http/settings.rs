//! Bounds of the front door.

use std::time::Duration;

use crate::config;

/// Longest request head, request line included; a longer one gets 431. A head of ours has an id, a buyer (64) and a key (255):
/// the rest is room for what proxies add.
pub const MAX_HEADER_BYTES: usize = 8 * 1024;

/// Largest body of a webhook: providers send whole objects, of their making.
pub(super) const MAX_WEBHOOK_BYTES: usize = 256 * 1024;

/// What a connection may keep of what it has read. Twice the head, so that its body usually comes with the same read.
pub(super) const MAX_BUFFER_BYTES: usize = 2 * MAX_HEADER_BYTES;

/// When to come back after a 503 that doesn't know better.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The settings of the front door.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Connections open at a time; for a further one, the one that has waited longest without a request is closed.
    pub max_connections: usize,
    /// Largest request body, in bytes.
    pub max_body_bytes: usize,
    /// From a connection's start, or a request's first byte, to the end of the request's head.
    pub header_read_timeout: Duration,
    /// From the end of a request's head to the end of its body.
    pub body_read_timeout: Duration,
    /// From the end of a request's head to its answer.
    pub request_timeout: Duration,
    /// From an answer to the first byte of the next request, the time that the client takes to read the answer included.
    pub connection_idle_timeout: Duration,
    /// At a stop, how long requests under way may take to finish.
    pub drain_timeout: Duration,
}

impl From<&config::Http> for Settings {
    fn from(http: &config::Http) -> Self {
        Self {
            max_connections: http.max_connections,
            max_body_bytes: http.max_body_bytes,
            header_read_timeout: http.header_read_timeout(),
            body_read_timeout: http.body_read_timeout(),
            request_timeout: http.request_timeout(),
            connection_idle_timeout: http.connection_idle_timeout(),
            drain_timeout: http.drain_timeout(),
        }
    }
}
