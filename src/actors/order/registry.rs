//! The registry of orders' actors: finds the one that is alive, or starts a fresh one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use actix::dev::ToEnvelope;
use actix::{Actor, Addr, Context, Handler, MailboxError, Message};
use actix_rt::ArbiterHandle;
use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use rustc_hash::FxBuildHasher;
use tokio::runtime;

use super::OrderActor;
use super::logic::{Logic, Parts};
use super::messages::{Cancel, CancelWithSale, Charge, ChargePlace, Heard, Sweep, Swept, Told};
use crate::actors::transition_writer::WriteError;
use crate::domain::{OrderId, SaleId};
use crate::metrics;
use crate::store::{Outcome, StuckOrder};

/// How often a question that an actor left unanswered, because it stopped just then, is asked of the next one.
const ASKS: usize = 5;

/// All orders that somebody is working on. Cheap to clone.
#[derive(Clone)]
pub struct Orders(Arc<Inner>);

struct Inner {
    alive: DashMap<OrderId, Alive, FxBuildHasher>,
    generations: AtomicU64,
    parts: Arc<Parts>,
    arbiter: ArbiterHandle,
    runtime: runtime::Handle,
}

struct Alive {
    generation: u64,
    addr: Addr<OrderActor>,
}

impl Orders {
    /// An empty registry whose actors live on `arbiter` and whose charges run on `runtime`.
    pub fn new(parts: Arc<Parts>, arbiter: ArbiterHandle, runtime: runtime::Handle) -> Self {
        Self(Arc::new(Inner {
            alive: DashMap::default(),
            generations: AtomicU64::new(0),
            parts,
            arbiter,
            runtime,
        }))
    }

    /// Has an order claimed and charged. Should its actor stop just now, the place goes back unused, and the order is found by the
    /// supervisor's scan if it is still PENDING.
    pub fn charge(&self, order: OrderId, sale: SaleId, place: ChargePlace) {
        self.addr(order, sale).do_send(Charge(place));
    }

    /// Has an order swept.
    pub async fn sweep(&self, stuck: StuckOrder) -> Swept {
        self.ask(stuck.order, stuck.sale, || Sweep(stuck))
            .await
            .unwrap_or(Swept::Failed)
    }

    /// Has an order cancelled for its buyer.
    pub async fn cancel(&self, order: OrderId, sale: SaleId) -> Result<Outcome, WriteError> {
        // Each actor may have died with the question in its hands.
        self.ask(order, sale, || Cancel)
            .await
            .unwrap_or(Err(WriteError::OutcomeUnknown))
    }

    /// Has an order released whose sale is called off, while it is PENDING.
    pub async fn cancel_with_sale(&self, order: OrderId, sale: SaleId) -> Result<Outcome, WriteError> {
        self.ask(order, sale, || CancelWithSale)
            .await
            .unwrap_or(Err(WriteError::OutcomeUnknown))
    }

    /// Tells an order what its provider has told.
    pub async fn tell(&self, order: OrderId, sale: SaleId, told: Told) -> Heard {
        self.ask(order, sale, || told.clone())
            .await
            .unwrap_or(Heard::Again)
    }

    /// Asks an order's actor, and the next one where that stops with the question unanswered; `None` when all have.
    async fn ask<M>(&self, order: OrderId, sale: SaleId, question: impl Fn() -> M) -> Option<M::Result>
    where
        M: Message<Result: Send> + Send + 'static,
        OrderActor: Handler<M>,
        Context<OrderActor>: ToEnvelope<OrderActor, M>,
    {
        for _ in 0..ASKS {
            match self.addr(order, sale).send(question()).await {
                Ok(answer) => return Some(answer),
                Err(MailboxError::Closed | MailboxError::Timeout) => tokio::task::yield_now().await,
            }
        }
        None
    }

    /// How many orders have an actor.
    pub fn len(&self) -> usize {
        self.0.alive.len()
    }

    /// Whether none has.
    pub fn is_empty(&self) -> bool {
        self.0.alive.is_empty()
    }

    /// An actor has stopped; a newer one stays.
    pub(super) fn forget(&self, order: OrderId, generation: u64) {
        self.0
            .alive
            .remove_if(&order, |_, alive| alive.generation == generation);
        if std::thread::panicking() {
            metrics::actor_restarted(metrics::Actor::Order);
        }
    }

    fn addr(&self, order: OrderId, sale: SaleId) -> Addr<OrderActor> {
        match self.0.alive.entry(order) {
            Entry::Occupied(alive) if alive.get().addr.connected() => alive.get().addr.clone(),
            Entry::Occupied(mut dead) => {
                let fresh = self.start(order, sale);
                let addr = fresh.addr.clone();
                dead.insert(fresh);
                addr
            }
            Entry::Vacant(free) => free.insert(self.start(order, sale)).addr.clone(),
        }
    }

    fn start(&self, order: OrderId, sale: SaleId) -> Alive {
        let Inner {
            generations,
            parts,
            arbiter,
            runtime,
            ..
        } = &*self.0;
        let generation = generations.fetch_add(1, Ordering::Relaxed);
        let actor = OrderActor {
            logic: Logic {
                order,
                sale,
                parts: parts.clone(),
            },
            runtime: runtime.clone(),
            orders: self.clone(),
            generation,
            busy: 0,
        };
        let addr = OrderActor::start_in_arbiter(arbiter, |_: &mut Context<OrderActor>| actor);
        Alive { generation, addr }
    }
}
