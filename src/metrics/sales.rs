//! The series of active sales.
//!
//! Kept beside the recorder, which can't drop a single series: a handle, once made, is scraped for ever, and every
//! sale ever sold would stay.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{CONSERVATION_GAP_UNITS, GATE_GAP_UNITS, Metric, SALE_QUANTITY_UNITS, STOCK_UNITS};
use crate::domain::{SaleId, Stock};

/// The stock of each active sale, all figures of a sale from one instant: a scrape never mixes two. The gaps are each of one instant, too.
#[derive(Debug, Default)]
pub(super) struct Sales(Mutex<BTreeMap<SaleId, Shown>>);

#[derive(Debug, Clone, Copy, Default)]
struct Shown {
    stock: Stock,
    gap: i64,
    gate_gap: i64,
}

impl Sales {
    fn all(&self) -> MutexGuard<'_, BTreeMap<SaleId, Shown>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, sale: SaleId, stock: Stock) {
        self.all().entry(sale).or_default().stock = stock;
    }

    pub(super) fn set_gap(&self, sale: SaleId, units: i64) {
        if let Some(shown) = self.all().get_mut(&sale) {
            shown.gap = units;
        }
    }

    pub(super) fn set_gate_gap(&self, sale: SaleId, units: i64) {
        if let Some(shown) = self.all().get_mut(&sale) {
            shown.gate_gap = units;
        }
    }

    pub(super) fn forget(&self, sale: SaleId) {
        self.all().remove(&sale);
    }

    /// Appends them in Prometheus' text format.
    pub(super) fn render(&self, out: &mut String) {
        // Copied so that a scrape doesn't hold up whoever feeds the figures.
        let sales = self.all().clone();
        head(out, &STOCK_UNITS);
        for (sale, Shown { stock, .. }) in &sales {
            for (state, units) in [
                ("available", stock.available),
                ("held", stock.held),
                ("sold", stock.sold),
            ] {
                line(
                    out,
                    format_args!(
                        "{}{{sale=\"{sale}\",state=\"{state}\"}} {units}",
                        STOCK_UNITS.name
                    ),
                );
            }
        }
        each(out, &SALE_QUANTITY_UNITS, &sales, |shown| shown.stock.quantity);
        each(out, &CONSERVATION_GAP_UNITS, &sales, |shown| shown.gap);
        each(out, &GATE_GAP_UNITS, &sales, |shown| shown.gate_gap);
    }
}

fn each(out: &mut String, metric: &Metric, sales: &BTreeMap<SaleId, Shown>, units: impl Fn(&Shown) -> i64) {
    head(out, metric);
    for (sale, shown) in sales {
        line(
            out,
            format_args!("{}{{sale=\"{sale}\"}} {}", metric.name, units(shown)),
        );
    }
}

fn head(out: &mut String, metric: &Metric) {
    line(out, format_args!("# HELP {} {}", metric.name, metric.help));
    line(out, format_args!("# TYPE {} gauge", metric.name));
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(out, "{text}").expect("a String takes any text");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sale_is_shown_while_it_is_active() {
        let (sales, sale, mut out) = (Sales::default(), SaleId::fresh(), String::new());
        sales.set(
            sale,
            Stock {
                quantity: 10,
                available: 5,
                held: 3,
                sold: 1,
            },
        );
        sales.set_gap(sale, 1);
        sales.set_gate_gap(sale, -2);
        sales.set_gap(SaleId::fresh(), 7);
        sales.render(&mut out);
        for line in [
            format!("fluxbuy_stock_units{{sale=\"{sale}\",state=\"available\"}} 5"),
            format!("fluxbuy_stock_units{{sale=\"{sale}\",state=\"held\"}} 3"),
            format!("fluxbuy_stock_units{{sale=\"{sale}\",state=\"sold\"}} 1"),
            format!("fluxbuy_sale_quantity_units{{sale=\"{sale}\"}} 10"),
            format!("fluxbuy_conservation_gap_units{{sale=\"{sale}\"}} 1"),
            format!("fluxbuy_gate_gap_units{{sale=\"{sale}\"}} -2"),
        ] {
            assert!(out.lines().any(|l| l == line), "{line} isn't in {out}");
        }
        assert!(!out.contains("} 7"), "one that isn't active has no series");

        sales.forget(sale);
        let mut out = String::new();
        sales.render(&mut out);
        assert!(!out.contains(&sale.to_string()), "{out}");
    }
}
