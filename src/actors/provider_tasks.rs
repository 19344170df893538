//! Work owed to the provider: pays late money back, and finds out what became of charges whose order is over. The tasks are rows;
//! each is on loan for a while when it is taken, so a worker's death only delays it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use tokio::sync::Notify;

use super::plan::{self, Resolved};
use super::refunds::Refunds;
use crate::crash::{self, Point};
use crate::metrics::{self, LateRefund};
use crate::provider::{PaymentProvider, Reference, RefundOutcome};
use crate::store::{self, PaidRefund, Store, Task, TaskKind};

/// Tasks taken at a time, and worked off at the same time.
const TASKS: usize = 64;

/// Wakes the worker when something has just been written down. Cheap to clone.
#[derive(Clone, Default)]
pub struct TaskWaker(Arc<Notify>);

impl TaskWaker {
    /// Something is due.
    pub fn wake(&self) {
        self.0.notify_one();
    }
}

/// The worker.
pub struct TaskWorker {
    /// Where the tasks are.
    pub store: Store,
    /// Where refunds that were paid are noted.
    pub refunds: Refunds,
    /// Who is owed.
    pub provider: Arc<dyn PaymentProvider>,
    /// Tries before a task becomes a dead letter.
    pub max_tries: u32,
    /// How long a worker may be at one task: two calls to the provider, and some.
    pub loan: Duration,
    /// How often it looks by itself.
    pub period: Duration,
    /// Who wakes it in between.
    pub waker: TaskWaker,
}

enum End {
    Done,
    /// Try again later.
    Later(String),
    /// Trying again won't help.
    Never(String),
}

impl TaskWorker {
    /// Works until it is dropped.
    pub async fn run(self) {
        loop {
            // Woken or not; what matters are the rows.
            tokio::time::timeout(self.period, self.waker.0.notified())
                .await
                .ok();
            while self.work_off_some().await == TASKS {}
            match self.store.count_dead_letters().await {
                Ok(count) => metrics::dead_letters(count.max(0) as usize),
                Err(error) => tracing::warn!(%error, "dead letters could not be counted"),
            }
        }
    }

    async fn work_off_some(&self) -> usize {
        let tasks = match self.store.take_due_tasks(TASKS as i64, self.loan).await {
            Ok(tasks) => tasks,
            Err(error) => {
                tracing::warn!(%error, "work owed to the provider could not be taken");
                return 0;
            }
        };
        let taken = tasks.len();
        stream::iter(tasks)
            .for_each_concurrent(TASKS, |task| async move { self.work_off(&task).await })
            .await;
        taken
    }

    async fn work_off(&self, task: &Task) {
        let end = match task.kind {
            TaskKind::Refund => self.refund(task).await,
            TaskKind::Resolve => self.resolve(task).await,
        };
        let noted = match end {
            Ok(End::Done) => return,
            Ok(End::Later(what)) if task.tries.unsigned_abs() < self.max_tries => {
                tracing::warn!(order_id = %task.order, attempt = task.attempt, kind = task.kind.as_sql(), tries = task.tries, %what, "tried again later");
                self.store.task_failed(task, &what).await
            }
            Ok(End::Later(what) | End::Never(what)) => {
                tracing::error!(order_id = %task.order, attempt = task.attempt, kind = task.kind.as_sql(), tries = task.tries, %what, "a dead letter");
                self.store.bury(task, &what).await
            }
            // Its loan runs out, and it is taken again.
            Err(error) => Err(error),
        };
        if let Err(error) = noted {
            tracing::warn!(order_id = %task.order, attempt = task.attempt, kind = task.kind.as_sql(), %error, "work owed to the provider could not be noted");
        }
    }

    async fn refund(&self, task: &Task) -> Result<End, store::Error> {
        let refund = Reference::of_refund(task.order, task.attempt, task.refund);
        let outcome = self.provider.refund(&task.charge, &refund, task.amount).await;
        crash::at(Point::RefundAnswered);
        Ok(match outcome {
            RefundOutcome::Refunded => {
                let paid = PaidRefund {
                    order: task.order,
                    sale: task.sale,
                    attempt: task.attempt,
                    number: task.refund,
                    provider_event: None,
                };
                self.refunds.paid(paid).await?;
                End::Done
            }
            RefundOutcome::Refused { code } => End::Never(code),
            RefundOutcome::Unreachable { what } => End::Later(what),
        })
    }

    async fn resolve(&self, task: &Task) -> Result<End, store::Error> {
        let found = self.provider.lookup(&task.charge).await;
        crash::at(Point::ResolveAnswered);
        let mut learned = plan::resolved_by_lookup(found);
        if learned == Resolved::Void {
            learned = plan::resolved_by_void(self.provider.void(&task.charge).await);
        }
        match learned {
            Resolved::MoneyCame => self.money_came(task).await,
            Resolved::NoMoney { status, code } => {
                self.store
                    .resolved_without_money(task, status, code.as_deref())
                    .await?;
                Ok(End::Done)
            }
            Resolved::Void => Ok(End::Later("a void was asked for twice".to_owned())),
            Resolved::Later { what } => Ok(End::Later(what)),
        }
    }

    async fn money_came(&self, task: &Task) -> Result<End, store::Error> {
        if self
            .store
            .record_late_charge(task.order, task.sale, task.attempt, None)
            .await?
        {
            metrics::late_refund(LateRefund::Due);
            self.waker.wake();
        } else {
            // Known already, by whoever came first: there is nothing left to find out.
            self.store.task_done(task).await?;
        }
        Ok(End::Done)
    }
}
