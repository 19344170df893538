//! What an order's actor is told.

use actix::Message;
use tracing::Span;

use crate::actors::plan::ChargeEnd;
use crate::actors::transition_writer::WriteError;
use crate::domain::{OrderStatus, Projection};
use crate::provider;
use crate::store::{Applied, Outcome, StuckOrder};

/// A place among the charges under way. Whoever gave it out is told when it is dropped, wherever that happens.
pub struct ChargePlace(Option<Box<dyn FnOnce() + Send>>);

impl ChargePlace {
    /// A place; `free` is called when it is given back.
    pub fn new(free: impl FnOnce() + Send + 'static) -> Self {
        Self(Some(Box::new(free)))
    }
}

impl Drop for ChargePlace {
    fn drop(&mut self) {
        if let Some(free) = self.0.take() {
            free();
        }
    }
}

/// Claim the order and charge it. The place is the supervisor's: it is free again when the charge has ended.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Charge(pub ChargePlace);

/// The charge has ended, or the capture after it.
#[derive(Message)]
#[rtype(result = "()")]
pub struct ChargeEnded {
    /// The claim under which it was made.
    pub claim: Applied,
    /// The charge, with the provider's name for it where it has one.
    pub charge: provider::Charge,
    /// How it ended.
    pub end: ChargeEnd,
    /// Given back when the order is settled.
    pub place: ChargePlace,
    /// What is logged of the settlement belongs where the charge does.
    pub span: Span,
}

/// Stop, if nothing is under way. Sent to itself, so it comes after all that is in the mailbox.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Rest;

/// The order has been open for longer than the cutoff: settle it, if that is safe.
#[derive(Message)]
#[rtype(result = "Swept")]
pub struct Sweep(pub StuckOrder);

/// What became of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Swept {
    /// The order is decided now.
    Settled,
    /// Somebody else got there first.
    Lost,
    /// The provider couldn't tell; the units stay held.
    InDoubt,
    /// The database couldn't be asked.
    Failed,
}

/// The buyer doesn't want it any more.
#[derive(Message)]
#[rtype(result = "Result<Outcome, WriteError>")]
pub struct Cancel;

/// Its sale is called off.
#[derive(Message)]
#[rtype(result = "Result<Outcome, WriteError>")]
pub struct CancelWithSale;

/// The provider has told something by itself, and this is what it means for the order.
#[derive(Debug, Clone, Message)]
#[rtype(result = "Heard")]
pub struct Told {
    /// What has to be done.
    pub projection: Projection,
    /// The status that the order had when that was found out.
    pub status: OrderStatus,
    /// And its fence.
    pub fence: i32,
    /// Which charge it is about.
    pub attempt: i32,
    /// The provider's word for why, for a charge that was declined.
    pub code: Option<String>,
    /// Which refund of the charge it is about, if it is about one.
    pub refund: Option<i32>,
    /// The provider's name for its event.
    pub event_id: String,
    /// The request that brought it first.
    pub request_id: Option<String>,
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// The books have it now, by this event.
    Applied,
    /// They had it already.
    NoChange,
    /// The order moved meanwhile, or the database can't be asked: look again.
    Again,
}
