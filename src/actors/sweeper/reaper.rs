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
    /// What the last pass knew of each sale.
    known: Arc<Mutex<HashMap<SaleId, Known>>>,
}

/// What is known of a sale after a pass. All times are Redis' own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Known {
    seen: Seen,
    /// Since when it is known to be so: all that is reserved was reserved before.
    quiet_since: Option<Timestamp>,
    /// Up to which time of reservation all have been found to have an order: they keep it.
    checked_until: Timestamp,
}

impl Known {
    /// What is known when gate and database say this, at a pass that has begun at `now`.
    fn after(before: Option<Self>, seen: Seen, now: Timestamp) -> Self {
        let same = before.filter(|before| before.seen == seen);
        Self {
            seen,
            // It was so at the last pass already, and that was before this one has begun.
            quiet_since: same.map(|same| same.quiet_since.unwrap_or(now)),
            checked_until: before.map_or(Timestamp::MIN, |before| before.checked_until),
        }
    }

    /// A clock that went back may date new reservations into the time that was checked: then all are looked at again.
    fn checked_until(&self, old: Timestamp) -> Timestamp {
        if self.checked_until <= old {
            self.checked_until
        } else {
            Timestamp::MIN
        }
    }

    /// Whether there may be reservations that nobody has looked at. What was loaded came out of the database. (Should a clock that
    /// went back hide one in a sale in which nothing moves, the two sides differ by it, and the sale is loaded anew.)
    fn may_hold_orphans(&self, old: Timestamp) -> bool {
        let all_checked = |quiet_since| self.checked_until(old) >= quiet_since;
        self.seen.gate.changes > 0 && !self.quiet_since.is_some_and(all_checked)
    }
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
        for (sale, epoch, available) in sales {
            match self.compare(sale, epoch, available, now).await {
                Ok(Some(known)) if known.may_hold_orphans(old) => {}
                Ok(_) => continue,
                Err(error) => {
                    tracing::warn!(sale_id = %sale, %error, "gate and database could not be compared");
                    continue;
                }
            }
            match self.reap(sale, old).await {
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
    /// batch that hangs, the load costs it another round and nothing else.) `None`: the gate doesn't know the sale.
    async fn compare(
        &self,
        sale: SaleId,
        epoch: i64,
        available: i64,
        now: Timestamp,
    ) -> Result<Option<Known>, Error> {
        let Some(gate) = self.gate.pulse(sale).await? else {
            lock(&self.known).remove(&sale);
            return Ok(None);
        };
        let seen = Seen {
            gate,
            epoch,
            available,
        };
        let known = {
            let mut all = lock(&self.known);
            let known = Known::after(all.get(&sale).copied(), seen, now);
            all.insert(sale, known);
            known
        };
        if seen.apart() && known.quiet_since.is_some() {
            tracing::warn!(sale_id = %sale, ?seen, "gate and database are apart");
            self.sales.reload(sale, gate.epoch).await;
        }
        Ok(Some(known))
    }

    async fn reap(&self, sale: SaleId, old: Timestamp) -> Result<u64, Error> {
        let checked_until = lock(&self.known)
            .get(&sale)
            .map_or(Timestamp::MIN, |known| known.checked_until(old));
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
        if let Some(known) = lock(&self.known).get_mut(&sale) {
            known.checked_until = old;
        }
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

#[cfg(test)]
mod tests {
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
}
