//! The reaper: gives back what the gate has set aside for orders that never came into being, because the engine died between
//! the two, or its database did, and for orders whose release it has missed; and has sales loaded anew that stay apart.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use jiff::Timestamp;

use crate::actors::sale::Sales;
use crate::domain::SaleId;
use crate::domain::reconcile::Repair;
use crate::domain::reconcile::gate::{Known, Seen, Verdict};
use crate::gate::{Gate, HeldReservation};
use crate::metrics;
use crate::reconcile::{self, gate::GateSide};
use crate::store::{self, Store};

/// Looks through the reservations of every sale that is known here. Cheap to clone.
#[derive(Clone)]
pub struct Reaper {
    store: Store,
    gate: Gate,
    side: GateSide,
    sales: Sales,
    /// What the last pass knew of each sale.
    known: Arc<Mutex<HashMap<SaleId, Known>>>,
}

impl Reaper {
    /// A reaper for the sales of this registry.
    pub fn new(store: Store, gate: Gate, sales: Sales) -> Self {
        Self {
            side: GateSide::new(store.clone(), gate.clone()),
            store,
            gate,
            sales,
            known: Arc::default(),
        }
    }

    /// One look through all sales. A reservation younger than `grace`, by Redis' own clock, is left alone: its transaction may be
    /// under way.
    pub async fn pass(&self, grace: Duration) -> Result<(), store::Error> {
        let sales = self.store.loaded_sales().await?;
        let now = match self.gate.now().await {
            Ok(now) => now,
            Err(error) => {
                tracing::warn!(%error, "gate and database could not be compared");
                return Ok(());
            }
        };
        let old = now - grace;
        let mut apart = Vec::new();
        for (sale, epoch, available) in sales {
            let known = match self.compare(sale, epoch, available, now).await {
                Ok(Some(known)) => known,
                Ok(None) => continue,
                Err(error) => {
                    tracing::warn!(sale_id = %sale, %error, "gate and database could not be compared");
                    continue;
                }
            };
            if known.stays_apart() {
                tracing::warn!(sale_id = %sale, seen = ?known.seen, "gate and database are apart");
                apart.push((sale, known.seen.gate.epoch));
            }
            if !known.may_hold_orphans(old) {
                continue;
            }
            match self.reap(sale, old).await {
                Ok(0) => {}
                Ok(reaped) => {
                    metrics::reservations_reaped(reaped);
                    tracing::warn!(sale_id = %sale, orders = reaped, "gave back reservations that nobody held");
                    self.sales.freed(sale);
                }
                Err(error) => {
                    tracing::warn!(sale_id = %sale, %error, "reservations could not be looked through");
                }
            }
        }
        // Last, since a load takes its time; each waits for its turn.
        stream::iter(apart)
            .for_each_concurrent(None, |(sale, stale)| async move {
                self.sales.reload_in_turn(sale, stale).await;
            })
            .await;
        Ok(())
    }

    /// What is known of a sale now. When gate and database differ and nothing has moved in either since the last pass, it is no
    /// batch under way that makes the difference, but a Redis that has forgotten something, or a load that died. (Should it be a
    /// batch that hangs, a load costs it another round and nothing else.) `None`: the gate doesn't know the sale.
    async fn compare(
        &self,
        sale: SaleId,
        epoch: i64,
        available: i64,
        now: Timestamp,
    ) -> Result<Option<Known>, reconcile::Error> {
        let Some(gate) = self.gate.pulse(sale).await? else {
            lock(&self.known).remove(&sale);
            return Ok(None);
        };
        let seen = Seen {
            gate,
            epoch,
            available,
        };
        let mut all = lock(&self.known);
        let known = Known::after(all.get(&sale).copied(), seen, now);
        all.insert(sale, known);
        metrics::gate_gap(sale, if known.stays_apart() { seen.gap() } else { 0 });
        Ok(Some(known))
    }

    async fn reap(&self, sale: SaleId, old: Timestamp) -> Result<u64, reconcile::Error> {
        let checked_until = lock(&self.known)
            .get(&sale)
            .map_or(Timestamp::MIN, |known| known.checked_until(old));
        let unchecked = |held: &HeldReservation| held.reserved_at <= old && held.reserved_at > checked_until;
        let mut cursor = 0;
        let mut reaped = 0;
        loop {
            let (next, page) = self.side.odd_reservations(sale, cursor, old, unchecked).await?;
            let (mut orphans, mut over) = (Vec::new(), Vec::new());
            for odd in page {
                match odd.verdict {
                    Verdict::Wrong(
                        _,
                        Repair::GiveBack {
                            order,
                            buyer,
                            quantity,
                        },
                    ) => {
                        orphans.push((order, buyer, quantity));
                    }
                    Verdict::Wrong(_, Repair::Release { order }) => over.push(order),
                    // One that is unlike its order is for whoever compares all of the sale.
                    _ => {}
                }
            }
            reaped += self.side.give_back(sale, &orphans).await?;
            reaped += self.side.release(sale, over).await?;
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        if let Some(known) = lock(&self.known).get_mut(&sale) {
            known.checked_until = old;
        }
        Ok(reaped)
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
