//! Worlds made by hand: a healthy one, and for each check one in which just that is wrong.

use std::time::Duration;

use bytes::Bytes;
use uuid::Uuid;

use super::facts::{Charge, Event, Inventory, LedgerEntry, Payment, Refund, Sent, StockEntry};
use super::*;
use crate::load::{Ask, Outcome, Refusal};

const PRICE: i64 = 100;

#[derive(Clone)]
struct World {
    terms: Terms,
    facts: Facts,
    records: Vec<Record>,
    settled: bool,
}

/// The order of the buyer with this number.
fn id(buyer: u32) -> Uuid {
    Uuid::from_u128(u128::from(buyer) + 1)
}

fn record(buyer: u32, quantity: u32, at_ms: u64, outcome: Outcome) -> Record {
    let body = matches!(outcome, Outcome::Accepted { .. }).then(|| Bytes::from_static(b"{}"));
    Record {
        ask: Ask {
            buyer,
            key: buyer,
            quantity,
        },
        started: Duration::from_millis(at_ms),
        ended: Duration::from_millis(at_ms + 5),
        outcome,
        body,
    }
}

fn accepted(buyer: u32, replayed: bool) -> Outcome {
    Outcome::Accepted {
        order: id(buyer),
        replayed,
    }
}

fn unknown() -> Outcome {
    Outcome::Unknown("no answer".to_owned())
}

impl World {
    /// Buyer 0 has paid for 2 units; 1 was declined; 2 was swept before a claim; 3 was swept after one, and the money that came
    /// late went back; 4 was refused; 5 knows nothing and has nothing; 6 knows nothing and has paid.
    fn healthy() -> Self {
        let mut world = Self {
            terms: Terms {
                units: 10,
                unit_price_minor: PRICE,
                currency: "EUR".to_owned(),
                per_buyer_limit: Some(2),
            },
            facts: Facts {
                inventory: Inventory {
                    quantity: 10,
                    available: 10,
                    held: 0,
                    sold: 0,
                },
                gate_available: Some(7),
                ..Facts::default()
            },
            records: vec![
                record(0, 2, 0, accepted(0, false)),
                record(0, 2, 10, accepted(0, true)),
                record(0, 1, 20, Outcome::Refused(Refusal::KeyReused)),
                record(1, 1, 0, Outcome::Refused(Refusal::NotOpen)),
                record(1, 1, 1, accepted(1, false)),
                record(2, 1, 0, accepted(2, false)),
                record(3, 1, 0, accepted(3, false)),
                record(4, 1, 0, Outcome::Refused(Refusal::SoldOut)),
                record(5, 1, 0, unknown()),
                record(6, 1, 0, unknown()),
            ],
            settled: true,
        };
        world.facts.entries.push(StockEntry {
            order: None,
            kind: "LIST".to_owned(),
            delta: 10,
        });
        world.order(0, 2, Status::Paid, None, 1);
        world.order(1, 1, Status::Failed, Some("declined"), 1);
        world.order(2, 1, Status::Failed, Some("swept"), 0);
        world.order(3, 1, Status::Failed, Some("swept"), 1);
        world.order(6, 1, Status::Paid, None, 1);
        world.charge(0, 1, 200, ChargeStatus::Succeeded);
        world.charge(1, 1, 100, ChargeStatus::Declined);
        world.charge(3, 1, 100, ChargeStatus::Succeeded);
        world.charge(6, 1, 100, ChargeStatus::Succeeded);
        world.refund(3, 1, 100);
        world.facts.allotments = vec![("buyer-0".to_owned(), 2), ("buyer-6".to_owned(), 1)];
        // One event was sent twice beside a forgery, and once without an answer; one got lost.
        world.facts.events.push(Event {
            id: "e0".to_owned(),
            deliveries: 3,
            state: "NO_CHANGE".to_owned(),
        });
        let sent = |id: &str, lost, requests: &[(u64, u16)], forged: &[(u64, u16)]| Sent {
            id: id.to_owned(),
            reference: String::new(),
            lost,
            requests: requests.to_vec(),
            forged: forged.to_vec(),
        };
        world.facts.sent = vec![
            sent("e0", false, &[(1, 0), (2, 200), (3, 200)], &[(1, 401)]),
            sent("e1", true, &[], &[]),
        ];
        world
    }

