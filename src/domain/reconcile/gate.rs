//! The gate against Postgres: what stands still between two looks, and what each reservation is.

use std::collections::HashMap;

use jiff::Timestamp;

use super::{Finding, Found, Kind, Repair, some_of};
use crate::domain::{Buyer, OrderId, SaleId};

/// What changes about a sale in the gate, at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pulse {
    /// The epoch it was loaded under.
    pub epoch: i64,
    /// Units available.
    pub available: i64,
    /// Idempotency keys it knows.
    pub keys: u64,
    /// How often anything of this has changed since the load: two pulses are equal only when nothing has, not even there and back.
    pub changes: u64,
}

/// What both say of a sale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// The gate.
    pub gate: Pulse,
    /// The epoch in Postgres.
    pub epoch: i64,
    /// Units available in Postgres.
    pub available: i64,
}

impl Seen {
    /// Whether they differ. While anything moves they often do, by the batches under way.
    pub fn apart(&self) -> bool {
        self.gate.epoch != self.epoch || self.gate.available != self.available
    }

    /// Units that the gate would sell and Postgres doesn't have; negative where units are hidden from buyers.
    pub fn gap(&self) -> i64 {
        self.gate.available - self.available
    }
}

/// What is known of a sale after several looks. All times are Redis' own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// What both said at the last look.
    pub seen: Seen,
    /// Since when it is known to be so: all that is reserved was reserved before.
    pub quiet_since: Option<Timestamp>,
    /// Up to which time of reservation all have been found to have an order: they keep it.
    pub checked_until: Timestamp,
}

impl Known {
    /// What is known when gate and database say this, at a look that has begun at `now`.
    #[must_use]
    pub fn after(before: Option<Self>, seen: Seen, now: Timestamp) -> Self {
        let same = before.filter(|before| before.seen == seen);
        Self {
            seen,
            // It was so at the last look already, and that was before this one has begun.
            quiet_since: same.map(|same| same.quiet_since.unwrap_or(now)),
            checked_until: before.map_or(Timestamp::MIN, |before| before.checked_until),
        }
    }

    /// A clock that went back may date new reservations into the time that was checked: then all are looked at again.
    pub fn checked_until(&self, old: Timestamp) -> Timestamp {
        if self.checked_until <= old {
            self.checked_until
        } else {
            Timestamp::MIN
        }
    }

    /// Whether there may be reservations that nobody has looked at. What was loaded came out of the database. (Should a clock that
    /// went back hide one in a sale in which nothing moves, the two sides differ by it, and the sale is loaded anew.)
    pub fn may_hold_orphans(&self, old: Timestamp) -> bool {
        let all_checked = |quiet_since| self.checked_until(old) >= quiet_since;
        self.seen.gate.changes > 0 && !self.quiet_since.is_some_and(all_checked)
    }

    /// Whether the two have been apart without anything moving: no batch explains it.
    pub fn stays_apart(&self) -> bool {
        self.seen.apart() && self.quiet_since.is_some()
    }
}

/// A reservation, as far as it is compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Its buyer.
    pub buyer: Buyer,
    /// Its units.
    pub quantity: i32,
    /// When it was made or loaded, by Redis' clock.
    pub reserved_at: Timestamp,
}

/// What Postgres has of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It holds or owns its units.
    Holds {
        /// Whose they are.
        buyer: Buyer,
        /// How many.
        quantity: i32,
    },
    /// It has given them back.
    Over {
        /// The gate is still to be told.
        noted: bool,
    },
    /// There is no such order, or its id is occupied so that there never will be.
    Missing,
}

/// What a reservation is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// As it must be.
    Fine,
    /// Its batch may be under way, or its release.
    InFlight,
    /// Another buyer's, or of other units, than its order.
    Unlike,
    /// To be told, and repaired.
    Wrong(Kind, Repair),
}

/// What a reservation is, with an order like this. Reserved later than `old`, its transaction may still be under way.
pub fn judge(order: OrderId, held: &Held, fate: &Fate, old: Timestamp) -> Verdict {
    match fate {
        Fate::Holds { buyer, quantity } if *buyer == held.buyer && *quantity == held.quantity => {
            Verdict::Fine
        }
        Fate::Holds { .. } => Verdict::Unlike,
        Fate::Missing if held.reserved_at > old => Verdict::InFlight,
        Fate::Missing => Verdict::Wrong(
            Kind::ReservationWithoutOrder,
            Repair::GiveBack {
                order,
                buyer: held.buyer.clone(),
                quantity: held.quantity,
            },
        ),
        Fate::Over { noted: true } => Verdict::InFlight,
        Fate::Over { noted: false } => {
            Verdict::Wrong(Kind::ReservationOfOrderOver, Repair::Release { order })
        }
    }
}

