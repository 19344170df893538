//! Units: never more sold than there are, none lost, every counter the sum of what it counts.

use super::facts::Status;
use super::{Case, Findings, Index, Order};

pub(super) fn check(case: &Case<'_>, index: &Index<'_>, findings: &mut Findings) {
    counters(case, index, findings);
    movements(case, index, findings);
    quiet(case, findings);
}

/// Whether an order's units are gone for others. One that was refunded may have given them back or not; its entry tells.
fn owns_units(order: &Order, index: &Index<'_>) -> bool {
    match order.status {
        Status::Paid => true,
        Status::Refunded => index.of_order(order.id).released.is_empty(),
        _ => false,
    }
}

fn counters(case: &Case<'_>, index: &Index<'_>, findings: &mut Findings) {
    let stock = case.facts.inventory;
    let units = case.terms.units;
    findings.require(
        stock.available + stock.held + stock.sold == stock.quantity
            && stock.quantity == units
            && [stock.available, stock.held, stock.sold]
                .iter()
                .all(|units| *units >= 0),
        "stock-adds-up",
        || format!("{units} units were listed, and the stock is {stock:?}"),
    );

    let sum = |wanted: &dyn Fn(&Order) -> bool| -> i64 {
        case.facts
            .orders
            .iter()
            .filter(|order| wanted(order))
            .map(|order| order.quantity)
            .sum()
    };
    let held = sum(&|order| order.status.is_open());
    let sold = sum(&|order| owns_units(order, index));
    findings.require(held + sold <= units, "stock-oversold", || {
        format!("orders hold {held} and own {sold} of {units} units")
    });
    for (name, counter, orders) in [
        ("available", stock.available, units - held - sold),
        ("held", stock.held, held),
        ("sold", stock.sold, sold),
    ] {
        findings.require(counter == orders, "stock-matches-orders", || {
            format!("{name} is {counter}, and by the orders {orders}")
        });
    }
}

fn movements(case: &Case<'_>, index: &Index<'_>, findings: &mut Findings) {
    let facts = case.facts;
    let moved: i64 = facts.entries.iter().map(|entry| entry.delta).sum();
    findings.require(moved == facts.inventory.available, "stock-entries-add-up", || {
        format!(
            "entries add up to {moved}, and available is {}",
            facts.inventory.available
        )
    });
    let listed: Vec<i64> = facts
        .entries
        .iter()
        .filter(|entry| entry.kind == "LIST")
        .map(|entry| entry.delta)
        .collect();
    findings.require(listed == [case.terms.units], "stock-listed-once", || {
        format!(
            "{} units were listed, and the entries say {listed:?}",
            case.terms.units
        )
    });

    for order in &facts.orders {
        let of = index.of_order(order.id);
        let (id, quantity) = (order.id, order.quantity);
        let reserves: &[i64] = if order.status == Status::Rejected {
            &[]
        } else {
            &[-quantity]
        };
        findings.require(of.reserved == reserves, "stock-reserved-once", || {
            format!(
                "order {id} ({:?}) of {quantity} took {:?}",
                order.status, of.reserved
            )
        });
        let released = match order.status {
            Status::Failed => of.released == [quantity],
            Status::Refunded => of.released.is_empty() || of.released == [quantity],
            _ => of.released.is_empty(),
        };
        findings.require(released, "stock-released-once", || {
            format!(
                "order {id} ({:?}) of {quantity} gave back {:?}",
                order.status, of.released
            )
        });
    }
    for entry in &facts.entries {
        if let Some(order) = entry.order.filter(|order| !index.orders.contains_key(order)) {
            findings.add(
                "stock-entry-without-order",
                format!("{} {} for order {order}", entry.kind, entry.delta),
            );
        }
    }
}

fn quiet(case: &Case<'_>, findings: &mut Findings) {
    let facts = case.facts;
    if let Some(gate) = facts.gate_available.filter(|_| facts.owed.gate_releases == 0) {
        findings.require(gate == facts.inventory.available, "gate-agrees", || {
            format!(
                "the gate would sell {gate}, and {} are available",
                facts.inventory.available
            )
        });
    }
    if !case.settled {
        return;
    }
    let open = facts.orders.iter().filter(|order| order.status.is_open()).count();
    findings.require(open == 0, "nothing-left-open", || {
        format!("{open} orders are still open")
    });
    for (owed, what) in [
        (facts.owed.gate_releases, "releases are owed to the gate"),
        (facts.owed.provider_tasks, "tasks are owed to the provider"),
        (facts.owed.dead_letters, "tasks are out of tries"),
    ] {
        findings.require(owed == 0, "nothing-left-open", || format!("{owed} {what}"));
    }
}
