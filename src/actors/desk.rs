//! The desk: all that the front door may ask of the engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bytes::Bytes;
use hyper::HeaderMap;
use tokio::runtime;

use super::inbox::Inbox;
pub use super::inbox::ReceiveError;
use super::order::Orders;
use super::provider_tasks::TaskWaker;
use super::sale::Sales;
use super::sale_canceller::CancelWaker;
use super::transition_writer::WriteError;
use crate::domain::{
    Accepted, Buyer, CancellationView, FailureReason, NewSale, OrderId, OrderStatus, Purchase, RefundAsk,
    RefundRefusal, RefundView, Refusal, SaleId,
};
pub use crate::domain::{LateRefund, OrderView, SaleView};
use crate::metrics::{self, Outcome as Counted, RefundStage, WebhookRefusal};
pub use crate::provider::webhook::Refused;
use crate::provider::webhook::Webhooks;
use crate::signature::Unverified;
pub use crate::store::Received;
use crate::store::{self, Delivery, Outcome, Store};

/// A question that could not be answered.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DeskError {
    /// No such sale or order (or another buyer's).
    #[error("not found")]
    NotFound,
    /// The database can't be asked just now.
    #[error("the database can't be asked just now")]
    Unavailable,
    /// Whether it was done is not known.
    #[error("the outcome is unknown")]
    OutcomeUnknown,
}

/// A refused webhook on metrics.
fn refusal(refused: Refused) -> WebhookRefusal {
    match refused {
        Refused::Unverified(Unverified::NoSecret) => WebhookRefusal::NoSecret,
        Refused::Unverified(Unverified::Missing) => WebhookRefusal::Missing,
        Refused::Unverified(Unverified::Malformed) => WebhookRefusal::Malformed,
        Refused::Unverified(Unverified::UnknownScheme) => WebhookRefusal::UnknownScheme,
        Refused::Unverified(Unverified::TooOld) => WebhookRefusal::TooOld,
        Refused::Unverified(Unverified::TooFarAhead) => WebhookRefusal::TooFarAhead,
        Refused::Unverified(Unverified::Mismatch) => WebhookRefusal::Mismatch,
        Refused::Unreadable => WebhookRefusal::Unreadable,
    }
}

/// Why an order was not cancelled.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CancelError {
    /// It is past PENDING.
    #[error("the order is {0} already")]
    TooLate(OrderStatus),
    /// As for any question.
    #[error(transparent)]
    Desk(#[from] DeskError),
}

