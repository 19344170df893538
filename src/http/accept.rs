//! Taking connections in, and letting them end.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::door::Door;
use super::room::Room;
use super::watch::Watch;
use super::{FrontDesk, Settings, connection};

/// Pauses after an accept that failed for want of something (mostly file descriptors): doubled up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// How long a newcomer waits until somebody else is asked to make room.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(20);
/// A full house is logged once in so long.
const SAY_FULL_EVERY: Duration = Duration::from_secs(10);

/// How a stop went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainReport {
    /// Requests that were under way when it began.
    pub under_way: usize,
    /// Of them, those that had no answer at the deadline; their connections were closed.
    pub cut: usize,
    /// Purchases and the like that the engine was still working on at the deadline, their clients gone or cut. The
    /// engine decides them, or the database has; the idempotency key finds them.
    pub unfinished: usize,
}

/// Where connections come from. A trait only so that a test can run out of file descriptors.
trait Accept {
    async fn accept(&mut self) -> io::Result<TcpStream>;
}

impl Accept for TcpListener {
    async fn accept(&mut self) -> io::Result<TcpStream> {
        TcpListener::accept(self).await.map(|(stream, _)| stream)
    }
}

/// Serves connections from `listener` until `shutdown` resolves, then drains: no new connection is taken, requests
/// under way are answered and their connections closed, at most for [`Settings::drain_timeout`].
///
/// `render` gives the metrics in Prometheus' text format.
pub async fn serve<D, R>(
    listener: TcpListener,
    desk: D,
    settings: impl Into<Settings>,
    render: R,
    shutdown: impl Future<Output = ()>,
) -> DrainReport
where
    D: FrontDesk,
    R: Fn() -> String + Send + Sync + 'static,
{
    let door = Arc::new(Door::new(desk, settings.into(), Box::new(render)));
    let connections = accept_until(listener, &door, shutdown).await;
    drain(connections, &door).await
}

async fn accept_until<D: FrontDesk>(
    mut listener: impl Accept,
    door: &Arc<Door<D>>,
    shutdown: impl Future<Output = ()>,
) -> JoinSet<()> {
    let max_connections = door.settings.max_connections;
    let mut connections = JoinSet::new();
    let mut room = Room::default();
    let mut shutdown = pin!(shutdown);
    let mut failures: u32 = 0;
    let mut not_before: Option<Instant> = None;
    // One that came when all places were taken.
    let mut guest: Option<TcpStream> = None;
    let mut said_full: Option<Instant> = None;
    loop {
        if let Some(stream) = guest.take_if(|_| connections.len() < max_connections) {
            let watch = Arc::new(Watch::new(&door.settings));
            room.enter(&watch);
            connections.spawn(connection::serve(stream, watch, door.clone()));
        }
        let must_wait = guest.is_some();
        let accept = async {
            if let Some(not_before) = not_before {
                sleep_until(not_before).await;
            }
            listener.accept().await
        };
        tokio::select! {
            biased;
            () = &mut shutdown => return connections,
            Some(ended) = connections.join_next() => note(ended),
            // Those behind a guest wait in the kernel's queue.
            accepted = accept, if !must_wait => match accepted {
                Ok(stream) => {
                    (failures, not_before) = (0, None);
                    guest = Some(stream);
                    if connections.len() >= max_connections {
                        let asked = room.make();
                        let now = Instant::now();
                        if said_full.is_none_or(|said| now >= said + SAY_FULL_EVERY) {
                            said_full = Some(now);
                            tracing::warn!(max_connections, asked, "as many connections as allowed are open; those that wait longest are closed");
                        }
                    }
                }
                Err(error) if is_of_one_connection(&error) => {
                    tracing::debug!(%error, "a connection was gone before it was taken");
                }
                Err(error) => {
                    let pause = FIRST_PAUSE.saturating_mul(1 << failures.min(16)).min(LAST_PAUSE);
                    failures = failures.saturating_add(1);
                    not_before = Some(Instant::now() + pause);
                    let asked = room.make();
                    tracing::warn!(%error, failures, ?pause, open = connections.len(), asked, "no connection can be taken");
                }
            },
            // Whoever was asked to leave had handed in a request just then, or all had: somebody will be waiting soon.
            () = sleep(ASK_AGAIN_AFTER), if must_wait => {
                room.make();
            }
        }
    }
}

