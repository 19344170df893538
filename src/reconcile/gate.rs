//! The gate held against Postgres.

use std::collections::HashMap;

use jiff::Timestamp;

use super::Error;
use crate::domain::reconcile::gate::{Compared, Fate, Held, Seen, Verdict, judge, stale, wrong_reservation};
use crate::domain::reconcile::{Found, Repair};
use crate::domain::{Buyer, OrderId, SaleId};
use crate::gate::{self, Gate, HeldReservation, Release, Released, Standing};
use crate::store::{StandingSale, Store};

/// Orders and buyers that are asked about at a time.
const PAGE: i64 = 1_000;

/// The gate and Postgres. Cheap to clone.
#[derive(Clone)]
pub struct GateSide {
    store: Store,
    gate: Gate,
}

/// A reservation that isn't as it must be.
#[derive(Debug, Clone)]
pub struct Odd {
    /// For which order it is.
    pub order: OrderId,
    /// What it holds.
    pub held: Held,
    /// What it is.
    pub verdict: Verdict,
}

impl GateSide {
    /// These two.
    pub fn new(store: Store, gate: Gate) -> Self {
        Self { store, gate }
    }

    /// The time by Redis' clock.
    ///
    /// # Errors
    /// What is in the way.
    pub async fn now(&self) -> Result<Timestamp, gate::Error> {
        self.gate.now().await
    }

    /// How a sale stands in the gate.
    ///
    /// # Errors
    /// What is in the way.
    pub async fn standing(&self, sale: SaleId) -> Result<Standing, gate::Error> {
        self.gate.standing(sale).await
    }

    /// All that is wrong with a sale in the gate that stands like this. Of one that isn't quiet only those reservations are told that no transaction under
    /// way explains.
    ///
    /// # Errors
    /// What can't be asked.
    pub async fn look(
        &self,
        sale: &StandingSale,
        standing: Standing,
        is_quiet: bool,
        old: Timestamp,
    ) -> Result<Found, Error> {
        let mut found = Found::default();
        match standing {
            Standing::Loading => found.in_flight += 1,
            Standing::NotLoaded if sale.on_offer && is_quiet => {
                found.findings.push(stale(sale.sale, None, sale.epoch));
            }
            Standing::NotLoaded => {}
            Standing::Loaded(pulse) if pulse.epoch != sale.epoch => {
                if is_quiet {
                    found.findings.push(stale(sale.sale, Some(pulse), sale.epoch));
                } else {
                    found.in_flight += 1;
                }
            }
            Standing::Loaded(pulse) => {
                let seen = Seen {
                    gate: pulse,
                    epoch: sale.epoch,
                    available: sale.available,
                };
                let compared = if is_quiet {
                    self.compare(sale, &seen, old).await?
                } else {
                    None
                };
                found.merge(match compared {
                    Some(compared) => compared,
                    None => self.look_while_it_moves(sale.sale, old).await?,
                });
            }
        }
        Ok(found)
    }

