//! The reconciler: every so often, on one engine at a time, holds Postgres, gate and provider against each other, and repairs what may be repaired.
//!
//! The engines choose by a lease, a row. A lease that runs out while its holder is still at work lets two pass at once, and that is harmless: each repair
//! is conditional and idempotent.

use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use uuid::Uuid;

use super::provider_tasks::TaskWaker;
use super::sale::Sales;
use crate::domain::SaleId;
use crate::domain::reconcile::Outcome;
use crate::metrics::{self, ReconcileResult};
use crate::reconcile::pass::Memory;
use crate::reconcile::{Loads, Reconciler, Report};
use crate::store::Store;

/// A pass takes at most one part in so many of the time: after one that took long, the next one waits.
const TIME_SHARE: u32 = 20;

/// Has the sale's own actor load it, in turn with others.
impl Loads for Sales {
    fn load(&self, sale: SaleId, stale: i64) -> BoxFuture<'_, bool> {
        Box::pin(self.reload_in_turn(sale, stale))
    }
}

/// The worker.
pub struct ReconcileWorker {
    /// Who looks and repairs.
    pub reconciler: Reconciler,
    /// Where the lease is.
    pub store: Store,
    /// To be woken when work was written down.
    pub tasks: TaskWaker,
    /// Between passes.
    pub period: Duration,
    /// Sales that closed, and orders that were made, within this time are looked at.
    pub lookback: Duration,
}

impl ReconcileWorker {
    /// Works until it is dropped.
    pub async fn run(self) {
        let holder = Uuid::new_v4();
        let mut memory = Memory::default();
        let mut pause = self.period;
        loop {
            tokio::time::sleep(pause).await;
            pause = self.period;
            match self.store.take_reconcile_lease(holder, self.period * 2).await {
                Ok(true) => {}
                Ok(false) => {
                    // Another engine's passes: what this one remembers is old.
                    memory = Memory::default();
                    metrics::reconcile_left(0);
                    continue;
                }
                Err(error) => {
                    tracing::warn!(%error, "no pass of reconciling: its lease could not be taken");
                    continue;
                }
            }
            let began = Instant::now();
            let report = self.reconciler.pass(&mut memory, self.lookback).await;
            self.tell(&report);
            pause = pause.max(began.elapsed() * TIME_SHARE);
        }
    }

    fn tell(&self, report: &Report) {
        for (finding, outcome) in &report.rows {
            let result = match outcome {
                Outcome::Repaired => ReconcileResult::Repaired,
                Outcome::Left | Outcome::WouldRepair => ReconcileResult::Left,
            };
            metrics::reconcile_difference(finding.kind, result);
            let sale = finding.sale.map(tracing::field::display);
            tracing::warn!(kind = %finding.kind, sale_id = sale, of = %finding.of, what = %finding.what, result = result.as_str(), "a difference");
        }
        if report.repaired() > 0 {
            self.tasks.wake();
        }
        for (side, error) in &report.away {
            tracing::warn!(side = side.as_str(), %error, "a pass of reconciling could not look at one side");
        }
        if report.away.is_empty() {
            metrics::reconcile_left(report.left());
            metrics::reconcile_pass(Timestamp::now());
        }
        tracing::debug!(
            sales = report.sales,
            orders = report.orders,
            differences = report.rows.len(),
            in_flight = report.in_flight,
            "a pass of reconciling"
        );
    }
}
