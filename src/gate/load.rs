//! Filling the gate from the database, step by step and under an epoch.
//!
//! Whoever rebuilds raises the sale's epoch in the database first, so that an epoch belongs to one rebuild. Then:
//! [`Gate::begin_load`], any number of [`Gate::load_orders`], [`Gate::finish_load`]. Until the last of them the sale can't be
//! reserved from. Whoever is answered `false` has lost the load to somebody with a newer epoch (or to somebody who took over
//! after 2 s of silence), and stops.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use jiff::Timestamp;
use redis::Cmd;

use super::reply;
use super::script::{self, Columns as _, Script};
use super::{Error, Gate};
use crate::domain::{Buyer, IdempotencyDigest, OrderId, SaleId};

/// Orders per call of the script, so that others get their turn in between.
const SLICE_ORDERS: usize = 1000;

/// An order as the database has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedOrder {
    /// Its name.
    pub order: OrderId,
    /// Its buyer.
    pub buyer: Buyer,
    /// The name of the purchase.
    pub digest: IdempotencyDigest,
    /// Its units.
    pub quantity: i32,
    /// Its units are held or sold: they count against the buyer's limit, and a release gives them back. `false` for an order
    /// that failed: only its idempotency key is of interest.
    pub holds: bool,
}

/// What the gate must know of a sale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SaleFacts {
    /// Units that nobody has, under the load's epoch.
    pub available: i64,
    /// When buying becomes possible; Redis' clock decides.
    pub opens_at: Timestamp,
    /// When it ends, if ever.
    pub closes_at: Option<Timestamp>,
    /// Units that one buyer may hold or own.
    pub per_buyer_limit: Option<i32>,
}

impl Gate {
    /// Takes the old copy of the sale away and claims the load under `epoch`. From now on nothing can be reserved until it
    /// is finished.
    ///
    /// `false`: not ours to load, because this or a newer epoch is loaded, a newer one is being loaded, or another
    /// process has been loading this one within the last 2 s.
    ///
    /// Within a process, one task at a time loads a sale.
    ///
    /// # Errors
    /// What is in the way; the old copy may be gone. Begin again.
    pub async fn begin_load(&self, sale: SaleId, epoch: i64) -> Result<bool, Error> {
        let number = self.loads.next.fetch_add(1, Ordering::Relaxed);
        let mine = self
            .step(&script::LOAD_BEGIN, sale, epoch, number, |_| ())
            .await?;
        if mine {
            // Of two loads that began at once the later one counts; the other finds its epoch passed over.
            let mut current = self.current_loads();
            let latest = current.entry(sale).or_insert(number);
            *latest = number.max(*latest);
        }
        Ok(mine)
    }

    /// Adds orders to the load, each named once in `orders`; safe to repeat.
    ///
    /// `false`: the load is not ours any more.
    ///
    /// # Errors
    /// What is in the way; some of the orders may have been added. Repeat it, or begin again.
    pub async fn load_orders(&self, sale: SaleId, epoch: i64, orders: &[LoadedOrder]) -> Result<bool, Error> {
        let Some(number) = self.current_load(sale) else {
            return Ok(false);
        };
        for orders in orders.chunks(SLICE_ORDERS) {
            let add = |command: &mut Cmd| {
                command
                    .uuids_simple(orders.iter().map(|order| order.digest.0))
                    .uuids(orders.iter().map(|order| order.order.0))
                    .arg(orders.iter().map(|order| order.quantity).collect::<Vec<_>>())
                    .arg(
                        orders
                            .iter()
                            .map(|order| order.buyer.as_str())
                            .collect::<Vec<_>>(),
                    )
                    .arg(
                        orders
                            .iter()
                            .map(|order| u8::from(order.holds).to_string())
                            .collect::<Vec<_>>(),
                    );
            };
            if !self.step(&script::LOAD_ORDERS, sale, epoch, number, add).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Opens the sale with what was loaded; safe to repeat while it answers with an error.
    ///
    /// `false`: the load is not ours any more.
    ///
    /// # Errors
    /// What is in the way; the sale may be open. Repeat it, or begin again under a newer epoch.
    pub async fn finish_load(&self, sale: SaleId, epoch: i64, facts: &SaleFacts) -> Result<bool, Error> {
        let Some(number) = self.current_load(sale) else {
            return Ok(false);
        };
        let microseconds =
            |time: Option<Timestamp>| time.map_or_else(String::new, |time| time.as_microsecond().to_string());
        let add = |command: &mut Cmd| {
            command
                .arg(facts.available)
                .arg(microseconds(Some(facts.opens_at)))
                .arg(microseconds(facts.closes_at))
                .arg(
                    facts
                        .per_buyer_limit
                        .map_or_else(String::new, |limit| limit.to_string()),
                );
        };
        let finished = self.step(&script::LOAD_FINISH, sale, epoch, number, add).await?;
        self.current_loads().remove(&sale);
        Ok(finished)
    }

    /// One step of the load with this number; whether it was the load's turn.
    async fn step(
        &self,
        script: &Script,
        sale: SaleId,
        epoch: i64,
        number: u64,
        add: impl FnOnce(&mut Cmd),
    ) -> Result<bool, Error> {
        let mut command = script.on(sale);
        command
            .arg(epoch)
            .uuids([self.loads.instance].into_iter())
            .arg(number);
        add(&mut command);
        Ok(reply::int(&script.run(&self.link, &command).await?)? == 1)
    }

    fn current_load(&self, sale: SaleId) -> Option<u64> {
        self.current_loads().get(&sale).copied()
    }

    fn current_loads(&self) -> std::sync::MutexGuard<'_, std::collections::HashMap<SaleId, u64>> {
        self.loads.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
