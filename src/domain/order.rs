//! An order's life: the one table of statuses, events and effects. Production code, tests and database are held to it.
//!
//! ```text
//! PENDING --Claim--> PROCESSING --ChargeSucceeded--> PAID --Refunded, RefundedAndReturned--> REFUNDED
//!    |                    |  '--Authorised--> CAPTURING --ChargeSucceeded--^  |
//!    |                    |                                                '--ChargeDeclined, ChargeVoided--v
//!    '--Swept, Cancelled--'--ChargeDeclined, ChargeNotSent, ChargeVoided, GivenUp----------------------> FAILED
//! ```
//!
//! A provider in one step goes from PROCESSING to PAID. One in two steps goes by CAPTURING, and that is the point of no return: before
//! it nobody can have taken money, so that giving up is safe; after it only the provider's own word ends the order.

use std::fmt;

/// Where an order stands. In the database its name in capitals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OrderStatus {
    /// A unit is held; nobody has begun to charge.
    Pending,
    /// A worker has claimed it; the charge may be anywhere.
    Processing,
    /// The provider has authorised the charge, and is being told to take the money: it may have it.
    Capturing,
    /// Charged, and the units are the buyer's.
    Paid,
    /// Over without a sale; the units went back.
    Failed,
    /// Paid once, and paid back.
    Refunded,
    /// Never came into being; the row only occupies the id, so that a late insert can't.
    Rejected,
}

impl OrderStatus {
    /// All of them, for tables that must be complete.
    pub const ALL: [Self; 7] = [
        Self::Pending,
        Self::Processing,
        Self::Capturing,
        Self::Paid,
        Self::Failed,
        Self::Refunded,
        Self::Rejected,
    ];

    /// Its name in the database.
    pub fn as_sql(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Processing => "PROCESSING",
            Self::Capturing => "CAPTURING",
            Self::Paid => "PAID",
            Self::Failed => "FAILED",
            Self::Refunded => "REFUNDED",
            Self::Rejected => "REJECTED",
        }
    }

    /// The status with this name in the database.
    pub fn from_sql(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_sql() == name)
    }

    /// Its name in answers and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Processing => "processing",
            Self::Capturing => "capturing",
            Self::Paid => "paid",
            Self::Failed => "failed",
            Self::Refunded => "refunded",
            Self::Rejected => "rejected",
        }
    }

    /// Open orders hold units that are not sold.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Pending | Self::Processing | Self::Capturing)
    }
}

impl fmt::Display for OrderStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why an order failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureReason {
    /// The provider declined the charge.
    Declined,
    /// It was open longer than the cutoff.
    Swept,
    /// The buyer cancelled it.
    Cancelled,
    /// The seller cancelled the sale.
    SaleCancelled,
    /// The provider could not be reached, and certainly got nothing.
    ProviderUnavailable,
}

impl FailureReason {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Declined,
        Self::Swept,
        Self::Cancelled,
        Self::SaleCancelled,
        Self::ProviderUnavailable,
    ];

    /// Its name in the database and in answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Declined => "declined",
            Self::Swept => "swept",
            Self::Cancelled => "cancelled",
            Self::SaleCancelled => "sale_cancelled",
            Self::ProviderUnavailable => "provider_unavailable",
        }
    }

    /// The reason with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == name)
    }
}

/// What can happen to an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Event {
    /// A worker wants to charge it.
    Claim,
    /// A worker takes over a claim that is older than the cutoff, to find out what became of it.
    TakeOver,
    /// The provider has set the money aside for us, and waits to be told to take it.
    Authorised,
    /// The provider has the money.
    ChargeSucceeded,
    /// The provider declined.
    ChargeDeclined,
    /// The charge never reached the provider, and the claim's holder has stopped trying.
    ChargeNotSent,
    /// The provider has confirmed that the charge can't succeed any more.
    ChargeVoided,
    /// Past the cutoff and in doubt, and not to be waited for: because nothing is taken without a capture, or by the operator's switch.
    GivenUp,
    /// Nobody claimed it before the cutoff.
    Swept,
    /// The buyer doesn't want it any more.
    Cancelled,
    /// The seller has called the sale off.
    SaleCancelled,
    /// The provider has paid all of the money back.
    Refunded,
    /// The same, and the units go back into stock.
    RefundedAndReturned,
}

