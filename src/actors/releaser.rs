//! The releaser: tells the gate of units that went back. The note in Postgres is taken away only once the gate has done it;
//! what is lost on the way is found there by the sweeper.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::crash::{self, Point};
use crate::domain::{OrderId, SaleId};
use crate::gate::{Gate, Release, Released};
use crate::metrics::{self, GateOp};
use crate::store::Store;

/// Releases that may wait in memory. When it is full they are left to their notes.
const QUEUE: usize = 65_536;
/// Releases per call of the script.
const MAX_BATCH: usize = 512;

/// The handle. Cheap to clone.
#[derive(Clone)]
pub struct Releaser {
    queue: mpsc::Sender<(SaleId, OrderId)>,
    freed: Arc<OnceLock<Freed>>,
}

/// Is told of sales that have units again.
type Freed = Box<dyn Fn(SaleId) + Send + Sync>;

impl Releaser {
    /// Starts the worker. It ends when the last handle is dropped.
    pub fn start(runtime: &Handle, store: Store, gate: Gate) -> Self {
        let (queue, mut waiting) = mpsc::channel(QUEUE);
        let freed = Arc::new(OnceLock::new());
        let worker = Worker {
            store,
            gate,
            freed: freed.clone(),
        };
        runtime.spawn(async move {
            loop {
                let mut batch = Vec::new();
                if waiting.recv_many(&mut batch, MAX_BATCH).await == 0 {
                    return;
                }
                let mut by_sale: HashMap<SaleId, Vec<OrderId>> = HashMap::new();
                for (sale, order) in batch {
                    by_sale.entry(sale).or_default().push(order);
                }
                for (sale, orders) in by_sale {
                    worker.release(sale, &orders).await;
                }
            }
        });
        Self { queue, freed }
    }

    /// Whom to tell that a sale has units again. Set once, when there is somebody who sells.
    pub fn tell(&self, freed: impl Fn(SaleId) + Send + Sync + 'static) {
        self.freed.set(Box::new(freed)).ok();
    }

    /// Tells the gate soon. Its note is durable, so a full queue loses nothing.
    pub fn release(&self, released: (SaleId, OrderId)) {
        if self.queue.try_send(released).is_err() {
            tracing::debug!(order_id = %released.1, "release left to its note: the queue is full");
        }
    }
}

struct Worker {
    store: Store,
    gate: Gate,
    freed: Arc<OnceLock<Freed>>,
}

impl Worker {
    async fn release(&self, sale: SaleId, orders: &[OrderId]) {
        let releases: Vec<Release> = orders
            .iter()
            .map(|order| Release {
                order: *order,
                forget: false,
            })
            .collect();
        let started = Instant::now();
        let result = self.gate.release(sale, &releases).await;
        metrics::gate_seconds(GateOp::Release, started.elapsed());
        let epoch = match result {
            Ok(Released::Done { epoch, .. }) => epoch,
            // Not loaded, or just being loaded from a snapshot that may not have this release: its note stays, and is either
            // in the stock of the next rebuild or carried out under it.
            Ok(Released::Unprimed) => return,
            Err(error) => {
                tracing::warn!(sale_id = %sale, orders = orders.len(), %error, "releases are left to their notes");
                return;
            }
        };
        crash::at(Point::ReleaseTold);
        if let Some(freed) = self.freed.get() {
            freed(sale);
        }
        if let Err(error) = self.store.releases_done(sale, orders, epoch).await {
            // The script is idempotent by order: doing it again later adds nothing.
            tracing::warn!(sale_id = %sale, %error, "notes of done releases are still there");
        }
    }
}
