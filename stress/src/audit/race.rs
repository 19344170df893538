//! What a run must show to have been the race between sweeper and payment worker.

use super::{Facts, Findings};

/// The race as it was counted.
#[derive(Debug, Clone, Copy)]
pub struct Race {
    /// `fluxbuy_claims_lost_total{by="payment",wanted="processing",found="failed"}`.
    pub claims_lost: u64,
    /// Units on sale.
    pub units: i64,
}

impl Race {
    /// The sweeper took orders whose jobs still waited, each job came later, lost its claim and did nothing.
    pub fn check(&self, facts: &Facts, findings: &mut Findings) {
        let swept = facts
            .orders
            .iter()
            .filter(|order| order.was_swept_unclaimed())
            .count() as u64;
        findings.require(swept > 0, "race-happened", || {
            "the race did not happen: no order was swept before its job came".to_owned()
        });
        findings.require(self.claims_lost == swept, "race-claims-lost", || {
            format!(
                "{swept} orders were swept before their job came, and {} claims were lost",
                self.claims_lost
            )
        });
        let stock = facts.inventory;
        findings.require(
            stock.available + stock.sold == self.units,
            "race-left-plus-paid",
            || {
                format!(
                    "{} left and {} paid of {}",
                    stock.available, stock.sold, self.units
                )
            },
        );
    }
}
