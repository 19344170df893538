//! The desk: all that the front door may ask of the engine.

use jiff::Timestamp;

use crate::domain::{
    Accepted, Buyer, FailureReason, Money, NewSale, OrderId, OrderStatus, Purchase, Refusal, Sale, SaleId,
    Stock,
};

/// A sale with its stock at one instant of the database's clock.
#[derive(Debug, Clone)]
pub struct SaleView {
    /// What doesn't change about it.
    pub sale: Sale,
    /// Its stock; the numbers add up.
    pub stock: Stock,
    /// The database's time when it was read.
    pub server_time: Timestamp,
}

/// An order as its buyer may see it.
#[derive(Debug, Clone)]
pub struct OrderView {
    /// Its name.
    pub id: OrderId,
    /// Its sale.
    pub sale: SaleId,
    /// Its buyer.
    pub buyer: Buyer,
    /// Its units.
    pub quantity: i32,
    /// What they cost together.
    pub amount: Money,
    /// Where it stands.
    pub status: OrderStatus,
    /// Why it failed, if it did.
    pub failure_reason: Option<FailureReason>,
    /// The current attempt at charging it; 0 before the first.
    pub attempt: i32,
    /// Money that came too late and goes back, if there is any.
    pub late_refund: Option<LateRefund>,
    /// When it was taken.
    pub created_at: Timestamp,
    /// When its status last changed.
    pub updated_at: Timestamp,
}

/// Where the way back of late money stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LateRefund {
    /// Written down; not confirmed by the provider yet.
    Due,
    /// The buyer has it back.
    Done,
}

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

/// Which parts the engine can reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Health {
    /// The last probe of Postgres was answered.
    pub postgres_up: bool,
    /// The last probe of Redis was answered.
    pub redis_up: bool,
}

/// The handle that the front door holds. Cheap to clone.
#[derive(Clone)]
pub struct Desk {}

#[allow(clippy::unused_async)]
impl Desk {
    /// Asks a sale for units. Answered once the order is durable, or refused.
    pub async fn purchase(&self, purchase: Purchase) -> Result<Accepted, Refusal> {
        let _ = purchase;
        Err(Refusal::SaleNotFound)
    }

    /// Lists a sale.
    pub async fn list_sale(&self, terms: NewSale) -> Result<SaleView, DeskError> {
        let _ = terms;
        Err(DeskError::Unavailable)
    }

    /// One sale.
    pub async fn sale(&self, id: SaleId) -> Result<SaleView, DeskError> {
        let _ = id;
        Err(DeskError::NotFound)
    }

    /// Sales in the order in which they were listed, `limit` of them after `after`.
    pub async fn sales(&self, after: Option<SaleId>, limit: u16) -> Result<Vec<SaleView>, DeskError> {
        let _ = (after, limit);
        Ok(Vec::new())
    }

    /// One order of this buyer.
    pub async fn order(&self, id: OrderId, buyer: &Buyer) -> Result<OrderView, DeskError> {
        let _ = (id, buyer);
        Err(DeskError::NotFound)
    }

    /// Cancels an order of this buyer while it is PENDING. An order cancelled before is answered as it stands.
    pub async fn cancel(&self, id: OrderId, buyer: &Buyer) -> Result<OrderView, CancelError> {
        let _ = (id, buyer);
        Err(DeskError::NotFound.into())
    }

    /// What the last probes found.
    pub fn health(&self) -> Health {
        Health {
            postgres_up: false,
            redis_up: false,
        }
    }
}
