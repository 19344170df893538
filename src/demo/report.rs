//! The audit as a table.

use std::collections::BTreeMap;
use std::time::Duration;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell, CellAlignment, Table};
use hdrhistogram::Histogram;

use super::audit::Evidence;
use super::rush::{Ended, Purchase, tally};

/// The longest latency that is told apart, in microseconds.
const MAX_LATENCY_US: u64 = 600_000_000;

/// Everything that the report shows besides the evidence.
pub(super) struct Outcome {
    pub(super) currency: &'static str,
    /// Claims lost, by who lost them.
    pub(super) claims_lost: BTreeMap<String, u64>,
    /// From the opening to the last settled payment.
    pub(super) settled_after: Duration,
}

/// The report, ready to be printed.
pub(super) fn table(evidence: &Evidence, outcome: &Outcome) -> Table {
    let mut rows = Rows::new();
    let stock = evidence.stock;
    rows.group("stock");
    rows.count("units", stock.quantity, "");
    rows.count("available", stock.available, "");
    rows.count("held", stock.held, "");
    rows.count("sold", stock.sold, "");

    rows.group("buyers");
    rows.count("came", evidence.purchases.len() as i64, "");
    let mut told = tally(&evidence.purchases);
    rows.count("accepted", told.remove("accepted").unwrap_or(0) as i64, "");
    rows.count("sold out", told.remove("sold_out").unwrap_or(0) as i64, "");
    for (kind, buyers) in told {
        rows.count(&kind.replace('_', " "), buyers as i64, "");
    }

    rows.group("orders");
    let with = |status: &'static str| evidence.orders.iter().filter(move |order| order.status == status);
    rows.count("paid", with("PAID").count() as i64, "");
    let mut reasons: BTreeMap<&str, i64> = BTreeMap::new();
    for order in with("FAILED") {
        *reasons
            .entry(order.failure_reason.as_deref().unwrap_or("no reason"))
            .or_default() += 1;
    }
    let swept = reasons.remove("swept").unwrap_or(0);
    rows.count("failed", with("FAILED").count() as i64, &list(&reasons));
    rows.count("swept", swept, "");
    let open = ["PENDING", "PROCESSING", "CAPTURING"]
        .into_iter()
        .flat_map(with)
        .count();
    rows.count("open", open as i64, "");
    let lost = outcome.claims_lost.values().sum::<u64>() as i64;
    let by: BTreeMap<&str, i64> = outcome
        .claims_lost
        .iter()
        .filter(|(_, claims)| **claims > 0)
        .map(|(by, claims)| (by.as_str(), *claims as i64))
        .collect();
    rows.count("claims lost", lost, &list(&by));

    rows.group("provider");
    let took: Vec<_> = evidence.charges.iter().filter(|c| c.took_money()).collect();
    let taken: i64 = took.iter().map(|charge| charge.amount_minor).sum();
    let money = |minor| money(minor, outcome.currency);
    rows.count("charges", took.len() as i64, &money(taken));
    let declines = evidence.charges.iter().filter(|c| c.status == "declined").count();
    rows.count("declines", declines as i64, "");
    let refunded: Vec<i64> = evidence
        .charges
        .iter()
        .map(|charge| charge.refunded_minor)
        .filter(|minor| *minor > 0)
        .collect();
    rows.count("refunds", refunded.len() as i64, &money(refunded.iter().sum()));

    rows.group("latency");
    let latency = latency(&evidence.purchases);
    for (name, quantile) in [("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0)] {
        let micros = latency.value_at_quantile(quantile);
        rows.text(name, &format!("{}.{} ms", micros / 1000, micros % 1000 / 100), "");
    }
    rows.text(
        "all settled",
        &format!("{:.1} s", outcome.settled_after.as_secs_f64()),
        "after the opening",
    );
    rows.table
}

/// What was held against what, in two lines for people.
pub(super) fn summary(evidence: &Evidence, currency: &str) -> String {
    let stock = evidence.stock;
    let sums = evidence.sums();
    format!(
        "units: {} available + {} held + {} sold = {}\nmoney: {} at the provider = {} in the ledger = {} for {} paid units",
        thousands(stock.available),
        thousands(stock.held),
        thousands(stock.sold),
        thousands(evidence.units),
        money(sums.provider_net_minor, currency),
        money(sums.ledger_net_minor, currency),
        money(sums.paid_minor, currency),
        thousands(sums.paid_units),
    )
}

/// Of the accepted purchases, in microseconds, as their buyers saw it.
fn latency(purchases: &[Purchase]) -> Histogram<u64> {
    let mut histogram = Histogram::new_with_bounds(1, MAX_LATENCY_US, 3).expect("the bounds are in order");
    for purchase in purchases {
        if matches!(purchase.ended, Ended::Accepted(_)) {
            histogram.saturating_record(purchase.took.as_micros().max(1) as u64);
        }
    }
    histogram
}

struct Rows {
    table: Table,
    group: &'static str,
}

impl Rows {
    fn new() -> Self {
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED);
        Self { table, group: "" }
    }

    /// The name that stands before the next row.
    fn group(&mut self, name: &'static str) {
        self.group = name;
    }

    fn count(&mut self, name: &str, count: i64, detail: &str) {
        self.text(name, &thousands(count), detail);
    }

    fn text(&mut self, name: &str, value: &str, detail: &str) {
        let value = Cell::new(value).set_alignment(CellAlignment::Right);
        let group = std::mem::take(&mut self.group);
        self.table
            .add_row([Cell::new(group), Cell::new(name), value, Cell::new(detail)]);
    }
}

fn list(counts: &BTreeMap<&str, i64>) -> String {
    let parts: Vec<_> = counts
        .iter()
        .map(|(name, count)| format!("{} {name}", thousands(*count)))
        .collect();
    parts.join(", ")
}

/// `1,234,567`.
fn thousands(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut text = if number < 0 { "-".to_owned() } else { String::new() };
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1,234.50 EUR`. The demo's currency has two digits of minor units.
fn money(minor: i64, currency: &str) -> String {
    let sign = if minor < 0 { "-" } else { "" };
    let minor = minor.unsigned_abs();
    format!(
        "{sign}{}.{:02} {currency}",
        thousands((minor / 100) as i64),
        minor % 100
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_for_people() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (-1_234_567, "-1,234,567"),
        ] {
            assert_eq!(thousands(number), text);
        }
        for (minor, text) in [
            (0, "0.00 EUR"),
            (5, "0.05 EUR"),
            (123_456, "1,234.56 EUR"),
            (-5, "-0.05 EUR"),
        ] {
            assert_eq!(money(minor, "EUR"), text);
        }
    }
}
