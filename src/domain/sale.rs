//! A sale: a fixed quantity that is sold from a set time on.

use jiff::Timestamp;

use super::{Currency, SaleId};

/// What a seller asks for. Bounds are checked where it comes in; the database checks them again.
#[derive(Debug, Clone)]
pub struct NewSale {
    /// Shown to buyers.
    pub name: String,
    /// Units on sale.
    pub quantity: i32,
    /// Price of one unit in minor units.
    pub unit_price_minor: i64,
    /// Currency of the price.
    pub currency: Currency,
    /// Units that one buyer may hold or own at a time; `None` means no limit.
    pub per_buyer_limit: Option<i32>,
    /// Units that one order may ask for.
    pub max_per_order: i32,
    /// When buying becomes possible, by the database's clock.
    pub opens_at: Timestamp,
    /// When it ends; `None` means never.
    pub closes_at: Option<Timestamp>,
}

/// What doesn't change about a sale once it is listed.
#[derive(Debug, Clone)]
pub struct Sale {
    /// Its name.
    pub id: SaleId,
    /// What the seller asked for. (Its `quantity` is the listed one; what holds now is in [`Stock`].)
    pub terms: NewSale,
}

/// The stock of a sale at one instant: `available + held + sold = quantity`, always.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stock {
    /// All units of the sale.
    pub quantity: i64,
    /// Units nobody has.
    pub available: i64,
    /// Units of open orders.
    pub held: i64,
    /// Units of paid orders.
    pub sold: i64,
}

/// Where a sale stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Not open yet.
    Scheduled,
    /// Buying is possible.
    Open,
    /// Open, but no unit is available just now; one may come back.
    SoldOut,
    /// Over.
    Closed,
}

impl Phase {
    /// Where a sale with these terms and stock stands at `now`.
    pub fn at(now: Timestamp, terms: &NewSale, stock: &Stock) -> Self {
        // One that is called off before its opening is over before it begins.
        if terms.closes_at.is_some_and(|end| now >= end) {
            Self::Closed
        } else if now < terms.opens_at {
            Self::Scheduled
        } else if stock.available == 0 {
            Self::SoldOut
        } else {
            Self::Open
        }
    }

    /// Its name in answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Open => "open",
            Self::SoldOut => "sold_out",
            Self::Closed => "closed",
        }
    }
}