/// The finding of a reservation that is wrong.
pub fn wrong_reservation(sale: SaleId, order: OrderId, held: &Held, kind: Kind, repair: Repair) -> Finding {
    let Held {
        buyer,
        quantity,
        reserved_at,
    } = held;
    let what = match kind {
        Kind::ReservationOfOrderOver => {
            format!("the gate holds {quantity} units of {buyer} for it, and it has given them back")
        }
        _ => format!(
            "the gate holds {quantity} units of {buyer} for it since {reserved_at:.0}, and there is no such order"
        ),
    };
    Finding {
        kind,
        sale: Some(sale),
        of: format!("order {order}"),
        what,
        repair: Some(repair),
    }
}

/// All that was found in a sale whose reservations were looked through from both sides.
#[derive(Debug, Default)]
pub struct Compared {
    /// Reservations by order, of those that aren't fine, with what they are: a scan may show one twice.
    pub odd: HashMap<OrderId, (Held, Verdict)>,
    /// Orders that hold units, and have no reservation.
    pub unreserved: Vec<(OrderId, i32)>,
    /// Buyers of whom the gate counts other units than the database: the gate's count first.
    pub buyers: Vec<(Buyer, i64, i64)>,
}

impl Compared {
    /// The differences of a sale in which nothing has moved since before the comparison, in the order in which they are to be repaired.
    pub fn differences(self, sale: SaleId, seen: &Seen) -> Found {
        let load = Repair::Load {
            stale: seen.gate.epoch,
        };
        let finding = |kind, of: String, what: String| Finding {
            kind,
            sale: Some(sale),
            of,
            what,
            repair: Some(load.clone()),
        };
        let mut found = Found::default();
        // What the gate must show, by what was found.
        let mut expected = seen.available;
        let mut unlike: Vec<OrderId> = Vec::new();
        let mut odd: Vec<_> = self.odd.into_iter().collect();
        odd.sort_unstable_by_key(|(order, _)| *order);
        for (order, (held, verdict)) in odd {
            match verdict {
                Verdict::Fine => {}
                Verdict::InFlight => {
                    found.in_flight += 1;
                    expected -= i64::from(held.quantity);
                }
                Verdict::Unlike => unlike.push(order),
                Verdict::Wrong(kind, repair) => {
                    expected -= i64::from(held.quantity);
                    found
                        .findings
                        .push(wrong_reservation(sale, order, &held, kind, repair));
                }
            }
        }
        expected += self
            .unreserved
            .iter()
            .map(|(_, units)| i64::from(*units))
            .sum::<i64>();
        let without: Vec<OrderId> = self
            .unreserved
            .iter()
            .map(|(order, _)| *order)
            .chain(unlike)
            .collect();
        if !without.is_empty() {
            found.findings.push(finding(
                Kind::OrderWithoutReservation,
                format!("{} orders", without.len()),
                format!(
                    "they hold units, and the gate has no reservation like theirs: {}",
                    some_of(&without)
                ),
            ));
        }
        if seen.gate.available != expected {
            found.findings.push(finding(
                Kind::GateAvailable,
                "stock".to_owned(),
                format!(
                    "the gate would sell {} units where {} are available, and reservations explain {} of the difference",
                    seen.gate.available,
                    seen.available,
                    expected - seen.available
                ),
            ));
        }
        if !self.buyers.is_empty() {
            let each: Vec<String> = self
                .buyers
                .iter()
                .map(|(buyer, gate, database)| format!("{buyer} ({gate} in the gate, {database} here)"))
                .collect();
            found.findings.push(finding(
                Kind::BuyerUnits,
                format!("{} buyers", each.len()),
                format!("the gate counts other units than they hold: {}", some_of(&each)),
            ));
        }
        found
    }
}