    /// Holds all of a sale's reservations, orders and buyers against each other. `None`: something has moved meanwhile, so that nothing can be
    /// said.
    async fn compare(
        &self,
        sale: &StandingSale,
        seen: &Seen,
        old: Timestamp,
    ) -> Result<Option<Found>, Error> {
        let id = sale.sale;
        let mut compared = Compared::default();
        let mut cursor = 0;
        loop {
            let (next, page) = self.odd_reservations(id, cursor, old, |_| true).await?;
            for Odd { order, held, verdict } in page {
                compared.odd.insert(order, (held, verdict));
            }
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        compared.unreserved = self.unreserved(id).await?;
        // Where the allotments aren't right themselves, they are no measure for the gate.
        if sale.limited && self.store.allotments_apart(id).await?.0 == 0 {
            compared.buyers = self.buyers_apart(id, &compared.odd).await?;
        }
        let still = self.gate.standing(id).await? == Standing::Loaded(seen.gate)
            && self
                .store
                .standing_sales(Some(id), None)
                .await?
                .first()
                .is_some_and(|now| (now.epoch, now.available) == (sale.epoch, sale.available));
        Ok(still.then(|| compared.differences(id, seen)))
    }

    /// Reservations of a sale that moves: those that are wrong however it moves.
    async fn look_while_it_moves(&self, sale: SaleId, old: Timestamp) -> Result<Found, Error> {
        let mut found = Found {
            in_flight: 1,
            ..Found::default()
        };
        let mut wrong = HashMap::new();
        let mut cursor = 0;
        loop {
            let is_old = |held: &HeldReservation| held.reserved_at <= old;
            let (next, page) = self.odd_reservations(sale, cursor, old, is_old).await?;
            for odd in page {
                if let Verdict::Wrong(kind, repair) = odd.verdict {
                    // A page may show one twice.
                    wrong.insert(
                        odd.order,
                        wrong_reservation(sale, odd.order, &odd.held, kind, repair),
                    );
                }
            }
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        found.findings.extend(wrong.into_values());
        Ok(found)
    }

    /// A page of the reservations of a sale that aren't fine, of those that `chosen` wants, and the cursor of the next page.
    ///
    /// One of an order that is over is only told when it is still there after Postgres has said that nobody is to release it: whoever takes
    /// a note away has released its order before.
    ///
    /// # Errors
    /// What can't be asked.
    pub async fn odd_reservations(
        &self,
        sale: SaleId,
        cursor: u64,
        old: Timestamp,
        chosen: impl Fn(&HeldReservation) -> bool,
    ) -> Result<(u64, Vec<Odd>), Error> {
        let (next, page) = self.gate.reservations(sale, cursor).await?;
        let page: Vec<HeldReservation> = page.into_iter().filter(|held| chosen(held)).collect();
        if page.is_empty() {
            return Ok((next, Vec::new()));
        }
        let orders: Vec<OrderId> = page.iter().map(|held| held.order).collect();
        let fates = self.store.fates(sale, &orders).await?;
        let mut odd = Vec::new();
        for reservation in page {
            let held = held_of(&reservation);
            let fate = fates.get(&reservation.order).unwrap_or(&Fate::Missing);
            let verdict = judge(reservation.order, &held, fate, old);
            if verdict != Verdict::Fine {
                odd.push(Odd {
                    order: reservation.order,
                    held,
                    verdict,
                });
            }
        }
        let is_release = |odd: &Odd| matches!(odd.verdict, Verdict::Wrong(_, Repair::Release { .. }));
        let over: Vec<OrderId> = odd
            .iter()
            .filter(|odd| is_release(odd))
            .map(|odd| odd.order)
            .collect();
        if !over.is_empty() {
            let still = self.gate.reservations_of(sale, &over).await?;
            let still: Vec<OrderId> = still.into_iter().flatten().map(|held| held.order).collect();
            odd.retain(|odd| !is_release(odd) || still.contains(&odd.order));
        }
        Ok((next, odd))
    }

    async fn unreserved(&self, sale: SaleId) -> Result<Vec<(OrderId, i32)>, Error> {
        let mut without = Vec::new();
        let mut after = None;
        loop {
            let page = self.store.holding_orders(sale, after, PAGE).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.cursor);
            let orders: Vec<OrderId> = page.iter().map(|order| order.order).collect();
            let reserved = self.gate.reservations_of(sale, &orders).await?;
            let missing = page
                .iter()
                .zip(reserved)
                .filter(|(_, reserved)| reserved.is_none());
            without.extend(missing.map(|(order, _)| (order.order, order.quantity)));
        }
        Ok(without)
    }

    /// Buyers whose count in the gate isn't what they hold in the database, what their odd reservations hold added.
    async fn buyers_apart(
        &self,
        sale: SaleId,
        odd: &HashMap<OrderId, (Held, Verdict)>,
    ) -> Result<Vec<(Buyer, i64, i64)>, Error> {
        let mut more: HashMap<&Buyer, i64> = HashMap::new();
        for (held, verdict) in odd.values() {
            if *verdict != Verdict::Unlike {
                *more.entry(&held.buyer).or_default() += i64::from(held.quantity);
            }
        }
        let mut apart: HashMap<Buyer, (i64, i64)> = HashMap::new();
        let mut cursor = 0;
        loop {
            let (next, page) = self.gate.buyers(sale, cursor).await?;
            let names: Vec<Buyer> = page.iter().map(|(buyer, _)| buyer.clone()).collect();
            let here = self.store.allotments(sale, &names).await?;
            for (buyer, units) in page {
                let held = here.get(&buyer).copied().unwrap_or(0) + more.get(&buyer).copied().unwrap_or(0);
                if units != held {
                    apart.insert(buyer, (units, held));
                }
            }
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        let mut after: Option<Buyer> = None;
        loop {
            let page = self.store.buyers_after(sale, after.as_ref(), PAGE).await?;
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            let names: Vec<Buyer> = page.iter().map(|(buyer, _)| buyer.clone()).collect();
            let unknown = self.gate.buyers_unknown(sale, &names).await?;
            for (buyer, held) in page.into_iter().filter(|(buyer, _)| unknown.contains(buyer)) {
                apart.insert(buyer, (0, held));
            }
        }
        let mut apart: Vec<_> = apart
            .into_iter()
            .map(|(buyer, (gate, here))| (buyer, gate, here))
            .collect();
        apart.sort();
        Ok(apart)
    }

    /// Gives back what the gate holds for orders that never came into being. First the ids are occupied: from then on the orders can't come into
    /// being, so their units are nobody's. Returns how many there were.
    ///
    /// # Errors
    /// What can't be asked; doing it again is safe.
    pub async fn give_back(&self, sale: SaleId, orphans: &[(OrderId, Buyer, i32)]) -> Result<u64, Error> {
        if orphans.is_empty() {
            return Ok(0);
        }
        let occupied = self.store.occupy(sale, orphans).await?;
        self.release_in_gate(sale, occupied, true).await
    }

    /// Releases orders in the gate that have given their units back. Returns how many.
    ///
    /// # Errors
    /// What can't be asked; doing it again is safe.
    pub async fn release(&self, sale: SaleId, orders: Vec<OrderId>) -> Result<u64, Error> {
        self.release_in_gate(sale, orders, false).await
    }

    async fn release_in_gate(&self, sale: SaleId, orders: Vec<OrderId>, forget: bool) -> Result<u64, Error> {
        if orders.is_empty() {
            return Ok(0);
        }
        let releases: Vec<Release> = orders
            .into_iter()
            .map(|order| Release { order, forget })
            .collect();
        Ok(match self.gate.release(sale, &releases).await? {
            Released::Done { unknown, .. } => (releases.len() - unknown) as u64,
            Released::Unprimed => 0,
        })
    }
}

fn held_of(reservation: &HeldReservation) -> Held {
    Held {
        buyer: reservation.buyer.clone(),
        quantity: reservation.quantity,
        reserved_at: reservation.reserved_at,
    }
}
