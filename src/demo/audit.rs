//! The audit: a model of stock, orders and money that shares no code with the engine's, and so can't share its mistakes. Pure.

use std::collections::{HashMap, HashSet};

use super::rush::{Ended, Purchase};
use crate::domain::OrderId;

/// The inventory row, and what the stock entries say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stock {
    pub(super) quantity: i64,
    pub(super) available: i64,
    pub(super) held: i64,
    pub(super) sold: i64,
    /// Sum of all entries: what `available` should be.
    pub(super) entries: i64,
}

/// An order as the database has it, with its rows in the ledger added up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) id: OrderId,
    pub(super) buyer: String,
    /// As in the database: `PAID`.
    pub(super) status: String,
    pub(super) failure_reason: Option<String>,
    pub(super) quantity: i64,
    pub(super) amount_minor: i64,
    /// Money taken for it, says the ledger.
    pub(super) charged_minor: i64,
    /// Money paid back, says the ledger.
    pub(super) refunded_minor: i64,
}

impl Order {
    fn is_open(&self) -> bool {
        matches!(self.status.as_str(), "PENDING" | "PROCESSING" | "CAPTURING")
    }

    fn is_paid(&self) -> bool {
        self.status == "PAID"
    }
}

/// A charge in the provider's book.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Charge {
    /// The order that its reference names, if it names one.
    pub(super) order: Option<OrderId>,
    pub(super) reference: String,
    /// As the provider says it: `succeeded`.
    pub(super) status: String,
    pub(super) amount_minor: i64,
    pub(super) refunded_minor: i64,
}

impl Charge {
    /// Whether it took money.
    pub(super) fn took_money(&self) -> bool {
        self.status == "succeeded"
    }
}

/// Everything that is known when all is over.
#[derive(Debug, Clone)]
pub(super) struct Evidence {
    /// Units that were listed.
    pub(super) units: i64,
    /// What one costs.
    pub(super) unit_price_minor: i64,
    /// What the buyers were told.
    pub(super) purchases: Vec<Purchase>,
    pub(super) stock: Stock,
    pub(super) orders: Vec<Order>,
    /// Money taken, over the whole ledger.
    pub(super) ledger_charged_minor: i64,
    /// Money paid back, over the whole ledger.
    pub(super) ledger_refunded_minor: i64,
    /// Refunds and look-ups that are still owed, dead letters included.
    pub(super) owed: i64,
    /// The provider's whole book.
    pub(super) charges: Vec<Charge>,
}

/// What the orders add up to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) open_units: i64,
    pub(super) paid_units: i64,
    pub(super) paid_minor: i64,
    /// Taken and not paid back, says the ledger.
    pub(super) ledger_net_minor: i64,
    /// Taken and not paid back, says the provider.
    pub(super) provider_net_minor: i64,
}

impl Evidence {
    /// What the orders and the books add up to.
    pub(super) fn sums(&self) -> Sums {
        let units = |which: fn(&Order) -> bool| -> i64 {
            self.orders
                .iter()
                .filter(|order| which(order))
                .map(|order| order.quantity)
                .sum()
        };
        let paid = self.orders.iter().filter(|order| order.is_paid());
        let took = self.charges.iter().filter(|charge| charge.took_money());
        Sums {
            open_units: units(Order::is_open),
            paid_units: units(Order::is_paid),
            paid_minor: paid.map(|order| order.amount_minor).sum(),
            ledger_net_minor: self.ledger_charged_minor - self.ledger_refunded_minor,
            provider_net_minor: took
                .map(|charge| charge.amount_minor - charge.refunded_minor)
                .sum(),
        }
    }

    /// Everything that isn't as it must be; empty when every unit and every cent is accounted for.
    pub(super) fn violations(&self) -> Vec<String> {
        let mut found = Vec::new();
        self.check_stock(&mut found);
        self.check_promises(&mut found);
        self.check_money(&mut found);
        found
    }

    fn check_stock(&self, found: &mut Vec<String>) {
        let stock = self.stock;
        let sums = self.sums();
        let mut same = |what: &str, has: i64, should: i64| {
            if has != should {
                found.push(format!("{what}: {has} instead of {should}"));
            }
        };
        same("units in the sale", stock.quantity, self.units);
        same(
            "available + held + sold",
            stock.available + stock.held + stock.sold,
            self.units,
        );
        same(
            "units available, by the stock entries",
            stock.entries,
            stock.available,
        );
        same("units held, by the open orders", sums.open_units, stock.held);
        same("units sold, by the paid orders", sums.paid_units, stock.sold);
        for (what, units) in [
            ("available", stock.available),
            ("held", stock.held),
            ("sold", stock.sold),
        ] {
            if units < 0 {
                found.push(format!("{units} units {what}"));
            }
        }
        let open = self.orders.iter().filter(|order| order.is_open()).count();
        if open > 0 {
            found.push(format!("{open} orders are still open"));
        }
    }

