//! Payment providers: what the engine asks of one, and in which ways a charge can end.
//!
//! Architecture invariant: no lock and no transaction is held while one of these calls is under way.

pub mod metered;
pub mod mock;
pub mod stripe;
pub mod webhook;
mod wire;

use std::time::Duration;

use futures_util::future::BoxFuture;
use jiff::Timestamp;

use crate::domain::{BookEntry, Money, OrderId, PaymentMethod};

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
    /// The provider has set the money aside, and takes it when it is told to capture it.
    Authorised,
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
    /// It is set aside, and not taken.
    Authorised,
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

/// What became of a capture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CaptureOutcome {
    /// The provider has the money, now or by an earlier request.
    Captured,
    /// It doesn't say so: only a look-up can tell whether it has.
    Unknown {
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

/// What became of the wish to have a charge named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenOutcome {
    /// It has this name at the provider, and nothing was taken or set aside.
    Opened(String),
    /// The provider won't have it; final.
    Declined {
        /// The provider's word for why.
        code: String,
    },
    /// Not known, or not done. Nothing was taken or set aside.
    Unreachable {
        /// What was seen, for logs.
        what: String,
        /// How long the provider asked us to wait, where it did.
        retry_after: Option<Duration>,
    },
}

/// A charge as the provider is asked about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charge {
    /// Our name for it.
    pub reference: Reference,
    /// How much.
    pub amount: Money,
    /// What the buyer pays with, where the purchase said so.
    pub payment_method: Option<PaymentMethod>,
    /// The provider's name for it, where the provider gives one beforehand and we have written it down.
    pub provider_id: Option<String>,
}

/// A payment provider. Each call is one request, sent once, unless it says otherwise: whoever calls decides about retries, and each real
/// send is counted in `fluxbuy_provider_requests_total`.
pub trait PaymentProvider: Send + Sync + 'static {
    /// Its name in the database.
    fn name(&self) -> &'static str;

    /// Whether a charge only sets money aside, until it is captured.
    fn two_step(&self) -> bool;

    /// Whether a purchase has to say what it is paid with.
    fn needs_payment_method(&self) -> bool {
        false
    }

    /// Whether charges must be opened, and the provider's name for them written down, before anything is charged: then it doesn't matter how
    /// the provider takes repeats, for the same charge can't happen twice.
    fn opens_charges(&self) -> bool {
        false
    }

    /// Has a charge named by the provider, without taking anything. Only where charges must be opened.
    fn open<'a>(&'a self, _: &'a Charge) -> BoxFuture<'a, OpenOutcome> {
        Box::pin(std::future::ready(OpenOutcome::Unreachable {
            what: "this provider names no charges".to_owned(),
            retry_after: None,
        }))
    }

    /// Takes the money, or sets it aside. Idempotent by reference.
    fn charge<'a>(&'a self, charge: &'a Charge) -> BoxFuture<'a, ChargeOutcome>;

    /// Takes all of the money that was set aside. Idempotent by reference.
    fn capture<'a>(&'a self, charge: &'a Charge) -> BoxFuture<'a, CaptureOutcome>;

    /// Asks what became of a charge.
    fn lookup<'a>(&'a self, charge: &'a Charge) -> BoxFuture<'a, Lookup>;

    /// Makes sure that a charge can't succeed any more; what is only set aside is let go.
    fn void<'a>(&'a self, charge: &'a Charge) -> BoxFuture<'a, VoidOutcome>;

    /// Pays a charge back, or a part of it, under the refund's own name. Idempotent by that.
    fn refund<'a>(
        &'a self,
        charge: &'a Charge,
        refund: &'a Reference,
        amount: Money,
    ) -> BoxFuture<'a, RefundOutcome>;

    /// All that the provider has taken, set aside and paid back, by its own book, in as many requests as that takes. With `since`, at least
    /// the charges that were begun since then, by the provider's clock, and maybe more.
    ///
    /// # Errors
    /// What was seen, when it can't be read.
    fn book(&self, since: Option<Timestamp>) -> BoxFuture<'_, Result<Vec<BookEntry>, String>>;
}