impl Event {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Claim,
        Self::TakeOver,
        Self::Authorised,
        Self::ChargeSucceeded,
        Self::ChargeDeclined,
        Self::ChargeNotSent,
        Self::ChargeVoided,
        Self::GivenUp,
        Self::Swept,
        Self::Cancelled,
        Self::SaleCancelled,
        Self::Refunded,
        Self::RefundedAndReturned,
    ];
}

impl Event {
    /// Its name in an order's history.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::TakeOver => "take_over",
            Self::Authorised => "authorised",
            Self::ChargeSucceeded => "charge_succeeded",
            Self::ChargeDeclined => "charge_declined",
            Self::ChargeNotSent => "charge_not_sent",
            Self::ChargeVoided => "charge_voided",
            Self::GivenUp => "given_up",
            Self::Swept => "swept",
            Self::Cancelled => "cancelled",
            Self::SaleCancelled => "sale_cancelled",
            Self::Refunded => "refunded",
            Self::RefundedAndReturned => "refunded_and_returned",
        }
    }
}

/// What has to happen with a transition: in its own transaction, or written down there and done afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Raise attempt and fence, and write the payment row: only then may the charge be sent.
    BeginPayment,
    /// Raise the fence and keep the attempt.
    RaiseFence,
    /// Mark the payment as authorised: only then may the money be captured.
    BeginCapture,
    /// Mark the payment with its outcome.
    ClosePayment,
    /// Leave the payment in doubt and write down that its outcome must still be found out.
    ResolvePaymentLater,
    /// The provider's word is that no money can come; write down that it is to be asked once more, later.
    VerifyVoidLater,
    /// Write the charge into the ledger.
    RecordCharge,
    /// Move the units from held to sold.
    SellUnits,
    /// Move the units from held back to available, give the allowance back, and tell the gate.
    ReleaseUnits,
    /// Move the units from sold back to available, give the allowance back, and tell the gate.
    ReturnUnits,
    /// Money came for an order that failed: write down that it is due back.
    RefundLateCharge,
    /// Money was set aside for an order that failed: write down that the authorisation is to be voided.
    VoidLateAuthorisation,
}

/// The outcome of an event that fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transition {
    /// The status afterwards.
    pub to: OrderStatus,
    /// Set when `to` is FAILED through this event.
    pub reason: Option<FailureReason>,
    /// What belongs to it.
    pub effects: &'static [Effect],
}

/// An event that doesn't fit the status it met. Nothing may be done about it but to count it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{event:?} doesn't fit an order that is {status}")]
pub struct IllegalEvent {
    /// The status that was met.
    pub status: OrderStatus,
    /// The event that met it.
    pub event: Event,
}

