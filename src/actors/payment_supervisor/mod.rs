//! The payment supervisor: sees to it that every PENDING order is charged, so many at a time.
//!
//! New orders are handed over after their commit. What a crash, another replica or a full queue left is found by a scan of the
//! PENDING rows. The claim decides who charges an order; being in this queue means nothing.

mod handover;
mod queue;

use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{Actor, Addr, AsyncContext, Context, Handler, Message};
use actix_rt::ArbiterHandle;
use tokio::runtime;

use handover::{HandOver, Left};
use queue::{Offer, Queues};

use super::breaker::Breakers;
use super::order::{ChargePlace, Orders};
use crate::metrics;
use crate::store::{OpenOrder, Store};

/// Orders that one scan reads at most.
const SCAN_ORDERS: i64 = 10_000;

/// Bounds and periods.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Charges under way at once, in each currency.
    pub max_in_flight: usize,
    /// Orders that may wait in memory, in each currency.
    pub queue_orders: usize,
    /// How often the PENDING rows are looked through; also how old a row must be to be picked up there.
    pub scan_period: Duration,
}

/// The handle. Cheap to clone.
#[derive(Clone)]
pub struct Supervisor {
    addr: Addr<PaymentSupervisor>,
    handed_over: HandOver,
}

impl Supervisor {
    /// Starts the supervisor on `arbiter`; its scans run on `runtime`.
    pub fn start(
        limits: Limits,
        orders: Orders,
        store: Store,
        provider_breakers: Arc<Breakers>,
        arbiter: &ArbiterHandle,
        runtime: runtime::Handle,
    ) -> Self {
        let handed_over = HandOver::new(limits.queue_orders);
        let actor = PaymentSupervisor {
            handed_over: handed_over.clone(),
            queues: Queues::new(limits.queue_orders, limits.max_in_flight),
            limits,
            orders,
            store,
            provider_breakers,
            runtime,
            scanning: false,
            stopping: false,
            retry_due: false,
        };
        Self {
            addr: PaymentSupervisor::start_in_arbiter(arbiter, |_| actor),
            handed_over,
        }
    }

    /// Hands over orders that have just been committed. Those that there is no room for are found by the scan.
    pub fn hand_over(&self, orders: Vec<OpenOrder>) {
        let Left { call, dropped } = self.handed_over.leave(orders);
        metrics::payment_handovers_dropped(dropped);
        if call {
            self.addr.do_send(HandedOver);
        }
    }

    /// Begins no further charge. What is in the queue is PENDING, and found again at the next start.
    pub fn stop_charging(&self) {
        self.addr.do_send(StopCharging);
    }
}

/// The shell around the [`Queues`].
pub struct PaymentSupervisor {
    handed_over: HandOver,
    queues: Queues,
    limits: Limits,
    orders: Orders,
    store: Store,
    provider_breakers: Arc<Breakers>,
    runtime: runtime::Handle,
    scanning: bool,
    stopping: bool,
    /// A look at the queue is due once the provider's breaker lets something through.
    retry_due: bool,
}

#[derive(Message)]
#[rtype(result = "()")]
struct HandedOver;

#[derive(Message)]
#[rtype(result = "()")]
struct PlaceFree(OpenOrder);

#[derive(Message)]
#[rtype(result = "()")]
struct Scanned(Vec<OpenOrder>);

#[derive(Message)]
#[rtype(result = "()")]
struct StopCharging;

impl Actor for PaymentSupervisor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.scan(ctx);
        ctx.run_interval(self.limits.scan_period, Self::scan);
    }
}

impl PaymentSupervisor {
    fn scan(&mut self, ctx: &mut Context<Self>) {
        let now = Instant::now();
        metrics::payment_queue_age(self.queues.oldest(now));
        if self.scanning || self.stopping {
            return;
        }
        // What can't be charged now would only stand before what can.
        let mut unwanted = self.provider_breakers.open(now);
        unwanted.extend(self.queues.full());
        self.scanning = true;
        let (store, addr, min_age) = (self.store.clone(), ctx.address(), self.limits.scan_period);
        self.runtime.spawn(async move {
            let found = store
                .pending_orders(min_age, SCAN_ORDERS, &unwanted)
                .await
                .unwrap_or_else(|error| {
                    tracing::warn!(%error, "pending orders could not be looked for");
                    Vec::new()
                });
            addr.do_send(Scanned(found));
        });
    }

    fn take_in(&mut self, orders: Vec<OpenOrder>, new: bool, ctx: &mut Context<Self>) {
        let now = Instant::now();
        let mut dropped = 0;
        for order in orders {
            dropped += usize::from(self.queues.offer(order, now) == Offer::Full);
        }
        // What a scan has found is found again.
        if new {
            metrics::payment_handovers_dropped(dropped);
        }
        self.charge_what_fits(ctx);
    }

    fn charge_what_fits(&mut self, ctx: &mut Context<Self>) {
        if self.stopping {
            return;
        }
        let mut held_back = false;
        for (currency, queue) in self.queues.each() {
            let breaker = self.provider_breakers.of(currency);
            while queue.has_place() {
                // An order that nobody can charge stays PENDING: then it can be swept, or charged when the provider is back.
                if breaker.is_open(Instant::now()) {
                    held_back = true;
                    break;
                }
                let Some(next) = queue.next() else { break };
                let (addr, counted) = (ctx.address(), metrics::Counted::on(metrics::charges_in_flight()));
                let place = ChargePlace::new(move || {
                    drop(counted);
                    addr.do_send(PlaceFree(next));
                });
                self.orders.charge(next.order, next.sale, place);
            }
        }
        if held_back {
            self.retry_later(ctx);
        }
        metrics::payment_queue_orders(self.queues.len());
    }

    fn retry_later(&mut self, ctx: &mut Context<Self>) {
        const LOOK_AGAIN: Duration = Duration::from_millis(100);
        if !self.retry_due {
            self.retry_due = true;
            ctx.run_later(LOOK_AGAIN, |actor, ctx| {
                actor.retry_due = false;
                actor.charge_what_fits(ctx);
            });
        }
    }
}

impl Handler<HandedOver> for PaymentSupervisor {
    type Result = ();

    fn handle(&mut self, _: HandedOver, ctx: &mut Self::Context) {
        let orders = self.handed_over.take();
        self.take_in(orders, true, ctx);
    }
}

impl Handler<Scanned> for PaymentSupervisor {
    type Result = ();

    fn handle(&mut self, Scanned(orders): Scanned, ctx: &mut Self::Context) {
        self.scanning = false;
        self.take_in(orders, false, ctx);
    }
}

impl Handler<PlaceFree> for PaymentSupervisor {
    type Result = ();

    fn handle(&mut self, PlaceFree(order): PlaceFree, ctx: &mut Self::Context) {
        self.queues.ended(order);
        self.charge_what_fits(ctx);
    }
}

impl Handler<StopCharging> for PaymentSupervisor {
    type Result = ();

    fn handle(&mut self, _: StopCharging, _: &mut Self::Context) {
        self.stopping = true;
    }
}
