//! What a provider tells of a charge by itself, and what that means for an order. Pure, like the table of transitions.

use super::{Event, IdempotencyDigest, Money, OrderId, OrderStatus};

/// Where a payment stands. In the database its name in capitals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PaymentStatus {
    /// The charge may be anywhere.
    Initiated,
    /// It may have happened, and nobody could tell.
    InDoubt,
    /// The provider has set the money aside, and is being told to take it.
    Authorised,
    /// The provider has the money, and the order is the buyer's.
    Succeeded,
    /// The provider said no.
    Declined,
    /// It can't succeed any more.
    Voided,
    /// It never reached the provider.
    NotSent,
    /// The money came for an order that failed, and goes back.
    RefundDue,
    /// It went back.
    Refunded,
}

impl PaymentStatus {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Initiated,
        Self::InDoubt,
        Self::Authorised,
        Self::Succeeded,
        Self::Declined,
        Self::Voided,
        Self::NotSent,
        Self::RefundDue,
        Self::Refunded,
    ];

    /// Its name in the database.
    pub fn as_sql(self) -> &'static str {
        match self {
            Self::Initiated => "INITIATED",
            Self::InDoubt => "IN_DOUBT",
            Self::Authorised => "AUTHORISED",
            Self::Succeeded => "SUCCEEDED",
            Self::Declined => "DECLINED",
            Self::Voided => "VOIDED",
            Self::NotSent => "NOT_SENT",
            Self::RefundDue => "REFUND_DUE",
            Self::Refunded => "REFUNDED",
        }
    }

    /// The status with this name in the database.
    pub fn from_sql(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_sql() == name)
    }

    /// Where the payment stands once its order has moved on by this event.
    pub fn after(event: Event) -> Self {
        match event {
            Event::Authorised => Self::Authorised,
            Event::ChargeSucceeded => Self::Succeeded,
            Event::ChargeDeclined => Self::Declined,
            Event::ChargeVoided => Self::Voided,
            Event::ChargeNotSent => Self::NotSent,
            _ => Self::InDoubt,
        }
    }

    /// Whether our books have the money, now or before.
    fn has_money(self) -> bool {
        matches!(self, Self::Succeeded | Self::RefundDue | Self::Refunded)
    }
}

/// What an event says of a charge. In the database its name in capitals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum News {
    /// It has set the money aside, and waits for the capture.
    Authorised,
    /// The provider has the money.
    Succeeded,
    /// It said no, for good.
    Declined,
    /// The charge can't succeed any more.
    Voided,
    /// Money went back.
    Refunded,
    /// Nothing that changes anything here, or nothing that is known here.
    Other,
}

impl News {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Authorised,
        Self::Succeeded,
        Self::Declined,
        Self::Voided,
        Self::Refunded,
        Self::Other,
    ];

    /// Its name in the database.
    pub fn as_sql(self) -> &'static str {
        match self {
            Self::Authorised => "AUTHORISED",
            Self::Succeeded => "SUCCEEDED",
            Self::Declined => "DECLINED",
            Self::Voided => "VOIDED",
            Self::Refunded => "REFUNDED",
            Self::Other => "OTHER",
        }
    }

    /// Its name on metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Authorised => "authorised",
            Self::Succeeded => "succeeded",
            Self::Declined => "declined",
            Self::Voided => "voided",
            Self::Refunded => "refunded",
            Self::Other => "other",
        }
    }

    /// The news with this name in the database.
    pub fn from_sql(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|news| news.as_sql() == name)
    }
}

/// An event of a provider, verified and read. It happened once, however often it is delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderEvent {
    /// The provider's name for it.
    pub id: String,
    /// The provider's word for what it is.
    pub kind: String,
    /// What that means.
    pub news: News,
    /// The charge that it is about; `None` where it is about something else.
    pub charge: Option<ChargeName>,
    /// How much the charge or the refund was, where the event says so.
    pub amount: Option<Money>,
    /// The provider's word for why, for a charge that was declined.
    pub code: Option<String>,
    /// The refund that it is about, if it is about one of ours.
    pub refund: Option<RefundName>,
}

