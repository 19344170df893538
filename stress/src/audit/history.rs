//! The limits at every moment, and not only at the end: while a buyer had an order in hand that wasn't released yet, its units were
//! certainly taken. Never were more of them taken than there are, and never had a buyer more than the sale allows.

use std::collections::HashMap;

use super::{Case, Findings};
use crate::load::Outcome;

/// When some units were certainly taken, in microseconds of the database's clock.
struct Hold<'a> {
    buyer: &'a str,
    units: i64,
    from_us: i64,
    /// `None`: to the end.
    until_us: Option<i64>,
}

pub(super) fn check(case: &Case<'_>, findings: &mut Findings) {
    let Some(opening_us) = case.opening_us else { return };
    let holds = holds(case, opening_us);
    let all = most_at_once(holds.iter());
    findings.require(all <= case.terms.units, "never-more-than-there-are", || {
        format!(
            "{all} units were taken at one moment, and there are {}",
            case.terms.units
        )
    });
    let Some(limit) = case.terms.per_buyer_limit else {
        return;
    };
    let mut of_buyers: HashMap<&str, Vec<&Hold<'_>>> = HashMap::new();
    for hold in &holds {
        of_buyers.entry(hold.buyer).or_default().push(hold);
    }
    for (buyer, holds) in of_buyers {
        let most = most_at_once(holds.into_iter());
        findings.require(most <= limit, "limit-kept-at-all-times", || {
            format!("{buyer} had {most} units at one moment, {limit} are allowed")
        });
    }
}

/// From the moment at which the buyer had the answer until the release was written down, shortly before it was committed.
fn holds<'a>(case: &Case<'a>, opening_us: i64) -> Vec<Hold<'a>> {
    let mut known_since = HashMap::new();
    for record in case.records {
        if let Outcome::Accepted { order, .. } = record.outcome {
            let since = known_since.entry(order).or_insert(record.ended);
            *since = record.ended.min(*since);
        }
    }
    let orders = case.facts.orders.iter();
    orders
        .filter_map(|order| {
            let from_us = opening_us + known_since.get(&order.id)?.as_micros() as i64;
            let until_us = case.facts.released_us.get(&order.id).copied();
            until_us.is_none_or(|until| from_us < until).then_some(Hold {
                buyer: &order.buyer,
                units: order.quantity,
                from_us,
                until_us,
            })
        })
        .collect()
}

fn most_at_once<'a>(holds: impl Iterator<Item = &'a Hold<'a>>) -> i64 {
    let mut changes: Vec<(i64, i64)> = holds
        .flat_map(|hold| {
            let end = hold.until_us.map(|until| (until, -hold.units));
            [Some((hold.from_us, hold.units)), end]
        })
        .flatten()
        .collect();
    // What ends at a moment ends before what begins then.
    changes.sort_unstable();
    let (mut now, mut most) = (0, 0);
    for (_, units) in changes {
        now += units;
        most = most.max(now);
    }
    most
}
