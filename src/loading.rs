//! Loads a sale into the gate from Postgres, under a raised epoch: the engine that sells it does so, and whoever has found the two apart.

use std::time::Instant;

use crate::crash::{self, Point};
use crate::domain::{Sale, SaleId};
use crate::gate::{self, Gate, LoadedOrder, SaleFacts, Standing};
use crate::metrics::{self, GateOp, RebuildReason};
use crate::store::{self, Snapshot, Store};

/// Why a sale isn't loaded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Postgres can't be asked.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// Redis can't be asked.
    #[error(transparent)]
    Gate(#[from] gate::Error),
    /// There is no such sale.
    #[error("the sale is gone")]
    NoSuchSale,
}

/// Raises the epoch of a sale, above the one that the gate was found at, and reads what the gate must know of it.
///
/// # Errors
/// [`Error::NoSuchSale`], or that Postgres can't be asked.
pub async fn read(store: &Store, sale: &Sale, above: i64) -> Result<Snapshot, Error> {
    let snapshot = store
        .raise_epoch(sale.id, above)
        .await?
        .ok_or(Error::NoSuchSale)?;
    crash::at(Point::EpochRaised);
    Ok(snapshot)
}

/// Tells the gate what was read. `false`: somebody else's load is newer, and this one has stopped.
///
/// # Errors
/// What is in the way; the sale may be loaded or not.
pub async fn write(
    gate: &Gate,
    sale: &Sale,
    snapshot: Snapshot,
    reason: RebuildReason,
) -> Result<bool, gate::Error> {
    let Snapshot {
        epoch,
        available,
        closes_at,
        orders,
    } = snapshot;
    let orders: Vec<LoadedOrder> = orders
        .into_iter()
        .map(|known| LoadedOrder {
            order: known.order,
            buyer: known.buyer,
            digest: known.digest,
            quantity: known.quantity,
            holds: known.holds,
        })
        .collect();
    let facts = SaleFacts {
        available,
        opens_at: sale.terms.opens_at,
        closes_at,
        per_buyer_limit: sale.terms.per_buyer_limit,
    };
    let id = sale.id;
    let loaded = gate.begin_load(id, epoch).await?
        && gate.load_orders(id, epoch, &orders).await?
        && gate.finish_load(id, epoch, &facts).await?;
    if loaded {
        crash::at(Point::GateLoaded);
        metrics::gate_rebuilt(reason);
        tracing::info!(sale_id = %id, epoch, orders = orders.len(), available, ?reason, "loaded a sale into the gate");
    }
    Ok(loaded)
}

/// Whether the gate has moved on since the sale was found there at the epoch `stale` (0: not loaded at all), or somebody is loading it just now.
/// To raise the epoch again would only cross that one's batches.
///
/// # Errors
/// What is in the way.
pub async fn has_moved_on(gate: &Gate, sale: SaleId, stale: i64) -> Result<bool, gate::Error> {
    Ok(match gate.standing(sale).await? {
        Standing::NotLoaded => stale > 0,
        Standing::Loading => true,
        Standing::Loaded(pulse) => pulse.epoch > stale,
    })
}

/// Loads a sale anew that was found at the epoch `stale`, unless the gate has moved on. For whoever doesn't sell it; one load of a sale at a time in a
/// process.
///
/// # Errors
/// As for [`read`] and [`write`].
pub async fn anew(store: &Store, gate: &Gate, sale: &Sale, stale: i64) -> Result<(), Error> {
    if has_moved_on(gate, sale.id, stale).await? {
        return Ok(());
    }
    let started = Instant::now();
    let snapshot = read(store, sale, stale).await?;
    let written = write(gate, sale, snapshot, RebuildReason::Apart).await;
    metrics::gate_seconds(GateOp::Rebuild, started.elapsed());
    written?;
    Ok(())
}
