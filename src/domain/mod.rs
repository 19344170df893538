//! What the engine talks about, without any I/O: ids, money, sales, purchases, and the life of an order.
//!
//! Architecture invariant: nothing in here knows a clock, a socket or a database.

pub mod ids;
pub mod ledger;
pub mod money;
pub mod order;
pub mod payment;
pub mod purchase;
pub mod reconcile;
pub mod sale;
pub mod views;

pub use ids::{Buyer, IdempotencyDigest, OrderId, PaymentMethod, RequestId, SaleId};
pub use ledger::{Account, BookEntry, Difference, SaleSum, Verification, verify};
pub use money::{Currency, Money};
pub use order::{Effect, Event, FailureReason, IllegalEvent, OrderStatus, Transition, transition};
pub use payment::{
    ChargeName, Found, News, PaymentStatus, Projection, ProviderEvent, RefundAsk, RefundName, RefundReason,
    RefundRefusal, RefundView, project,
};
pub use purchase::{Accepted, Purchase, Refusal};
pub use sale::{NewSale, Phase, Sale, Stock};
pub use views::{CancellationView, LateRefund, OrderView, SaleView};
