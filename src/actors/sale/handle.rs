//! The registry of sales' actors, and the way in to them.

use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, Addr, Context};
use actix_rt::ArbiterHandle;
use dashmap::DashMap;
use rustc_hash::FxBuildHasher;
use tokio::runtime;
use tokio::sync::{Semaphore, oneshot};

use super::batch::Batcher;
use super::intake::{Intake, Left};
use super::lookups::Lookups;
use super::messages::{Buy, Called, Freed, Reload, Waiter};
use super::{Decider, Parts, SaleActor, SoldOut};
use crate::domain::{Accepted, Purchase, Refusal, Sale, SaleId};
use crate::metrics;

/// When a buyer should come back who found the queue full.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Sales that are loaded anew at a time because they were found apart: each locks its inventory row and fills a connection.
const RELOADS_AT_A_TIME: usize = 2;

/// Bounds of each sale's actor.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Purchases per batch.
    pub max_batch: usize,
    /// Batches under way at once.
    pub batches_in_flight: usize,
    /// Purchases that may wait.
    pub mailbox_requests: usize,
}

/// All sales that this engine has been asked about. Cheap to clone.
#[derive(Clone)]
pub struct Sales(Arc<Inner>);

struct Inner {
    handles: DashMap<SaleId, SaleHandle, FxBuildHasher>,
    lookups: Lookups<Result<SaleHandle, Refusal>>,
    parts: Arc<Parts>,
    limits: Limits,
    arbiter: ArbiterHandle,
    runtime: runtime::Handle,
    /// Turns for sales that are found apart.
    reloads: Arc<Semaphore>,
}

#[derive(Clone)]
struct SaleHandle {
    sale: Arc<Sale>,
    addr: Addr<SaleActor>,
    intake: Arc<Intake<Buy>>,
    decider: Arc<Decider>,
    /// Places in the queue: the bound that an actix mailbox isn't.
    places: Arc<Semaphore>,
}

impl Sales {
    /// An empty registry whose actors live on `arbiter` and whose work runs on `runtime`.
    pub fn new(parts: Arc<Parts>, limits: Limits, arbiter: ArbiterHandle, runtime: runtime::Handle) -> Self {
        Self(Arc::new(Inner {
            handles: DashMap::default(),
            lookups: Lookups::default(),
            parts,
            limits,
            arbiter,
            runtime,
            reloads: Arc::new(Semaphore::new(RELOADS_AT_A_TIME)),
        }))
    }

    /// Asks a sale for units.
    pub async fn buy(&self, purchase: Purchase) -> Result<Accepted, Refusal> {
        let handle = self.handle(purchase.sale).await?;
        if handle.intake.refuses(&purchase.digest) {
            return Err(Refusal::SoldOut);
        }
        let terms = &handle.sale.terms;
        let affordable = i64::MAX / terms.unit_price_minor;
        if !(1..=terms.max_per_order).contains(&purchase.quantity)
            || i64::from(purchase.quantity) > affordable
        {
            let max_per_order = terms.max_per_order.min(affordable.try_into().unwrap_or(i32::MAX));
            return Err(Refusal::TooMany { max_per_order });
        }
        let place = handle
            .places
            .clone()
            .try_acquire_owned()
            .map_err(|_| Refusal::Overloaded {
                retry_after: RETRY_AFTER,
            })?;
        let (answer, answered) = oneshot::channel();
        let waiter = Waiter { answer, place };
        match handle.intake.leave(Buy { purchase, waiter }) {
            Left::Fine => {}
            Left::CallActor => handle.addr.do_send(Called),
            Left::Closed(buy) => drop(buy),
        }
        // Whoever waits must not keep the intake alive.
        drop(handle);
        // The actor died with the request in its hands: it may have been committed.
        answered.await.unwrap_or(Err(Refusal::OutcomeUnknown {
            retry_after: RETRY_AFTER,
        }))
    }

    /// Tells a sale's actor, if there is one, that units have gone back.
    pub fn freed(&self, sale: SaleId) {
        let addr = self.0.handles.get(&sale).map(|handle| handle.addr.clone());
        if let Some(addr) = addr {
            addr.do_send(Freed);
        }
    }

