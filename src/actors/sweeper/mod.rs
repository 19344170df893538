//! The sweeper: every so often it looks for what was left behind, and has it settled.
//!
//! - orders that are open for longer than the cutoff (each through its own actor);
//! - releases that the gate was not told of;
//! - reservations in the gate that never became an order ([`reaper`]).

mod reaper;

use std::collections::HashSet;
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
use crate::store::{self, Store, StuckOrder};

/// Orders that one scan reads, and of which so many are settled at a time.
const SCAN_ORDERS: i64 = 5_000;
const SWEEPS_AT_A_TIME: usize = 256;
/// Every so many passes, the first one included, the whole table is looked through for open orders.
const PASSES_PER_LOOK_AT_ALL: u64 = 360;
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
    under_way: HashSet<Pass>,
    passes: u64,
}

#[derive(Message)]
#[rtype(result = "()")]
struct Ended(Pass);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Pass {
    Pending,
    Claims,
    Reap,
}

impl Sweeper {
    /// Starts the sweeper on `arbiter`; its passes run on `runtime`.
    pub fn launch(parts: Parts, arbiter: &ArbiterHandle, runtime: runtime::Handle) {
        let actor = Self {
            parts,
            runtime,
            under_way: HashSet::new(),
            passes: 0,
        };
        Self::start_in_arbiter(arbiter, |_| actor);
    }

    fn sweep(&mut self, ctx: &mut Context<Self>) {
        let parts = self.parts.clone();
        let whole_table = self.passes.is_multiple_of(PASSES_PER_LOOK_AT_ALL);
        self.passes += 1;
        self.begin(Pass::Pending, ctx, async move {
            parts.sweep_pending(whole_table).await
        });
        // Apart: a provider that takes its time must not keep unclaimed orders from being swept.
        let parts = self.parts.clone();
        self.begin(Pass::Claims, ctx, async move { parts.look_into_claims().await });
    }

    fn reap(&mut self, ctx: &mut Context<Self>) {
        let parts = self.parts.clone();
        self.begin(Pass::Reap, ctx, async move {
            parts.reaper.pass(parts.limits.reaper_grace).await
        });
    }

    fn begin(
        &mut self,
        pass: Pass,
        ctx: &mut Context<Self>,
        work: impl Future<Output = Result<(), store::Error>> + Send + 'static,
    ) {
        if !self.under_way.insert(pass) {
            return;
        }
        let addr = ctx.address();
        let work = self.runtime.spawn(work);
        self.runtime.spawn(async move {
            let result = match work.await {
                Ok(Ok(())) => PassResult::Ok,
                Ok(Err(error)) => {
                    tracing::warn!(?pass, %error, "a pass failed");
                    PassResult::Failed
                }
                Err(panic) => {
                    tracing::error!(?pass, %panic, "a pass died");
                    PassResult::Failed
                }
            };
            if pass == Pass::Pending {
                metrics::sweeper_pass(result, Timestamp::now());
            }
            addr.do_send(Ended(pass));
        });
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
        self.under_way.remove(&pass);
    }
}

impl Parts {
    /// Sweeps what nobody has claimed, and hands on releases that were left.
    async fn sweep_pending(&self, whole_table: bool) -> Result<(), store::Error> {
        let Limits { period, cutoff, .. } = self.limits;
        if whole_table {
            self.store.find_horizon().await?;
        }
        loop {
            let stuck = self.store.stuck_pending(cutoff, SCAN_ORDERS).await?;
            let found = stuck.len() as i64;
            self.settle(stuck).await?;
            if found < SCAN_ORDERS {
                break;
            }
        }
        // Twice the period: young notes are most probably in the releaser's hands.
        for release in self.store.pending_releases(period * 2, RELEASES).await? {
            self.releaser.release(release);
        }
        metrics::gate_releases_pending(self.store.count_pending_releases().await?.max(0) as usize);
        self.store.raise_horizon().await
    }

    /// Finds out what became of claims that are too old. What stays in doubt has to wait for the next pass.
    async fn look_into_claims(&self) -> Result<(), store::Error> {
        let Limits { period, cutoff, .. } = self.limits;
        let stuck = self.store.stuck_claims(cutoff, period, SCAN_ORDERS).await?;
        self.settle(stuck).await?;
        let (in_doubt, oldest) = self.store.in_doubt(cutoff).await?;
        metrics::in_doubt(in_doubt.max(0) as usize, (in_doubt > 0).then_some(oldest));
        Ok(())
    }

    async fn settle(&self, stuck: Vec<StuckOrder>) -> Result<(), store::Error> {
        let found = stuck.len();
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
        Ok(())
    }
}
