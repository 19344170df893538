//! Promises: what buyers were told is what is there.

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

use super::facts::Status;
use super::{Case, Findings, Index, Order};
use crate::load::{Ask, Outcome, Record, Refusal};

pub(super) fn check(case: &Case<'_>, index: &Index<'_>, findings: &mut Findings) {
    let keys = by_key(case.records);
    accepted(case, index, findings);
    one_order_per_key(&keys, findings);
    nobody_else(case, &keys, findings);
    replays(&keys, findings);
    prices(case, findings);
    limits(case, findings);
}

type Key = (u32, u32);

/// Requests under one key, in the order in which they were sent.
fn by_key(records: &[Record]) -> HashMap<Key, Vec<&Record>> {
    let mut keys: HashMap<Key, Vec<&Record>> = HashMap::new();
    for record in records {
        keys.entry((record.ask.buyer, record.ask.key))
            .or_default()
            .push(record);
    }
    for requests in keys.values_mut() {
        requests.sort_by_key(|record| record.started);
    }
    keys
}

fn exists(order: &Order) -> bool {
    order.status != Status::Rejected
}

/// Every 201 is an order, and the one that was asked for.
fn accepted(case: &Case<'_>, index: &Index<'_>, findings: &mut Findings) {
    for record in case.records {
        let Some(id) = record.order() else { continue };
        let Some(order) = index.orders.get(&id).filter(|order| exists(order)) else {
            findings.add(
                "accepted-exists",
                format!("{:?} was answered with order {id}, which isn't there", record.ask),
            );
            continue;
        };
        let as_asked =
            order.buyer == record.ask.buyer_name() && order.quantity == i64::from(record.ask.quantity);
        findings.require(as_asked, "accepted-as-asked", || {
            format!(
                "{:?} was answered with order {id} of {} for {}",
                record.ask, order.quantity, order.buyer
            )
        });
    }
}

fn one_order_per_key(keys: &HashMap<Key, Vec<&Record>>, findings: &mut Findings) {
    let mut owner: HashMap<Uuid, Key> = HashMap::new();
    for (key, requests) in keys {
        let orders: HashSet<Uuid> = requests.iter().filter_map(|record| record.order()).collect();
        findings.require(orders.len() <= 1, "one-key-one-order", || {
            format!("buyer {} got the orders {orders:?} under key {}", key.0, key.1)
        });
        for order in orders {
            if let Some(other) = owner.insert(order, *key) {
                findings.add(
                    "one-key-one-order",
                    format!("order {order} was given to {other:?} and {key:?}"),
                );
            }
        }
    }
}

/// No request that was refused has an order; one of unknown outcome has one or none; and nobody else has any.
///
/// Rows don't show the keys, so this is counted per buyer: what is there beyond the orders that the buyer was told of
/// must be what the buyer doesn't know about.
fn nobody_else(case: &Case<'_>, keys: &HashMap<Key, Vec<&Record>>, findings: &mut Findings) {
    let mut doubtful: HashMap<u32, Vec<HashSet<i64>>> = HashMap::new();
    let mut known: HashSet<u32> = HashSet::new();
    let mut told: HashSet<Uuid> = HashSet::new();
    for ((buyer, _), requests) in keys {
        known.insert(*buyer);
        told.extend(requests.iter().filter_map(|record| record.order()));
        let unknown: HashSet<i64> = requests
            .iter()
            .filter(|record| matches!(record.outcome, Outcome::Unknown(_)))
            .map(|record| i64::from(record.ask.quantity))
            .collect();
        if !unknown.is_empty() && requests.iter().all(|record| record.order().is_none()) {
            doubtful.entry(*buyer).or_default().push(unknown);
        }
    }
    for order in case
        .facts
        .orders
        .iter()
        .filter(|order| exists(order) && !told.contains(&order.id))
    {
        let buyer = Ask::buyer_number(&order.buyer).filter(|buyer| known.contains(buyer));
        let Some(buyer) = buyer else {
            findings.add(
                "order-nobody-asked-for",
                format!("order {} of {}", order.id, order.buyer),
            );
            continue;
        };
        let candidates = doubtful.entry(buyer).or_default();
        match candidates
            .iter()
            .position(|quantities| quantities.contains(&order.quantity))
        {
            Some(at) => {
                candidates.swap_remove(at);
            }
            None => findings.add(
                "refused-left-no-order",
                format!(
                    "{} has order {} and was told of no such thing",
                    order.buyer, order.id
                ),
            ),
        }
    }
}