/// Why nothing is paid back.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RefundError {
    /// It can't be.
    #[error(transparent)]
    Refused(#[from] RefundRefusal),
    /// As for any question.
    #[error(transparent)]
    Desk(#[from] DeskError),
}

/// Why a webhook was not taken.
#[derive(Debug, Clone, thiserror::Error)]
pub enum WebhookError {
    /// There is no such provider here.
    #[error("there is no such provider here")]
    UnknownProvider,
    /// It isn't the provider's, or says nothing.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// It has to come again.
    #[error(transparent)]
    Receive(#[from] ReceiveError),
}

/// Which parts the engine can reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Health {
    /// The last probe of Postgres was answered.
    pub postgres_up: bool,
    /// The last probe of Redis was answered.
    pub redis_up: bool,
}

/// What the probes found last; written by the probe, read at the desk.
#[derive(Debug, Default)]
pub struct Probes {
    /// Postgres answers.
    pub postgres_up: AtomicBool,
    /// Redis answers.
    pub redis_up: AtomicBool,
}

/// The handle that the front door holds. Cheap to clone.
#[derive(Clone)]
pub struct Desk {
    /// Postgres, for what is only read.
    pub store: Store,
    /// Where purchases go.
    pub sales: Sales,
    /// Where cancellations go.
    pub orders: Orders,
    /// To be woken when a refund is due.
    pub tasks: TaskWaker,
    /// To be woken when a sale is called off.
    pub cancellations: CancelWaker,
    /// The provider's webhooks.
    pub webhooks: Webhooks,
    /// Where they go.
    pub inbox: Inbox,
    /// What is up.
    pub probes: Arc<Probes>,
    /// Database work runs here, in tasks that nobody's hang-up cuts.
    pub runtime: runtime::Handle,
    /// Orders that can be charged before they are swept; larger sales are warned of.
    pub charges_before_cutoff: u64,
    /// A purchase has to say what it is paid with: the provider wants to know.
    pub needs_payment_method: bool,
}

impl Desk {
    /// Asks a sale for units. Answered once the order is durable, or refused.
    pub async fn purchase(&self, purchase: Purchase) -> Result<Accepted, Refusal> {
        let answer = self.sales.buy(purchase).await;
        metrics::purchases(match &answer {
            Ok(accepted) if accepted.replayed => Counted::Replayed,
            Ok(_) => Counted::Accepted,
            Err(Refusal::SoldOut) => Counted::SoldOut,
            Err(Refusal::LimitExceeded { .. }) => Counted::LimitExceeded,
            Err(Refusal::NotOpen { .. }) => Counted::NotOpen,
            Err(Refusal::Closed { .. }) => Counted::Closed,
            Err(Refusal::KeyReused) => Counted::KeyReused,
            Err(Refusal::SaleNotFound | Refusal::TooMany { .. }) => Counted::Invalid,
            Err(Refusal::Overloaded { .. }) => Counted::Overloaded,
            Err(Refusal::Unavailable { .. }) => Counted::Unavailable,
            Err(Refusal::OutcomeUnknown { .. }) => Counted::OutcomeUnknown,
        });
        answer
    }

    /// Lists a sale.
    pub async fn list_sale(&self, terms: NewSale) -> Result<SaleView, DeskError> {
        let listed = self
            .ask(move |store| async move { store.list_sale(&terms).await })
            .await?;
        self.warn_of_want_of_capacity(&listed);
        self.sales.listed(listed.sale.clone()).await;
        Ok(listed)
    }

    /// One sale.
    pub async fn sale(&self, id: SaleId) -> Result<SaleView, DeskError> {
        self.ask(move |store| async move { store.sale(id).await })
            .await?
            .ok_or(DeskError::NotFound)
    }

    /// Sales in the order in which they were listed, `limit` of them after `after`.
    pub async fn sales(&self, after: Option<SaleId>, limit: u16) -> Result<Vec<SaleView>, DeskError> {
        self.ask(move |store| async move { store.sales(after, limit).await })
            .await
    }

    /// Calls a sale off: nothing of it is sold any more, and the rest is done in the background. Called off again, it tells how far that is.
    pub async fn cancel_sale(&self, id: SaleId) -> Result<CancellationView, DeskError> {
        let stale = self
            .ask(move |store| async move { store.cancel_sale(id).await })
            .await?;
        if let Some(epoch) = stale {
            tracing::info!(sale_id = %id, "a sale is called off");
            self.sales.reload(id, epoch).await;
        }
        self.cancellations.wake();
        self.cancellation(id).await
    }

    /// How far the end of a sale that is called off is.
    pub async fn cancellation(&self, id: SaleId) -> Result<CancellationView, DeskError> {
        self.ask(move |store| async move { store.cancellation(id).await })
            .await?
            .ok_or(DeskError::NotFound)
    }

    /// One order of this buyer.
    pub async fn order(&self, id: OrderId, buyer: &Buyer) -> Result<OrderView, DeskError> {
        let order = self
            .ask(move |store| async move { store.order(id).await })
            .await?;
        order
            .filter(|order| order.buyer == *buyer)
            .ok_or(DeskError::NotFound)
    }

    /// Cancels an order of this buyer while it is PENDING. An order cancelled before is answered as it stands.
    pub async fn cancel(&self, id: OrderId, buyer: &Buyer) -> Result<OrderView, CancelError> {
        let order = self.order(id, buyer).await?;
        if order.status == OrderStatus::Pending {
            match self.orders.cancel(id, order.sale).await {
                Ok(Outcome::Applied(_) | Outcome::Stale { .. }) => {}
                Ok(Outcome::NotFound) => return Err(DeskError::NotFound.into()),
                Err(WriteError::OutcomeUnknown) => return Err(DeskError::OutcomeUnknown.into()),
                Err(error) => {
                    tracing::warn!(order_id = %id, %error, "an order could not be cancelled");
                    return Err(DeskError::Unavailable.into());
                }
            }
        }
        let order = self.order(id, buyer).await?;
        match order.failure_reason {
            Some(FailureReason::Cancelled) => Ok(order),
            _ => Err(CancelError::TooLate(order.status)),
        }
    }

    /// Promises a refund of an order that is paid. It is durable then, and paid in the background.
    pub async fn refund(&self, order: OrderId, ask: RefundAsk) -> Result<RefundView, RefundError> {
        let refund = self
            .ask(move |store| async move { store.request_refund(order, &ask).await })
            .await??;
        if !refund.replayed {
            metrics::refund(RefundStage::Due);
            tracing::info!(order_id = %order, number = refund.number, amount_minor = refund.amount.amount_minor, "a refund is due");
        }
        self.tasks.wake();
        Ok(refund)
    }

    /// Takes a request of a payment provider. Once this returns, its event is durable, and will be applied to its order.
    pub async fn webhook(
        &self,
        provider: &str,
        headers: &HeaderMap,
        body: Bytes,
        request_id: String,
    ) -> Result<Received, WebhookError> {
        let received = Instant::now();
        if provider != self.webhooks.provider.as_str() {
            metrics::webhook_refused(WebhookRefusal::UnknownProvider);
            return Err(WebhookError::UnknownProvider);
        }
        let event = self
            .webhooks
            .receive(headers, &body, jiff::Timestamp::now().as_second())
            .inspect_err(|refused| {
                metrics::webhook_refused(refusal(*refused));
                tracing::info!(request_id, provider, %refused, "a webhook was refused");
            })?;
        let delivery = Delivery {
            provider: self.webhooks.provider.as_str(),
            event,
            // It was read as JSON, so that it is text.
            body: String::from_utf8_lossy(&body).into_owned(),
            request_id,
            received,
        };
        Ok(self.inbox.receive(self.webhooks.provider, delivery).await?)
    }

    /// Says so when a sale has more units than can be charged before its orders are swept.
    pub fn warn_of_want_of_capacity(&self, view: &SaleView) {
        let (units, charges) = (view.stock.available, self.charges_before_cutoff);
        if units.unsigned_abs() > charges {
            tracing::warn!(
                sale_id = %view.sale.id, units, charges_before_cutoff = charges,
                "orders of this sale may be swept for want of capacity: raise payment.max_in_flight or sweeper.cutoff_ms"
            );
        }
    }

    /// What the last probes found.
    pub fn health(&self) -> Health {
        Health {
            postgres_up: self.probes.postgres_up.load(Ordering::Relaxed),
            redis_up: self.probes.redis_up.load(Ordering::Relaxed),
        }
    }

    async fn ask<T, F>(&self, question: impl FnOnce(Store) -> F) -> Result<T, DeskError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, store::Error>> + Send + 'static,
    {
        match self.runtime.spawn(question(self.store.clone())).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(store::Error::OutcomeUnknown(_))) | Err(_) => Err(DeskError::OutcomeUnknown),
            Ok(Err(error)) => {
                tracing::warn!(%error, "a question could not be answered");
                Err(DeskError::Unavailable)
            }
        }
    }
}