    /// An order with its movements of stock.
    fn order(&mut self, buyer: u32, quantity: i64, status: Status, reason: Option<&str>, attempt: i32) {
        let facts = &mut self.facts;
        facts.orders.push(Order {
            id: id(buyer),
            buyer: format!("buyer-{buyer}"),
            quantity,
            amount_minor: quantity * PRICE,
            status,
            failure_reason: reason.map(str::to_owned),
            attempt,
        });
        let mut entry = |kind: &str, delta| {
            facts.entries.push(StockEntry {
                order: Some(id(buyer)),
                kind: kind.to_owned(),
                delta,
            });
            facts.inventory.available += delta;
        };
        entry("RESERVE", -quantity);
        match status {
            Status::Failed => entry("RELEASE", quantity),
            Status::Paid => facts.inventory.sold += quantity,
            _ => facts.inventory.held += quantity,
        }
    }

    /// A charge, in the provider's book and in ours.
    fn charge(&mut self, buyer: u32, attempt: i32, amount_minor: i64, status: ChargeStatus) {
        self.facts.charges.push(Charge {
            reference: format!("{}:{attempt}", id(buyer)),
            order: Some(id(buyer)),
            status,
            amount_minor,
            currency: "EUR".to_owned(),
            refunded_minor: 0,
        });
        let succeeded = status == ChargeStatus::Succeeded;
        if succeeded {
            self.ledger(buyer, "CHARGE", amount_minor);
        }
        let status = if succeeded { "SUCCEEDED" } else { "DECLINED" };
        self.facts.payments.push(Payment {
            order: id(buyer),
            status: status.to_owned(),
            promised_minor: 0,
        });
    }

    fn refund(&mut self, buyer: u32, attempt: i32, amount_minor: i64) {
        let charge = format!("{}:{attempt}", id(buyer));
        if let Some(charged) = self
            .facts
            .charges
            .iter_mut()
            .find(|found| found.reference == charge)
        {
            charged.refunded_minor += amount_minor;
        }
        self.facts.refunds.push(Refund {
            charge,
            order: Some(id(buyer)),
            amount_minor,
        });
        self.ledger(buyer, "REFUND", amount_minor);
    }

    fn ledger(&mut self, buyer: u32, kind: &str, amount_minor: i64) {
        let (order, kind, currency) = (id(buyer), kind.to_owned(), "EUR".to_owned());
        self.facts.ledger.push(LedgerEntry {
            order,
            kind,
            amount_minor,
            currency,
        });
    }

    fn row(&mut self, buyer: u32) -> &mut Order {
        self.facts
            .orders
            .iter_mut()
            .find(|order| order.id == id(buyer))
            .expect("the buyer has an order")
    }

    fn entry(&mut self, buyer: u32, kind: &str) -> &mut StockEntry {
        let found = |entry: &&mut StockEntry| entry.order == Some(id(buyer)) && entry.kind == kind;
        self.facts
            .entries
            .iter_mut()
            .find(found)
            .expect("there is such an entry")
    }

    fn audit(&self) -> Findings {
        audit(&Case {
            terms: &self.terms,
            facts: &self.facts,
            records: &self.records,
            settled: self.settled,
            opening_us: Some(0),
        })
    }

    fn failed_checks(&self) -> Vec<&'static str> {
        self.audit()
            .into_violations()
            .iter()
            .map(|violation| violation.check)
            .collect()
    }
}

#[test]
fn a_healthy_world_passes() {
    let world = World::healthy();
    assert_eq!(world.audit().into_violations(), []);
    assert_eq!(
        world.facts.inventory,
        Inventory {
            quantity: 10,
            available: 7,
            held: 0,
            sold: 3
        }
    );
}

type Harm = fn(&mut World);

