//! What commands print for people.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell, CellAlignment, Table};

use crate::domain::Verification;
use crate::reconcile::Report;
use crate::store::RetriesOfDay;

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(header);
    table
}

fn number(value: impl std::fmt::Display) -> Cell {
    Cell::new(value).set_alignment(CellAlignment::Right)
}

/// How often the provider repeated itself; a row per day, provider and kind.
pub fn webhook_retries(rows: &[RetriesOfDay]) -> Table {
    let mut table = table(&[
        "day (UTC)",
        "provider",
        "kind",
        "deliveries",
        "events",
        "repeats",
        "gap p50 s",
        "gap max s",
    ]);
    let seconds = |gap: Option<f64>| number(gap.map_or_else(String::new, |gap| format!("{gap:.3}")));
    for row in rows {
        table.add_row([
            Cell::new(&row.day),
            Cell::new(&row.provider),
            Cell::new(&row.kind),
            number(row.deliveries),
            number(row.events),
            number(row.repeats),
            seconds(row.gap_p50_secs),
            seconds(row.gap_max_secs),
        ]);
    }
    table
}

/// The sums of each sale, in minor units.
pub fn ledger(found: &Verification) -> Table {
    let mut table = table(&[
        "sale",
        "currency",
        "paid orders",
        "ledger: taken",
        "paid back",
        "provider: taken",
        "paid back",
    ]);
    for sum in &found.sales {
        table.add_row([
            Cell::new(sum.sale),
            Cell::new(sum.currency),
            number(sum.paid_orders),
            number(sum.charged_minor),
            number(sum.refunded_minor),
            number(sum.captured_minor),
            number(sum.provider_refunded_minor),
        ]);
    }
    table
}

/// Rows of differences that are printed; a machine reads all of them as JSON.
const MAX_DIFFERENCES: usize = 200;

/// The differences that reconciling has found, a line each, and what became of them.
pub fn differences(report: &Report) -> Table {
    let mut table = table(&["sale", "kind", "of", "what", "result"]);
    for (finding, outcome) in report.rows.iter().take(MAX_DIFFERENCES) {
        let what = match &finding.repair {
            Some(repair) => format!("{}; {}", finding.what, repair.as_words()),
            None => format!("{}; needs a person", finding.what),
        };
        table.add_row([
            finding.sale.map_or_else(|| Cell::new(""), Cell::new),
            Cell::new(finding.kind),
            Cell::new(&finding.of),
            Cell::new(what),
            Cell::new(outcome.as_str()),
        ]);
    }
    if let Some(more) = report
        .rows
        .len()
        .checked_sub(MAX_DIFFERENCES)
        .filter(|more| *more > 0)
    {
        table.add_row([
            Cell::new(""),
            Cell::new(""),
            Cell::new(format!("{more} more")),
            Cell::new("see --json"),
            Cell::new(""),
        ]);
    }
    table
}
