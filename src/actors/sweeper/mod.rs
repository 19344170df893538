//! The sweeper: every so often it looks for what was left behind, and has it settled.
//!
//! - orders that are open for longer than the cutoff (each through its own actor);
//! - releases that the gate was not told of;
//! - reservations in the gate that never became an order ([`reaper`]).

mod reaper;

use std::time::Duration;

use actix::{Actor, AsyncContext, Context, Handler, Message};
use actix_rt::ArbiterHandle;
use futures_util::StreamExt;
use futures_util::stream;
use jiff::Timestamp;
use tokio::runtime;

pub use reaper::Reaper;

use super::order::{Orders, Swept};
use super::releaser::Releaser;
use crate::metrics::{self, PassResult};
use crate::store::{self, Store};

/// Orders that one scan reads, and of which so many are settled at a time.
const SCAN_ORDERS: i64 = 5_000;
const SWEEPS_AT_A_TIME: usize = 256;
/// Releases that a pass hands to the releaser at most.
const RELEASES: i64 = 20_000;

/// Periods and the cutoff.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Between passes.
    pub period: Duration,
    /// An order that is open for longer is swept.
    pub cutoff: Duration,
    /// Between looks for reservations without an order.
    pub reaper_period: Duration,
    /// A reservation younger than this may still become an order.
    pub reaper_grace: Duration,
}

/// What a pass works with.
#[derive(Clone)]
pub struct Parts {
    /// Where stuck orders are found.
    pub store: Store,
    /// Who settles them.
    pub orders: Orders,
    /// Who tells the gate.
    pub releaser: Releaser,
    /// Who looks through the gate.
    pub reaper: Reaper,
    /// Periods and the cutoff.
    pub limits: Limits,
}

/// The shell: timers, and at most one pass of each kind at a time.
pub struct Sweeper {
    parts: Parts,
    runtime: runtime::Handle,
    sweeping: bool,
    reaping: bool,
}

#[derive(Message)]
#[rtype(result = "()")]
struct Ended(Pass);

#[derive(Clone, Copy)]
enum Pass {
    Sweep,
    Reap,
}

impl Sweeper {
    /// Starts the sweeper on `arbiter`; its passes run on `runtime`.
    pub fn launch(parts: Parts, arbiter: &ArbiterHandle, runtime: runtime::Handle) {
        let actor = Self {
            parts,
            runtime,
            sweeping: false,
            reaping: false,
        };
        Self::start_in_arbiter(arbiter, |_| actor);
    }

    fn sweep(&mut self, ctx: &mut Context<Self>) {
        if !std::mem::replace(&mut self.sweeping, true) {
            let (parts, addr) = (self.parts.clone(), ctx.address());
            let pass = self.runtime.spawn(async move { parts.pass().await });
            self.runtime.spawn(async move {
                let result = match pass.await {
                    Ok(Ok(())) => PassResult::Ok,
                    Ok(Err(error)) => {
                        tracing::warn!(%error, "a sweeper pass failed");
                        PassResult::Failed
                    }
                    Err(panic) => {
                        tracing::error!(%panic, "a sweeper pass died");
                        PassResult::Failed
                    }
                };
                metrics::sweeper_pass(result, Timestamp::now());
                addr.do_send(Ended(Pass::Sweep));
            });
        }
    }

    fn reap(&mut self, ctx: &mut Context<Self>) {
        if !std::mem::replace(&mut self.reaping, true) {
            let (parts, addr) = (self.parts.clone(), ctx.address());
            let pass = self
                .runtime
                .spawn(async move { parts.reaper.pass(parts.limits.reaper_grace).await });
            self.runtime.spawn(async move {
                if let Err(panic) = pass.await {
                    tracing::error!(%panic, "a reaper pass died");
                }
                addr.do_send(Ended(Pass::Reap));
            });
        }
    }
}

impl Actor for Sweeper {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.sweep(ctx);
        ctx.run_interval(self.parts.limits.period, Self::sweep);
        ctx.run_interval(self.parts.limits.reaper_period, Self::reap);
    }
}

impl Handler<Ended> for Sweeper {
    type Result = ();

    fn handle(&mut self, Ended(pass): Ended, _: &mut Self::Context) {
        match pass {
            Pass::Sweep => self.sweeping = false,
            Pass::Reap => self.reaping = false,
        }
    }
}

impl Parts {
    async fn pass(&self) -> Result<(), store::Error> {
        let Limits { period, cutoff, .. } = self.limits;
        loop {
            // Looked into once per pass: what stays in doubt has to wait for the next.
            let stuck = self.store.stuck_orders(cutoff, period, SCAN_ORDERS).await?;
            let found = stuck.len() as i64;
            let failed = stream::iter(stuck)
                .map(|order| self.orders.sweep(order))
                .buffer_unordered(SWEEPS_AT_A_TIME)
                .filter(|swept| std::future::ready(*swept == Swept::Failed))
                .count()
                .await;
            if failed > 0 {
                return Err(store::Error::Unavailable(format!(
                    "{failed} of {found} stuck orders could not be settled"
                )));
            }
            if found < SCAN_ORDERS {
                break;
            }
        }
        let (in_doubt, oldest) = self.store.in_doubt(cutoff).await?;
        metrics::in_doubt(in_doubt.max(0) as usize, (in_doubt > 0).then_some(oldest));

        // Twice the period: young notes are most probably in the releaser's hands.
        for release in self.store.pending_releases(period * 2, RELEASES).await? {
            self.releaser.release(release);
        }
        metrics::gate_releases_pending(self.store.count_pending_releases().await?.max(0) as usize);
        self.store.raise_horizon().await
    }
}