/// Each check, and ways to make it fire.
const HARMS: &[(&str, Harm)] = &[
    ("stock-adds-up", |w| w.facts.inventory.available -= 1),
    ("stock-adds-up", |w| {
        w.facts.inventory.held -= 1;
        w.facts.inventory.sold += 1;
    }),
    ("stock-adds-up", |w| w.facts.inventory.quantity = 11),
    ("stock-oversold", |w| w.order(4, 8, Status::Paid, None, 1)),
    ("stock-matches-orders", |w| {
        w.facts.inventory.held += 1;
        w.facts.inventory.available -= 1;
    }),
    ("stock-entries-add-up", |w| w.facts.inventory.available += 1),
    ("stock-listed-once", |w| w.facts.entries[0].delta = 9),
    ("stock-listed-once", |w| {
        let listing = w.facts.entries[0].clone();
        w.facts.entries.push(listing);
    }),
    ("stock-reserved-once", |w| w.entry(0, "RESERVE").delta = -1),
    ("stock-reserved-once", |w| {
        let again = w.entry(0, "RESERVE").clone();
        w.facts.entries.push(again);
    }),
    ("stock-reserved-once", |w| w.row(6).status = Status::Rejected),
    ("stock-released-once", |w| {
        let again = w.entry(2, "RELEASE").clone();
        w.facts.entries.push(again);
    }),
    ("stock-released-once", |w| w.entry(1, "RELEASE").delta = 2),
    ("stock-released-once", |w| w.row(1).status = Status::Pending),
    ("stock-entry-without-order", |w| {
        w.entry(1, "RELEASE").order = Some(id(99));
    }),
    ("gate-agrees", |w| w.facts.gate_available = Some(6)),
    ("nothing-left-open", |w| {
        w.order(4, 1, Status::Processing, None, 1);
    }),
    ("nothing-left-open", |w| w.facts.owed.gate_releases = 1),
    ("nothing-left-open", |w| w.facts.owed.provider_tasks = 1),
    ("nothing-left-open", |w| w.facts.owed.dead_letters = 1),
    ("nothing-left-open", |w| {
        w.facts.payments[0].status = "IN_DOUBT".to_owned();
    }),
    ("nothing-left-open", |w| {
        w.charge(4, 1, 100, ChargeStatus::Pending);
    }),
    ("accepted-exists", |w| {
        w.facts.orders.retain(|order| order.id != id(2));
    }),
    ("accepted-exists", |w| w.row(2).status = Status::Rejected),
    ("accepted-as-asked", |w| w.row(1).quantity = 2),
    ("accepted-as-asked", |w| w.row(1).buyer = "buyer-2".to_owned()),
    ("one-key-one-order", |w| {
        w.records.push(record(
            0,
            2,
            30,
            Outcome::Accepted {
                order: id(6),
                replayed: true,
            },
        ));
    }),
    ("one-key-one-order", |w| {
        w.records.push(record(4, 1, 30, accepted(1, true)));
    }),
    ("refused-left-no-order", |w| w.order(4, 1, Status::Paid, None, 1)),
    ("refused-left-no-order", |w| w.row(6).quantity = 2),
    ("order-nobody-asked-for", |w| {
        w.order(77, 1, Status::Paid, None, 1);
    }),
    ("order-nobody-asked-for", |w| {
        w.row(6).buyer = "somebody".to_owned();
    }),
    ("replay-is-marked", |w| w.records[1].outcome = accepted(0, false)),
    ("replay-is-marked", |w| w.records[0].outcome = accepted(0, true)),
    ("replay-same-answer", |w| {
        w.records[1].body = Some(Bytes::from_static(b"{ }"));
    }),
    ("replay-finds-order", |w| {
        w.records[1].outcome = Outcome::Refused(Refusal::SoldOut);
    }),
    ("key-reused-refused", |w| w.records[2].outcome = accepted(0, true)),
    ("key-reused-refused", |w| {
        w.records[2].outcome = Outcome::Refused(Refusal::SoldOut);
    }),
    ("order-priced-right", |w| w.row(1).amount_minor = 99),
    ("limit-kept", |w| w.terms.per_buyer_limit = Some(1)),
    ("allotment-matches-orders", |w| w.facts.allotments[0].1 = 1),
    ("allotment-matches-orders", |w| {
        w.facts.allotments.push(("buyer-1".to_owned(), 1));
    }),
    ("no-double-charge", |w| {
        w.charge(0, 2, 200, ChargeStatus::Succeeded);
    }),
    // As the original bug left it: swept, then paid by the late job.
    ("swept-and-charged", |w| {
        let order = w.row(2);
        (order.status, order.failure_reason, order.attempt) = (Status::Paid, None, 1);
        w.charge(2, 1, 100, ChargeStatus::Succeeded);
    }),
    ("swept-and-charged", |w| {
        w.facts.refunds.clear();
        w.facts.charges[2].refunded_minor = 0;
    }),
    ("swept-never-charged", |w| {
        w.facts.payments.push(Payment {
            order: id(2),
            status: "INITIATED".to_owned(),
            promised_minor: 0,
        });
    }),
    ("swept-never-charged", |w| {
        w.charge(2, 1, 100, ChargeStatus::Declined);
    }),
    ("one-currency", |w| w.facts.charges[0].currency = "USD".to_owned()),
    ("one-currency", |w| w.facts.ledger[0].currency = "USD".to_owned()),
    ("paid-is-charged-once", |w| w.facts.charges[0].amount_minor = 199),
    ("paid-is-charged-once", |w| {
        w.facts.charges[0].status = ChargeStatus::Declined;
    }),
    ("paid-is-charged-once", |w| w.refund(0, 1, 200)),
    ("paid-is-charged-once", |w| w.facts.charges[0].refunded_minor = 1),
    ("paid-is-in-the-ledger-once", |w| w.refund(0, 1, 50)),
    ("paid-is-in-the-ledger-once", |w| w.ledger(0, "CHARGE", 200)),
    ("paid-is-in-the-ledger-once", |w| {
        w.facts.ledger.retain(|entry| entry.order != id(0));
    }),
    ("unpaid-costs-nothing", |w| {
        w.charge(1, 2, 100, ChargeStatus::Succeeded);
    }),
    ("unpaid-costs-nothing", |w| w.ledger(1, "CHARGE", 100)),
    ("ledger-equals-book", |w| w.facts.ledger[0].amount_minor = 201),
    ("ledger-equals-book", |w| w.facts.refunds.clear()),
    ("ledger-equals-book", |w| {
        w.facts.ledger.retain(|entry| entry.kind != "REFUND");
    }),
    ("ledger-equals-book", |w| w.ledger(99, "CHARGE", 100)),
    ("no-orphan-charge", |w| {
        w.charge(5, 1, 100, ChargeStatus::Succeeded);
    }),
    ("no-orphan-charge", |w| {
        w.charge(1, 2, 100, ChargeStatus::Succeeded);
    }),
    ("no-orphan-charge", |w| {
        w.charge(5, 1, 100, ChargeStatus::Succeeded);
        w.facts.charges.last_mut().unwrap().order = None;
    }),
    ("one-event-is-one-row", |w| {
        let again = w.facts.events[0].clone();
        w.facts.events.push(again);
    }),
    ("forgery-is-refused", |w| w.facts.sent[0].forged[0].1 = 200),
    ("acknowledged-is-kept", |w| w.facts.events.clear()),
    ("acknowledged-is-kept", |w| w.facts.events[0].deliveries = 1),
    ("acknowledged-is-kept", |w| w.facts.events[0].deliveries = 4),
    ("delivered-in-the-end", |w| w.facts.sent[1].lost = false),
    ("events-come-to-an-end", |w| {
        w.facts.events[0].state = "DUE".to_owned();
    }),
    ("events-come-to-an-end", |w| {
        w.facts.events[0].state = "GIVEN_UP".to_owned();
    }),
];

