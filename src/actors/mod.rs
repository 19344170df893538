//! The actors that keep order: one per sale, one per open order, the payment supervisor and the sweeper, and the desk
//! at which the front door hands its requests in.
//!
//! Architecture invariant: an actor is a shell; what it decides is a plain struct beside it. The database decides what
//! is true: kill any of them and the row tells the next one where to go on.

pub mod batches;
pub mod breaker;
pub mod conservation;
pub mod desk;
pub mod inbox;
pub mod order;
pub mod payment_supervisor;
pub mod plan;
pub mod provider_tasks;
pub mod reconciler;
pub mod refunds;
pub mod releaser;
pub mod sale;
pub mod sale_canceller;
pub mod sweeper;
pub mod transition_writer;
pub mod watch;

pub use desk::Desk;