    fn check_promises(&self, found: &mut Vec<String>) {
        let mut promised: HashMap<OrderId, &str> = HashMap::new();
        let mut unsure: HashSet<&str> = HashSet::new();
        let mut sold_out = 0_usize;
        for purchase in &self.purchases {
            match &purchase.ended {
                Ended::Accepted(order) => {
                    if let Some(other) = promised.insert(*order, &purchase.buyer) {
                        found.push(format!(
                            "order {order} was promised to {other} and {}",
                            purchase.buyer
                        ));
                    }
                }
                Ended::Unanswered(_) => {
                    unsure.insert(&purchase.buyer);
                }
                Ended::Refused(kind) if kind == "sold_out" => sold_out += 1,
                Ended::Refused(_) => {}
            }
        }
        let mut buyers: HashSet<&str> = HashSet::new();
        for order in &self.orders {
            match promised.remove(&order.id) {
                Some(buyer) if buyer == order.buyer => {}
                Some(buyer) => found.push(format!(
                    "order {} of {} was promised to {buyer}",
                    order.id, order.buyer
                )),
                None if unsure.contains(order.buyer.as_str()) => {}
                None => found.push(format!(
                    "order {} of {}, who was never told of it",
                    order.id, order.buyer
                )),
            }
            if !buyers.insert(&order.buyer) {
                found.push(format!("{} bought once and has two orders", order.buyer));
            }
        }
        for (order, buyer) in promised {
            found.push(format!("order {order}, promised to {buyer}, doesn't exist"));
        }
        // Each order is for one unit: with fewer orders than units there was always one left.
        if sold_out > 0 && (self.orders.len() as i64) < self.units {
            found.push(format!(
                "{sold_out} buyers were told that it is sold out, with {} orders for {} units",
                self.orders.len(),
                self.units
            ));
        }
    }

