//! The reaper: gives back what the gate has set aside for orders that never came into being, because the engine died between
//! the two, or its database did.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;

use crate::actors::sale::Sales;
use crate::domain::{Buyer, OrderId, SaleId};
use crate::gate::{self, Gate, Pulse, Release, Released};
use crate::metrics;
use crate::store::{self, Store};

/// Looks through the reservations of every sale that is known here. Cheap to clone.
#[derive(Clone)]
pub struct Reaper {
    store: Store,
    gate: Gate,
    sales: Sales,
    /// Per sale, up to which time of reservation all have been found to have an order: they keep it.
    checked_until: Arc<Mutex<HashMap<SaleId, Timestamp>>>,
    /// What gate and database said of a sale at the last pass.
    last_seen: Arc<Mutex<HashMap<SaleId, Seen>>>,
}

/// What both say of a sale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    gate: Pulse,
    epoch: i64,
    available: i64,
}

impl Seen {
    fn apart(&self) -> bool {
        self.gate.epoch != self.epoch || self.gate.available != self.available
    }
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error(transparent)]
    Gate(#[from] gate::Error),
}

impl Reaper {
    /// A reaper for the sales of this registry.
    pub fn new(store: Store, gate: Gate, sales: Sales) -> Self {
        Self {
            store,
            gate,
            sales,
            checked_until: Arc::default(),
            last_seen: Arc::default(),
        }
    }

    /// One look through all sales. A reservation younger than `grace`, by Redis' own clock, is left alone: its transaction may be
    /// under way.
    pub async fn pass(&self, grace: Duration) -> Result<(), store::Error> {
        for (sale, epoch, available) in self.store.loaded_sales().await? {
            if let Err(error) = self.compare(sale, epoch, available).await {
                tracing::warn!(sale_id = %sale, %error, "gate and database could not be compared");
                continue;
            }
            match self.reap(sale, grace).await {
                Ok(0) => {}
                Ok(reaped) => {
                    metrics::reservations_reaped(reaped);
                    tracing::warn!(sale_id = %sale, orders = reaped, "gave back reservations that never became orders");
                    self.sales.freed(sale);
                }
                Err(error) => {
                    tracing::warn!(sale_id = %sale, %error, "reservations could not be looked through");
                }
            }
        }
        Ok(())
    }

    /// Has a sale loaded anew when gate and database differ and nothing has moved in either since the last pass: then it is no
    /// batch under way that makes the difference, but a Redis that has forgotten something, or a load that died. (Should it be a
    /// batch that hangs, the load costs it another round and nothing else.)
    async fn compare(&self, sale: SaleId, epoch: i64, available: i64) -> Result<(), Error> {
        let Some(gate) = self.gate.pulse(sale).await? else {
            lock(&self.last_seen).remove(&sale);
            return Ok(());
        };
        let seen = Seen {
            gate,
            epoch,
            available,
        };
        let before = lock(&self.last_seen).insert(sale, seen);
        if seen.apart() && before == Some(seen) {
            tracing::warn!(sale_id = %sale, ?seen, "gate and database are apart");
            self.sales.reload(sale, gate.epoch).await;
        }
        Ok(())
    }

    async fn reap(&self, sale: SaleId, grace: Duration) -> Result<u64, Error> {
        let old = self.gate.now().await? - grace;
        // A clock that went back may date new reservations into the time that was checked: then all are looked at again.
        let checked_until = lock(&self.checked_until)
            .get(&sale)
            .copied()
            .filter(|checked| *checked <= old)
            .unwrap_or(Timestamp::MIN);
        let mut cursor = 0;
        let mut reaped = 0;
        loop {
            let (next, page) = self.gate.reservations(sale, cursor).await?;
            let suspects: HashMap<OrderId, (Buyer, i32)> = page
                .into_iter()
                .filter(|held| held.reserved_at <= old && held.reserved_at > checked_until)
                .map(|held| (held.order, (held.buyer, held.quantity)))
                .collect();
            if !suspects.is_empty() {
                let ids: Vec<OrderId> = suspects.keys().copied().collect();
                let orphans: Vec<(OrderId, Buyer, i32)> = self
                    .store
                    .without_order(sale, &ids)
                    .await?
                    .into_iter()
                    .filter_map(|order| {
                        suspects
                            .get(&order)
                            .map(|(buyer, quantity)| (order, buyer.clone(), *quantity))
                    })
                    .collect();
                reaped += self.give_back(sale, &orphans).await?;
            }
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        lock(&self.checked_until).insert(sale, old);
        Ok(reaped)
    }

    /// First the ids are occupied: from then on the orders can't come into being, so their units are nobody's.
    async fn give_back(&self, sale: SaleId, orphans: &[(OrderId, Buyer, i32)]) -> Result<u64, Error> {
        if orphans.is_empty() {
            return Ok(0);
        }
        let releases: Vec<Release> = self
            .store
            .occupy(sale, orphans)
            .await?
            .into_iter()
            .map(|order| Release { order, forget: true })
            .collect();
        match self.gate.release(sale, &releases).await? {
            Released::Done { .. } => Ok(releases.len() as u64),
            Released::Unprimed => Ok(0),
        }
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
