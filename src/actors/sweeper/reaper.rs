//! The reaper: gives back what the gate has set aside for orders that never came into being, because the engine died between
//! the two, or its database did.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;

use crate::actors::sale::Sales;
use crate::domain::{Buyer, OrderId, SaleId};
use crate::gate::{self, Gate, Release, Released};
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
        }
    }

    /// One look through all sales. A reservation younger than `grace`, by Redis' own clock, is left alone: its transaction may be
    /// under way.
    pub async fn pass(&self, grace: Duration) {
        let sales = match self.store.sales_with_reservations().await {
            Ok(sales) => sales,
            Err(error) => {
                tracing::warn!(%error, "sales could not be looked up for reaping");
                return;
            }
        };
        for sale in sales {
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
    }

    async fn reap(&self, sale: SaleId, grace: Duration) -> Result<u64, Error> {
        let old = self.gate.now().await? - grace;
        // A clock that went back may date new reservations into the time that was checked: then all are looked at again.
        let checked_until = self
            .lock()
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
        self.lock().insert(sale, old);
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

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<SaleId, Timestamp>> {
        self.checked_until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