/// Which refund of a charge: 0 for money that came too late, otherwise its own number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RefundName {
    /// The charge.
    pub charge: ChargeName,
    /// Which of its refunds.
    pub number: i32,
}

impl RefundName {
    /// Reads `<order>:<attempt>:refund` or `<order>:<attempt>:refund:<number>`, as we named the refund at the provider.
    pub fn parse(reference: &str) -> Option<Self> {
        let (charge, rest) = reference.split_once(":refund")?;
        let number = match rest {
            "" => 0,
            rest => {
                let number = rest.strip_prefix(':')?;
                number
                    .parse()
                    .ok()
                    .filter(|n: &i32| *n > 0 && n.to_string() == number)?
            }
        };
        Some(Self {
            charge: ChargeName::parse(charge)?,
            number,
        })
    }
}

/// Which charge: the order and the attempt at charging it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChargeName {
    /// The order.
    pub order: OrderId,
    /// Which attempt.
    pub attempt: i32,
}

impl ChargeName {
    /// Reads `<order>:<attempt>`, as we named the charge at the provider.
    pub fn parse(reference: &str) -> Option<Self> {
        let (order, attempt) = reference.split_once(':')?;
        // One charge has one name: no braces, no plus sign, no leading zeros.
        let name = Self {
            order: order.parse().ok()?,
            attempt: attempt.parse().ok().filter(|attempt| *attempt > 0)?,
        };
        (format!("{}:{}", name.order, name.attempt) == reference).then_some(name)
    }
}

/// A wish to pay back what a buyer has paid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefundAsk {
    /// How much; all that is left when `None`.
    pub amount_minor: Option<i64>,
    /// The order's units go back into stock once all of its money is back. Only with the refund of all that is left.
    pub return_units: bool,
    /// Why.
    pub reason: RefundReason,
    /// The request's name: a repeat finds its refund.
    pub digest: IdempotencyDigest,
}

/// Why money is paid back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefundReason {
    /// Somebody asked for it.
    Requested,
    /// The sale was called off.
    SaleCancelled,
}

impl RefundReason {
    /// Its name in the database.
    pub fn as_sql(self) -> &'static str {
        match self {
            Self::Requested => "requested",
            Self::SaleCancelled => "sale_cancelled",
        }
    }
}

/// A refund as it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefundView {
    /// Of which order.
    pub order: OrderId,
    /// Which of its refunds, from 1.
    pub number: i32,
    /// How much.
    pub amount: Money,
    /// Whether the units go back.
    pub return_units: bool,
    /// The provider has paid it.
    pub done: bool,
    /// An earlier request with the same key had made it.
    pub replayed: bool,
}

/// Why nothing is paid back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RefundRefusal {
    /// No such order.
    #[error("there is no such order")]
    NotFound,
    /// It isn't paid, or is paid back already.
    #[error("the order is {status}")]
    NotRefundable {
        /// What it is.
        status: OrderStatus,
    },
    /// More than is left.
    #[error("{left_minor} are left to be paid back")]
    Exceeds {
        /// So much is left.
        left_minor: i64,
    },
    /// Units go back only with all of the money.
    #[error("units go back only with all that is left")]
    ReturnNeedsAll,
    /// The key belongs to another refund of this order.
    #[error("the key belongs to another refund")]
    KeyReused,
}

/// An order and its payment as an event finds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Where the order stands.
    pub status: OrderStatus,
    /// The event is about the order's current attempt.
    pub current: bool,
    /// Where that attempt's payment stands.
    pub payment: PaymentStatus,
}

/// What has to be done about an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Projection {
    /// The order moves on by this event.
    Settle(Event),
    /// Money came that nobody gets anything for: it goes back.
    LateCharge,
    /// Money was set aside that nobody gets anything for: the authorisation is voided.
    LateAuthorisation,
    /// A refund that is due has been paid.
    RefundDone,
    /// The books say so already, or it is too late to matter.
    NoChange,
}