/// The finding of a sale that the gate doesn't know, or knows from another epoch, and that stands still.
pub fn stale(sale: SaleId, gate: Option<Pulse>, epoch: i64) -> Finding {
    let (kind, what) = match gate {
        None => (
            Kind::GateNotLoaded,
            "it is on offer, and the gate doesn't know it".to_owned(),
        ),
        Some(gate) => (
            Kind::GateEpoch,
            format!(
                "the gate knows it as of epoch {}, and it is at epoch {epoch}",
                gate.epoch
            ),
        ),
    };
    Finding {
        kind,
        sale: Some(sale),
        of: "sale".to_owned(),
        what,
        repair: Some(Repair::Load {
            stale: gate.map_or(0, |gate| gate.epoch),
        }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn seen(changes: u64) -> Seen {
        Seen {
            gate: Pulse {
                epoch: 2,
                available: 5,
                keys: changes,
                changes,
            },
            epoch: 2,
            available: 5,
        }
    }

    #[test]
    fn a_sale_in_which_nothing_moves_is_looked_through_until_all_of_it_was_old_enough() {
        let first = Known::after(None, seen(1), at(100));
        assert!(first.may_hold_orphans(at(85)), "it may have changed after 100");
        let mut second = Known::after(Some(first), seen(1), at(110));
        assert_eq!(second.quiet_since, Some(at(110)));
        assert!(second.may_hold_orphans(at(95)));
        second.checked_until = at(109);
        let mut third = Known::after(Some(second), seen(1), at(124));
        assert!(
            third.may_hold_orphans(at(109)),
            "what was reserved at 109.5 was too young"
        );
        third.checked_until = at(110);
        let fourth = Known::after(Some(third), seen(1), at(134));
        assert!(!fourth.may_hold_orphans(at(119)));
        let moved = Known::after(Some(fourth), seen(2), at(144));
        assert!(moved.may_hold_orphans(at(129)));
        assert_eq!(moved.checked_until, at(110), "what was checked stays checked");
    }

    #[test]
    fn a_clock_that_went_back_has_all_looked_at_again() {
        let known = Known {
            seen: seen(1),
            quiet_since: Some(at(100)),
            checked_until: at(120),
        };
        assert!(!known.may_hold_orphans(at(120)));
        assert!(known.may_hold_orphans(at(90)));
        assert_eq!(known.checked_until(at(90)), Timestamp::MIN);
    }

    #[test]
    fn what_was_loaded_and_not_touched_since_has_orders() {
        assert!(!Known::after(None, seen(0), at(100)).may_hold_orphans(at(85)));
    }

    #[test]
    fn only_what_stands_still_is_apart() {
        let apart = Seen {
            available: 4,
            ..seen(1)
        };
        let first = Known::after(None, apart, at(100));
        assert!(!first.stays_apart(), "one look is none");
        let second = Known::after(Some(first), apart, at(110));
        assert!(second.stays_apart());
        let moved = Seen {
            available: 4,
            ..seen(2)
        };
        assert!(!Known::after(Some(second), moved, at(120)).stays_apart());
        assert!(!Known::after(Some(second), seen(1), at(120)).stays_apart());
        assert_eq!((apart.gap(), seen(1).gap()), (1, 0));
    }

    fn buyer(name: &str) -> Buyer {
        Buyer::parse(name).unwrap()
    }

    fn held(quantity: i32, second: i64) -> Held {
        Held {
            buyer: buyer("ann"),
            quantity,
            reserved_at: at(second),
        }
    }

    fn kinds(found: &Found) -> Vec<Kind> {
        found.findings.iter().map(|finding| finding.kind).collect()
    }

    #[test]
    fn a_reservation_is_what_its_order_makes_it() {
        let order = OrderId::fresh();
        let of = |held: &Held, fate: &Fate| judge(order, held, fate, at(100));
        let like = Fate::Holds {
            buyer: buyer("ann"),
            quantity: 2,
        };
        assert_eq!(of(&held(2, 150), &like), Verdict::Fine);
        assert_eq!(of(&held(1, 50), &like), Verdict::Unlike);
        assert_eq!(
            of(&held(2, 101), &Fate::Missing),
            Verdict::InFlight,
            "younger than any transaction"
        );
        assert!(matches!(
            of(&held(2, 100), &Fate::Missing),
            Verdict::Wrong(
                Kind::ReservationWithoutOrder,
                Repair::GiveBack { quantity: 2, .. }
            )
        ));
        assert_eq!(of(&held(2, 50), &Fate::Over { noted: true }), Verdict::InFlight);
        assert_eq!(
            of(&held(2, 50), &Fate::Over { noted: false }),
            Verdict::Wrong(Kind::ReservationOfOrderOver, Repair::Release { order })
        );
    }

    /// A life of a sale, as both sides would tell it.
    #[derive(Debug, Clone)]
    struct Life {
        quantity: i64,
        fine: Vec<i32>,
        /// Reserved, and no order: with whether it is old.
        missing: Vec<(i32, bool)>,
        /// Given back, and still reserved: with whether the release is noted.
        over: Vec<(i32, bool)>,
        unreserved: Vec<i32>,
        /// What the gate's counter has lost or found.
        off: i64,
    }

    fn lives() -> impl Strategy<Value = Life> {
        let units = || prop::collection::vec(1..4_i32, 0..4);
        let flagged = || prop::collection::vec((1..4_i32, any::<bool>()), 0..4);
        (units(), flagged(), flagged(), units(), -2..3_i64).prop_map(
            |(fine, missing, over, unreserved, off)| Life {
                quantity: 100,
                fine,
                missing,
                over,
                unreserved,
                off,
            },
        )
    }

    proptest! {
        /// Whatever has gone wrong, each kind of it is told, nothing that is in flight is, and all of the gate's difference is explained.
        #[test]
        fn every_difference_is_told_and_nothing_else(life in lives()) {
            let old = at(100);
            let mut compared = Compared::default();
            let mut reserved = 0;
            let mut add = |held: Held, fate: Fate| {
                reserved += i64::from(held.quantity);
                let order = OrderId::fresh();
                let verdict = judge(order, &held, &fate, old);
                if verdict != Verdict::Fine {
                    compared.odd.insert(order, (held, verdict));
                }
            };
            for units in &life.fine {
                add(held(*units, 50), Fate::Holds { buyer: buyer("ann"), quantity: *units });
            }
            for (units, is_old) in &life.missing {
                add(held(*units, if *is_old { 50 } else { 150 }), Fate::Missing);
            }
            for (units, noted) in &life.over {
                add(held(*units, 50), Fate::Over { noted: *noted });
            }
            compared.unreserved = life.unreserved.iter().map(|units| (OrderId::fresh(), *units)).collect();
            let sum = |units: &[i32]| -> i64 { units.iter().map(|units| i64::from(*units)).sum() };
            let seen = Seen {
                gate: Pulse { epoch: 3, available: life.quantity - reserved + life.off, keys: 0, changes: 1 },
                epoch: 3,
                available: life.quantity - sum(&life.fine) - sum(&life.unreserved),
            };
            let found = compared.differences(SaleId::fresh(), &seen);
            let count = |kind| kinds(&found).iter().filter(|other| **other == kind).count();
            let old_ones = life.missing.iter().filter(|(_, is_old)| *is_old).count();
            let unnoted = life.over.iter().filter(|(_, noted)| !noted).count();
            prop_assert_eq!(count(Kind::ReservationWithoutOrder), old_ones);
            prop_assert_eq!(count(Kind::ReservationOfOrderOver), unnoted);
            prop_assert_eq!(count(Kind::OrderWithoutReservation), usize::from(!life.unreserved.is_empty()));
            prop_assert_eq!(count(Kind::GateAvailable), usize::from(life.off != 0));
            prop_assert_eq!(found.in_flight as usize, life.missing.len() - old_ones + life.over.len() - unnoted);
            prop_assert!(found.findings.iter().all(|finding| finding.repair.is_some()));
        }
    }

    #[test]
    fn a_reservation_unlike_its_order_has_the_sale_loaded_anew() {
        let mut compared = Compared::default();
        compared
            .odd
            .insert(OrderId::fresh(), (held(2, 50), Verdict::Unlike));
        compared.buyers.push((buyer("ann"), 3, 2));
        let found = compared.differences(SaleId::fresh(), &seen(1));
        assert_eq!(kinds(&found), [Kind::OrderWithoutReservation, Kind::BuyerUnits]);
        assert!(
            found
                .findings
                .iter()
                .all(|f| f.repair == Some(Repair::Load { stale: 2 }))
        );
    }

    #[test]
    fn what_is_not_loaded_or_old_is_loaded_anew() {
        let sale = SaleId::fresh();
        let missing = stale(sale, None, 4);
        assert_eq!(
            (missing.kind, missing.repair),
            (Kind::GateNotLoaded, Some(Repair::Load { stale: 0 }))
        );
        let old = stale(sale, Some(seen(1).gate), 4);
        assert_eq!(
            (old.kind, old.repair),
            (Kind::GateEpoch, Some(Repair::Load { stale: 2 }))
        );
    }
}