async fn drain<D: FrontDesk>(mut connections: JoinSet<()>, door: &Door<D>) -> DrainReport {
    let deadline = Instant::now() + door.settings.drain_timeout;
    let under_way = door.under_way();
    tracing::info!(under_way, connections = connections.len(), "draining");
    door.draining.cancel();
    let all_ended = async {
        while let Some(ended) = connections.join_next().await {
            note(ended);
        }
    };
    timeout_at(deadline, all_ended).await.ok();
    let cut = door.under_way();
    connections.shutdown().await;

    door.shielded.close();
    timeout_at(deadline, door.shielded.wait()).await.ok();
    DrainReport {
        under_way,
        cut,
        unfinished: door.shielded.len(),
    }
}

fn note(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a connection panicked");
    }
}

/// Errors of `accept` that say nothing about the next one.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind as K;
    matches!(
        error.kind(),
        K::ConnectionAborted | K::ConnectionReset | K::ConnectionRefused | K::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use hyper::HeaderMap;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::oneshot;

    use super::*;
    use crate::actors::desk::{CancelError, DeskError, Health, Received, RefundError, WebhookError};
    use crate::domain::{
        Accepted, Buyer, CancellationView, NewSale, OrderId, OrderView, Purchase, RefundAsk, RefundView,
        Refusal, SaleId, SaleView,
    };

    /// A desk that nobody asks anything.
    struct Empty;

    impl FrontDesk for Empty {
        async fn purchase(&self, _: Purchase) -> Result<Accepted, Refusal> {
            Err(Refusal::SaleNotFound)
        }
        async fn list_sale(&self, _: NewSale) -> Result<SaleView, DeskError> {
            Err(DeskError::Unavailable)
        }
        async fn sale(&self, _: SaleId) -> Result<SaleView, DeskError> {
            Err(DeskError::NotFound)
        }
        async fn sales(&self, _: Option<SaleId>, _: u16) -> Result<Vec<SaleView>, DeskError> {
            Ok(Vec::new())
        }
        async fn cancel_sale(&self, _: SaleId) -> Result<CancellationView, DeskError> {
            Err(DeskError::NotFound)
        }
        async fn cancellation(&self, _: SaleId) -> Result<CancellationView, DeskError> {
            Err(DeskError::NotFound)
        }
        async fn order(&self, _: OrderId, _: &Buyer) -> Result<OrderView, DeskError> {
            Err(DeskError::NotFound)
        }
        async fn cancel(&self, _: OrderId, _: &Buyer) -> Result<OrderView, CancelError> {
            Err(DeskError::NotFound.into())
        }
        async fn refund(&self, _: OrderId, _: RefundAsk) -> Result<RefundView, RefundError> {
            Err(DeskError::NotFound.into())
        }
        async fn webhook(
            &self,
            _: &str,
            _: &HeaderMap,
            _: Bytes,
            _: String,
        ) -> Result<Received, WebhookError> {
            Err(WebhookError::UnknownProvider)
        }
        fn health(&self) -> Health {
            Health {
                postgres_up: false,
                redis_up: false,
            }
        }
    }

    /// Fails with these errors first.
    struct Failing {
        errors: Vec<i32>,
        listener: TcpListener,
    }

    impl Accept for Failing {
        async fn accept(&mut self) -> io::Result<TcpStream> {
            match self.errors.pop() {
                Some(code) => Err(io::Error::from_raw_os_error(code)),
                None => Accept::accept(&mut self.listener).await,
            }
        }
    }

    #[tokio::test]
    async fn running_out_of_file_descriptors_ends_nothing() {
        const EMFILE: i32 = 24;
        const ECONNABORTED: i32 = 103;
        let second = Duration::from_secs(1);
        let settings = Settings {
            max_connections: 10,
            max_body_bytes: 1000,
            header_read_timeout: second,
            body_read_timeout: second,
            request_timeout: second,
            connection_idle_timeout: second,
            drain_timeout: second,
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let errors = vec![EMFILE, ECONNABORTED, EMFILE, EMFILE];
        let door = Arc::new(Door::new(Empty, settings, Box::new(String::new)));
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = tokio::spawn(async move {
            let shutdown = async { stopped.await.unwrap_or_default() };
            let connections = accept_until(Failing { errors, listener }, &door, shutdown).await;
            drain(connections, &door).await
        });

        let mut client = TcpStream::connect(address).await.unwrap();
        client
            .write_all(b"GET /livez HTTP/1.1\r\nHost: shop\r\n\r\n")
            .await
            .unwrap();
        let mut answer = [0; 12];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
        stop.send(()).unwrap();
        assert_eq!(
            serving.await.unwrap(),
            DrainReport {
                under_way: 0,
                cut: 0,
                unfinished: 0
            }
        );
    }
}
