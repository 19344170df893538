//! Refunds that have been paid: noted once, whoever hears of it first, the worker that asked or the webhook that told.

use super::releaser::Releaser;
use crate::domain::{OrderId, OrderStatus, SaleId};
use crate::metrics::{self, By, LateRefund, RefundStage};
use crate::store::{self, Store};

/// The handle. Cheap to clone.
#[derive(Clone)]
pub struct Refunds {
    /// Where they are noted.
    pub store: Store,
    /// Who tells the gate of units that came back.
    pub releaser: Releaser,
}

impl Refunds {
    /// Notes that the provider has paid a refund: number 0 is money that came too late. Returns whether this call was the one that did.
    ///
    /// # Errors
    /// When the database can't be asked; telling it again is safe.
    pub async fn paid(
        &self,
        order: OrderId,
        sale: SaleId,
        attempt: i32,
        number: i32,
        provider_event: Option<&str>,
    ) -> Result<bool, store::Error> {
        let noted = self
            .store
            .refund_done(order, sale, attempt, number, provider_event)
            .await?;
        if noted.noted {
            if number == 0 {
                metrics::late_refund(LateRefund::Done);
            } else {
                metrics::refund(RefundStage::Done);
            }
            tracing::info!(order_id = %order, attempt, number, event_id = provider_event, "a refund is paid");
        }
        if noted.order_refunded {
            metrics::transition(Some(OrderStatus::Paid), OrderStatus::Refunded, By::Seller);
        }
        for released in noted.released {
            self.releaser.release(released);
        }
        Ok(noted.noted)
    }
}
