//! One connection from its first byte to its last.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, ready};

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::sleep_until;

use super::FrontDesk;
use super::door::Door;
use super::settings::{MAX_BUFFER_BYTES, MAX_HEADER_BYTES};
use super::watch::{Expired, Watch, Watched};
use crate::metrics::{self, Counted};

/// Serves a connection until either side closes it, it is out of time, its place is wanted while it waits, or the door is draining and its
/// request under way is answered.
///
/// HTTP/1 alone: a client that says nothing would keep a connection that first finds out its protocol open for ever.
pub(super) async fn serve<D: FrontDesk>(stream: TcpStream, watch: Arc<Watch>, door: Arc<Door<D>>) {
    let _counted = Counted::on(metrics::connections());
    // An answer goes out at once, not when there is enough to fill a packet.
    stream.set_nodelay(true).ok();
    let io = TokioIo::new(Watched::new(stream, watch.clone()));
    let service = {
        let (door, watch) = (door.clone(), watch.clone());
        service_fn(move |request| door.clone().answer(watch.clone(), request))
    };
    let mut connection = pin!(
        http1::Builder::new()
            .keep_alive(true)
            // Answers are short: one buffer costs less than a list of them, a twenty-fifth of the engine's time.
            .writev(false)
            // Replaced by the watch; hyper's would close idle connections as well.
            .header_read_timeout(None)
            .max_header_size(MAX_HEADER_BYTES)
            .max_buf_size(MAX_BUFFER_BYTES)
            .serve_connection(io, service)
    );
    let mut timer = pin!(sleep_until(watch.deadline()));
    let mut draining = pin!(door.draining.cancelled());
    let mut told = false;
    std::future::poll_fn(|cx| {
        loop {
            if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                if let Err(error) = ended {
                    // Mostly clients that hang up; nothing that anybody here could do something about.
                    tracing::debug!(%error, "a connection ended");
                }
                return Poll::Ready(());
            }
            if !told && draining.as_mut().poll(cx).is_ready() {
                told = true;
                connection.as_mut().graceful_shutdown();
                continue;
            }
            if watch.poll_leaves(cx) {
                metrics::connection_closed_for_room();
                return Poll::Ready(());
            }
            match ready!(watch.poll_expired(timer.as_mut(), cx)) {
                Expired::Request => {}
                Expired::Connection => {
                    tracing::debug!("a connection was out of time");
                    return Poll::Ready(());
                }
            }
        }
    })
    .await;
}
