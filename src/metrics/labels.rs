//! Label values. Each enum is one label's whole set of values, in the order in which its series are kept.

use crate::domain::reconcile::Kind;
use crate::domain::{News, OrderStatus};

/// A label whose values are all known.
pub(super) trait Label: Copy + 'static {
    /// All values; `index` counts in this order.
    const VALUES: &'static [Self];
    /// The place in `VALUES`.
    fn index(self) -> usize;
    /// The value as text.
    fn text(self) -> &'static str;
}

macro_rules! labels {
    ($($(#[$doc:meta])* $label:ident { $($(#[$value_doc:meta])* $value:ident = $text:literal,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
            pub enum $label {
                $($(#[$value_doc])* $value,)*
            }

            impl $label {
                /// All of them.
                pub const ALL: &'static [Self] = &[$(Self::$value),*];

                /// As it stands in a scrape.
                pub fn as_str(self) -> &'static str {
                    match self {
                        $(Self::$value => $text,)*
                    }
                }
            }

            impl Label for $label {
                const VALUES: &'static [Self] = Self::ALL;

                fn index(self) -> usize {
                    self as usize
                }

                fn text(self) -> &'static str {
                    self.as_str()
                }
            }
        )*
    };
}

labels! {
    /// How a purchase was answered.
    Outcome {
        /// An order was made.
        Accepted = "accepted",
        /// An earlier request with the same key had made it.
        Replayed = "replayed",
        /// Fewer units were available than asked for.
        SoldOut = "sold_out",
        /// The buyer would have held more than the sale allows.
        LimitExceeded = "limit_exceeded",
        /// The sale hadn't begun.
        NotOpen = "not_open",
        /// The sale was over.
        Closed = "closed",
        /// The key had been used with another body.
        KeyReused = "key_reused",
        /// A queue was full.
        Overloaded = "overloaded",
        /// Postgres couldn't be asked; certainly nothing was done.
        Unavailable = "unavailable",
        /// The buyer was told to ask again with the same key.
        OutcomeUnknown = "outcome_unknown",
        /// The request itself was wrong: its body, a header, or a sale that doesn't exist.
        Invalid = "invalid",
    }

    /// Who changes an order.
    By {
        /// The sale, which makes it.
        Sale = "sale",
        /// The payment worker.
        Payment = "payment",
        /// The sweeper.
        Sweeper = "sweeper",
        /// A provider's webhook.
        Webhook = "webhook",
        /// The buyer, by cancelling.
        Buyer = "buyer",
        /// The seller, by paying back or calling a sale off.
        Seller = "seller",
    }

    /// What a batch does.
    What {
        /// Takes orders.
        Reserve = "reserve",
        /// Changes their status.
        Transition = "transition",
    }

    /// What is asked of the gate.
    GateOp {
        /// Take units for a batch.
        Reserve = "reserve",
        /// Give units back.
        Release = "release",
        /// Load a sale's stock from Postgres.
        Rebuild = "rebuild",
    }

    /// A pool of database connections.
    Pool {
        /// For taking orders.
        Reserve = "reserve",
        /// For claims, settlements and sweeps.
        Settle = "settle",
        /// For reads.
        Read = "read",
    }

    /// What is asked of the payment provider.
    ProviderOp {
        /// Have a charge named, before anything is taken.
        Open = "open",
        /// Take money.
        Charge = "charge",
        /// Take what a charge has set aside.
        Capture = "capture",
        /// Tell what became of a charge.
        Lookup = "lookup",
        /// Make sure that a charge can't succeed any more.
        Void = "void",
        /// Pay money back.
        Refund = "refund",
    }

    /// How an HTTP request to the provider ended, whatever it was for.
    SendEnd {
        /// With an answer, whatever it says.
        Answered = "answered",
        /// Without one, after it may have arrived.
        Unanswered = "unanswered",
        /// There was no connection: nothing left.
        NotSent = "not_sent",
    }

    /// How a call to the provider ended.
    ProviderOutcome {
        /// It did what was asked; for a look-up: the charge has succeeded.
        Succeeded = "succeeded",
        /// It has set the money aside, for a capture to take it.
        Authorised = "authorised",
        /// It said no; for a look-up: the charge was declined or voided; for a void: the charge was over before.
        Declined = "declined",
        /// Certainly nothing was done.
        NotSent = "not_sent",
        /// Nobody knows: time-out, connection lost, 5xx.
        Unknown = "unknown",
        /// A look-up found the charge under way.
        Pending = "pending",
        /// A look-up found nothing.
        NotFound = "not_found",
        /// It asked for fewer requests; nothing was done.
        RateLimited = "rate_limited",
    }

    /// How far the refund of late money is.
    LateRefund {
        /// Written down, in the commit that found the money.
        Due = "due",
        /// The provider has paid it back.
        Done = "done",
    }

    /// How far a refund that was asked for is.
    RefundStage {
        /// Promised, and written down.
        Due = "due",
        /// The provider has paid it.
        Done = "done",
    }

    /// A payment provider that sends webhooks.
    ProviderName {
        /// `fluxbuy mock-provider`.
        Mock = "mock",
        /// Stripe.
        Stripe = "stripe",
    }

    /// What became of a verified webhook.
    DeliveryResult {
        /// It brought an event, which is durable now.
        Stored = "stored",
        /// It repeated one.
        Duplicate = "duplicate",
        /// It could not be written down: the provider was told to come again.
        Failed = "failed",
    }

    /// Why a webhook was not believed, or not read.
    WebhookRefusal {
        /// No secret is set.
        NoSecret = "no_secret",
        /// A header that must be there isn't.
        Missing = "missing",
        /// A header can't be read.
        Malformed = "malformed",
        /// No signature is of a known scheme.
        UnknownScheme = "unknown_scheme",
        /// It was signed too long ago.
        TooOld = "too_old",
        /// It was signed in the future.
        TooFarAhead = "too_far_ahead",
        /// No signature fits.
        Mismatch = "mismatch",
        /// It is the provider's, and no event.
        Unreadable = "unreadable",
        /// There is no such provider here.
        UnknownProvider = "unknown_provider",
    }

    /// What came of an event.
    EventEnd {
        /// It changed something.
        Applied = "applied",
        /// The books said so already, or it came too late to matter.
        NoChange = "no_change",
        /// It says nothing that is known here.
        Ignored = "ignored",
        /// Its order never came, or it contradicts the books.
        GivenUp = "given_up",
    }

    /// Why a sale's stock was loaded into the gate.
    RebuildReason {
        /// The sale was listed.
        Listed = "listed",
        /// The gate didn't know the sale.
        Unprimed = "unprimed",
        /// The gate's epoch was older than the sale's.
        Epoch = "epoch",
        /// Postgres had fewer units than the gate said.
        Short = "short",
        /// Gate and database differed, with nothing moving that would explain it.
        Apart = "apart",
    }

    /// What became of a difference that a periodic pass found.
    ReconcileResult {
        /// It is repaired, or the work that repairs it is written down.
        Repaired = "repaired",
        /// A person has to look.
        Left = "left",
    }

    /// How a pass of the sweeper ended.
    PassResult {
        /// It got through.
        Ok = "ok",
        /// It was cut short by an error.
        Failed = "failed",
    }

    /// A kind of actor.
    Actor {
        /// One order's.
        Order = "order",
        /// One sale's.
        Sale = "sale",
    }
}

impl Label for OrderStatus {
    const VALUES: &'static [Self] = &Self::ALL;

    fn index(self) -> usize {
        self as usize
    }

    fn text(self) -> &'static str {
        self.as_str()
    }
}

impl Label for News {
    const VALUES: &'static [Self] = &Self::ALL;

    fn index(self) -> usize {
        self as usize
    }

    fn text(self) -> &'static str {
        self.as_str()
    }
}

impl Label for Kind {
    const VALUES: &'static [Self] = Self::ALL;

    fn index(self) -> usize {
        self as usize
    }

    fn text(self) -> &'static str {
        self.as_str()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_the_place_among_the_values() {
        fn check<L: Label + PartialEq + std::fmt::Debug>() {
            for (place, value) in L::VALUES.iter().enumerate() {
                assert_eq!(value.index(), place, "{value:?}");
            }
        }
        check::<OrderStatus>();
        check::<News>();
        check::<Kind>();
        check::<Outcome>();
        check::<ProviderOutcome>();
    }
}
