//! Brings sales that are called off to their end: releases what nobody has paid, pays back what somebody has, and waits for what is on its way.
//! The rows are all it goes by: a crash only delays it, and two engines at it do each thing once.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::sync::Notify;

use super::order::Orders;
use super::provider_tasks::TaskWaker;
use crate::domain::{IdempotencyDigest, OrderStatus, RefundAsk, RefundReason, RefundRefusal, SaleId};
use crate::metrics::{self, RefundStage};
use crate::store::{self, OrderToEnd, Store};

/// Orders per page, and worked on at the same time.
const PAGE: i64 = 256;
const AT_A_TIME: usize = 64;
/// The key under which the end of its sale pays an order back: asked for again, it finds its refund.
const REFUND_KEY: &str = "sale cancelled";

/// Wakes the worker when a sale has just been called off. Cheap to clone.
#[derive(Clone, Default)]
pub struct CancelWaker(Arc<Notify>);

impl CancelWaker {
    /// A sale was called off.
    pub fn wake(&self) {
        self.0.notify_one();
    }
}

/// The worker.
pub struct SaleCanceller {
    /// Where the sales are.
    pub store: Store,
    /// Whose orders are released.
    pub orders: Orders,
    /// To be woken when refunds are due.
    pub tasks: TaskWaker,
    /// How often it looks by itself.
    pub period: Duration,
    /// Who wakes it in between.
    pub waker: CancelWaker,
}

impl SaleCanceller {
    /// Works until it is dropped.
    pub async fn run(self) {
        loop {
            tokio::time::timeout(self.period, self.waker.0.notified())
                .await
                .ok();
            match self.store.sales_being_cancelled().await {
                Ok(sales) => {
                    for sale in sales {
                        if let Err(error) = self.go_on(sale).await {
                            tracing::warn!(sale_id = %sale, %error, "a sale that is called off is gone on with later");
                        }
                    }
                }
                Err(error) => tracing::warn!(%error, "sales that are called off could not be read"),
            }
        }
    }

    /// Goes through all orders that are not at their end, once.
    async fn go_on(&self, sale: SaleId) -> Result<(), store::Error> {
        let mut after = None;
        loop {
            let page = self.store.orders_to_end(sale, after, PAGE).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.cursor);
            stream::iter(page)
                .for_each_concurrent(AT_A_TIME, |order| async move { self.end(sale, order).await })
                .await;
            self.tasks.wake();
        }
        if self.store.cancellation_done(sale).await? {
            tracing::info!(sale_id = %sale, "a sale that was called off has come to its end");
        }
        Ok(())
    }

    async fn end(&self, sale: SaleId, OrderToEnd { order, status, .. }: OrderToEnd) {
        match status {
            OrderStatus::Pending => {
                if let Err(error) = self.orders.cancel_with_sale(order, sale).await {
                    tracing::warn!(order_id = %order, %error, "an order of a sale that is called off is released later");
                }
            }
            OrderStatus::Paid => {
                let ask = RefundAsk {
                    amount_minor: None,
                    return_units: true,
                    reason: RefundReason::SaleCancelled,
                    digest: IdempotencyDigest::of_refund(order, REFUND_KEY),
                };
                match self.store.request_refund(order, &ask).await {
                    Ok(Ok(refund)) if !refund.replayed => metrics::refund(RefundStage::Due),
                    // Promised already, by this or by whoever asked before; or it has moved meanwhile.
                    Ok(Ok(_) | Err(RefundRefusal::Exceeds { .. } | RefundRefusal::NotRefundable { .. })) => {}
                    Ok(Err(refusal)) => {
                        tracing::error!(order_id = %order, %refusal, "an order of a sale that is called off can't be paid back");
                    }
                    Err(error) => {
                        tracing::warn!(order_id = %order, %error, "an order of a sale that is called off is paid back later");
                    }
                }
            }
            // Its charge is under way; what comes of it is seen at the next pass.
            _ => {}
        }
    }
}
