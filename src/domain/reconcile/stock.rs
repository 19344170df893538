//! The inventory's counters against the orders and the stock entries.

use super::{Finding, Kind};
use crate::domain::{SaleId, Stock};

/// What a sale's orders add up to, in units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OrderUnits {
    /// Units of open orders.
    pub held: i64,
    /// Units of orders that were paid, and whose units didn't go back.
    pub sold: i64,
}

/// A sale's counters beside what they must be. All of one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counters {
    /// The sale.
    pub sale: SaleId,
    /// Its inventory row.
    pub stock: Stock,
    /// What its orders add up to.
    pub orders: OrderUnits,
    /// What its stock entries add up to; `None` where they were not added up.
    pub entries: Option<i64>,
}

impl Counters {
    /// Units unaccounted for, by the orders and not by the counters: anything but 0 is a violation.
    pub fn gap(&self) -> i64 {
        self.stock.quantity - self.stock.available - self.orders.held - self.orders.sold
    }

    /// What doesn't add up. None of it is repaired: which side is wrong can't be told from the sums.
    pub fn differences(&self) -> Vec<Finding> {
        let finding = |kind, what| Finding {
            kind,
            sale: Some(self.sale),
            of: "stock".to_owned(),
            what,
            repair: None,
        };
        let Self { stock, orders, .. } = self;
        let mut found = Vec::new();
        if stock.held != orders.held {
            found.push(finding(
                Kind::HeldUnits,
                format!(
                    "{} units are counted as held, and open orders hold {}",
                    stock.held, orders.held
                ),
            ));
        }
        if stock.sold != orders.sold {
            found.push(finding(
                Kind::SoldUnits,
                format!(
                    "{} units are counted as sold, and paid orders own {}",
                    stock.sold, orders.sold
                ),
            ));
        }
        if let Some(entries) = self.entries.filter(|entries| *entries != stock.available) {
            found.push(finding(
                Kind::StockEntries,
                format!(
                    "{} units are counted as available, and the stock entries add up to {entries}",
                    stock.available
                ),
            ));
        }
        found
    }
}

/// Buyers whose allotment isn't what their orders hold, as a finding. `buyers` are some of them, with what is counted and what is held.
pub fn allotments(sale: SaleId, count: i64, buyers: &[(String, i64, i64)]) -> Option<Finding> {
    let each: Vec<String> = buyers
        .iter()
        .map(|(buyer, used, held)| format!("{buyer} ({used} counted, {held} by orders)"))
        .collect();
    (count > 0).then(|| Finding {
        kind: Kind::Allotment,
        sale: Some(sale),
        of: format!("{count} buyers"),
        what: format!(
            "their allotments aren't what their orders hold: {}",
            super::some_of(&each)
        ),
        repair: None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counters(stock: (i64, i64, i64), orders: (i64, i64), entries: i64) -> Counters {
        let (available, held, sold) = stock;
        Counters {
            sale: SaleId(uuid::Uuid::nil()),
            stock: Stock {
                quantity: available + held + sold,
                available,
                held,
                sold,
            },
            orders: OrderUnits {
                held: orders.0,
                sold: orders.1,
            },
            entries: Some(entries),
        }
    }

    proptest! {
        #[test]
        fn what_adds_up_is_no_difference_and_a_unit_anywhere_is_one(
            available in 0..1000_i64, held in 0..1000_i64, sold in 0..1000_i64, off in 1..5_i64,
        ) {
            let fine = counters((available, held, sold), (held, sold), available);
            prop_assert_eq!(fine.differences(), []);
            prop_assert_eq!(fine.gap(), 0);
            for (kind, wrong) in [
                (Kind::HeldUnits, counters((available, held, sold), (held + off, sold), available)),
                (Kind::SoldUnits, counters((available, held, sold), (held, sold - off), available)),
                (Kind::StockEntries, counters((available, held, sold), (held, sold), available - off)),
            ] {
                let found = wrong.differences();
                prop_assert_eq!(found.iter().map(|f| f.kind).collect::<Vec<_>>(), [kind]);
                prop_assert!(found.iter().all(|f| f.repair.is_none()));
                prop_assert_eq!(wrong.gap() == 0, kind == Kind::StockEntries);
            }
        }
    }

    #[test]
    fn allotments_that_agree_are_no_finding() {
        assert_eq!(allotments(SaleId(uuid::Uuid::nil()), 0, &[]), None);
        let found = allotments(SaleId(uuid::Uuid::nil()), 7, &[("ann".to_owned(), 2, 1)]).unwrap();
        assert!(found.of == "7 buyers" && found.what.contains("ann (2 counted, 1 by orders)"));
        assert_eq!(found.repair, None);
    }
}
