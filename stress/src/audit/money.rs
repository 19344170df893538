//! Money: who has a unit has paid for it once, who has none has paid nothing, and two sets of books agree to the minor unit.

use super::facts::{ChargeStatus, Status};
use super::{Case, Findings, Index, OfOrder, Order};

pub(super) fn check(case: &Case<'_>, index: &Index<'_>, findings: &mut Findings) {
    for order in &case.facts.orders {
        let of = index.of_order(order.id);
        anytime(order, of, findings);
        if case.settled {
            at_the_end(order, of, findings);
        }
    }
    strangers(case, index, findings);
    if case.settled {
        let pending = case
            .facts
            .charges
            .iter()
            .filter(|charge| matches!(charge.status, ChargeStatus::Pending | ChargeStatus::Authorised));
        let pending = pending.count();
        findings.require(pending == 0, "nothing-left-open", || {
            format!("{pending} charges are still under way, or set aside for nobody")
        });
        let owing = case.facts.payments.iter().filter(|payment| {
            matches!(
                payment.status.as_str(),
                "INITIATED" | "IN_DOUBT" | "AUTHORISED" | "REFUND_DUE"
            )
        });
        let owing = owing.count();
        findings.require(owing == 0, "nothing-left-open", || {
            format!("{owing} payments are undecided")
        });
    }
}

/// What must hold even while orders are on their way.
fn anytime(order: &Order, of: &OfOrder, findings: &mut Findings) {
    let id = order.id;
    findings.require(of.captured.len() <= 1, "no-double-charge", || {
        format!(
            "order {id} was charged {} times: {:?}",
            of.captured.len(),
            of.captured
        )
    });
    // The original bug: the sweeper gives the units back, and the late job takes the money all the same.
    findings.require(
        of.released.is_empty() || of.net_charge() == 0,
        "swept-and-charged",
        || {
            format!(
                "order {id} ({:?}) gave its units back, and its buyer paid {}",
                order.status,
                of.net_charge()
            )
        },
    );
    if order.was_swept_unclaimed() {
        findings.require(of.payments == 0 && of.references == 0, "swept-never-charged", || {
            format!(
                "order {id} was swept before it was claimed, and has {} payments and {} charges at the provider",
                of.payments, of.references
            )
        });
    }
    findings.require(!of.foreign, "one-currency", || {
        format!("order {id} was charged in another currency")
    });
}

fn at_the_end(order: &Order, of: &OfOrder, findings: &mut Findings) {
    let id = order.id;
    match order.status {
        Status::Paid => {
            // A part may have gone back on request; then the order is paid all the same.
            let back: i64 = of.ledger_refunds.iter().sum();
            findings.require(
                of.captured == [(order.amount_minor, back)] && back < order.amount_minor,
                "paid-is-charged-once",
                || {
                    format!(
                        "order {id} of {} is paid, {back} of it went back by the ledger, and the provider took {:?}",
                        order.amount_minor, of.captured
                    )
                },
            );
            findings.require(
                of.ledger_charges == [order.amount_minor] && of.promised >= back,
                "paid-is-in-the-ledger-once",
                || {
                    let (charges, refunds) = (&of.ledger_charges, &of.ledger_refunds);
                    format!(
                        "order {id} of {} is paid: ledger {charges:?}, refunds {refunds:?} of {} promised",
                        order.amount_minor, of.promised
                    )
                },
            );
        }
        Status::Failed | Status::Refunded | Status::Rejected => {
            findings.require(
                of.net_charge() == 0 && of.net_ledger() == 0,
                "unpaid-costs-nothing",
                || {
                    format!(
                        "order {id} is {:?}, and its buyer paid {}, by the ledger {}",
                        order.status,
                        of.net_charge(),
                        of.net_ledger()
                    )
                },
            );
        }
        Status::Pending | Status::Processing | Status::Capturing => {}
    }
    books_agree(&format!("order {id}"), of, findings);
}

/// The ledger has what the provider has, movement by movement.
fn books_agree(whose: &str, of: &OfOrder, findings: &mut Findings) {
    let sorted = |amounts: &[i64]| {
        let mut amounts = amounts.to_vec();
        amounts.sort_unstable();
        amounts
    };
    let captured: Vec<i64> = of.captured.iter().map(|(amount, _)| *amount).collect();
    let refunded: i64 = of.captured.iter().map(|(_, refunded)| refunded).sum();
    let agree = sorted(&captured) == sorted(&of.ledger_charges)
        && sorted(&of.refunds) == sorted(&of.ledger_refunds)
        && refunded == of.refunds.iter().sum::<i64>();
    findings.require(agree, "ledger-equals-book", || {
        format!(
            "{whose}: ledger {:?} less {:?}, provider {captured:?} less {:?} ({refunded} in all)",
            of.ledger_charges, of.ledger_refunds, of.refunds
        )
    });
}

/// Money that belongs to no order, or to one that isn't paid.
fn strangers(case: &Case<'_>, index: &Index<'_>, findings: &mut Findings) {
    for charge in case
        .facts
        .charges
        .iter()
        .filter(|charge| charge.status == ChargeStatus::Succeeded)
    {
        let order = charge.order.and_then(|order| index.orders.get(&order));
        let kept = charge.amount_minor - charge.refunded_minor;
        // While orders are on their way, the money may be there before the row says so.
        let earned = order
            .is_some_and(|order| order.status == Status::Paid || (!case.settled && order.status.is_open()));
        findings.require(kept == 0 || earned, "no-orphan-charge", || {
            let status = order.map(|order| order.status);
            format!("{} took {kept} for an order that is {status:?}", charge.reference)
        });
    }
    for order in index
        .by_order
        .keys()
        .filter(|order| !index.orders.contains_key(order))
    {
        let of = index.of_order(*order);
        if case.settled {
            books_agree(&format!("order {order}, which isn't there"), of, findings);
        }
    }
}