/// What `news` means for an order that is found like this. Total; late, repeated and reordered events change nothing.
pub fn project(news: News, found: Found) -> Projection {
    let being_charged =
        found.current && matches!(found.status, OrderStatus::Processing | OrderStatus::Capturing);
    let lost = !found.current || found.status == OrderStatus::Failed;
    match news {
        News::Authorised if lost && !found.payment.has_money() => Projection::LateAuthorisation,
        News::Succeeded if being_charged => Projection::Settle(Event::ChargeSucceeded),
        News::Succeeded if found.payment.has_money() => Projection::NoChange,
        // The order failed, or another attempt is the one that counts.
        News::Succeeded => Projection::LateCharge,
        News::Declined if being_charged => Projection::Settle(Event::ChargeDeclined),
        News::Voided if being_charged => Projection::Settle(Event::ChargeVoided),
        // Which of the refunds it is, and whether it was due, the rows know.
        News::Refunded if found.payment.has_money() => Projection::RefundDone,
        // Of what is authorised: whoever holds the claim, or sweeps it, asks and captures. An event alone begins nothing that takes time.
        News::Authorised | News::Declined | News::Voided | News::Refunded | News::Other => {
            Projection::NoChange
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::transition;

    #[test]
    fn a_charge_has_one_name() {
        let order = OrderId::fresh();
        let name = ChargeName { order, attempt: 2 };
        assert_eq!(ChargeName::parse(&format!("{order}:2")), Some(name));
        for other in [
            "",
            ":",
            &order.to_string(),
            &format!("{order}:"),
            &format!("{order}:0"),
            &format!("{order}:-1"),
            &format!("{order}:+2"),
            &format!("{order}:02"),
            &format!("{order}:2:refund"),
            &format!("{{{order}}}:2"),
            &format!("{}:2", order.to_string().to_uppercase()),
            &format!("{order}:99999999999"),
        ] {
            assert_eq!(ChargeName::parse(other), None, "{other}");
        }
    }

    fn every_case() -> impl Iterator<Item = (News, Found)> {
        News::ALL.into_iter().flat_map(|news| {
            OrderStatus::ALL.into_iter().flat_map(move |status| {
                PaymentStatus::ALL.into_iter().flat_map(move |payment| {
                    [true, false].map(|current| {
                        let found = Found {
                            status,
                            current,
                            payment,
                        };
                        (news, found)
                    })
                })
            })
        })
    }

    #[test]
    fn what_an_event_settles_is_a_transition_that_exists() {
        for (news, found) in every_case() {
            if let Projection::Settle(event) = project(news, found) {
                assert!(transition(found.status, event).is_ok(), "{news:?} {found:?}");
                assert!(
                    found.current,
                    "an old attempt's event settles nothing: {news:?} {found:?}"
                );
            }
        }
    }

    #[test]
    fn p6_a_paid_order_stays_paid_whatever_comes_late() {
        for (news, found) in every_case().filter(|(_, found)| found.status == OrderStatus::Paid) {
            assert!(
                !matches!(project(news, found), Projection::Settle(_)),
                "{news:?} {found:?}"
            );
        }
    }

    #[test]
    fn money_that_is_in_the_books_is_not_entered_again() {
        for (news, found) in every_case().filter(|(_, found)| found.payment.has_money()) {
            let in_order = !matches!(found.status, OrderStatus::Processing | OrderStatus::Capturing);
            assert!(
                !in_order || project(news, found) != Projection::LateCharge,
                "{news:?} {found:?}"
            );
        }
    }

    #[test]
    fn a_refund_has_one_name() {
        let charge = ChargeName {
            order: OrderId::fresh(),
            attempt: 1,
        };
        let base = format!("{}:1", charge.order);
        for (text, number) in [(":refund", 0), (":refund:1", 1), (":refund:12", 12)] {
            let name = RefundName { charge, number };
            assert_eq!(RefundName::parse(&format!("{base}{text}")), Some(name));
        }
        for wrong in [
            "",
            ":refund:",
            ":refund:0",
            ":refund:01",
            ":refund:+1",
            ":refunds",
            ":refund:x",
        ] {
            assert_eq!(RefundName::parse(&format!("{base}{wrong}")), None, "{wrong}");
        }
    }

    #[test]
    fn names_are_read_back() {
        for status in PaymentStatus::ALL {
            assert_eq!(PaymentStatus::from_sql(status.as_sql()), Some(status));
        }
        for news in News::ALL {
            assert_eq!(News::from_sql(news.as_sql()), Some(news));
        }
    }
}
