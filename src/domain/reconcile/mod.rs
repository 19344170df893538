//! Reconciling: what Postgres, the gate and the provider's book say of the same sale, held against each other. Pure: it takes what each side
//! says, and tells the differences and what may be done about them.
//!
//! A difference is only what stands still. What a batch, a charge or a refund under way explains is in flight, and left alone. Nothing
//! is repaired by guessing: a counter that is wrong is told, and the rows stay as they are until a person has found out why.

pub mod gate;
pub mod money;
pub mod stock;

use std::fmt;

use super::{Buyer, OrderId, SaleId};

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $text:literal,)*) => {
        /// What kind of difference it is.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind {
            $($(#[$doc])* $kind,)*
        }

        impl Kind {
            /// All of them, in the order of the enum.
            pub const ALL: &'static [Self] = &[$(Self::$kind),*];

            /// Its name in output, on metrics and in docs/reconcile.md.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$kind => $text,)*
                }
            }
        }
    };
}

kinds! {
    /// The inventory's `held` isn't what open orders hold.
    HeldUnits = "held_units",
    /// The inventory's `sold` isn't what paid orders own.
    SoldUnits = "sold_units",
    /// The stock entries don't add up to the inventory's `available`.
    StockEntries = "stock_entries",
    /// A buyer's allotment isn't what the buyer's orders hold.
    Allotment = "allotment",
    /// An order that is over never gave its units back, or one that isn't did.
    ReleaseEntry = "release_entry",
    /// The gate is to be told to release an order that holds its units.
    ReleaseNote = "release_note",
    /// An order and its payments contradict each other.
    PaymentStatus = "payment_status",
    /// An order and the ledger contradict each other.
    Ledger = "ledger",
    /// What a payment has promised back isn't what its refunds add up to.
    RefundPromise = "refund_promise",
    /// Money is owed back, and nobody is told to pay it.
    RefundWork = "refund_work",
    /// An order is over, its charge may be anywhere, and nobody is told to ask.
    UnresolvedPayment = "unresolved_payment",
    /// Work for the provider is out of tries.
    DeadLetter = "dead_letter",
    /// The gate doesn't know a sale that is on offer.
    GateNotLoaded = "gate_not_loaded",
    /// The gate knows the sale as it was under another epoch.
    GateEpoch = "gate_epoch",
    /// The gate would sell another number of units than there are.
    GateAvailable = "gate_available",
    /// The gate holds units for an order that never came into being.
    ReservationWithoutOrder = "reservation_without_order",
    /// The gate holds units for an order that has given them back.
    ReservationOfOrderOver = "reservation_of_order_over",
    /// An order holds units, and the gate doesn't know of it.
    OrderWithoutReservation = "order_without_reservation",
    /// The gate's count of what a buyer holds isn't the database's.
    BuyerUnits = "buyer_units",
    /// The provider has a charge that isn't ours.
    UnknownCharge = "unknown_charge",
    /// The provider has taken money that nobody gets anything for, and it isn't noted here.
    ChargeOfNobody = "charge_of_nobody",
    /// The provider has set money aside that will never be captured.
    AuthorisedForNobody = "authorised_for_nobody",
    /// The ledger has a charge that the provider doesn't have.
    MissingCharge = "missing_charge",
    /// The provider's amounts aren't the ledger's.
    BookAmount = "book_amount",
    /// The provider has paid back what the ledger doesn't know of.
    UnknownRefund = "unknown_refund",
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What became of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It is repaired, or the work that repairs it is written down.
    Repaired,
    /// It would be, but this was a dry run.
    WouldRepair,
    /// It is still there: a person has to look, or the repair failed.
    Left,
}

impl Outcome {
    /// Its name in output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Repaired => "repaired",
            Self::WouldRepair => "would repair",
            Self::Left => "left",
        }
    }
}

/// What may be done about a difference. Each is conditional and idempotent: done twice, or too late, it changes nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Repair {
    /// Load the sale into the gate anew, unless the gate has moved on from this epoch.
    Load {
        /// The epoch that the gate was found at; 0 when it wasn't loaded.
        stale: i64,
    },
    /// Occupy the order's id, then give its units back in the gate.
    GiveBack {
        /// The order that never was.
        order: OrderId,
        /// Who it was reserved for.
        buyer: Buyer,
        /// Its units.
        quantity: i32,
    },
    /// Release the order in the gate.
    Release {
        /// The order that is over.
        order: OrderId,
    },
    /// Take the note away that tells the gate to release the order.
    DropNote {
        /// The order that holds its units.
        order: OrderId,
    },
    /// Write down that the provider is to be asked what became of a charge, and to void it.
    Ask {
        /// Whose.
        order: OrderId,
        /// Which charge.
        attempt: i32,
    },
    /// Write down that a refund which is due is to be paid.
    PayBack {
        /// Whose.
        order: OrderId,
        /// Which charge.
        attempt: i32,
        /// Which of its refunds; 0 for money that came too late.
        refund: i32,
    },
    /// Mark a charge that was taken for an order that failed as due back, and write down that it is to be paid.
    PayBackLate {
        /// Whose.
        order: OrderId,
        /// Which charge.
        attempt: i32,
    },
}

impl Repair {
    /// What is done, as the end of a sentence about the difference.
    pub fn as_words(&self) -> &'static str {
        match self {
            Self::Load { .. } => "the sale is loaded into the gate anew",
            Self::GiveBack { .. } => "its id is occupied and its units are given back in the gate",
            Self::Release { .. } => "it is released in the gate",
            Self::DropNote { .. } => "the note is taken away",
            Self::Ask { .. } => "the provider is asked, and told to let go of it",
            Self::PayBack { .. } | Self::PayBackLate { .. } => "the refund is written down as work",
        }
    }
}

/// A difference that stands still.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What kind.
    pub kind: Kind,
    /// The sale; `None` for what belongs to none of ours.
    pub sale: Option<SaleId>,
    /// Whose: an order, a buyer, a name in the provider's book, or the sale itself.
    pub of: String,
    /// What is different, in words.
    pub what: String,
    /// What may be done; `None` when only a person may.
    pub repair: Option<Repair>,
}

impl Finding {
    /// Whether a later look has found the same.
    pub fn is_same_as(&self, other: &Self) -> bool {
        (self.kind, &self.of, &self.what) == (other.kind, &other.of, &other.what)
    }
}

/// What a look has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// Differences that stand still.
    pub findings: Vec<Finding>,
    /// Orders and reservations that may be different in a moment, and are left alone.
    pub in_flight: u64,
}

impl Found {
    /// Takes in what another look has found.
    pub fn merge(&mut self, other: Self) {
        self.findings.extend(other.findings);
        self.in_flight += other.in_flight;
    }
}

/// Up to three names, and how many more there are.
pub(super) fn some_of<T: fmt::Display>(names: &[T]) -> String {
    const SHOWN: usize = 3;
    let shown: Vec<String> = names.iter().take(SHOWN).map(T::to_string).collect();
    match names.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_kind_has_a_name_of_its_own_and_a_place_in_the_docs() {
        let page = include_str!("../../../docs/reconcile.md");
        let mut names = BTreeSet::new();
        for kind in Kind::ALL {
            assert!(names.insert(kind.as_str()), "{kind} twice");
            assert!(page.contains(&format!("| `{kind}` |")), "{kind} isn't explained");
        }
    }

    #[test]
    fn long_lists_are_cut() {
        assert_eq!(some_of(&[1, 2]), "1, 2");
        assert_eq!(some_of(&[1, 2, 3, 4, 5]), "1, 2, 3 and 2 more");
    }
}
