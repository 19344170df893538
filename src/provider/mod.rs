//! Payment providers: what the engine asks of one, and in which four ways a charge can end.
//!
//! Architecture invariant: no lock and no transaction is held while one of these calls is under way.

pub mod metered;
pub mod mock;
pub mod webhook;

use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::domain::{BookEntry, Money, OrderId};

/// Our name for a charge at the provider: `<order>:<attempt>`. The same bytes at every retry, so that the provider can
/// tell a repeat from a second charge.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reference(String);

impl Reference {
    /// The reference of this attempt at charging this order.
    pub fn of(order: OrderId, attempt: i32) -> Self {
        Self(format!("{order}:{attempt}"))
    }

    /// The name of a refund of this attempt's charge: number 0 for money that came too late, and otherwise the refund's own.
    pub fn of_refund(order: OrderId, attempt: i32, number: i32) -> Self {
        Self(match number {
            0 => format!("{order}:{attempt}:refund"),
            number => format!("{order}:{attempt}:refund:{number}"),
        })
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// How a charge ended, as far as can be known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChargeOutcome {
    /// The provider has the money.
    Succeeded,
    /// The provider said no; final for this reference.
    Declined {
        /// The provider's word for why.
        code: String,
    },
    /// Certainly nothing was done: the connection was refused, or the provider turned the request away before acting on it.
    NotSent {
        /// How long the provider asked us to wait, where it did.
        retry_after: Option<Duration>,
    },
    /// Nobody knows: time-out, connection lost, 5xx. Only a look-up or the same request again can tell.
    Unknown {
        /// What was seen, for logs.
        what: String,
    },
}

/// What the provider says of a charge when asked under its reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lookup {
    /// The money is there.
    Succeeded,
    /// Declined; final.
    Declined {
        /// The provider's word for why.
        code: String,
    },
    /// Voided; it can't succeed any more.
    Voided,
    /// Under way.
    Pending,
    /// Never seen. This alone proves nothing while a request may be under way.
    NotFound,
    /// The provider couldn't be asked.
    Unreachable {
        /// What was seen, for logs.
        what: String,
    },
}

/// What became of the wish that a charge may never succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VoidOutcome {
    /// Confirmed: a charge under this reference can't succeed any more, not even one that is under way or arrives later.
    Voided,
    /// Too late: the money is there.
    AlreadySucceeded,
    /// It had been declined.
    AlreadyDeclined {
        /// The provider's word for why.
        code: String,
    },
    /// Not confirmed.
    Unreachable {
        /// What was seen, for logs.
        what: String,
    },
}

/// What became of a refund.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RefundOutcome {
    /// The money is back (now or by an earlier request under the same reference).
    Refunded,
    /// The provider said no; repeating won't help.
    Refused {
        /// The provider's word for why.
        code: String,
    },
    /// Not known; repeat it under the same reference.
    Unreachable {
        /// What was seen, for logs.
        what: String,
    },
}

/// A payment provider. Each call is one request, sent once: whoever calls decides about retries, and each real send is
/// counted in `fluxbuy_provider_requests_total`.
pub trait PaymentProvider: Send + Sync + 'static {
    /// Its name in the database.
    fn name(&self) -> &'static str;
    /// Takes the money. Idempotent by reference.
    fn charge<'a>(&'a self, reference: &'a Reference, amount: Money) -> BoxFuture<'a, ChargeOutcome>;
    /// Asks what became of a charge.
    fn lookup<'a>(&'a self, reference: &'a Reference) -> BoxFuture<'a, Lookup>;
    /// Makes sure that a charge can't succeed any more.
    fn void<'a>(&'a self, reference: &'a Reference) -> BoxFuture<'a, VoidOutcome>;
    /// All that the provider has taken and paid back, by its own book, in as many requests as that takes.
    ///
    /// # Errors
    /// What was seen, when it can't be read.
    fn book(&self) -> BoxFuture<'_, Result<Vec<BookEntry>, String>>;
    /// Pays a charge back, or a part of it, under the refund's own name. Idempotent by that.
    fn refund<'a>(
        &'a self,
        charge: &'a Reference,
        refund: &'a Reference,
        amount: Money,
    ) -> BoxFuture<'a, RefundOutcome>;
}
