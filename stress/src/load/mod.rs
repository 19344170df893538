//! The load: buyers on kept connections, what they ask, and a record of each request with what became of it.

mod crowd;
mod link;
mod peer;
mod purchase;
pub mod workload;

use std::time::Duration;

use bytes::Bytes;
use uuid::Uuid;

pub use crowd::{Crowd, Wishes};
pub use link::{Link, Lost};
pub use peer::Peer;
pub use purchase::Told;

/// A purchase that a buyer wants: who, under which idempotency key, how many units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ask {
    /// The buyer's number.
    pub buyer: u32,
    /// The key's number. A buyer that asks again under the same key wants the same order.
    pub key: u32,
    /// Units.
    pub quantity: u32,
}

impl Ask {
    /// The buyer's name, as the engine gets it.
    pub fn buyer_name(&self) -> String {
        format!("buyer-{}", self.buyer)
    }

    /// The number of a buyer of ours; `None` for anybody else.
    pub fn buyer_number(name: &str) -> Option<u32> {
        name.strip_prefix("buyer-")?.parse().ok()
    }
}

/// What became of a request, as far as the buyer can tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// 201: a unit is held.
    Accepted {
        /// The order.
        order: Uuid,
        /// It was there already, from an earlier request with this key.
        replayed: bool,
    },
    /// Certainly nothing was done.
    Refused(Refusal),
    /// Nobody can tell: no answer, or one that says so.
    Unknown(String),
}

impl Outcome {
    /// A yes or a no for good.
    pub fn is_decided(&self) -> bool {
        match self {
            Self::Accepted { .. } => true,
            Self::Refused(refusal) => !refusal.is_passing(),
            Self::Unknown(_) => false,
        }
    }
}

/// Why certainly nothing was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// Fewer units are left than were asked for.
    SoldOut,
    /// The buyer may not have so many.
    LimitExceeded,
    /// The sale has not begun.
    NotOpen,
    /// The sale is over.
    Closed,
    /// The key belongs to another request.
    KeyReused,
    /// Too many wait.
    Overloaded,
    /// Something the engine needs is away.
    Unavailable,
    /// The request isn't what it must be.
    Invalid,
    /// It never left: the connection was closed before.
    NotSent,
}

impl Refusal {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::SoldOut => "sold_out",
            Self::LimitExceeded => "limit_exceeded",
            Self::NotOpen => "not_open",
            Self::Closed => "closed",
            Self::KeyReused => "key_reused",
            Self::Overloaded => "overloaded",
            Self::Unavailable => "unavailable",
            Self::Invalid => "invalid",
            Self::NotSent => "not_sent",
        }
    }

    /// Whether the same request may fare better in a moment.
    pub fn is_passing(self) -> bool {
        matches!(
            self,
            Self::NotOpen | Self::Overloaded | Self::Unavailable | Self::NotSent
        )
    }
}

/// One request: the harness's own memory, against which the engine's is held.
#[derive(Debug, Clone)]
pub struct Record {
    /// What was asked.
    pub ask: Ask,
    /// When it was sent, from the start of the run.
    pub started: Duration,
    /// When its answer was there.
    pub ended: Duration,
    /// What became of it.
    pub outcome: Outcome,
    /// The answer's bytes, where they were to be kept.
    pub body: Option<Bytes>,
}

impl Record {
    /// How long the buyer waited.
    pub fn waited(&self) -> Duration {
        self.ended.saturating_sub(self.started)
    }

    /// The order that it was answered with.
    pub fn order(&self) -> Option<Uuid> {
        match self.outcome {
            Outcome::Accepted { order, .. } => Some(order),
            _ => None,
        }
    }
}
