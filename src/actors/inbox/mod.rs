//! The inbox of webhooks: writes deliveries down in batches before anybody is told that they were received, and then applies
//! each event to its order, once.
//!
//! Architecture invariant: the rows are the queue. What a crash leaves, and what comes before its order, is found there again.

mod projector;

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, oneshot};

use projector::Projector;

use super::batches;
use super::order::Orders;
use crate::metrics::{self, DeliveryResult, ProviderName};
use crate::store::{self, Delivery, Received, Store};

/// Events come one by one and go in batches, two under way at once. When so many wait that the queue is full, the provider is asked
/// to come again.
const LIMITS: batches::Limits = batches::Limits {
    queue: 16_384,
    max_batch: 256,
    in_flight: 2,
};

/// How events are applied.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// How often the rows are looked through without anybody saying that there is something.
    pub scan_period: Duration,
    /// Tries before an event whose order never comes is given up.
    pub event_tries: u32,
    /// Takes every delivery for an event of its own.
    #[cfg(feature = "test-switches")]
    pub without_guard: bool,
}

/// Why a delivery was not received. The provider sends it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    /// Too many wait.
    #[error("too many deliveries are waiting")]
    Overloaded,
    /// It could not be written down, or nobody knows whether it was.
    #[error("it could not be written down")]
    Unavailable,
}

struct Job {
    delivery: Delivery,
    answer: oneshot::Sender<Result<Received, ReceiveError>>,
}

/// The handle. Cheap to clone.
#[derive(Clone)]
pub struct Inbox {
    jobs: mpsc::Sender<Job>,
}

impl Inbox {
    /// Starts writing down and applying.
    pub fn start(runtime: &Handle, store: Store, orders: Orders, limits: Limits) -> Self {
        let waker = Arc::new(Notify::new());
        let projector = Projector {
            store: store.clone(),
            orders,
            waker: waker.clone(),
            limits,
        };
        runtime.spawn(projector.run());
        let jobs = batches::start(runtime, LIMITS, "deliveries", move |batch| {
            let (store, waker) = (store.clone(), waker.clone());
            async move {
                write_down(&store, batch, limits).await;
                waker.notify_one();
            }
        });
        Self { jobs }
    }

    /// Writes a delivery down. Once this returns it is durable, and will be applied.
    ///
    /// # Errors
    /// [`ReceiveError`]: it must be delivered again.
    pub async fn receive(
        &self,
        provider: ProviderName,
        delivery: Delivery,
    ) -> Result<Received, ReceiveError> {
        let (answer, received) = oneshot::channel();
        let news = delivery.event.news;
        let result = match self.jobs.try_send(Job { delivery, answer }) {
            Ok(()) => received.await.unwrap_or(Err(ReceiveError::Unavailable)),
            Err(mpsc::error::TrySendError::Full(_)) => Err(ReceiveError::Overloaded),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(ReceiveError::Unavailable),
        };
        metrics::webhook_delivery(
            provider,
            news,
            match result {
                Ok(Received::First) => DeliveryResult::Stored,
                Ok(Received::Repeat) => DeliveryResult::Duplicate,
                Err(_) => DeliveryResult::Failed,
            },
        );
        result
    }
}

/// Writes a batch down. Where the database refuses one of them for itself, halves find it, and the others get through.
#[cfg_attr(not(feature = "test-switches"), allow(unused_variables))]
async fn write_down(store: &Store, batch: Vec<Job>, limits: Limits) {
    let mut left = vec![batch];
    while let Some(mut jobs) = left.pop() {
        let deliveries: Vec<Delivery> = jobs.iter().map(|job| job.delivery.clone()).collect();
        #[cfg(feature = "test-switches")]
        let received = if limits.without_guard {
            store.receive_without_guard(&deliveries).await
        } else {
            store.receive(&deliveries).await
        };
        #[cfg(not(feature = "test-switches"))]
        let received = store.receive(&deliveries).await;
        match received {
            Ok(received) => {
                for (job, received) in jobs.into_iter().zip(received) {
                    job.answer.send(Ok(received)).ok();
                }
            }
            Err(store::Error::Refused { .. } | store::Error::Unexpected(_)) if jobs.len() > 1 => {
                let half = jobs.split_off(jobs.len() / 2);
                left.extend([half, jobs]);
            }
            Err(error) => {
                tracing::warn!(%error, deliveries = jobs.len(), "deliveries could not be written down, and will come again");
                for job in jobs {
                    job.answer.send(Err(ReceiveError::Unavailable)).ok();
                }
            }
        }
    }
}
