//! What a sale's actor is told.

use actix::Message;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::decide::Decided;
use super::intake::Digests;
use crate::domain::{Accepted, Purchase, Refusal};
use crate::gate::Pulse;

/// Somebody who waits for the answer to a purchase, and the place they take up in the queue.
pub struct Waiter {
    /// Where the answer goes.
    pub answer: oneshot::Sender<Result<Accepted, Refusal>>,
    /// Their place; free again when the answer is given.
    pub place: OwnedSemaphorePermit,
}

/// A buyer wants units. Left at the intake.
pub struct Buy {
    /// What they want.
    pub purchase: Purchase,
    /// Who waits.
    pub waiter: Waiter,
}

/// Something was left at the intake while the actor slept.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Called;

/// A batch is decided.
#[derive(Message)]
#[rtype(result = "()")]
pub struct BatchDecided(pub Vec<Decided>, pub Option<i64>);

/// Units of this sale have gone back.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Freed;

/// What the gate knows of a sale that is sold out: its purchases. `None` when that is over or can't be told.
#[derive(Message)]
#[rtype(result = "()")]
pub struct SoldOutKnown(pub Option<(Pulse, Digests)>);

/// Whether a sale that is sold out still is.
#[derive(Message)]
#[rtype(result = "()")]
pub struct StillSoldOut(pub Option<Pulse>);

/// Gate and database are apart, with the gate at this epoch: load it anew.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Reload {
    /// The epoch that the gate was found at.
    pub stale: i64,
}