/// The same purchase again gets the same answer, marked; another one under the same key is refused.
fn replays(keys: &HashMap<Key, Vec<&Record>>, findings: &mut Findings) {
    for ((buyer, key), requests) in keys {
        let accepted: Vec<&&Record> = requests
            .iter()
            .filter(|record| record.order().is_some())
            .collect();
        let Some(first_told) = accepted.iter().min_by_key(|record| record.ended) else {
            continue;
        };
        let who = || format!("buyer {buyer}, key {key}");

        let originals = accepted
            .iter()
            .filter(|record| matches!(record.outcome, Outcome::Accepted { replayed: false, .. }))
            .count();
        let original_may_be_lost = requests
            .iter()
            .any(|record| matches!(record.outcome, Outcome::Unknown(_)));
        findings.require(
            originals == 1 || (originals == 0 && original_may_be_lost),
            "replay-is-marked",
            || {
                let told: Vec<_> = requests
                    .iter()
                    .map(|record| (record.started, &record.outcome))
                    .collect();
                format!(
                    "{}: {originals} of {} answers are not marked as a replay: {told:?}",
                    who(),
                    accepted.len()
                )
            },
        );

        let bodies: HashSet<_> = accepted
            .iter()
            .filter_map(|record| record.body.as_ref())
            .collect();
        findings.require(bodies.len() <= 1, "replay-same-answer", || {
            format!("{}: {} different answers for one order", who(), bodies.len())
        });

        for later in requests.iter().filter(|record| record.started > first_told.ended) {
            let same = later.ask.quantity == first_told.ask.quantity;
            match &later.outcome {
                Outcome::Accepted { .. } if same => {}
                Outcome::Refused(Refusal::KeyReused) if !same => {}
                Outcome::Refused(refusal) if refusal.is_passing() => {}
                Outcome::Unknown(_) => {}
                outcome => {
                    let check = if same {
                        "replay-finds-order"
                    } else {
                        "key-reused-refused"
                    };
                    findings.add(
                        check,
                        format!("{}: {outcome:?} after the order was accepted", who()),
                    );
                }
            }
        }
    }
}

fn prices(case: &Case<'_>, findings: &mut Findings) {
    for order in case.facts.orders.iter().filter(|order| exists(order)) {
        let price = order.quantity * case.terms.unit_price_minor;
        findings.require(order.amount_minor == price, "order-priced-right", || {
            format!(
                "order {} of {} costs {} instead of {price}",
                order.id, order.quantity, order.amount_minor
            )
        });
    }
}

fn limits(case: &Case<'_>, findings: &mut Findings) {
    let Some(limit) = case.terms.per_buyer_limit else {
        return;
    };
    let mut units: HashMap<&str, i64> = HashMap::new();
    for order in &case.facts.orders {
        if order.status.is_open() || order.status == Status::Paid {
            *units.entry(&order.buyer).or_default() += order.quantity;
        }
    }
    for (buyer, units) in &units {
        findings.require(*units <= limit, "limit-kept", || {
            format!("{buyer} has {units} units, {limit} are allowed")
        });
    }
    let allotted: HashMap<&str, i64> = case
        .facts
        .allotments
        .iter()
        .map(|(buyer, used)| (buyer.as_str(), *used))
        .collect();
    for buyer in units.keys().chain(allotted.keys()).collect::<HashSet<_>>() {
        let by_orders = units.get(buyer).copied().unwrap_or_default();
        let by_row = allotted.get(buyer).copied().unwrap_or_default();
        findings.require(by_orders == by_row, "allotment-matches-orders", || {
            format!("{buyer} has {by_orders} units, and the allotment says {by_row}")
        });
    }
}
