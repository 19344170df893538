//! Refunds that have been paid: noted once, whoever hears of it first, the worker that asked or the webhook that told.

use super::releaser::Releaser;
use crate::domain::OrderStatus;
use crate::metrics::{self, By, LateRefund, RefundStage};
use crate::store::{self, PaidRefund, Store};

/// The handle. Cheap to clone.
#[derive(Clone)]
pub struct Refunds {
    /// Where they are noted.
    pub store: Store,
    /// Who tells the gate of units that came back.
    pub releaser: Releaser,
}

impl Refunds {
    /// Notes that the provider has paid a refund. Returns whether this call was the one that did.
    ///
    /// # Errors
    /// When the database can't be asked; telling it again is safe.
    pub async fn paid(&self, paid: PaidRefund<'_>) -> Result<bool, store::Error> {
        let noted = self.store.refund_done(&paid).await?;
        if noted.noted {
            if paid.number == 0 {
                metrics::late_refund(LateRefund::Done);
            } else {
                metrics::refund(RefundStage::Done);
            }
            let PaidRefund {
                order,
                attempt,
                number,
                provider_event,
                ..
            } = paid;
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
