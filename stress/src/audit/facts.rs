//! What is left of a sale when the crowd has gone: rows and the provider's book, as they are.

use std::collections::HashMap;

use serde::Deserialize;
use uuid::Uuid;

/// Everything about one sale.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// The stock's row.
    pub inventory: Inventory,
    /// Every row of an order, also those that only occupy an id.
    pub orders: Vec<Order>,
    /// When orders gave their units back, in microseconds of the database's clock.
    pub released_us: HashMap<Uuid, i64>,
    /// Movements of the stock.
    pub entries: Vec<StockEntry>,
    /// Units per buyer; empty in a sale without a limit.
    pub allotments: Vec<(String, i64)>,
    /// Payments.
    pub payments: Vec<Payment>,
    /// Movements of money, by our books.
    pub ledger: Vec<LedgerEntry>,
    /// What is still owed to somebody.
    pub owed: Owed,
    /// What the gate would still sell; `None` when it knows nothing of the sale.
    pub gate_available: Option<i64>,
    /// Charges by the provider's book.
    pub charges: Vec<Charge>,
    /// Refunds by the provider's book.
    pub refunds: Vec<Refund>,
    /// Webhooks that were received.
    pub events: Vec<Event>,
    /// Webhooks that the provider says it has sent.
    pub sent: Vec<Sent>,
}

/// Units of a sale.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Inventory {
    /// All of them.
    pub quantity: i64,
    /// Free.
    pub available: i64,
    /// Held by open orders.
    pub held: i64,
    /// Paid for.
    pub sold: i64,
}

/// Where an order stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Accepted.
    Pending,
    /// Claimed by a worker.
    Processing,
    /// Authorised, and being captured.
    Capturing,
    /// Paid.
    Paid,
    /// Failed.
    Failed,
    /// Paid and paid back.
    Refunded,
    /// No order: the row occupies an id.
    Rejected,
}

impl Status {
    /// By its name in the database.
    pub fn from_sql(name: &str) -> Option<Self> {
        Some(match name {
            "PENDING" => Self::Pending,
            "PROCESSING" => Self::Processing,
            "CAPTURING" => Self::Capturing,
            "PAID" => Self::Paid,
            "FAILED" => Self::Failed,
            "REFUNDED" => Self::Refunded,
            "REJECTED" => Self::Rejected,
            _ => return None,
        })
    }

    /// Whether it is still to be decided.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Pending | Self::Processing | Self::Capturing)
    }
}

/// An order's row.
#[derive(Debug, Clone)]
pub struct Order {
    /// Its id.
    pub id: Uuid,
    /// Whose it is.
    pub buyer: String,
    /// Units.
    pub quantity: i64,
    /// What they cost.
    pub amount_minor: i64,
    /// Where it stands.
    pub status: Status,
    /// Why it failed.
    pub failure_reason: Option<String>,
    /// How often it was claimed for a charge.
    pub attempt: i32,
}

impl Order {
    /// Failed because nobody claimed it in time. (One that was claimed and swept later has an attempt.)
    pub fn was_swept_unclaimed(&self) -> bool {
        self.was_swept() && self.attempt == 0
    }

    /// Failed because it was open for too long.
    pub fn was_swept(&self) -> bool {
        self.status == Status::Failed && self.failure_reason.as_deref() == Some("swept")
    }
}

/// A movement of the stock.
#[derive(Debug, Clone)]
pub struct StockEntry {
    /// For which order; none for a listing or an adjustment.
    pub order: Option<Uuid>,
    /// LIST, RESERVE, RELEASE or ADJUST.
    pub kind: String,
    /// By how many units `available` changed.
    pub delta: i64,
}

/// A payment's row.
#[derive(Debug, Clone)]
pub struct Payment {
    /// For which order.
    pub order: Uuid,
    /// Its status.
    pub status: String,
    /// What of it was promised back on request.
    pub promised_minor: i64,
}

/// A movement of money, by our books.
#[derive(Debug, Clone)]
pub struct LedgerEntry {
    /// For which order.
    pub order: Uuid,
    /// CHARGE or REFUND.
    pub kind: String,
    /// How much.
    pub amount_minor: i64,
    /// In which currency.
    pub currency: String,
}

/// Work that is written down and not done yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Owed {
    /// Releases that the gate hasn't been told of.
    pub gate_releases: i64,
    /// Questions and refunds to the provider.
    pub provider_tasks: i64,
    /// Those out of tries.
    pub dead_letters: i64,
}

/// Where a charge stands at the provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChargeStatus {
    /// Under way.
    Pending,
    /// The money is set aside.
    Authorised,
    /// The money was taken.
    Succeeded,
    /// Refused.
    Declined,
    /// It can't succeed any more.
    Voided,
}

/// A charge by the provider's book.
#[derive(Debug, Clone, Deserialize)]
pub struct Charge {
    /// Our name for it.
    pub reference: String,
    /// The order in that name; `None` when there is none.
    #[serde(skip)]
    pub order: Option<Uuid>,
    /// Where it stands.
    pub status: ChargeStatus,
    /// How much.
    pub amount_minor: i64,
    /// In which currency.
    pub currency: String,
    /// What of it went back.
    pub refunded_minor: i64,
}

/// A refund by the provider's book.
#[derive(Debug, Clone, Deserialize)]
pub struct Refund {
    /// The charge that it pays back.
    pub charge: String,
    /// The order in that charge's name.
    #[serde(skip)]
    pub order: Option<Uuid>,
    /// How much.
    pub amount_minor: i64,
}

/// A webhook's event, as it was received.
#[derive(Debug, Clone)]
pub struct Event {
    /// The provider's name for it.
    pub id: String,
    /// How often it was delivered.
    pub deliveries: i64,
    /// What became of it.
    pub state: String,
}

/// A webhook's event, by the provider's own log.
#[derive(Debug, Clone, Deserialize)]
pub struct Sent {
    /// Its name.
    pub id: String,
    /// The charge that it is about.
    pub reference: String,
    /// It was never sent.
    pub lost: bool,
    /// When each request was sent, and the status of its answer; 0 for none.
    pub requests: Vec<(u64, u16)>,
    /// The same of forgeries in its name.
    pub forged: Vec<(u64, u16)>,
}

impl Sent {
    /// Requests that were answered with 2xx.
    pub fn acknowledged(&self) -> i64 {
        let taken = self
            .requests
            .iter()
            .filter(|(_, status)| (200..300).contains(status));
        taken.count() as i64
    }
}
