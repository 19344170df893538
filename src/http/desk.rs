//! What the front door asks of the engine.

use bytes::Bytes;
use hyper::HeaderMap;

use crate::actors::Desk;
use crate::actors::desk::{CancelError, DeskError, Health, Received, RefundError, WebhookError};
use crate::domain::{
    Accepted, Buyer, CancellationView, NewSale, OrderId, OrderView, Purchase, RefundAsk, RefundView, Refusal,
    SaleId, SaleView,
};

/// The desk behind the front door. A trait only so that the door can be tested without an engine behind it.
///
/// Futures of what changes something are never dropped half-way by the front door, whatever the client does.
pub trait FrontDesk: Send + Sync + 'static {
    /// Whether a purchase has to say what it is paid with.
    fn needs_payment_method(&self) -> bool {
        false
    }

    /// Asks a sale for units. Answered once the order is durable, or refused.
    fn purchase(&self, purchase: Purchase) -> impl Future<Output = Result<Accepted, Refusal>> + Send;

    /// Lists a sale.
    fn list_sale(&self, terms: NewSale) -> impl Future<Output = Result<SaleView, DeskError>> + Send;

    /// One sale.
    fn sale(&self, id: SaleId) -> impl Future<Output = Result<SaleView, DeskError>> + Send;

    /// Sales in the order in which they were listed, `limit` of them after `after`.
    fn sales(
        &self,
        after: Option<SaleId>,
        limit: u16,
    ) -> impl Future<Output = Result<Vec<SaleView>, DeskError>> + Send;

    /// Calls a sale off, once.
    fn cancel_sale(&self, id: SaleId) -> impl Future<Output = Result<CancellationView, DeskError>> + Send;

    /// How far the end of a sale that is called off is.
    fn cancellation(&self, id: SaleId) -> impl Future<Output = Result<CancellationView, DeskError>> + Send;

    /// One order of this buyer.
    fn order(&self, id: OrderId, buyer: &Buyer) -> impl Future<Output = Result<OrderView, DeskError>> + Send;

    /// Cancels an order of this buyer while it is PENDING.
    fn cancel(
        &self,
        id: OrderId,
        buyer: &Buyer,
    ) -> impl Future<Output = Result<OrderView, CancelError>> + Send;

    /// Promises a refund of an order that is paid.
    fn refund(
        &self,
        order: OrderId,
        ask: RefundAsk,
    ) -> impl Future<Output = Result<RefundView, RefundError>> + Send;

    /// Takes a request of a payment provider: verified, written down, and applied later.
    fn webhook(
        &self,
        provider: &str,
        headers: &HeaderMap,
        body: Bytes,
        request_id: String,
    ) -> impl Future<Output = Result<Received, WebhookError>> + Send;

    /// What the engine's last probes found.
    fn health(&self) -> Health;
}

impl FrontDesk for Desk {
    fn needs_payment_method(&self) -> bool {
        self.needs_payment_method
    }

    fn purchase(&self, purchase: Purchase) -> impl Future<Output = Result<Accepted, Refusal>> + Send {
        Desk::purchase(self, purchase)
    }

    fn list_sale(&self, terms: NewSale) -> impl Future<Output = Result<SaleView, DeskError>> + Send {
        Desk::list_sale(self, terms)
    }

    fn sale(&self, id: SaleId) -> impl Future<Output = Result<SaleView, DeskError>> + Send {
        Desk::sale(self, id)
    }

    fn sales(
        &self,
        after: Option<SaleId>,
        limit: u16,
    ) -> impl Future<Output = Result<Vec<SaleView>, DeskError>> + Send {
        Desk::sales(self, after, limit)
    }

    fn cancel_sale(&self, id: SaleId) -> impl Future<Output = Result<CancellationView, DeskError>> + Send {
        Desk::cancel_sale(self, id)
    }

    fn cancellation(&self, id: SaleId) -> impl Future<Output = Result<CancellationView, DeskError>> + Send {
        Desk::cancellation(self, id)
    }

    fn order(&self, id: OrderId, buyer: &Buyer) -> impl Future<Output = Result<OrderView, DeskError>> + Send {
        Desk::order(self, id, buyer)
    }

    fn cancel(
        &self,
        id: OrderId,
        buyer: &Buyer,
    ) -> impl Future<Output = Result<OrderView, CancelError>> + Send {
        Desk::cancel(self, id, buyer)
    }

    fn refund(
        &self,
        order: OrderId,
        ask: RefundAsk,
    ) -> impl Future<Output = Result<RefundView, RefundError>> + Send {
        Desk::refund(self, order, ask)
    }

    fn webhook(
        &self,
        provider: &str,
        headers: &HeaderMap,
        body: Bytes,
        request_id: String,
    ) -> impl Future<Output = Result<Received, WebhookError>> + Send {
        Desk::webhook(self, provider, headers, body, request_id)
    }

    fn health(&self) -> Health {
        Desk::health(self)
    }
}
