//! A buyer's request for units, and the two ways it can end.

use std::time::Duration;

use jiff::Timestamp;

use super::{Buyer, IdempotencyDigest, Money, OrderId, PaymentMethod, RequestId, SaleId};

/// A purchase as it arrives at its sale.
#[derive(Debug, Clone)]
pub struct Purchase {
    /// Of this sale.
    pub sale: SaleId,
    /// By this buyer.
    pub buyer: Buyer,
    /// Under this name.
    pub digest: IdempotencyDigest,
    /// So many units: what a replay is compared by.
    pub quantity: i32,
    /// Paid with this, where the provider has to be told. A replay finds its order, whatever it would be paid with by now.
    pub payment_method: Option<PaymentMethod>,
    /// The request that brought it.
    pub request_id: Option<RequestId>,
}

/// A unit is held: the order is durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// The order's name.
    pub order: OrderId,
    /// Its sale.
    pub sale: SaleId,
    /// Its buyer.
    pub buyer: Buyer,
    /// Its units.
    pub quantity: i32,
    /// What they cost together.
    pub amount: Money,
    /// When the database took it.
    pub created_at: Timestamp,
    /// An earlier request with the same key made it.
    pub replayed: bool,
}

/// No unit was taken for this request (except where it says that the outcome is unknown).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Fewer units are available than were asked for.
    #[error("fewer units are available than were asked for")]
    SoldOut,
    /// The buyer would hold more than the sale allows.
    #[error("the buyer would hold more than {per_buyer_limit} units")]
    LimitExceeded {
        /// Units that one buyer may hold or own.
        per_buyer_limit: i32,
    },
    /// The sale has not begun.
    #[error("the sale opens at {opens_at}")]
    NotOpen {
        /// When it does.
        opens_at: Timestamp,
    },
    /// The sale is over.
    #[error("the sale closed at {closes_at}")]
    Closed {
        /// When it was.
        closes_at: Timestamp,
    },
    /// The key was used for a request with another body.
    #[error("the idempotency key was used with another quantity")]
    KeyReused,
    /// There is no such sale.
    #[error("no such sale")]
    SaleNotFound,
    /// More units than one order may have.
    #[error("an order may have 1 to {max_per_order} units")]
    TooMany {
        /// Units that one order may have.
        max_per_order: i32,
    },
    /// A queue is full; nothing was done.
    #[error("too many requests are waiting")]
    Overloaded {
        /// When to come back.
        retry_after: Duration,
    },
    /// The database can't be asked; nothing was done.
    #[error("orders can't be taken just now")]
    Unavailable {
        /// When to come back.
        retry_after: Duration,
    },
    /// It is not known whether the order was made; the same key will tell.
    #[error("the outcome is unknown; the same idempotency key finds it")]
    OutcomeUnknown {
        /// When to come back.
        retry_after: Duration,
    },
}