#[test]
fn every_check_fires() {
    for (number, (check, harm)) in HARMS.iter().enumerate() {
        let mut world = World::healthy();
        harm(&mut world);
        let failed = world.failed_checks();
        assert!(
            failed.contains(check),
            "harm {number} should fail {check}, and failed {failed:?}"
        );
    }
}

#[test]
fn no_check_is_without_a_harm() {
    let sources = [
        include_str!("stock.rs"),
        include_str!("requests.rs"),
        include_str!("money.rs"),
        include_str!("webhooks.rs"),
    ]
    .concat();
    // A check's name is the only kind of text in those files that is made of words and hyphens alone.
    for name in sources.split('"').skip(1).step_by(2) {
        let is_name = name.contains('-') && name.chars().all(|c| c.is_ascii_lowercase() || c == '-');
        assert!(
            !is_name || HARMS.iter().any(|(check, _)| *check == name),
            "{name} has no harm"
        );
    }
}

#[test]
fn orders_on_their_way_are_no_violation_until_the_end() {
    let mut world = World::healthy();
    world.settled = false;
    world.records[7].outcome = accepted(4, false);
    world.order(4, 1, Status::Processing, None, 1);
    world.facts.allotments.push(("buyer-4".to_owned(), 1));
    world.facts.gate_available = Some(6);
    // The provider has the money, and the row doesn't say so yet.
    world.facts.charges.push(Charge {
        reference: format!("{}:1", id(4)),
        order: Some(id(4)),
        status: ChargeStatus::Succeeded,
        amount_minor: 100,
        currency: "EUR".to_owned(),
        refunded_minor: 0,
    });
    assert_eq!(world.failed_checks(), Vec::<&str>::new());
    world.settled = true;
    assert!(world.failed_checks().contains(&"nothing-left-open"));
}