    fn check_money(&self, found: &mut Vec<String>) {
        let mut charges: HashMap<OrderId, Vec<&Charge>> = HashMap::new();
        let orders: HashSet<OrderId> = self.orders.iter().map(|order| order.id).collect();
        for charge in &self.charges {
            match charge.order.filter(|order| orders.contains(order)) {
                Some(order) => charges.entry(order).or_default().push(charge),
                None => found.push(format!("charge {} belongs to no order", charge.reference)),
            }
        }
        for order in &self.orders {
            let Order { id, status, .. } = order;
            if order.amount_minor != order.quantity * self.unit_price_minor {
                found.push(format!(
                    "order {id}: {} units for {}",
                    order.quantity, order.amount_minor
                ));
            }
            let due = if order.is_paid() { order.amount_minor } else { 0 };
            let net = order.charged_minor - order.refunded_minor;
            if net != due {
                found.push(format!(
                    "order {id} is {status}; the ledger has {net} instead of {due}"
                ));
            }
            let took: Vec<_> = charges
                .remove(id)
                .unwrap_or_default()
                .into_iter()
                .filter(|charge| charge.took_money())
                .collect();
            let net: i64 = took
                .iter()
                .map(|charge| charge.amount_minor - charge.refunded_minor)
                .sum();
            if net != due {
                found.push(format!(
                    "order {id} is {status}; the provider has {net} instead of {due}"
                ));
            }
            if took.len() > 1 {
                found.push(format!("order {id} was charged {} times", took.len()));
            }
        }
        let sums = self.sums();
        if sums.ledger_net_minor != sums.paid_minor {
            found.push(format!(
                "the ledger adds up to {}, the paid orders to {}",
                sums.ledger_net_minor, sums.paid_minor
            ));
        }
        if self.owed > 0 {
            found.push(format!(
                "{} refunds or look-ups at the provider are still owed",
                self.owed
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PRICE: i64 = 1990;

    /// Three units, four buyers: one paid, one declined, one paid, one was told that it is sold out.
    fn good() -> Evidence {
        let order = |buyer: &str, paid: bool| Order {
            id: OrderId::fresh(),
            buyer: buyer.to_owned(),
            status: if paid { "PAID" } else { "FAILED" }.to_owned(),
            failure_reason: (!paid).then(|| "declined".to_owned()),
            quantity: 1,
            amount_minor: PRICE,
            charged_minor: if paid { PRICE } else { 0 },
            refunded_minor: 0,
        };
        let orders = vec![order("a", true), order("b", false), order("c", true)];
        let purchase = |buyer: &str, ended| Purchase {
            buyer: buyer.to_owned(),
            ended,
            took: Duration::from_millis(5),
        };
        let mut purchases: Vec<_> = orders
            .iter()
            .map(|order| purchase(&order.buyer, Ended::Accepted(order.id)))
            .collect();
        purchases.push(purchase("d", Ended::Refused("sold_out".to_owned())));
        let charges = orders
            .iter()
            .map(|order| Charge {
                order: Some(order.id),
                reference: format!("{}:1", order.id),
                status: if order.is_paid() { "succeeded" } else { "declined" }.to_owned(),
                amount_minor: PRICE,
                refunded_minor: 0,
            })
            .collect();
        Evidence {
            units: 3,
            unit_price_minor: PRICE,
            purchases,
            stock: Stock {
                quantity: 3,
                available: 1,
                held: 0,
                sold: 2,
                entries: 1,
            },
            orders,
            ledger_charged_minor: 2 * PRICE,
            ledger_refunded_minor: 0,
            owed: 0,
            charges,
        }
    }

    fn finds(word: &str, spoil: impl FnOnce(&mut Evidence)) {
        let mut evidence = good();
        spoil(&mut evidence);
        let found = evidence.violations();
        assert!(
            found.iter().any(|what| what.contains(word)),
            "{word:?} is not in {found:?}"
        );
    }

    #[test]
    fn what_adds_up_is_no_violation() {
        assert_eq!(good().violations(), Vec::<String>::new());
        assert_eq!(good().sums().provider_net_minor, 2 * PRICE);
    }

    #[test]
    fn a_late_success_that_went_back_is_no_violation() {
        let mut evidence = good();
        evidence.charges[1].status = "succeeded".to_owned();
        evidence.charges[1].refunded_minor = PRICE;
        evidence.orders[1].charged_minor = PRICE;
        evidence.orders[1].refunded_minor = PRICE;
        evidence.ledger_charged_minor += PRICE;
        evidence.ledger_refunded_minor += PRICE;
        assert_eq!(evidence.violations(), Vec::<String>::new());
    }

    #[test]
    fn a_buyer_without_an_answer_may_have_an_order_or_none() {
        let mut evidence = good();
        evidence.purchases[0].ended = Ended::Unanswered("503".to_owned());
        evidence.purchases[3].ended = Ended::Unanswered("503".to_owned());
        assert_eq!(evidence.violations(), Vec::<String>::new());
    }

    #[test]
    fn stock_that_does_not_add_up_is_found() {
        finds("available + held + sold", |e| e.stock.available = 2);
        finds("by the stock entries", |e| e.stock.entries = 2);
        finds("by the paid orders", |e| e.stock.sold = 3);
        finds("still open", |e| "PROCESSING".clone_into(&mut e.orders[1].status));
        finds("-1 units available", |e| e.stock.available = -1);
    }

    #[test]
    fn broken_promises_are_found() {
        finds("doesn't exist", |e| drop(e.orders.remove(1)));
        finds("was never told", |e| drop(e.purchases.remove(0)));
        finds("has two orders", |e| "a".clone_into(&mut e.orders[2].buyer));
        finds("was promised to", |e| "x".clone_into(&mut e.orders[0].buyer));
        finds("told that it is sold out", |e| e.units = 4);
    }

    #[test]
    fn money_that_does_not_add_up_is_found() {
        finds("the provider has 1990 instead of 0", |e| {
            "succeeded".clone_into(&mut e.charges[1].status);
        });
        finds("the provider has 0 instead of 1990", |e| {
            drop(e.charges.remove(0));
        });
        finds("charged 2 times", |e| e.charges.push(e.charges[0].clone()));
        finds("belongs to no order", |e| e.charges[0].order = None);
        finds("the ledger has 0 instead of 1990", |e| {
            e.orders[0].charged_minor = 0;
        });
        finds("the ledger adds up to", |e| e.ledger_charged_minor += 1);
        finds("1 units for 1", |e| e.orders[0].amount_minor = 1);
        finds("still owed", |e| e.owed = 1);
    }
}
