//! The series of active sales.
//!
//! Kept beside the recorder, which can't drop a single series: a handle, once made, is scraped for ever, and every
//! sale ever sold would stay.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use super::{CONSERVATION_GAP_UNITS, Metric, SALE_QUANTITY_UNITS, STOCK_UNITS};
use crate::domain::{SaleId, Stock};

/// The stock of each active sale, all figures of a sale from one instant: a scrape never mixes two, so it never
/// shows a gap that isn't there.
#[derive(Debug, Default)]
pub(super) struct Sales(Mutex<BTreeMap<SaleId, Stock>>);

impl Sales {
    pub(super) fn set(&self, sale: SaleId, stock: Stock) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(sale, stock);
    }

    pub(super) fn forget(&self, sale: SaleId) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&sale);
    }

    /// Appends them in Prometheus' text format.
    pub(super) fn render(&self, out: &mut String) {
        // Copied so that a scrape doesn't hold up whoever feeds the figures.
        let sales = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        head(out, &STOCK_UNITS);
        for (sale, stock) in &sales {
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
        head(out, &SALE_QUANTITY_UNITS);
        for (sale, stock) in &sales {
            line(
                out,
                format_args!(
                    "{}{{sale=\"{sale}\"}} {}",
                    SALE_QUANTITY_UNITS.name, stock.quantity
                ),
            );
        }
        head(out, &CONSERVATION_GAP_UNITS);
        for (sale, stock) in &sales {
            let gap = stock.conservation_gap();
            line(
                out,
                format_args!("{}{{sale=\"{sale}\"}} {gap}", CONSERVATION_GAP_UNITS.name),
            );
        }
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
        sales.render(&mut out);
        for line in [
            format!("fluxbuy_stock_units{{sale=\"{sale}\",state=\"available\"}} 5"),
            format!("fluxbuy_stock_units{{sale=\"{sale}\",state=\"held\"}} 3"),
            format!("fluxbuy_stock_units{{sale=\"{sale}\",state=\"sold\"}} 1"),
            format!("fluxbuy_sale_quantity_units{{sale=\"{sale}\"}} 10"),
            format!("fluxbuy_conservation_gap_units{{sale=\"{sale}\"}} 1"),
        ] {
            assert!(out.lines().any(|l| l == line), "{line} isn't in {out}");
        }

        sales.forget(sale);
        let mut out = String::new();
        sales.render(&mut out);
        assert!(!out.contains(&sale.to_string()), "{out}");
    }
}