#[test]
fn a_gate_that_still_has_to_be_told_may_differ() {
    let mut world = World::healthy();
    world.settled = false;
    world.facts.gate_available = Some(5);
    world.facts.owed.gate_releases = 2;
    assert_eq!(world.failed_checks(), Vec::<&str>::new());
    world.facts.gate_available = None;
    assert_eq!(world.failed_checks(), Vec::<&str>::new());
}

#[test]
fn the_race_must_have_happened_and_been_lost_by_each_late_job() {
    let world = World::healthy();
    let check = |claims_lost, units, facts: &Facts| {
        let mut findings = Findings::default();
        Race { claims_lost, units }.check(facts, &mut findings);
        findings
            .into_violations()
            .iter()
            .map(|violation| violation.check)
            .collect::<Vec<_>>()
    };
    assert_eq!(check(1, 10, &world.facts), Vec::<&str>::new());
    assert_eq!(check(0, 10, &world.facts), ["race-claims-lost"]);
    assert_eq!(check(2, 10, &world.facts), ["race-claims-lost"]);
    assert_eq!(check(1, 11, &world.facts), ["race-left-plus-paid"]);
    let mut calm = world.facts.clone();
    calm.orders.retain(|order| !order.was_swept_unclaimed());
    assert_eq!(check(0, 10, &calm), ["race-happened"]);
}

#[test]
fn a_part_that_was_promised_back_and_went_back_is_no_violation() {
    let mut world = World::healthy();
    world.facts.payments[0].promised_minor = 50;
    world.refund(0, 1, 50);
    assert_eq!(world.audit().into_violations(), []);
}

#[test]
fn many_findings_of_one_check_are_told_once() {
    let mut findings = Findings::default();
    for number in 1..=5 {
        findings.add("some-check", number);
    }
    let violations = findings.into_violations();
    assert_eq!(violations[0].to_string(), "some-check (5): 1; 2; 3; and 2 more");
}

#[test]
fn limits_are_kept_at_every_moment() {
    // Buyer 0 has two from 5 ms on; those of 1, 2 and 3 went back later.
    let world = World::healthy();
    assert_eq!(world.failed_checks(), [] as [&str; 0]);

    let mut few = world.clone();
    few.terms.units = 4;
    assert!(
        few.failed_checks().contains(&"never-more-than-there-are"),
        "five were taken at once"
    );
    for buyer in [1, 2, 3] {
        few.facts.released_us.insert(id(buyer), 5_000);
    }
    assert!(
        !few.failed_checks().contains(&"never-more-than-there-are"),
        "what went back by then isn't taken any more"
    );

    let mut twice = world;
    let second = Uuid::from_u128(1_000);
    let mut order = twice.facts.orders[0].clone();
    order.id = second;
    twice.facts.orders.push(order);
    let mut record = record(
        0,
        2,
        50,
        Outcome::Accepted {
            order: second,
            replayed: false,
        },
    );
    record.ask.key = 99;
    twice.records.push(record);
    assert!(twice.failed_checks().contains(&"limit-kept-at-all-times"));
    twice.facts.released_us.insert(id(0), 20_000);
    assert!(
        !twice.failed_checks().contains(&"limit-kept-at-all-times"),
        "one after the other"
    );
}