/// What `event` makes of an order in `status`. Pure and total.
///
/// # Errors
/// [`IllegalEvent`] when the event has no place there: somebody else got there first.
pub fn transition(status: OrderStatus, event: Event) -> Result<Transition, IllegalEvent> {
    use Effect as F;
    use Event as E;
    use FailureReason as R;
    use OrderStatus as S;

    let to = |to, effects| {
        Ok(Transition {
            to,
            reason: None,
            effects,
        })
    };
    let fail = |reason, effects| {
        Ok(Transition {
            to: S::Failed,
            reason: Some(reason),
            effects,
        })
    };

    match (status, event) {
        (S::Pending, E::Claim) => to(S::Processing, &[F::BeginPayment]),
        (S::Pending, E::Swept) => fail(R::Swept, &[F::ReleaseUnits]),
        (S::Pending, E::Cancelled) => fail(R::Cancelled, &[F::ReleaseUnits]),
        (S::Pending, E::SaleCancelled) => fail(R::SaleCancelled, &[F::ReleaseUnits]),

        (S::Processing, E::TakeOver) => to(S::Processing, &[F::RaiseFence]),
        (S::Processing, E::Authorised) => to(S::Capturing, &[F::BeginCapture]),
        (S::Processing | S::Capturing, E::ChargeSucceeded) => {
            to(S::Paid, &[F::ClosePayment, F::RecordCharge, F::SellUnits])
        }
        (S::Processing | S::Capturing, E::ChargeDeclined) => {
            fail(R::Declined, &[F::ClosePayment, F::ReleaseUnits])
        }
        (S::Processing, E::ChargeNotSent) => {
            fail(R::ProviderUnavailable, &[F::ClosePayment, F::ReleaseUnits])
        }
        (S::Processing, E::ChargeVoided) => {
            fail(R::Swept, &[F::ClosePayment, F::VerifyVoidLater, F::ReleaseUnits])
        }
        (S::Processing, E::GivenUp) => fail(R::Swept, &[F::ResolvePaymentLater, F::ReleaseUnits]),

        // Time never ends it: the money may be there. What the provider has let go of can't be captured any more.
        (S::Capturing, E::TakeOver) => to(S::Capturing, &[F::RaiseFence]),
        (S::Capturing, E::ChargeVoided) => fail(
            R::Declined,
            &[F::ClosePayment, F::VerifyVoidLater, F::ReleaseUnits],
        ),

        // The last refund's own rows are written in the same transaction, by whoever heard of it.
        (S::Paid, E::Refunded) => to(S::Refunded, &[]),
        (S::Paid, E::RefundedAndReturned) => to(S::Refunded, &[F::ReturnUnits]),

        // Late money changes no status: the order stays failed, and the buyer gets the money back.
        (S::Failed, E::ChargeSucceeded) => to(S::Failed, &[F::RefundLateCharge]),
        (S::Failed, E::Authorised) => to(S::Failed, &[F::VoidLateAuthorisation]),

        (status, event) => Err(IllegalEvent { status, event }),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    /// Every status with every event: the reviewed table in `snapshots/`.
    #[test]
    fn the_whole_table() {
        let mut table = String::new();
        for status in OrderStatus::ALL {
            for event in Event::ALL {
                let pair = format!("{:<10} {event:?}", status.as_sql());
                match transition(status, event) {
                    Ok(Transition { to, reason, effects }) => {
                        let reason = reason
                            .map(|reason| format!("({})", reason.as_str()))
                            .unwrap_or_default();
                        writeln!(table, "{pair:<28} -> {}{reason} {effects:?}", to.as_sql()).unwrap();
                    }
                    Err(illegal) => {
                        assert_eq!(illegal, IllegalEvent { status, event });
                        writeln!(table, "{pair:<28} -- illegal").unwrap();
                    }
                }
            }
        }
        insta::assert_snapshot!(table);
    }

    #[test]
    fn only_an_order_that_holds_units_gives_them_back_and_never_twice() {
        for status in OrderStatus::ALL {
            for event in Event::ALL {
                let Ok(t) = transition(status, event) else {
                    continue;
                };
                let releases = t.effects.contains(&Effect::ReleaseUnits);
                assert_eq!(
                    releases,
                    status.is_open() && t.to == OrderStatus::Failed,
                    "{status} {event:?}"
                );
                assert_eq!(t.reason.is_some(), releases);
                let returns = t.effects.contains(&Effect::ReturnUnits);
                assert!(
                    !returns || (status == OrderStatus::Paid && t.to == OrderStatus::Refunded),
                    "{status} {event:?}"
                );
                let sells = t.effects.contains(&Effect::SellUnits);
                assert_eq!(sells, t.to == OrderStatus::Paid, "{status} {event:?}");
                assert_eq!(sells, t.effects.contains(&Effect::RecordCharge));
            }
        }
    }

    #[test]
    fn once_money_may_be_captured_only_the_providers_word_ends_an_order() {
        let ends: Vec<Event> = Event::ALL
            .into_iter()
            .filter(|event| {
                transition(OrderStatus::Capturing, *event).is_ok_and(|t| t.to != OrderStatus::Capturing)
            })
            .collect();
        assert_eq!(
            ends,
            [Event::ChargeSucceeded, Event::ChargeDeclined, Event::ChargeVoided]
        );
        let ways_there = OrderStatus::ALL
            .into_iter()
            .flat_map(|status| Event::ALL.map(|event| (status, event)))
            .filter(|(status, event)| {
                *status != OrderStatus::Capturing
                    && transition(*status, *event).is_ok_and(|t| t.to == OrderStatus::Capturing)
            });
        assert_eq!(
            ways_there.collect::<Vec<_>>(),
            [(OrderStatus::Processing, Event::Authorised)]
        );
    }

    #[test]
    fn names_are_read_back() {
        for status in OrderStatus::ALL {
            assert_eq!(OrderStatus::from_sql(status.as_sql()), Some(status));
        }
        for reason in FailureReason::ALL {
            assert_eq!(FailureReason::from_name(reason.as_str()), Some(reason));
        }
    }
}
