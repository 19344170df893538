//! The transition writer: group commit of conditional updates. Orders' actors hand changes in one by one; each batch is one
//! durable commit, and every change gets its own answer.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::batches;
use super::breaker::Breaker;
use super::releaser::Releaser;
use crate::domain::{RequestId, transition};
use crate::metrics::{self, What};
use crate::store::{self, Change, Outcome, Store};

/// One order hands in one change at a time, so the queue also bounds orders in transition; more per commit than 512 were measured to
/// bring little.
const LIMITS: batches::Limits = batches::Limits {
    queue: 16_384,
    max_batch: 512,
    in_flight: 2,
};
/// How often a batch whose commit went unanswered is run again to find out, with a pause that doubles from this one.
const UNKNOWN_TRIES: u32 = 5;
const UNKNOWN_PAUSE: Duration = Duration::from_millis(100);

/// Why a change has no outcome.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// Nothing was written; the database can't be asked.
    #[error("nothing was written: {0}")]
    Unavailable(String),
    /// It may have been written. Look at the order.
    #[error("it may have been written")]
    OutcomeUnknown,
    /// The database refuses this change for itself.
    #[error("the database refused it: {0}")]
    Refused(String),
}

struct Job {
    change: Change,
    answer: oneshot::Sender<Result<Outcome, WriteError>>,
}

/// The handle. Cheap to clone.
#[derive(Clone)]
pub struct TransitionWriter {
    jobs: mpsc::Sender<Job>,
}

struct Worker {
    store: Store,
    releaser: Releaser,
    breaker: Arc<Breaker>,
}

impl TransitionWriter {
    /// Starts the workers. They end when the last handle is dropped.
    pub fn start(runtime: &Handle, store: Store, releaser: Releaser, breaker: Arc<Breaker>) -> Self {
        let worker = Arc::new(Worker {
            store,
            releaser,
            breaker,
        });
        let jobs = batches::start(runtime, LIMITS, "transitions", move |batch| {
            let worker = worker.clone();
            async move { worker.work_off(batch).await }
        });
        Self { jobs }
    }

    /// Applies one change with the next batch. A lost claim is counted in here.
    ///
    /// # Errors
    /// [`WriteError`]; a full queue is waited for, which is bounded by the orders in transition.
    pub async fn apply(&self, change: Change) -> Result<Outcome, WriteError> {
        let (answer, outcome) = oneshot::channel();
        let stopped = || WriteError::Unavailable("the engine is stopping".to_owned());
        self.jobs
            .send(Job { change, answer })
            .await
            .map_err(|_| stopped())?;
        outcome.await.unwrap_or(Err(WriteError::OutcomeUnknown))
    }
}

impl Worker {
    /// Two changes to one order never share a transaction: the second waits for the next.
    async fn work_off(&self, mut jobs: Vec<Job>) {
        while !jobs.is_empty() {
            let mut seen = HashSet::with_capacity(jobs.len());
            let (batch, later): (Vec<Job>, Vec<Job>) =
                jobs.into_iter().partition(|job| seen.insert(job.change.order));
            self.commit(batch).await;
            jobs = later;
        }
    }

    fn commit(&self, batch: Vec<Job>) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let changes: Vec<Change> = batch.iter().map(|job| job.change.clone()).collect();
            let started = Instant::now();
            let mut after_unknown = false;
            let mut result = self.store.apply(&changes).await;
            for tried in 0..UNKNOWN_TRIES {
                let Err(store::Error::OutcomeUnknown(reason)) = &result else {
                    break;
                };
                tracing::warn!(%reason, orders = batch.len(), "running a transition batch again to learn its outcome");
                after_unknown = true;
                tokio::time::sleep(UNKNOWN_PAUSE * 2_u32.pow(tried)).await;
                result = match self.store.apply(&changes).await {
                    // It stays unknown until somebody answers.
                    Err(error) => Err(store::Error::OutcomeUnknown(error.to_string())),
                    done => done,
                };
            }
            self.breaker.record(
                Instant::now(),
                !matches!(
                    result,
                    Err(store::Error::Unavailable(_) | store::Error::OutcomeUnknown(_))
                ),
            );
            match result {
                Ok(written) => {
                    metrics::batch_size(What::Transition, batch.len());
                    metrics::commit_seconds(What::Transition, started.elapsed());
                    for released in written.released {
                        self.releaser.release(released);
                    }
                    for (job, outcome) in batch.into_iter().zip(written.outcomes) {
                        job.answer(outcome, after_unknown);
                    }
                }
                Err(store::Error::Refused { .. } | store::Error::Unexpected(_)) if batch.len() > 1 => {
                    let mut left = batch;
                    let right = left.split_off(left.len() / 2);
                    self.commit(left).await;
                    self.commit(right).await;
                }
                Err(error) => {
                    let error = match error {
                        store::Error::OutcomeUnknown(_) => WriteError::OutcomeUnknown,
                        store::Error::Unavailable(reason) | store::Error::RunAgain(reason) => {
                            WriteError::Unavailable(reason)
                        }
                        refused => {
                            let orders: Vec<_> =
                                batch.iter().map(|job| job.change.order.to_string()).collect();
                            tracing::error!(error = %refused, ?orders, "the database refused a transition");
                            WriteError::Refused(refused.to_string())
                        }
                    };
                    for job in batch {
                        job.answer.send(Err(error.clone())).ok();
                    }
                }
            }
        })
    }
}

impl Job {
    fn answer(self, outcome: Outcome, after_unknown: bool) {
        let Self { change, answer } = self;
        let by = change.by;
        let wanted = transition(change.expect, change.event).map_or(change.expect, |t| t.to);
        match &outcome {
            Outcome::Applied(applied) => metrics::transition(Some(change.expect), applied.status, by),
            // After an unanswered commit, an order that is what was wanted may well be our own doing.
            Outcome::Stale { status, .. } if after_unknown && *status == wanted => {}
            Outcome::Stale {
                status, request_id, ..
            } => {
                metrics::claim_lost(by, wanted, Some(*status));
                let request_id = request_id.as_ref().map(RequestId::as_str);
                tracing::info!(
                    order_id = %change.order, request_id, event_id = change.provider_event, by = ?by, %wanted, found = %status,
                    "a claim was lost"
                );
            }
            Outcome::NotFound => metrics::claim_lost(by, wanted, None),
        }
        answer.send(Ok(outcome)).ok();
    }
}
