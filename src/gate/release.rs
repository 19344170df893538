//! Giving units back.

use std::collections::HashMap;

use redis::Value;

use super::reply::{Readiness, Reply};
use super::script::{self, Columns as _};
use super::{Error, Gate};
use crate::domain::{OrderId, SaleId};

/// Orders per call of the script, so that others get their turn in between.
const SLICE_ORDERS: usize = 1000;

/// An order that holds units no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release {
    /// The order.
    pub order: OrderId,
    /// It never came into being: its idempotency key is free again. (Otherwise a replay still finds the order.)
    pub forget: bool,
}

/// What became of a batch of releases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// They are done.
    Done {
        /// Units available afterwards.
        available: i64,
        /// Units that the orders held and hold no more.
        given_back_units: i64,
        /// Orders that held nothing: released before, or not reserved yet, in which case they never will be.
        unknown: usize,
        /// The epoch that the sale is loaded under. Should it have moved on in the database, the next load may not know of these
        /// releases: then they are still owed.
        epoch: i64,
    },
    /// The sale's keys are not loaded, or are being loaded just now. Nothing was done, at least for some of them; try again once
    /// they are.
    Unprimed,
}

/// What one call of the script did.
#[derive(Debug)]
pub(super) struct Slice {
    available: i64,
    given_back_units: i64,
    unknown: usize,
    epoch: i64,
}

/// Reads what the script answers; `None` while the sale isn't loaded.
pub(super) fn read(answer: Value) -> Result<Option<Slice>, Error> {
    let mut reply = Reply::new(answer)?;
    match reply.readiness()? {
        Readiness::Unprimed | Readiness::Loading => Ok(None),
        Readiness::Ready => Ok(Some(Slice {
            available: reply.int()?,
            given_back_units: reply.int()?,
            unknown: reply.int()? as usize,
            epoch: reply.int()?,
        })),
    }
}

impl Gate {
    /// Gives back what these orders hold, each once, whatever comes first and however often it is repeated. Works when
    /// Redis' memory is full.
    ///
    /// An order that holds nothing is remembered for an hour: its own reservation, if it is still under way, will be
    /// answered with [`super::Verdict::Released`].
    ///
    /// # Errors
    /// What is in the way; some of the orders may have been released. Repeat it.
    pub async fn release(&self, sale: SaleId, releases: &[Release]) -> Result<Released, Error> {
        // An order named twice is one release.
        let mut orders: HashMap<OrderId, bool> = HashMap::with_capacity(releases.len());
        for release in releases {
            *orders.entry(release.order).or_default() |= release.forget;
        }
        let orders: Vec<(OrderId, bool)> = orders.into_iter().collect();

        // Without orders the script is still asked once, for what is available.
        let slices = orders.len().div_ceil(SLICE_ORDERS).max(1);
        let (mut available, mut given_back_units, mut unknown, mut epoch) = (0, 0, 0, i64::MAX);
        for slice in 0..slices {
            let from = slice * SLICE_ORDERS;
            let orders = &orders[from..orders.len().min(from + SLICE_ORDERS)];
            let mut command = script::RELEASE.on(sale);
            command.uuids(orders.iter().map(|(order, _)| order.0)).arg(
                orders
                    .iter()
                    .map(|(_, forget)| u8::from(*forget).to_string())
                    .collect::<Vec<_>>(),
            );

            let Some(done) = read(script::RELEASE.run(&self.link, &command).await?)? else {
                return Ok(Released::Unprimed);
            };
            available = done.available;
            given_back_units += done.given_back_units;
            unknown += done.unknown;
            // The oldest of them, should the sale be loaded anew between two slices.
            epoch = epoch.min(done.epoch);
        }
        Ok(Released::Done {
            available,
            given_back_units,
            unknown,
            epoch,
        })
    }
}
