//! What buyers and sellers are shown.

use jiff::Timestamp;

use super::{Buyer, FailureReason, Money, OrderId, OrderStatus, Sale, SaleId, Stock};

/// A sale with its stock at one instant of the database's clock.
#[derive(Debug, Clone)]
pub struct SaleView {
    /// What doesn't change about it.
    pub sale: Sale,
    /// Its stock; the numbers add up.
    pub stock: Stock,
    /// When it was called off, if it was.
    pub cancelled_at: Option<Timestamp>,
    /// The database's time when it was read.
    pub server_time: Timestamp,
}

/// How far the end of a sale that is called off is. Orders by where they stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CancellationView {
    /// The sale.
    pub sale: SaleId,
    /// When it was called off; `None` when it wasn't.
    pub cancelled_at: Option<Timestamp>,
    /// When nothing was left to do.
    pub done_at: Option<Timestamp>,
    /// Not released yet, or being charged.
    pub open: i64,
    /// Paid, and to be paid back.
    pub to_refund: i64,
    /// Failed, by this or before.
    pub released: i64,
    /// Paid back.
    pub refunded: i64,
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
    /// What of it has been paid back on request, in minor units.
    pub refunded_minor: i64,
    /// What has been promised back and isn't confirmed by the provider yet, in minor units.
    pub refund_due_minor: i64,
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
