//! The auditor: an independent model of stock, requests and money, held against what the engine, its database, its gate and
//! its payment provider say. It shares no code and no assumption with the engine but the contract.

mod facts;
mod findings;
mod history;
mod money;
mod race;
mod read;
mod requests;
mod stock;
#[cfg(test)]
mod tests;
mod webhooks;

use std::collections::HashMap;

use uuid::Uuid;

use crate::load::Record;

pub use facts::{ChargeStatus, Facts, Order, Status};
pub use findings::{Findings, Violation};
pub use race::Race;
pub use read::{gate_available, read, read_many};

/// What was put on sale, as the harness listed it.
#[derive(Debug, Clone)]
pub struct Terms {
    /// Units.
    pub units: i64,
    /// Price of one.
    pub unit_price_minor: i64,
    /// Its currency.
    pub currency: String,
    /// Units that one buyer may hold or own.
    pub per_buyer_limit: Option<i64>,
}

/// Everything that an audit looks at.
pub struct Case<'a> {
    /// What was put on sale.
    pub terms: &'a Terms,
    /// What is left.
    pub facts: &'a Facts,
    /// What the buyers remember.
    pub records: &'a [Record],
    /// All orders are expected to have come to their end.
    pub settled: bool,
    /// From when on the records' times are told, in microseconds of the database's clock; `None`, and they can't be compared with it.
    pub opening_us: Option<i64>,
}

/// Runs every check.
pub fn audit(case: &Case<'_>) -> Findings {
    let index = Index::of(case);
    let mut findings = Findings::default();
    stock::check(case, &index, &mut findings);
    requests::check(case, &index, &mut findings);
    history::check(case, &mut findings);
    money::check(case, &index, &mut findings);
    webhooks::check(case, &mut findings);
    findings
}

/// The facts by order.
struct Index<'a> {
    orders: HashMap<Uuid, &'a Order>,
    by_order: HashMap<Uuid, OfOrder>,
    nothing: OfOrder,
}

/// What there is about one order, besides its row.
#[derive(Debug, Clone, Default)]
struct OfOrder {
    reserved: Vec<i64>,
    released: Vec<i64>,
    payments: usize,
    /// What of them was promised back on request.
    promised: i64,
    /// Amounts in the ledger.
    ledger_charges: Vec<i64>,
    ledger_refunds: Vec<i64>,
    /// References known at the provider, whatever became of them.
    references: usize,
    /// Amounts of the charges that took money, and what of each went back.
    captured: Vec<(i64, i64)>,
    /// Refunds in the provider's list of them.
    refunds: Vec<i64>,
    /// Something is in another currency than the sale.
    foreign: bool,
}

impl OfOrder {
    /// What the buyer has paid in the end, by the provider's book.
    fn net_charge(&self) -> i64 {
        self.captured
            .iter()
            .map(|(amount, refunded)| amount - refunded)
            .sum()
    }

    fn net_ledger(&self) -> i64 {
        self.ledger_charges.iter().sum::<i64>() - self.ledger_refunds.iter().sum::<i64>()
    }
}

impl<'a> Index<'a> {
    fn of(case: &Case<'a>) -> Self {
        let (facts, currency) = (case.facts, &case.terms.currency);
        let orders: HashMap<Uuid, &Order> = facts.orders.iter().map(|order| (order.id, order)).collect();
        let mut by_order: HashMap<Uuid, OfOrder> = HashMap::with_capacity(orders.len());
        for entry in &facts.entries {
            let Some(order) = entry.order else { continue };
            let of = by_order.entry(order).or_default();
            match entry.kind.as_str() {
                "RESERVE" => of.reserved.push(entry.delta),
                _ => of.released.push(entry.delta),
            }
        }
        for payment in &facts.payments {
            let of = by_order.entry(payment.order).or_default();
            of.payments += 1;
            of.promised += payment.promised_minor;
        }
        for entry in &facts.ledger {
            let of = by_order.entry(entry.order).or_default();
            let side = if entry.kind == "CHARGE" {
                &mut of.ledger_charges
            } else {
                &mut of.ledger_refunds
            };
            side.push(entry.amount_minor);
            of.foreign |= entry.currency != *currency;
        }
        for charge in &facts.charges {
            let of = by_order.entry(charge.order.unwrap_or_default()).or_default();
            of.references += 1;
            if charge.status == ChargeStatus::Succeeded {
                of.captured.push((charge.amount_minor, charge.refunded_minor));
                of.foreign |= charge.currency != *currency;
            }
        }
        for refund in &facts.refunds {
            by_order
                .entry(refund.order.unwrap_or_default())
                .or_default()
                .refunds
                .push(refund.amount_minor);
        }
        Self {
            orders,
            by_order,
            nothing: OfOrder::default(),
        }
    }

    fn of_order(&self, order: Uuid) -> &OfOrder {
        self.by_order.get(&order).unwrap_or(&self.nothing)
    }
}