    /// Has a sale loaded into the gate anew, which was found at the epoch `stale` there and apart from the database.
    pub async fn reload(&self, sale: SaleId, stale: i64) {
        match self.handle(sale).await {
            Ok(handle) => handle.addr.do_send(Reload { stale }),
            Err(refusal) => tracing::warn!(sale_id = %sale, %refusal, "a sale could not be loaded anew"),
        }
    }

    /// The same, and waits until it is done. Few are loaded like this at a time, whoever asks: a Redis that has forgotten everything is filled sale
    /// by sale. Returns whether the gate was loaded, now or by another engine.
    pub async fn reload_in_turn(&self, sale: SaleId, stale: i64) -> bool {
        let handle = match self.handle(sale).await {
            Ok(handle) => handle,
            Err(refusal) => {
                tracing::warn!(sale_id = %sale, %refusal, "a sale could not be loaded anew");
                return false;
            }
        };
        let turns = self.0.reloads.clone();
        handle.addr.do_send(Freed);
        // A task of its own: whoever waits may go away, and must not leave it half loaded.
        let loading = self.0.runtime.spawn(async move {
            let _turn = turns.acquire_owned().await;
            handle.decider.reload(stale).await
        });
        loading.await.unwrap_or(false)
    }

    /// The sales that have an actor.
    pub fn active(&self) -> Vec<SaleId> {
        self.0.handles.iter().map(|handle| *handle.key()).collect()
    }

    /// Takes in a sale that has just been listed, and loads it into the gate: its first buyers wait for neither.
    pub async fn listed(&self, sale: Sale) {
        let decider = self
            .0
            .handles
            .entry(sale.id)
            .or_insert_with(|| self.start(Arc::new(sale)))
            .decider
            .clone();
        // A task of its own: the seller's hang-up must not leave it half loaded.
        let primed = self.0.runtime.spawn(async move { decider.prime().await });
        if let Err(panic) = primed.await {
            tracing::error!(%panic, "loading a listed sale into the gate died");
        }
    }

    async fn handle(&self, id: SaleId) -> Result<SaleHandle, Refusal> {
        let found = self.0.handles.get(&id).map(|handle| handle.clone());
        match found {
            Some(handle) if handle.addr.connected() => Ok(handle),
            Some(dead) => {
                // A panic closed its address for good. Nothing is lost but its queue: the rows tell the rest.
                metrics::actor_restarted(metrics::Actor::Sale);
                tracing::error!(sale_id = %id, "a sale's actor had died and is started anew");
                let fresh = self.start(dead.sale.clone());
                let mut entry = self.0.handles.entry(id).or_insert_with(|| fresh.clone());
                if !entry.addr.connected() {
                    *entry = fresh;
                }
                Ok(entry.clone())
            }
            None => {
                let sales = self.clone();
                self.0
                    .lookups
                    .ask(id, &self.0.runtime, || async move { sales.look_up(id).await })
                    .await
                    .unwrap_or(Err(Refusal::Unavailable {
                        retry_after: RETRY_AFTER,
                    }))
            }
        }
    }

    async fn look_up(&self, id: SaleId) -> Result<SaleHandle, Refusal> {
        let view = self.0.parts.store.sale(id).await.map_err(|error| {
            tracing::warn!(sale_id = %id, %error, "a sale can't be looked up");
            Refusal::Unavailable {
                retry_after: RETRY_AFTER,
            }
        })?;
        let sale = Arc::new(view.ok_or(Refusal::SaleNotFound)?.sale);
        Ok(self
            .0
            .handles
            .entry(id)
            .or_insert_with(|| self.start(sale))
            .clone())
    }

    fn start(&self, sale: Arc<Sale>) -> SaleHandle {
        let Inner {
            parts,
            limits,
            arbiter,
            runtime,
            ..
        } = &*self.0;
        let intake = Arc::new(Intake::default());
        let decider = Arc::new(Decider::new(sale.clone(), parts.clone()));
        let actor = SaleActor {
            intake: intake.clone(),
            batcher: Batcher::new(limits.max_batch, limits.batches_in_flight),
            decider: decider.clone(),
            parts: parts.clone(),
            sale: sale.id,
            runtime: runtime.clone(),
            sold_out: SoldOut::No,
        };
        let addr = SaleActor::start_in_arbiter(arbiter, |_: &mut Context<SaleActor>| actor);
        SaleHandle {
            sale,
            addr,
            intake,
            decider,
            places: Arc::new(Semaphore::new(limits.mailbox_requests)),
        }
    }
}
